//! Loss detection and recovery as a whole: the conclusions from an acknowledgment or a timer about
//! data in flight, and the reactions. Each algorithm has its own file:
//!
//! | Peers with SACK | Peers without |
//! |---|---|
//! | [`rack`] finds losses, [`tlp`] those at the end | [`fast_retransmit`] counts duplicates |
//! | [`prr`] limits sending in recovery | ... and inflates the window |
//!
//! The retransmission timer ([`rto`]) is the last resort of both. [`frto`] and [`undo`] detect that
//! nothing was lost.

pub(crate) mod detection_budget;
pub(crate) mod fast_retransmit;
pub(crate) mod frto;
pub(crate) mod min_rtt;
pub(crate) mod prr;
pub(crate) mod rack;
pub(crate) mod rto;
pub(crate) mod rtt;
pub(crate) mod sack;
pub(crate) mod state;
pub(crate) mod tlp;
pub(crate) mod undo;

use std::ops::Range;
use std::time::Duration;

use wire::tcp::Header;

use crate::congestion::rate::DeliveryRate;
use crate::congestion::{Ack, Signal};
use crate::connection::Connection;
use crate::recovery::detection_budget::POSTPONED_MAX;
use crate::recovery::frto::Frto;
use crate::recovery::rack::{Network, Rack};
use crate::recovery::sack::Blocks;
use crate::recovery::state::Phase;
use crate::recovery::tlp::{Answer, Tlp};
use crate::sender::scoreboard::Record;
use crate::seq::wraps_before;
use crate::time::Instant;
use crate::timer::Timer;
use crate::timestamps::Timestamps;

/// Data that one acknowledgment newly delivers.
#[derive(Clone, Copy, Debug, Default)]
struct Delivery {
    bytes: u64,
    /// End of the highest delivered record.
    fack: u64,
    /// A record sent only once arrived after one sent later.
    reordered: bool,
    /// A record sent only once had departed before a timeout.
    original: bool,
    /// A record was sent more than once.
    retransmitted: bool,
    /// The departure of a record was not reported: the report will give the round-trip time.
    awaited: bool,
    /// Latest departure of a record sent only once; true if its transmission is delivered to the
    /// end.
    newest: Option<(Instant, bool)>,
}

/// Facts about an acknowledgment that each delivered record needs.
struct Arrival<'a> {
    now: Instant,
    /// TSecr, if present, and the clock that it refers to.
    echo: Option<u32>,
    timestamps: &'a Timestamps,
    min_rtt_us: Option<u64>,
    frto: Frto,
}

impl Delivery {
    fn add(
        &mut self,
        piece: &Record,
        arrival: &Arrival<'_>,
        rack: &mut Rack,
        rate: &mut DeliveryRate,
    ) {
        let departed = piece.departed();
        self.bytes += piece.len();
        self.fack = self.fack.max(piece.end);
        rate.on_delivered(
            arrival.now,
            piece.len(),
            departed.map(|at| (piece.snapshot, at)),
        );
        if piece.retransmitted {
            self.retransmitted = true;
        } else {
            self.reordered |= rack.is_reordered(piece);
            self.original |= departed.is_some_and(|at| arrival.frto.covers(at));
        }
        let Some(at) = departed else {
            self.awaited |= !piece.retransmitted;
            return;
        };
        let older_echo = || {
            let sent = arrival.timestamps.value(at);
            arrival.echo.is_some_and(|echo| wraps_before(echo, sent))
        };
        rack.on_delivered(arrival.now, piece, at, arrival.min_rtt_us, older_echo);
        if !piece.retransmitted && self.newest.is_none_or(|(newest, _)| newest <= at) {
            self.newest = Some((at, piece.ends_transmission));
        }
    }
}

/// Returns the part of a block that lies above SND.UNA.
fn above(block: Range<u64>, una: u64) -> Option<Range<u64>> {
    (block.end > una).then_some(block.start.max(una)..block.end)
}

impl Connection {
    /// Returns true if the data that is acknowledged next was sent while at least half of the
    /// congestion window was in use, `prior_flight` being in flight before the acknowledgment. Once
    /// true, it holds for all data in flight: Linux remembers the most packets out of a window
    /// likewise (`tcp_cwnd_validate`).
    #[inline(always)]
    pub(crate) fn is_window_used(&mut self, prior_flight: u64) -> bool {
        self.snd.una < self.limited_until || self.is_half_used(prior_flight)
    }

