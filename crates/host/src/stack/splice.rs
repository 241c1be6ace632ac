//! Splices: two connections that become one in a NIC stack ([`contract::splicing`]).
//!
//! 1. [`Stack::splice`] takes both connections off the table of connections, so that their frames
//!    come here, and away from their application, which has moved all that it had read.
//! 2. Frames that bring more are held. What is unread is moved to the other connection, and all
//!    that is queued is sent and acknowledged. As soon as both are quiet, SPLICE goes to a NIC
//!    worker, and the held frames follow.
//! 3. From then on each frame goes down by FRAME. The connections here stand still.
//!
//! A join that takes too long is given up; the held frames are heard then, as if they had just
//! arrived, and the application goes on copying. So it is when the NIC worker refuses, and after
//! UNSPLICE.
//!
//! What a NIC worker has is soft state: one that takes the place of another gets SPLICE again.
//! Without any, the connections end: what their peers have acknowledged to each other is not known
//! here, and a guess could cost bytes. Their next segments are answered with RST.

mod join;
mod leave;

use std::time::Duration;

use contract::Command;
use contract::limits::{FRAME_BYTES_MAX, HEADER_BYTES_MAX};
use contract::splicing::{SpliceLeg, SpliceTimestamps};
use wire::frame::{TcpPacket, TcpTemplate, pieces};
use wire::tcp::{Flags, Header, Segment};

use super::Stack;
use super::workers::{Deferred, OwnedSplice};
use crate::app::AppEvent;
use crate::splicing::SpliceEvent;
use crate::tables::splices::{Place, Side, Splice, Splices, Stage};
use crate::tables::tuple::Tuple;

/// Longest headers of a frame, in bytes: Ethernet (14), IPv6 (40) and TCP (60).
const HEADERS_BYTES_MAX: usize = 114;

/// "Too big" below is not believed (the table in `tcp`): MTUs of IPv4 and IPv6, in bytes.
const MTUS_MIN: [u32; 2] = [552, 1280];

const BOTH: [Side; 2] = [0, 1];

/// The state of splicing.
#[derive(Debug)]
pub(super) struct Splicing {
    pub(super) splices: Splices,
    /// No splice begins before, in microseconds.
    from_us: u64,
}

impl Splicing {
    pub(super) fn new(secret: &[u8; 16]) -> Splicing {
        Splicing {
            splices: Splices::new(secret),
            from_us: 0,
        }
    }
}

impl Stack {
    /// True if there are any.
    pub(super) fn has_splices(&self) -> bool {
        self.splicing.splices.len() > 0
    }

    /// A router says that a packet to the peer of a leg is too big. Whether it quotes what has
    /// passed, the NIC worker alone could know. What passes from now on is cut to what fits, and
    /// with it what was lost; the host finds out about the path, with checks of its own, when it
    /// has the connections back.
    #[cold]
    #[inline(never)]
    pub(super) fn on_too_big_for_splice(
        &mut self,
        now_us: u64,
        tuple: &Tuple,
        mtu: u32,
        quoted_seq: u32,
    ) {
        let Some((place, side)) = self.splicing.splices.by_tuple(tuple) else {
            return;
        };
        let Some(splice) = self.splicing.splices.get_mut(place) else {
            return;
        };
        let (leg, worker) = (&mut splice.legs[side], splice.worker);
        let stream = leg.stream;
        if splice.stage == Stage::Joining {
            if let Some(entry) = self.connections.by_stream_mut(stream) {
                let handle = entry.handle();
                self.on_too_big(now_us, handle, mtu, quoted_seq);
            }
            return;
        }
        let Some(numbers) = &mut leg.numbers else {
            return;
        };
        let mss = mss_of(mtu, tuple.local.is_ipv6(), numbers.timestamps.is_some());
        if mss >= numbers.mss {
            return;
        }
        numbers.mss = mss;
        self.counters.mtus_reduced += 1;
        let mss = [0, 1].map(|side| splice.legs[side].numbers.map_or(mss, |it| it.mss));
        let flow = splice.flow();
        self.nics[worker].send_or_defer(Deferred::SpliceMss { flow, mss });
        self.unsplice(now_us, stream);
    }

    /// A segment that belongs to no connection of the table: true if it belongs to a splice.
    #[cold]
    #[inline(never)]
    pub(super) fn on_spliced(&mut self, now_us: u64, packet: &TcpPacket<'_>, bytes: &[u8]) -> bool {
        let Some((place, side)) = self.splicing.splices.by_tuple(&Tuple::of(packet)) else {
            return false;
        };
        let splice = self.splicing.splices.get(place);
        if splice.is_some_and(|splice| splice.stage == Stage::Joining) {
            self.on_joining_segment(now_us, (place, side), &packet.segment, bytes);
        } else {
            self.note_fin(place, side, &packet.segment);
            self.hand_on_spliced(place, side, bytes);
        }
        true
    }

