//! Channels to NIC workers, and commands waiting for room in them.

use std::collections::VecDeque;
use std::sync::Arc;

use contract::channel::HostChannel;
use contract::limits::HEADER_BYTES_MAX;
use contract::setup::SetupListeners;
use contract::splicing::{SpliceLeg, UnspliceKind};
use contract::{Command, FileId, FlowId, Part, Setup, Splice};
use netdev::steering::Target;

use super::Ground;
use crate::nics::nic_stacks::NicRefusal;
use crate::tables::files::{Lookup, MayClose};
use crate::tables::waiting::Waiting;

/// A channel to a NIC worker, and commands waiting for room.
#[derive(Debug)]
pub(crate) struct WorkerLink {
    pub(crate) channel: HostChannel,
    pub(crate) life: Life,
    pub(crate) heard: Heard,
    /// Connections that wait for room in its ring. One that has moved to another worker meanwhile
    /// is served once for nothing.
    pub(crate) waiting: Waiting,
    /// Number of waiting connections that may retry while there is room: those that were waiting
    /// when there was room again.
    pub(crate) retries: usize,
    /// No connection is parted with before this time, in microseconds: the worker has refused one.
    pub(crate) parts_from_us: u64,
    /// Set once it answers SYNs.
    pub(crate) setup: Option<Ready>,
    backlog: VecDeque<Deferred>,
}

/// The life cycle of a NIC worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// It executes commands.
    Serving,
    /// It was asked to end, and executes nothing more.
    Ending,
    /// It has ended, and all its events were read.
    Ended,
    /// Its NIC stack is gone. Nothing goes into the ring, which has no reader, and nothing is lost:
    /// a NIC stack that returns has no state, and gets everything.
    Gone,
}

/// The state of a NIC worker's events so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// All were valid.
    Sense,
    /// The same, and the last reported the end.
    Last,
    /// One was malformed: it may have been a tag.
    Garbled,
}

impl Heard {
    /// Handles an event: true if it follows the last one, which nothing may.
    pub(crate) fn on_event(&mut self) -> bool {
        let follows_last = *self == Heard::Last;
        if follows_last {
            *self = Heard::Garbled;
        }
        follows_last
    }

    /// The worker reports its end.
    pub(crate) fn on_last(&mut self) {
        if *self == Heard::Sense {
            *self = Heard::Last;
        }
    }
}

/// A small command that waits for room. Files, flows and their keys, bytes in flight, connections
/// parted with, and splices bound the number of these.
#[derive(Debug)]
pub(crate) enum Deferred {
    Lookup {
        file: FileId,
        lookup: Lookup,
        path: Box<[u8]>,
    },
    Close {
        file: FileId,
    },
    Acked {
        flow: FlowId,
        stream_offset: u64,
        last: bool,
    },
    KeyGone {
        flow: FlowId,
        epoch: u16,
    },
    Part(Box<OwnedPart>),
    PartGone {
        flow: FlowId,
    },
    /// At most one: a later one replaces it.
    Setup(Box<OwnedSetup>),
    Splice(Box<OwnedSplice>),
    Unsplice {
        flow: FlowId,
        kind: UnspliceKind,
    },
}

/// PART that owns its header.
#[derive(Debug)]
pub(crate) struct OwnedPart {
    /// Without its header.
    pub(crate) part: Part<'static>,
    pub(crate) header: [u8; HEADER_BYTES_MAX],
    pub(crate) header_bytes: usize,
}

impl OwnedPart {
    pub(crate) fn command(&self) -> Command<'_> {
        Command::Part(Part {
            header: &self.header[..self.header_bytes],
            ..self.part
        })
    }
}

/// A worker's answer to SETUP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ready {
    pub(crate) target: Option<Target>,
}

/// SETUP that owns its listeners.
#[derive(Debug)]
pub(crate) struct OwnedSetup {
    /// Without its listeners.
    pub(crate) setup: Setup<'static>,
    pub(crate) listeners: Arc<[u8]>,
}

impl OwnedSetup {
    pub(crate) fn command(&self) -> Command<'_> {
        let listeners = SetupListeners::parse(&self.listeners);
        Command::Setup(Setup {
            listeners: listeners.unwrap_or_default(),
            ..self.setup
        })
    }
}

/// SPLICE that owns its headers.
#[derive(Debug)]
pub(crate) struct OwnedSplice {
    /// Without their headers.
    pub(crate) splice: Splice<'static>,
    pub(crate) headers: [[u8; HEADER_BYTES_MAX]; 2],
    pub(crate) header_bytes: [usize; 2],
}

impl OwnedSplice {
    pub(crate) fn command(&self) -> Command<'_> {
        let [first, second] = self.splice.legs;
        let header = |side: usize| &self.headers[side][..self.header_bytes[side]];
        Command::Splice(Splice {
            legs: [
                SpliceLeg {
                    header: header(0),
                    ..first
                },
                SpliceLeg {
                    header: header(1),
                    ..second
                },
            ],
            ..self.splice
        })
    }
}

