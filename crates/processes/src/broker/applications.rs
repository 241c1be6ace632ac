//! Attached applications and their users: bounds, rates and numbers.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use socket_channel::attach::Key;

use crate::broker::token_bucket::{Rate, TokenBucket};
use crate::ipc::messages::KnownApplication;

/// How often the processes of a user may attach.
const ATTACH: Rate = Rate {
    burst: 256,
    period: Duration::from_millis(2),
};

/// How often they may ask for handles.
const HANDLES: Rate = Rate {
    burst: 1024,
    period: Duration::from_micros(500),
};

/// How often they may pass files.
const FILES: Rate = HANDLES;

/// Users beyond this number are forgotten while they use nothing.
const IDLE_USERS_MAX: usize = 4096;

/// What a user has taken of its bounds and rates.
#[derive(Debug)]
pub(crate) struct User {
    pub(crate) attach: TokenBucket,
    pub(crate) handles: TokenBucket,
    pub(crate) files: TokenBucket,
    /// Connections that are no process of an application yet.
    pub(crate) strangers: u32,
    applications: u32,
}

/// An application.
#[derive(Debug)]
pub(crate) struct Application {
    /// The user of its first process.
    pub(crate) uid: u32,
    pub(crate) modes: u32,
    /// Its secret.
    pub(crate) key: Key,
    /// Processes that have attached, or are about to.
    processes: u32,
    /// Its segment. Without a process, one may still come that has got a descriptor.
    pub(crate) segment: Option<OwnedFd>,
    next_handle: u32,
}

/// A bound is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooMany;

/// Bounds on the number of applications and processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ApplicationLimits {
    /// Applications.
    pub applications_max: u32,
    /// Applications of a user.
    pub applications_per_user_max: u32,
    /// Processes of an application.
    pub processes_max: u32,
}

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct Applications {
    limits: ApplicationLimits,
    /// The next number of an application or channel.
    next: u32,
    applications: HashMap<u32, Application>,
    users: HashMap<u32, User>,
}

impl Applications {
    /// None yet; numbers are counted from `first`.
    pub(crate) fn new(limits: ApplicationLimits, first: u32) -> Self {
        Self {
            limits,
            next: first,
            applications: HashMap::new(),
            users: HashMap::new(),
        }
    }

    /// A user, from its first use on.
    pub(crate) fn user(&mut self, uid: u32, now: Instant) -> &mut User {
        if self.users.len() > IDLE_USERS_MAX && !self.users.contains_key(&uid) {
            self.users.retain(|_, user| {
                let is_idle = user.strangers == 0 && user.applications == 0;
                let buckets = [&user.attach, &user.handles, &user.files];
                !(is_idle && buckets.iter().all(|bucket| bucket.is_full(now)))
            });
        }
        self.users.entry(uid).or_insert_with(|| User {
            attach: TokenBucket::full(ATTACH, now),
            handles: TokenBucket::full(HANDLES, now),
            files: TokenBucket::full(FILES, now),
            strangers: 0,
            applications: 0,
        })
    }

    /// A connection of a user has become a process of an application, or has closed.
    pub(crate) fn stranger_left(&mut self, uid: u32) {
        if let Some(user) = self.users.get_mut(&uid) {
            user.strangers = user.strangers.saturating_sub(1);
        }
    }

    /// An unused number, never 0.
    pub(crate) fn next_number(&mut self, is_used: impl Fn(u32) -> bool) -> u32 {
        loop {
            let number = self.next;
            self.next = self.next.wrapping_add(1);
            if number != 0 && !is_used(number) && !self.applications.contains_key(&number) {
                return number;
            }
        }
    }

    /// Fails if a user may have no other application.
    pub(crate) fn check_room(&mut self, uid: u32, now: Instant) -> Result<(), TooMany> {
        let limits = self.limits;
        let is_any = self.applications.len() < limits.applications_max as usize;
        let has_any = self.user(uid, now).applications < limits.applications_per_user_max;
        if is_any && has_any {
            Ok(())
        } else {
            Err(TooMany)
        }
    }

    /// Adds an application that has no process yet. One of this number takes its place.
    pub(crate) fn add(&mut self, known: &KnownApplication, segment: Option<OwnedFd>, now: Instant) {
        self.remove(known.app);
        self.user(known.uid, now).applications += 1;
        let application = Application {
            uid: known.uid,
            modes: known.modes,
            key: known.key,
            processes: 0,
            segment,
            next_handle: known.next_handle,
        };
        self.applications.insert(known.app, application);
    }

    pub(crate) fn get(&self, app: u32) -> Option<&Application> {
        self.applications.get(&app)
    }

