//! Attached applications and their users: limits, rates and numbers.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use socket_channel::attach::{HANDLES_MAX, Key};

use crate::broker::shares::Shares;
use crate::broker::token_bucket::{Rate, TokenBucket};
use crate::ipc::messages::KnownApplication;

/// Rate at which the processes of a user may attach.
const ATTACH: Rate = Rate {
    burst: 256,
    period: Duration::from_millis(2),
};

/// Rate at which they may ask for handles.
const HANDLES: Rate = Rate {
    burst: 1024,
    period: Duration::from_micros(500),
};

/// Rate at which they may pass files.
const FILES: Rate = HANDLES;

/// Descriptors of the host process that each process of an application takes: two bells, and its
/// part of the application's segment.
const OF_PROCESS: u32 = 3;

/// Most handles of a process without sockets: those kept for future sockets, and those closed but
/// not yet reported by the host process.
const SPARE_HANDLES: u32 = 3 * HANDLES_MAX;

/// Number of users above which idle ones are forgotten.
const IDLE_USERS_MAX: usize = 4096;

/// A user's use of its limits and rates.
#[derive(Debug)]
pub(crate) struct User {
    pub(crate) attach: TokenBucket,
    pub(crate) handles: TokenBucket,
    pub(crate) files: TokenBucket,
    /// Connections that are not yet processes of an application.
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
    /// Its segment, which outlives its processes: another one may still come with a descriptor.
    pub(crate) segment: Option<OwnedFd>,
    next_handle: u32,
    /// Handles that the host process has not reported closed.
    handles: u32,
    /// Number of files that it has passed.
    files: u32,
}

/// A limit is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooMany;

/// Limits on the number of applications and processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ApplicationLimits {
    /// Most applications.
    pub applications_max: u32,
    /// Most applications of a user.
    pub applications_per_user_max: u32,
    /// Most processes of an application.
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
    /// Descriptors of the host process.
    descriptors: Shares,
    /// Files that NIC processes and the broker have open.
    files: Shares,
}

impl Applications {
    /// Starts without applications; numbers are counted from `first`. Applications may hold
    /// `descriptors` descriptors of the host process, and a quarter as many files.
    pub(crate) fn new(limits: ApplicationLimits, descriptors: u32, first: u32) -> Self {
        Self {
            descriptors: Shares::of(descriptors),
            files: Shares::of(descriptors / 4),
            limits,
            next: first,
            applications: HashMap::new(),
            users: HashMap::new(),
        }
    }

    /// Returns the state of a user, created at its first use.
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

    /// Records that a connection of a user has attached or closed.
    pub(crate) fn stranger_left(&mut self, uid: u32) {
        if let Some(user) = self.users.get_mut(&uid) {
            user.strangers = user.strangers.saturating_sub(1);
        }
    }

    /// Returns an unused number, never 0.
    pub(crate) fn next_number(&mut self, is_used: impl Fn(u32) -> bool) -> u32 {
        loop {
            let number = self.next;
            self.next = self.next.wrapping_add(1);
            if number != 0 && !is_used(number) && !self.applications.contains_key(&number) {
                return number;
            }
        }
    }

    /// Fails if a user may not have another application.
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

