//! The supervisor's child processes, watched together: their messages and their ends, and the
//! signals that end the supervisor.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use failure::Failure;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use observer::Report;
use processes::ipc::child::{Child, describe};
use processes::ipc::messages::{
    FromBroker, FromChild, FromFetcher, FromHost, FromNic, FromObserver, FromRelay, Line,
};
use processes::ipc::signals::Signals;

/// Longest time in which a process ends in order; then it is killed.
const END_WAIT: Duration = Duration::from_secs(5);

/// Longest time between two signals that count as one request.
const SIGNAL_REPEAT: Duration = Duration::from_secs(1);

/// Longest time in which all processes that fail for the same reason end.
const DIAGNOSIS_WAIT: Duration = Duration::from_secs(2);

/// Role of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Host,
    Fetcher,
    Broker,
    /// The process that serves as this NIC stack.
    Nic(usize),
    /// The process that is to succeed it.
    NextNic(usize),
    /// The process that served before.
    PastNic(usize),
    Observer,
    /// The relay of `splitway nic --control`.
    Relay,
}

/// An event in the supervisor's loop.
#[derive(Debug)]
pub(crate) enum Event {
    Host(FromHost),
    /// A message of the NIC process in this role.
    Nic(Role, FromNic),
    Fetcher(FromFetcher),
    Broker(FromBroker),
    Observer(FromObserver),
    Relay(FromRelay),
    /// A process ends because of a failure.
    Failed(Role),
    /// A process has sent its final report.
    Reported(Role),
    /// A process has ended.
    Exited(Role),
    /// A signal asks the supervisor to end.
    Signal,
    /// A descriptor that the caller passed is readable.
    Readable,
    /// The deadline has passed.
    Timeout,
}

impl Event {
    /// Returns the role of the process concerned.
    fn role(&self) -> Option<Role> {
        match self {
            Event::Host(_) => Some(Role::Host),
            Event::Fetcher(_) => Some(Role::Fetcher),
            Event::Broker(_) => Some(Role::Broker),
            Event::Observer(_) => Some(Role::Observer),
            Event::Relay(_) => Some(Role::Relay),
            Event::Nic(role, _)
            | Event::Failed(role)
            | Event::Reported(role)
            | Event::Exited(role) => Some(*role),
            Event::Signal | Event::Readable | Event::Timeout => None,
        }
    }
}

/// Processes, at most one in each role.
#[derive(Debug)]
pub(crate) struct Children {
    processes: Vec<Process>,
    /// Processes killed and forgotten, but not yet reaped.
    forgotten: Vec<Child>,
    events: VecDeque<Event>,
    signals: Signals,
}

#[derive(Debug)]
struct Process {
    role: Role,
    child: Child,
    ended: bool,
    failure: Option<Failure>,
    report: Option<Report>,
}

impl Children {
    pub(crate) fn new(signals: Signals) -> Self {
        Self {
            processes: Vec::new(),
            forgotten: Vec::new(),
            events: VecDeque::new(),
            signals,
        }
    }

    pub(crate) fn add(&mut self, role: Role, child: Child) {
        self.processes.push(Process {
            role,
            child,
            ended: false,
            failure: None,
            report: None,
        });
    }

    pub(crate) fn pid(&self, role: Role) -> Option<u32> {
        self.process(role).map(|process| process.child.pid())
    }