    /// Adds a process to an application.
    pub(crate) fn add_process(&mut self, app: u32) -> Result<(), TooMany> {
        let application = self.applications.get_mut(&app).ok_or(TooMany)?;
        if application.processes >= self.limits.processes_max {
            return Err(TooMany);
        }
        application.processes += 1;
        Ok(())
    }

    /// Adds a process that an earlier broker has let in.
    pub(crate) fn add_known_process(&mut self, app: u32) {
        if let Some(application) = self.applications.get_mut(&app) {
            application.processes = application.processes.saturating_add(1);
        }
    }

    /// Takes a process from an application. The application stays until the host stack has nothing
    /// of it any more.
    pub(crate) fn remove_process(&mut self, app: u32) {
        if let Some(application) = self.applications.get_mut(&app) {
            application.processes = application.processes.saturating_sub(1);
        }
    }

    /// Numbers for handles: the first of them. They follow each other, and begin again at 0 when
    /// there are no more.
    pub(crate) fn take_handles(&mut self, app: u32, count: u32) -> Option<u32> {
        let application = self.applications.get_mut(&app)?;
        let (first, next) = match application.next_handle.checked_add(count) {
            Some(next) => (application.next_handle, next),
            None => (0, count),
        };
        application.next_handle = next;
        Some(first)
    }

    /// Forgets an application; false if there is none.
    pub(crate) fn remove(&mut self, app: u32) -> bool {
        let Some(application) = self.applications.remove(&app) else {
            return false;
        };
        if let Some(user) = self.users.get_mut(&application.uid) {
            user.applications = user.applications.saturating_sub(1);
        }
        true
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.applications.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: ApplicationLimits = ApplicationLimits {
        applications_max: 3,
        applications_per_user_max: 2,
        processes_max: 2,
    };

    fn add(applications: &mut Applications, app: u32, uid: u32, now: Instant) {
        let known = KnownApplication {
            app,
            uid,
            modes: 0,
            next_handle: 0,
            key: Key::new([7; Key::BYTES]),
        };
        applications.add(&known, None, now);
        applications.add_process(app).unwrap();
    }

    #[test]
    fn numbers_begin_again_without_those_that_are_used() {
        let now = Instant::now();
        let mut applications = Applications::new(LIMITS, u32::MAX - 1);
        let next = |applications: &mut Applications| applications.next_number(|it| it == 2);
        let first = next(&mut applications);
        assert_eq!(first, u32::MAX - 1);
        add(&mut applications, u32::MAX, 7, now);
        assert_eq!(next(&mut applications), 1, "0 is none");
        assert_eq!(next(&mut applications), 3);
    }

    #[test]
    fn handles_of_a_packet_have_numbers_that_follow_each_other() {
        let now = Instant::now();
        let mut applications = Applications::new(LIMITS, 1);
        add(&mut applications, 1, 7, now);
        assert_eq!(applications.take_handles(1, 64), Some(0));
        assert_eq!(applications.take_handles(1, u32::MAX - 100), Some(64));
        assert_eq!(applications.take_handles(1, 64), Some(0));
        assert_eq!(applications.take_handles(1, 1), Some(64));
        assert_eq!(applications.take_handles(2, 1), None);
    }

    #[test]
    fn one_user_leaves_room_for_others_and_all_together_have_an_end() {
        let now = Instant::now();
        let mut applications = Applications::new(LIMITS, 1);
        for app in [1, 2] {
            assert_eq!(applications.check_room(7, now), Ok(()));
            add(&mut applications, app, 7, now);
        }
        assert_eq!(applications.check_room(7, now), Err(TooMany));
        assert_eq!(applications.check_room(8, now), Ok(()));
        add(&mut applications, 3, 8, now);
        assert_eq!(applications.check_room(9, now), Err(TooMany));
        assert_eq!(applications.add_process(1), Ok(()));
        assert_eq!(applications.add_process(1), Err(TooMany));
        assert!(applications.remove(1) && !applications.remove(1));
        assert_eq!(applications.check_room(7, now), Ok(()));
    }

    #[test]
    fn users_who_use_nothing_are_forgotten_when_there_are_many() {
        let now = Instant::now();
        let mut applications = Applications::new(LIMITS, 1);
        applications.user(0, now).attach.take(now).unwrap();
        applications.user(1, now).strangers = 1;
        for uid in 2..10_000 {
            applications.user(uid, now);
        }
        assert!(applications.users.len() <= IDLE_USERS_MAX + 1);
        assert!(
            [0, 1]
                .iter()
                .all(|uid| applications.users.contains_key(uid))
        );
    }
}
