//! The account of the memory that peers make the host process hold, and the connections that are
//! reset when it is too much.
//!
//! It has, of each connection, received data that was not read, in order or not, real bytes that
//! are queued and not acknowledged, TLS buffers, and the application's memory for its streams:
//! heads, bodies, pages. Capacities count, not lengths. The fixed part of a connection, with its
//! entries in tables, is not in it: the number of connections bounds that.
//!
//! Each connection has a share in the sum, which is updated when its peer has sent text. Rounds
//! update a few shares each millisecond, so that acknowledgments cost nothing; they also find
//! growth by other events, such as a backend's text in the queue of a client. Once half of the
//! bound is in use, a share is updated whenever its connection is served.
//!
//! | Memory | What happens |
//! |---|---|
//! | above three quarters of the bound | windows open no further than some kilobytes, until half of it is free |
//! | above the bound | the source that holds most loses its largest connection, of equals the oldest, and so on, until an eighth of the bound is free |

use std::collections::HashMap;

use crate::app::{Application, StreamId, StreamMemory};
use crate::episode::Episode;
use crate::ground::Ground;
use crate::ground::Layers;
use crate::tables::connections::{ConnectionHandle, Entry};
use crate::tables::sources::Source;
use crate::tables::victims::{self, Holder};

/// Interval between the steps of a round, in microseconds.
const LOOK_US: u64 = 1000;

/// Connections examined in a step.
const LOOK_CONNECTIONS: usize = 128;

/// The same while more than half of the bound is in use.
const LOOK_CONNECTIONS_NEAR: usize = 512;

/// Pause between two rounds while at most an eighth of the bound is in use, in microseconds.
const PAUSE_US: u64 = 250_000;

/// The same above that.
const PAUSE_FILLED_US: u64 = 5000;

/// Most connections reset at once.
const VICTIMS_MAX: usize = 4096;

/// Pause after resets that did not free enough, in microseconds: the search goes through all
/// connections.
const FUTILE_US: u64 = 100_000;

/// A holder of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum HolderId {
    Tcp(StreamId),
    /// The place of a QUIC connection.
    Quic(usize),
}

/// The sum of all shares, and a round through the tables of connections.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// The sum, in bytes.
    bytes: usize,
    is_pressed: bool,
    /// Shares are updated whenever connections are served.
    is_near: bool,
    next_look_us: u64,
    next_eviction_us: u64,
    /// The next place of the round in progress; places of QUIC come last.
    place: usize,
    pressure: Episode,
    exhausted: Episode,
}

impl Memory {
    /// True if memory is short: connections hold as little as they can.
    pub(crate) fn is_pressed(&self) -> bool {
        self.is_pressed
    }

    /// True if a connection's share is to be updated whenever it is served.
    #[inline(always)]
    pub(crate) fn is_near(&self) -> bool {
        self.is_near
    }

    /// Memory of all connections, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// A connection with this share is gone.
    pub(crate) fn release(&mut self, share: usize) {
        self.bytes -= share;
    }

    /// Updates a TCP connection's share; returns it, and the part of the application.
    pub(crate) fn charge<A: Application>(
        &mut self,
        entry: &mut Entry,
        app: &A,
    ) -> (usize, StreamMemory) {
        let (bytes, of_app) = measure(entry, app);
        let before = std::mem::replace(&mut entry.charged_bytes, bytes);
        self.recharge(before, bytes);
        (bytes, of_app)
    }

    /// From half of the bound on, shares are updated whenever connections are served.
    pub(crate) fn look_near(&mut self, bytes_max: usize) {
        self.is_near |= self.bytes > bytes_max / 2;
    }

    /// A connection has another share.
    pub(crate) fn recharge(&mut self, before: usize, after: usize) {
        self.bytes = self.bytes - before + after;
    }
}

/// The memory of a connection, and the part of it that the application has.
fn measure<A: Application>(entry: &Entry, app: &A) -> (usize, StreamMemory) {
    let of_app = app.memory(entry.owner, entry.stream);
    let of_tls = entry.tls.as_ref().map_or(0, |tls| tls.memory_bytes());
    (entry.tcp.memory_bytes() + of_tls + of_app.bytes, of_app)
}

impl Ground {
    /// Updates some shares when due; resets connections if the sum exceeds the bound.
    #[inline]
    pub(crate) fn look_at_memory<A: Application>(
        &mut self,
        layers: &mut Layers<'_>,
        now_us: u64,
        app: &A,
    ) {
        if now_us >= self.memory.next_look_us {
            self.go_on_with_round(layers, now_us, app);
        }
        if self.memory.bytes > self.config.connection_memory_bytes_max
            && now_us >= self.memory.next_eviction_us
        {
            self.evict_memory_holders(layers, now_us, app);
        }
    }

