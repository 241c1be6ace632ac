//! Data that is about to be issued, for the first time or again.

use crate::time::Instant;

/// Data selected for sending: positions `start..start + len`, and FIN behind them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Data {
    pub(crate) start: u64,
    pub(crate) len: u64,
    pub(crate) fin: bool,
    /// [`Transmit::mss`](crate::Transmit::mss)
    pub(crate) mss: u16,
    /// It was sent before.
    pub(crate) retransmission: bool,
    /// [`Transmit::not_before`](crate::Transmit::not_before)
    pub(crate) not_before: Option<Instant>,
    /// No other data may follow: [`is_window_used_up`](crate::Connection::is_window_used_up) once
    /// it is issued.
    pub(crate) uses_up_window: bool,
}

impl Data {
    /// Returns data to leave at once, for the first time.
    pub(crate) fn new(start: u64, len: u64, fin: bool, mss: u16) -> Data {
        Data {
            start,
            len,
            fin,
            mss,
            retransmission: false,
            not_before: None,
            uses_up_window: false,
        }
    }

    /// Returns data to leave at once, again.
    pub(crate) fn again(start: u64, len: u64, fin: bool, mss: u16) -> Data {
        Data {
            retransmission: true,
            ..Data::new(start, len, fin, mss)
        }
    }
}
