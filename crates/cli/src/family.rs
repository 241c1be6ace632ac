//! The processes that a supervisor has started, watched together: what they say, how they end, and the
//! signals that ask the supervisor to end.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use failure::Failure;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::child::{self, Child, describe};
use crate::messages::{Message, Report};
use crate::signals::Signals;

/// How long a process may take to end in order before it is killed.
const END_WAIT: Duration = Duration::from_secs(5);

/// A signal that comes so soon after another means the same.
const SIGNAL_REPEAT: Duration = Duration::from_secs(1);

/// How long it may take until all processes that end for one reason have ended.
const DIAGNOSIS_WAIT: Duration = Duration::from_secs(2);

/// Which process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Host,
    Fetcher,
    /// The one that serves as this NIC stack.
    Nic(usize),
    /// The one that is to serve.
    NextNic(usize),
    /// The one that has served.
    PastNic(usize),
    /// The one that keeps the logs.
    Observer,
}

/// What happens to a family.
#[derive(Debug)]
pub(crate) enum Happening {
    /// A process has spoken.
    Said(Role, Message),
    /// A process has ended.
    Ended(Role),
    /// A signal asks the supervisor to end.
    Signal,
    /// A descriptor that the supervisor watches besides is readable.
    Readable,
    /// Nothing happened in time.
    Nothing,
}

/// Processes, at most one in each role.
#[derive(Debug)]
pub(crate) struct Family {
    members: Vec<Member>,
    /// Killed, forgotten, and not gone yet.
    dismissed: Vec<Child>,
    happenings: VecDeque<Happening>,
    signals: Signals,
}

#[derive(Debug)]
struct Member {
    role: Role,
    child: Child,
    ended: bool,
    failure: Option<Failure>,
    report: Option<Report>,
}

impl Family {
    pub(crate) fn new(signals: Signals) -> Self {
        Self {
            members: Vec::new(),
            dismissed: Vec::new(),
            happenings: VecDeque::new(),
            signals,
        }
    }

    pub(crate) fn adopt(&mut self, role: Role, child: Child) {
        self.members.push(Member {
            role,
            child,
            ended: false,
            failure: None,
            report: None,
        });
    }

    pub(crate) fn pid(&self, role: Role) -> Option<u32> {
        self.member(role).map(|member| member.child.pid())
    }

    /// What a process has told about its life when it ended.
    pub(crate) fn report(&self, role: Role) -> Option<&Report> {
        self.member(role)?.report.as_ref()
    }

    /// Gives a process another role. Whoever had that is forgotten, and ended at once if it has not ended.
    pub(crate) fn change_role(&mut self, from: Role, to: Role) {
        if self.member(from).is_none() {
            return;
        }
        self.dismiss(to);
        for member in &mut self.members {
            if member.role == from {
                member.role = to;
            }
        }
        for happening in &mut self.happenings {
            match happening {
                Happening::Said(role, _) | Happening::Ended(role) if *role == from => *role = to,
                _ => {}
            }
        }
    }

    /// How a process that has ended did so: in order (`None`), or not.
    pub(crate) fn fate(&mut self, role: Role) -> Option<Failure> {
        let member = self.members.iter_mut().find(|member| member.role == role);
        member?.fate()
    }

    /// Forgets a process, and kills it if it has not ended. Does not wait: a process whose read hangs in the kernel
    /// outlives its SIGKILL for as long.
    pub(crate) fn dismiss(&mut self, role: Role) {
        if let Some(index) = self.members.iter().position(|member| member.role == role) {
            let child = self.members.remove(index).child;
            if !child.has_ended() {
                child.kill();
                self.dismissed.push(child);
            }
        }
        self.happenings.retain(|happening| match happening {
            Happening::Said(of, _) | Happening::Ended(of) => *of != role,
            Happening::Signal | Happening::Readable | Happening::Nothing => true,
        });
    }

    /// Kills a process. Its end is reported like any other.
    pub(crate) fn kill(&self, role: Role) {
        if let Some(member) = self.member(role) {
            member.child.kill();
        }
    }

    /// Waits for the next happening, until `deadline` if there is one.
    pub(crate) fn next(&mut self, deadline: Option<Instant>) -> Result<Happening, Failure> {
        self.next_or_readable(&[], deadline)
    }

