//! A socket of an application: its record is read, and the other node hears of changes.

use std::os::fd::OwnedFd;

use socket_channel::{AppRecord, Flags, HandleId, Segment, SocketId};

use crate::message::{FIRST_CREDIT_BYTES, State};

/// A descriptor that a socket lives as long as.
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
    /// What the other node takes in all, and what it has got: bytes, or connections.
    pub(crate) rx_until: u64,
    pub(crate) rx_told: u64,
    /// Total of bytes that the other node may send.
    pub(crate) tx_told: u64,
    /// What the other node knows.
    pub(crate) told: State,
    errors: u32,
    errno: u32,
    /// It is in the queue of those to be looked at.
    pub(crate) is_queued: bool,
    /// Its stream has been ended by the program.
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

    /// How the socket is. What comes behind bytes that are still to be told is left out, unless
    /// the program leaves those where they are and the connection has failed.
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
