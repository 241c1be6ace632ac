//! The loop around a worker: turns, sleep, the end.

use std::convert::Infallible;
use std::num::NonZero;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::channel;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use std::{fmt, hint, io, thread};

use contract::channel::NicChannel;
use contract::control::{NicSession, has_host_died};
use netdev::Port;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::set_current_timer_slack;
use rustix::time::{ClockId, clock_gettime};

use crate::buffer::{Arena, Pages};
use crate::config::{Config, ReaderKind};
use crate::counter_report::{CounterReporter, ReportCounters};
use crate::counters::Counters;
use crate::load::LoadMeter;
use crate::passed::Sources;
use crate::polling::Polling;
use crate::reader::Reader;
use crate::reader::delay::{DelayReader, ReadDelay};
use crate::reader::pool::{Opener, PoolReader};
use crate::reader::uring::UringReader;
use crate::worker::{Corrupt, Progress, Sleep, Worker, reserve};

/// How often, in microseconds, a busy worker checks whether it is to end.
const END_CHECK_US: u64 = 10_000;

/// Threads of a worker that reads with threads: about what keeps a disk busy.
const READ_THREADS: usize = 8;

const NO_TIME: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// Connections ended per millisecond when the host process has died: at most some hundred packets,
/// which any link takes.
const ORPHANS_PER_MS: usize = 128;

/// Pauses before the last packets are sent again, in milliseconds: a packet may be lost, and no
/// process answers the peer any more.
const ORPHANS_REPEATED_AFTER_MS: [u64; 2] = [50, 200];

/// Time limit for ending connections, in microseconds; the rest are left to the next server. The
/// supervisor kills a NIC process that takes five seconds to end.
const ORPHANS_US_MAX: u64 = 2_000_000;

/// How long [`Sleep::Briefly`] is, in microseconds.
const BRIEF_US: u64 = 1000;

/// Why a session could not be carried on.
#[derive(Debug)]
pub enum RunError {
    /// The numbers of workers and ports must be equal.
    PortCount {
        /// Ports given.
        ports: usize,
        /// Channels of the session.
        workers: usize,
    },
    /// Files cannot be read in the requested way.
    Reader(io::Error),
    /// There is not enough memory for content.
    Memory {
        /// Memory requested for a worker, in bytes.
        bytes: usize,
        /// The kernel's error.
        error: io::Error,
    },
    /// A thread, or a descriptor to wait on, is unavailable.
    Start(io::Error),
    /// The `ready` callback of [`run`] failed.
    Ready(io::Error),
    /// Waiting failed.
    Wait(io::Error),
    /// The host's ring is corrupt.
    Corrupt {
        /// The worker that reads the ring.
        worker: usize,
    },
}

/// A worker's port, and its memory for content: a process has both before it serves.
#[derive(Debug)]
pub struct WorkerResources<P> {
    port: P,
    memory: Arena,
}

impl<P: Port> WorkerResources<P> {
    /// Reserves the memory for a worker with this port.
    ///
    /// # Errors
    ///
    /// The memory is not available.
    pub fn reserve(config: &Config, port: P) -> Result<Self, RunError> {
        let memory = reserve(config).map_err(|error| RunError::Memory {
            bytes: config.cache_bytes,
            error,
        })?;
        Ok(Self { port, memory })
    }

    /// True if the memory consists of huge pages that the administrator has set aside.
    pub fn has_huge_pages(&self) -> bool {
        self.memory.pages() == Pages::Huge
    }
}

