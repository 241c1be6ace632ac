//! Names of HTTP/2 streams among all streams of a proxy, and their news.

use std::collections::{HashMap, VecDeque};

use host::app::{AppEvent, CloseReason, StreamId};

use super::stream::Stream;

/// Names of HTTP/2 streams begin here; the host gives its own streams lower ones.
const NAMES_START: u64 = 1 << 63;

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

    /// A stream is over; its session, if it still has one, learns that.
    pub(super) fn remove(&mut self, stream: &Stream, reason: CloseReason) {
        self.carriers.remove(&stream.name);
        if !stream.is_left {
            let closed = AppEvent::Closed {
                reason,
                acknowledged: stream.acknowledged(),
                retransmissions: 0,
            };
            self.notices.push_back(Notice::Event(stream.name, closed));
        }
    }
}