    /// The same, and watches further descriptors.
    pub(crate) fn next_or_readable(
        &mut self,
        besides: &[BorrowedFd<'_>],
        deadline: Option<Instant>,
    ) -> Result<Happening, Failure> {
        loop {
            if let Some(happening) = self.happenings.pop_front() {
                return Ok(happening);
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let readable = self.sleep(besides, left)?;
            self.look();
            if readable {
                self.happenings.push_back(Happening::Readable);
            }
            if self.happenings.is_empty() && left == Some(Duration::ZERO) {
                return Ok(Happening::Nothing);
            }
        }
    }

    /// True if a further descriptor has become readable.
    fn sleep(&self, besides: &[BorrowedFd<'_>], left: Option<Duration>) -> Result<bool, Failure> {
        let awake = self.members.iter().filter(|member| !member.ended);
        let mut fds: Vec<PollFd<'_>> = awake
            .flat_map(|member| member.child.watch())
            .chain(self.dismissed.iter().map(Child::watch_end))
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        fds.push(PollFd::new(&self.signals, PollFlags::IN));
        let own = fds.len();
        fds.extend(
            besides
                .iter()
                .map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)),
        );
        let timeout = left.map(|left| {
            Timespec::try_from(left).unwrap_or(Timespec {
                tv_sec: 1,
                tv_nsec: 0,
            })
        });
        child::retry(|| poll(&mut fds, timeout.as_ref()))
            .map_err(|errno| Failure::broken("waiting for the processes", errno))?;
        Ok(fds.iter().skip(own).any(|fd| !fd.revents().is_empty()))
    }

    fn look(&mut self) {
        if self.signals.take() {
            self.happenings.push_back(Happening::Signal);
        }
        self.dismissed.retain(|child| !child.has_ended());
        // First who has ended, then what was said, and only then the ends: no last word is missed, and whatever a
        // process had said before it brought about the end of another is heard before that end.
        let mut awake: Vec<_> = self
            .members
            .iter_mut()
            .filter(|member| !member.ended)
            .collect();
        for member in &mut awake {
            member.ended = member.child.has_ended();
        }
        for member in &mut awake {
            for message in member.child.receive() {
                match &message {
                    Message::Failed(failure) => member.failure = Some(failure.clone()),
                    Message::Report(report) => member.report = Some(report.clone()),
                    Message::HostReady(_)
                    | Message::NicReady { .. }
                    | Message::FetcherReady
                    | Message::Counting(..)
                    | Message::Fetched(..)
                    | Message::ObserverReady
                    | Message::LogChanged
                    | Message::DoorOpen(_)
                    | Message::GuestCame(..)
                    | Message::GuestGone(..)
                    | Message::NicJoined(..)
                    | Message::NicRefused(..)
                    | Message::NicLost(..)
                    | Message::NicSilent(..)
                    | Message::Reloaded(_)
                    | Message::ReloadRefused(_)
                    | Message::Drained
                    | Message::Turning => {}
                }
                self.happenings
                    .push_back(Happening::Said(member.role, message));
            }
        }
        let ended = awake.iter().filter(|member| member.ended);
        self.happenings
            .extend(ended.map(|member| Happening::Ended(member.role)));
    }

    /// After a process has ended or failed unasked: finds out which one is to blame. The other one may
    /// end as a consequence, and be noticed first.
    pub(crate) fn diagnose(&mut self) -> Failure {
        let deadline = Instant::now() + DIAGNOSIS_WAIT;
        while self.members.iter().any(|member| !member.ended) && self.culprit().is_none() {
            match self.next(Some(deadline)) {
                Ok(Happening::Nothing | Happening::Signal) => break,
                Ok(_) => {}
                Err(failure) => return failure,
            }
        }
        self.culprit().unwrap_or_else(|| {
            let ended = self.members.iter().find(|member| member.ended);
            let name = ended.map_or("a process", |member| member.child.name);
            Failure::broken(name, "ended although nobody asked it to")
        })
    }

    fn culprit(&mut self) -> Option<Failure> {
        let mut accused = None;
        for member in &mut self.members {
            if let Some(failure) = &member.failure {
                return Some(failure.clone());
            }
            if member.ended {
                // Zero: it ended because the other one was gone.
                accused = member.fate().or(accused);
            }
        }
        accused
    }

    /// How long it takes at the most until so many processes have ended, also if they have to be killed.
    pub(crate) fn end_wait(processes: usize) -> Duration {
        let count = u32::try_from(processes).unwrap_or(u32::MAX);
        (2 * END_WAIT).saturating_mul(count)
    }

    /// Ends the processes one after the other: each is asked, waited for, and killed if it does not
    /// comply, or at once if another signal comes. One that does not end even so is left to the kernel. Fails if one
    /// did not end well.
    pub(crate) fn end(&mut self, order: &[Role]) -> Result<(), Failure> {
        let mut result = Ok(());
        for role in order {
            if let Err(failure) = self.end_one(*role) {
                result = result.and(Err(failure));
            }
        }
        result
    }

    fn end_one(&mut self, role: Role) -> Result<(), Failure> {
        let Some(member) = self.member(role) else {
            return Ok(());
        };
        if !member.ended {
            member.child.terminate();
        }
        let begun = Instant::now();
        let mut killed: Option<(String, Instant)> = None;
        // What other processes say meanwhile is for the caller's next turn.
        let mut others = Vec::new();
        while self.member(role).is_some_and(|member| !member.ended) {
            let since = killed.as_ref().map_or(begun, |(_, at)| *at);
            let why = match self.next(Some(since + END_WAIT))? {
                Happening::Nothing if killed.is_some() => break,
                Happening::Nothing => format!("did not end within {END_WAIT:?}"),
                // The same wish often comes twice: from a terminal and from the one who started us.
                Happening::Signal if begun.elapsed() > SIGNAL_REPEAT => {
                    "was not waited for any longer: another signal came".to_owned()
                }
                Happening::Signal | Happening::Readable => continue,
                Happening::Said(of, _) | Happening::Ended(of) if of == role => continue,
                other @ (Happening::Said(..) | Happening::Ended(_)) => {
                    others.push(other);
                    continue;
                }
            };
            killed.get_or_insert((why, Instant::now()));
            if let Some(member) = self.member(role) {
                member.child.kill();
            }
        }
        for other in others.into_iter().rev() {
            self.happenings.push_front(other);
        }
        let Some(member) = self.members.iter_mut().find(|member| member.role == role) else {
            return Ok(());
        };
        let name = member.name();
        if !member.ended {
            return Err(
                Failure::broken(name, "killed, but the kernel does not let it end")
                    .remedy("Mostly a disk or a network file system does not answer its read."),
            );
        }
        match (member.fate(), killed) {
            (None, _) => Ok(()),
            (Some(_), Some((why, _))) => Err(Failure::broken(name, format!("{why}; killed"))),
            (Some(failure), None) => Err(failure),
        }
    }

    fn member(&self, role: Role) -> Option<&Member> {
        self.members.iter().find(|member| member.role == role)
    }
}

impl Member {
    fn name(&self) -> String {
        format!("{} (process {})", self.child.name, self.child.pid())
    }

