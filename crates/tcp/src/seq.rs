//! Sequence numbers: 32 bits on the wire, 64 bits inside.
//!
//! Each direction of a connection has a [`SeqSpace`]. Inside it everything is a *position*:
//! position 0 is the SYN, position 1 the first byte of the stream, and the FIN follows the last
//! byte. Positions are `u64` and never wrap, so they compare as plain integers, and a stream may be
//! longer than 4 GiB. Only this file knows that sequence numbers wrap (RFC 9293 §3.4).

/// One direction's sequence numbers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SeqSpace {
    /// ISS or IRS: the sequence number of the SYN.
    initial: u32,
}

impl SeqSpace {
    pub(crate) const fn new(initial: u32) -> SeqSpace {
        SeqSpace { initial }
    }

    /// Maps a position to this sequence number from now on, and all others accordingly.
    pub(crate) const fn place(&mut self, position: u64, seq: u32) {
        self.initial = seq.wrapping_sub(position as u32);
    }

    /// Returns the sequence number of a position on the wire.
    pub(crate) const fn wire(self, position: u64) -> u32 {
        self.initial.wrapping_add(position as u32)
    }

    /// Returns the position of a sequence number from the wire: of all possible ones, the one
    /// nearest to `reference`. Negative if it lies before the SYN.
    pub(crate) const fn position(self, seq: u32, reference: u64) -> i64 {
        let distance = seq.wrapping_sub(self.wire(reference)) as i32;
        reference as i64 + distance as i64
    }
}

/// Returns `a < b` for timestamps and other wire numbers that wrap (RFC 7323 §5.2: `b - a` is in
/// (0, 2^31)).
pub(crate) const fn wraps_before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_survive_the_wrap_of_sequence_numbers() {
        let space = SeqSpace::new(u32::MAX - 1);
        assert_eq!(space.wire(0), u32::MAX - 1);
        assert_eq!(space.wire(2), 0);
        assert_eq!(space.position(0, 1), 2);
        assert_eq!(space.position(u32::MAX - 2, 0), -1);
        let far = (7 << 32) + 5;
        for distance in [-(1i64 << 31), -1, 0, 1, (1 << 31) - 1] {
            let position = far + distance;
            assert_eq!(
                space.position(space.wire(position as u64), far as u64),
                position
            );
        }
    }

    /// Covers: RFC 9293 §3.4
    #[test]
    fn wire_numbers_compare_modulo_their_size() {
        assert!(wraps_before(1, 2));
        assert!(!wraps_before(2, 2));
        assert!(!wraps_before(3, 2));
        assert!(wraps_before(u32::MAX, 0));
        assert!(!wraps_before(0, u32::MAX));
    }
}
