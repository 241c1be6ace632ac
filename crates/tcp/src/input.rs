//! Segment arrival, clause by clause (RFC 9293 §3.10.7).

use wire::tcp::{Flags, Header, Segment};

use crate::congestion::Signal;
use crate::connection::Connection;
use crate::event::CloseReason;
use crate::receiver::ack::{SEGMENT_BYTES_MIN, Urgency};
use crate::receiver::rcv::Arrival;
use crate::reset::Reset;
use crate::state::State;
use crate::time::Instant;
use crate::time_wait::Reaction;
use crate::timer::Timer;
use crate::timestamps::Verdict;

impl Connection {
    /// Processes a segment of this connection. Its payload may be longer than the MSS, if packets
    /// were merged on reception.
    pub fn on_segment(&mut self, now: Instant, segment: &Segment<'_>) {
        if self.on_expected_ack(now, segment) {
            return;
        }
        match self.state {
            State::Closed => self.on_segment_in_closed(&segment.header),
            State::SynSent => self.on_segment_in_syn_sent(now, segment),
            State::TimeWait => self.on_segment_in_time_wait(now, segment),
            _ => self.on_segment_otherwise(now, segment),
        }
    }

    /// §3.10.7.3
    #[cold]
    fn on_segment_in_syn_sent(&mut self, now: Instant, segment: &Segment<'_>) {
        let header = &segment.header;
        let has = |flag| header.flags.contains(flag);
        // First, check the ACK bit. If SEG.ACK =< ISS or SEG.ACK > SND.NXT, send a reset (unless
        // the RST bit is set), and discard. SND.UNA < SEG.ACK =< SND.NXT is acceptable.
        let ack = self.snd.space.position(header.ack, self.snd.una);
        let acceptable_ack = 0 < ack && ack <= self.snd.nxt as i64;
        if has(Flags::ACK) && !acceptable_ack {
            if !has(Flags::RST) {
                self.refuse_ack(now, header);
            }
            return;
        }
        // Second, check the RST bit: with an acceptable ACK the connection is reset, otherwise
        // drop.
        if has(Flags::RST) {
            if has(Flags::ACK) {
                self.end(CloseReason::Refused);
            }
            return;
        }
        // Fifth, if neither SYN nor RST is set, drop.
        if !has(Flags::SYN) {
            return;
        }
        // Fourth, check the SYN bit.
        self.on_peer_syn(now, header);
        self.ecn.on_syn(self.config.ecn, segment);
        if has(Flags::ACK) {
            self.on_handshake_ack(now, header);
            self.establish(now);
            self.update_window(header, self.rcv.position(header.seq), ack as u64, 0);
            self.acks.request();
            // "If there are other controls or text in the segment, then continue processing at the
            // sixth step". The text begins behind the SYN.
            self.on_text_and_fin(now, segment, self.rcv.nxt() as i64);
        } else {
            // Simultaneous open: enter SYN-RECEIVED, form <SEQ=ISS><ACK=RCV.NXT><CTL=SYN,ACK>. Text
            // is not kept; the peer sends it again.
            self.state = State::SynReceived;
            self.sent.lose_positions(0..1);
        }
    }

    /// §3.10.7.1: RST where the peer expects more. It may have nothing further to send, so the
    /// answer cannot wait until the owner has dropped the connection.
    #[cold]
    fn on_segment_in_closed(&mut self, header: &Header) {
        if header.flags.contains(Flags::RST) || !header.flags.contains(Flags::ACK) {
            return;
        }
        match self.reset.as_deref_mut() {
            Some(Reset::Abort(boundaries)) => boundaries.add(header.ack),
            Some(Reset::UnacceptableAck { .. }) => {}
            None => self.reset = Some(Box::new(Reset::UnacceptableAck { seq: header.ack })),
        }
    }

    #[cold]
    fn on_segment_in_time_wait(&mut self, now: Instant, segment: &Segment<'_>) {
        let Some(time_wait) = &mut self.time_wait else {
            return;
        };
        let reaction = time_wait.react(now, segment);
        self.timers.arm(Timer::Linger, time_wait.expires());
        match reaction {
            Reaction::Nothing => {}
            Reaction::Acknowledge => self.acks.request(),
            Reaction::Close => self.end(CloseReason::Finished),
        }
    }

