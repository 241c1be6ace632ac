//! The amplification limit: how much to send to a client whose address is not validated.

/// Bytes that may be sent per byte received (RFC 9000 §8.1).
const FACTOR: u64 = 3;

/// Datagrams that a probe timeout sends at most (RFC 9002 §6.2.4).
const PROBE_DATAGRAMS: u64 = 2;

/// The limit of one connection. quinn-proto has the same bound, but exceeds it by up to a datagram:
/// as long as a byte is left, it fills one.
///
/// Answers to early data leave before the address is validated. They must not use up what the
/// handshake needs if its first flight is lost: the bytes of one probe timeout are reserved, but no
/// more than half of what is left.
#[derive(Debug)]
pub(super) struct AmplificationLimit {
    /// None once the address is validated.
    left_bytes: Option<u64>,
    has_early_data: bool,
    /// A timer has expired: the next datagrams may be probes.
    may_probe: bool,
}

impl AmplificationLimit {
    /// The limit for a client that has sent `received_bytes`.
    pub(super) fn new(is_validated: bool, received_bytes: usize) -> Self {
        let left_bytes = (!is_validated).then_some(0);
        let mut limit = Self {
            left_bytes,
            has_early_data: false,
            may_probe: false,
        };
        limit.on_received(received_bytes);
        limit
    }

    pub(super) fn on_received(&mut self, bytes: usize) {
        if let Some(left) = &mut self.left_bytes {
            *left += FACTOR * bytes as u64;
        }
    }

    pub(super) fn on_early_data(&mut self) {
        self.has_early_data = true;
    }

    /// No more answers: the rest is for CONNECTION_CLOSE.
    pub(super) fn on_over(&mut self) {
        self.has_early_data = false;
    }

    pub(super) fn on_timeout(&mut self) {
        self.may_probe = true;
    }

    /// Datagrams due after a timer have been built.
    pub(super) fn on_asked(&mut self) {
        self.may_probe = false;
    }

    pub(super) fn on_validated(&mut self) {
        self.left_bytes = None;
    }

    pub(super) fn on_sent(&mut self, bytes: usize) {
        if let Some(left) = &mut self.left_bytes {
            *left = left.saturating_sub(bytes as u64);
        }
    }

    /// How many of `of` datagrams of this length may be sent next. Less than a whole one counts as
    /// none: quinn-proto builds no shorter ones on request.
    pub(super) fn datagrams_max(&self, datagram_bytes: usize, of: usize) -> usize {
        let Some(left) = self.left_bytes else {
            return of;
        };
        let datagram_bytes = datagram_bytes as u64;
        let probe_bytes = PROBE_DATAGRAMS * datagram_bytes;
        let may_use = if !self.has_early_data {
            left
        } else if self.may_probe {
            left.min(probe_bytes)
        } else {
            left - probe_bytes.min(left / 2)
        };
        of.min((may_use / datagram_bytes) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn something_is_kept_for_probes_while_early_data_is_answered() {
        let mut limit = AmplificationLimit::new(false, 4000);
        assert_eq!(limit.datagrams_max(1000, 44), 12);
        limit.on_early_data();
        assert_eq!(limit.datagrams_max(1000, 44), 10);
        limit.on_sent(9000);
        assert_eq!(limit.datagrams_max(1000, 44), 1, "half of what is left");
        limit.on_sent(1000);
        for _ in 0..2 {
            limit.on_timeout();
            assert_eq!(limit.datagrams_max(1000, 44), 2);
            limit.on_asked();
            assert_eq!(limit.datagrams_max(1000, 44), 1, "a probe for each timeout");
        }
        limit.on_over();
        assert_eq!(limit.datagrams_max(1000, 44), 2);
        limit.on_sent(2000);
        limit.on_timeout();
        assert_eq!(
            limit.datagrams_max(1000, 44),
            0,
            "never more than the limit"
        );
        limit.on_validated();
        assert_eq!(limit.datagrams_max(1000, 44), 44);
    }
}
