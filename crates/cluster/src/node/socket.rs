//! A socket of a program: its record is written as the stack node says.

use std::collections::VecDeque;

use socket_channel::record::option_from_words;
use socket_channel::{HandleId, HostRecord, SocketId, SocketOption};

use crate::message::{FIRST_CREDIT_BYTES, State};

/// What has its place between the bytes of a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    /// Its number.
    pub(crate) number: u32,
    /// Position in the tx FIFO behind which it comes.
    pub(crate) at: u64,
    pub(crate) what: What,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    File {
        file: SocketId,
        offset: u64,
        len: u64,
    },
    Finish,
}

/// How the stack node hears that a socket has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub(crate) socket: SocketId,
    /// Bytes of its stream that have come here.
    pub(crate) got: u64,
    /// Its connection is reset.
    pub(crate) resets: bool,
}

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) record: HostRecord,
    /// The descriptor that it lives as long as; none before a connection is accepted, and after
    /// the last copy is closed.
    pub(crate) handle: Option<HandleId>,
    /// The listener that it has come from.
    pub(crate) listener: Option<SocketId>,
    /// What the stack node has said last.
    pub(crate) state: State,
    pub(crate) marks: VecDeque<Mark>,
    /// Marks of other processes than the one whose turn it is.
    pub(crate) early: Vec<Mark>,
    /// What the stack node takes in all, in bytes.
    pub(crate) tx_until: u64,
    /// What it may send in all, in bytes, and what it has sent.
    pub(crate) rx_until: u64,
    pub(crate) rx_bytes: u64,
    /// Of a listener: connections that may wait, those that were put into its queue, and as many
    /// as the stack node may send.
    pub(crate) backlog: u64,
    pub(crate) pushed: u64,
    pub(crate) pushed_until: u64,
    /// Marks that name this file.
    pub(crate) references: usize,
    /// The program has closed it: what is queued still goes, until then at the latest.
    pub(crate) closing_until_us: Option<u64>,
    /// The stack node has it no more.
    pub(crate) is_dead: bool,
    /// It is in the queue of those to be looked at.
    pub(crate) is_queued: bool,
    /// Hints of its last changes are still to be sent.
    pub(crate) is_changed: bool,
}

impl Socket {
    pub(crate) fn new(record: HostRecord) -> Socket {
        Socket {
            record,
            handle: None,
            listener: None,
            state: State::default(),
            marks: VecDeque::new(),
            early: Vec::new(),
            tx_until: 0,
            rx_until: FIRST_CREDIT_BYTES,
            rx_bytes: 0,
            backlog: 1,
            pushed: 0,
            pushed_until: 0,
            references: 0,
            closing_until_us: None,
            is_dead: false,
            is_queued: false,
            is_changed: false,
        }
    }

    /// What the stack node hears when it ends now.
    pub(crate) fn end(&self, resets: bool) -> End {
        End {
            socket: self.record.id(),
            got: self.rx_bytes,
            resets,
        }
    }

    /// `SO_LINGER` of no time: what is queued is dropped when the program closes it.
    pub(crate) fn resets_when_closed(&self) -> bool {
        option_from_words(self.state.options, SocketOption::LingerMs) == Some(0)
    }

    pub(crate) fn is_finishing(&self) -> bool {
        let last = self.marks.back();
        last.is_some_and(|mark| matches!(mark.what, What::Finish))
    }
}