    /// §3.10.7.4: SYN-RECEIVED and the synchronized states.
    pub(crate) fn on_segment_otherwise(&mut self, now: Instant, segment: &Segment<'_>) {
        let header = &segment.header;
        let has = |flag| header.flags.contains(flag);
        let mut payload = segment.payload;
        let mut start = self.rcv.position(header.seq);

        // A SYN again, while ours is not acknowledged. If it carries the ACK that completes a
        // simultaneous open (§3.5, figure 8), the rest is processed as if the SYN, a duplicate,
        // were not there. If not, our SYN,ACK is lost: repeat it. The bare ACK that the first check
        // would send does not help the peer.
        let mut repeated_syn = false;
        if self.state == State::SynReceived && has(Flags::SYN) && start == 0 && !has(Flags::RST) {
            if !has(Flags::ACK) {
                self.ecn.on_syn(self.config.ecn, segment);
                if self.allows_unacceptable(now) {
                    self.sent.lose_positions(0..1);
                }
                return;
            }
            repeated_syn = true;
            start = 1;
            payload = &[];
        }
        let syn = has(Flags::SYN) && !repeated_syn;

        // RFC 7323 §5.3 R1, before all other tests. §5.2: resets are exempt.
        if !has(Flags::RST) {
            match self.timestamps.check(now, header.options.timestamps) {
                Verdict::Accept => {}
                Verdict::Missing => {
                    self.stats.timestamps_missing = self.stats.timestamps_missing.saturating_add(1);
                    // §3.2 SHOULD drop stalls connections on a path that strips the option. A
                    // forger has to guess all of RCV.NXT, as RFC 5961 §3.2 requires for a reset.
                    let nxt = self.rcv.nxt() as i64;
                    if start != nxt || syn {
                        // A retransmission, or a probe: our acknowledgment may be lost. Answers
                        // have a limit.
                        if start < nxt && self.allows_unacceptable(now) {
                            self.acks.request_duplicate();
                        }
                        return;
                    }
                }
                Verdict::Old => return self.on_unacceptable(now, header, start, payload),
            }
        }

        // First, check the sequence number.
        let len = payload.len() as u64 + u64::from(syn) + u64::from(has(Flags::FIN));
        let mut text_acceptable = true;
        if !self.rcv.accepts(start, len) {
            // "If the RCV.WND is zero, no segments will be acceptable, but special allowance should
            // be made to accept valid ACKs, URGs, and RSTs."
            let allowance = self.rcv.window() == 0 && start == self.rcv.nxt() as i64;
            if !allowance {
                // "Unless the RST bit is set, in which case drop the segment and return"
                if !has(Flags::RST) {
                    if start == self.rcv.nxt() as i64 - 1 {
                        self.on_window_probe(now);
                    }
                    self.on_unacceptable(now, header, start, payload);
                }
                return;
            }
            self.acks.request_duplicate();
            text_acceptable = false;
        }

        // RFC 5961 §3.2: a reset at the right edge lies outside of the window, other than a bare
        // acknowledgment.
        if has(Flags::RST) && start != self.rcv.nxt() as i64 && start >= self.rcv.edge() {
            return;
        }
        self.silence.on_heard(now);
        // Second, check the RST bit.
        if has(Flags::RST) {
            return self.on_reset(now, start);
        }

        // Fourth, check the SYN bit.
        if syn {
            match (self.state, self.passive) {
                // "If the connection was initiated with a passive OPEN, then return this connection
                // to the LISTEN state."
                (State::SynReceived, true) if !self.is_fast_open => self.end(CloseReason::Refused),
                // RFC 5961 §4.2: a challenge ACK, for any sequence number.
                _ => self.challenge(now),
            }
            return;
        }

        // Fifth, check the ACK field. If the ACK bit is off, drop.
        if !has(Flags::ACK) || !self.on_ack(now, header, start, payload.len()) {
            return;
        }
        self.on_window_probe(now);
        // RFC 7323 §5.3 R3, with the condition of §4.3: SEG.SEQ =< Last.ACK.sent. Not before the
        // segment has proven by its acknowledgment (RFC 5961 §5.2) that it is the peer's: a forged
        // TS.Recent would make all segments of the peer look old.
        if start <= self.last_ack_sent as i64 {
            self.timestamps
                .update_recent(now, header.options.timestamps);
        }
        if repeated_syn {
            // RFC 3168 §6.1.1: a peer whose SYN has asked for ECN may still decline.
            self.ecn.on_syn(self.config.ecn, segment);
            self.acks.request();
        }

        // Sixth, check the URG bit: urgent data is text like any other (RFC 6093 recommends
        // inline). Seventh, process the segment text. Eighth, check the FIN bit.
        if text_acceptable && !repeated_syn {
            self.on_text_and_fin(now, segment, start);
        }
    }

