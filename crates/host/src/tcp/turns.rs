//! Connections to serve, their timers, and the counts of each turn.

use std::collections::VecDeque;

use netdev::Port;
use tcp::Instant;

use super::TcpLayer;
use super::transmit::acknowledge_below;
use crate::app::{AppEvent, Application};
use crate::counters::Counters;
use crate::ground::Ground;
use crate::tables::connections::{ConnectionHandle, Entry};
use crate::timer::TimerWheel;

impl TcpLayer {
    /// Sends a connection's output, and forgets it once it is over. Its events have been reported.
    #[inline]
    pub(crate) fn end_turn<P: Port, A: Application>(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        handle: ConnectionHandle,
        port: &mut P,
        app: &A,
    ) {
        let Some(entry) = self.connections.get_mut(handle) else {
            return;
        };
        entry.dirty = false;
        let is_share_stale = std::mem::take(&mut entry.is_share_stale);
        count_stats(&mut ground.counters, entry);
        // If everything departs at issue, only reports count.
        if !ground.config.departs_at_issue {
            count_sends(&mut ground.sends_outstanding, entry);
        }
        let may_send = entry.tls.is_none() || self.define_records(ground, now_us, handle);
        let is_reachable = self.transmit(ground, now_us, handle, port, may_send);
        let Some(entry) = self.connections.get_mut(handle) else {
            return;
        };
        acknowledge_below(&mut ground.counters, &mut ground.workers, entry);
        // Not before the peer's FIN is acknowledged: the table does not know that this is still to
        // be done.
        if let Some(time_wait) = entry.tcp.time_wait().filter(|_| is_reachable) {
            let tuple = entry.tuple;
            self.forget(ground, handle);
            self.time_waits.insert(&tuple, time_wait);
        } else if entry.tcp.is_closed() {
            // If it ended just now, for want of a route, the application first gets its `Closed`.
            if entry.told {
                queue_dirty(&mut self.dirty, entry);
            } else {
                self.forget(ground, handle);
            }
        } else {
            arm_timer(&mut self.wheel, entry);
            if entry
                .notsent_lowat
                .is_some_and(|bytes| entry.notsent_bytes() <= bytes)
            {
                entry.notsent_lowat = None;
                ground
                    .app_events
                    .push_back((entry.stream, AppEvent::Writable));
            }
            let becomes_orphan = entry.orphan_since.is_none() && entry.tcp.has_sent_fin();
            if entry.nic.is_to_move {
                self.move_on(ground, handle);
            }
            if becomes_orphan {
                self.bound_orphans(ground, handle);
            }
            if is_share_stale || ground.memory.is_near() {
                self.charge(ground, handle, app);
            }
        }
    }

    pub(crate) fn on_wheel(&mut self, ground: &mut Ground, now_us: u64, handle: ConnectionHandle) {
        let Some(entry) = self.connections.get_mut(handle) else {
            return;
        };
        let now = Instant::from_us(now_us);
        entry.armed_us = u64::MAX;
        if entry.tcp.next_timeout().is_some_and(|at| at <= now) {
            entry.tcp.on_timeout(now);
        }
        if let Some(tls) = entry.tls.as_mut() {
            tls.on_timeout(&mut entry.tcp, now_us);
        }
        if entry.app_deadline_us.is_some_and(|at| at <= now_us) {
            ground.app_events.push_back((entry.stream, AppEvent::Timer));
        }
        self.mark_dirty(handle);
    }

    pub(crate) fn mark_dirty(&mut self, handle: ConnectionHandle) {
        if let Some(entry) = self.connections.get_mut(handle) {
            queue_dirty(&mut self.dirty, entry);
        }
    }

    /// Returns the next connection that waits for room in a ring which has some, and marks it
    /// dirty. The others keep waiting: only as many connections are looked at as can send.
    #[inline]
    pub(crate) fn next_with_room(&mut self, ground: &mut Ground) -> Option<ConnectionHandle> {
        for nic in &mut ground.workers {
            while nic.retries > 0 && nic.has_room() {
                nic.retries -= 1;
                let Some(handle) = nic.waiting.take() else {
                    nic.retries = 0;
                    break;
                };
                // The connection may be gone; if it is dirty, its turn comes in any case.
                if let Some(entry) = self.connections.get_mut(handle)
                    && !std::mem::replace(&mut entry.dirty, true)
                {
                    return Some(handle);
                }
            }
        }
        None
    }
}

/// Queues the connection to be served.
#[inline]
pub(crate) fn queue_dirty(dirty: &mut VecDeque<ConnectionHandle>, entry: &mut Entry) {
    if !std::mem::replace(&mut entry.dirty, true) {
        dirty.push_back(entry.handle());
    }
}

/// Adds the connection's statistics to the counters.
#[inline]
pub(crate) fn count_stats(counters: &mut Counters, entry: &mut Entry) {
    let (round_trips, timestamp_round_trips) = entry.tcp.take_round_trips();
    counters.round_trips += u64::from(round_trips.count);
    counters.round_trips_us += round_trips.sum_us;
    counters.timestamp_round_trips += u64::from(timestamp_round_trips.count);
    counters.timestamp_round_trips_us += timestamp_round_trips.sum_us;
    if entry.tcp.has_rare_stats() {
        count_rare_stats(counters, &entry.tcp.take_stats());
    }
}

/// Adds the statistics that few ACKs change.
#[cold]
pub(crate) fn count_rare_stats(counters: &mut Counters, stats: &tcp::Stats) {
    counters.sends_repeated += u64::from(stats.lost_undeparted);
    counters.timeouts += u64::from(stats.timeouts);
    counters.spurious_timeouts += u64::from(stats.spurious_timeouts);
    counters.ecn_reductions += u64::from(stats.ecn_reductions);
    counters.timestamps_missing += u64::from(stats.timestamps_missing);
}

/// Updates the number of undeparted SENDs of a connection, and of all. TCP learns of departures
/// from reports, and from the peer's acknowledgments even if a report is lost.
pub(crate) fn count_sends(sends_outstanding: &mut u64, entry: &mut Entry) {
    let undeparted = entry.tcp.undeparted_transmissions() as u64;
    *sends_outstanding -= std::mem::replace(&mut entry.nic.sends_outstanding, undeparted);
    *sends_outstanding += undeparted;
}

/// Arms the connection's timer for its earliest deadline. One that has moved away leaves the timer
/// where it is: it fires, and is armed for the later time.
pub(crate) fn arm_timer(wheel: &mut TimerWheel, entry: &mut Entry) {
    let tcp_us = entry.tcp.next_timeout().map_or(u64::MAX, Instant::as_us);
    let mut deadline_us = tcp_us.min(entry.app_deadline_us.unwrap_or(u64::MAX));
    if let Some(tls) = &entry.tls {
        deadline_us = deadline_us.min(tls.deadline_us().unwrap_or(u64::MAX));
    }
    if deadline_us < entry.armed_us {
        entry.armed_us = deadline_us;
        wheel.arm(entry.handle().place(), deadline_us);
    }
}