    #[cold]
    fn is_half_used(&mut self, prior_flight: u64) -> bool {
        let is_used = prior_flight >= self.congestion.window() / 2;
        if is_used {
            self.limited_until = self.snd.nxt;
        }
        is_used
    }

    /// Handles an acceptable acknowledgment of everything before `ack`. `duplicate`: it looks like
    /// a duplicate (RFC 5681 §2), if anything is in flight.
    ///
    /// With blocks, `ack` may lie below SND.UNA: ACKs overtake each other, and their selective
    /// reports stay true.
    pub(crate) fn on_acknowledgment(
        &mut self,
        now: Instant,
        header: &Header,
        ack: u64,
        duplicate: bool,
    ) {
        let una = ack.max(self.snd.una);
        let acked = una - self.snd.una;
        let permitted = self.sacks.is_permitted();
        let has_blocks = permitted && header.options.sack[0].is_some();
        let prior_flight = self.sent.flight();
        let prior_used = prior_flight + self.unanswered(prior_flight);
        if acked == 0 && !has_blocks {
            match duplicate {
                true if permitted => self.on_probe_answer(now, None, true, prior_used),
                true => self.on_duplicate_ack(now),
                false => {}
            }
            return;
        }
        let was_limited = self.is_window_used(prior_flight) && !self.ecn.is_echo(header.flags);
        let prior_phase = self.recovery.phase;
        let (blocks, dsack) = if has_blocks {
            Blocks::read(&header.options, self.snd.space, ack, self.snd.nxt)
        } else {
            Default::default()
        };
        let (delivery, rtt) = self.deliver(now, header, una, &blocks);
        if acked > 0 {
            self.on_progress(now, una);
        }

        if delivery.bytes > 0 {
            self.recovery.tlp.on_delivered();
        }

        // Spurious retransmissions.
        if delivery.reordered {
            self.recovery.rack.on_reordering();
        }
        if let Some(dsack) = &dsack {
            self.on_dsack(now, dsack);
        }
        self.detect_spurious(now, header, acked > 0, &delivery, rtt);

        // Losses.
        self.on_probe_answer(now, dsack.as_ref(), false, prior_used);
        let complete = self.snd.una >= self.recovery.recover;
        let recovered = self.recovery.phase != Phase::Open && complete;
        if recovered {
            self.leave_recovery();
        }
        let mut lost = 0;
        let mut partial = false;
        if permitted {
            let detected = self.detect_losses_within_budget(now);
            lost = detected.unwrap_or(0);
            let news = lost > 0 || (recovered && self.sent.lost() > 0);
            if news && self.recovery.phase == Phase::Open {
                self.enter_fast_recovery(now, prior_flight);
            }
            self.recovery.unanswered += delivery.bytes;
            self.reduce_rate(delivery.bytes, acked > 0 && detected == Some(0));
        } else {
            partial = self.recovery.phase == Phase::FastRecovery;
            self.on_ack_without_sack(acked);
        }

        // Congestion control.
        let rate = self.rate.sample(now, self.min_rtt.get_us());
        let phase = match prior_phase {
            Phase::Open => self.recovery.phase,
            prior => prior,
        };
        let flight = self.sent.flight();
        if delivery.bytes > 0 || lost > 0 {
            // Includes losses that timers have found since the previous acknowledgment.
            let lost = self.rate.take_newly_lost();
            self.congestion.on_ack(&Ack {
                now,
                una: self.snd.una,
                nxt: self.snd.nxt,
                delivered: delivery.bytes,
                lost,
                prior_flight,
                flight,
                rtt,
                srtt: self.rtt.srtt(),
                rate,
                window_limited: was_limited || phase == Phase::AfterTimeout,
                advances: acked > 0 || self.recovery.rack.has_seen_reordering(),
                phase,
            });
        }
        if recovered && prior_phase == Phase::FastRecovery {
            // Replacing the bytes delivered since the last transmission is no burst.
            let flight = (!permitted).then_some(flight + self.recovery.unanswered);
            self.congestion.on_recovered(now, flight);
            // All retransmitted data fits into one packet.
            let one = self.recovery.undo.retransmitted() <= u64::from(self.config.mss);
            if self.pmtu.on_recovered() && one {
                self.congestion.on_undo(now);
                self.recovery.undo.stop();
            }
        }

        if !self.sent.has_departed() {
            // RFC 6298 §5.2: all is acknowledged. Or the remaining data has not departed: its
            // departure arms the timer.
            self.timers.cancel(Timer::Retransmit);
        } else if acked > 0 && (!partial || self.recovery.fast_retransmit.take_first_partial()) {
            // RFC 6298 §5.3; RFC 6582 §3.2 step 3: only the first partial acknowledgment restarts
            // the timer.
            self.arm_retransmission(now);
        } else if !self.timers.is_armed(Timer::Retransmit) {
            // A block covers the oldest byte, whose departure will not be reported any more.
            self.arm_retransmission(now);
        }
        self.schedule_probe(now);
        self.check_scoreboard();
    }