    /// Restarts FIN-WAIT-2's timer when the peer is present, perhaps probing the window that we
    /// have closed: then the peer is not silent, we hold it up.
    fn on_window_probe(&mut self, now: Instant) {
        if self.rcv.readable() > 0 {
            self.arm_fin_wait_2(now);
        }
    }

    /// An unacceptable segment is answered with <SEQ=SND.NXT><ACK=RCV.NXT><CTL=ACK>.
    #[cold]
    fn on_unacceptable(&mut self, now: Instant, header: &Header, start: i64, payload: &[u8]) {
        // Text means that the peer lacks our acknowledgment. Without text two ends that disagree
        // could go on answering each other.
        let is_text = !payload.is_empty() && !header.flags.contains(Flags::SYN);
        if is_text {
            self.note_duplicate(start, payload.len());
        }
        if is_text || self.allows_unacceptable(now) {
            self.acks.request_duplicate();
        }
    }

    /// Records which part of a text had arrived before (RFC 2883).
    fn note_duplicate(&mut self, start: i64, len: usize) {
        if let Some(duplicate) = self.rcv.duplicate_of(start, len) {
            self.sacks.on_duplicate(duplicate);
        }
    }

    fn allows_unacceptable(&mut self, now: Instant) -> bool {
        let config = &self.config;
        self.unacceptable.allows(
            now,
            config.challenge_acks_max,
            config.challenge_acks_interval,
        )
    }

    /// Requests a challenge ACK, unless there were too many (RFC 5961 §7).
    #[cold]
    fn challenge(&mut self, now: Instant) {
        let config = &self.config;
        if self.challenges.allows(
            now,
            config.challenge_acks_max,
            config.challenge_acks_interval,
        ) {
            self.acks.request_duplicate();
        }
    }

    /// Requests <SEQ=SEG.ACK><CTL=RST>: the peer acknowledges data not sent in this incarnation.
    #[cold]
    fn refuse_ack(&mut self, now: Instant, header: &Header) {
        if self.allows_unacceptable(now) {
            self.reset = Some(Box::new(Reset::UnacceptableAck { seq: header.ack }));
        }
    }

    /// Handles a reset in the window (RFC 5961 §3.2).
    #[cold]
    fn on_reset(&mut self, now: Instant, start: i64) {
        // "If the sequence number does not exactly match the next expected sequence value, yet is
        // within the current receive window, TCP endpoints MUST send an acknowledgment (challenge
        // ACK)."
        if start != self.rcv.nxt() as i64 {
            return self.challenge(now);
        }
        match self.state {
            State::SynReceived => self.end(CloseReason::Refused),
            // CLOSING, LAST-ACK: "enter the CLOSED state", without a signal. Both ends have closed;
            // it is an error only if our data has not all been acknowledged.
            State::Closing | State::LastAck if self.queue.is_empty() => {
                self.end(CloseReason::Finished)
            }
            _ => self.end(CloseReason::Reset),
        }
    }

