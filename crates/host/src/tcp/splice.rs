//! Splices: two connections that become one in a NIC stack ([`contract::splicing`]).
//!
//! 1. [`TcpLayer::splice`] removes both connections from the table of connections, so that their
//!    frames arrive here, and from their application, which has moved all that it had read.
//! 2. The host holds frames that bring more. It moves unread data to the other connection, and
//!    waits until all queued data is acknowledged. Once both are quiet, SPLICE goes to a NIC
//!    worker, and the held frames follow.
//! 3. From then on each frame goes down by FRAME. The host's connections stand still.
//!
//! The host gives up a join that takes too long: it handles the held frames as if they had just
//! arrived, and the application continues to copy. The same happens when the NIC worker refuses,
//! and after UNSPLICE.
//!
//! A NIC worker has only soft state: its replacement gets SPLICE again. Without any, the
//! connections end: the host does not know what their peers have acknowledged to each other, and a
//! guess could cost bytes. Their next segments get an RST.

mod join;
mod leave;

use std::time::Duration;

use contract::limits::{FRAME_BYTES_MAX, HEADER_BYTES_MAX};
use contract::splicing::{SpliceLeg, SpliceTimestamps};
use contract::{Command, Event, FlowId};
use wire::frame::{TcpPacket, TcpTemplate, pieces};
use wire::tcp::{Flags, Header, Segment};

use crate::app::AppEvent;
use crate::ground::Ground;
use crate::ground::workers::OwnedSplice;
use crate::splicing::SpliceEvent;
use crate::tables::splices::{Place, Side, Splice, Splices, Stage};
use crate::tables::tuple::Tuple;
use crate::tcp::TcpLayer;

/// Longest headers of a frame, in bytes: Ethernet (14), IPv6 (40) and TCP (60).
const HEADERS_BYTES_MAX: usize = 114;

/// A smaller "too big" is ignored (the table in `tcp`): MTUs of IPv4 and IPv6, in bytes.
const MTUS_MIN: [u32; 2] = [552, 1280];

const BOTH: [Side; 2] = [0, 1];

/// The state of splicing.
#[derive(Debug)]
pub(crate) struct Splicing {
    pub(crate) splices: Splices,
    /// No splice begins before this time, in microseconds.
    from_us: u64,
}

impl Splicing {
    pub(crate) fn new(secret: &[u8; 16]) -> Splicing {
        Splicing {
            splices: Splices::new(secret),
            from_us: 0,
        }
    }
}

impl TcpLayer {
    /// True if there are splices.
    pub(crate) fn has_splices(&self) -> bool {
        self.splicing.splices.len() > 0
    }

    /// Handles a router's "too big" for a packet to the peer of a leg. The NIC worker knows whether
    /// the message quotes data in flight. If so, it reports that, and cuts later segments and
    /// retransmissions to fit. Dropped if the ring is full: the next such packet brings the next
    /// message.
    #[cold]
    #[inline(never)]
    pub(crate) fn on_too_big_for_splice(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        tuple: &Tuple,
        mtu: u32,
        quoted_seq: u32,
    ) {
        let Some((place, side)) = self.splicing.splices.by_tuple(tuple) else {
            return;
        };
        let Some(splice) = self.splicing.splices.get(place) else {
            return;
        };
        let leg = &splice.legs[side];
        if splice.stage == Stage::Joining {
            let stream = leg.stream;
            if let Some(entry) = self.connections.by_stream_mut(stream) {
                let handle = entry.handle();
                self.on_too_big(ground, now_us, handle, mtu, quoted_seq);
            }
            return;
        }
        let Some(numbers) = &leg.numbers else {
            return;
        };
        let mss = mss_of(mtu, tuple.local.is_ipv6(), numbers.timestamps.is_some());
        let nic = &mut ground.workers[splice.worker];
        if mss >= numbers.mss || !nic.has_room() {
            return;
        }
        let sent = nic.channel.send(&Command::SpliceMss {
            flow: splice.flow(),
            leg: side as u8,
            mss,
            seq: quoted_seq,
        });
        debug_assert!(sent.is_ok(), "there was room");
    }