    /// Takes the acknowledged data, selectively or not, out of flight, and measures the round-trip
    /// time.
    fn deliver(
        &mut self,
        now: Instant,
        header: &Header,
        ack: u64,
        blocks: &Blocks,
    ) -> (Delivery, Option<Duration>) {
        let echo = header.options.timestamps.map(|ts| ts.echo_reply);
        let min_rtt_us = self.min_rtt.get_us();
        let arrival = Arrival {
            now,
            echo: echo.filter(|_| self.timestamps.are_negotiated()),
            timestamps: &self.timestamps,
            min_rtt_us,
            frto: self.recovery.frto,
        };
        let (rack, rate) = (&mut self.recovery.rack, &mut self.rate);
        let mut delivery = Delivery::default();
        self.sent
            .acknowledge(ack, now, |piece| delivery.add(piece, &arrival, rack, rate));
        for block in blocks.iter().filter_map(|block| above(block, ack)) {
            self.sent.sack(block, now, self.snd.mss, |piece| {
                delivery.add(piece, &arrival, rack, rate)
            });
        }
        rack.advance(delivery.fack);

        let by_timestamp = self.timestamp_round_trip(now, header, ack);
        let round_trip_us = match delivery.newest.filter(|_| !delivery.retransmitted) {
            _ if self.config.rtt_from_timestamps => by_timestamp,
            Some((at, all)) => self.round_trip_us(now, at, all),
            // For data sent twice, the answered transmission is unknown (Karn), and data delivered
            // with it may have waited for it. RFC 7323 §4: a timestamp resolves that, in
            // milliseconds.
            None if delivery.retransmitted && !delivery.awaited => by_timestamp,
            None => None,
        };
        if let Some(round_trip_us) = round_trip_us {
            self.on_round_trip(round_trip_us);
        }
        (delivery, round_trip_us.map(Duration::from_micros))
    }

    /// Returns the round-trip time, in microseconds, of data that departed `at` and is delivered
    /// now. `all`: its transmission is delivered to the end, so that the acknowledgment answers its
    /// last packet, or one that has left since.
    ///
    /// If not, the departure is still that of the last packet, and the first ones may have left
    /// before. A sample shorter than all earlier ones is then rejected, so that the minimum does
    /// not shrink.
    pub(crate) fn round_trip_us(&mut self, now: Instant, at: Instant, all: bool) -> Option<u64> {
        let sample_us = now.us_since(at);
        if all {
            self.min_rtt.on_sample(now, sample_us);
            return Some(sample_us);
        }
        let least_us = self.min_rtt.get_us();
        least_us.filter(|&us| sample_us >= us).map(|_| sample_us)
    }

    /// Returns the round-trip time, in microseconds, by the timestamp of a segment that
    /// acknowledges new data (RFC 7323 §4.1).
    pub(crate) fn timestamp_round_trip(
        &mut self,
        now: Instant,
        header: &Header,
        ack: u64,
    ) -> Option<u64> {
        let echo_reply = header.options.timestamps?.echo_reply;
        if ack == self.snd.una {
            return None;
        }
        let lifetime_us = now.us_since(self.opened);
        let round_trip_us = self
            .timestamps
            .round_trip_us(now, echo_reply, lifetime_us)?;
        self.stats.timestamp_round_trips.add(round_trip_us);
        Some(round_trip_us)
    }

