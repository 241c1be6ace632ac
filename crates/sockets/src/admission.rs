//! How many connections the listeners of an application may still accept, and from where.
//!
//! While all places are taken, its listeners have no room, and the stack leaves SYNs unanswered;
//! peers repeat them, as with a full accept queue. A source that has its share of the places is
//! left unanswered alone.

use std::net::IpAddr;

use host::app::StreamId;
use socket_channel::SocketId;

use crate::application::{App, Context};

/// With fewer places left for each listener, all listeners have their room announced whenever that
/// changes: none is to accept a connection that has no place.
const SCARCE: usize = 1024;

/// Once such a part of the places is free, the log may report again that there are none.
const FREE_AGAIN: usize = 8;

impl App {
    /// Connections that a listener may accept as far as places go: those that are left are divided
    /// among all listeners.
    pub(crate) fn places_for(&self, listener: SocketId) -> usize {
        let (places, count) = (self.places_left(), self.listeners.len().max(1));
        let rank = self.listeners.iter().position(|id| *id == listener);
        let has_one_more = rank.is_some_and(|rank| rank < places % count);
        places / count + usize::from(has_one_more)
    }

    /// Announces to the stack the places that are taken or free, and the sources that are below
    /// their share again.
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

    /// Connections of a source that an application accepts.
    fn source_share(&self) -> u32 {
        let percent = self.grant.source_share_percent as usize;
        let share = (self.places * percent).div_ceil(100);
        u32::try_from(share).unwrap_or(u32::MAX).max(1)
    }

    /// A connection of a source arrives. With the last of its share, no SYN of the source is
    /// answered any more; connections whose SYN was answered before come all the same.
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

    /// A connection finds no place: it is reset.
    pub(crate) fn refuse(&mut self, cx: &mut Context<'_>, stream: StreamId) {
        cx.counters.connections_refused += 1;
        cx.io.abort(stream);
    }
}
