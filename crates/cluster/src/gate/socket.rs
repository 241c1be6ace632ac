//! A socket of an application: its record is read, and changes are sent to the other node.

use std::os::fd::OwnedFd;

use socket_channel::{AppRecord, Flags, HandleId, Segment, SocketId};

use crate::message::{FIRST_CREDIT_BYTES, State};

/// The descriptor that keeps a socket open.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) id: HandleId,
    /// `None` in a simulation.
    pub(crate) _fd: Option<OwnedFd>,
}

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) handle: Handle,
    /// Credit of the other node, and the amount sent: bytes, or connections.
    pub(crate) rx_until: u64,
    pub(crate) rx_told: u64,
    /// Total of bytes for which the other node has credit.
    pub(crate) tx_told: u64,
    /// The last state sent to the other node.
    pub(crate) told: State,
    errors: u32,
    errno: u32,
    /// The socket is in the member's queue.
    pub(crate) is_queued: bool,
    /// The program has ended its stream.
    pub(crate) is_finished: bool,
}

impl Socket {
    pub(crate) fn new(handle: Handle) -> Socket {
        Socket {
            handle,
            rx_until: FIRST_CREDIT_BYTES,
            rx_told: 0,
            tx_told: 0,
            told: State::default(),
            errors: 0,
            errno: 0,
            is_queued: false,
            is_finished: false,
        }
    }

    /// Reads the state of the socket. The end of the connection is left out while bytes before it
    /// are unsent, unless the connection has failed and the other node's credit is used up.
    pub(crate) fn observe(&mut self, segment: &Segment, id: SocketId) -> State {
        let gone = State {
            flags: self.told.flags | Flags::FAILED | Flags::CLOSED,
            errors: self.errors.max(1),
            errno: rustix::io::Errno::CONNRESET.raw_os_error().unsigned_abs(),
            ..self.told
        };
        let Ok(record) = AppRecord::of(segment, id) else {
            return gone;
        };
        let Ok(mut flags) = record.flags() else {
            return gone;
        };
        let is_listener = flags.has(Flags::LISTENER);
        let is_behind = !is_listener && record.rx_waiting_bytes() > 0;
        let has_credit = self.rx_told < self.rx_until;
        if is_behind && (has_credit || !flags.has(Flags::FAILED)) {
            flags = flags - Flags(Flags::PEER_FINISHED.0 | Flags::FAILED.0 | Flags::CLOSED.0);
        } else {
            let errno = record.take_error();
            if errno != 0 {
                self.errors += 1;
                self.errno = errno;
            }
        }
        State {
            flags,
            errors: self.errors,
            errno: self.errno,
            rx_bytes: record.rx_bytes() as u32,
            tx_bytes: record.tx_bytes() as u32,
            tx_limit: record.tx_limit().map_or(0, |limit| limit as u32),
            file_limit: record.file_limit_bytes(),
            acked: record.acked_bytes(),
            options: record.option_words(),
            local: record.local(),
            peer: record.peer(),
            meta: record.file_meta().ok().flatten(),
        }
    }
}
