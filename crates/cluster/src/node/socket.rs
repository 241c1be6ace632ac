//! A socket of a program: its record mirrors the stack node's state.

use std::collections::VecDeque;

use socket_channel::record::option_from_words;
use socket_channel::{HandleId, HostRecord, SocketId, SocketOption};

use crate::message::{FIRST_CREDIT_BYTES, State};

/// An operation at a position between the bytes of a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    /// Number of the mark.
    pub(crate) number: u32,
    /// Position in the tx FIFO that it follows.
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

/// The end of a socket, to be sent to the stack node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub(crate) socket: SocketId,
    /// Bytes of its stream that have arrived here.
    pub(crate) got: u64,
    /// Whether its connection is reset.
    pub(crate) resets: bool,
}

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) record: HostRecord,
    /// The descriptor that keeps it open; none before a connection is accepted, and after the last
    /// copy is closed.
    pub(crate) handle: Option<HandleId>,
    /// The listener that the connection came from.
    pub(crate) listener: Option<SocketId>,
    /// The stack node's last state.
    pub(crate) state: State,
    pub(crate) marks: VecDeque<Mark>,
    /// Marks from other processes that arrived before their turn.
    pub(crate) early: Vec<Mark>,
    /// Credit of this node, total in bytes.
    pub(crate) tx_until: u64,
    /// Credit of the stack node and received bytes, totals in bytes.
    pub(crate) rx_until: u64,
    pub(crate) rx_bytes: u64,
    /// Of a listener: most waiting connections, connections queued so far, and the stack node's
    /// credit for connections.
    pub(crate) backlog: u64,
    pub(crate) pushed: u64,
    pub(crate) pushed_until: u64,
    /// Marks that name this file.
    pub(crate) references: usize,
    /// The program has closed the socket; queued bytes may be sent until this time.
    pub(crate) closing_until_us: Option<u64>,
    /// The socket has ended on the stack node.
    pub(crate) is_dead: bool,
    /// The socket is in the application's queue.
    pub(crate) is_queued: bool,
    /// Hints about its last changes are pending.
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

    /// The end of the socket at this moment, for the stack node.
    pub(crate) fn end(&self, resets: bool) -> End {
        End {
            socket: self.record.id(),
            got: self.rx_bytes,
            resets,
        }
    }

    /// Whether `SO_LINGER` is set to zero: closing the socket drops its queued bytes.
    pub(crate) fn resets_when_closed(&self) -> bool {
        option_from_words(self.state.options, SocketOption::LingerMs) == Some(0)
    }

    pub(crate) fn is_finishing(&self) -> bool {
        let last = self.marks.back();
        last.is_some_and(|mark| matches!(mark.what, What::Finish))
    }
}
