//! Resets: the answer to segments that belong to no connection (RFC 9293 §3.10.7.1), and those
//! that a connection owes its peer.

use wire::tcp::{Flags, Header, Segment};

/// A reset that is to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reset {
    /// <SEQ=boundary><CTL=RST>: we abort.
    Abort(Boundaries),
    /// <SEQ=SEG.ACK><CTL=RST>: the peer acknowledges data that was never sent.
    UnacceptableAck { seq: u32 },
}

/// Sequence numbers that the peer may expect next, the most likely first.
///
/// A peer accepts RST only at RCV.NXT. One ahead of RCV.NXT, but in the window, is answered with a
/// challenge ACK, unless one was sent a moment ago, and all others are dropped (RFC 5961 §3.2). So
/// a RST is numbered by departed data, not by SND.NXT, and there is one for each possible RCV.NXT
/// if no more of the data in flight arrives. A peer with another RCV.NXT still has an
/// acknowledgment to send; [`reset_for`] answers it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Boundaries {
    seqs: [u32; Boundaries::MAX],
    count: u8,
}

impl Boundaries {
    const MAX: usize = 4;

    /// Holds the first of `seqs`, and the others as far as they differ.
    pub(crate) fn new(seqs: [u32; 3]) -> Boundaries {
        let mut boundaries = Boundaries {
            seqs: [seqs[0]; Boundaries::MAX],
            count: 1,
        };
        for seq in &seqs[1..] {
            boundaries.add(*seq);
        }
        boundaries
    }

    /// Adds one, if it differs and there is room.
    pub(crate) fn add(&mut self, seq: u32) {
        let count = usize::from(self.count);
        if count < Boundaries::MAX && !self.seqs[..count].contains(&seq) {
            self.seqs[count] = seq;
            self.count += 1;
        }
    }

    /// Returns the first, and the others if there are any.
    pub(crate) fn split_first(mut self) -> (u32, Option<Boundaries>) {
        let first = self.seqs[0];
        self.seqs.rotate_left(1);
        self.count = self.count.saturating_sub(1);
        (first, (self.count > 0).then_some(self))
    }
}

/// Returns the reset that answers a segment without a connection. `None` if the segment is a reset
/// itself.
pub fn reset_for(segment: &Segment<'_>) -> Option<Header> {
    let header = &segment.header;
    // An incoming segment containing a RST is discarded.
    if header.flags.contains(Flags::RST) {
        return None;
    }
    let mut reset = Header {
        source_port: header.destination_port,
        destination_port: header.source_port,
        ..Header::default()
    };
    if header.flags.contains(Flags::ACK) {
        // If the ACK bit is on, <SEQ=SEG.ACK><CTL=RST>
        reset.seq = header.ack;
        reset.flags = Flags::RST;
    } else {
        // If the ACK bit is off, <SEQ=0><ACK=SEG.SEQ+SEG.LEN><CTL=RST,ACK>
        reset.ack = header.seq.wrapping_add(sequence_len(segment));
        reset.flags = Flags::RST | Flags::ACK;
    }
    Some(reset)
}

/// Returns SEG.LEN: the sequence numbers that a segment occupies, SYN and FIN included.
pub(crate) fn sequence_len(segment: &Segment<'_>) -> u32 {
    let flags = segment.header.flags;
    (segment.payload.len() as u32)
        .wrapping_add(u32::from(flags.contains(Flags::SYN)))
        .wrapping_add(u32::from(flags.contains(Flags::FIN)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(flags: Flags, payload: &[u8]) -> Segment<'_> {
        Segment {
            header: Header {
                source_port: 1,
                destination_port: 2,
                seq: u32::MAX,
                ack: 77,
                flags,
                ..Header::default()
            },
            payload,
            ecn: wire::ip::Ecn::NotEct,
        }
    }

    /// Covers: RFC 9293 §3.10.7.1
    #[test]
    fn syn_is_answered_with_a_reset_that_acknowledges_it() {
        let reset = reset_for(&segment(Flags::SYN, b"ab")).expect("a reset");
        assert_eq!((reset.source_port, reset.destination_port), (2, 1));
        assert_eq!(
            (reset.seq, reset.ack, reset.flags),
            (0, 2, Flags::RST | Flags::ACK)
        );
        let reset = reset_for(&segment(Flags::SYN | Flags::FIN, b"")).expect("a reset");
        assert_eq!(reset.ack, 1);
    }

    /// Covers: RFC 9293 §3.10.7.1
    #[test]
    fn ack_is_answered_with_a_reset_where_the_peer_expects_it() {
        let reset = reset_for(&segment(Flags::ACK | Flags::FIN, b"ab")).expect("a reset");
        assert_eq!((reset.seq, reset.ack, reset.flags), (77, 0, Flags::RST));
    }

    #[test]
    fn each_boundary_comes_once() {
        let all = |seqs| {
            let mut left = Some(Boundaries::new(seqs));
            std::iter::from_fn(move || {
                let (first, others) = left?.split_first();
                left = others;
                Some(first)
            })
            .collect::<Vec<_>>()
        };
        assert_eq!(all([7, 7, 7]), [7]);
        assert_eq!(all([7, 7, 5]), [7, 5]);
        assert_eq!(all([7, 5, 7]), [7, 5]);
        assert_eq!(all([7, 5, 5]), [7, 5]);
        assert_eq!(all([7, 6, 5]), [7, 6, 5]);
    }

    /// Covers: RFC 9293 §3.10.7.1
    #[test]
    fn rst_is_never_answered() {
        assert_eq!(reset_for(&segment(Flags::RST, b"")), None);
        assert_eq!(reset_for(&segment(Flags::RST | Flags::ACK, b"x")), None);
    }
}
