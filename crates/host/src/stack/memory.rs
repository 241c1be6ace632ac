//! Memory of connections: what peers make the stack hold, and what goes when that is too much.
//!
//! Counted are text that was received and not read, ahead of its turn or not, real bytes that are
//! queued and not acknowledged, and what TLS buffers: all of which a peer can make grow.
//! Connections are looked at in rounds, a few each millisecond, so that a round through a full
//! table takes a second, and one through a small table a few milliseconds.
//!
//! | Memory | What happens |
//! |---|---|
//! | above three quarters of the bound | windows are not opened beyond some kilobytes, until half of it is free |
//! | above the bound | the connections that hold most are reset, of equals the oldest, until it is held |

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Stack;
use crate::app::StreamId;
use crate::episode::Episode;
use crate::tables::connections::ConnectionHandle;

/// In a round connections are looked at so often, in microseconds, ...
const LOOK_US: u64 = 1000;

/// ... so many at a time.
const LOOK_CONNECTIONS: usize = 128;

/// Between two rounds, in microseconds; ...
const PAUSE_US: u64 = 250_000;

/// ... and while much memory is held.
const PAUSE_PRESSED_US: u64 = 5000;

/// Most connections that are reset after one round through the table.
const VICTIMS_MAX: usize = 256;

/// Connections that hold less are never reset: that would gain nothing, in bytes.
const VICTIM_BYTES_MIN: usize = 8 << 10;

/// A round through the table of connections, and what the one before has found.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Found by the last round, in bytes.
    bytes: usize,
    is_pressed: bool,
    next_look_us: u64,
    /// The round under way: the next place, and what was found so far.
    place: usize,
    sum: usize,
    /// Those that hold most, the smallest of them first; of equals, the youngest.
    largest: BinaryHeap<Reverse<(usize, Reverse<StreamId>)>>,
    pressure: Episode,
    exhausted: Episode,
}

impl Memory {
    /// Memory is short: connections take as little as they can.
    pub(super) fn is_pressed(&self) -> bool {
        self.is_pressed
    }

    /// What connections held when they were last looked at, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Stack {
    /// Looks at some connections, if it is time.
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

    /// The whole table has been looked at.
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