    /// Advances SND.UNA.
    #[inline(always)]
    pub(crate) fn on_progress(&mut self, now: Instant, una: u64) {
        self.snd.una = una;
        self.rto.on_progress();
        self.on_departure_heard(now);
        if let Some(mss) = self.pmtu.on_ack(una, self.snd.mss) {
            self.set_mss(mss);
        }
        self.idle_since = now;
        let was_empty = self.queue.is_empty();
        let events = &mut self.events;
        let upto = (una - 1).min(self.queue.end());
        self.queue
            .acknowledge(upto, |object, end| events.released.push_back((object, end)));
        if !was_empty && self.queue.is_empty() {
            self.events.drained = true;
            // The connection may be idle for long.
            self.sent.shrink();
            self.queue.shrink();
        }
        self.wake_writer();
    }

    /// Handles the acknowledgment of our SYN.
    pub(crate) fn on_handshake_ack(&mut self, now: Instant, header: &Header) {
        self.deliver(now, header, 1, &Blocks::default());
        self.snd.una = 1;
    }

    /// Recovers data that was sent before the end of the handshake (RFC 7413 §4.2.2). A peer in
    /// SYN-SENT takes none (RFC 9293 §3.10.7.3): if the SYN,ACK was lost, so was the data behind
    /// it, without congestion.
    #[cold]
    pub(crate) fn recover_from_handshake(&mut self, now: Instant, syn_ack_was_lost: bool) {
        if !self.sent.has_departed() {
            return;
        }
        if syn_ack_was_lost && self.snd.una == 1 {
            self.sent.lose_departed(now, Duration::ZERO);
            self.recovery.phase = Phase::AfterTimeout;
            self.recovery.recover = self.snd.nxt;
            self.recovery.tlp.reset();
            self.timers.cancel(Timer::Pto);
            self.check_scoreboard();
        } else {
            self.arm_retransmission(now);
            self.bound_by_user_timeout();
            self.schedule_probe(now);
        }
    }

    /// Handles a D-SACK: the peer has received data twice.
    #[cold]
    fn on_dsack(&mut self, now: Instant, dsack: &Range<u64>) {
        if self.recovery.tlp.explains(dsack) {
            return;
        }
        self.recovery.rack.on_dsack(self.snd.una, self.snd.nxt);
        if self.recovery.undo.on_dsack(dsack) {
            self.undo(now);
        }
    }

    /// Undoes the reaction to a loss if the acknowledgment shows that the original was late, not
    /// lost.
    fn detect_spurious(
        &mut self,
        now: Instant,
        header: &Header,
        advances: bool,
        delivery: &Delivery,
        rtt: Option<Duration>,
    ) {
        let una = self.snd.una;
        let recovery = &mut self.recovery;
        let mut spurious = false;
        if advances {
            let echo = header.options.timestamps.map(|ts| ts.echo_reply);
            spurious = recovery.undo.is_original(una, echo, delivery.retransmitted);
        }
        if recovery.phase == Phase::AfterTimeout {
            let (nxt, mss) = (self.snd.nxt, u64::from(self.snd.mss));
            let open = nxt + mss <= una + self.snd.wnd;
            let waits = nxt <= self.queue.end() && !self.sent.is_full();
            spurious |= recovery.frto.on_ack(&frto::Answer {
                advances,
                complete: una >= recovery.recover,
                original: delivery.original,
                sack: self.sacks.is_permitted(),
                new_end: (open && waits).then_some(nxt + 2 * mss),
            });
        }
        if spurious {
            if recovery.undo.is_timeout()
                && let Some(rtt) = rtt
            {
                self.rtt.on_spurious_timeout(rtt);
            }
            self.undo(now);
        }
    }

    /// Restores the state before a spurious loss (RFC 4015 §3).
    #[cold]
    fn undo(&mut self, now: Instant) {
        let recovery = &mut self.recovery;
        if recovery.undo.is_timeout() {
            self.stats.spurious_timeouts += 1
        } else {
            recovery.rack.on_reordering()
        }
        recovery.undo.stop();
        recovery.frto.stop();
        recovery.fast_retransmit.reset();
        recovery.phase = Phase::Open;
        self.sent.find_lost();
        self.pmtu.on_recovered();
        self.congestion.on_undo(now);
    }

