//! One stream: the bytes of the peer's message for a session, and of the session's own. From a
//! client, the peer's message is a request; from a backend, a response.

use host::app::StreamId;
use http_message::chunked;
use http2::priority::Priority;
use http2::scheduler::Place;
use http2::window::{HeldWindow, SendWindow};

use super::outgoing::{Nothing, Outgoing, Part};
use super::request::{Framing, Head};
use super::writer::{CONTENT_BYTES_MAX, Writer};
use crate::buffer::{Buffer, COPY_BYTES};

/// Bytes of the message at which the session writes again.
const OUTGOING_BYTES_LOW: usize = COPY_BYTES / 2;

/// See the [module documentation](self).
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) id: u32,
    /// Its name for the session.
    pub(super) name: StreamId,
    /// The message in HTTP/1.1, as far as the session has not read it, ...
    incoming: Buffer,
    /// ... and the content that follows. It is framed when the session reads, in large chunks.
    content: Buffer,
    /// The lines of the trailer section, which follow the content.
    trailers: Vec<u8>,
    /// The final head has arrived.
    pub(super) has_head: bool,
    framing: Framing,
    /// The last chunk follows the content.
    needs_last_chunk: bool,
    /// Content among the unread bytes of the message, in bytes.
    held_bytes: u32,
    /// The message is complete, or its rest unwanted.
    pub(super) incoming_ended: bool,
    /// The session has to read.
    pub(super) is_readable: bool,
    /// This side's window.
    pub(super) receive: HeldWindow,
    pub(super) outgoing: Outgoing,
    /// The peer's window.
    pub(super) window: SendWindow,
    priority: Priority,
    /// The place among streams that may write.
    pub(super) place: Option<Place>,
    /// Bytes taken from the session, and how many the peer has acknowledged.
    queued: u64,
    acknowledged: u64,
    /// The session waits for `Writable`.
    wants_writable: bool,
    /// The session has gone: the rest of its message is on its way.
    pub(super) is_left: bool,
    /// When the session's timer expires, or the rest of its message is overdue, in microseconds.
    pub(super) deadline_us: Option<u64>,
}

/// The result of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Wrote,
    /// The session has written no more yet.
    Idle,
    /// A window is closed.
    Blocked,
    /// END_STREAM is written.
    Ended,
}

impl Stream {
    /// A client's stream, with its request.
    pub(super) fn of_client(id: u32, name: StreamId, head: Head, window: SendWindow) -> Self {
        let mut stream = Stream::new(id, name, Outgoing::response(head.is_head), window);
        stream.begin_message(&head.text, Some(head.framing));
        stream.is_readable = true;
        stream.priority = head.priority.unwrap_or_default();
        stream
    }

    /// A stream to a backend. Such streams take turns.
    pub(super) fn to_backend(id: u32, name: StreamId, window: SendWindow) -> Self {
        let mut stream = Stream::new(id, name, Outgoing::request(), window);
        stream.priority.incremental = true;
        stream
    }

    fn new(id: u32, name: StreamId, outgoing: Outgoing, window: SendWindow) -> Self {
        Stream {
            id,
            name,
            incoming: Buffer::default(),
            content: Buffer::default(),
            trailers: Vec::new(),
            has_head: false,
            framing: Framing::default(),
            needs_last_chunk: false,
            held_bytes: 0,
            incoming_ended: false,
            is_readable: false,
            receive: HeldWindow::INITIAL,
            outgoing,
            window,
            priority: Priority::default(),
            place: None,
            queued: 0,
            acknowledged: 0,
            wants_writable: false,
            is_left: false,
            deadline_us: None,
        }
    }

    /// Takes a head, in HTTP/1.1: the final one if the framing of the body is known.
    pub(super) fn begin_message(&mut self, text: &[u8], framing: Option<Framing>) {
        self.incoming.tail().extend_from_slice(text);
        if let Some(framing) = framing {
            (self.has_head, self.framing) = (true, framing);
        }
    }

    /// Takes the lines of a trailer section. Without chunks there is no place for them.
    pub(super) fn take_trailers(&mut self, lines: Vec<u8>) {
        if self.framing.is_chunked {
            self.trailers = lines;
        }
    }

    pub(super) fn prioritize(&mut self, priority: Priority) {
        self.priority = priority;
    }

    /// The rank among streams that may write. Every other ID is in use.
    pub(super) fn rank(&self) -> i32 {
        self.priority.of_request(u64::from(self.id) / 2)
    }

    /// Takes DATA's length; false if the body becomes longer than its `Content-Length`.
    pub(super) fn expect(&mut self, content_bytes: u32) -> bool {
        match &mut self.framing.content_bytes {
            None => true,
            Some(left) => match left.checked_sub(content_bytes.into()) {
                Some(rest) => {
                    *left = rest;
                    true
                }
                None => false,
            },
        }
    }

    /// Takes content.
    pub(super) fn take(&mut self, content: &[u8]) {
        self.content.tail().extend_from_slice(content);
        self.held_bytes += content.len() as u32;
    }

    /// The message is complete; false if its body is shorter than its `Content-Length`.
    pub(super) fn end_incoming(&mut self) -> bool {
        self.incoming_ended = true;
        self.needs_last_chunk = self.framing.is_chunked;
        self.framing.content_bytes.is_none_or(|left| left == 0)
    }