/// Runs a session: one worker for each channel, each in a thread and with a port of its own; the
/// first in the calling thread. Returns when the host is gone or when `stop` becomes readable.
///
/// `ready` is called once, when every worker has its resources, and before any takes a command: the
/// moment to give up rights. If it fails, no worker takes any. `tell` receives the workers'
/// counters while they run.
pub fn run<P: Port + Send>(
    config: &Config,
    sources: impl Into<Sources>,
    session: NicSession,
    ports: Vec<WorkerResources<P>>,
    stop: BorrowedFd<'_>,
    ready: impl FnOnce() -> io::Result<()>,
    tell: Option<ReportCounters<'_>>,
) -> Result<Counters, RunError> {
    let workers = session.channels.len();
    if ports.len() != workers || workers == 0 {
        return Err(RunError::PortCount {
            ports: ports.len(),
            workers,
        });
    }
    raise_descriptor_limit();
    let Sources { root, passed } = sources.into();
    let opener = Opener {
        root: Arc::new(root),
        passed,
        direct: config.direct,
    };
    let ended = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|errno| RunError::Start(errno.into()))?;
    let ends = Ends {
        stop,
        host: session.socket.as_fd(),
        ended: &ended,
    };

    let ends = &ends;
    let gate = &RwLock::new(false);
    let mut closed = gate.write().unwrap_or_else(PoisonError::into_inner);
    // Hangs up when the last worker has started, or could not.
    let (starting, started) = channel::<Infallible>();
    let mut was_ready = Ok(());
    let results: Vec<Result<Counters, RunError>> = thread::scope(|scope| {
        let mut channels = session.channels.into_iter().zip(ports);
        let first = channels.next();
        let threads: Vec<_> = channels
            .zip(1..)
            .map(|((channel, port), number)| {
                let (opener, starting) = (opener.clone(), starting.clone());
                let may_work = move || {
                    drop(starting);
                    gate.read().is_ok_and(|open| *open)
                };
                thread::Builder::new()
                    .name(format!("nic-{number}"))
                    .spawn_scoped(scope, move || {
                        live(
                            number,
                            config,
                            opener,
                            channel,
                            port,
                            (ends, tell),
                            may_work,
                        )
                    })
                    .inspect_err(|_| ends.end_all())
            })
            .collect();
        let first = first.map(|(channel, port)| {
            let may_work = || {
                drop(starting);
                let _ = started.recv();
                was_ready = ready();
                *closed = was_ready.is_ok();
                drop(closed);
                was_ready.is_ok()
            };
            live(0, config, opener, channel, port, (ends, tell), may_work)
        });
        let others = threads.into_iter().map(|thread| match thread {
            Ok(thread) => thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(error) => Err(RunError::Start(error)),
        });
        first.into_iter().chain(others).collect()
    });
    was_ready.map_err(RunError::Ready)?;

    let mut sum = Counters::default();
    for counters in results {
        sum.add(&counters?);
    }
    Ok(sum)
}

/// Raises the soft limit on descriptors: an open file is one, and the usual limit of 1024 is meant
/// for programs that use `select`. If it cannot be raised, OPENs fail with `EMFILE`.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!(%error, "the limit on open files stays as it is");
    }
}

/// Events that end the workers.
struct Ends<'a> {
    /// Readable when the process is to end.
    stop: BorrowedFd<'a>,
    /// Hangs up when the host is gone.
    host: BorrowedFd<'a>,
    /// Readable when a worker has ended: the others follow.
    ended: &'a OwnedFd,
}

impl Ends<'_> {
    fn poll_fds(&self) -> [PollFd<'_>; 3] {
        [
            PollFd::new(&self.stop, PollFlags::IN),
            PollFd::new(&self.host, PollFlags::RDHUP),
            PollFd::new(self.ended, PollFlags::IN),
        ]
    }

    fn end_all(&self) {
        // Cannot fail before 2^64 workers have ended.
        let _ = rustix::io::write(self.ended, &1u64.to_ne_bytes());
    }
}

/// Ends all workers when one ends, even by a panic.
struct EndsAll<'a>(&'a Ends<'a>);

impl Drop for EndsAll<'_> {
    fn drop(&mut self) {
        self.0.end_all();
    }
}

/// Runs a worker. `may_work` is called when it has started, or could not, and waits for the others.
fn live<P: Port>(
    number: usize,
    config: &Config,
    opener: Opener,
    channel: NicChannel,
    port: WorkerResources<P>,
    (ends, tell): (&Ends<'_>, Option<ReportCounters<'_>>),
    may_work: impl FnOnce() -> bool,
) -> Result<Counters, RunError> {
    let _ends_all = EndsAll(ends);
    let worker = start(number, config, opener, channel, port);
    let go = may_work();
    let worker = worker?;
    if go {
        work(number, config, worker, ends, tell)
    } else {
        Ok(Counters::default())
    }
}

/// Starts a worker with its reader, port and memory.
fn start<P: Port>(
    number: usize,
    config: &Config,
    opener: Opener,
    channel: NicChannel,
    WorkerResources { port, memory }: WorkerResources<P>,
) -> Result<Worker<P>, RunError> {
    wake_up_in_time();
    let mut reader = reader(config.reader, opener)?;
    if let Some(delay) = config.read_delay.clone() {
        let seed = delay.seed.wrapping_add(number as u64);
        let delay = ReadDelay { seed, ..delay };
        reader = Box::new(DelayReader::new(reader, delay, Box::new(monotonic_us)));
    }
    let worker = Worker::with_memory(config, channel, port, reader, memory);
    tracing::info!(
        worker = number,
        bytes = config.cache_bytes,
        pages = %worker.pages(),
        "memory for content"
    );
    if worker.too_few_huge_pages() || others_have_huge_pages(config, worker.pages()) {
        tracing::warn!(
            worker = number,
            bytes = config.cache_bytes,
            pages = %worker.pages(),
            "too few huge pages are free for the cache; while the NIC process is replaced, two \
             caches need theirs: raise vm.nr_hugepages, and replace it again"
        );
    }
    Ok(worker)
}

