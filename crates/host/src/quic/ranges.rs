//! Moves data that applications have queued on streams to the endpoint.
//!
//! A packet counts as sent once the endpoint numbers it, so the stack writes a range of a file only
//! when the NIC stack has it in memory: PREPARE requests that, READY confirms it. The stack writes
//! only as far ahead as keeps the connection busy, since prepared ranges do not stay in memory for
//! long.

use std::collections::VecDeque;

use contract::quic::Prepare;
use contract::{Command, FileId, SendId};
use quic::{Endpoint, FileRange, StreamError};

use super::QuicLayer;
use super::names;
use super::table::{Asked, Queued, Readiness, Sending, Stream};
use super::trace::QuicTraceEvent;
use crate::app::{AppEvent, StreamId};
use crate::ground::Ground;
use crate::streams::Transport;
use crate::tables::files::State;

/// Most bytes of a PREPARE, which is half of the congestion window, ...
const RANGE_BYTES_MAX: u64 = 256 << 10;

/// ... but at least this. A range is acknowledged only as a whole.
const RANGE_BYTES_MIN: u64 = 64 << 10;

/// Ranges of a stream that are requested, or ready and not written ...
const AHEAD_OF_STREAM: usize = 4;

/// ... and PREPAREs of a connection without an answer.
const PREPARES_MAX: usize = 16;

/// A connection stops writing at this many bytes written and not sent ...
const UNSENT_BYTES: u64 = 256 << 10;

/// ... or at this many congestion windows, if that is more.
const UNSENT_WINDOWS: u64 = 2;

/// Period over which a stream's rate limit holds, in microseconds.
const RATE_US: u64 = 50_000;

/// The least that a rate-limited stream writes at once, in bytes.
const RATE_BYTES_MIN: u64 = 4096;

/// The worker will not answer a PREPARE.
pub(super) fn forget_prepare(stream: &mut Stream, prepare: SendId) {
    set_readiness(stream, prepare, Readiness::Unasked);
}

fn set_readiness(stream: &mut Stream, prepare: SendId, to: Readiness) {
    for queued in &mut stream.queue {
        if let Queued::File { readiness, .. } = queued
            && *readiness == Readiness::Asked(prepare)
        {
            *readiness = to;
        }
    }
}

/// READY.
pub(super) fn set_ready(stream: &mut Stream, prepare: SendId) {
    set_readiness(stream, prepare, Readiness::Ready);
}

/// The result of writing.
#[derive(Default)]
struct Written {
    /// Real bytes of the stream that the endpoint has not taken.
    is_blocked: bool,
    /// The peer has stopped the stream, or it is gone.
    is_lost: bool,
}

/// Writes a stream's ready data: of files, at most `bytes_max` bytes.
fn write(
    endpoint: &mut Endpoint,
    handle: quic::Handle,
    stream: &mut Stream,
    bytes_max: u64,
) -> Written {
    let mut left = bytes_max;
    while let Some(front) = stream.queue.front_mut() {
        let (wanted, written) = match front {
            Queued::Real { bytes, from } => {
                let rest = &bytes[*from..];
                let written = endpoint.write(handle, stream.quic, rest);
                if let Ok(written) = written {
                    *from += written;
                    stream.queued_real_bytes -= written as u64;
                }
                (rest.len() as u64, written.map(|len| len as u64))
            }
            Queued::File {
                range,
                readiness: Readiness::Ready,
            } if left > 0 => {
                let wanted = range.len;
                let part = FileRange {
                    len: wanted.min(left),
                    ..*range
                };
                let written = endpoint.write_file(handle, stream.quic, part);
                if let Ok(written) = written {
                    range.offset += written;
                    range.len -= written;
                    left -= written;
                }
                (wanted, written)
            }
            Queued::File { .. } => break,
        };
        match written {
            Ok(written) => {
                stream.written += written;
                stream.queued_bytes -= written;
                if written < wanted {
                    let is_blocked = left > 0;
                    return Written {
                        is_blocked,
                        ..Written::default()
                    };
                }
                stream.queue.pop_front();
            }
            Err(StreamError::Stopped(_)) => break,
            Err(_) => {
                return Written {
                    is_lost: true,
                    ..Written::default()
                };
            }
        }
    }
    Written::default()
}

/// Cuts the next range to prepare, at most `bytes_max` long, from a stream's queue.
fn next_range(queue: &mut VecDeque<Queued>, bytes_max: u64) -> Option<usize> {
    let mut ahead = 0;
    for at in 0..queue.len() {
        let Queued::File { range, readiness } = &mut queue[at] else {
            continue;
        };
        if ahead >= AHEAD_OF_STREAM {
            return None;
        }
        if *readiness != Readiness::Unasked {
            ahead += 1;
            continue;
        }
        if range.len > bytes_max {
            let rest = FileRange {
                file: range.file,
                offset: range.offset + bytes_max,
                len: range.len - bytes_max,
            };
            range.len = bytes_max;
            let readiness = Readiness::Unasked;
            queue.insert(
                at + 1,
                Queued::File {
                    range: rest,
                    readiness,
                },
            );
        }
        return Some(at);
    }
    None
}

