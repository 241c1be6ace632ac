//! Limits on accepted connections: per application and per source.
//!
//! While all places are taken, the application's listeners have no room and the stack leaves SYNs
//! unanswered; peers retransmit them, as with a full accept queue. If a source has its share of the
//! places, only its SYNs are left unanswered.

use std::net::IpAddr;

use host::app::StreamId;
use socket_channel::SocketId;

use crate::application::{App, Context};

/// Places per listener below which every change announces the room of all listeners, so that no
/// listener accepts a connection without a place.
const SCARCE: usize = 1024;

/// Free fraction of the places from which on the log may report exhaustion again.
const FREE_AGAIN: usize = 8;

impl App {
    /// Returns the number of connections for which a listener has places: free places are divided
    /// among all listeners.
    pub(crate) fn places_for(&self, listener: SocketId) -> usize {
        let (places, count) = (self.places_left(), self.listeners.len().max(1));
        let rank = self.listeners.iter().position(|id| *id == listener);
        let has_one_more = rank.is_some_and(|rank| rank < places % count);
        places / count + usize::from(has_one_more)
    }

    /// Announces the room of the listeners to the stack, and sources that have fallen below their
    /// share.
    pub(crate) fn announce_room(&mut self, cx: &mut Context<'_>) {
        let share = self.source_share();
        while let Some((ip, before)) = self.sources.take_freed() {
            if before == share {
                cx.io.set_source_room(self.owner(), ip, true);
            }
        }
        let (places, before) = (self.places_left(), self.announced_places);
        if places == before || places.min(before) >= SCARCE * self.listeners.len() {
            return;
        }
        self.announced_places = places;
        for id in self.listeners.clone() {
            self.bound_queue(cx, id);
        }
        if places == 0 && !self.listeners.is_empty() {
            self.note_out_of_places(cx);
        } else if places > self.places / FREE_AGAIN {
            self.is_out_of_places_logged = false;
        }
    }

    #[cold]
    fn note_out_of_places(&mut self, cx: &mut Context<'_>) {
        cx.counters.places_exhausted += 1;
        if !std::mem::replace(&mut self.is_out_of_places_logged, true) {
            tracing::warn!(
                app = self.id.0,
                sockets = self.places,
                "an application has as many sockets as it may have (sockets.sockets_max, \
                 sockets.segment): SYNs to it are not answered"
            );
        }
    }

    /// Returns the number of connections that an application accepts from one source.
    fn source_share(&self) -> u32 {
        let percent = self.grant.source_share_percent as usize;
        let share = (self.places * percent).div_ceil(100);
        u32::try_from(share).unwrap_or(u32::MAX).max(1)
    }

    /// Counts a new connection of a source. Once the source has its share, its SYNs are no longer
    /// answered; connections whose SYN was answered before are still accepted.
    pub(crate) fn admit(&mut self, cx: &mut Context<'_>, source: IpAddr) {
        let share = self.source_share();
        if self.sources.add(source) == share {
            cx.io.set_source_room(self.owner(), source, false);
            cx.counters.sources_exhausted += 1;
            if !std::mem::replace(&mut self.is_source_logged, true) {
                tracing::warn!(
                    app = self.id.0,
                    %source,
                    connections = share,
                    "a source has its share of an application's sockets \
                     (sockets.source_share_percent): further SYNs from it are not answered"
                );
            }
        }
    }

    /// Resets a connection without a place.
    pub(crate) fn refuse(&mut self, cx: &mut Context<'_>, stream: StreamId) {
        cx.counters.connections_refused += 1;
        cx.io.abort(stream);
    }
}
