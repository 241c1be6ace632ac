//! The header of each superpacket of a SEND or QSEND.

use contract::limits::HEADER_BYTES_MAX;
use netdev::Offload;
use wire::frame::{HeaderMut, UdpHeaderMut};
use wire::tcp::Flags;

use crate::job::Job;

/// A superpacket's place in its SEND.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Payload bytes of the SEND before it.
    pub(crate) start: usize,
    /// Its own payload bytes.
    pub(crate) len: usize,
    /// Whether it is the SEND's last.
    pub(crate) last: bool,
}

/// A finished header.
#[derive(Debug)]
pub(crate) struct Header {
    bytes: [u8; HEADER_BYTES_MAX],
    len: usize,
    pub(crate) offload: Offload,
}

impl Header {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Flags of the first packet of a SEND only: SYN, and CWR (RFC 3168 §6.1.2).
const FIRST_ONLY: Flags = Flags(Flags::SYN.0 | Flags::CWR.0);

/// Flags of the last packet of a SEND only.
const LAST_ONLY: Flags = Flags(Flags::FIN.0 | Flags::PSH.0);

/// Makes the header of the superpacket at `place`, departing at `departure_us`. `None` if the
/// packet would be too long for IP, which [`Job::accept`] rules out.
#[inline]
pub(crate) fn header(job: &Job, place: Place, departure_us: u64) -> Option<Header> {
    let mut bytes = [0; HEADER_BYTES_MAX];
    let len = job.header().len();
    bytes[..len].copy_from_slice(job.header());
    let mut header = HeaderMut::parse(&mut bytes[..len]).ok()?;

    let mut flags = header.flags();
    if place.start > 0 {
        // SYN takes a sequence number of its own (RFC 9293 §3.4).
        let syn = u32::from(flags.contains(Flags::SYN));
        // At most SEND_BYTES_MAX, so no bits are lost.
        let ahead = place.start as u32 + syn;
        header.set_seq(header.seq().wrapping_add(ahead));
        flags = Flags(flags.0 & !FIRST_ONLY.0);
        // The port numbers the packets of a superpacket from the first one on.
        let packets = place.start / usize::from(job.mss);
        if let Some(identification) = header.identification() {
            header.set_identification(identification.wrapping_add(packets as u16));
        }
    }
    if !place.last {
        flags = Flags(flags.0 & !LAST_ONLY.0);
    }
    header.set_flags(flags);
    if let Some(value) = header.timestamp_value() {
        let late = milliseconds_late(job, departure_us);
        header.set_timestamp_value(value.wrapping_add(late));
    }
    header.finish(place.len).ok()?;

    let offload = Offload::Tcp {
        tcp_offset: header.tcp_offset() as u16,
        mss: job.mss,
        ipv6: header.ipv6(),
    };
    Some(Header {
        bytes,
        len,
        offload,
    })
}

/// Makes the header of the superpacket of datagrams at `place`. `None` if the packet would be too
/// long for IP, which [`Job::accept_datagrams`] rules out.
pub(crate) fn datagrams_header(job: &Job, place: Place) -> Option<Header> {
    let mut bytes = [0; HEADER_BYTES_MAX];
    let len = job.header().len();
    bytes[..len].copy_from_slice(job.header());
    let mut header = UdpHeaderMut::parse(&mut bytes[..len]).ok()?;
    if let Some(identification) = header.identification() {
        // The port numbers the packets of a superpacket from the first one on.
        let before = place.start / usize::from(job.mss);
        header.set_identification(identification.wrapping_add(before as u16));
    }
    header.finish(place.len).ok()?;
    let offload = Offload::Udp {
        udp_offset: header.udp_offset() as u16,
        payload_bytes: job.mss,
        ipv6: header.ipv6(),
    };
    Some(Header {
        bytes,
        len,
        offload,
    })
}

/// Returns the milliseconds by which TSval must advance so that it gives the time of the departure
/// (IO-TCP §3.5): the time spent here then does not count as round-trip time. Never backwards, nor
/// in the arithmetic of RFC 7323 §5.2.
fn milliseconds_late(job: &Job, departure_us: u64) -> u32 {
    let waited_us = departure_us.saturating_sub(job.issued_us);
    let late_ms = waited_us.saturating_add(u64::from(job.tsval_fraction_us)) / 1000;
    late_ms.min(i32::MAX as u64) as u32
}

#[cfg(test)]
mod tests {
    use contract::{FlowId, Segment, Send, SendId};
    use wire::frame::TcpTemplate;
    use wire::tcp;

    use super::*;
    use crate::files::Files;

    fn job(flags: Flags, payload: &[u8]) -> Job {
        let template = TcpTemplate::new(
            [2; 6],
            [4; 6],
            "10.0.0.1:80".parse().unwrap(),
            "10.0.0.2:5000".parse().unwrap(),
        );
        let header = tcp::Header {
            seq: 1000,
            flags,
            ..tcp::Header::default()
        };
        let mut buffer = [0; HEADER_BYTES_MAX];
        let len = template.write(&header, &mut buffer).unwrap();
        HeaderMut::parse(&mut buffer[..len])
            .unwrap()
            .set_identification(0xfffe);
        let send = Send {
            id: SendId(1),
            flow: FlowId(1),
            stream_offset: 0,
            acked_offset: 0,
            issued_us: 0,
            not_before_us: 0,
            tsval_fraction_us: 0,
            follow_bytes: 0,
            mss: 100,
            header: &buffer[..len],
            segments: [Segment::Inline(payload)].into(),
        };
        let mut job = *Job::new();
        job.accept(&send, |_| 540, &Files::new(), None)
            .expect("a good SEND");
        job
    }

    fn place(start: usize, len: usize, last: bool) -> Place {
        Place { start, len, last }
    }

    fn parsed(header: &Header) -> (u32, Flags, u16) {
        let mut bytes = header.bytes().to_vec();
        let header = HeaderMut::parse(&mut bytes).unwrap();
        (
            header.seq(),
            header.flags(),
            header.identification().unwrap(),
        )
    }

    #[test]
    fn superpackets_hold_whole_packets() {
        assert_eq!(job(Flags::ACK, &[0; 1000]).superpacket_payload, 500);
    }

    #[test]
    fn syn_is_on_the_first_packet_and_takes_a_sequence_number() {
        let job = job(Flags::SYN | Flags::FIN, &[0; 900]);
        let first = header(&job, place(0, 500, false), 0).unwrap();
        assert_eq!(parsed(&first), (1000, Flags::SYN, 0xfffe));
        let last = header(&job, place(500, 400, true), 0).unwrap();
        assert_eq!(parsed(&last), (1501, Flags::FIN, 3));
    }

    #[test]
    fn a_clock_that_leaps_moves_the_timestamp_by_less_than_half_its_range() {
        let job = job(Flags::ACK, b"");
        assert_eq!(milliseconds_late(&job, u64::MAX), i32::MAX as u32);
    }
}
