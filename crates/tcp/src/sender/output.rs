//! Segments to send, and the time to send them (RFC 9293 §3.8).

use std::ops::Range;

use wire::ip::Ecn;
use wire::tcp::{Flags, Header, Options};

use crate::config::Limits;
use crate::connection::Connection;
use crate::recovery::state::Phase;
use crate::reset::Reset;
use crate::sender::cork;
use crate::sender::data::Data;
use crate::state::State;
use crate::time::Instant;
use crate::timer::Timer;

/// Full segments that follow a probe of the path's MTU: enough to detect its loss.
const PROBE_FOLLOWERS: u64 = 4;

/// A segment to send, or a superpacket that is to be cut into packets of at most
/// [`mss`](Transmit::mss) payload bytes. Its header is that of the first packet; PSH and FIN belong
/// on the last, CWR on the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The header. Ports, sequence numbers, flags, window and options are final.
    pub header: Header,
    /// The payload: a range of the stream, for [`Connection::pieces`]. May be empty.
    pub range: Range<u64>,
    /// If it occupies sequence space: a number, counting from 0, under which its departure must be
    /// reported to [`Connection::on_departed`].
    pub transmission: Option<u64>,
    /// Payload of a full packet, in bytes: all options are accounted for.
    pub mss: u16,
    /// ECN field of its packets.
    pub ecn: Ecn,
    /// Time of issue, from which the timestamp in the header was taken.
    pub issued: Instant,
    /// Microseconds elapsed at `issued` within the millisecond of the header's timestamp: below
    /// 1000. A sender later than `issued` can correct the timestamp exactly.
    pub tsval_fraction_us: u16,
    /// Earliest time at which it may leave: the connection is paced. `None`: at once.
    pub not_before: Option<Instant>,
    /// Some of the payload is virtual.
    pub has_virtual: bool,
    /// All of the payload was sent before.
    pub retransmission: bool,
    /// At the time of issue, an earlier transmission had not departed, or its departure was not
    /// reported: sent by another way, this one could overtake it.
    pub follows_undeparted: bool,
    /// The windows are used up: [`Connection::poll_transmit`] would return `None` now, and need not
    /// be called until the next event.
    pub is_last: bool,
}

/// Result of issuing a transmission.
struct Issued {
    /// [`Transmit::transmission`]
    transmission: u64,
    has_virtual: bool,
    follows_undeparted: bool,
}

/// [`Transmit::tsval_fraction_us`]
fn tsval_fraction_us(issued: Instant) -> u16 {
    (issued.as_us() % 1000) as u16
}

impl Connection {
    /// Returns the next segment to send; to be called until it returns `None`, or one that [is the
    /// last](Transmit::is_last). A segment with a [`transmission`](Transmit::transmission) number
    /// counts as sent from now on, and as departed from the call of [`Connection::on_departed`] on.
    pub fn poll_transmit(&mut self, now: Instant, limits: &Limits) -> Option<Transmit> {
        match self.poll_bulk(now, limits) {
            Some(data) => Some(self.transmit_data(now, data)),
            None => self.poll_transmit_otherwise(now, limits),
        }
    }

    #[inline(never)]
    pub(crate) fn poll_transmit_otherwise(
        &mut self,
        now: Instant,
        limits: &Limits,
    ) -> Option<Transmit> {
        if let Some(reset) = self.reset.take() {
            return Some(self.transmit_reset(now, *reset));
        }
        match self.state {
            State::Closed => None,
            State::SynSent => self.poll_syn(now),
            State::SynReceived => self
                .poll_syn(now)
                .or_else(|| self.poll_fast_open(now, limits))
                .or_else(|| self.poll_ack(now)),
            State::FinWait2 | State::TimeWait => self.poll_ack(now),
            _ => {
                // Duplicate acknowledgments go first, and alone: with data they would not count.
                if self.acks.take_duplicate() {
                    return Some(self.transmit_ack(now));
                }
                let probe = self.persist.is_due();
                if self.queue.is_empty() && !self.fin_queued {
                    self.rest();
                } else if let Some(data) = self.poll_data(now, limits, probe) {
                    return Some(self.transmit_data(now, data));
                }
                self.poll_window_probe(now, probe)
                    .or_else(|| self.poll_keepalive(now))
                    .or_else(|| self.poll_ack(now))
            }
        }
    }