    #[inline(never)]
    fn go_on_with_round<A: Application>(&mut self, layers: &mut Layers<'_>, now_us: u64, app: &A) {
        let of_tcp = layers.tcp.connections.places();
        let places = of_tcp + layers.quic.places();
        let count = match self.memory.is_near {
            true => LOOK_CONNECTIONS_NEAR,
            false => LOOK_CONNECTIONS,
        };
        let end = self.memory.place.saturating_add(count).min(places);
        for place in self.memory.place..end {
            match place.checked_sub(of_tcp) {
                None => layers.tcp.charge(self, ConnectionHandle::at(place), app),
                Some(place) => layers.quic.charge(self, place, app),
            }
        }
        let bytes_max = self.config.connection_memory_bytes_max;
        self.memory.place = end;
        self.memory.next_look_us = now_us + LOOK_US;
        if end >= places {
            let is_filled = self.memory.bytes > bytes_max / 8;
            let pause_us = if is_filled { PAUSE_FILLED_US } else { PAUSE_US };
            self.memory.place = 0;
            self.memory.next_look_us = now_us + pause_us;
        }
        self.judge_memory(now_us);
    }

    /// Decides by the sum whether memory is short.
    fn judge_memory(&mut self, now_us: u64) {
        let bytes_max = self.config.connection_memory_bytes_max;
        let bytes = self.memory.bytes;
        let is_half = bytes > bytes_max / 2;
        self.memory.is_near = is_half;
        self.memory.is_pressed = match self.memory.is_pressed {
            true => is_half,
            false => bytes > bytes_max / 4 * 3,
        };
        if self.memory.is_pressed && self.memory.pressure.begins(now_us) {
            tracing::warn!(
                bytes,
                bytes_max,
                "connections hold much memory: their receive windows shrink"
            );
        }
    }

    /// Updates all shares; returns them, as those of connections that may be reset.
    fn memory_holders<A: Application>(
        &mut self,
        layers: &mut Layers<'_>,
        app: &A,
    ) -> Vec<Holder<HolderId>> {
        let mut holders = Vec::new();
        // Shares that count as those of other connections.
        let mut serving: Vec<(StreamId, Holder<HolderId>)> = Vec::new();
        for place in 0..layers.tcp.connections.places() {
            let Some(entry) = layers.tcp.connections.get_mut(ConnectionHandle::at(place)) else {
                continue;
            };
            let (bytes, of_app) = self.memory.charge(entry, app);
            let holder = Holder {
                id: HolderId::Tcp(entry.stream),
                source: Source::from(of_app.client.unwrap_or(entry.source())),
                bytes,
                since: entry.stream.0,
            };
            match of_app.serves {
                Some(served) => serving.push((served, holder)),
                None if !entry.tcp.is_closed() => holders.push(holder),
                None => {}
            }
        }
        for place in 0..layers.quic.places() {
            layers.quic.charge(self, place, app);
            holders.extend(layers.quic.holder(place));
        }
        if !serving.is_empty() {
            let places = holders.iter().enumerate();
            let places: HashMap<_, _> = places.map(|(at, holder)| (holder.id, at)).collect();
            for (served, holder) in serving {
                match places.get(&HolderId::Tcp(served)) {
                    Some(&at) => holders[at].bytes += holder.bytes,
                    None => holders.push(holder),
                }
            }
        }
        holders
    }

    #[cold]
    fn evict_memory_holders<A: Application>(
        &mut self,
        layers: &mut Layers<'_>,
        now_us: u64,
        app: &A,
    ) {
        let holders = self.memory_holders(layers, app);
        let bytes_max = self.config.connection_memory_bytes_max;
        let bytes = self.memory.bytes;
        self.memory.next_eviction_us = now_us + LOOK_US;
        self.judge_memory(now_us);
        if bytes <= bytes_max {
            return;
        }
        let mut excess = bytes - bytes_max / 8 * 7;
        for (source_bytes, holder) in victims::choose_largest(holders, excess, VICTIMS_MAX) {
            let is_reset = match holder.id {
                HolderId::Tcp(stream) => layers.tcp.evict_tcp(stream),
                HolderId::Quic(place) => layers.quic.evict(now_us, place),
            };
            if !is_reset {
                continue;
            }
            excess = excess.saturating_sub(holder.bytes);
            self.counters.memory_evictions += 1;
            if self.memory.exhausted.begins(now_us) {
                tracing::warn!(
                    bytes,
                    bytes_max,
                    source = %holder.source,
                    source_bytes,
                    connection_bytes = holder.bytes,
                    "connections hold too much memory: the largest of the source that holds most \
                     are reset"
                );
            }
        }
        if excess > 0 {
            self.memory.next_eviction_us = now_us + FUTILE_US;
        }
    }
}
