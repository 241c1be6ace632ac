//! In the host process: writes the state of connections to clients of `splitway stat`, a part in
//! each turn, so that packets are not delayed.
//!
//! The client reads from a pipe. The shard is woken while the pipe has room, writes without
//! blocking, and never waits. Connections that open or close meanwhile may be missing; all others
//! are written once.

use std::os::fd::{AsFd, OwnedFd};

use failure::Failure;
use proxy::Proxy;
use rustix::event::epoll;
use rustix::io::Errno;
use socket_channel::AppId;
use sockets::Sockets;

use crate::host::apps::App;
use crate::host::counter_reporter::counted;
use crate::ipc::stat_report::{Application, Backend, Connection, Host, Line, QuicConnection};

/// Connections written in one turn of the shard: some hundred microseconds of work.
const CONNECTIONS_A_TURN: usize = 128;

/// Backends written in one turn.
const BACKENDS_A_TURN: usize = 1024;

/// Applications written in one turn.
const APPLICATIONS_A_TURN: usize = 128;

/// Table slots visited in one turn.
const PLACES_A_TURN: usize = 4096;

/// Most simultaneous readers.
const READERS_MAX: usize = 4;

/// Time after which a reader that reads nothing is dropped, in microseconds.
const PATIENCE_US: u64 = 10_000_000;

/// Clients that read.
#[derive(Debug, Default)]
pub struct Readers {
    readers: Vec<Reader>,
}

#[derive(Debug)]
struct Reader {
    pipe: OwnedFd,
    /// Bytes not yet written to the pipe, from `taken` on.
    bytes: Vec<u8>,
    taken: usize,
    next: Next,
    /// Time of the last write, or of the request, in microseconds.
    taken_us: u64,
}

/// Position in the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Host,
    /// Backends from this index on.
    Backend(usize),
    /// Applications from this number on.
    Application(u32),
    /// TCP connections from this table slot on.
    Place(usize),
    /// QUIC connections from this table slot on.
    QuicPlace(usize),
    Nothing,
}

impl Readers {
    /// Adds a client that reads at the other end of `pipe`, which does not block. `wake` is
    /// readable while [`Readers::tell`] has work.
    pub fn add(&mut self, wake: &OwnedFd, pipe: OwnedFd, now_us: u64) -> Result<(), Failure> {
        let what = "telling of connections";
        self.give_up_silent(wake, now_us);
        if self.readers.len() >= READERS_MAX {
            let why = format!("{READERS_MAX} read already");
            return Err(Failure::broken(what, why));
        }
        let data = epoll::EventData::new_u64(0);
        epoll::add(wake, &pipe, data, epoll::EventFlags::OUT)
            .map_err(|errno| Failure::broken(what, errno))?;
        self.readers.push(Reader {
            pipe,
            bytes: Vec::new(),
            taken: 0,
            next: Next::Host,
            taken_us: now_us,
        });
        Ok(())
    }

    /// Produces the next lines of one reader, and writes buffered bytes to all.
    pub fn tell(&mut self, wake: &OwnedFd, now_us: u64, stack: &host::Stack, app: &App) {
        let wants_more = self.readers.iter().position(Reader::wants_more);
        if let Some(first) = wants_more {
            self.readers[first].fill(now_us, stack, app);
            // The others take their turns before it.
            self.readers[first..].rotate_left(1);
        }
        self.readers.retain_mut(|reader| {
            let goes_on = reader.hand_over(now_us) && !reader.is_done();
            if !goes_on {
                unwatch(wake, &reader.pipe);
            }
            goes_on
        });
        self.give_up_silent(wake, now_us);
    }

    fn give_up_silent(&mut self, wake: &OwnedFd, now_us: u64) {
        self.readers.retain(|reader| {
            let waits = now_us.saturating_sub(reader.taken_us) < PATIENCE_US;
            if !waits {
                unwatch(wake, &reader.pipe);
            }
            waits
        });
    }
}

