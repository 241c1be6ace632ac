//! Frames on their way into the TCP stream, and which of their bytes the peer has acknowledged.

use std::ops::Range;

use host::app::{FileHandle, Io, StreamId};

use crate::http2::head::Head;
use http2::frame::{self, HEADER_BYTES, Header, PAYLOAD_BYTES_MAX, flag, kind};
use http2::hpack::encode::Encoder;
use http2::in_flight::InFlight;
use http2::settings::Settings;
use http2::window::SendWindow;

/// Payload of a DATA frame that fills a TLS record with its header, in bytes.
const DATA_BYTES: u64 = (PAYLOAD_BYTES_MAX - HEADER_BYTES) as u64;

/// The same at the beginning of a connection, so that a record is complete after three packets.
const FIRST_DATA_BYTES: u64 = (4096 - HEADER_BYTES) as u64;

/// Acknowledged bytes from which on DATA frames are long.
const FIRST_BYTES: u64 = 32 << 10;

/// Longest DATA frame to a client that permits longer ones: four TLS records.
const LONG_DATA_BYTES: u64 = (4 * PAYLOAD_BYTES_MAX - HEADER_BYTES) as u64;

/// A file range that the TCP stream has yet to take; the header of its frame is written.
#[derive(Debug)]
struct PendingRange {
    file: FileHandle,
    range: Range<u64>,
    /// The exchange has closed the file.
    is_closed: bool,
}

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct FrameWriter {
    stream: StreamId,
    /// Bytes that the TCP stream has yet to take.
    bytes: Vec<u8>,
    /// The range that follows these.
    range: Option<PendingRange>,
    /// Frames of the connection that follow the range.
    behind: Vec<u8>,
    /// Bytes that the TCP stream has taken.
    written: u64,
    in_flight: InFlight,
    acknowledged: u64,
    /// See [`FrameWriter::progress`].
    progress: u64,
    /// The peer's window of the connection.
    pub(crate) window: SendWindow,
    pub(crate) encoder: Encoder,
    /// The peer's settings.
    pub(crate) settings: Settings,
}

impl FrameWriter {
    pub(crate) fn new(stream: StreamId) -> Self {
        let settings = Settings::default();
        FrameWriter {
            stream,
            bytes: Vec::new(),
            range: None,
            behind: Vec::new(),
            written: 0,
            in_flight: InFlight::default(),
            acknowledged: 0,
            progress: 0,
            window: SendWindow::new(settings.initial_window_bytes),
            encoder: Encoder::default(),
            settings,
        }
    }

    /// The TCP stream.
    pub(crate) fn stream(&self) -> StreamId {
        self.stream
    }

    /// Where frames of the connection are appended.
    pub(crate) fn control(&mut self) -> &mut Vec<u8> {
        match self.range {
            Some(_) => &mut self.behind,
            None => &mut self.bytes,
        }
    }

    /// True while the TCP stream has yet to take something.
    pub(crate) fn is_blocked(&self) -> bool {
        self.range.is_some() || !self.bytes.is_empty()
    }

    /// Length of the frames that the TCP stream has yet to take, without file ranges, in bytes.
    pub(crate) fn pending_bytes(&self) -> usize {
        self.bytes.len() + self.behind.len()
    }

