//! What a process tells of itself while it works, once a second: what it has counted, and what it has cost.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use failure::Failure;
use host::Stack;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendFlags, send};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::child::retry;
use crate::host_counters::counters;
use crate::messages::{FromChild, FromFetcher, FromNic, Line, Report};
use crate::observe::beside_stack;
use crate::{log_lines, observe};

const PERIOD: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// In the host process: tells the observer.
#[derive(Debug)]
pub(crate) struct Teller {
    observer: OwnedFd,
    /// Readable once a second.
    timer: OwnedFd,
}

impl Teller {
    pub(crate) fn new(observer: OwnedFd) -> Result<Self, Failure> {
        let start = || -> rustix::io::Result<OwnedFd> {
            let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
            let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
            let each = Itimerspec {
                it_interval: PERIOD,
                // Who asks how it goes is not to wait for a second.
                it_value: Timespec {
                    tv_sec: 0,
                    tv_nsec: 1,
                },
            };
            timerfd_settime(&timer, TimerfdTimerFlags::empty(), &each)?;
            Ok(timer)
        };
        let timer = start().map_err(|errno| Failure::broken("starting a timer", errno))?;
        Ok(Self { observer, timer })
    }

    /// If it is time, tells what there is; not if the observer is behind.
    pub(crate) fn on_wake(&self, stack: &Stack, server: &server::Server) {
        if rustix::io::read(&self.timer, &mut [0u8; 8]).is_err() {
            return;
        }
        if let Ok(packet) = observe::report(&Report::now(all(stack, server))) {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            let _ = retry(|| send(&self.observer, &packet, flags));
        }
    }
}

impl AsFd for Teller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

/// All that the host process counts.
fn all(stack: &Stack, server: &server::Server) -> Vec<(String, u64)> {
    let mut rows = counters(&stack.counters(), server.counters());
    rows.retain(|(name, _)| name != "requests");
    let usage = stack.usage();
    let http = server.counters().rows();
    let http = http
        .into_iter()
        .map(|(name, value)| (format!("http_{name}"), value));
    let others = [
        ("access_records_lost", server.access_records_lost()),
        ("connections", usage.connections as u64),
        ("connections_orphaned", usage.orphans as u64),
        ("connections_half_open", usage.half_open as u64),
        (
            "connection_memory_bytes",
            stack.connection_memory_bytes() as u64,
        ),
        ("connections_time_wait", usage.time_waits as u64),
        ("files_open", usage.files as u64),
        ("sends_outstanding", usage.sends_outstanding),
        ("commands_waiting", usage.commands_waiting as u64),
        ("error_lines_lost", log_lines::lost()),
    ];
    let others = others.map(|(name, value)| (name.to_owned(), value));
    rows.extend(
        http.chain(others)
            .map(|(name, value)| (beside_stack(&name), value)),
    );
    rows
}

/// In a NIC process: reports the counters of a worker to the supervisor, unless that would have to wait.
pub(crate) fn report_worker(worker: usize, counters: Vec<(String, u64)>) {
    let report = Report::now(counters);
    tell_if_taken(FromNic::Counters { worker, report });
}

/// Origins of which a fetcher tells each by itself: they fit into a pipe that is empty. What others have counted is told
/// together.
const ORIGINS_TOLD_MAX: usize = 64;

/// What those are called.
const OTHERS: &str = "others";

/// In a fetcher: tells of each origin.
#[derive(Debug, Default)]
pub(crate) struct FetcherReporter {
    /// What was told last.
    told: BTreeMap<String, origin::Counters>,
    /// Those that are told by themselves, for good: what they have counted must not be among others' later.
    apart: BTreeSet<String>,
}

