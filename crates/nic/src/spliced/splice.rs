//! One splice: the translation of segments, and the state learned from them.
//!
//! The stream of each leg, the bytes that its peer sends, is counted from the join. A position is
//! the same for both peers; each has its own sequence number for it:
//!
//! ```text
//!           peer of leg 0                  position                peer of leg 1
//!  sends    legs[0].rcv_nxt + position  ◀── streams[0] ──▶  legs[1].snd_nxt + position
//!  takes    legs[0].snd_nxt + position  ◀── streams[1] ──▶  legs[1].rcv_nxt + position
//! ```

use std::ops::Range;

use contract::limits::PART_WINDOW_BYTES_MAX;
use contract::splicing::{Splice as Command, SpliceLeg, SpliceNumbers, SpliceTimestamps};
use wire::frame::TcpTemplate;
use wire::ip::Ecn;
use wire::tcp::{Flags, Header, Options, Segment, Timestamps};

use crate::packet::PacketHeader;

/// Distance beyond the known positions up to which a successor lets segments pass, in bytes: the
/// largest window (RFC 7323 §2.3).
pub(super) const UNKNOWN_MAX: i64 = 1 << 30;

/// Least window assumed for the age of segments, in bytes: data older than the largest window
/// belongs to no retransmission.
const WINDOW_MIN: i64 = 0xffff;

/// The two connections, by number.
pub(super) type Side = usize;

/// A connection at the join.
#[derive(Debug)]
struct Leg {
    template: TcpTemplate,
    rcv_nxt: u32,
    snd_nxt: u32,
    snd_shift: u8,
    rcv_shift: u8,
    mss: u16,
    sack: bool,
    timestamps: SpliceTimestamps,
}

/// Positions in the bytes that the peer of a leg sends. FIN counts one.
#[derive(Debug)]
struct Stream {
    /// Of the first byte that has not passed.
    passed: i64,
    /// Of the first byte that the receiver has not acknowledged.
    acked: i64,
    /// Of the first byte that the receiver does not take yet.
    edge: i64,
    /// End of the window that the host offered before the join: the sender may have sent up to
    /// here.
    reach: i64,
    /// The window that the receiver offered last.
    window: i64,
    /// The largest window so far, the host's included (RFC 5961 §5.2).
    window_max: i64,
    /// Behind FIN, if it has passed.
    finished: Option<i64>,
    /// `finished` is the host's report, and not more than a hint.
    is_hint: bool,
}

impl Stream {
    fn is_acked(&self) -> bool {
        self.acked >= self.passed
    }

    /// True if the receiver has no room for all passed bytes, though it may have offered it before
    /// (RFC 9293 §3.8.6).
    fn is_refused(&self) -> bool {
        self.acked + self.window < self.passed
    }

    /// Returns the end of the receiver's acceptable range: a receiver that has shrunk its window
    /// accepts nothing beyond it, acknowledgments included (RFC 9293 §3.10.7.4).
    fn acceptable(&self) -> i64 {
        self.passed.min(self.acked + self.window)
    }

    /// Returns the position of an acknowledgment that its sender has placed at `seq`.
    fn place_acknowledgment(&self, mut seq: i64, heard: Heard) -> i64 {
        if self.is_refused() {
            seq = seq.min(self.acceptable());
        }
        // A probe of a closed window, or of a silent peer, stands one below the next byte that the
        // receiver expects, and is answered for that alone (RFC 9293 §3.8.4, §3.8.6.1).
        let is_probe = seq + 1 == self.acked && !heard.is_news;
        if heard.is_newest && !is_probe {
            // A sender whose window has shrunk places it below the receiver's next byte, as long as
            // neither accepts the acknowledgments of the other.
            seq = seq.max(self.acked);
        }
        seq
    }

    /// Takes an acknowledgment and the window edge from the receiver.
    fn hear(&mut self, ack: i64, edge: i64) -> Heard {
        let heard = Heard {
            is_news: ack > self.acked || edge > self.edge,
            is_newest: ack >= self.acked && edge >= self.edge,
        };
        if ack >= self.acked {
            self.window = edge - ack;
        }
        self.passed = self.passed.max(ack);
        self.acked = self.acked.max(ack);
        self.edge = self.edge.max(edge);
        self.window_max = self.window_max.max(edge - ack);
        heard
    }