    /// Returns the name of the process in this role, for messages.
    pub(crate) fn name(&self, role: Role) -> Option<&'static str> {
        self.process(role).map(|process| process.child.name)
    }

    /// Returns the final report of a process.
    pub(crate) fn report(&self, role: Role) -> Option<&Report> {
        self.process(role)?.report.as_ref()
    }

    /// Gives a process another role. A process that had this role is forgotten, and killed unless
    /// it has ended.
    pub(crate) fn change_role(&mut self, from: Role, to: Role) {
        if self.process(from).is_none() {
            return;
        }
        self.forget(to);
        for process in &mut self.processes {
            if process.role == from {
                process.role = to;
            }
        }
        for event in &mut self.events {
            match event {
                Event::Nic(role, _)
                | Event::Failed(role)
                | Event::Reported(role)
                | Event::Exited(role)
                    if *role == from =>
                {
                    *role = to;
                }
                _ => {}
            }
        }
    }

    /// Returns the failure of a process that has ended; `None` if it ended in order.
    pub(crate) fn exit_failure(&mut self, role: Role) -> Option<Failure> {
        let process = self
            .processes
            .iter_mut()
            .find(|process| process.role == role);
        process?.exit_failure()
    }

    /// Forgets a process, and kills it unless it has ended. Does not wait: a process whose read
    /// hangs in the kernel outlives its SIGKILL.
    pub(crate) fn forget(&mut self, role: Role) {
        if let Some(index) = self
            .processes
            .iter()
            .position(|process| process.role == role)
        {
            let child = self.processes.remove(index).child;
            if !child.has_ended() {
                child.kill();
                self.forgotten.push(child);
            }
        }
        self.events.retain(|event| event.role() != Some(role));
    }

    /// Asks a process to end. Its end is reported like any other.
    pub(crate) fn ask_to_end(&self, role: Role) {
        if let Some(process) = self.process(role) {
            process.child.terminate();
        }
    }

    /// Kills a process. Its end is reported like any other.
    pub(crate) fn kill(&self, role: Role) {
        if let Some(process) = self.process(role) {
            process.child.kill();
        }
    }

    /// Waits for the next event, until `deadline` if there is one.
    pub(crate) fn next(&mut self, deadline: Option<Instant>) -> Result<Event, Failure> {
        self.next_or_readable(&[], deadline)
    }

    /// The same, and watches further descriptors.
    pub(crate) fn next_or_readable(
        &mut self,
        besides: &[BorrowedFd<'_>],
        deadline: Option<Instant>,
    ) -> Result<Event, Failure> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let readable = self.sleep(besides, left)?;
            self.look();
            if readable {
                self.events.push_back(Event::Readable);
            }
            if self.events.is_empty() && left == Some(Duration::ZERO) {
                return Ok(Event::Timeout);
            }
        }
    }

    /// True if a further descriptor has become readable.
    fn sleep(&self, besides: &[BorrowedFd<'_>], left: Option<Duration>) -> Result<bool, Failure> {
        let awake = self.processes.iter().filter(|process| !process.ended);
        let mut fds: Vec<PollFd<'_>> = awake
            .flat_map(|process| process.child.watch())
            .chain(self.forgotten.iter().map(Child::watch_end))
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
        rustix::io::retry_on_intr(|| poll(&mut fds, timeout.as_ref()))
            .map_err(|errno| Failure::broken("waiting for the processes", errno))?;
        Ok(fds.iter().skip(own).any(|fd| !fd.revents().is_empty()))
    }

    fn look(&mut self) {
        if self.signals.take() {
            self.events.push_back(Event::Signal);
        }
        self.forgotten.retain(|child| !child.has_ended());
        // First the ends, then the messages, and the ends are reported last: no message of a
        // process is missed, and a message whose consequence is the end of another process comes
        // before that end.
        let mut awake: Vec<_> = self
            .processes
            .iter_mut()
            .filter(|process| !process.ended)
            .collect();
        for process in &mut awake {
            process.ended = process.child.has_ended();
        }
        for process in &mut awake {
            let events = &mut self.events;
            let role = process.role;
            match role {
                Role::Host => process.receive(events, Event::Host),
                Role::Nic(_) | Role::NextNic(_) | Role::PastNic(_) => {
                    process.receive(events, |message| Event::Nic(role, message));
                }
                Role::Fetcher => process.receive(events, Event::Fetcher),
                Role::Broker => process.receive(events, Event::Broker),
                Role::Observer => process.receive(events, Event::Observer),
                Role::Relay => process.receive(events, Event::Relay),
            }
        }
        let ended = awake.iter().filter(|process| process.ended);
        self.events
            .extend(ended.map(|process| Event::Exited(process.role)));
    }

    /// After a process has ended or failed unasked: finds the one that caused it. Another may end
    /// as a consequence, and be noticed first.
    pub(crate) fn diagnose(&mut self) -> Failure {
        let deadline = Instant::now() + DIAGNOSIS_WAIT;
        while self.processes.iter().any(|process| !process.ended) && self.culprit().is_none() {
            match self.next(Some(deadline)) {
                Ok(Event::Timeout | Event::Signal) => break,
                Ok(_) => {}
                Err(failure) => return failure,
            }
        }
        self.culprit().unwrap_or_else(|| {
            let ended = self.processes.iter().find(|process| process.ended);
            let name = ended.map_or("a process", |process| process.child.name);
            Failure::broken(name, "ended unexpectedly")
        })
    }

    fn culprit(&mut self) -> Option<Failure> {
        let mut accused = None;
        for process in &mut self.processes {
            if let Some(failure) = &process.failure {
                return Some(failure.clone());
            }
            if process.ended {
                // Zero: it ended because the other one was gone.
                accused = process.exit_failure().or(accused);
            }
        }
        accused
    }

    /// Returns the longest time until this number of processes have ended, including those that
    /// must be killed.
    pub(crate) fn end_wait(processes: usize) -> Duration {
        let count = u32::try_from(processes).unwrap_or(u32::MAX);
        (2 * END_WAIT).saturating_mul(count)
    }

    /// Ends the processes one after the other: each is asked, waited for, and killed if it does not
    /// comply, or at once if another signal comes. One that does not end even so is left to the
    /// kernel. Fails if one did not end well.
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
        let Some(process) = self.process(role) else {
            return Ok(());
        };
        if !process.ended {
            process.child.terminate();
        }
        let begun = Instant::now();
        let mut killed: Option<(String, Instant)> = None;
        // Events of other processes stay for the caller.
        let mut others = Vec::new();
        while self.process(role).is_some_and(|process| !process.ended) {
            let since = killed.as_ref().map_or(begun, |(_, at)| *at);
            let why = match self.next(Some(since + END_WAIT))? {
                Event::Timeout if killed.is_some() => break,
                Event::Timeout => format!("did not end within {END_WAIT:?}"),
                // One request often comes twice: from a terminal, and from the parent process.
                Event::Signal if begun.elapsed() > SIGNAL_REPEAT => {
                    "was not waited for any longer: another signal came".to_owned()
                }
                Event::Signal | Event::Readable => continue,
                event if event.role() == Some(role) => continue,
                other => {
                    others.push(other);
                    continue;
                }
            };
            killed.get_or_insert((why, Instant::now()));
            if let Some(process) = self.process(role) {
                process.child.kill();
            }
        }
        for other in others.into_iter().rev() {
            self.events.push_front(other);
        }
        let Some(process) = self
            .processes
            .iter_mut()
            .find(|process| process.role == role)
        else {
            return Ok(());
        };
        let name = process.name();
        if !process.ended {
            return Err(
                Failure::broken(name, "killed, but the kernel does not let it end")
                    .remedy("Usually a disk or network file system does not answer its read."),
            );
        }
        match (process.exit_failure(), killed) {
            (None, _) => Ok(()),
            (Some(_), Some((why, _))) => Err(Failure::broken(name, format!("{why}; killed"))),
            (Some(failure), None) => Err(failure),
        }
    }

    fn process(&self, role: Role) -> Option<&Process> {
        self.processes.iter().find(|process| process.role == role)
    }
}

