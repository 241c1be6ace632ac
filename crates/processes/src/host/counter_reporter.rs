//! Reports of a process's counters and its CPU time and memory, once a second.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use failure::Failure;
use host::Stack;
use proxy::{BackendCounters, BackendView};
use rustix::event::Timespec;
use rustix::net::{SendFlags, send};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::host::apps::App;
use crate::ipc::log_lines;
use ::observer;
use observer::counter_names::{self, HostProcessCounters};
use observer::{BackendReport, Report};

const PERIOD: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// In the host process: reports counters to the observer.
#[derive(Debug)]
pub struct CounterReporter {
    observer: OwnedFd,
    /// Readable once a second.
    timer: OwnedFd,
}

impl CounterReporter {
    /// Reports to `observer`, a packet socket, once a second.
    pub fn new(observer: OwnedFd) -> Result<Self, Failure> {
        let start = || -> rustix::io::Result<OwnedFd> {
            let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
            let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
            let each = Itimerspec {
                it_interval: PERIOD,
                // The first report must not wait for a second.
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

    /// Sends the report if it is due; drops it if the observer is behind.
    pub fn on_wake(&self, now_us: u64, stack: &Stack, app: &App) {
        if rustix::io::read(&self.timer, &mut [0u8; 8]).is_err() {
            return;
        }
        self.tell(observer::report(&Report::now(all(stack, app))));
        if app.proxy.has_pools() {
            self.tell(observer::backends(&backends(app.proxy.backends(now_us))));
        }
    }

    fn tell(&self, packet: serde_json::Result<Vec<u8>>) {
        if let Ok(packet) = packet {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            let _ = rustix::io::retry_on_intr(|| send(&self.observer, &packet, flags));
        }
    }
}

impl AsFd for CounterReporter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

/// Most backends with a report of their own, so that the reports fit into a packet. The counters of
/// the others are summed.
const BACKENDS_APART_MAX: usize = 256;

/// Name of the sum.
const OTHERS: &str = "others";

fn backends(mut views: Vec<BackendView<'_>>) -> Vec<BackendReport> {
    let others = views.split_off(views.len().min(BACKENDS_APART_MAX));
    let report = |view: BackendView<'_>| BackendReport {
        pool: view.pool.to_owned(),
        backend: view.name.to_owned(),
        counters: counter_names::backend(&view.counters),
    };
    let mut reports: Vec<BackendReport> = views.into_iter().map(report).collect();
    let mut sum = BackendCounters::default();
    for view in &others {
        sum.add(&view.counters);
    }
    if !others.is_empty() {
        reports.push(BackendReport {
            pool: OTHERS.to_owned(),
            backend: OTHERS.to_owned(),
            counters: counter_names::backend(&sum),
        });
    }
    reports
}

/// Returns the counters of the stack and its applications.
pub fn counted(stack: &Stack, app: &App) -> Vec<(String, u64)> {
    let mut rows = counter_names::host(&stack.counters(), app.server.counters());
    rows.extend(counter_names::proxy(app.proxy.counters()));
    rows.extend(counter_names::sockets(app.others.counters()));
    rows
}

/// Returns all counters of the host process.
fn all(stack: &Stack, app: &App) -> Vec<(String, u64)> {
    let lost = [
        app.server.access_records_lost(),
        app.proxy.access_records_lost(),
    ];
    let usage = stack.usage();
    let own = HostProcessCounters {
        access_records_lost: lost.iter().sum(),
        connections: usage.connections as u64,
        connections_orphaned: usage.orphans as u64,
        connections_half_open: usage.half_open as u64,
        connection_memory_bytes: stack.connection_memory_bytes() as u64,
        connections_time_wait: usage.time_waits as u64,
        connections_parted: usage.parted as u64,
        connections_quic: usage.quic_connections as u64,
        streams_quic: usage.quic_streams as u64,
        files_open: usage.files as u64,
        sends_outstanding: usage.sends_outstanding,
        commands_waiting: usage.commands_waiting as u64,
        nic_workers_in_use: stack.division().map(|nic| nic.workers_in_use as u64).sum(),
        error_lines_lost: log_lines::lost(),
    };
    let mut rows = counted(stack, app);
    rows.extend(counter_names::host_process(&own));
    rows
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    #[test]
    fn of_many_backends_some_are_added_up_in_one_packet() {
        let name = "x".repeat(260);
        let counters = BackendCounters {
            requests: u64::MAX / 1000,
            up: 1,
            ..BackendCounters::default()
        };
        let view = BackendView {
            pool: &name[..64],
            name: &name,
            address: SocketAddr::from(([10, 0, 0, 1], 80)),
            counters,
            failures: Vec::new(),
        };
        assert_eq!(backends(vec![view.clone(); 256]).len(), 256);
        let reports = backends(vec![view; 300]);
        let others = reports.last().unwrap();
        assert_eq!((reports.len(), &*others.backend), (257, OTHERS));
        let up = others
            .counters
            .iter()
            .find(|(name, _)| name == "proxy_backend_up");
        assert_eq!(up.unwrap().1, 44);
        let packet = observer::backends(&reports).unwrap();
        assert!(
            packet.len() < observer::PACKET_BYTES_MAX,
            "{}",
            packet.len()
        );
    }
}
