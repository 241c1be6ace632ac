//! The TCP stream of the connection, its files and the clock.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use host::app::{AppEvent, CloseReason, FileHandle, FileMeta, Io, ListPlace, StreamId, TlsAgreed};
use host::{Growth, PassedId};
use server::Server;

use crate::client::{Client, End, content};
use crate::event;

/// The TCP stream.
pub(crate) const STREAM: StreamId = StreamId(1);

const PEER: ([u8; 4], u16) = ([10, 0, 0, 1], 40_000);

/// Lengths of the files that are there, by their one-digit names.
const FILES: [u64; 5] = [0, 1, 4087, 20_000, 120_000];

/// Most timers after which an abandoned connection is over.
const TIMERS_MAX: usize = 2000;

/// See the [module documentation](self).
pub(crate) struct Net {
    pub(crate) client: Client,
    pub(crate) now: Duration,
    /// Bytes that the TCP stream takes beyond those that are acknowledged.
    pub(crate) room: u64,
    inbox: VecDeque<u8>,
    events: VecDeque<AppEvent>,
    written: u64,
    acknowledged: u64,
    /// The last write was short.
    is_short: bool,
    notsent_lowat: Option<u64>,
    timer: Option<Duration>,
    has_finished: bool,
    is_shut_down: bool,
    is_closed: bool,
    /// Lengths of the files that are open.
    files: BTreeMap<FileHandle, u64>,
    files_opened: u64,
    waiting: VecDeque<(FileHandle, Option<u64>)>,
}

impl Default for Net {
    fn default() -> Self {
        Net {
            client: Client::default(),
            now: Duration::from_secs(1),
            room: 100_000,
            inbox: VecDeque::new(),
            events: VecDeque::new(),
            written: 0,
            acknowledged: 0,
            is_short: false,
            notsent_lowat: None,
            timer: None,
            has_finished: false,
            is_shut_down: false,
            is_closed: false,
            files: BTreeMap::new(),
            files_opened: 0,
            waiting: VecDeque::new(),
        }
    }
}

impl Net {
    pub(crate) fn accept(&mut self, server: &mut Server, tls: Box<TlsAgreed>) {
        let peer = SocketAddr::from(PEER);
        let accepted = AppEvent::Accepted {
            peer,
            proxied: None,
            tls: Some(tls),
        };
        event(server, self, accepted);
    }

    /// The client sends bytes.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        if self.has_finished || self.is_closed {
            return;
        }
        self.client.note_sent(bytes);
        self.inbox.extend(bytes);
        self.events.push_back(AppEvent::Readable);
    }

    /// The client sends FIN.
    pub(crate) fn finish(&mut self) {
        if !self.has_finished && !self.is_closed {
            self.has_finished = true;
            self.events.push_back(AppEvent::PeerFinished);
        }
    }

    /// The client acknowledges all but this much.
    pub(crate) fn acknowledge(&mut self, but: u64) {
        let acknowledged = self.written.saturating_sub(but);
        if acknowledged > self.acknowledged {
            self.acknowledged = acknowledged;
            if acknowledged == self.written {
                self.events.push_back(AppEvent::Drained);
            }
        }
        self.call_back();
    }

    /// The server may write again.
    fn call_back(&mut self) {
        let unsent = self.written - self.acknowledged;
        let is_low = self.notsent_lowat.is_some_and(|bytes| unsent <= bytes);
        if self.is_short && unsent < self.room || is_low {
            self.is_short = false;
            self.notsent_lowat = None;
            self.events.push_back(AppEvent::Writable);
        }
    }

    pub(crate) fn answer_opens(&mut self, are_there: bool) {
        for (file, size) in std::mem::take(&mut self.waiting) {
            if !self.files.contains_key(&file) {
                continue;
            }
            let event = match size.filter(|_| are_there) {
                Some(size) => AppEvent::Opened {
                    file,
                    meta: FileMeta {
                        size,
                        inode: size + 1,
                        ..FileMeta::default()
                    },
                },
                None => {
                    self.files.remove(&file);
                    AppEvent::OpenFailed { file, errno: 2 }
                }
            };
            self.events.push_back(event);
        }
    }

    pub(crate) fn pass(&mut self, milliseconds: u16) {
        self.now += Duration::from_millis(milliseconds.into());
        if self.timer.take_if(|at| *at <= self.now).is_some() {
            self.events.push_back(AppEvent::Timer);
        }
    }

    /// Delivers all events to the server.
    pub(crate) fn deliver(&mut self, server: &mut Server) {
        while let Some(next) = self.events.pop_front() {
            if !self.is_closed || matches!(next, AppEvent::Closed { .. }) {
                event(server, self, next);
            }
        }
    }

    /// Takes and acknowledges all that the server writes.
    fn drink(&mut self, server: &mut Server) {
        self.room = u64::MAX;
        self.acknowledge(0);
        self.deliver(server);
        while !self.is_closed && (self.written > self.acknowledged || !self.waiting.is_empty()) {
            self.answer_opens(true);
            self.acknowledge(0);
            self.deliver(server);
        }
    }

    /// Everything that the server can do now is done.
    pub(crate) fn settle(&mut self, server: &mut Server) {
        self.drink(server);
        if !self.is_closed && !self.is_shut_down {
            assert!(self.inbox.is_empty(), "everything is read");
            self.client.check_settled();
        }
    }

    /// Time passes without the client, until the server has given the connection up.
    pub(crate) fn end(&mut self, server: &mut Server) {
        for _ in 0..TIMERS_MAX {
            if self.is_closed {
                break;
            }
            if self.is_shut_down && self.has_finished {
                self.close(CloseReason::Finished);
            } else {
                self.now = self.timer.take().expect("a connection has a timer");
                self.events.push_back(AppEvent::Timer);
            }
            self.deliver(server);
            self.drink(server);
        }
        assert!(self.is_closed, "given up");
        self.client.check_over();
        assert!(self.files.is_empty(), "{:?}", self.files);
    }

    /// The stream is over: its files are closed, and the last event follows.
    fn close(&mut self, reason: CloseReason) {
        self.is_closed = true;
        self.files.clear();
        self.events.push_back(AppEvent::Closed {
            reason,
            acknowledged: self.acknowledged,
            retransmissions: 0,
        });
    }

    /// Bytes that the stream takes now.
    fn take(&mut self, wanted: u64) -> u64 {
        let is_over = self.is_shut_down || self.is_closed;
        assert!(!is_over, "nothing follows the end");
        let room = self.room.saturating_sub(self.written - self.acknowledged);
        self.is_short |= room < wanted;
        wanted.min(room)
    }
}