impl QuicLayer {
    /// Data was queued on a stream.
    pub(super) fn begin_writing(&mut self, stream: StreamId) {
        let Some((found, connection)) = self.table.pair_mut(stream) else {
            return;
        };
        let place = found.connection;
        if !std::mem::replace(&mut found.is_writing, true) {
            let priority = found.priority;
            connection.writing.push_back(stream);
            self.sort_writing(place, stream, priority);
        }
        self.mark(place);
    }

    /// Puts a stream in front of those of lower priority.
    pub(super) fn sort_writing(&mut self, place: usize, stream: StreamId, priority: i32) {
        let Some(connection) = self.table.connections.get_mut(place) else {
            return;
        };
        let mut writing = std::mem::take(&mut connection.writing);
        writing.retain(|other| *other != stream);
        let of = |other: &StreamId| self.table.stream(*other).map_or(0, |it| it.priority);
        let at = writing.partition_point(|other| of(other) >= priority);
        writing.insert(at, stream);
        if let Some(connection) = self.table.connections.get_mut(place) {
            connection.writing = writing;
        }
    }

    /// Writes queued data of a connection's streams, as far as it is ready and the connection takes
    /// it, and has the NIC stack prepare the next ranges.
    pub(super) fn write_streams(&mut self, ground: &mut Ground, now_us: u64, place: usize) {
        let Some(connection) = self.table.connections.get(place) else {
            return;
        };
        if connection.is_over || connection.writing.is_empty() {
            return;
        }
        let endpoint = &self.listeners[connection.listener].endpoint;
        let window = endpoint.congestion_window(connection.handle);
        let unsent_max = UNSENT_BYTES.max(window.saturating_mul(UNSENT_WINDOWS));
        // Whole blocks, as files have them.
        let range_bytes = (window / 2).clamp(RANGE_BYTES_MIN, RANGE_BYTES_MAX) & !0xfff;
        let unsent = |stream: StreamId| {
            let found = self.table.stream(stream)?;
            let sent = endpoint.sent(connection.handle, found.quic);
            Some((stream, found.priority, found.written.saturating_sub(sent)))
        };
        let writing = connection.writing.iter();
        let writing: Vec<_> = writing.filter_map(|stream| unsent(*stream)).collect();
        let mut sum = 0;
        for turn in writing.chunk_by(|(_, one, _), (_, other, _)| one == other) {
            sum += turn.iter().map(|(_, _, unsent)| unsent).sum::<u64>();
            for (stream, priority, _) in turn {
                if sum >= unsent_max {
                    return;
                }
                let written = self.write_stream(ground, now_us, *stream, range_bytes);
                sum += written;
                if written > 0 {
                    self.end_turn(place, *stream, *priority);
                }
            }
        }
    }

    /// Moves this stream behind others of the same priority.
    fn end_turn(&mut self, place: usize, stream: StreamId, priority: i32) {
        if self.table.stream(stream).is_some_and(|it| it.is_writing) {
            self.sort_writing(place, stream, priority);
        }
    }

    /// Writes a stream, ranges of `range_bytes` at a time; returns how many bytes were written.
    fn write_stream(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        stream: StreamId,
        range_bytes: u64,
    ) -> u64 {
        let Some((found, connection)) = self.table.pair_mut(stream) else {
            return 0;
        };
        let (place, handle) = (found.connection, connection.handle);
        let endpoint = &mut self.listeners[connection.listener].endpoint;
        let range_bytes = found.rate.map_or(range_bytes, |(rate, _)| {
            let bytes = rate.saturating_mul(RATE_US) / 1_000_000;
            bytes.clamp(RATE_BYTES_MIN, range_bytes)
        });
        let bytes_max = match found.rate {
            Some((_, at_us)) if at_us > now_us => {
                self.rates.insert((at_us, place));
                0
            }
            _ => range_bytes,
        };
        let before = found.written;
        let came = write(endpoint, handle, found, bytes_max);
        let written = found.written - before;
        if let Some((rate, at_us)) = &mut found.rate
            && written > 0
        {
            *at_us = (*at_us).max(now_us) + written.saturating_mul(1_000_000) / (*rate).max(1);
            self.rates.insert((*at_us, place));
        }
        if found.queue.is_empty() {
            found.is_writing = false;
            connection.writing.retain(|other| *other != stream);
            if found.sending == Sending::Finishing {
                found.sending = Sending::Finished;
                let _ = endpoint.finish(handle, found.quic);
            } else if found.wants_room && written > 0 {
                found.wants_room = false;
                connection.wanting -= 1;
                ground.app_events.push_back((stream, AppEvent::Writable));
            }
        }
        if came.is_lost {
            self.drop_queue(ground, stream);
        } else if !came.is_blocked {
            self.prepare(ground, now_us, place, stream, range_bytes);
        }
        written
    }