    /// Handles an event of a splice. False if it contradicts the host's state.
    #[cold]
    #[inline(never)]
    pub(crate) fn on_splice_event(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        worker: usize,
        event: &Event,
    ) -> bool {
        match *event {
            Event::SpliceRefused { flow, reason } => {
                self.on_splice_refused(ground, now_us, worker, flow, reason)
            }
            Event::SpliceProgress { ref progress } => {
                self.on_splice_progress(ground, worker, progress)
            }
            Event::SpliceMssReduced { flow, leg, mss } => {
                self.on_splice_mss_reduced(ground, now_us, worker, (flow, leg, mss))
            }
            Event::SpliceEnded {
                ref outcome,
                reason,
            } => self.on_splice_ended(ground, now_us, worker, outcome, reason),
            Event::Unspliced { ref outcome } => self.on_unspliced(ground, now_us, worker, outcome),
            _ => false,
        }
    }

    /// A NIC worker sends shorter packets to the peer of a leg: the connections are to come back,
    /// and the host discovers the path's MTU, with its own checks. False if no splice can have
    /// ended.
    fn on_splice_mss_reduced(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        worker: usize,
        (flow, leg, mss): (FlowId, u8, u16),
    ) -> bool {
        let place = self.spliced_by(worker, flow);
        let splice = place.and_then(|place| self.splicing.splices.get_mut(place));
        let leg = splice.and_then(|it| it.legs.get_mut(usize::from(leg)));
        if let Some(leg) = leg
            && let Some(numbers) = leg.numbers.as_mut().filter(|it| mss < it.mss)
        {
            numbers.mss = mss;
            let stream = leg.stream;
            ground.counters.mtus_reduced += 1;
            self.unsplice(ground, now_us, stream);
        }
        self.may_be_late(ground)
    }

    /// Handles a segment of no connection of the table: true if it belongs to a splice.
    #[cold]
    #[inline(never)]
    pub(crate) fn on_spliced(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        packet: &TcpPacket<'_>,
        bytes: &[u8],
    ) -> bool {
        let Some((place, side)) = self.splicing.splices.by_tuple(&Tuple::of(packet)) else {
            return false;
        };
        let splice = self.splicing.splices.get(place);
        if splice.is_some_and(|splice| splice.stage == Stage::Joining) {
            self.on_joining_segment(ground, now_us, (place, side), &packet.segment, bytes);
        } else {
            self.note_fin(place, side, &packet.segment);
            self.hand_on_spliced(ground, place, side, bytes);
        }
        true
    }

    /// Notes a FIN that went through: a replacement NIC stack has to know of it.
    pub(crate) fn note_fin(&mut self, place: Place, side: Side, segment: &Segment<'_>) {
        let header = &segment.header;
        if header.flags.contains(Flags::FIN)
            && let Some(splice) = self.splicing.splices.get_mut(place)
        {
            let end = header.seq.wrapping_add(segment.payload.len() as u32 + 1);
            splice.legs[side].fin_end = Some(end);
        }
    }

    /// Hands a frame of a leg to the NIC worker. A frame merged by GRO goes in pieces that fit the
    /// other leg.
    pub(crate) fn hand_on_spliced(
        &mut self,
        ground: &mut Ground,
        place: Place,
        side: Side,
        bytes: &[u8],
    ) {
        let Some(splice) = self.splicing.splices.get(place) else {
            return;
        };
        let nic = &mut ground.workers[splice.worker];
        let counters = &mut ground.counters;
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

    /// SPLICE for a splice with known numbers.
    fn splice_command(
        &self,
        ground: &Ground,
        splice: &Splice,
        is_again: bool,
    ) -> Option<Box<OwnedSplice>> {
        let mut headers = [[0; HEADER_BYTES_MAX]; 2];
        let mut header_bytes = [0; 2];
        let mut legs = [None, None];
        for side in BOTH {
            let leg = &splice.legs[side];
            let Tuple { local, remote } = leg.tuple;
            let template = TcpTemplate {
                traffic_class: leg.traffic_class,
                ..TcpTemplate::new(ground.link.mac, leg.mac, local, remote)
            };
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

    /// Reports an event of a splice to its application.
    fn tell_of_splice(&mut self, ground: &mut Ground, place: Place, event: SpliceEvent) {
        if let Some(splice) = self.splicing.splices.get(place)
            && let [first, _] = &splice.legs
            && !first.is_let_go
        {
            let event = AppEvent::Splice(event);
            ground.app_events.push_back((first.stream, event));
        }
    }

    /// The same for both connections of a splice.
    pub(crate) fn clear_flows_of(&self, ground: &Ground, place: Place) {
        if let Some(splice) = self.splicing.splices.get(place) {
            for leg in &splice.legs {
                ground.clear_flow(&leg.tuple);
            }
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