impl Io for Net {
    fn read(&mut self, _: StreamId, buffer: &mut [u8]) -> usize {
        let count = self.inbox.len().min(buffer.len());
        for (into, from) in buffer.iter_mut().zip(self.inbox.drain(..count)) {
            *into = from;
        }
        count
    }

    fn write(&mut self, _: StreamId, bytes: &[u8]) -> usize {
        let count = self.take(bytes.len() as u64);
        self.written += count;
        self.client.receive(&bytes[..count as usize]);
        count as usize
    }

    fn write_file(&mut self, _: StreamId, file: FileHandle, range: Range<u64>) -> u64 {
        let size = self.files.get(&file).expect("a file that is open");
        assert!(range.start < range.end && range.end <= *size, "{range:?}");
        let wanted = range.end - range.start;
        // All of a range, or nothing.
        if self.take(wanted) < wanted {
            return 0;
        }
        self.written += wanted;
        let bytes: Vec<u8> = range.map(content).collect();
        self.client.receive(&bytes);
        wanted
    }

    fn open(&mut self, _: StreamId, path: &[u8], _: Growth) -> FileHandle {
        self.files_opened += 1;
        let file = FileHandle(self.files_opened);
        let size = match path {
            [digit @ b'0'..=b'4'] => Some(FILES[usize::from(digit - b'0')]),
            _ => None,
        };
        self.files.insert(file, size.unwrap_or(0));
        self.waiting.push_back((file, size));
        file
    }

    fn open_passed(&mut self, _: StreamId, _: PassedId) -> FileHandle {
        unreachable!("the server opens files by path")
    }

    fn list(&mut self, _: StreamId, _: &[u8], _: Option<ListPlace>) -> FileHandle {
        unreachable!("directories are not listed")
    }

    fn close_file(&mut self, file: FileHandle) {
        assert!(self.files.remove(&file).is_some(), "closed once");
    }

    fn shutdown(&mut self, _: StreamId) {
        assert!(!self.is_shut_down, "shut down once");
        self.is_shut_down = true;
        self.client.note_end(End::Finished);
    }

    fn abort(&mut self, _: StreamId) {
        assert!(!self.is_closed, "aborted once");
        self.client.note_end(End::Aborted);
        self.close(CloseReason::Aborted);
    }

    fn set_timer(&mut self, _: StreamId, after: Option<Duration>) {
        self.timer = after.map(|after| self.now + after);
    }

    fn set_idle(&mut self, _: StreamId, _: bool) {}

    fn set_max_pacing_rate(&mut self, _: StreamId, _: Option<u64>) {}

    fn set_notsent_lowat(&mut self, _: StreamId, bytes: u64) {
        self.notsent_lowat = Some(bytes);
    }

    fn acknowledged(&self, _: StreamId) -> u64 {
        self.acknowledged
    }

    fn unacknowledged(&self, _: StreamId) -> u64 {
        self.written - self.acknowledged
    }

    fn unsent(&self, stream: StreamId) -> u64 {
        self.unacknowledged(stream)
    }

    fn usable_window(&self, _: StreamId) -> u64 {
        0
    }

    fn waits_for_peer(&self, stream: StreamId) -> bool {
        self.unacknowledged(stream) > 0
    }

    fn retransmissions(&self, _: StreamId) -> u32 {
        0
    }

    fn now_us(&self) -> u64 {
        self.now.as_micros() as u64
    }

    fn unix_time(&self) -> Duration {
        self.now
    }
}
