//! Packets with only an ACK frame that a later packet supersedes.
//!
//! The host gets the number, ECN field and arrival time of such a packet, but not its frame, if the
//! later one acknowledges all its ranges with ECN counts no lower. Either both or neither report
//! ECN counts, since a peer that stops has a path that loses marks (RFC 9000 §13.4.2). The host
//! loses the round-trip sample of the earlier ACK.

/// Frames (RFC 9000 §19).
const PADDING: u64 = 0x00;
const ACK: u64 = 0x02;
const ACK_ECN: u64 = 0x03;

/// Ranges to compare: a packet with more is kept as it is.
const RANGES_MAX: usize = 64;

/// The content of a packet with one ACK frame and padding.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct AckOnly {
    /// First and last number of each range, largest first.
    ranges: Vec<(u64, u64)>,
    /// Counts of ECT(0), ECT(1) and CE.
    ecn: Option<[u64; 3]>,
}

/// Takes a variable-length integer (RFC 9000 §16).
fn integer(bytes: &mut &[u8]) -> Option<u64> {
    let first = *bytes.first()?;
    let len = 1 << (first >> 6);
    let (taken, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    let start = u64::from(first & 0x3f);
    let tail = taken[1..].iter();
    Some(tail.fold(start, |value, byte| value << 8 | u64::from(*byte)))
}

impl AckOnly {
    /// Reads a plaintext. False if it has other frames or is malformed.
    pub(super) fn read(&mut self, mut plaintext: &[u8]) -> bool {
        self.ranges.clear();
        self.ecn = None;
        while !plaintext.is_empty() {
            let understood = match integer(&mut plaintext) {
                Some(PADDING) => Some(()),
                Some(kind @ (ACK | ACK_ECN)) if self.ranges.is_empty() => {
                    self.read_ack(kind == ACK_ECN, &mut plaintext)
                }
                _ => None,
            };
            if understood.is_none() {
                return false;
            }
        }
        !self.ranges.is_empty()
    }

    fn read_ack(&mut self, has_ecn: bool, rest: &mut &[u8]) -> Option<()> {
        let largest = integer(rest)?;
        let _delay = integer(rest)?;
        let more = integer(rest)?;
        if more >= RANGES_MAX as u64 {
            return None;
        }
        let mut first = largest.checked_sub(integer(rest)?)?;
        self.ranges.push((first, largest));
        for _ in 0..more {
            let last = first.checked_sub(integer(rest)?)?.checked_sub(2)?;
            first = last.checked_sub(integer(rest)?)?;
            self.ranges.push((first, last));
        }
        if has_ecn {
            self.ecn = Some([integer(rest)?, integer(rest)?, integer(rest)?]);
        }
        Some(())
    }

    /// True if this ACK, from a later packet, covers an earlier one.
    pub(super) fn supersedes(&self, earlier: &AckOnly) -> bool {
        let counts = match (earlier.ecn, self.ecn) {
            (None, None) => true,
            (Some(earlier), Some(later)) => earlier.iter().zip(&later).all(|(e, l)| e <= l),
            _ => false,
        };
        let mut ranges = self.ranges.iter().copied().peekable();
        counts
            && earlier.ranges.iter().all(|&(first, last)| {
                while ranges.next_if(|range| range.0 > last).is_some() {}
                let range = ranges.peek();
                range.is_some_and(|range| range.0 <= first && last <= range.1)
            })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn push(value: u64, out: &mut Vec<u8>) {
        match value {
            0..0x40 => out.push(value as u8),
            _ => out.extend((value as u16 | 0x4000).to_be_bytes()),
        }
    }

    /// An ACK frame of ascending ranges.
    fn frame(ranges: &[(u64, u64)], ecn: Option<[u64; 3]>) -> Vec<u8> {
        let mut out = Vec::new();
        push(if ecn.is_some() { ACK_ECN } else { ACK }, &mut out);
        let mut descending = ranges.iter().rev();
        let (mut first, last) = *descending.next().expect("a range");
        for value in [last, 99, ranges.len() as u64 - 1, last - first] {
            push(value, &mut out);
        }
        for (next_first, next_last) in descending {
            push(first - next_last - 2, &mut out);
            push(next_last - next_first, &mut out);
            first = *next_first;
        }
        ecn.iter()
            .flatten()
            .for_each(|count| push(*count, &mut out));
        out
    }

    fn read(plaintext: &[u8]) -> Option<AckOnly> {
        let mut acks = AckOnly::default();
        acks.read(plaintext).then_some(acks)
    }

    fn numbers(acks: &AckOnly) -> BTreeSet<u64> {
        let ranges = acks.ranges.iter();
        ranges.flat_map(|(first, last)| *first..=*last).collect()
    }

    #[test]
    fn only_packets_of_one_ack_are_read() {
        let ack = frame(&[(1, 3), (7, 7), (10, 300)], None);
        let acks = read(&ack).expect("an ACK");
        assert_eq!(acks.ranges, [(10, 300), (7, 7), (1, 3)]);
        assert_eq!(read(&[&[0, 0], &ack[..], &[0]].concat()), Some(acks));
        let ecn = read(&frame(&[(1, 3)], Some([9, 0, 500]))).expect("an ACK");
        assert_eq!(ecn.ecn, Some([9, 0, 500]));
        assert_eq!(read(&[]), None);
        assert_eq!(read(&[0, 0]), None, "nothing but padding");
        assert_eq!(read(&[&ack[..], &ack].concat()), None, "two of them");
        assert_eq!(read(&[&ack[..], &[1]].concat()), None, "PING");
        for len in 0..ack.len() {
            assert_eq!(read(&ack[..len]), None, "cut to {len} bytes");
        }
        // Below zero.
        assert_eq!(read(&[2, 5, 0, 0, 6]), None);
        assert_eq!(read(&[2, 5, 0, 1, 3, 1, 0]), None);
    }

    #[test]
    fn ecn_counts_must_not_go_back_nor_away() {
        let ack = |ecn| read(&frame(&[(1, 3)], ecn)).expect("an ACK");
        let (none, low, high) = (ack(None), ack(Some([1, 2, 3])), ack(Some([1, 2, 4])));
        assert!(high.supersedes(&low) && low.supersedes(&low) && none.supersedes(&none));
        assert!(!low.supersedes(&high) && !none.supersedes(&low) && !low.supersedes(&none));
    }

    fn ranges() -> impl Strategy<Value = Vec<(u64, u64)>> {
        prop::collection::vec((2..9u64, 0..6u64), 1..9).prop_map(|steps| {
            let mut at = 0;
            let ranges = steps.into_iter().map(|(gap, len)| {
                let first = at + gap;
                at = first + len;
                (first, at)
            });
            ranges.collect()
        })
    }

    proptest! {
        #[test]
        fn superseding_is_to_acknowledge_all_of_it(earlier in ranges(), later in ranges()) {
            let [earlier, later] = [earlier, later].map(|ranges| {
                read(&frame(&ranges, None)).expect("an ACK")
            });
            let is_all = numbers(&earlier).is_subset(&numbers(&later));
            prop_assert_eq!(later.supersedes(&earlier), is_all);
            prop_assert!(later.supersedes(&later));
        }

        #[test]
        fn any_bytes_may_come(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Some(acks) = read(&bytes) {
                prop_assert!(acks.ranges.windows(2).all(|pair| pair[1].1 + 1 < pair[0].0));
            }
        }
    }
}