    /// Handles the ACK that a connection in SYN-RECEIVED waits for.
    #[cold]
    fn complete_handshake(&mut self, now: Instant, header: &Header, start: i64, ack: u64) {
        let syn_ack_was_lost = self.rto.timeouts() > 0;
        self.on_handshake_ack(now, header);
        self.establish(now);
        // RFC 7323 §2.2: the window of a SYN, also of one that completes a simultaneous open, is
        // not scaled.
        let shift = if header.flags.contains(Flags::SYN) {
            0
        } else {
            self.snd.shift
        };
        self.update_window(header, start, ack, shift);
        if self.is_fast_open {
            self.on_acknowledgment(now, header, ack, false);
            self.recover_from_handshake(now, syn_ack_was_lost);
        }
    }

    /// Fifth: the ACK field. Returns false if the segment is to be dropped.
    fn on_ack(&mut self, now: Instant, header: &Header, start: i64, text_len: usize) -> bool {
        let snd = self.snd;
        let ack = snd.space.position(header.ack, snd.una);
        if self.state == State::SynReceived {
            // "If SND.UNA < SEG.ACK =< SND.NXT, then enter ESTABLISHED state. If the segment
            // acknowledgment is not acceptable, form a reset segment <SEQ=SEG.ACK><CTL=RST> and
            // send it."
            if ack <= 0 || ack > snd.nxt as i64 {
                self.refuse_ack(now, header);
                return false;
            }
            self.complete_handshake(now, header, start, ack as u64);
            return true;
        }
        // RFC 5961 §5.2: SND.UNA - MAX.SND.WND =< SEG.ACK =< SND.NXT, or the segment is discarded
        // and an ACK sent back.
        if ack > snd.nxt as i64 || ack < (snd.una as i64).saturating_sub_unsigned(snd.wnd_max) {
            self.challenge(now);
            return false;
        }
        // An older acknowledgment has no effect; the text may still be good.
        let Ok(ack) = u64::try_from(ack) else {
            return true;
        };
        if ack < snd.una {
            // Its blocks stay true: ACKs overtake each other.
            if header.options.sack[0].is_some() && self.sacks.is_permitted() {
                self.on_acknowledgment(now, header, ack, false);
            }
            return true;
        }
        let window = u64::from(header.window) << snd.shift;
        // The peer is present, and answers window probes.
        self.persist.on_answer();
        if window == 0 {
            // RFC 9293 §3.8.6.1, MUST-37: as long as it answers, a closed window is no reason to
            // give up.
            self.rto.on_progress();
        }
        let news = ack > snd.una || snd.flight() > 0;
        if news && self.ecn.is_echo(header.flags) && self.ecn.must_reduce(ack) {
            self.congestion
                .on_congestion(now, Signal::Ecn, self.sent.outstanding());
            // Evidence about earlier losses does not revert this reduction.
            self.recovery.undo.stop();
            self.recovery.frto.stop();
            self.ecn.on_reduced(snd.nxt);
            self.stats.ecn_reductions += 1;
        }
        // RFC 5681 §2: definition of a duplicate acknowledgment.
        let duplicate = ack == snd.una
            && text_len == 0
            && !header.flags.contains(Flags::FIN)
            && window == snd.wnd;
        self.on_acknowledgment(now, header, ack, duplicate);
        // "If SND.WL1 < SEG.SEQ or (SND.WL1 = SEG.SEQ and SND.WL2 =< SEG.ACK)". A segment that
        // acknowledges more than any before is newer, too, though a retransmission has an older
        // SEG.SEQ. The window counts from SND.UNA: to advance one without the other would move the
        // right edge.
        if ack > snd.una || snd.wl1 < start || (snd.wl1 == start && snd.wl2 <= ack) {
            self.update_window(header, start, ack, snd.shift);
        }
        if self.fin_queued && self.snd.una > self.fin_position() {
            self.on_fin_acked(now);
        }
        self.state != State::Closed
    }

    pub(crate) fn update_window(&mut self, header: &Header, start: i64, ack: u64, shift: u8) {
        self.snd.wnd = u64::from(header.window) << shift;
        self.snd.wnd_max = self.snd.wnd_max.max(self.snd.wnd);
        self.snd.wl1 = start;
        self.snd.wl2 = ack;
    }