    /// Waits for its end; `None` if it ended in order.
    fn fate(&mut self) -> Option<Failure> {
        let name = self.name();
        match self.child.wait() {
            Ok(status) if status.success() => None,
            Ok(status) => Some(
                self.failure
                    .clone()
                    .unwrap_or_else(|| Failure::broken(name, describe(status))),
            ),
            Err(error) => Some(Failure::broken(name, error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;
    use rustix::process::{Pid, test_kill_process};

    use super::*;
    use netsetup::seqpacket;

    /// A process that writes `says` to its standard output, and ends.
    fn process_that_says(says: &str) -> Child {
        let (_, control) = seqpacket::pair().unwrap();
        let echo = ["-c".into(), format!("printf '%s\\n' '{says}'").into()];
        Child::spawn("relay", "/bin/sh".as_ref(), echo, control).unwrap()
    }

    #[test]
    fn ending_one_process_loses_no_message_of_another() {
        let mut family = Family::new(Signals::catch_ends().unwrap());
        let sleeper = || {
            let (_, control) = seqpacket::pair().unwrap();
            let sleep = "/bin/sleep".as_ref();
            Child::spawn("NIC process", sleep, ["1000".into()], control).unwrap()
        };
        family.adopt(Role::Nic(0), sleeper());
        family.adopt(Role::Nic(1), sleeper());
        let said = process_that_says(r#"{"nic_ready":{"workers":3}}"#);
        family.adopt(Role::NextNic(1), said);
        // Its message is read together with the ends of the two that are killed meanwhile.
        let watched = family.member(Role::NextNic(1)).unwrap();
        while !watched.child.has_ended() {
            std::thread::yield_now();
        }
        assert!(family.end(&[Role::Nic(0), Role::Nic(1)]).is_err());
        let deadline = Some(Instant::now() + Duration::from_secs(60));
        let mut said = None;
        while let Ok(Happening::Said(_, _) | Happening::Ended(_)) =
            family.next(deadline).inspect(|happening| {
                if let Happening::Said(Role::NextNic(1), message) = happening {
                    said = Some(message.clone());
                }
            })
        {
            if said.is_some() {
                break;
            }
        }
        assert_eq!(said, Some(Message::NicReady { workers: 3 }));
    }

    #[test]
    fn who_is_dismissed_is_forgotten_at_once_and_reaped_when_it_is_gone() {
        let mut family = Family::new(Signals::catch_ends().unwrap());
        let (_, control) = seqpacket::pair().unwrap();
        let sleep = "/bin/sleep".as_ref();
        let child = Child::spawn("NIC process", sleep, ["1000".into()], control).unwrap();
        let pid = Pid::from_raw(child.pid().cast_signed()).unwrap();
        family.adopt(Role::Nic(0), child);
        family.dismiss(Role::Nic(0));
        assert_eq!(family.pid(Role::Nic(0)), None);
        // A process that is not reaped still has its number.
        assert_eq!(test_kill_process(pid), Ok(()));
        while !family.dismissed.is_empty() {
            let next = family.next(Some(Instant::now() + Duration::from_millis(1)));
            assert!(matches!(next, Ok(Happening::Nothing)), "{next:?}");
        }
        assert_eq!(test_kill_process(pid), Err(Errno::SRCH));
    }
}