    /// Memory of frames, of notes on bytes in flight and of the encoder, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let in_flight = self.in_flight.memory_bytes();
        self.bytes.capacity() + self.behind.capacity() + in_flight + self.encoder.memory_bytes()
    }

    /// Hands the TCP stream as much as it takes.
    pub(crate) fn flush(&mut self, io: &mut dyn Io) {
        self.flush_bytes(io);
        if !self.bytes.is_empty() {
            return;
        }
        let Some(pending) = &mut self.range else {
            return;
        };
        let count = io.write_file(self.stream, pending.file, pending.range.clone());
        self.written += count;
        pending.range.start += count;
        if !pending.range.is_empty() {
            return;
        }
        if pending.is_closed {
            io.close_file(pending.file);
        }
        self.range = None;
        self.bytes.append(&mut self.behind);
        self.flush_bytes(io);
    }

    fn flush_bytes(&mut self, io: &mut dyn Io) {
        if self.bytes.is_empty() {
            return;
        }
        let count = io.write(self.stream, &self.bytes).min(self.bytes.len());
        self.written += count as u64;
        self.bytes.drain(..count);
        if self.bytes.is_empty() && self.bytes.capacity() > PAYLOAD_BYTES_MAX {
            self.bytes = Vec::new();
        }
    }

    /// Closes a file, once its pending range is written.
    pub(crate) fn close_file(&mut self, io: &mut dyn Io, file: FileHandle) {
        match &mut self.range {
            Some(pending) if pending.file == file => pending.is_closed = true,
            _ => io.close_file(file),
        }
    }

    /// Longest payload of the next DATA frame, in bytes.
    pub(crate) fn data_bytes_max(&self) -> u64 {
        if self.acknowledged < FIRST_BYTES {
            return FIRST_DATA_BYTES;
        }
        match u64::from(self.settings.frame_bytes_max) {
            longer if longer > PAYLOAD_BYTES_MAX as u64 => longer.min(LONG_DATA_BYTES),
            _ => DATA_BYTES,
        }
    }

    /// Writes HEADERS, and CONTINUATION if one frame does not hold them.
    pub(crate) fn headers(&mut self, stream: u32, head: Head<'_>) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; HEADER_BYTES]);
        self.encoder.begin(&mut self.bytes);
        let status = [head.status / 100, head.status / 10 % 10, head.status % 10];
        let status = status.map(|digit| b'0' + digit as u8);
        self.encoder.field(&mut self.bytes, ":status", &status);
        for (name, value) in head.fields() {
            self.encoder.field(&mut self.bytes, name, value);
        }
        frame::finish_block(&mut self.bytes, start, stream, head.body_bytes == 0);
        self.note(stream, head.bytes as u64);
    }

    /// Writes trailers, which end the stream (RFC 9113 §8.1).
    pub(crate) fn trailers(&mut self, stream: u32, trailers: Head<'_>) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; HEADER_BYTES]);
        self.encoder.begin(&mut self.bytes);
        for (name, value) in trailers.fields() {
            self.encoder.field(&mut self.bytes, name, value);
        }
        frame::finish_block(&mut self.bytes, start, stream, true);
        self.note(stream, trailers.bytes as u64);
    }

    /// Writes DATA of real bytes.
    pub(crate) fn data(&mut self, stream: u32, payload: &[u8], ends_stream: bool) {
        self.data_header(stream, payload.len() as u64, ends_stream);
        self.bytes.extend_from_slice(payload);
        self.note(stream, payload.len() as u64);
    }

    /// Writes DATA of a file's range, and hands it to the TCP stream.
    pub(crate) fn data_of_file(
        &mut self,
        io: &mut dyn Io,
        stream: u32,
        (file, range): (FileHandle, Range<u64>),
        ends_stream: bool,
    ) {
        debug_assert!(self.range.is_none(), "one range at a time");
        let payload_bytes = range.end - range.start;
        self.data_header(stream, payload_bytes, ends_stream);
        self.range = Some(PendingRange {
            file,
            range,
            is_closed: false,
        });
        self.note(stream, payload_bytes);
        self.flush(io);
    }

    fn data_header(&mut self, stream: u32, payload_bytes: u64, ends_stream: bool) {
        let header = Header {
            payload_bytes: payload_bytes as u32,
            kind: kind::DATA,
            flags: if ends_stream { flag::END_STREAM } else { 0 },
            stream,
        };
        header.write(&mut self.bytes);
        self.window.take(payload_bytes);
    }

    /// Bytes of a stream end where the frames do.
    fn note(&mut self, stream: u32, bytes: u64) {
        let pending = self.range.as_ref().map(|pending| pending.range.clone());
        let pending_bytes = pending.map_or(0, |range| range.end - range.start);
        let end = self.written + self.bytes.len() as u64 + pending_bytes;
        self.in_flight.note(end, stream, bytes);
    }

    /// Reports streams and how many more of their bytes the peer has acknowledged.
    pub(crate) fn acknowledge(&mut self, io: &dyn Io) -> Option<(u32, u64)> {
        let acknowledged = io.acknowledged(self.stream).max(self.acknowledged);
        if !self.in_flight.is_empty() {
            self.progress += acknowledged - self.acknowledged;
        }
        self.acknowledged = acknowledged;
        self.in_flight.acknowledge(acknowledged)
    }

    /// Bytes of the TCP stream that the peer has acknowledged while responses were in flight.
    pub(crate) fn progress(&self) -> u64 {
        self.progress
    }
}