    /// Returns the next segment that occupies no sequence space, for a caller that cannot take more
    /// now: a reset or an acknowledgment, whose delay would hold up the peer. To be called until it
    /// returns `None`.
    pub fn poll_bare(&mut self, now: Instant) -> Option<Transmit> {
        if let Some(reset) = self.reset.take() {
            return Some(self.transmit_reset(now, *reset));
        }
        match self.state {
            State::Closed | State::SynSent | State::SynReceived => None,
            _ => self.poll_ack(now),
        }
    }

    /// Ends all sending: everything queued is acknowledged, and there is no FIN to send. Has the
    /// effects that [`Connection::poll_data`] has then, for any pacing and any windows.
    fn rest(&mut self) {
        self.recovery.tlp.take_due();
        self.recovery.on_answered();
        self.persist.reset();
        self.timers.cancel(Timer::Persist);
        self.rate.on_app_limited(0);
    }

    pub(crate) fn poll_data(&mut self, now: Instant, limits: &Limits, probe: bool) -> Option<Data> {
        let mut limits = *limits;
        if self.sent.has_undeparted() {
            limits.direct_bytes_max = 0;
        }
        if let Some(tail) = self.poll_tail_probe(now, &limits) {
            self.pace_probe(now, tail.len);
            return Some(tail);
        }
        self.poll_paced(now, &limits, probe)
    }

    #[cold]
    fn poll_syn(&mut self, now: Instant) -> Option<Transmit> {
        let again = self.sent.first_lost(0).is_some_and(|lost| lost.start == 0);
        let mut is_void = || self.sent.first_void(0).is_some_and(|void| void.start == 0);
        if self.snd.nxt > 0 && !again && !is_void() {
            return None;
        }
        let agreed = self.state == State::SynReceived;
        let mut header = self.header(now, 0, Flags::SYN);
        header.options.mss = Some(self.config.mss);
        // RFC 7323 §2.2, §3.2: an answer carries an option only if the peer's SYN did.
        let shift = self.rcv.offered_shift();
        if agreed {
            header.flags = header.flags | self.ecn.syn_ack_flags();
            header.options.window_scale = self.rcv.is_scaled().then_some(shift);
            header.options.sack_permitted = self.sacks.is_permitted();
        } else {
            header.flags = Flags::SYN | self.ecn.syn_flags(self.config.ecn, again);
            header.ack = 0;
            header.options.window_scale = self.config.window_scaling.then_some(shift);
            header.options.timestamps = self.config.timestamps.then(|| self.timestamps.offer(now));
            header.options.sack_permitted = self.config.sack;
        }
        let issued = self.issue(now, 0..1, &(0..0), again);
        Some(Transmit {
            transmission: Some(issued.transmission),
            retransmission: again,
            follows_undeparted: issued.follows_undeparted,
            ..self.transmit_empty(now, header)
        })
    }

    /// Returns lost data that was not yet sent again.
    pub(crate) fn poll_lost(&mut self, now: Instant, limits: &Limits) -> Option<Data> {
        if self.recovery.frto.new_end().is_some() {
            return None;
        }
        let lost = self.sent.first_lost(limits.bytes_max as u64)?;
        let fin_position = self.fin_position();
        let packet_mss = self.packet_mss(now);
        let mss = u64::from(packet_mss);
        let room = self.retransmission_room(&lost);
        let mut len = lost.end.min(fin_position).saturating_sub(lost.start);
        if room < len {
            len = room / mss * mss;
        } else if room == 0 {
            return None;
        }
        len = self.fit(lost.start, len, mss, limits);
        let fin = lost.end > fin_position && lost.start + len == fin_position;
        let end = lost.start + len + u64::from(fin);
        if end == lost.start || (end < lost.end && !self.sent.may_split(lost.start)) {
            return None;
        }
        // RFC 6298 runs one timer, for the oldest byte in flight. It starts when that byte departs
        // again.
        if lost.start == self.snd.una && !self.recovery.fast_retransmit.keeps_timer() {
            self.timers.cancel(Timer::Retransmit);
        }
        Some(Data::again(lost.start, len, fin, packet_mss))
    }

