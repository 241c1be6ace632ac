//! A worker: one channel, one port, one reader.

use std::fmt;
use std::os::fd::BorrowedFd;

use contract::RejectReason;
use contract::channel::{NicChannel, ReceiveError};
use port::Port;

use crate::config::Config;
use crate::counters::Counters;
use crate::engine::{Clock, Engine};
use crate::reader::Reader;

/// Commands taken in one turn.
const COMMANDS_MAX: usize = 64;

/// The data plane of one core. Workers share nothing.
///
/// A worker never blocks and never looks at a clock of its own: given the same commands, completions and
/// times, it does the same. Call [`Worker::turn`] as long as it is [`Progress::Busy`]; then sleep until
/// a command comes ([`Worker::channel`] says when), one of [`Worker::reader_fds`] is readable, or, if
/// [`Worker::port_busy`], [`Worker::port_fd`] is writable.
pub struct Worker<P> {
    channel: NicChannel,
    engine: Engine<P>,
}

/// What a turn has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Something was done, and there may be more to do.
    Busy,
    /// Nothing can be done now.
    Idle,
    /// As `Idle`, and the host leaves no room for events: try again soon, for nothing tells when it
    /// takes some.
    EventsWaiting,
}

/// The host's ring makes no sense: the session is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt;

impl<P: Port> Worker<P> {
    /// A worker with nothing to do. Allocates and touches its buffers.
    pub fn new(config: &Config, channel: NicChannel, port: P, reader: Box<dyn Reader>) -> Self {
        Worker {
            channel,
            engine: Engine::new(config, port, reader),
        }
    }

    /// Does a bounded amount of work. `clock` is asked at each departure.
    pub fn turn(&mut self, clock: Clock<'_>) -> Result<Progress, Corrupt> {
        let mut worked = self.engine.complete();
        worked |= self.deliver();
        worked |= self.take_commands()?;
        worked |= self.engine.plan();
        worked |= self.engine.depart(clock);
        worked |= self.deliver();
        Ok(if worked {
            Progress::Busy
        } else if self.engine.events.is_empty() {
            Progress::Idle
        } else {
            Progress::EventsWaiting
        })
    }

    /// Takes commands while there is room for their jobs and for what they may be answered with.
    fn take_commands(&mut self) -> Result<bool, Corrupt> {
        let mut worked = false;
        for _ in 0..COMMANDS_MAX {
            if !self.engine.has_room() {
                break;
            }
            match self.channel.receive() {
                Ok(None) => break,
                Ok(Some(command)) => self.engine.command(&command),
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

    /// The channel, to sleep on.
    pub fn channel(&mut self) -> &mut NicChannel {
        &mut self.channel
    }

    /// The port has taken no more: wait until [`Worker::port_fd`] is writable.
    pub fn port_busy(&self) -> bool {
        self.engine.port_busy
    }

    /// The port's descriptor for writing, if it has one.
    pub fn port_fd(&self) -> Option<BorrowedFd<'_>> {
        self.engine.port.send_fd()
    }

    /// Descriptors that are readable while an open or a read has completed.
    pub fn reader_fds(&self) -> [Option<BorrowedFd<'_>>; 2] {
        self.engine.reader.wake_fds()
    }

    /// What has been done so far.
    pub fn counters(&self) -> Counters {
        self.engine.counters
    }

    /// The port.
    pub fn port(&mut self) -> &mut P {
        &mut self.engine.port
    }

    pub(crate) fn count_sleep(&mut self) {
        self.engine.counters.sleeps += 1;
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
        f.write_str("the host's command ring makes no sense; the session cannot go on")
    }
}

impl std::error::Error for Corrupt {}
