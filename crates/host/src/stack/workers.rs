//! The channel to a NIC worker, and what did not fit into it.

use crate::tables::files::Lookup;
use std::collections::VecDeque;

use contract::channel::HostChannel;
use contract::{Command, FileId, FlowId};

use crate::tables::waiting::Waiting;

/// A channel to a NIC worker, and what did not fit into it.
#[derive(Debug)]
pub(super) struct Nic {
    pub(super) channel: HostChannel,
    /// Its NIC stack is not gone. Else nothing goes into the ring, which has no reader, and nothing
    /// is lost: the one that comes back knows nothing, and gets everything.
    pub(super) is_there: bool,
    /// It has ended, and all that it has said was read.
    pub(super) has_ended: bool,
    /// Something that it has said made no sense: it may have been a tag.
    pub(super) is_garbled: bool,
    /// Its last event was that it has ended.
    pub(super) has_said_last: bool,
    /// It was asked to end, and carries nothing out any more.
    pub(super) is_ending: bool,
    /// Connections that wait for room in its ring. One that has gone to another worker meanwhile is
    /// served once for nothing.
    pub(super) waiting: Waiting,
    /// How many of them may try again, as long as there is room: those that were waiting when there
    /// was some again.
    pub(super) retries: usize,
    backlog: VecDeque<Deferred>,
}

/// A small command that waits for room. Their number is bounded by the files, the flows, their
/// keys, and the bytes in flight.
#[derive(Debug)]
pub(super) enum Deferred {
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
        }
    }
}

impl Nic {
    pub(super) fn new(channel: HostChannel) -> Nic {
        Nic {
            channel,
            is_there: true,
            has_ended: false,
            is_garbled: false,
            has_said_last: false,
            is_ending: false,
            waiting: Waiting::default(),
            retries: 0,
            backlog: VecDeque::new(),
        }
    }

    /// Its NIC stack is gone.
    pub(super) fn lose(&mut self) {
        self.is_there = false;
        self.has_ended = false;
        self.backlog.clear();
    }

    /// Sends now, or later but in order.
    pub(super) fn send_or_defer(&mut self, command: Deferred) {
        if !self.is_there {
            return;
        }
        if !self.backlog.is_empty() || self.channel.send(&command.command()).is_err() {
            self.backlog.push_back(command);
        }
    }

    /// The same with OPEN or LIST.
    pub(super) fn open_or_defer(&mut self, file: FileId, path: &[u8], lookup: Lookup) {
        if !self.is_there {
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

    /// Commands that wait for room.
    pub(super) fn commands_waiting(&self) -> usize {
        self.backlog.len()
    }

    pub(super) fn send_backlog(&mut self) {
        while let Some(command) = self.backlog.front() {
            if self.channel.send(&command.command()).is_err() {
                return;
            }
            self.backlog.pop_front();
        }
    }

    /// True if any SEND fits now, would overtake nothing, and may be carried out.
    pub(super) fn has_room(&mut self) -> bool {
        self.is_there && !self.is_ending && self.backlog.is_empty() && self.channel.has_room()
    }
}