    /// Returns a tail loss probe (RFC 8985 §7.3): new data if the peer's window allows, else the
    /// last segment again. None if void data is to be issued: that makes the peer answer as well.
    fn poll_tail_probe(&mut self, now: Instant, limits: &Limits) -> Option<Data> {
        if !self.recovery.tlp.take_due() || self.sent.has_void() {
            return None;
        }
        let packet_mss = self.packet_mss(now);
        let mss = u64::from(packet_mss);
        let fin_position = self.fin_position();
        let snd = self.snd;
        let available = fin_position.saturating_sub(snd.nxt).min(mss);
        if 0 < available && snd.nxt + available <= snd.una + snd.wnd {
            let len = self.fit(snd.nxt, available, mss, limits);
            if len > 0 {
                self.recovery.tlp.on_sent(snd.nxt + len, None);
                return Some(Data::new(snd.nxt, len, false, packet_mss));
            }
        }
        let tail = self.sent.tail()?;
        let fin = tail.end > fin_position;
        let end = tail.end - u64::from(fin);
        let start = tail.start.max(end.saturating_sub(mss));
        if self.fit(start, end - start, mss, limits) < end - start {
            return None;
        }
        self.recovery.tlp.on_sent(tail.end, Some(start));
        Some(Data::again(start, end - start, fin, packet_mss))
    }

    /// Returns data that was never sent, and FIN. `probe`: less than a segment may go, silly or
    /// not. `packet_mss` and `cwnd`: the results of the functions of these names.
    pub(crate) fn poll_new(
        &mut self,
        now: Instant,
        limits: &Limits,
        probe: bool,
        packet_mss: u16,
        mut cwnd: u64,
    ) -> Option<Data> {
        let snd = self.snd;
        let fin_position = self.fin_position();
        let waits = snd.nxt < fin_position || (self.fin_queued && snd.nxt == fin_position);
        if !waits {
            self.persist.reset();
            self.timers.cancel(Timer::Persist);
            let flight = self.sent.flight();
            if self.sent.lost() == 0 && flight < cwnd {
                self.rate.on_app_limited(flight);
            }
            return None;
        }
        let frto_end = self.recovery.frto.new_end();
        if (self.sent.lost() > 0 && frto_end.is_none()) || self.sent.is_full() {
            return None;
        }
        if self.sent.outstanding() == 0 {
            self.leave_idle(now);
            cwnd = self.cwnd();
        }
        let mss = u64::from(packet_mss);
        let available = fin_position - snd.nxt;
        let peer_room = (snd.una + snd.wnd).saturating_sub(snd.nxt);
        let mut cwnd_room = cwnd.saturating_sub(self.sent.flight());
        if let Some(end) = frto_end {
            cwnd_room = cwnd_room.min(end.saturating_sub(snd.nxt));
        }
        let room = peer_room.min(cwnd_room);
        // RFC 4821 §7.2, §7.3: enough data follows a probe that its loss is noticed without a
        // timeout.
        if self.recovery.phase == Phase::Open
            && let Some(bytes) = self.pmtu.wanted(now, snd.mss)
        {
            let len = u64::from(bytes);
            if mss == u64::from(snd.mss)
                && room.min(available) >= len + PROBE_FOLLOWERS * mss
                && self.queue.fit(snd.nxt - 1, len, limits) == len
            {
                self.pmtu.on_mtu_probe(snd.nxt, bytes);
                return Some(Data::new(snd.nxt, len, false, bytes));
            }
        }
        let tail_waits = self.tail_waits(available, mss);
        // Avoidance of silly windows by the sender (RFC 9293 §3.8.6.2.1):
        let len = if available <= room && tail_waits {
            available / mss * mss
        } else if available <= room {
            // (2) all that is queued;
            available
        } else if room >= mss {
            // (1) full segments;
            room / mss * mss
        } else if peer_room <= cwnd_room && (peer_room >= snd.wnd_max / 2 || probe) {
            // (3) half of the largest window seen, (4) anything when the override timer expires.
            peer_room
        } else {
            0
        };
        let len = self.fit(snd.nxt, len, mss, limits);
        let fin = self.fin_queued
            && snd.nxt + len == fin_position
            && peer_room > len
            && !self.state.is_opening();
        if cwnd_room < available && cwnd_room <= peer_room && cwnd_room - len < mss {
            self.limited_until = snd.nxt + len;
        }
        if len == 0 && !fin {
            if tail_waits && available <= room {
                self.wait_for_full_segment(now, cwnd);
            } else if snd.flight() == 0 && !self.timers.is_armed(Timer::Persist) {
                let interval = self.persist.interval(&self.config, self.rto());
                self.timers.arm(Timer::Persist, now + interval);
                self.bound_by_user_timeout();
            }
            return None;
        }
        if probe {
            self.persist.on_sent()
        } else {
            self.persist.reset()
        }
        self.timers.cancel(Timer::Persist);
        let uses_up_window = self.recovery.phase == Phase::Open
            && !probe
            && frto_end.is_none()
            && !self.sent.has_void()
            && available - len >= mss
            && self.leaves_no_room(snd.nxt + len, peer_room - len, cwnd_room - len, mss);
        Some(Data {
            uses_up_window,
            ..Data::new(snd.nxt, len, fin, packet_mss)
        })
    }

