//! A worker: one channel, one port, one reader.

use std::{fmt, io};

use contract::channel::{NicChannel, ReceiveError};
use contract::{Event, FlowId, RejectReason};
use netdev::Port;
use rustix::event::{PollFd, PollFlags};

use crate::buffer::{Arena, BLOCK_BYTES, Pages};
use crate::config::Config;
use crate::counters::Counters;
use crate::engine::{Clock, Engine};
use crate::flow::Front;
use crate::job::Job;
use crate::reader::Reader;
use crate::usage::Usage;

/// Commands taken in one turn.
const COMMANDS_MAX: usize = 64;

/// The data plane of one core. Workers share nothing.
///
/// A worker never blocks and never looks at a clock of its own: given the same commands,
/// completions and times, it does the same. Call [`Worker::turn`] as long as it is
/// [`Progress::Busy`], then [`Worker::prepare_sleep`]; if that allows it, wait and call
/// [`Worker::finish_sleep`]; and so on.
pub struct Worker<P> {
    channel: NicChannel,
    engine: Engine<P>,
}

/// Result of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Something was done, and there may be more to do.
    Busy,
    /// Nothing can be done now.
    Idle,
}

/// How to wait for something to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// Not at all: a command has arrived meanwhile.
    Not,
    /// Until the channel, the reader or the port wakes the worker, or until
    /// [`Worker::next_timeout_us`].
    UntilWoken,
    /// As `UntilWoken`, but no longer than a millisecond: the awaited event may send no wakeup.
    Briefly,
}

/// The host's ring is corrupt: the session is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt;

/// Memory for the content of a worker.
pub(crate) fn reserve(config: &Config) -> io::Result<Arena> {
    Arena::new(config.cache_bytes.max(Config::CACHE_BYTES_MIN) / BLOCK_BYTES)
}

impl<P: Port> Worker<P> {
    /// Creates a worker with nothing to do. Fails if the kernel has no memory for
    /// [`Config::cache_bytes`].
    pub fn new(
        config: &Config,
        channel: NicChannel,
        port: P,
        reader: Box<dyn Reader>,
    ) -> io::Result<Self> {
        let memory = reserve(config)?;
        Ok(Worker::with_memory(config, channel, port, reader, memory))
    }

    /// Creates a worker with memory for content that was reserved before.
    pub(crate) fn with_memory(
        config: &Config,
        channel: NicChannel,
        port: P,
        reader: Box<dyn Reader>,
        memory: Arena,
    ) -> Self {
        Worker {
            channel,
            engine: Engine::new(config, port, reader, memory),
        }
    }

    /// Does a bounded amount of work. `clock` is read at each departure.
    pub fn turn(&mut self, clock: Clock<'_>) -> Result<Progress, Corrupt> {
        self.channel.answer_heartbeat();
        self.engine.blocks.on_time(clock());
        let mut worked = self.engine.complete();
        worked |= self.deliver();
        worked |= self.take_commands(clock)?;
        worked |= self.engine.plan();
        worked |= self.engine.release_held(clock);
        worked |= self.engine.on_parted_time(clock);
        worked |= self.engine.on_spliced_time(clock);
        worked |= self.engine.receive(clock);
        worked |= self.engine.on_received_time(clock);
        worked |= self.engine.send_parted();
        worked |= self.engine.send_spliced();
        worked |= self.engine.depart(clock, &mut self.channel);
        self.engine.port_busy |=
            self.engine.parted.waits_for_port() || self.engine.spliced.waits_for_port();
        worked |= self.engine.report_taken();
        worked |= self.engine.report_ends();
        worked |= self.engine.report_splices();
        worked |= self.engine.report_received();
        worked |= self.deliver();
        worked |= self.engine.send_behind_reports();
        Ok(if worked {
            Progress::Busy
        } else {
            Progress::Idle
        })
    }

    /// Takes commands while there is room for their jobs and for the resulting events.
    fn take_commands(&mut self, clock: Clock<'_>) -> Result<bool, Corrupt> {
        let mut worked = false;
        for _ in 0..COMMANDS_MAX {
            if !self.engine.has_room() {
                break;
            }
            match self.channel.receive() {
                Ok(None) => break,
                Ok(Some(command)) => self.engine.command(&command, clock),
                Err(ReceiveError::Malformed { id }) => {
                    self.engine.reject(RejectReason::Malformed, id);
                }
                Err(ReceiveError::Corrupt) => return Err(Corrupt),
            }
            worked = true;
        }
        Ok(worked)
    }

    /// Hands over events while the ring takes them. True if it took any.
    fn deliver(&mut self) -> bool {
        let mut worked = false;
        while let Some(event) = self.engine.events.front() {
            if self.channel.send(event).is_err() {
                break;
            }
            self.engine.events.pop_front();
            worked = true;
        }
        if worked {
            self.channel.flush();
        }
        worked
    }