    /// Has the NIC stack prepare a stream's next ranges.
    fn prepare(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        place: usize,
        stream: StreamId,
        range_bytes: u64,
    ) {
        loop {
            let Some((found, connection)) = self.table.pair_mut(stream) else {
                return;
            };
            let nic = &mut ground.workers[connection.nic.worker];
            // PREPARE needs a flow with a key.
            if !connection.nic.is_open {
                let endpoint = &mut self.listeners[connection.listener].endpoint;
                return endpoint.give_key(connection.handle);
            }
            if connection.prepares.len() >= PREPARES_MAX || found.queue.is_empty() {
                return;
            }
            let Some(at) = next_range(&mut found.queue, range_bytes) else {
                return;
            };
            let Some(Queued::File { range, readiness }) = found.queue.get_mut(at) else {
                return;
            };
            let is_open = |file: FileId| {
                let file = ground.files.by_id(file);
                file.is_some_and(|file| file.state == State::Open)
            };
            if !is_open(range.file) {
                return;
            }
            if !nic.has_room() {
                return self.wait_for_room(place);
            }
            let id = names::command(place, connection.next_command);
            connection.next_command = connection.next_command.wrapping_add(1);
            let sent = nic.channel.send(&Command::Prepare(Prepare {
                id,
                flow: names::flow(connection.id),
                file: range.file,
                offset: range.offset,
                len: range.len as u32,
            }));
            debug_assert!(sent.is_ok(), "there was room");
            *readiness = Readiness::Asked(id);
            connection.prepares.push_back(Asked {
                id,
                stream,
                unwanted: None,
            });
            ground.counters.quic_prepares += 1;
            let (range, number, connection) = (*range, found.quic.0, connection.id);
            self.trace_issued(now_us, connection, id, || QuicTraceEvent::PrepareIssued {
                prepare: id.0,
                stream: number,
                file: range.file,
                offset: range.offset,
                len: range.len,
            });
        }
    }

    /// Notifies applications whose streams have fallen to their low-water mark.
    pub(super) fn tell_lowat(&mut self, ground: &mut Ground, place: usize) {
        let Some(connection) = self.table.connections.get(place) else {
            return;
        };
        if connection.lowats == 0 {
            return;
        }
        let streams: Vec<StreamId> = connection.streams.values().copied().collect();
        for stream in streams {
            let unsent = self.unsent(stream);
            let pair = self.table.pair_mut(stream);
            if let Some((found, connection)) = pair
                && found.notsent_lowat.is_some_and(|bytes| unsent <= bytes)
            {
                found.notsent_lowat = None;
                connection.lowats -= 1;
                ground.app_events.push_back((stream, AppEvent::Writable));
            }
        }
    }

    /// Discards data queued on a stream.
    pub(super) fn drop_queue(&mut self, ground: &mut Ground, stream: StreamId) {
        let Some((found, connection)) = self.table.pair_mut(stream) else {
            return;
        };
        let place = found.connection;
        connection.real_bytes -= found.queued_real_bytes;
        self.real_bytes -= found.queued_real_bytes;
        (found.queued_bytes, found.queued_real_bytes) = (0, 0);
        found.is_writing = false;
        connection.writing.retain(|other| *other != stream);
        let queue = std::mem::take(&mut found.queue);
        self.mark(place);
        for queued in queue {
            if let Queued::File { range, readiness } = queued {
                self.drop_range(ground, place, range, readiness);
            }
        }
    }

    /// Drops a range that was not written.
    fn drop_range(
        &mut self,
        ground: &mut Ground,
        place: usize,
        range: FileRange,
        readiness: Readiness,
    ) {
        match readiness {
            Readiness::Unasked => self.release_bytes(ground, place, range.file, range.len),
            // The worker retains the prepared range.
            Readiness::Ready => self.release_later(place, range),
            // The worker will retain the range if it is still reading.
            Readiness::Asked(id) => {
                let connection = self.connection(place);
                let asked = connection.and_then(|connection| {
                    let mut prepares = connection.prepares.iter_mut();
                    prepares.find(|asked| asked.id == id)
                });
                match asked {
                    Some(asked) => asked.unwanted = Some(range),
                    None => self.release_bytes(ground, place, range.file, range.len),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(offset: u64, len: u64) -> Queued {
        Queued::File {
            range: FileRange {
                file: FileId(1),
                offset,
                len,
            },
            readiness: Readiness::Unasked,
        }
    }

    #[test]
    fn a_stream_has_few_ranges_ahead_and_in_order() {
        let head = Queued::Real {
            bytes: vec![1; 10],
            from: 0,
        };
        let mut queue: VecDeque<Queued> = [head, file(0, 180), file(500, 10)].into();
        let mut asked = Vec::new();
        for number in 0.. {
            let Some(at) = next_range(&mut queue, 40) else {
                break;
            };
            let Queued::File { range, readiness } = &mut queue[at] else {
                panic!("a range of a file");
            };
            asked.push((range.offset, range.len));
            *readiness = Readiness::Asked(SendId(number));
        }
        assert_eq!(asked, [(0, 40), (40, 40), (80, 40), (120, 40)]);
        queue.pop_front();
        queue.pop_front();
        let at = next_range(&mut queue, 40).expect("one more");
        let Queued::File { range, .. } = &queue[at] else {
            panic!("a range of a file");
        };
        assert_eq!((range.offset, range.len), (160, 20));
    }
}