    /// Returns true if the part of `available` unsent bytes that does not fill a segment waits: for
    /// more data, or until nothing is in flight (the Nagle algorithm, RFC 9293 §3.7.4).
    fn tail_waits(&self, available: u64, mss: u64) -> bool {
        // The SYN is no data: the first part of a response to text in the peer's SYN does not wait.
        let has_data_in_flight = self.snd.nxt > self.snd.una.max(1);
        let nagle = !self.nodelay && (has_data_in_flight || available > mss);
        (nagle || self.cork.is_set()) && !self.fin_queued && !self.cork.has_released(self.snd.nxt)
    }

    /// Waits for a full segment while the windows are open.
    #[cold]
    fn wait_for_full_segment(&mut self, now: Instant, cwnd: u64) {
        self.persist.reset();
        self.timers.cancel(Timer::Persist);
        if self.cork.is_set() && self.cork.on_wait(self.snd.nxt) {
            self.timers.arm(Timer::CORK, now + cork::WAIT_MAX);
        }
        let flight = self.sent.flight();
        if flight < cwnd {
            self.rate.on_app_limited(flight);
        }
    }

    /// Returns true if full segments wait for one of the windows, as [`Connection::poll_new`] would
    /// find. Most polls of a connection that has sent all it may end here.
    pub(crate) fn is_window_used_up(&mut self, packet_mss: u16, cwnd: u64) -> bool {
        let mss = u64::from(packet_mss);
        let flight = self.sent.flight();
        if self.snd.nxt + mss > self.fin_position() || self.sent.lost() > 0 || flight == 0 {
            return false;
        }
        let cwnd_room = cwnd.saturating_sub(flight);
        let peer_room = (self.snd.una + self.snd.wnd).saturating_sub(self.snd.nxt);
        self.leaves_no_room(self.snd.nxt, peer_room, cwnd_room, mss)
    }

    /// Returns the same for the windows alone: `peer_room` and `cwnd_room` bytes from position
    /// `nxt` on. Records which window limits the connection.
    #[inline]
    pub(crate) fn leaves_no_room(
        &mut self,
        nxt: u64,
        peer_room: u64,
        cwnd_room: u64,
        mss: u64,
    ) -> bool {
        if cwnd_room < mss && cwnd_room < peer_room {
            self.limited_until = nxt;
            return true;
        }
        let silly = peer_room < mss && peer_room < self.snd.wnd_max / 2;
        let used_up = silly && peer_room < cwnd_room && self.recovery.phase == Phase::Open;
        if used_up {
            self.recovery.on_answered();
        }
        used_up
    }

    /// Ends the idle period: nothing was in flight, and data is to be sent (RFC 5681 §4.1).
    fn leave_idle(&mut self, now: Instant) {
        let idle = now.since(self.idle_since);
        if !idle.is_zero() {
            self.congestion.on_idle(now, idle, self.rto());
            self.idle_since = now;
        }
    }

    /// Returns an empty segment that the peer must answer with its window.
    fn poll_window_probe(&mut self, now: Instant, probe: bool) -> Option<Transmit> {
        if !probe {
            return None;
        }
        self.persist.on_sent();
        // Data in flight makes the peer answer as well.
        (self.snd.flight() == 0).then(|| self.transmit_probe(now))
    }

