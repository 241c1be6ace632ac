//! Memory of connections: what peers make the stack hold, and which are reset when it is too much.
//!
//! It counts received data that was not read, in order or not, real bytes that are queued and not
//! acknowledged, and TLS buffers: everything that a peer can make grow. Rounds examine a few
//! connections each millisecond, so that a round through a full table takes a second, and through a
//! small one a few milliseconds.
//!
//! | Memory | What happens |
//! |---|---|
//! | above three quarters of the bound | windows open no further than some kilobytes, until half of it is free |
//! | above the bound | the connections that hold most are reset, of equals the oldest, until usage is within it |

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Stack;
use crate::app::StreamId;
use crate::episode::Episode;
use crate::tables::connections::ConnectionHandle;

/// Interval between the steps of a round, in microseconds.
const LOOK_US: u64 = 1000;

/// Connections examined in a step.
const LOOK_CONNECTIONS: usize = 128;

/// Pause between two rounds, in microseconds.
const PAUSE_US: u64 = 250_000;

/// The same, while much memory is held.
const PAUSE_PRESSED_US: u64 = 5000;

/// Most connections that are reset after one round through the table.
const VICTIMS_MAX: usize = 256;

/// Connections that hold less are never reset: that would free next to nothing.
const VICTIM_BYTES_MIN: usize = 8 << 10;

/// A round through the table of connections, and the result of the previous one.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Result of the last round, in bytes.
    bytes: usize,
    is_pressed: bool,
    next_look_us: u64,
    /// The round in progress: the next place, and the sum so far.
    place: usize,
    sum: usize,
    /// The connections that hold most, the smallest first; of equals, the youngest.
    largest: BinaryHeap<Reverse<(usize, Reverse<StreamId>)>>,
    pressure: Episode,
    exhausted: Episode,
}

impl Memory {
    /// True if memory is short: connections hold as little as they can.
    pub(super) fn is_pressed(&self) -> bool {
        self.is_pressed
    }

    /// Memory that connections held at the last look, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Stack {
    /// Examines some connections, when it is time.
    #[inline]
    pub(super) fn look_at_memory(&mut self, now_us: u64) {
        if now_us >= self.memory.next_look_us {
            self.go_on_with_round(now_us);
        }
    }

    #[inline(never)]
    fn go_on_with_round(&mut self, now_us: u64) {
        self.memory.next_look_us = now_us + LOOK_US;
        let end = self.memory.place.saturating_add(LOOK_CONNECTIONS);
        for place in self.memory.place..end.min(self.connections.places()) {
            let is_pressed = self.memory.is_pressed;
            let Some(entry) = self.connections.get_mut(ConnectionHandle::at(place)) else {
                continue;
            };
            entry.tcp.set_memory_pressure(is_pressed);
            let tls_bytes = entry.tls.as_ref().map_or(0, |tls| tls.memory_bytes());
            let bytes = entry.tcp.memory_bytes() + tls_bytes;
            let stream = entry.stream;
            self.memory.sum += bytes;
            if bytes >= VICTIM_BYTES_MIN && !entry.tcp.is_closed() {
                self.memory.largest.push(Reverse((bytes, Reverse(stream))));
                if self.memory.largest.len() > VICTIMS_MAX {
                    self.memory.largest.pop();
                }
            }
        }
        self.memory.place = end;
        if end >= self.connections.places() {
            self.end_round(now_us);
        }
    }

    /// Ends a round through the whole table.
    fn end_round(&mut self, now_us: u64) {
        let bytes_max = self.config.connection_memory_bytes_max;
        let bytes = std::mem::take(&mut self.memory.sum);
        self.memory.bytes = bytes;
        self.memory.place = 0;
        self.memory.is_pressed = if self.memory.is_pressed {
            bytes > bytes_max / 2
        } else {
            bytes > bytes_max / 4 * 3
        };
        if self.memory.is_pressed && self.memory.pressure.begins(now_us) {
            tracing::warn!(
                bytes,
                bytes_max,
                "connections hold much memory: their receive windows shrink"
            );
        }
        self.memory.next_look_us = now_us
            + if bytes > bytes_max / 2 {
                PAUSE_PRESSED_US
            } else {
                PAUSE_US
            };
        let largest = std::mem::take(&mut self.memory.largest).into_sorted_vec();
        let mut left = bytes;
        for Reverse((held, Reverse(stream))) in largest {
            if left <= bytes_max {
                break;
            }
            let Some(entry) = self.connections.by_stream_mut(stream) else {
                continue;
            };
            let (handle, client) = (entry.handle(), entry.tuple.remote);
            entry.tcp.abort();
            self.counters.memory_evictions += 1;
            if self.memory.exhausted.begins(now_us) {
                tracing::warn!(
                    bytes,
                    bytes_max,
                    %client,
                    held,
                    "connections hold too much memory: those that hold most are reset"
                );
            }
            left -= held;
            self.mark_dirty(handle);
        }
    }
}