    fn on_probe_answer(
        &mut self,
        now: Instant,
        dsack: Option<&Range<u64>>,
        bare: bool,
        prior_flight: u64,
    ) {
        let answer = self.recovery.tlp.on_ack(self.snd.una, dsack, bare);
        // RFC 8985 §7.4: a loss repaired by the probe is a loss like any other.
        if answer == Answer::Repaired && self.recovery.phase == Phase::Open {
            self.on_loss(now, prior_flight);
        }
    }

    /// Reacts to a loss. `prior_flight`: bytes in flight before the loss was known.
    ///
    /// Selectively acknowledged data has left the network and is still part of FlightSize (RFC 5681
    /// §2, RFC 6675 §5 (4.2)): the path carried it together with the lost data.
    fn on_loss(&mut self, now: Instant, prior_flight: u64) {
        let flight = prior_flight.max(self.sent.outstanding());
        self.congestion.on_congestion(now, Signal::Loss, flight);
        // Evidence about earlier losses does not revert this reaction.
        self.recovery.undo.stop();
        self.ecn.on_reduced(self.snd.nxt);
    }

    /// [`Connection::detect_losses`] for an acknowledgment; `None` if the budget does not cover it.
    fn detect_losses_within_budget(&mut self, now: Instant) -> Option<u64> {
        if self.sent.may_have_losses() && !self.recovery.budget.on_ack(self.sent.records()) {
            let armed = self.timers.deadline(Timer::Reorder);
            self.timers
                .arm(Timer::Reorder, armed.min(now + POSTPONED_MAX));
            return None;
        }
        Some(self.detect_losses(now))
    }

    /// Marks lost data and arms the timer for the next loss (RFC 8985 §6.2 step 5). Returns the
    /// number of bytes marked.
    fn detect_losses(&mut self, now: Instant) -> u64 {
        if !self.sent.may_have_losses() {
            self.timers.cancel(Timer::Reorder);
            return 0;
        }
        let (newest, wait) = (self.recovery.rack.newest(), self.loss_wait());
        let (lost, next) = self.sent.lose_overtaken(now, newest, wait);
        self.rate.on_lost(lost);
        match next {
            Some(lost_at) => self.timers.arm(Timer::Reorder, Rack::deadline(lost_at)),
            None => self.timers.cancel(Timer::Reorder),
        }
        lost
    }

    fn loss_wait(&self) -> Duration {
        let srtt = self.rtt.srtt().unwrap_or_default();
        let network = Network {
            min_rtt: self.min_rtt.get().unwrap_or(srtt),
            srtt,
        };
        let recovering = self.recovery.phase != Phase::Open;
        let (sacked, mss) = (self.sent.sacked(), self.snd.mss);
        self.recovery.rack.wait(network, recovering, sacked, mss)
    }

    /// Handles the expiry of the reordering timer.
    pub(crate) fn on_reordering_timeout(&mut self, now: Instant) {
        let prior_flight = self.sent.flight();
        self.recovery.budget.spend();
        if self.detect_losses(now) == 0 {
            // The postponed detection had suspended the probe timer.
            self.schedule_probe(now);
            return;
        }
        if self.recovery.phase == Phase::Open {
            self.enter_fast_recovery(now, prior_flight);
        }
        self.reduce_rate(0, false);
        self.check_scoreboard();
    }

    /// `prior_flight`: bytes in flight before the loss was known.
    #[cold]
    fn enter_fast_recovery(&mut self, now: Instant, prior_flight: u64) {
        let unanswered = self.unanswered(prior_flight);
        self.on_loss(now, prior_flight + unanswered);
        let recovery = &mut self.recovery;
        recovery.phase = Phase::FastRecovery;
        recovery.recover = self.snd.nxt;
        recovery.prr.begin(prior_flight, unanswered);
        // Without SACK, the oldest segment is about to be marked lost.
        let lost_from = self.sent.first_lost(0).map(|lost| lost.start);
        let lost_from = lost_from.unwrap_or(self.snd.una);
        recovery.undo.begin(false, lost_from);
        recovery.tlp.reset();
        self.pmtu.on_loss(lost_from);
    }

