//! A stream of HTTP/2 as an exchange sees it: an [`Io`] whose writes become frames.
//!
//! An exchange writes when its stream's turn has come, and no more than the turn allows: the rest
//! stays with it, as when a TCP stream is full.

use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::Range;
use std::time::Duration;

use host::app::{FileHandle, Io, ListPlace, StreamId};
use host::{Growth, PassedId};

use crate::http2::frame_writer::FrameWriter;
use crate::http2::head::Head;
use http2::window::SendWindow;

/// Names of HTTP/2 streams begin here; the host gives its own streams lower ones.
const NAMES_START: u64 = 1 << 63;

/// The name of an HTTP/2 stream among all streams of the server; `number` is its own.
pub(crate) fn name(number: u64) -> StreamId {
    StreamId(NAMES_START | number)
}

fn is_of_http2(stream: StreamId) -> bool {
    stream.0 >= NAMES_START
}

/// The ID of the stream of each open file.
pub(crate) type Owners = HashMap<FileHandle, u32>;

/// The sending side of a stream.
#[derive(Debug)]
pub(crate) struct Output {
    /// The stream's ID on its connection.
    pub(crate) id: u32,
    /// Its name among all streams of the server.
    pub(crate) name: StreamId,
    /// The peer's window of the stream.
    pub(crate) window: SendWindow,
    /// Bytes of the response's body that are not written; `None` before the head is.
    body_bytes: Option<u64>,
    /// Trailers end the body.
    has_trailers: bool,
    /// Bytes as the exchange counts them: taken, ...
    queued: u64,
    /// ... and acknowledged.
    acknowledged: u64,
    /// Files that are open for it.
    files: Vec<FileHandle>,
    /// When its timer expires, in microseconds.
    pub(crate) deadline_us: Option<u64>,
    /// Its greatest rate, in bytes per second.
    pub(crate) pacing_rate: Option<u64>,
    /// The exchange waits for `Writable`.
    pub(crate) wants_writable: bool,
}

impl Output {
    pub(crate) fn new(id: u32, name: StreamId, window: SendWindow) -> Self {
        Output {
            id,
            name,
            window,
            body_bytes: None,
            has_trailers: false,
            queued: 0,
            acknowledged: 0,
            files: Vec::new(),
            deadline_us: None,
            pacing_rate: None,
            wants_writable: false,
        }
    }

    /// The response has begun.
    pub(crate) fn is_begun(&self) -> bool {
        self.body_bytes.is_some()
    }

    /// END_STREAM is written.
    pub(crate) fn is_ended(&self) -> bool {
        self.body_bytes == Some(0)
    }

    /// Bytes taken and not acknowledged.
    pub(crate) fn unacknowledged(&self) -> u64 {
        self.queued - self.acknowledged
    }

    /// Bytes taken so far.
    pub(crate) fn queued(&self) -> u64 {
        self.queued
    }

    /// Bytes acknowledged so far.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// The peer has acknowledged more bytes.
    pub(crate) fn acknowledge(&mut self, bytes: u64) {
        self.acknowledged += bytes;
    }

    /// The peer's windows alone hold back the body.
    pub(crate) fn waits_for_window(&self) -> bool {
        self.body_bytes.is_some_and(|bytes| bytes > 0) && self.window.available() == 0
    }

    /// Memory beside the structure, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.files.capacity() * size_of::<FileHandle>()
    }

    /// A request for a file has failed or is over: its handle means nothing any more.
    pub(crate) fn forget_file(&mut self, file: FileHandle, owners: &mut Owners) {
        owners.remove(&file);
        if let Some(place) = self.files.iter().position(|&known| known == file) {
            self.files.swap_remove(place);
        }
    }

    /// The TCP stream has closed all files.
    pub(crate) fn forget_files(&mut self) {
        self.files.clear();
    }

    /// The stream is over: closes its files.
    pub(crate) fn close_files(
        &mut self,
        io: &mut dyn Io,
        writer: &mut FrameWriter,
        owners: &mut Owners,
    ) {
        for file in self.files.drain(..) {
            owners.remove(&file);
            writer.close_file(io, file);
        }
    }
}

/// See the [module documentation](self).
pub(crate) struct StreamIo<'a> {
    pub(crate) io: &'a mut dyn Io,
    pub(crate) writer: &'a mut FrameWriter,
    pub(crate) output: &'a mut Output,
    /// Bytes of the body that the stream may write now.
    pub(crate) grant_bytes: u64,
    /// Rates of other streams, which changed with that of this one.
    pub(crate) other_rates: &'a mut Vec<(StreamId, Option<u64>)>,
    pub(crate) owners: &'a mut Owners,
}