    /// A NIC stack that takes the place of another has to know of a FIN that went through.
    pub(super) fn note_fin(&mut self, place: Place, side: Side, segment: &Segment<'_>) {
        let header = &segment.header;
        if header.flags.contains(Flags::FIN)
            && let Some(splice) = self.splicing.splices.get_mut(place)
        {
            let end = header.seq.wrapping_add(segment.payload.len() as u32 + 1);
            splice.legs[side].fin_end = Some(end);
        }
    }

    /// Gives a frame of a leg to the NIC worker. A frame that GRO has merged goes in pieces that
    /// fit the other leg.
    pub(super) fn hand_on_spliced(&mut self, place: Place, side: Side, bytes: &[u8]) {
        let Some(splice) = self.splicing.splices.get(place) else {
            return;
        };
        let nic = &mut self.nics[splice.worker];
        let counters = &mut self.counters;
        let mut hand_on = |bytes: &[u8]| {
            let is_sent = nic.has_room() && nic.channel.send(&Command::Frame { bytes }).is_ok();
            match is_sent {
                true => counters.frames_handed_on += 1,
                false => counters.frames_not_handed_on += 1,
            }
        };
        if bytes.len() <= FRAME_BYTES_MAX {
            return hand_on(bytes);
        }
        let numbers = &splice.legs[1 - side].numbers;
        let mss = numbers.map_or(usize::MAX, |numbers| numbers.mss.into());
        for piece in pieces(bytes, mss.min(FRAME_BYTES_MAX - HEADERS_BYTES_MAX)) {
            hand_on(&piece);
        }
    }

    /// SPLICE for a splice whose numbers are known.
    fn splice_command(&self, splice: &Splice, is_again: bool) -> Option<Box<OwnedSplice>> {
        let mut headers = [[0; HEADER_BYTES_MAX]; 2];
        let mut header_bytes = [0; 2];
        let mut legs = [None, None];
        for side in BOTH {
            let leg = &splice.legs[side];
            let Tuple { local, remote } = leg.tuple;
            let template = TcpTemplate::new(self.link.mac, leg.mac, local, remote);
            header_bytes[side] = template.write(&Header::default(), &mut headers[side])?;
            let numbers = leg.numbers?;
            legs[side] = Some(SpliceLeg {
                rcv_nxt: numbers.rcv_nxt,
                snd_nxt: numbers.snd_nxt,
                snd_window_bytes: numbers.snd_window_bytes,
                rcv_window_bytes: numbers.rcv_window_bytes,
                snd_shift: numbers.snd_shift,
                rcv_shift: numbers.rcv_shift,
                mss: numbers.mss.max(1),
                sack: numbers.sack,
                ecn: numbers.ecn,
                fin_end: leg.fin_end,
                timestamps: numbers
                    .timestamps
                    .map(|(value, recent)| SpliceTimestamps { value, recent }),
                header: &[],
            });
        }
        let ms = |limit: Option<Duration>| {
            let ms = limit.map_or(0, |limit| limit.as_millis().max(1));
            u32::try_from(ms).unwrap_or(u32::MAX)
        };
        let [first, second] = legs;
        Some(Box::new(OwnedSplice {
            splice: contract::Splice {
                flow: splice.flow(),
                legs: [first?, second?],
                is_again,
                passed_bytes: splice.passed_bytes,
                idle_ms: ms(splice.limits.idle),
                life_ms: ms(splice.limits.life),
            },
            headers,
            header_bytes,
        }))
    }

    /// Something has become of a splice: its application hears of it.
    fn tell_of_splice(&mut self, place: Place, event: SpliceEvent) {
        if let Some(splice) = self.splicing.splices.get(place)
            && let [first, _] = &splice.legs
            && !first.is_let_go
        {
            let event = AppEvent::Splice(event);
            self.app_events.push_back((first.stream, event));
        }
    }
}

/// Largest payload of a segment on a path of this MTU, in bytes.
fn mss_of(mtu: u32, ipv6: bool, timestamps: bool) -> u16 {
    let headers = if ipv6 { 60 } else { 40 };
    let options = if timestamps { 12 } else { 0 };
    let bytes = mtu.max(MTUS_MIN[usize::from(ipv6)]) - headers - options;
    u16::try_from(bytes).unwrap_or(u16::MAX)
}