impl Deferred {
    fn command(&self) -> Command<'_> {
        match self {
            Deferred::Lookup { file, lookup, path } => lookup.command(*file, path),
            Deferred::Close { file } => Command::Close { file: *file },
            Deferred::Acked {
                flow,
                stream_offset,
                last,
            } => Command::Acked {
                flow: *flow,
                stream_offset: *stream_offset,
                last: *last,
            },
            Deferred::KeyGone { flow, epoch } => Command::KeyGone {
                flow: *flow,
                epoch: *epoch,
            },
            Deferred::Part(part) => part.command(),
            Deferred::PartGone { flow } => Command::PartGone { flow: *flow },
            Deferred::Setup(setup) => setup.command(),
            Deferred::Splice(splice) => splice.command(),
            Deferred::Unsplice { flow, kind } => Command::Unsplice {
                flow: *flow,
                kind: *kind,
            },
        }
    }
}

impl WorkerLink {
    pub(crate) fn new(channel: HostChannel) -> WorkerLink {
        WorkerLink {
            channel,
            life: Life::Serving,
            heard: Heard::Sense,
            waiting: Waiting::default(),
            retries: 0,
            parts_from_us: 0,
            setup: None,
            backlog: VecDeque::new(),
        }
    }

    /// True if its NIC stack is not gone.
    pub(crate) fn is_there(&self) -> bool {
        self.life != Life::Gone
    }

    /// Its NIC stack is gone.
    pub(crate) fn lose(&mut self) {
        self.life = Life::Gone;
        self.setup = None;
        self.backlog.clear();
    }

    /// Sends a command now, or later in order.
    pub(crate) fn send_or_defer(&mut self, command: Deferred) {
        if !self.is_there() {
            return;
        }
        if matches!(command, Deferred::Setup(_)) {
            (self.backlog).retain(|waits| !matches!(waits, Deferred::Setup(_)));
        }
        if !self.backlog.is_empty() || self.channel.send(&command.command()).is_err() {
            self.backlog.push_back(command);
        }
    }

    /// The same with OPEN or LIST.
    pub(crate) fn open_or_defer(&mut self, file: FileId, path: &[u8], lookup: Lookup) {
        if !self.is_there() {
            return;
        }
        let command = lookup.command(file, path);
        if self.backlog.is_empty() && self.channel.send(&command).is_ok() {
            return;
        }
        let path = path.into();
        self.backlog
            .push_back(Deferred::Lookup { file, lookup, path });
    }

    /// The number of commands waiting for room.
    pub(crate) fn commands_waiting(&self) -> usize {
        self.backlog.len()
    }

    pub(crate) fn send_backlog(&mut self) {
        while let Some(command) = self.backlog.front() {
            if self.channel.send(&command.command()).is_err() {
                return;
            }
            self.backlog.pop_front();
        }
    }

    /// True if any SEND fits now, would overtake nothing, and would be executed.
    pub(crate) fn has_room(&mut self) -> bool {
        self.life == Life::Serving && self.backlog.is_empty() && self.channel.has_room()
    }
}

impl Ground {
    /// Rings may have room again: as many waiting connections retry as were waiting then.
    pub(crate) fn retry_waiting_room(&mut self) {
        for nic in &mut self.workers {
            if !nic.waiting.is_empty() && nic.has_room() {
                nic.retries = nic.waiting.len();
            }
        }
    }

    /// Why NIC stack `nic` cannot be used with this many workers.
    pub(crate) fn nic_refusal(&self, nic: usize, workers: usize) -> Option<NicRefusal> {
        let wanted = self.nic_stacks.workers(nic).len();
        (wanted != 0 && wanted != workers).then_some(NicRefusal { workers, wanted })
    }

    /// A NIC stack joins for the first time.
    pub(crate) fn introduce_nic(&mut self, nic: usize, channels: Vec<HostChannel>) {
        self.nic_stacks.introduce(nic, channels.len());
        self.nic_stacks.has_come(nic);
        self.divide_labour_of(nic);
        self.workers
            .extend(channels.into_iter().map(WorkerLink::new));
    }

    /// Sends CLOS.
    pub(crate) fn send_close(&mut self, close: MayClose) {
        for worker in [close.worker].into_iter().chain(close.twin) {
            self.counters.closes += 1;
            self.workers[worker].send_or_defer(Deferred::Close { file: close.file });
        }
    }

    /// Asks a worker for a file again, as before.
    pub(crate) fn ask_worker(&mut self, worker: usize, file: FileId) {
        if let Some(found) = self.files.by_id(file) {
            let (path, lookup) = (found.path.clone(), found.lookup());
            self.send_open(worker, file, &path, lookup);
        }
    }

    /// Sends OPEN or LIST.
    pub(crate) fn send_open(&mut self, worker: usize, file: FileId, path: &[u8], lookup: Lookup) {
        match lookup {
            Lookup::Open(_) => self.counters.opens += 1,
            Lookup::List(_) => self.counters.lists += 1,
        }
        self.workers[worker].open_or_defer(file, path, lookup);
    }

    /// True if a worker may still report on connections that others send for.
    #[cold]
    pub(crate) fn may_have_moved(&self) -> bool {
        self.nic_stacks.len() > 1 || self.counters.connections_rebalanced > 0
    }
}