    /// Leaves recovery: all data in flight at the detection of the loss is acknowledged.
    #[cold]
    fn leave_recovery(&mut self) {
        let recovery = &mut self.recovery;
        recovery.phase = Phase::Open;
        recovery.rack.on_recovered();
        recovery.frto.stop();
        recovery.fast_retransmit.reset();
        if !self.sacks.is_permitted() {
            self.sent.find_lost();
        }
    }

    /// Returns how many bytes are delivered and not yet replaced, as far as the window would have
    /// allowed replacing them with `flight` bytes in flight.
    fn unanswered(&self, flight: u64) -> u64 {
        match self.recovery.unanswered {
            0 => 0,
            bytes => bytes.min(self.cwnd().saturating_sub(flight)),
        }
    }

    /// In fast recovery, updates the rate reduction: the delivered bytes determine how much may be
    /// sent.
    fn reduce_rate(&mut self, delivered: u64, safe: bool) {
        if self.recovery.phase == Phase::FastRecovery {
            self.recovery.prr.update(&prr::Progress {
                delivered,
                flight: self.sent.flight(),
                safe,
                ssthresh: self.congestion.ssthresh(),
                mss: u64::from(self.snd.mss),
            });
        }
    }

    /// Handles a duplicate acknowledgment of a peer without SACK.
    fn on_duplicate_ack(&mut self, now: Instant) {
        if self.sent.outstanding() == 0 {
            return;
        }
        let (una, mss) = (self.snd.una, self.snd.mss);
        let recovery = &mut self.recovery;
        match recovery.phase {
            Phase::FastRecovery => recovery.fast_retransmit.inflate(mss),
            Phase::AfterTimeout => recovery.frto.stop(),
            // RFC 6582 §3.2 step 2: not if the duplicates may stem from our own retransmissions.
            Phase::Open => {
                if recovery.fast_retransmit.on_duplicate(mss)
                    && una > recovery.recover
                    && self.sent.has_departed()
                {
                    let outstanding = self.sent.outstanding();
                    self.enter_fast_recovery(now, self.sent.flight());
                    let lost = self.recovery.fast_retransmit.begin(una, outstanding, mss);
                    self.lose(lost);
                }
            }
        }
        self.check_scoreboard();
    }

    /// Handles an acknowledgment of `acked` new bytes by a peer without SACK.
    fn on_ack_without_sack(&mut self, acked: u64) {
        let (una, mss) = (self.snd.una, self.snd.mss);
        let fast_retransmit = &mut self.recovery.fast_retransmit;
        if self.recovery.phase != Phase::FastRecovery {
            fast_retransmit.on_ack();
        } else if fast_retransmit.on_partial_ack(una, acked, mss) && self.sent.has_departed() {
            let lost = fast_retransmit.lose(una, self.sent.outstanding(), mss);
            self.lose(lost);
        }
    }

    /// Marks positions as lost.
    fn lose(&mut self, positions: Range<u64>) {
        let lost_before = self.sent.lost();
        self.sent.lose_positions(positions);
        self.rate.on_lost(self.sent.lost() - lost_before);
    }

    /// Handles a retransmission timeout for data (RFC 6298 §5.4 to §5.7).
    pub(crate) fn lose_after_timeout(&mut self, now: Instant, again: bool) {
        // RFC 5682 §2.1 step 1: not if the timeout hits a recovery in progress.
        if self.recovery.phase == Phase::Open || again {
            self.recovery.frto.on_timeout(now)
        } else {
            self.recovery.frto.stop()
        }
        self.congestion
            .on_timeout(now, self.sent.outstanding(), again);
        self.ecn.on_reduced(self.snd.nxt);
        self.suspect_segment_size(now);
        // RFC 2018 §8 forgets all SACKs after a timeout. RFC 6675 §5.1 keeps them, and so do we
        // unless the peer shows that it has dropped the data.
        if self.sent.is_reneged() {
            self.sent.forget_sacks(now);
        }
        let lost_before = self.sent.lost();
        // RFC 8985 §6.3
        self.sent.lose_departed(now, self.loss_wait());
        self.rate.on_lost(self.sent.lost() - lost_before);
        // `on_timeout` has covered these losses.
        self.rate.take_newly_lost();
        let recovery = &mut self.recovery;
        recovery.phase = Phase::AfterTimeout;
        // RFC 6582 §3.2 step 4.
        recovery.recover = self.snd.nxt;
        recovery.fast_retransmit.reset();
        recovery.tlp.reset();
        recovery.undo.begin(true, self.snd.una);
        self.timers.cancel(Timer::Reorder);
        self.timers.cancel(Timer::Pto);
        self.check_scoreboard();
    }