/// True if enough huge pages for the content are set aside, but were not free.
fn others_have_huge_pages(config: &Config, pages: Pages) -> bool {
    pages != Pages::Huge
        && config.huge_bytes_set_aside > 0
        && config.huge_bytes_set_aside >= config.cache_bytes as u64
}

/// Takes commands until the end.
fn work<P: Port>(
    number: usize,
    config: &Config,
    mut worker: Worker<P>,
    ends: &Ends<'_>,
    tell: Option<ReportCounters<'_>>,
) -> Result<Counters, RunError> {
    let mut counter_report = CounterReporter::new(tell, number, monotonic_us());
    let mut polling = Polling::new(if cores() > 1 { config.spin_us_max } else { 0 });
    let mut load = LoadMeter::new(monotonic_us());
    let mut end_check_us = monotonic_us() + END_CHECK_US;
    loop {
        match worker.turn(&monotonic_us) {
            Err(Corrupt) => return Err(RunError::Corrupt { worker: number }),
            Ok(Progress::Busy) => {
                polling.on_work();
                if monotonic_us() < end_check_us {
                    continue;
                }
            }
            Ok(Progress::Idle) if polling.on_idle(monotonic_us()) => {
                hint::spin_loop();
                continue;
            }
            Ok(Progress::Idle) => {
                let us_max = match worker.prepare_sleep() {
                    Sleep::Not => continue,
                    Sleep::Briefly => Some(BRIEF_US),
                    Sleep::UntilWoken => None,
                };
                let from_us = monotonic_us();
                if tell_load(&mut worker, &mut load, from_us, polling.idle_us()) {
                    worker.finish_sleep();
                    continue;
                }
                let tell_us = counter_report.on_time(from_us, || worker.counters());
                let tell_us = tell_us.map(|at_us| at_us.saturating_sub(from_us));
                let held_us = worker
                    .next_timeout_us()
                    .map(|at_us| at_us.saturating_sub(from_us));
                let load_us = load.next_us().map(|at_us| at_us.saturating_sub(from_us));
                let timeout_us = [us_max, held_us, tell_us, load_us]
                    .into_iter()
                    .flatten()
                    .min();
                let ended = wait(&worker, ends, timeout_us.map(microseconds).as_ref())?;
                worker.finish_sleep();
                if ended {
                    return Ok(end(number, worker, ends));
                }
                let woken_us = monotonic_us();
                polling.on_wake(woken_us - from_us);
                end_check_us = woken_us + END_CHECK_US;
                continue;
            }
        }
        if wait_for_end(ends)? {
            return Ok(end(number, worker, ends));
        }
        let now_us = monotonic_us();
        counter_report.on_time(now_us, || worker.counters());
        tell_load(&mut worker, &mut load, now_us, polling.idle_us());
        end_check_us = now_us + END_CHECK_US;
    }
}

/// Ends a worker; if the host process has died, also its connections.
fn end<P: Port>(number: usize, mut worker: Worker<P>, ends: &Ends<'_>) -> Counters {
    if !has_host_died(ends.host) {
        return worker.counters();
    }
    let until_us = monotonic_us().saturating_add(ORPHANS_US_MAX);
    let connections = worker.orphan_all(&monotonic_us);
    let mut is_any_left = connections > 0;
    let mut pauses = ORPHANS_REPEATED_AFTER_MS.iter();
    while is_any_left && monotonic_us() < until_us {
        is_any_left = worker.end_orphans(ORPHANS_PER_MS, &monotonic_us);
        if is_any_left {
            thread::sleep(Duration::from_millis(1));
        } else if let Some(pause_ms) = pauses.next() {
            thread::sleep(Duration::from_millis(*pause_ms));
            worker.repeat_orphans();
            is_any_left = true;
        }
    }
    let counters = worker.counters();
    let (tcp, quic) = (counters.orphans_reset, counters.orphans_closed);
    if connections > 0 {
        tracing::warn!(
            worker = number,
            tcp,
            quic,
            is_any_left,
            "the host process has died: its connections were reset"
        );
    }
    counters
}

/// Reports the worker's load to the host, if it is time. True if reported.
fn tell_load<P: Port>(
    worker: &mut Worker<P>,
    meter: &mut LoadMeter,
    now_us: u64,
    idle_us: u64,
) -> bool {
    let Some(load) = meter.on_time(now_us, idle_us) else {
        return false;
    };
    let has_told = worker.report_load(load.busy_us, load.elapsed_us);
    if !has_told {
        meter.on_untold();
    }
    has_told
}

