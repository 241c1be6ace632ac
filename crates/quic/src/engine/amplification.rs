//! How much a client may be sent whose address is not validated.

/// Bytes that may be sent per byte received (RFC 9000 §8.1).
const FACTOR: u64 = 3;

/// The limit of one connection. quinn-proto has the same bound, but exceeds it by up to a datagram:
/// as long as a byte is left, it fills one.
#[derive(Debug)]
pub(super) struct AmplificationLimit {
    /// None once the address is validated.
    left_bytes: Option<u64>,
}

impl AmplificationLimit {
    /// Of a client that has sent so much.
    pub(super) fn new(is_validated: bool, received_bytes: usize) -> Self {
        let left_bytes = (!is_validated).then_some(0);
        let mut limit = Self { left_bytes };
        limit.on_received(received_bytes);
        limit
    }

    pub(super) fn on_received(&mut self, bytes: usize) {
        if let Some(left) = &mut self.left_bytes {
            *left += FACTOR * bytes as u64;
        }
    }

    pub(super) fn on_validated(&mut self) {
        self.left_bytes = None;
    }

    pub(super) fn on_sent(&mut self, bytes: usize) {
        if let Some(left) = &mut self.left_bytes {
            *left = left.saturating_sub(bytes as u64);
        }
    }

    /// How many datagrams of this length may be sent, of so many. What is less than one counts as
    /// nothing: quinn-proto cannot be asked for a shorter one.
    pub(super) fn datagrams_max(&self, datagram_bytes: usize, of: usize) -> usize {
        match self.left_bytes {
            Some(left) => of.min((left / datagram_bytes as u64) as usize),
            None => of,
        }
    }
}
