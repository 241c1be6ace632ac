//! Header prediction on the way out ([`crate::fast_path`] is the way in): when an acknowledgment
//! has opened the window, nearly always the next full segments of one long file go, and no other
//! part has anything to send. Then the windows alone decide.
//!
//! This is a shorter way to the decisions of [`Connection::poll_transmit_otherwise`], never a
//! different one: [`Connection::has_only_new_data`] excludes the cases that it does not examine,
//! and the tests of [`crate::fast_path`] go both ways and compare all state.

use crate::config::Limits;
use crate::connection::Connection;
use crate::recovery::state::Phase;
use crate::sender::data::Data;
use crate::state::State;
use crate::time::Instant;
use crate::timer::Timer;

impl Connection {
    /// Returns full segments of the file that is queued first, if more of the file stays behind
    /// them. `None`: nothing was done.
    #[inline]
    pub(crate) fn poll_bulk(&mut self, now: Instant, limits: &Limits) -> Option<Data> {
        if !self.has_only_new_data(now) {
            return None;
        }
        let snd = self.snd;
        let mss = u64::from(snd.mss);
        let window = self.congestion.window();
        let cwnd_room = window.max(mss).saturating_sub(self.sent.flight());
        let peer_room = (snd.una + snd.wnd).saturating_sub(snd.nxt);
        let bytes_max = self.unpaced_bytes(window).min(limits.bytes_max as u64);
        let len = cwnd_room.min(peer_room).min(bytes_max) / mss * mss;
        let end = snd.nxt + len;
        // As long as a full segment follows, no clause about the end of the data applies.
        let follows =
            limits.pieces_max > 0 && self.queue.is_of_first_object(snd.nxt - 1, end - 1 + mss);
        if len == 0 || !follows || self.pmtu.wanted(now, snd.mss).is_some() {
            return None;
        }
        self.persist.reset();
        self.timers.cancel(Timer::Persist);
        let (cwnd_room, peer_room) = (cwnd_room - len, peer_room - len);
        if cwnd_room < mss && cwnd_room <= peer_room {
            self.limited_until = end;
        }
        Some(Data {
            uses_up_window: self.leaves_no_room(end, peer_room, cwnd_room, mss),
            ..Data::new(snd.nxt, len, false, snd.mss)
        })
    }

    /// Returns true if there is nothing to send but data that was never sent, if that.
    #[inline]
    fn has_only_new_data(&self, now: Instant) -> bool {
        // No handshake, no FIN, no reset.
        matches!(self.state, State::Established | State::CloseWait)
            && !self.fin_queued
            && self.reset.is_none()
            // No acknowledgment is due, nor a report of out-of-order text.
            && !self.acks.is_owed()
            && self.sacks.is_permitted()
            && self.sacks.is_empty(&self.rcv)
            // No probe.
            && !self.persist.is_due()
            && self.recovery.tlp.is_idle()
            // Nothing is to be sent again.
            && self.recovery.phase == Phase::Open
            && self.sent.is_intact()
            && !self.sent.has_void()
            && !self.sent.is_full()
            // The connection does not come from idleness (RFC 5681 §4.1), nor is it paced.
            && (self.sent.flight() > 0 || now <= self.idle_since)
            && !self.may_be_paced()
    }
}