    fn on_fin_acked(&mut self, now: Instant) {
        match self.state {
            State::FinWait1 => {
                self.state = State::FinWait2;
                self.arm_fin_wait_2(now);
            }
            State::Closing => self.enter_time_wait(now),
            State::LastAck => self.end(CloseReason::Finished),
            _ => {}
        }
    }

    fn arm_fin_wait_2(&mut self, now: Instant) {
        if let (State::FinWait2, Some(silence)) = (self.state, self.config.fin_wait_2) {
            self.timers.arm(Timer::Linger, now + silence);
        }
    }

    /// Seventh: text, from position `start` on; eighth: FIN.
    fn on_text_and_fin(&mut self, now: Instant, segment: &Segment<'_>, start: i64) {
        // "CLOSE-WAIT, CLOSING, LAST-ACK: This should not occur since a FIN has been received from
        // the remote side. Ignore the segment text."
        if !self.state.takes_text() {
            return;
        }
        let text = segment.payload;
        if !text.is_empty() {
            let end = start.saturating_add_unsigned(text.len() as u64);
            if self.orphaned && end > self.rcv.nxt() as i64 {
                return self.reset_peer(CloseReason::Aborted);
            }
            self.arm_fin_wait_2(now);
            if self.ecn.on_text(segment) {
                self.acks.request();
            }
            let buffer_bytes = self.rcv.buffer_bytes();
            let (read, srtt) = (self.rcv.read_bytes(), self.rtt.srtt());
            if let Some(bytes) = self.rcv_autotune.on_text(now, read, srtt, buffer_bytes) {
                self.rcv.grow(bytes);
            }
            self.note_duplicate(start, text.len());
            match self.rcv.on_text(start, text) {
                Arrival::Nothing => self.acks.request_duplicate(),
                // RFC 5681 §4.2: at once, out of order or filling a gap.
                Arrival::OutOfOrder => {
                    self.quick_acks.on_gap(self.config.quick_acks);
                    if let Some(block) = self.rcv.block_at(start as u64) {
                        self.sacks.on_out_of_order(&block);
                    }
                    self.acks.request_duplicate();
                }
                Arrival::FilledGap => {
                    self.events.readable = true;
                    self.acks.request();
                }
                Arrival::InOrder(bytes) => {
                    self.events.readable = true;
                    let mss = self.receive_mss();
                    // Less than a full segment that was pushed is the end of a message.
                    let bulk = bytes >= usize::from(mss)
                        || bytes >= SEGMENT_BYTES_MIN as usize
                            && !segment.header.flags.contains(Flags::PSH);
                    let (quick_acks, rto) = (self.config.quick_acks, self.rto());
                    if self.quick_acks.on_text(now, bulk, quick_acks, rto) {
                        self.acks.request();
                    }
                    let urgency = self.acks.on_text(bytes, mss);
                    if urgency == Urgency::Later && !self.timers.is_armed(Timer::DelayedAck) {
                        self.timers
                            .arm(Timer::DelayedAck, now + self.config.delayed_ack);
                    }
                }
            }
        }
        if segment.header.flags.contains(Flags::FIN) {
            let position = start.saturating_add_unsigned(text.len() as u64);
            self.rcv.on_fin(position);
            if text.is_empty() && position > self.rcv.nxt() as i64 {
                self.acks.request_duplicate();
            }
        }
        if self.rcv.take_fin() {
            self.on_peer_fin(now);
        }
    }

    /// "Advance RCV.NXT over the FIN, and send an acknowledgment for the FIN."
    fn on_peer_fin(&mut self, now: Instant) {
        self.acks.request();
        self.events.peer_finished = true;
        match self.state {
            State::Established => self.state = State::CloseWait,
            // Had our FIN been acknowledged, the fifth step had entered FIN-WAIT-2.
            State::FinWait1 => self.state = State::Closing,
            State::FinWait2 => self.enter_time_wait(now),
            _ => {}
        }
    }
}
