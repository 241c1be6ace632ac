//! One stream: the bytes of its request for a session, and of the session's response.

use host::app::StreamId;
use http_message::chunked;
use http2::priority::Priority;
use http2::scheduler::Place;
use http2::window::{HeldWindow, SendWindow};

use super::reply::{Nothing, Part, Reply};
use super::request::Head;
use super::writer::{CONTENT_BYTES_MAX, Writer};
use crate::buffer::{Buffer, COPY_BYTES};

/// Bytes of the response at which the session writes again.
const REPLY_BYTES_LOW: usize = COPY_BYTES / 2;

/// See the [module documentation](self).
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) id: u32,
    /// Its name for the session.
    pub(super) name: StreamId,
    /// The request in HTTP/1.1, as far as the session has not read it, ...
    request: Buffer,
    /// ... and the content that follows. It is framed when the session reads, in large chunks.
    content: Buffer,
    is_chunked: bool,
    /// The last chunk follows the content.
    needs_last_chunk: bool,
    /// Content that has to arrive, by `Content-Length`.
    left_bytes: Option<u64>,
    /// Content among the unread bytes of the request, in bytes.
    held_bytes: u32,
    /// The request is complete, or its rest unwanted.
    pub(super) request_ended: bool,
    /// The session has to read.
    pub(super) is_readable: bool,
    /// This side's window.
    pub(super) receive: HeldWindow,
    pub(super) reply: Reply,
    /// The client's window.
    pub(super) window: SendWindow,
    priority: Priority,
    /// The place among streams that may write.
    pub(super) place: Option<Place>,
    /// Bytes taken from the session, and how many the client has acknowledged.
    queued: u64,
    acknowledged: u64,
    /// The session waits for `Writable`.
    wants_writable: bool,
    /// The session has gone: the rest of the response is on its way.
    pub(super) is_left: bool,
    /// When the session's timer expires, or the rest of the response is overdue, in microseconds.
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
    pub(super) fn new(id: u32, name: StreamId, head: Head, window: SendWindow) -> Self {
        let mut request = Buffer::default();
        request.tail().extend_from_slice(&head.text);
        Stream {
            id,
            name,
            request,
            content: Buffer::default(),
            is_chunked: head.is_chunked,
            needs_last_chunk: false,
            left_bytes: head.content_bytes,
            held_bytes: 0,
            request_ended: false,
            is_readable: true,
            receive: HeldWindow::INITIAL,
            reply: Reply::new(head.is_head),
            window,
            priority: head.priority.unwrap_or_default(),
            place: None,
            queued: 0,
            acknowledged: 0,
            wants_writable: false,
            is_left: false,
            deadline_us: None,
        }
    }

    pub(super) fn prioritize(&mut self, priority: Priority) {
        self.priority = priority;
    }

    /// The rank among streams that may write. Every other ID is a client's.
    pub(super) fn rank(&self) -> i32 {
        self.priority.of_request(u64::from(self.id) / 2)
    }

    /// Takes DATA's length; false if the body becomes longer than its `Content-Length`.
    pub(super) fn expect(&mut self, content_bytes: u32) -> bool {
        match &mut self.left_bytes {
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

    /// The request is complete; false if its body is shorter than its `Content-Length`.
    pub(super) fn end_request(&mut self) -> bool {
        self.request_ended = true;
        self.needs_last_chunk = self.is_chunked;
        self.left_bytes.is_none_or(|left| left == 0)
    }

    /// The rest of the request is unwanted; returns the discarded bytes of content.
    pub(super) fn drop_request(&mut self) -> u32 {
        (self.request_ended, self.needs_last_chunk) = (true, false);
        self.request.clear();
        self.content.clear();
        std::mem::take(&mut self.held_bytes)
    }

    /// Bytes of the request that the session has not read.
    pub(super) fn unread(&self) -> usize {
        self.request.len() + self.content.len() + usize::from(self.needs_last_chunk)
    }

    /// Frames the content.
    fn frame(&mut self) {
        let tail = self.request.tail();
        if !self.content.is_empty() {
            if self.is_chunked {
                chunked::begin(tail, self.content.len());
            }
            tail.extend_from_slice(self.content.bytes());
            if self.is_chunked {
                tail.extend_from_slice(chunked::CHUNK_END);
            }
            self.content.clear();
        }
        if std::mem::take(&mut self.needs_last_chunk) {
            tail.extend_from_slice(chunked::LAST);
        }
    }

    /// Reads the request; returns the number of bytes, and how many bytes of content are consumed.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> (usize, u32) {
        if self.request.is_empty() {
            self.frame();
        }
        let count = buffer.len().min(self.request.len());
        buffer[..count].copy_from_slice(&self.request.bytes()[..count]);
        self.request.consume(count);
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

    /// Takes bytes of the response; returns their number. A head has room in any case.
    pub(super) fn write(&mut self, bytes: &[u8]) -> usize {
        let room = match self.reply.is_in_head() {
            true => usize::MAX,
            false => COPY_BYTES.saturating_sub(self.reply.len()),
        };
        let count = bytes.len().min(room);
        self.reply.tail().extend_from_slice(&bytes[..count]);
        self.queued += count as u64;
        self.wants_writable |= count < bytes.len();
        count
    }

    /// True once if the session waits for room, and there is some.
    pub(super) fn takes_writable(&mut self) -> bool {
        let has_room = self.reply.len() <= REPLY_BYTES_LOW;
        has_room && std::mem::take(&mut self.wants_writable)
    }

    /// The client has acknowledged more bytes; true if these are all.
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

    /// True if the client alone delays the response.
    pub(super) fn waits_for_window(&self) -> bool {
        self.reply.len() > 0 && self.window.available() == 0
    }

    /// Nothing more of the stream is to come, in either direction.
    pub(super) fn is_over(&self) -> bool {
        self.is_left && self.request_ended && self.reply.is_ended()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let request = self.request.memory_bytes() + self.content.memory_bytes();
        request + self.reply.memory_bytes()
    }

    /// Writes the next frame of the response.
    pub(super) fn take_turn(&mut self, writer: &mut Writer) -> Turn {
        let room = self.window.available().min(writer.window.available());
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        let before = self.reply.len();
        let part = match self.reply.next(room.min(CONTENT_BYTES_MAX)) {
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
                status,
                fields,
                ends_stream,
            } => {
                writer.block(self.id, status, &fields, ends_stream);
                ends_stream
            }
            Part::Content { bytes, ends_stream } => {
                self.window.take(bytes as u64);
                writer.content(self.id, self.reply.content(bytes), ends_stream);
                self.reply.content_written(bytes);
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
        let bytes = (before - self.reply.len()) as u64;
        if bytes > 0 {
            writer.note(self.id, bytes);
        }
    }
}