    /// RFC 8985 §7.2: arms or cancels the probe timer, after a departure or an acknowledgment at
    /// `from`.
    #[inline(always)]
    pub(crate) fn schedule_probe(&mut self, from: Instant) {
        let tlp = &self.recovery.tlp;
        let applies = self.sacks.is_permitted()
            && match self.recovery.phase {
                Phase::Open => {
                    tlp.is_idle() && self.sent.sacked() == 0 && self.sent.tail().is_some()
                }
                // Nothing more leaves by itself, and no delivery reveals a loss.
                Phase::FastRecovery => {
                    tlp.may_probe_recovery()
                        && self.sent.lost() == 0
                        && !self.sent.has_undeparted()
                        && !self.sent.is_reneged()
                        && !self.timers.is_armed(Timer::Reorder)
                }
                Phase::AfterTimeout => false,
            }
            && !self.state.is_opening();
        if !applies {
            return self.timers.cancel(Timer::Pto);
        }
        // A receiver that waits for two full segments may delay its acknowledgment of anything
        // less, but not while it lacks data (RFC 5681 §4.2).
        let small = self.sent.flight() < 2 * u64::from(self.snd.mss);
        let delayed = small && self.recovery.phase == Phase::Open;
        let probe_at = from.after_us(Tlp::timeout_us(self.rtt.srtt_us(), delayed));
        let rto_at = self.timers.deadline(Timer::Retransmit);
        self.timers.arm(Timer::Pto, probe_at.min(rto_at));
    }

    /// Handles the expiry of the probe timer. Restarts the retransmission timer (RFC 8985 §7.3).
    pub(crate) fn on_probe_timeout(&mut self, now: Instant) {
        if self.recovery.phase == Phase::FastRecovery {
            let una = self.snd.una;
            let end = self.snd.nxt.min(una + u64::from(self.snd.mss));
            self.lose(una..end);
            self.recovery.tlp.on_recovery_probe();
        } else {
            self.recovery.tlp.on_timeout();
        }
        self.arm_retransmission(now);
        self.check_scoreboard();
    }

    /// Returns the congestion window in effect, recovery included.
    pub(crate) fn cwnd(&self) -> u64 {
        let window = if self.reduces_rate() {
            self.recovery.prr.window()
        } else {
            let inflation = self.recovery.fast_retransmit.inflation();
            let window = self.congestion.window();
            window.saturating_add_signed(inflation)
        };
        window.max(u64::from(self.snd.mss))
    }

    /// Returns true if proportional rate reduction sets the window.
    fn reduces_rate(&self) -> bool {
        self.recovery.phase == Phase::FastRecovery
            && self.sacks.is_permitted()
            && !self.congestion.rules_recovery()
    }

    /// Returns how many bytes of `lost` may be sent again.
    pub(crate) fn retransmission_room(&self, lost: &Range<u64>) -> u64 {
        let mss = u64::from(self.snd.mss);
        // The first segment goes even if the window has shrunk: it probes (RFC 9293 §3.8.6,
        // SHLD-15).
        let edge = self.snd.una + self.snd.wnd.max(mss);
        let peer_room = edge.saturating_sub(lost.start);
        let room = match self.recovery.phase {
            // Without SACK, data is marked lost only when it is to be sent.
            Phase::FastRecovery if !self.sacks.is_permitted() => return u64::MAX,
            Phase::FastRecovery if self.recovery.prr.forces_retransmission() => {
                self.cwnd().saturating_sub(self.sent.flight()).max(mss)
            }
            // Slow start, counted from SND.UNA: data that has not departed, or departed late, does
            // not count.
            Phase::AfterTimeout => self
                .cwnd()
                .saturating_sub(self.sent.flight_before(lost.start)),
            _ => self.cwnd().saturating_sub(self.sent.flight()),
        };
        room.min(peer_room)
    }

    pub(crate) fn check_scoreboard(&self) {
        #[cfg(debug_assertions)]
        self.sent.check(self.snd.una, self.snd.nxt);
    }
}