fn reader(kind: ReaderKind, opener: Opener) -> Result<Box<dyn Reader>, RunError> {
    let threads = |opener| -> Result<Box<dyn Reader>, RunError> {
        let pool = PoolReader::new(opener, READ_THREADS)
            .map_err(|errno| RunError::Reader(errno.into()))?;
        Ok(Box::new(pool))
    };
    match kind {
        ReaderKind::Threads => threads(opener),
        ReaderKind::Uring => match UringReader::new(opener) {
            Ok(uring) => Ok(Box::new(uring)),
            Err(error) => Err(RunError::Reader(error)),
        },
        ReaderKind::Auto => match UringReader::new(opener.clone()) {
            Ok(uring) => Ok(Box::new(uring)),
            Err(error) => {
                tracing::info!(%error, "io_uring is not to be had: reading in threads");
                threads(opener)
            }
        },
    }
}

/// Minimizes the timer slack. By default the kernel lets a sleep last 50 us longer, to save
/// wake-ups: time in which a paced SEND could leave.
fn wake_up_in_time() {
    if let Err(error) = set_current_timer_slack(NonZero::new(1)) {
        tracing::debug!(%error, "the timer slack stays as it is");
    }
}

fn microseconds(us: u64) -> Timespec {
    Timespec {
        tv_sec: (us / 1_000_000) as i64,
        tv_nsec: (us % 1_000_000 * 1000) as i64,
    }
}

/// Waits for work or the end; true at the end.
fn wait<P: Port>(
    worker: &Worker<P>,
    ends: &Ends<'_>,
    timeout: Option<&Timespec>,
) -> Result<bool, RunError> {
    let mut fds: Vec<_> = ends
        .poll_fds()
        .into_iter()
        .chain(worker.wake_fds())
        .collect();
    match poll(&mut fds, timeout) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(errno) => return Err(RunError::Wait(errno.into())),
    }
    Ok(fds
        .iter()
        .take(ends.poll_fds().len())
        .any(|fd| !fd.revents().is_empty()))
}

/// True if the workers are to end.
fn wait_for_end(ends: &Ends<'_>) -> Result<bool, RunError> {
    match poll(&mut ends.poll_fds(), Some(&NO_TIME)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(errno) => Err(RunError::Wait(errno.into())),
    }
}

/// Microseconds of `CLOCK_MONOTONIC`, the clock that the host stamps its SENDs with.
fn monotonic_us() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000
}

/// Cores that this thread may run on. On a single one the host waits while a worker polls.
fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunError::PortCount { ports, workers } => write!(
                f,
                "{workers} workers need a port each, and there are {ports}: at least one, and as \
                 many as workers"
            ),
            RunError::Reader(error) => write!(
                f,
                "cannot set up reading: {error}. If io_uring is forbidden here, read with threads; \
                 if there are no descriptors left, raise `ulimit -n`"
            ),
            RunError::Memory { bytes, error } => write!(
                f,
                "cannot have {bytes} bytes of memory for the content of a worker: {error}. Give it \
                 less, or raise `ulimit -v` or the memory limit of its control group"
            ),
            RunError::Start(error) => write!(
                f,
                "cannot start a worker: {error}. Limits on threads or descriptors may be too low"
            ),
            RunError::Ready(error) => write!(f, "cannot let the workers begin: {error}"),
            RunError::Wait(error) => write!(f, "cannot wait for work: {error}"),
            RunError::Corrupt { worker } => write!(
                f,
                "the command ring of worker {worker} makes no sense: the host stack is broken, and \
                 must connect again"
            ),
        }
    }
}

impl std::error::Error for RunError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            RunError::Reader(error)
            | RunError::Memory { error, .. }
            | RunError::Start(error)
            | RunError::Ready(error)
            | RunError::Wait(error) => Some(error),
            RunError::PortCount { .. } | RunError::Corrupt { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_that_others_have_are_missed_if_they_would_have_done() {
        let config = |huge_bytes_set_aside| Config {
            cache_bytes: 64 << 20,
            huge_bytes_set_aside,
            ..Config::default()
        };
        assert!(others_have_huge_pages(
            &config(64 << 20),
            Pages::Transparent
        ));
        assert!(others_have_huge_pages(&config(1 << 30), Pages::Plain));
        assert!(!others_have_huge_pages(&config(1 << 30), Pages::Huge));
        // Too few for the content in any case.
        assert!(!others_have_huge_pages(&config(2 << 20), Pages::Plain));
        assert!(!others_have_huge_pages(&config(0), Pages::Plain));
    }
}