    /// Advances over `passing`, whose last position is FIN if `has_fin`. An empty range changes
    /// nothing: an acknowledgment may stand beyond lost bytes. Returns the number of new bytes.
    fn advance(&mut self, passing: Range<i64>, has_fin: bool) -> u64 {
        if passing.is_empty() {
            return 0;
        }
        let end = passing.end;
        let new = (end - self.passed).max(0);
        self.passed = self.passed.max(end);
        if has_fin {
            self.finished = Some(end);
            self.is_hint = false;
        }
        (new - i64::from(has_fin && new > 0)) as u64
    }

    /// True if FIN has passed.
    fn has_finished(&self) -> bool {
        self.finished.is_some_and(|at| self.passed >= at)
    }

    /// True if FIN has passed, and is acknowledged.
    fn is_finished(&self) -> bool {
        self.finished.is_some_and(|at| self.acked >= at)
    }
}

/// How an acknowledgment and its window compare with earlier ones.
#[derive(Clone, Copy, Debug)]
struct Heard {
    /// It acknowledges or offers more than any earlier one.
    is_news: bool,
    /// No earlier one acknowledged or offered more.
    is_newest: bool,
}

/// Two joined connections.
#[derive(Debug)]
pub(super) struct Splice {
    legs: [Leg; 2],
    streams: [Stream; 2],
    /// The newest TSval of each peer.
    recent: [u32; 2],
    has_timestamps: bool,
    /// ECN goes end to end: both connections have negotiated it.
    ecn: bool,
    /// A NIC stack had the splice before, so that more may have passed than is known here.
    is_again: bool,
    /// Whether a segment of each peer has been received.
    heard: [bool; 2],
    /// Nothing new passes: the connections go back to the host.
    is_returning: bool,
    /// A peer has reset the connection.
    reset: Option<Reset>,
}

/// The RST of a peer, as it has passed.
#[derive(Clone, Copy, Debug)]
struct Reset {
    by: Side,
    /// Its position.
    seq: i64,
    /// Its acknowledgment, or the last one before if that is higher: a position of the other
    /// stream.
    ack: i64,
}

/// Treatment of a segment.
#[derive(Debug)]
pub(super) enum Verdict<'a> {
    /// It goes to the other peer.
    Pass(Passed<'a>),
    /// The peer that it came from gets an acknowledgment (RFC 5961 §4).
    Challenge,
    /// The other TCP would not take it, or must not get it.
    Drop,
}

/// A segment for the other peer.
#[derive(Debug)]
pub(super) struct Passed<'a> {
    pub(super) header: Header,
    pub(super) payload: &'a [u8],
    pub(super) ecn: Ecn,
    /// Payload bytes that have not passed before.
    pub(super) new_bytes: u64,
}

impl Splice {
    /// `None` if the header of a leg is invalid.
    pub(super) fn new(command: &Command<'_>) -> Option<Splice> {
        let [first, second] = &command.legs;
        let stream = |passed_bytes: u64, sender: &SpliceLeg<'_>, receiver: &SpliceLeg<'_>| {
            let passed = passed_bytes as i64;
            Stream {
                passed,
                // Bytes that a predecessor has passed may be lost.
                acked: if command.is_again { 0 } else { passed },
                edge: passed + i64::from(receiver.snd_window_bytes),
                reach: i64::from(sender.rcv_window_bytes),
                window: i64::from(receiver.snd_window_bytes),
                window_max: i64::from(sender.rcv_window_bytes.max(receiver.snd_window_bytes))
                    .max(WINDOW_MIN),
                finished: sender
                    .fin_end
                    .map(|end| position(end, sender.rcv_nxt, passed)),
                is_hint: true,
            }
        };
        let [from_first, from_second] = command.passed_bytes;
        let recent = |leg: &SpliceLeg<'_>| leg.timestamps.map_or(0, |it| it.recent);
        Some(Splice {
            legs: [Leg::new(first)?, Leg::new(second)?],
            streams: [
                stream(from_first, first, second),
                stream(from_second, second, first),
            ],
            recent: [recent(first), recent(second)],
            has_timestamps: first.timestamps.is_some(),
            ecn: first.ecn && second.ecn,
            is_again: command.is_again,
            heard: [false; 2],
            is_returning: false,
            reset: None,
        })
    }