    /// Only END_STREAM is left: the session's message is written, and the content of the peer's is
    /// as long as its `Content-Length`, and read.
    pub(super) fn awaits_end(&self) -> bool {
        let is_whole = self.has_head && self.framing.content_bytes == Some(0);
        is_whole && !self.incoming_ended && self.unread() == 0 && self.outgoing.is_ended()
    }

    /// The rest of the message is unwanted; returns the discarded bytes of content.
    pub(super) fn drop_incoming(&mut self) -> u32 {
        (self.incoming_ended, self.needs_last_chunk) = (true, false);
        self.incoming.clear();
        self.content.clear();
        self.trailers = Vec::new();
        std::mem::take(&mut self.held_bytes)
    }

    /// Bytes of the message that the session has not read.
    pub(super) fn unread(&self) -> usize {
        self.incoming.len() + self.content.len() + usize::from(self.needs_last_chunk)
    }

    /// Frames the content.
    fn frame(&mut self) {
        let tail = self.incoming.tail();
        if !self.content.is_empty() {
            if self.framing.is_chunked {
                chunked::begin(tail, self.content.len());
            }
            tail.extend_from_slice(self.content.bytes());
            if self.framing.is_chunked {
                tail.extend_from_slice(chunked::CHUNK_END);
            }
            self.content.clear();
        }
        if std::mem::take(&mut self.needs_last_chunk) {
            tail.extend_from_slice(chunked::LAST_CHUNK);
            tail.append(&mut self.trailers);
            tail.extend_from_slice(chunked::TRAILERS_END);
        }
    }

    /// Reads the message; returns the number of bytes, and how many bytes of content are consumed.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> (usize, u32) {
        if self.incoming.is_empty() {
            self.frame();
        }
        let count = buffer.len().min(self.incoming.len());
        buffer[..count].copy_from_slice(&self.incoming.bytes()[..count]);
        self.incoming.consume(count);
        let is_all = self.unread() == 0;
        self.is_readable &= !is_all;
        // Framing among the bytes counts for content: it is little, and all content counts once.
        let consumed = match is_all {
            true => self.held_bytes,
            false => self.held_bytes.min(count as u32),
        };
        self.held_bytes -= consumed;
        (count, consumed)
    }

    /// Takes all bytes that the session has not read.
    pub(super) fn take_unread(&mut self) -> Vec<u8> {
        self.frame();
        let bytes = self.incoming.bytes().to_vec();
        self.incoming.clear();
        bytes
    }

    /// Takes bytes of the session's message; returns their number. A head has room in any case.
    pub(super) fn write(&mut self, bytes: &[u8]) -> usize {
        let room = match self.outgoing.is_in_head() {
            true => usize::MAX,
            false => COPY_BYTES.saturating_sub(self.outgoing.len()),
        };
        let count = bytes.len().min(room);
        self.outgoing.tail().extend_from_slice(&bytes[..count]);
        self.queued += count as u64;
        self.wants_writable |= count < bytes.len();
        count
    }

    /// True once if the session waits for room, and there is some.
    pub(super) fn takes_writable(&mut self) -> bool {
        let has_room = self.outgoing.len() <= OUTGOING_BYTES_LOW;
        has_room && std::mem::take(&mut self.wants_writable)
    }

    /// The peer has acknowledged more bytes; true if these are all.
    pub(super) fn acknowledge(&mut self, bytes: u64) -> bool {
        self.acknowledged += bytes;
        self.queued == self.acknowledged
    }

    pub(super) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Bytes taken and not acknowledged.
    pub(super) fn unacknowledged(&self) -> u64 {
        self.queued - self.acknowledged
    }

    /// True if the peer alone delays the message.
    pub(super) fn waits_for_window(&self) -> bool {
        self.outgoing.len() > 0 && self.window.available() == 0
    }

    /// Nothing more of the stream is to come, in either direction.
    pub(super) fn is_over(&self) -> bool {
        self.is_left && self.incoming_ended && self.outgoing.is_ended()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let incoming = self.incoming.memory_bytes() + self.content.memory_bytes();
        incoming + self.trailers.capacity() + self.outgoing.memory_bytes()
    }

    /// Writes the next frame of the message.
    pub(super) fn take_turn(&mut self, writer: &mut Writer) -> Turn {
        let room = self.window.available().min(writer.window.available());
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        let before = self.outgoing.len();
        let part = match self.outgoing.next(room.min(CONTENT_BYTES_MAX)) {
            Ok(part) => part,
            Err(Nothing::Room) => return Turn::Blocked,
            Err(Nothing::Yet) => {
                self.note(writer, before);
                return Turn::Idle;
            }
            Err(Nothing::Ended) => return Turn::Ended,
        };
        let ends_stream = match part {
            Part::Block {
                pseudo,
                fields,
                ends_stream,
            } => {
                writer.block(self.id, &pseudo, &fields, ends_stream);
                ends_stream
            }
            Part::Content { bytes, ends_stream } => {
                self.window.take(bytes as u64);
                writer.content(self.id, self.outgoing.content(bytes), ends_stream);
                self.outgoing.content_written(bytes);
                ends_stream
            }
        };
        self.note(writer, before);
        match ends_stream {
            true => Turn::Ended,
            false => Turn::Wrote,
        }
    }

    /// Notes that bytes of the session are in the frames now.
    fn note(&self, writer: &mut Writer, before: usize) {
        let bytes = (before - self.outgoing.len()) as u64;
        if bytes > 0 {
            writer.note(self.id, bytes);
        }
    }
}