    /// Returns the same segment as a keep-alive.
    fn poll_keepalive(&mut self, now: Instant) -> Option<Transmit> {
        let due = self.silence.take_due() && self.snd.flight() == 0;
        due.then(|| self.transmit_probe(now))
    }

    fn transmit_probe(&mut self, now: Instant) -> Transmit {
        let header = self.header(now, self.snd.una.saturating_sub(1), Flags::default());
        self.on_ack_sent();
        self.transmit_empty(now, header)
    }

    fn poll_ack(&mut self, now: Instant) -> Option<Transmit> {
        (self.acks.take_duplicate() || self.acks.is_due()).then(|| self.transmit_ack(now))
    }

    /// Returns the position of FIN: behind all queued data.
    pub(crate) fn fin_position(&self) -> u64 {
        self.queue.end() + 1
    }

    /// Returns the payload of a full packet that is built now, less the SACK blocks (RFC 6691 §2).
    #[inline]
    pub(crate) fn packet_mss(&self, now: Instant) -> u16 {
        if self.sacks.is_empty(&self.rcv) {
            self.snd.mss
        } else {
            self.packet_mss_beside_blocks(now)
        }
    }

    #[cold]
    fn packet_mss_beside_blocks(&self, now: Instant) -> u16 {
        let mut sacks = self.sacks;
        let mut options = self.options(now);
        sacks.take(&self.rcv).write(self.rcv.space(), &mut options);
        self.snd.mss - options.sack_bytes() as u16
    }

    #[cold]
    fn options_with_blocks(&mut self, now: Instant) -> Options {
        let mut options = self.options(now);
        let blocks = self.sacks.take(&self.rcv);
        blocks.write(self.rcv.space(), &mut options);
        options
    }

    /// Returns the options of every segment but a SYN, without SACK blocks.
    fn options(&self, now: Instant) -> Options {
        Options {
            timestamps: self.timestamps.option(now),
            ..Options::default()
        }
    }

    /// Returns how many of `len` bytes go into one transmission: full segments, unless it ends the
    /// run.
    pub(crate) fn fit(&self, start: u64, len: u64, mss: u64, limits: &Limits) -> u64 {
        if len == 0 {
            return 0;
        }
        let fitting = self.queue.fit(start.saturating_sub(1), len, limits);
        if fitting < len && fitting >= mss {
            fitting / mss * mss
        } else {
            fitting
        }
    }

    #[inline(always)]
    pub(crate) fn transmit_data(&mut self, now: Instant, data: Data) -> Transmit {
        let Data {
            start,
            len,
            fin,
            retransmission,
            ..
        } = data;
        let range = start - 1..start - 1 + len;
        let mut flags = Flags::default();
        // RFC 9293 §3.9.1.2: the last segment of the queued data.
        if len > 0 && range.end == self.queue.end() {
            flags = flags | Flags::PSH;
        }
        if fin {
            flags = flags | Flags::FIN;
        }
        let mut ecn = Ecn::NotEct;
        if len > 0 {
            let first;
            (ecn, first) = self.ecn.on_data(retransmission);
            flags = flags | first;
        }
        let positions = start..start + len + u64::from(fin);
        let issued = self.issue(now, positions, &range, retransmission);
        Transmit {
            header: self.header(now, start, flags),
            range,
            transmission: Some(issued.transmission),
            mss: data.mss,
            ecn,
            issued: now,
            tsval_fraction_us: tsval_fraction_us(now),
            not_before: data.not_before,
            has_virtual: issued.has_virtual,
            retransmission,
            follows_undeparted: issued.follows_undeparted,
            is_last: data.uses_up_window && !self.acks.is_due(),
        }
    }

    /// Issues a transmission that occupies the sequence numbers of `positions`, and carries a range
    /// of the stream.
    #[inline(always)]
    fn issue(
        &mut self,
        now: Instant,
        positions: Range<u64>,
        range: &Range<u64>,
        retransmission: bool,
    ) -> Issued {
        let follows_undeparted = self.sent.has_undeparted();
        self.await_departure(now);
        let (start, len) = (positions.start, range.end - range.start);
        let transmission = if retransmission || start < self.snd.nxt {
            self.issue_again(now, positions, len, retransmission)
        } else {
            self.snd.nxt = positions.end;
            self.quick_acks.on_data_sent(now, self.config.delayed_ack);
            self.recovery.on_sent(positions.end - start);
            self.sent.issue(positions)
        };
        self.pmtu.on_sent(start, len, self.snd.mss);
        let has_virtual = self.queue.has_virtual(range);
        // The NIC stack may have to read for long: an acknowledgment carried by data leaves when
        // the data does.
        if has_virtual || follows_undeparted {
            self.acks.on_carried(transmission, self.rcv.nxt());
        } else {
            self.on_ack_sent();
        }
        Issued {
            transmission,
            has_virtual,
            follows_undeparted,
        }
    }