    /// Adds an application without processes. Replaces one with the same number.
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
            handles: known.handles,
            files: 0,
        };
        self.descriptors.take(known.uid, known.handles);
        self.applications.insert(known.app, application);
    }

    pub(crate) fn get(&self, app: u32) -> Option<&Application> {
        self.applications.get(&app)
    }

    /// Adds a process to an application.
    pub(crate) fn add_process(&mut self, app: u32) -> Result<(), TooMany> {
        let application = self.applications.get_mut(&app).ok_or(TooMany)?;
        let is_full = application.processes >= self.limits.processes_max;
        if is_full || self.descriptors.room(application.uid) < OF_PROCESS {
            return Err(TooMany);
        }
        application.processes += 1;
        self.descriptors.take(application.uid, OF_PROCESS);
        Ok(())
    }

    /// Adds a process that an earlier broker has attached.
    pub(crate) fn add_known_process(&mut self, app: u32) {
        if let Some(application) = self.applications.get_mut(&app) {
            application.processes = application.processes.saturating_add(1);
            self.descriptors.take(application.uid, OF_PROCESS);
        }
    }

    /// Removes a process from an application. The application stays until the host stack has
    /// released its state.
    pub(crate) fn remove_process(&mut self, app: u32) {
        if let Some(application) = self.applications.get_mut(&app)
            && application.processes > 0
        {
            application.processes -= 1;
            self.descriptors.give_back(application.uid, OF_PROCESS);
        }
    }

    /// Returns how many more handles an application may have, up to `wanted`, and the error if that
    /// is less. An application's handles are limited like its sockets.
    pub(crate) fn handle_room(&self, app: u32, wanted: u32, sockets_max: u32) -> (u32, Errno) {
        let Some(application) = self.applications.get(&app) else {
            return (0, Errno::MFILE);
        };
        let spare = self.limits.processes_max.saturating_mul(SPARE_HANDLES);
        let most = sockets_max.saturating_add(spare);
        let own = most.saturating_sub(application.handles);
        let room = self.descriptors.room(application.uid);
        let why = if own <= room {
            Errno::MFILE
        } else {
            Errno::NFILE
        };
        (wanted.min(own).min(room), why)
    }

    /// Records that the host process has closed `count` handles of an application.
    pub(crate) fn on_handles_closed(&mut self, app: u32, count: u32) {
        if let Some(application) = self.applications.get_mut(&app) {
            let count = count.min(application.handles);
            application.handles -= count;
            self.descriptors.give_back(application.uid, count);
        }
    }

    /// Returns whether an application may pass another file, apart from its own limit.
    pub(crate) fn may_pass_file(&self, app: u32) -> bool {
        let application = self.applications.get(&app);
        application.is_some_and(|application| self.files.room(application.uid) > 0)
    }

    /// Records that an application has passed a file.
    pub(crate) fn on_file_passed(&mut self, app: u32) {
        if let Some(application) = self.applications.get_mut(&app) {
            application.files += 1;
            self.files.take(application.uid, 1);
        }
    }

    /// Records that a file of an application is released.
    pub(crate) fn on_file_released(&mut self, app: u32) {
        if let Some(application) = self.applications.get_mut(&app)
            && application.files > 0
        {
            application.files -= 1;
            self.files.give_back(application.uid, 1);
        }
    }

    /// Returns the numbers of the host process's descriptors, and of files, that applications hold.
    pub(crate) fn held(&self) -> (u32, u32) {
        (self.descriptors.held(), self.files.held())
    }

    /// A line for the log, when four fifths of the descriptors or files are held.
    pub(crate) fn news(&mut self) -> Option<String> {
        let all = [
            (&mut self.descriptors, "descriptors of the host process"),
            (&mut self.files, "files that may be passed to NIC processes"),
        ];
        let (shares, of) = all.into_iter().find_map(|(shares, of)| {
            let is_news = shares.is_news();
            is_news.then_some((shares, of))
        })?;
        let (user, most) = shares.largest()?;
        let (held, total) = (shares.held(), shares.total());
        Some(format!(
            "programs hold {held} of {total} {of}, and user {user} {most} of them; each user may \
             have three quarters of all that others leave; a higher limit on open files \
             (LimitNOFILE, ulimit -n) gives more"
        ))
    }

    /// Takes consecutive numbers for handles, and returns the first; numbers wrap to 0.
    pub(crate) fn take_handles(&mut self, app: u32, count: u32) -> Option<u32> {
        let application = self.applications.get_mut(&app)?;
        let (first, next) = match application.next_handle.checked_add(count) {
            Some(next) => (application.next_handle, next),
            None => (0, count),
        };
        application.next_handle = next;
        application.handles = application.handles.saturating_add(count);
        self.descriptors.take(application.uid, count);
        Some(first)
    }

    /// Forgets an application; returns false if there is none.
    pub(crate) fn remove(&mut self, app: u32) -> bool {
        let Some(application) = self.applications.remove(&app) else {
            return false;
        };
        let of_processes = application.processes.saturating_mul(OF_PROCESS);
        self.descriptors.give_back(
            application.uid,
            application.handles.saturating_add(of_processes),
        );
        self.files.give_back(application.uid, application.files);
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
            handles: 0,
            key: Key::new([7; Key::BYTES]),
        };
        applications.add(&known, None, now);
        applications.add_process(app).unwrap();
    }

    #[test]
    fn numbers_begin_again_without_those_that_are_used() {
        let now = Instant::now();
        let mut applications = Applications::new(LIMITS, 10_000, u32::MAX - 1);
        let next = |applications: &mut Applications| applications.next_number(|it| it == 2);
        let first = next(&mut applications);
        assert_eq!(first, u32::MAX - 1);
        add(&mut applications, u32::MAX, 7, now);
        assert_eq!(next(&mut applications), 1, "0 is none");
        assert_eq!(next(&mut applications), 3);
    }

    #[test]
    fn handles_are_bounded_by_application_and_by_user() {
        let now = Instant::now();
        let mut applications = Applications::new(LIMITS, 1_000, 1);
        add(&mut applications, 1, 100, now);
        add(&mut applications, 2, 200, now);
        let bound = 16 + LIMITS.processes_max * SPARE_HANDLES;
        assert_eq!(take_all(&mut applications, 1, 16), (bound, Errno::MFILE));
        applications.on_handles_closed(1, 100);
        assert_eq!(applications.handle_room(1, 64, 16), (64, Errno::MFILE));
        applications.on_handles_closed(1, 10_000);
        // Of 1,000, three are of the process of the other user.
        let most = 1_000 - OF_PROCESS - (1_000 - OF_PROCESS) / 4 - OF_PROCESS;
        assert_eq!(
            take_all(&mut applications, 1, u32::MAX),
            (most, Errno::NFILE)
        );
        let (left, why) = take_all(&mut applications, 2, u32::MAX);
        assert!(left > 100 && why == Errno::NFILE, "{left}");
        assert!(applications.news().unwrap().contains("user 100"));
        assert_eq!(applications.news(), None);
        // A third one can attach.
        add(&mut applications, 3, 300, now);
        for app in 1..=3 {
            assert!(applications.remove(app));
        }
        assert_eq!(applications.held(), (0, 0));
    }

    fn take_all(applications: &mut Applications, app: u32, sockets_max: u32) -> (u32, Errno) {
        let mut taken = 0;
        loop {
            let (room, why) = applications.handle_room(app, 64, sockets_max);
            applications.take_handles(app, room);
            taken += room;
            if room < 64 {
                return (taken, why);
            }
        }
    }

    #[test]
    fn files_are_bounded_by_user_and_come_back() {
        let now = Instant::now();
        let mut applications = Applications::new(LIMITS, 400, 1);
        add(&mut applications, 1, 100, now);
        add(&mut applications, 2, 200, now);
        let mut passed = 0;
        while applications.may_pass_file(1) {
            applications.on_file_passed(1);
            passed += 1;
        }
        assert_eq!((passed, applications.held().1), (75, 75));
        assert!(applications.may_pass_file(2));
        applications.on_file_released(1);
        assert!(applications.may_pass_file(1));
        applications.remove(1);
        assert_eq!(applications.held().1, 0);
    }

    #[test]
    fn handles_of_a_packet_have_numbers_that_follow_each_other() {
        let now = Instant::now();
        let mut applications = Applications::new(LIMITS, 10_000, 1);
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
        let mut applications = Applications::new(LIMITS, 10_000, 1);
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
        let mut applications = Applications::new(LIMITS, 10_000, 1);
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