    pub(super) fn template(&self, side: Side) -> &TcpTemplate {
        &self.legs[side].template
    }

    /// Largest payload of a packet with this header to the peer of a leg, in bytes.
    pub(super) fn mss(&self, side: Side, header: &Header) -> u16 {
        let sack_bytes = header.options.sack_bytes() as u16;
        self.legs[side].mss.saturating_sub(sack_bytes).max(1)
    }

    /// Takes a router's report that a packet to the peer of a leg is too big, quoting `seq`.
    /// Accepted only if `seq` is in data that the peer has not acknowledged, as an attacker off the
    /// path does not know (RFC 5927 §4). True if packets become shorter.
    pub(super) fn reduce_mss(&mut self, side: Side, mss: u16, seq: u32) -> bool {
        let (Some(leg), Some(sent)) = (self.legs.get_mut(side), self.streams.get(1 - side.min(1)))
        else {
            return false;
        };
        let quoted = position(seq, leg.snd_nxt, sent.passed);
        let is_in_flight = (sent.acked..sent.passed).contains(&quoted);
        let is_believed = is_in_flight && mss < leg.mss;
        if is_believed {
            leg.mss = mss;
        }
        is_believed
    }

    /// Returns the bytes of each leg that have passed.
    pub(super) fn passed_bytes(&self) -> [u64; 2] {
        [0, 1].map(|side| {
            let stream = &self.streams[side];
            // FIN is no byte.
            let fin = i64::from(stream.has_finished());
            (stream.passed - fin).max(0) as u64
        })
    }

    /// True for each leg whose FIN has passed.
    pub(super) fn has_finished(&self) -> [bool; 2] {
        [0, 1].map(|side| self.streams[side].has_finished())
    }

    /// True if both peers have closed, and acknowledged each other's FIN.
    pub(super) fn is_finished(&self) -> bool {
        self.streams.iter().all(Stream::is_finished)
    }

    pub(super) fn reset_by(&self) -> Option<Side> {
        self.reset.map(|reset| reset.by)
    }

    /// True if this worker has received nothing from a peer, and no RST has ended the splice.
    pub(super) fn is_silent(&self, side: Side) -> bool {
        self.is_again && !self.heard[side] && self.reset.is_none()
    }

    /// True if a peer that has sent RST had closed in order before, as far as is known: a
    /// predecessor has passed both FINs, and the other peer has acknowledged this peer's FIN.
    pub(super) fn has_finished_before(&self, side: Side) -> bool {
        let other = &self.streams[1 - side];
        self.is_again
            && !self.heard[side]
            && self.streams[side].is_finished()
            && other.finished.is_some()
    }

    /// Returns the sum of the peers' acknowledged positions, FINs included.
    pub(super) fn acked(&self) -> i64 {
        self.streams.iter().map(|stream| stream.acked).sum()
    }

    /// Stops passing new bytes, so that the connections can return. False if a peer has closed:
    /// they cannot.
    pub(super) fn begin_return(&mut self) -> bool {
        let is_open = self.streams.iter().all(|stream| stream.finished.is_none());
        self.is_returning |= is_open;
        is_open
    }

    pub(super) fn is_returning(&self) -> bool {
        self.is_returning
    }

    /// True if all passed bytes are acknowledged, and a successor has received a segment of each
    /// peer.
    pub(super) fn may_return(&self) -> bool {
        self.is_returning
            && self.streams.iter().all(Stream::is_acked)
            && (!self.is_again || self.heard == [true; 2])
    }

