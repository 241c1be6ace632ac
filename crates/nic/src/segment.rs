//! The header of each superpacket of a SEND.

use contract::limits::HEADER_BYTES_MAX;
use port::Offload;
use wire::frame::HeaderMut;
use wire::tcp::Flags;

use crate::job::Job;

/// A superpacket's place in its SEND.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Payload bytes of the SEND before it.
    pub(crate) start: usize,
    /// Its own payload bytes.
    pub(crate) len: usize,
    /// No other follows.
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

/// What belongs on the first packet of a SEND only: SYN, and CWR (RFC 3168 §6.1.2).
const FIRST_ONLY: Flags = Flags(Flags::SYN.0 | Flags::CWR.0);

/// What belongs on the last packet of a SEND only.
const LAST_ONLY: Flags = Flags(Flags::FIN.0 | Flags::PSH.0);

/// Makes the header of the superpacket at `place`, departing at `departure_us`. `None` if the packet
/// would be too long for IP, which [`Job::accept`] rules out.
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

/// By how much TSval must advance so that it names the millisecond of the departure (IO-TCP §3.5): the
/// time spent here then does not count as round-trip time. Never backwards, in the arithmetic of
/// RFC 7323 §5.2 neither.
fn milliseconds_late(job: &Job, departure_us: u64) -> u32 {
    let waited_us = departure_us.saturating_sub(job.issued_us);
    let late_ms = waited_us.saturating_add(u64::from(job.tsval_fraction_us)) / 1000;
    late_ms.min(i32::MAX as u64) as u32
}