/// Stops watching a pipe: closing our end does not suffice while the supervisor holds a copy.
fn unwatch(wake: &OwnedFd, pipe: &OwnedFd) {
    if let Err(errno) = epoll::delete(wake, pipe.as_fd()) {
        tracing::debug!("a reader remains watched: {errno}");
    }
}

impl Reader {
    fn wants_more(&self) -> bool {
        self.bytes.is_empty() && self.next != Next::Nothing
    }

    fn is_done(&self) -> bool {
        self.bytes.is_empty() && self.next == Next::Nothing
    }

    /// Appends the next lines to the buffer.
    fn fill(&mut self, now_us: u64, stack: &host::Stack, app: &App) {
        let place = match self.next {
            Next::Host => {
                let counters = counted(stack, app);
                self.push(&Line::Host(Host::of(stack, counters)));
                self.next = Next::Backend(0);
                return;
            }
            Next::Backend(first) => return self.push_backends(first, now_us, &app.proxy),
            Next::Application(first) => return self.push_applications(first, &app.others),
            Next::Place(place) => return self.push_connections(place, now_us, stack, app),
            Next::QuicPlace(place) => place,
            Next::Nothing => return,
        };
        let mut told = 0;
        for (at, info) in stack.quic_connections_from(place) {
            if told == CONNECTIONS_A_TURN || at - place == PLACES_A_TURN {
                self.next = Next::QuicPlace(at);
                return;
            }
            if let Some(info) = info {
                let connection = QuicConnection::of(&info);
                self.push(&Line::QuicConnection(Box::new(connection)));
                told += 1;
            }
        }
        self.push(&Line::End {});
        self.next = Next::Nothing;
    }

    fn push_connections(&mut self, place: usize, now_us: u64, stack: &host::Stack, app: &App) {
        let mut told = 0;
        for (at, info) in stack.connections_from(place, now_us) {
            if told == CONNECTIONS_A_TURN || at - place == PLACES_A_TURN {
                self.next = Next::Place(at);
                return;
            }
            if let Some(info) = info {
                let connection = Connection::of(&info, &app.server);
                self.push(&Line::Connection(Box::new(connection)));
                told += 1;
            }
        }
        self.next = Next::QuicPlace(0);
    }

    fn push_backends(&mut self, first: usize, now_us: u64, proxy: &Proxy) {
        let views = proxy.backends(now_us);
        let end = views.len().min(first + BACKENDS_A_TURN);
        for view in views.get(first..end).unwrap_or_default() {
            self.push(&Line::Backend(Backend::of(view)));
        }
        self.next = match end < views.len() {
            true => Next::Backend(end),
            false => Next::Application(0),
        };
    }

    fn push_applications(&mut self, first: u32, sockets: &Sockets) {
        let mut views = sockets.applications_from(AppId(first));
        for view in views.by_ref().take(APPLICATIONS_A_TURN) {
            self.push(&Line::Application(Application::of(&view)));
        }
        self.next = views
            .next()
            .map_or(Next::Place(0), |view| Next::Application(view.app.0));
    }

    fn push(&mut self, line: &Line) {
        // Writing to memory does not fail, and all map keys are strings.
        if let Err(error) = serde_json::to_writer(&mut self.bytes, line) {
            tracing::error!("a line that cannot be serialized: {error}");
        }
        self.bytes.push(b'\n');
    }

    /// Writes to the pipe; returns false if its reader is gone.
    fn hand_over(&mut self, now_us: u64) -> bool {
        while let Some(rest) = self.bytes.get(self.taken..)
            && !rest.is_empty()
        {
            match rustix::io::retry_on_intr(|| rustix::io::write(&self.pipe, rest)) {
                Ok(count) => {
                    self.taken += count;
                    self.taken_us = now_us;
                }
                Err(Errno::AGAIN) => return true,
                Err(errno) => {
                    tracing::debug!("a client no longer reads connections: {errno}");
                    return false;
                }
            }
        }
        self.bytes.clear();
        self.taken = 0;
        true
    }
}