impl StreamIo<'_> {
    /// Length of the next DATA frame for this much of the body, in bytes; 0 if none may be sent.
    fn data_bytes(&self, wanted: u64) -> u64 {
        wanted
            .min(self.grant_bytes)
            .min(self.output.window.available())
            .min(self.writer.window.available())
            .min(self.output.body_bytes.unwrap_or(0))
            .min(self.writer.data_bytes_max())
    }

    /// Takes this much of the body; true if that is its end.
    fn take(&mut self, bytes: u64) -> bool {
        self.output.window.take(bytes);
        self.output.queued += bytes;
        self.grant_bytes -= bytes;
        let left = self.output.body_bytes.map(|left| left - bytes);
        self.output.body_bytes = left;
        left == Some(0)
    }

    /// A file of the stream is being opened.
    fn own(&mut self, file: FileHandle) -> FileHandle {
        self.output.files.push(file);
        self.owners.insert(file, self.output.id);
        file
    }

    /// Writes the trailers, which end the response and are all of its real bytes behind the head;
    /// returns their length.
    fn end_with(&mut self, trailers: &[u8]) -> usize {
        if let Some(head) = Head::read(trailers) {
            self.writer.trailers(self.output.id, head);
            self.output.body_bytes = Some(0);
            self.output.queued += trailers.len() as u64;
        }
        self.writer.flush(self.io);
        trailers.len()
    }

    /// Writes the response's head, which begins these bytes; returns its length.
    fn begin(&mut self, bytes: &[u8]) -> usize {
        let Some(head) = Head::read(bytes) else {
            debug_assert!(false, "a response begins with its head");
            return 0;
        };
        self.writer.headers(self.output.id, head);
        if !head.is_interim() {
            self.output.body_bytes = Some(head.body_bytes);
            self.output.has_trailers = head.has_trailers;
        }
        self.output.queued += head.bytes as u64;
        head.bytes
    }
}

impl Io for StreamIo<'_> {
    fn refuses_client(&mut self, client: IpAddr) -> bool {
        self.io.refuses_client(client)
    }

    fn read(&mut self, _stream: StreamId, _buffer: &mut [u8]) -> usize {
        0
    }

    fn write(&mut self, _stream: StreamId, bytes: &[u8]) -> usize {
        // A frame would precede the rest of the range that is pending.
        if self.writer.is_blocked() {
            return 0;
        }
        let mut head_bytes = 0;
        while !self.output.is_begun() && head_bytes < bytes.len() {
            match self.begin(&bytes[head_bytes..]) {
                0 => break,
                count => head_bytes += count,
            }
        }
        let rest = &bytes[head_bytes..];
        if self.output.has_trailers {
            return head_bytes + self.end_with(rest);
        }
        let count = self.data_bytes(rest.len() as u64);
        if count > 0 {
            let ends_stream = self.take(count);
            let payload = &rest[..count as usize];
            self.writer.data(self.output.id, payload, ends_stream);
        }
        self.writer.flush(self.io);
        head_bytes + count as usize
    }

    fn write_file(&mut self, _stream: StreamId, file: FileHandle, range: Range<u64>) -> u64 {
        let wanted = range.end.saturating_sub(range.start);
        let count = match self.writer.is_blocked() {
            true => 0,
            false => self.data_bytes(wanted),
        };
        if count > 0 {
            let ends_stream = self.take(count);
            let part = (file, range.start..range.start + count);
            let id = self.output.id;
            self.writer.data_of_file(self.io, id, part, ends_stream);
        }
        count
    }

    fn open(&mut self, _stream: StreamId, path: &[u8], growth: Growth) -> FileHandle {
        let file = self.io.open(self.writer.stream(), path, growth);
        self.own(file)
    }

    fn open_passed(&mut self, _stream: StreamId, passed: PassedId) -> FileHandle {
        let file = self.io.open_passed(self.writer.stream(), passed);
        self.own(file)
    }

    fn list(&mut self, _stream: StreamId, path: &[u8], from: Option<ListPlace>) -> FileHandle {
        let file = self.io.list(self.writer.stream(), path, from);
        self.own(file)
    }

    fn close_file(&mut self, file: FileHandle) {
        self.output.forget_file(file, self.owners);
        self.writer.close_file(self.io, file);
    }

    /// The last frame of the body has END_STREAM.
    fn shutdown(&mut self, _stream: StreamId) {}

    /// The connection resets the stream.
    fn abort(&mut self, _stream: StreamId) {}

    fn set_timer(&mut self, _stream: StreamId, after: Option<Duration>) {
        let after_us = after.map(|after| u64::try_from(after.as_micros()).unwrap_or(u64::MAX));
        let now_us = self.io.now_us();
        self.output.deadline_us = after_us.map(|after_us| now_us.saturating_add(after_us));
    }

    /// Only a connection is idle.
    fn set_idle(&mut self, _stream: StreamId, _is_idle: bool) {}

    fn set_max_pacing_rate(&mut self, stream: StreamId, bytes_per_second: Option<u64>) {
        if stream == self.output.name {
            self.output.pacing_rate = bytes_per_second;
        } else if is_of_http2(stream) {
            self.other_rates.push((stream, bytes_per_second));
        } else {
            self.io.set_max_pacing_rate(stream, bytes_per_second);
        }
    }

    fn set_notsent_lowat(&mut self, _stream: StreamId, _bytes: u64) {
        self.output.wants_writable = true;
    }

    fn acknowledged(&self, _stream: StreamId) -> u64 {
        self.output.acknowledged
    }

    fn unacknowledged(&self, _stream: StreamId) -> u64 {
        self.output.unacknowledged()
    }

    /// The connection holds the written bytes of a stream.
    fn unsent(&self, _stream: StreamId) -> u64 {
        0
    }

    /// The connection has it.
    fn usable_window(&self, _stream: StreamId) -> u64 {
        0
    }

    fn waits_for_peer(&self, _stream: StreamId) -> bool {
        self.io.waits_for_peer(self.writer.stream())
    }

    fn retransmissions(&self, _stream: StreamId) -> u32 {
        self.io.retransmissions(self.writer.stream())
    }

    fn now_us(&self) -> u64 {
        self.io.now_us()
    }

    fn unix_time(&self) -> Duration {
        self.io.unix_time()
    }
}