impl FetcherReporter {
    /// Tells the supervisor what is new, as far as that would not have to wait; true if that was all.
    pub(crate) fn report(&mut self, counted: &origin::Counted<'_>) -> bool {
        let report = |rows: &[(&str, u64)]| {
            let rows = rows.iter();
            Report::now(
                rows.map(|(name, value)| ((*name).to_owned(), *value))
                    .collect(),
            )
        };
        let mut is_all = true;
        for (name, counters) in self.apart(counted) {
            if self.told.get(name) != Some(&counters) {
                let rows = &counters.rows()[..origin::Counters::OF_ORIGIN];
                let is_told = tell_if_taken(FromFetcher::Counters {
                    origin: Some(name.to_owned()),
                    report: report(rows),
                });
                is_all &= is_told;
                if is_told {
                    self.told.insert(name.to_owned(), counters);
                }
            }
        }
        let report = report(&counted.total.rows());
        is_all
            & tell_if_taken(FromFetcher::Counters {
                origin: None,
                report,
            })
    }

    /// What is told by itself.
    fn apart<'a>(&mut self, counted: &origin::Counted<'a>) -> Vec<(&'a str, origin::Counters)> {
        let mut apart = Vec::new();
        let mut others: Option<origin::Counters> = None;
        for &(name, counters) in &counted.origins {
            if self.apart.len() < ORIGINS_TOLD_MAX && !self.apart.contains(name) {
                self.apart.insert(name.to_owned());
            }
            match self.apart.contains(name) {
                true => apart.push((name, counters)),
                false => others.get_or_insert_default().add(&counters),
            }
        }
        apart.extend(others.map(|counters| (OTHERS, counters)));
        apart
    }
}

/// Tells the supervisor something that fits into a page, unless that would have to wait.
fn tell_if_taken(message: impl FromChild) -> bool {
    let stdout = std::io::stdout().lock();
    let mut fds = [PollFd::new(&stdout, PollFlags::OUT)];
    // A pipe that is writable at all takes a whole message.
    let may = retry(|| poll(&mut fds, Some(&Timespec::default())));
    may == Ok(1) && fds[0].revents() == PollFlags::OUT && Line::Says(message).write(stdout).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_worker_tells_is_written_at_once() {
        let counters = nic::Counters::default().rows();
        let counters = counters.map(|(name, _)| (name.to_owned(), u64::MAX));
        let report = Report {
            cpu_user_us: u64::MAX,
            cpu_system_us: u64::MAX,
            memory_bytes_max: u64::MAX,
            counters: counters.into(),
        };
        let line =
            serde_json::to_vec(&Line::Says(FromNic::Counters { worker: 64, report })).unwrap();
        assert!(line.len() < 4096, "PIPE_BUF: {}", line.len());
    }

    #[test]
    fn what_a_fetcher_tells_is_written_at_once() {
        let rows = origin::Counters::default().rows();
        let rows = rows.map(|(name, _)| (name.to_owned(), u64::MAX));
        let report = Report {
            cpu_user_us: u64::MAX,
            cpu_system_us: u64::MAX,
            memory_bytes_max: u64::MAX,
            counters: rows.into(),
        };
        let longest = "x".repeat(origin::OriginUrl::BYTES_MAX);
        let line = serde_json::to_vec(&Line::Says(FromFetcher::Counters {
            origin: Some(longest),
            report,
        }))
        .unwrap();
        assert!(line.len() < 4096, "PIPE_BUF: {}", line.len());
    }

    #[test]
    fn of_many_origins_some_are_told_together() {
        let one = origin::Counters {
            hits: 1,
            ..origin::Counters::default()
        };
        let urls: Vec<String> = (0..100)
            .map(|number| format!("http://{number:02}"))
            .collect();
        // Those that are asked for the first time later come before the others.
        let mut teller = FetcherReporter::default();
        let mut alone = Vec::new();
        for count in [0, 1, 64, 65, 100] {
            let counted = origin::Counted {
                total: origin::Counters::default(),
                origins: urls[100 - count..]
                    .iter()
                    .map(|url| (&**url, one))
                    .collect(),
            };
            let mut apart = teller.apart(&counted);
            let hits: u64 = apart.iter().map(|(_, counters)| counters.hits).sum();
            assert_eq!((apart.len(), hits), (count.min(65), count as u64));
            apart.retain(|(name, _)| *name != OTHERS);
            assert!(
                alone
                    .iter()
                    .all(|name| apart.iter().any(|it| it.0 == *name))
            );
            alone = apart.into_iter().map(|(name, _)| name.to_owned()).collect();
        }
    }
}
