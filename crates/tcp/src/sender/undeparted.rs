//! Transmissions that never left: a SEND, or its echo, can be lost between the host stack and the
//! NIC stack, and a NIC stack that starts again has forgotten all SENDs.
//!
//! Data that never left is not lost on the network, so it does not concern congestion control, loss
//! recovery or the round-trip time: it is issued again, under a new number, as if for the first
//! time. It counts as in flight, as it did before. The evidence that a transmission departed or did
//! not, in order of certainty:
//!
//! * an acknowledgment of the transmission, selective or not: it has left;
//! * the echo of a later transmission: the NIC stack lets a connection's transmissions depart in
//!   their order, so an earlier one without a report has left, too, or never will. It is taken to
//!   have left when the later one did: if it has not, loss recovery repairs it like any hole, and
//!   if it has, nothing is sent twice;
//! * the host's report that the NIC stack has forgotten it ([`Connection::on_undeparted_lost`],
//!   [`Connection::on_all_undeparted_lost`]): it has not left;
//! * silence, if the way to the NIC stack can lose anything at all
//!   ([`crate::Config::departure_timeout`]): it is taken not to have left.

use std::time::Duration;

use crate::config::Limits;
use crate::connection::Connection;
use crate::event::CloseReason;
use crate::sender::data::Data;
use crate::time::Instant;
use crate::timer::Timer;

impl Connection {
    /// Records that a transmission has not left and never will.
    /// [`poll_transmit`](Connection::poll_transmit) returns its data again, FIN included, as far as
    /// the peer has not acknowledged it; a report of the old number has no effect any more. A
    /// transmission that has departed, or was never issued, is left alone.
    ///
    /// This is no loss: congestion window, RTO and
    /// [`Transmit::retransmission`](crate::Transmit::retransmission) do not show it.
    pub fn on_undeparted_lost(&mut self, transmission: u64) {
        let bytes = self.sent.void(transmission, true);
        self.stats.lost_undeparted += u32::from(bytes > 0);
    }

    /// Records the same for all transmissions whose departure was not reported: the NIC stack has
    /// forgotten everything. Some may have left just before, so that their acknowledgments give no
    /// round-trip time.
    pub fn on_all_undeparted_lost(&mut self) {
        self.stats.lost_undeparted += self.sent.void_all();
        self.timers.cancel(Timer::Departure);
    }

    /// Returns data that never left, to be issued again.
    pub(crate) fn poll_void(&mut self, now: Instant, limits: &Limits) -> Option<Data> {
        let void = self.sent.first_void(limits.bytes_max as u64)?;
        let fin_position = self.fin_position();
        let packet_mss = self.packet_mss(now);
        let mss = u64::from(packet_mss);
        let len = void.end.min(fin_position).saturating_sub(void.start);
        let len = self.fit(void.start, len, mss, limits);
        let fin = void.end > fin_position && void.start + len == fin_position;
        let end = void.start + len + u64::from(fin);
        if end == void.start || (end < void.end && !self.sent.may_split(void.start)) {
            return None;
        }
        Some(Data::new(void.start, len, fin, packet_mss))
    }

    /// Concludes from a departure at `at` that no reports of earlier transmissions will come.
    /// Returns true if there were any.
    pub(crate) fn depart_unheard(&mut self, transmission: u64, at: Instant) -> bool {
        let unheard = self.sent.depart_unheard(transmission, at, &mut self.rate);
        self.stats.unheard += unheard;
        unheard > 0
    }

    /// Starts the departure timer for an issued transmission.
    pub(crate) fn await_departure(&mut self, now: Instant) {
        if let Some(timeout) = self.config.departure_timeout
            && !self.timers.is_armed(Timer::Departure)
        {
            self.arm_departure(now, timeout);
        }
    }

    #[inline(never)]
    fn arm_departure(&mut self, now: Instant, timeout: Duration) {
        let retry_limit = timeout.saturating_mul(1 << self.departure_timeouts.min(10));
        self.timers.arm(Timer::Departure, now + retry_limit);
    }

    /// Restarts the departure timer after a report of the NIC stack or an acknowledgment of the
    /// peer.
    pub(crate) fn on_departure_heard(&mut self, now: Instant) {
        self.departure_timeouts = 0;
        if self.timers.is_armed(Timer::Departure) {
            self.timers.cancel(Timer::Departure);
            if self.sent.has_undeparted() {
                self.await_departure(now);
            }
        }
    }

    /// Handles the departure timeout: the NIC stack has been silent for long.
    pub(crate) fn on_departure_timeout(&mut self) {
        if !self.sent.has_undeparted() {
            return;
        }
        self.departure_timeouts = self.departure_timeouts.saturating_add(1);
        if self.departure_timeouts > self.config.retries {
            return self.reset_peer(CloseReason::TimedOut);
        }
        self.on_all_undeparted_lost();
    }
}
