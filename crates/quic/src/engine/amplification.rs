//! How much a client may be sent whose address is not validated.

/// Bytes that may be sent per byte received (RFC 9000 §8.1).
const FACTOR: u64 = 3;

/// Datagrams that a probe timeout sends at most (RFC 9002 §6.2.4).
const PROBE_DATAGRAMS: u64 = 2;

/// The limit of one connection. quinn-proto has the same bound, but exceeds it by up to a datagram:
/// as long as a byte is left, it fills one.
///
/// Answers to early data leave before the address is validated. They may not use up what the
/// handshake needs if its first flight is lost: half of the limit is kept for probe timeouts.
#[derive(Debug)]
pub(super) struct AmplificationLimit {
    /// None once the address is validated.
    left_bytes: Option<u64>,
    /// What of it is kept, if there is early data.
    reserve_bytes: Option<u64>,
}

impl AmplificationLimit {
    /// Of a client that has sent so much.
    pub(super) fn new(is_validated: bool, received_bytes: usize) -> Self {
        let left_bytes = (!is_validated).then_some(0);
        let mut limit = Self {
            left_bytes,
            reserve_bytes: None,
        };
        limit.on_received(received_bytes);
        limit
    }

    pub(super) fn on_received(&mut self, bytes: usize) {
        let more = FACTOR * bytes as u64;
        if let Some(left) = &mut self.left_bytes {
            *left += more;
        }
        if let Some(reserve) = &mut self.reserve_bytes {
            *reserve += more / 2;
        }
    }

    /// Early data is accepted.
    pub(super) fn on_early_data(&mut self) {
        self.reserve_bytes = self.left_bytes.map(|left| left / 2);
    }

    /// A probe may be due.
    pub(super) fn on_timeout(&mut self, datagram_bytes: usize) {
        if let Some(reserve) = &mut self.reserve_bytes {
            *reserve = reserve.saturating_sub(PROBE_DATAGRAMS * datagram_bytes as u64);
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
            Some(left) => {
                let left = left.saturating_sub(self.reserve_bytes.unwrap_or(0));
                of.min((left / datagram_bytes as u64) as usize)
            }
            None => of,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_is_kept_for_probes_while_early_data_is_answered() {
        let mut limit = AmplificationLimit::new(false, 4000);
        assert_eq!(limit.datagrams_max(1000, 44), 12);
        limit.on_early_data();
        assert_eq!(limit.datagrams_max(1000, 44), 6);
        limit.on_sent(6000);
        assert_eq!(limit.datagrams_max(1000, 44), 0);
        limit.on_timeout(1000);
        assert_eq!(limit.datagrams_max(1000, 44), 2);
        limit.on_sent(2000);
        assert_eq!(limit.datagrams_max(1000, 44), 0);
        limit.on_received(2000);
        assert_eq!(limit.datagrams_max(1000, 44), 3);
        for _ in 0..4 {
            limit.on_timeout(1000);
        }
        assert_eq!(
            limit.datagrams_max(1000, 44),
            10,
            "never more than the limit"
        );
        limit.on_validated();
        assert_eq!(limit.datagrams_max(1000, 44), 44);
    }
}
