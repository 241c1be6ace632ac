//! Frames on their way into a peer's TCP stream, and the bytes of streams that the peer has
//! acknowledged.

use host::app::{Io, StreamId};
use http2::code::Fault;
use http2::field;
use http2::frame::{self, HEADER_BYTES, PAYLOAD_BYTES_MAX};
use http2::hpack::encode::Encoder;
use http2::in_flight::InFlight;
use http2::settings::Settings;
use http2::window::SendWindow;

use crate::buffer::Buffer;

/// Longest content of DATA, in bytes: with its header it fills a TLS record.
pub(super) const CONTENT_BYTES_MAX: usize = PAYLOAD_BYTES_MAX - HEADER_BYTES;

/// See the [module documentation](self).
#[derive(Debug)]
pub(super) struct Writer {
    stream: StreamId,
    /// Frames that the TCP stream has yet to take.
    out: Buffer,
    /// Bytes that the TCP stream has taken.
    written: u64,
    acknowledged: u64,
    in_flight: InFlight,
    encoder: Encoder,
    /// The peer's window of the connection.
    pub(super) window: SendWindow,
    /// The peer's settings.
    settings: Settings,
}

impl Writer {
    pub(super) fn new(stream: StreamId) -> Self {
        let settings = Settings::default();
        Writer {
            stream,
            out: Buffer::default(),
            written: 0,
            acknowledged: 0,
            in_flight: InFlight::default(),
            encoder: Encoder::default(),
            window: SendWindow::new(settings.initial_window_bytes),
            settings,
        }
    }

    /// Where frames of the connection are appended.
    pub(super) fn control(&mut self) -> &mut Vec<u8> {
        self.out.tail()
    }

    /// Length of the frames that the TCP stream has yet to take, in bytes.
    pub(super) fn pending_bytes(&self) -> usize {
        self.out.len()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let in_flight = self.in_flight.memory_bytes();
        self.out.memory_bytes() + in_flight + self.encoder.memory_bytes()
    }

    /// The peer's settings.
    pub(super) fn settings(&self) -> Settings {
        self.settings
    }

    /// Applies the payload of a SETTINGS frame of the peer.
    ///
    /// # Errors
    /// As [`Settings::apply`].
    pub(super) fn apply_settings(&mut self, payload: &[u8]) -> Result<(), Fault> {
        self.settings.apply(payload, &mut self.encoder)
    }

    /// Hands the TCP stream as much as it takes; true if that is everything.
    pub(super) fn flush(&mut self, io: &mut dyn Io) -> bool {
        let before = self.out.len();
        let is_all = self.out.flush(io, self.stream);
        self.written += (before - self.out.len()) as u64;
        is_all
    }

    /// Writes HEADERS. Trailers have no pseudo-header fields.
    pub(super) fn block(
        &mut self,
        stream: u32,
        pseudo: &[(&'static str, Vec<u8>)],
        fields: &[(String, Vec<u8>)],
        ends_stream: bool,
    ) {
        let out = self.out.tail();
        let start = out.len();
        out.extend_from_slice(&[0; HEADER_BYTES]);
        self.encoder.begin(out);
        for (name, value) in pseudo {
            self.encoder.field(out, name, value);
        }
        for (name, value) in fields {
            // HTTP/1.1 permits some characters that HTTP/2 does not.
            if field::check(name.as_bytes(), value).is_ok() {
                self.encoder.field(out, name, value);
            }
        }
        frame::finish_block(out, start, stream, ends_stream);
    }

    /// Writes DATA, which its windows permit.
    pub(super) fn content(&mut self, stream: u32, content: &[u8], ends_stream: bool) {
        self.window.take(content.len() as u64);
        frame::data(self.out.tail(), stream, content, ends_stream);
    }

    /// Notes that this many bytes of a stream end where the frames do.
    pub(super) fn note(&mut self, stream: u32, bytes: u64) {
        let end = self.written + self.out.len() as u64;
        self.in_flight.note(end, stream, bytes);
    }

    /// Returns a stream, and how many more of its bytes the peer has acknowledged.
    pub(super) fn acknowledge(&mut self, io: &dyn Io) -> Option<(u32, u64)> {
        self.acknowledged = io.acknowledged(self.stream).max(self.acknowledged);
        self.in_flight.acknowledge(self.acknowledged)
    }
}