    /// Issues positions again that were issued before: they are retransmitted, or have never left.
    #[inline(never)]
    fn issue_again(
        &mut self,
        now: Instant,
        positions: Range<u64>,
        payload_bytes: u64,
        retransmission: bool,
    ) -> u64 {
        self.snd.nxt = self.snd.nxt.max(positions.end);
        self.pmtu.on_sent_again(&positions);
        if !retransmission {
            return self.sent.reissue_void(positions);
        }
        self.lifetime.on_retransmission(payload_bytes);
        self.recovery.on_sent(positions.end - positions.start);
        let stamp = self.timestamps.option(now).map(|option| option.value);
        self.recovery.undo.on_retransmission(&positions, stamp);
        self.sent.reissue(positions)
    }

    fn transmit_empty(&self, now: Instant, header: Header) -> Transmit {
        Transmit {
            header,
            range: 0..0,
            transmission: None,
            mss: self.snd.mss - header.options.sack_bytes() as u16,
            ecn: Ecn::NotEct,
            issued: now,
            tsval_fraction_us: tsval_fraction_us(now),
            not_before: None,
            has_virtual: false,
            retransmission: false,
            follows_undeparted: self.sent.has_undeparted(),
            is_last: false,
        }
    }

    /// <SEQ=SND.NXT><ACK=RCV.NXT><CTL=ACK>
    fn transmit_ack(&mut self, now: Instant) -> Transmit {
        // A peer that has taken back window takes nothing beyond it, acknowledgments included
        // (RFC 9293 §3.10.7.4).
        let position = match self.state {
            // No window is known yet.
            State::SynReceived => self.snd.nxt,
            _ => self.snd.nxt.min(self.snd.una + self.snd.wnd),
        };
        let header = self.header(now, position, Flags::default());
        self.on_ack_sent();
        self.transmit_empty(now, header)
    }

    #[cold]
    fn transmit_reset(&mut self, now: Instant, reset: Reset) -> Transmit {
        let mut header = Header {
            source_port: self.local_port,
            destination_port: self.remote_port,
            flags: Flags::RST,
            // RFC 7323 §3.2: a reset should carry timestamps, too.
            options: self.options(now),
            ..Header::default()
        };
        match reset {
            Reset::Abort(boundaries) => {
                let (seq, others) = boundaries.split_first();
                self.reset = others.map(|others| Box::new(Reset::Abort(others)));
                header.seq = seq;
                header.ack = self.rcv.wire_nxt();
                header.flags = Flags::RST | Flags::ACK;
            }
            Reset::UnacceptableAck { seq } => header.seq = seq,
        }
        self.transmit_empty(now, header)
    }

    /// Records that all received data is acknowledged.
    pub(crate) fn on_ack_sent(&mut self) {
        self.acks.on_sent();
        self.timers.cancel(Timer::DelayedAck);
        self.last_ack_sent = self.rcv.nxt();
    }

    /// Returns the header of a segment that acknowledges all received data.
    #[inline(always)]
    fn header(&mut self, now: Instant, position: u64, flags: Flags) -> Header {
        let options = if self.sacks.is_empty(&self.rcv) {
            self.options(now)
        } else {
            self.options_with_blocks(now)
        };
        let window = if flags.contains(Flags::SYN) {
            self.rcv.syn_window()
        } else {
            self.rcv.offer_window(self.receive_mss())
        };
        Header {
            source_port: self.local_port,
            destination_port: self.remote_port,
            seq: self.snd.space.wire(position),
            ack: self.rcv.wire_nxt(),
            flags: flags | Flags::ACK | self.ecn.ack_flags(),
            window,
            options,
        }
    }
}