    /// Translates a segment of the peer of a leg.
    pub(super) fn on_segment<'a>(&mut self, side: Side, segment: &Segment<'a>) -> Verdict<'a> {
        let header = &segment.header;
        if header.flags.contains(Flags::SYN) {
            return Verdict::Challenge;
        }
        let other = 1 - side;
        let stream = &self.streams[side];
        let base = self.legs[side].rcv_nxt;
        let seq = position(header.seq, base, stream.passed);
        let beyond = if self.is_again && !self.heard[other] {
            UNKNOWN_MAX
        } else {
            0
        };
        // A host that has lost the connection answers a probe with RST at the probe's
        // acknowledgment number, however far the stream has advanced since.
        let answers_probe = self.is_again
            && !self.heard[side]
            && header.seq == base.wrapping_add(stream.acked as u32);
        if answers_probe && header.flags.contains(Flags::RST) {
            return self.on_reset(side, header, stream.acked);
        }
        let reach = stream.edge.max(stream.reach) + beyond;
        if seq > reach || seq < stream.acked - stream.window_max {
            return Verdict::Drop;
        }
        if header.flags.contains(Flags::RST) {
            return self.on_reset(side, header, seq);
        }
        let has_what_all_have = header.flags.contains(Flags::ACK)
            && (!self.has_timestamps || header.options.timestamps.is_some());
        // A mark that no receiver echoes is a loss instead (RFC 3168 §9.1.1).
        let is_lost_mark = segment.ecn == Ecn::Ce && !self.ecn;
        if !has_what_all_have || is_lost_mark {
            return Verdict::Drop;
        }
        let (base, back) = (self.legs[side].snd_nxt, &self.streams[other]);
        let ack = position(header.ack, base, back.passed);
        let unknown = if self.is_again { UNKNOWN_MAX } else { 0 };
        if ack > back.passed + unknown || ack < back.acked - back.window_max {
            return Verdict::Drop;
        }
        self.pass(side, segment, (seq, ack), beyond)
    }

    /// Updates the state from an acceptable segment, and translates it.
    fn pass<'a>(
        &mut self,
        side: Side,
        segment: &Segment<'a>,
        (mut seq, ack): (i64, i64),
        beyond: i64,
    ) -> Verdict<'a> {
        let other = 1 - side;
        let (header, mut payload) = (&segment.header, segment.payload);
        let window = self.window(side, header.window);
        let edge = ack + (i64::from(window) << self.legs[other].rcv_shift);

        self.heard[side] = true;
        let back = &mut self.streams[other];
        let heard = back.hear(ack, edge);

        // The application of a peer without room may have to get more of this stream before it
        // reads on.
        let holds_back = self.is_returning && !back.is_refused();

        let mut flags = header.flags.without(Flags::URG);
        if !self.ecn {
            flags = flags.without(Flags::ECE | Flags::CWR);
        }
        if self.is_returning {
            // A splice with a passed FIN could not return.
            flags = flags.without(Flags::FIN);
        }
        let stream = &mut self.streams[side];
        let fin = i64::from(flags.contains(Flags::FIN));
        let mut end = seq + payload.len() as i64 + fin;
        if stream.finished.is_some_and(|at| end > at) {
            if !stream.is_hint {
                return Verdict::Drop;
            }
            stream.finished = None;
        }
        // Bytes beyond the receiver's window and, during a return, all new bytes.
        let is_ahead = seq > stream.edge + beyond || (holds_back && end > stream.passed);
        if is_ahead {
            let known = (stream.passed - seq).clamp(0, payload.len() as i64);
            // An acknowledgment may answer a retransmission.
            if known == 0 && !heard.is_news && !payload.is_empty() {
                return Verdict::Drop;
            }
            payload = &payload[..known as usize];
            flags = flags.without(Flags::FIN | Flags::PSH);
            seq = seq.min(stream.passed);
            end = seq + known;
        }
        // Frames sent before the RST may arrive after it.
        let goes_on = self.reset.is_some_and(|reset| match reset.by == side {
            true => end > reset.seq || ack > reset.ack,
            false => ack > reset.seq,
        });
        if goes_on {
            self.reset = None;
        }
        let stream = &mut self.streams[side];
        let new_bytes = stream.advance(seq..end, flags.contains(Flags::FIN));
        if seq == end {
            seq = stream.place_acknowledgment(seq, heard);
        }
        let options = self.options(side, &header.options);
        Verdict::Pass(Passed {
            header: Header {
                seq: self.legs[other].snd_nxt.wrapping_add(seq as u32),
                ack: self.legs[other].rcv_nxt.wrapping_add(ack as u32),
                flags,
                window,
                options,
                ..Header::default()
            },
            payload,
            ecn: if self.ecn { segment.ecn } else { Ecn::NotEct },
            new_bytes,
        })
    }

    /// Passes a RST on, if it is in the window (RFC 5961 §3.2).
    fn on_reset<'a>(&mut self, side: Side, header: &Header, seq: i64) -> Verdict<'a> {
        let other = 1 - side;
        let stream = &self.streams[side];
        let is_known = !self.is_again || self.heard[other];
        if is_known && !(stream.acked..=stream.edge.max(stream.passed)).contains(&seq) {
            return Verdict::Drop;
        }
        if seq == stream.acked || seq == stream.passed {
            let (base, back) = (self.legs[side].snd_nxt, &self.streams[other]);
            let ack = position(header.ack, base, back.passed).min(back.passed);
            let has_ack = header.flags.contains(Flags::ACK);
            let ack = if has_ack {
                ack.max(back.acked)
            } else {
                back.acked
            };
            self.reset = Some(Reset { by: side, seq, ack });
        }
        let ack = header.ack.wrapping_sub(self.legs[side].snd_nxt);
        Verdict::Pass(Passed {
            header: Header {
                seq: self.legs[other].snd_nxt.wrapping_add(seq as u32),
                ack: self.legs[other].rcv_nxt.wrapping_add(ack),
                flags: header
                    .flags
                    .without(Flags::URG | Flags::FIN | Flags::ECE | Flags::CWR),
                ..Header::default()
            },
            payload: &[],
            ecn: Ecn::NotEct,
            new_bytes: 0,
        })
    }

    /// Returns the window of a peer as a value for the other peer, rounded down.
    fn window(&self, side: Side, window: u16) -> u16 {
        let bytes = u32::from(window) << self.legs[side].snd_shift;
        u16::try_from(bytes >> self.legs[1 - side].rcv_shift).unwrap_or(u16::MAX)
    }

    fn options(&mut self, side: Side, options: &Options) -> Options {
        let other = 1 - side;
        let [from, to] = [&self.legs[side], &self.legs[other]];
        let mut sack = [None; 4];
        if to.sack {
            // SACK blocks are of the other stream: shifts them to its sender's sequence numbers.
            let shift = to.rcv_nxt.wrapping_sub(from.snd_nxt);
            let shifted =
                |(left, right): (u32, u32)| (left.wrapping_add(shift), right.wrapping_add(shift));
            sack = options.sack.map(|block| block.map(shifted));
        }
        let timestamps = options.timestamps.filter(|_| self.has_timestamps);
        let timestamps = timestamps.map(|it| {
            let forward = to.timestamps.value.wrapping_sub(from.timestamps.recent);
            let back = from.timestamps.value.wrapping_sub(to.timestamps.recent);
            if (it.value.wrapping_sub(self.recent[side]) as i32) > 0 {
                self.recent[side] = it.value;
            }
            Timestamps {
                value: it.value.wrapping_add(forward),
                echo_reply: it.echo_reply.wrapping_sub(back),
            }
        });
        Options {
            timestamps,
            sack,
            ..Options::default()
        }
    }

    /// Returns an acknowledgment for the peer of a leg, as the other peer would send it.
    pub(super) fn acknowledgment(&self, side: Side) -> Header {
        let stream = &self.streams[side];
        let window_bytes = (stream.edge - stream.acked).max(0) >> self.legs[side].rcv_shift;
        let numbers = self.numbers(side);
        let sent = self.streams[1 - side].acceptable();
        Header {
            seq: self.legs[side].snd_nxt.wrapping_add(sent as u32),
            ack: numbers.rcv_nxt,
            flags: Flags::ACK,
            window: u16::try_from(window_bytes).unwrap_or(u16::MAX),
            options: Options {
                timestamps: self.has_timestamps.then_some(Timestamps {
                    value: numbers.ts_value,
                    echo_reply: numbers.ts_recent,
                }),
                ..Options::default()
            },
            ..Header::default()
        }
    }

    /// Returns an old segment, which the peer of a leg answers.
    pub(super) fn probe(&self, side: Side) -> Header {
        Header {
            seq: self.numbers(side).snd_nxt.wrapping_sub(1),
            ..self.acknowledgment(side)
        }
    }

    /// Returns RSTs for the peer of a leg: at the end of all passed bytes and, if the peer has not
    /// acknowledged all, at its acknowledged position. The peer accepts the RST at the position
    /// that it expects.
    pub(super) fn resets(&self, side: Side) -> impl Iterator<Item = Header> {
        let numbers = self.numbers(side);
        let sent = &self.streams[1 - side];
        let (passed, acked) = (sent.passed.max(sent.acked), sent.acked);
        let first = (passed > acked).then_some(passed);
        let positions = first.into_iter().chain([acked]);
        let base = self.legs[side].snd_nxt;
        positions.map(move |position| Header {
            seq: base.wrapping_add(position as u32),
            ack: numbers.rcv_nxt,
            flags: Flags::RST | Flags::ACK,
            ..Header::default()
        })
    }

    /// Returns the RSTs of [`Splice::resets`] as packets.
    pub(super) fn reset_packets(&self, side: Side) -> Vec<PacketHeader> {
        let template = TcpTemplate {
            traffic_class: Ecn::NotEct.mark(self.template(side).traffic_class),
            ..*self.template(side)
        };
        let resets = self.resets(side);
        resets
            .filter_map(|header| PacketHeader::new(&template, &header))
            .collect()
    }

    /// Returns the sequence numbers of a leg, as far as they are acknowledged.
    pub(super) fn numbers(&self, side: Side) -> SpliceNumbers {
        let other = 1 - side;
        let (leg, received, sent) = (&self.legs[side], &self.streams[side], &self.streams[other]);
        let bytes = |window: i64| {
            let bytes = u32::try_from(window.max(0)).unwrap_or(u32::MAX);
            bytes.min(PART_WINDOW_BYTES_MAX)
        };
        let since = self.recent[other].wrapping_sub(self.legs[other].timestamps.recent);
        let timestamps = self.has_timestamps;
        SpliceNumbers {
            snd_nxt: leg.snd_nxt.wrapping_add(sent.acked as u32),
            rcv_nxt: leg.rcv_nxt.wrapping_add(received.acked as u32),
            snd_window_bytes: bytes(sent.window),
            rcv_window_bytes: bytes(received.edge - received.acked),
            ts_value: if timestamps {
                leg.timestamps.value.wrapping_add(since)
            } else {
                0
            },
            ts_recent: if timestamps { self.recent[side] } else { 0 },
        }
    }
}

impl Leg {
    fn new(leg: &SpliceLeg<'_>) -> Option<Leg> {
        Some(Leg {
            template: TcpTemplate::parse(leg.header)?,
            rcv_nxt: leg.rcv_nxt,
            snd_nxt: leg.snd_nxt,
            snd_shift: leg.snd_shift,
            rcv_shift: leg.rcv_shift,
            mss: leg.mss,
            sack: leg.sack,
            timestamps: leg.timestamps.unwrap_or(SpliceTimestamps {
                value: 0,
                recent: 0,
            }),
        })
    }
}

/// Returns the position of a sequence number that is near `near`; `base` is at position 0.
fn position(seq: u32, base: u32, near: i64) -> i64 {
    let distance = seq.wrapping_sub(base).wrapping_sub(near as u32) as i32;
    near + i64::from(distance)
}
