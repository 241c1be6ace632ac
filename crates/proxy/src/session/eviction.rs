//! Sessions that give up their connection to a backend because others wait for one, by the rules of
//! [`shares`](crate::shares).

use host::app::Io;

use super::{Phase, RESET, Session};
use crate::answer::Refusal;
use crate::shared::{Leave, Shared};

/// Shortest time that a session has had its connection, or that a tunnel has been idle, before it
/// is judged, in microseconds: the first acknowledgment takes a round trip, and a splice reports
/// once a second.
const JUDGED_AFTER_US: u64 = 1_000_000;
const TUNNEL_JUDGED_AFTER_US: u64 = 2 * JUDGED_AFTER_US;

impl Session {
    /// True if the session is a tunnel.
    pub(crate) fn is_tunnel(&self) -> bool {
        matches!(self.phase, Phase::Tunnel(_))
    }

    /// Returns the client's rate since the session got its connection to a backend, in bytes per
    /// second; `None` unless the client alone delays the session.
    pub(crate) fn rate_of_delay(&self, io: &dyn Io) -> Option<u64> {
        let now_us = io.now_us();
        let (bytes, since_us) = match &self.phase {
            Phase::Exchange(it) => {
                let since = it.since?;
                let is_delayed = match it.response {
                    None => it.awaits_body(&self.input, now_us),
                    Some(_) => !self.output.is_empty(),
                };
                let held_us = now_us.saturating_sub(since.at_us);
                if !is_delayed || held_us < JUDGED_AFTER_US {
                    return None;
                }
                let moved = self.moved_bytes(io, it).saturating_sub(since.moved_bytes);
                (moved, since.at_us)
            }
            Phase::Tunnel(tunnel) => {
                let idle_us = now_us.saturating_sub(self.moved_us);
                if idle_us < TUNNEL_JUDGED_AFTER_US {
                    return None;
                }
                (tunnel.bytes(), tunnel.since_us())
            }
            _ => return None,
        };
        let micros = u128::from(now_us.saturating_sub(since_us)).max(1);
        let rate = u128::from(bytes) * 1_000_000 / micros;
        Some(u64::try_from(rate).unwrap_or(u64::MAX))
    }

    /// Gives up the connection to a backend.
    pub(crate) fn evict(&mut self, io: &mut dyn Io, shared: &mut Shared) {
        let step = match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Exchange(it) if it.response.is_none() => {
                self.refuse(io, shared, it, Refusal::Evicted)
            }
            Phase::Exchange(it) => self.cut_short(io, shared, it),
            Phase::Tunnel(tunnel) => {
                self.break_tunnel(io, shared, *tunnel, Leave::Abort);
                io.abort(self.client);
                RESET
            }
            other => (other, false),
        };
        self.go_on(io, shared, step);
    }

    /// Handles the loss of the session's place in the queue to another session.
    pub(crate) fn on_displaced(&mut self, io: &mut dyn Io, shared: &mut Shared) {
        let step = match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Exchange(mut it) if it.attempt.is_queued() => {
                it.attempt.on_displaced();
                self.refuse(io, shared, it, Refusal::QueueFull)
            }
            Phase::Opening(mut opened) if opened.attempt.is_queued() => {
                opened.attempt.on_displaced();
                self.refuse_opening(io, shared, *opened, Refusal::QueueFull)
            }
            other => (other, false),
        };
        self.go_on(io, shared, step);
    }
}