    /// Arms the wake-up, after a turn that was [`Progress::Idle`].
    pub fn prepare_sleep(&mut self) -> Sleep {
        let reports_wait = !self.engine.events.is_empty()
            || self.engine.ring_busy
            || self.engine.has_reports_or_packets();
        let port_wakes = !self.engine.port_busy || self.engine.port.send_fd().is_some();
        let reader_wakes = !self.engine.reader.has_unsubmitted();
        // Without room, no command is taken, and those in the ring must not keep the worker awake:
        // a completion or the port comes first.
        if self.engine.has_room() && !self.channel.prepare_sleep() {
            Sleep::Not
        } else if !port_wakes || !reader_wakes || (reports_wait && !self.engine.has_room()) {
            Sleep::Briefly
        } else {
            Sleep::UntilWoken
        }
    }

    /// Ends a sleep.
    pub fn finish_sleep(&mut self) {
        self.channel.finish_sleep();
        self.engine.counters.sleeps += 1;
    }

    /// Returns when a sleeping worker must do its next turn even if nothing wakes it, in
    /// microseconds of its clock: a paced SEND may leave, a read completes without notification,
    /// blocks pinned for long may be taken, a FIN is due again, a splice has been idle for too
    /// long, or a packet has been missing for too long.
    pub fn next_timeout_us(&self) -> Option<u64> {
        let held_us = self.engine.wheel.next_us();
        let read_us = self.engine.reader.next_timeout_us();
        let starved = !self.engine.starved.is_empty();
        let blocks_us = starved
            .then(|| self.engine.blocks.next_stale_us())
            .flatten();
        let parted_us = self.engine.parted.next_us();
        let spliced_us = self.engine.spliced.next_us();
        let received_us = self.engine.receiving.next_us();
        let times_us = [
            held_us,
            read_us,
            blocks_us,
            parted_us,
            spliced_us,
            received_us,
        ];
        times_us.into_iter().flatten().min()
    }

    /// Returns the descriptors that wake a sleeping worker.
    pub(crate) fn wake_fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        let engine = &self.engine;
        let readable = [self.channel.wake_fd()]
            .into_iter()
            .chain(engine.reader.wake_fds())
            .flatten()
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let writable = engine
            .port
            .send_fd()
            .filter(|_| engine.port_busy)
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::OUT));
        let frames = engine.receives().then(|| engine.port.receive_fds());
        let frames = frames.into_iter().flatten();
        let frames = frames.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        readable.chain(writable).chain(frames)
    }

    /// Queues a report of the worker's load, which its next turn sends to the host. `elapsed_us` is
    /// not zero, and `busy_us` does not exceed it. False if the host does not take events now: then
    /// nothing is queued.
    pub fn report_load(&mut self, busy_us: u32, elapsed_us: u32) -> bool {
        let takes = self.engine.events.is_empty();
        if takes {
            self.engine.emit(Event::Load {
                busy_us,
                elapsed_us,
            });
        }
        takes
    }

    /// Prepares the end of all connections after the host process has died. [`Worker::end_orphans`]
    /// ends them, and there are no more turns. Returns the number of connections.
    pub fn orphan_all(&mut self, clock: Clock<'_>) -> usize {
        self.engine.orphan_all(&mut self.channel, clock)
    }

    /// Ends at most `count_max` connections whose host process has died, fewer if the port is busy.
    /// True if some are left.
    pub fn end_orphans(&mut self, count_max: usize, clock: Clock<'_>) -> bool {
        self.engine.end_orphans(count_max, clock)
    }

    /// Queues the last packets of connections once more, for [`Worker::end_orphans`].
    pub fn repeat_orphans(&mut self) {
        self.engine.repeat_orphans();
    }

    /// Returns the counters so far.
    pub fn counters(&self) -> Counters {
        let mut counters = self.engine.counters;
        self.engine.blocks.count_into(&mut counters);
        counters
    }

    /// Returns the kind of pages of the memory for content.
    pub fn pages(&self) -> Pages {
        self.engine.pages
    }

    /// True if huge pages are set aside for the content, but too few were free.
    pub fn too_few_huge_pages(&self) -> bool {
        self.engine.too_few_huge_pages
    }

    /// Returns the resources held at the moment.
    pub fn usage(&self) -> Usage {
        self.engine.usage()
    }

    /// Returns flows with a superpacket that may leave at `now_us` of the worker's clock, in the
    /// order in which they take turns. Flows that are paced and not due, or have failed, are left
    /// out.
    pub fn flows_waiting(&self, now_us: u64) -> impl Iterator<Item = FlowId> + '_ {
        let engine = &self.engine;
        let standing = engine.senders.iter().copied();
        let flows = standing.filter_map(|key| engine.flows.get(key));
        let ready = flows.filter(move |flow| {
            let is_due = |job: &Job| job.not_before_us <= now_us;
            flow.front(&engine.blocks) == Front::Ready
                && flow.jobs.front().is_some_and(|job| is_due(job))
        });
        ready.map(|flow| flow.id)
    }

    /// Returns the port.
    pub fn port(&mut self) -> &mut P {
        &mut self.engine.port
    }
}

impl<P> fmt::Debug for Worker<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("counters", &self.engine.counters)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the host's command ring is corrupt; the session cannot continue")
    }
}

impl std::error::Error for Corrupt {}
