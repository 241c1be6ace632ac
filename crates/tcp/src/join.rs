//! Connections whose segments another stack translates into those of another connection
//! ([`Connection::join_numbers`], [`Connection::rejoin`]).
//!
//! Two connections can be joined when both are quiet: all data received on one has been sent on the
//! other and acknowledged. From then on the two peers acknowledge each other's bytes, and a
//! connection here stands still until it receives its current numbers.

use crate::connection::Connection;
use crate::event::CloseReason;
use crate::receiver::rcv::WINDOW_SHIFT_MAX;
use crate::state::State;
use crate::time::Instant;
use crate::timer::Timer;
use wire::tcp::{Flags, Segment};

/// Largest window that can be offered, in bytes (RFC 7323 §2.3).
const WINDOW_BYTES_MAX: u64 = 0xffff << WINDOW_SHIFT_MAX;

/// Numbers of a quiet connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinNumbers {
    /// RCV.NXT.
    pub rcv_nxt: u32,
    /// SND.NXT, which is SND.UNA.
    pub snd_nxt: u32,
    /// SND.WND, in bytes.
    pub snd_window_bytes: u32,
    /// RCV.WND, in bytes.
    pub rcv_window_bytes: u32,
    /// Snd.Wind.Shift.
    pub snd_shift: u8,
    /// Rcv.Wind.Shift.
    pub rcv_shift: u8,
    /// Payload of a full packet, in bytes.
    pub mss: u16,
    /// SACK is permitted.
    pub sack: bool,
    /// ECN is agreed on.
    pub ecn: bool,
    /// TSval, which no earlier segment exceeds, and TS.Recent, if timestamps were negotiated.
    pub timestamps: Option<(u32, u32)>,
}

/// Numbers of a connection that another stack has carried on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RejoinNumbers {
    /// SND.NXT, which is SND.UNA.
    pub snd_nxt: u32,
    /// RCV.NXT.
    pub rcv_nxt: u32,
    /// SND.WND, in bytes.
    pub snd_window_bytes: u32,
    /// RCV.WND as the peer knows it, in bytes.
    pub rcv_window_bytes: u32,
    /// The last TSval sent to the peer.
    pub ts_value: u32,
    /// TS.Recent.
    pub ts_recent: u32,
}

impl Connection {
    /// Returns true if a segment brings text or FIN that has not arrived yet, and that no text
    /// waits for which has come ahead of its turn.
    pub fn brings_more(&self, segment: &Segment<'_>) -> bool {
        let header = &segment.header;
        let has_fin = header.flags.contains(Flags::FIN);
        let len = segment.payload.len() as u64 + u64::from(has_fin);
        if self.state != State::Established || header.flags.contains(Flags::RST) || len == 0 {
            return false;
        }
        let start = self.rcv.position(header.seq);
        let known = self.rcv.blocks().map(|block| block.end).max();
        let known = known.unwrap_or(0).max(self.rcv.nxt());
        start.saturating_add_unsigned(len) > known as i64
    }

    /// Returns true if a segment has news for the other direction: it acknowledges more, or moves
    /// the window.
    pub fn hears_news_in(&self, header: &wire::tcp::Header) -> bool {
        let ack = self.snd.space.position(header.ack, self.snd.una);
        let window = u64::from(header.window) << self.snd.shift;
        ack > self.snd.una as i64 || (ack == self.snd.una as i64 && window != self.snd.wnd)
    }

    /// Returns how many bytes [`Connection::write`] takes now.
    pub fn write_room(&self) -> usize {
        if self.fin_queued || self.state == State::Closed {
            return 0;
        }
        self.send_buffer_bytes()
            .saturating_sub(self.queue.real_bytes())
    }

    /// Returns the connection's numbers, if it is quiet: established, nothing is queued, sent or
    /// received that is not acknowledged or read, and nothing has come ahead of its turn.
    pub fn join_numbers(&self, now: Instant) -> Option<JoinNumbers> {
        let is_quiet = self.state == State::Established
            && !self.orphaned
            && !self.fin_queued
            && self.queue.is_empty()
            && self.snd.flight() == 0
            && self.sent.flight() == 0
            && self.sent.unreported() == 0
            && self.rcv.readable() == 0
            && !self.rcv.has_gaps()
            && self.reset.is_none();
        if !is_quiet {
            return None;
        }
        let remembered = self.timestamps.remembered();
        Some(JoinNumbers {
            rcv_nxt: self.rcv.wire_nxt(),
            snd_nxt: self.snd.space.wire(self.snd.nxt),
            snd_window_bytes: self.snd.wnd.min(WINDOW_BYTES_MAX) as u32,
            rcv_window_bytes: self.rcv.window().min(WINDOW_BYTES_MAX) as u32,
            snd_shift: self.snd.shift,
            rcv_shift: self.rcv.shift(),
            mss: self.snd.mss,
            sack: self.sacks.is_permitted(),
            ecn: self.ecn.is_agreed(),
            timestamps: remembered.map(|(_, recent)| (self.timestamps.value(now), recent)),
        })
    }

    /// Returns true if timestamps were negotiated.
    pub fn has_timestamps(&self) -> bool {
        self.timestamps.are_negotiated()
    }

    /// Stops all timers: another stack carries the connection on.
    pub fn stand_still(&mut self) {
        self.timers.cancel_all();
    }

    /// Continues from these numbers, quiet as before.
    pub fn rejoin(&mut self, now: Instant, numbers: &RejoinNumbers) {
        self.move_to(now, numbers);
        self.move_again(now);
    }

    /// Continues a connection that stood still.
    pub fn move_again(&mut self, now: Instant) {
        self.silence.on_heard(now);
        if let Some(keepalive) = self.config.keepalive {
            self.timers.arm(Timer::Keepalive, now + keepalive.idle);
        }
        // The acknowledgment reports the window, which is of another buffer again.
        self.acks.request();
    }

    /// Enters TIME-WAIT: both directions were closed in order meanwhile.
    pub fn finish_joined(&mut self, now: Instant, numbers: &RejoinNumbers) {
        self.move_to(now, numbers);
        self.fin_queued = true;
        self.enter_time_wait(now);
    }

    /// Ends the connection, which has ended elsewhere meanwhile.
    pub fn break_joined(&mut self, reason: CloseReason) {
        self.end(reason);
    }

    /// Changes the sequence numbers of the current positions. Positions stay, and so do the counts
    /// based on them.
    fn move_to(&mut self, now: Instant, numbers: &RejoinNumbers) {
        self.snd.space.place(self.snd.nxt, numbers.snd_nxt);
        self.snd.wnd = numbers.snd_window_bytes.into();
        self.snd.wnd_max = self.snd.wnd_max.max(self.snd.wnd);
        self.snd.wl1 = self.rcv.nxt() as i64;
        self.snd.wl2 = self.snd.una;
        (self.rcv).move_to(numbers.rcv_nxt, numbers.rcv_window_bytes.into());
        self.last_ack_sent = self.rcv.nxt();
        self.timestamps
            .move_to(now, numbers.ts_value, numbers.ts_recent);
        self.idle_since = now;
    }
}
