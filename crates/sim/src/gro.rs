//! Generic receive offload of a client's network card: consecutive packets are merged before TCP
//! sees them.

use wire::ip::Ecn;
use wire::tcp::{Flags, Header, Segment};

/// Longest payload of a merged packet, in bytes.
const MERGED_BYTES_MAX: usize = 65_000;

/// Merged packets that wait for more.
#[derive(Debug)]
pub(crate) struct Merged {
    /// Header of the first packet.
    header: Header,
    ecn: Ecn,
    payload: Vec<u8>,
    /// Payload of each packet but the last, in bytes.
    packet_bytes: usize,
    /// Latest time at which it is handed up, complete or not.
    pub(crate) until_us: u64,
}

impl Merged {
    /// Starts a merge with a packet; `None` if the packet cannot be merged.
    pub(crate) fn begin(segment: &Segment<'_>, until_us: u64) -> Option<Merged> {
        let is_plain = segment.header.flags == Flags::ACK;
        (is_plain && !segment.payload.is_empty()).then(|| Merged {
            header: segment.header,
            ecn: segment.ecn,
            payload: segment.payload.to_vec(),
            packet_bytes: segment.payload.len(),
            until_us,
        })
    }

    /// Adds a packet that continues the sequence and differs in nothing else. False if it does not
    /// fit.
    pub(crate) fn add(&mut self, segment: &Segment<'_>) -> bool {
        let Header { seq, flags, .. } = self.header;
        let next = Header {
            seq: seq.wrapping_add(self.payload.len() as u32),
            flags: Flags(segment.header.flags.0 & !Flags::PSH.0),
            ..self.header
        };
        let same = Header {
            flags,
            ..segment.header
        };
        let len = segment.payload.len();
        let fits = (1..=self.packet_bytes).contains(&len)
            && !self.is_complete()
            && self.payload.len() + len <= MERGED_BYTES_MAX;
        if !fits || next.flags != Flags::ACK || next != same || segment.ecn != self.ecn {
            return false;
        }
        self.payload.extend_from_slice(segment.payload);
        self.header.flags = segment.header.flags;
        true
    }

    /// Reports whether no more can be added: the last packet was short, or pushed.
    pub(crate) fn is_complete(&self) -> bool {
        self.header.flags != Flags::ACK || !self.payload.len().is_multiple_of(self.packet_bytes)
    }

    /// Returns the merged segment for TCP.
    pub(crate) fn segment(&self) -> Segment<'_> {
        Segment {
            header: self.header,
            payload: &self.payload,
            ecn: self.ecn,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(seq: u32, flags: Flags, payload: &[u8]) -> Segment<'_> {
        let header = Header {
            seq,
            flags,
            ..Header::default()
        };
        Segment {
            header,
            payload,
            ecn: Ecn::NotEct,
        }
    }

    #[test]
    fn packets_in_order_become_one_until_one_is_short() {
        let mut merged = Merged::begin(&segment(u32::MAX, Flags::ACK, b"ab"), 7).unwrap();
        assert!(merged.add(&segment(1, Flags::ACK, b"cd")));
        assert!(!merged.is_complete());
        assert!(merged.add(&segment(3, Flags::ACK, b"e")));
        assert!(merged.is_complete() && !merged.add(&segment(4, Flags::ACK, b"f")));
        let expected = segment(u32::MAX, Flags::ACK, b"abcde");
        assert_eq!((merged.segment(), merged.until_us), (expected, 7));
    }

    #[test]
    fn a_push_ends_what_is_merged() {
        let mut merged = Merged::begin(&segment(1, Flags::ACK, b"ab"), 0).unwrap();
        let pushed = Flags::ACK | Flags::PSH;
        assert!(merged.add(&segment(3, pushed, b"cd")));
        assert!(merged.is_complete());
        assert_eq!(merged.segment(), segment(1, pushed, b"abcd"));
    }

    #[test]
    fn what_differs_in_anything_is_not_merged() {
        let mut merged = Merged::begin(&segment(1, Flags::ACK, b"ab"), 0).unwrap();
        assert!(!merged.add(&segment(4, Flags::ACK, b"cd")), "a gap");
        assert!(!merged.add(&segment(3, Flags::ACK, b"")), "no payload");
        assert!(!merged.add(&segment(3, Flags::ACK, b"cde")), "longer");
        let finishes = Flags::ACK | Flags::FIN;
        assert!(!merged.add(&segment(3, finishes, b"cd")), "FIN");
        let mut other = segment(3, Flags::ACK, b"cd");
        other.header.ack = 9;
        assert!(!merged.add(&other), "another acknowledgment");
        other = segment(3, Flags::ACK, b"cd");
        other.ecn = Ecn::Ce;
        assert!(!merged.add(&other), "a mark");
        assert!(Merged::begin(&segment(1, finishes, b"ab"), 0).is_none());
    }
}
