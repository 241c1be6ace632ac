//! Names of HTTP/2 streams among all streams of a proxy, and their news.

use std::collections::{HashMap, VecDeque};

use host::app::{AppEvent, CloseReason, StreamId};

use super::stream::Stream;
use crate::answer::Refusal;

/// Names of HTTP/2 streams begin here; the host gives its own streams lower ones.
const NAMES_START: u64 = 1 << 63;

/// Names of streams to backends begin here.
pub(super) const BACKEND_NAMES_START: u64 = NAMES_START | 1 << 62;

/// True if the name is that of an HTTP/2 stream.
pub(crate) fn is_of_http2(stream: StreamId) -> bool {
    (NAMES_START..u64::MAX).contains(&stream.0)
}

/// News of a stream, for its session.
#[derive(Debug)]
pub(crate) enum Notice {
    /// A stream has a request.
    Opened {
        name: StreamId,
        connection: StreamId,
        id: u32,
    },
    /// A connection carries a stream to a backend; the connection may have answered others.
    Carried {
        name: StreamId,
        is_reused: bool,
    },
    /// A stream to a backend cannot be opened, for a reason on this side.
    NotOpened {
        name: StreamId,
        why: Refusal,
    },
    /// A stream to a backend is over, and the backend has not processed it: it has refused it, or
    /// closes the connection (RFC 9113 §8.7).
    Unprocessed {
        name: StreamId,
        is_refused: bool,
    },
    Event(StreamId, AppEvent),
}

/// Names of streams, and their news.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// Connection and ID of each stream.
    carriers: HashMap<StreamId, (StreamId, u32)>,
    /// Number of names so far.
    count: u64,
    pub(super) notices: VecDeque<Notice>,
    /// Bytes of streams to backends that are over, as far as sessions have not read them.
    unread: HashMap<StreamId, Vec<u8>>,
}

impl Names {
    /// Connection and ID of a stream.
    pub(super) fn get(&self, name: StreamId) -> Option<(StreamId, u32)> {
        self.carriers.get(&name).copied()
    }

    /// Names a stream of a connection.
    pub(super) fn add(&mut self, connection: StreamId, id: u32) -> StreamId {
        let name = StreamId(NAMES_START + self.count);
        self.count += 1;
        self.carriers.insert(name, (connection, id));
        name
    }

    /// Notes the connection and the ID of a stream that has a name.
    pub(super) fn carry(&mut self, name: StreamId, connection: StreamId, id: u32) {
        self.carriers.insert(name, (connection, id));
    }

    /// The unread bytes of a stream that is over; only during its last event.
    pub(super) fn take_unread(&mut self, name: StreamId) -> Vec<u8> {
        self.unread.remove(&name).unwrap_or_default()
    }

    /// A stream is over; its session, if it still has one, learns that.
    pub(super) fn remove(&mut self, stream: &mut Stream, reason: CloseReason) {
        self.carriers.remove(&stream.name);
        if !stream.is_left {
            if stream.name.0 >= BACKEND_NAMES_START && stream.unread() > 0 {
                self.unread.insert(stream.name, stream.take_unread());
            }
            let closed = AppEvent::Closed {
                reason,
                acknowledged: stream.acknowledged(),
                retransmissions: 0,
            };
            self.notices.push_back(Notice::Event(stream.name, closed));
        }
    }
}