impl Process {
    /// Receives the child's messages, as events.
    fn receive<M: FromChild>(&mut self, events: &mut VecDeque<Event>, of: impl Fn(M) -> Event) {
        for line in self.child.receive() {
            events.push_back(match line {
                Line::Says(message) => of(message),
                Line::Failed(failure) => {
                    self.failure = Some(failure);
                    Event::Failed(self.role)
                }
                Line::Report(report) => {
                    self.report = Some(report);
                    Event::Reported(self.role)
                }
            });
        }
    }

    fn name(&self) -> String {
        format!("{} (process {})", self.child.name, self.child.pid())
    }

    /// Waits for its end; `None` if it ended in order.
    fn exit_failure(&mut self) -> Option<Failure> {
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
    use std::process::Stdio;

    use rustix::io::Errno;
    use rustix::process::{Pid, test_kill_process};

    use super::*;
    use netsetup::seqpacket;

    fn spawn(program: &str, arguments: &[&str]) -> Child {
        let (_, control) = seqpacket::pair().unwrap();
        let arguments = arguments.iter().map(|&word| word.into());
        Child::spawn(
            "child",
            program.as_ref(),
            arguments,
            control,
            Stdio::inherit(),
        )
        .unwrap()
    }

    fn sleeper() -> Child {
        spawn("/bin/sleep", &["1000"])
    }

    #[test]
    fn ending_one_process_loses_no_message_of_another() {
        let mut children = Children::new(Signals::catch_ends().unwrap());
        children.add(Role::Nic(0), sleeper());
        children.add(Role::Nic(1), sleeper());
        let says = r#"printf '%s\n' '{"says":{"ready":{"workers":3}}}'"#;
        children.add(Role::NextNic(1), spawn("/bin/sh", &["-c", says]));
        // Its message is read together with the ends of the two that are killed meanwhile.
        let watched = children.process(Role::NextNic(1)).unwrap();
        while !watched.child.has_ended() {
            std::thread::yield_now();
        }
        assert!(children.end(&[Role::Nic(0), Role::Nic(1)]).is_err());
        let deadline = Some(Instant::now() + Duration::from_secs(60));
        loop {
            match children.next(deadline).unwrap() {
                Event::Nic(Role::NextNic(1), message) => {
                    assert_eq!(message, FromNic::Ready { workers: 3 });
                    break;
                }
                Event::Exited(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn a_process_that_is_forgotten_is_reaped_when_it_has_ended() {
        let mut children = Children::new(Signals::catch_ends().unwrap());
        let child = sleeper();
        let pid = Pid::from_raw(child.pid().cast_signed()).unwrap();
        children.add(Role::Nic(0), child);
        children.forget(Role::Nic(0));
        assert_eq!(children.pid(Role::Nic(0)), None);
        // A process that is not reaped still has its number.
        assert_eq!(test_kill_process(pid), Ok(()));
        while !children.forgotten.is_empty() {
            let next = children.next(Some(Instant::now() + Duration::from_millis(1)));
            assert!(matches!(next, Ok(Event::Timeout)), "{next:?}");
        }
        assert_eq!(test_kill_process(pid), Err(Errno::SRCH));
    }
}
