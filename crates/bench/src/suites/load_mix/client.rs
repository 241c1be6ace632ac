//! Thousands of clients of four kinds, on one thread and one core. They compare every byte with the
//! file, and account for every request.
//!
//! A server may close a connection between two responses, so a request without any byte of a
//! response, on a connection that has had responses before, is repeated on another one (RFC 9112
//! §9.3.1), and counted as such. Any other request without a complete response is lost.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_linger, set_socket_recv_buffer_size, socket_error};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, connect, recv, socket_with};
use serde::{Deserialize, Serialize};
use testbed::http::Head;
use testbed::{Context, Failure, Result};

use super::pace::{Pace, Pauses};
use super::shelf::{Random, Shelf, Wish};
use crate::load::{HEAD_BYTES_MAX, READY, conclude, print_line, take_place};

/// Most bytes received from a connection in one turn.
const TURN_BYTES_MAX: usize = 256 << 10;

/// Bytes that a slow reader receives in each tick, and the size of its receive buffer.
const SLOW_BYTES: usize = 16 << 10;
const SLOW_BUFFER_BYTES: usize = 32 << 10;
const TICK: Duration = Duration::from_millis(100);

/// Longest time without progress of a response.
const PATIENCE: Duration = Duration::from_secs(30);

/// Most connections in setup at once: a listening socket has room for some hundreds.
const OPENING_MAX: usize = 200;

/// Most complaints reported, and number of failures that ends the run: more add no information.
const COMPLAINTS_MAX: usize = 5;
const FAILURES_MAX: u64 = 1000;

/// The load to generate.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Settings {
    /// Address of the server.
    #[arg(long)]
    pub(crate) server: SocketAddr,
    /// Number of connections at any time.
    #[arg(long)]
    pub(crate) connections: usize,
    /// Length of the measured span, in seconds. Responses under way at its end are completed.
    #[arg(long)]
    pub(crate) seconds: f64,
    /// Seed of all random choices.
    #[arg(long)]
    pub(crate) seed: u64,
}

impl Settings {
    /// Returns the arguments for these settings.
    pub(crate) fn arguments(&self) -> Vec<String> {
        vec![
            "load-mix-client".into(),
            format!("--server={}", self.server),
            format!("--connections={}", self.connections),
            format!("--seconds={}", self.seconds),
            format!("--seed={}", self.seed),
        ]
    }
}

/// Result of the load, printed as one line of JSON.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Bytes of bodies within the measured span.
    pub(crate) body_bytes: u64,
    /// Responses that ended in the span.
    pub(crate) responses: u64,
    /// The measured span, in nanoseconds.
    pub(crate) elapsed_ns: u64,
    /// Bytes compared since the beginning: all bytes received.
    pub(crate) compared_bytes: u64,
    /// Connections opened.
    pub(crate) opened: u64,
    /// Responses that the client aborted.
    pub(crate) aborted: u64,
    /// Requests repeated because the server had closed the connection between two responses.
    pub(crate) repeated: u64,
    /// Responses with a wrong byte, or with more bytes than expected.
    pub(crate) wrong: u64,
    /// Requests without a complete response.
    pub(crate) lost: u64,
    /// Descriptions of some wrong or lost responses.
    pub(crate) complaints: Vec<String>,
    /// The longest pauses of the generator, since the beginning.
    pub(crate) pauses: Pauses,
}

/// Behavior of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Requests file after file.
    Whole,
    /// Requests part after part.
    Parts,
    /// Reads slowly, and lets its receive window close.
    Slow,
    /// Aborts in the middle of a response, and reconnects.
    Aborts,
}

impl Kind {
    /// Returns the kind of a client: six in ten request files, two parts, one is slow, one aborts.
    fn of(index: usize) -> Kind {
        match index % 10 {
            0..=5 => Kind::Whole,
            6 | 7 => Kind::Parts,
            8 => Kind::Slow,
            _ => Kind::Aborts,
        }
    }

    fn wish(self, shelf: &Shelf, random: &mut Random) -> Wish {
        match self {
            Kind::Whole => shelf.any(random),
            Kind::Parts => shelf.part(random),
            Kind::Slow | Kind::Aborts => shelf.large(random),
        }
    }
}

/// State of a connection's response.
enum Phase {
    Opening,
    /// Reading status and header fields; the bytes received.
    Head(Vec<u8>),
    /// Reading a body.
    Body {
        offset: u64,
    },
}

struct Connection {
    kind: Kind,
    stream: TcpStream,
    wish: Wish,
    /// Number of bytes after which the client aborts.
    abort_at: Option<u64>,
    phase: Phase,
    /// Complete responses on this connection.
    answers: u64,
    /// The server closes the connection after this response.
    is_last: bool,
    /// Time of the last received data.
    moved: Instant,
}

/// Reason of a connection's end.
enum End {
    /// No request is left, or the server has announced the close.
    Finished,
    Aborted,
    /// Closed by the server between two responses.
    Unanswered,
    Lost(String),
    Wrong(String),
}

impl Connection {
    /// Returns the end of a connection that the server has cut.
    fn cut(&self, how: &str) -> End {
        match &self.phase {
            Phase::Opening => End::Lost(format!("connecting: {how}")),
            Phase::Head(head) if head.is_empty() && self.answers > 0 => End::Unanswered,
            Phase::Head(head) => End::Lost(format!("{how} after {} bytes of a header", head.len())),
            Phase::Body { offset } => {
                let len = self.wish.part.end - self.wish.part.start;
                End::Lost(format!("{how} after {offset} of {len} bytes"))
            }
        }
    }

    /// Returns true while it is read in ticks instead of on events.
    fn is_slow(&self) -> bool {
        self.kind == Kind::Slow && matches!(self.phase, Phase::Body { .. })
    }
}

struct Generator {
    settings: Settings,
    shelf: Shelf,
    random: Random,
    waiting: OwnedFd,
    buffer: Vec<u8>,
    opening: usize,
    /// No new requests, and all clients read at full speed.
    is_ending: bool,
    total: Outcome,
    pace: Pace,
}

/// Generates load until the measured span is over and all responses in progress are complete;
/// prints [`READY`] once the connections have had one response each, on average, and then the
/// [`Outcome`].
pub(crate) fn generate(settings: &Settings) -> Result<()> {
    take_place()?;
    let waiting = epoll::create(epoll::CreateFlags::CLOEXEC).context(|| "epoll_create".into())?;
    let mut generator = Generator {
        settings: settings.clone(),
        shelf: Shelf::new(),
        random: Random::new(settings.seed),
        waiting,
        buffer: vec![0; TURN_BYTES_MAX],
        opening: 0,
        is_ending: false,
        total: Outcome::default(),
        pace: Pace::new(TICK),
    };
    conclude(&generator.run()?)
}

impl Generator {
    fn run(&mut self) -> Result<Outcome> {
        let count = self.settings.connections;
        let mut connections: Vec<Option<Connection>> = (0..count).map(|_| None).collect();
        // Connections to open, with the request to send if it is known.
        let mut closed: Vec<(usize, Option<Wish>)> =
            (0..count).map(|index| (index, None)).collect();
        let span = Duration::from_secs_f64(self.settings.seconds);
        let mut began: Option<(Instant, Outcome)> = None;
        let mut measured = None;
        let mut events = Vec::with_capacity(256);
        let start = Instant::now();
        let mut tick = start;
        loop {
            if self.is_ending {
                // A client that has lost a response may retry.
                closed.retain(|(_, wish)| wish.is_some());
                if closed.is_empty() && connections.iter().all(Option::is_none) {
                    break;
                }
            }
            while let (true, Some((index, wish))) = (self.opening < OPENING_MAX, closed.pop()) {
                connections[index] = Some(self.open(index, wish)?);
            }
            match &began {
                None if self.total.responses + self.total.aborted >= count as u64 => {
                    print_line(READY)?;
                    began = Some((Instant::now(), self.total.clone()));
                }
                None if start.elapsed() > 4 * PATIENCE => {
                    return Err(self.failure("too few answers to begin with"));
                }
                Some((since, before)) if !self.is_ending && since.elapsed() >= span => {
                    measured = Some((
                        since.elapsed(),
                        self.total.body_bytes - before.body_bytes,
                        self.total.responses - before.responses,
                    ));
                    self.end(&mut connections)?;
                }
                _ => {}
            }
            let timeout = Timespec {
                tv_sec: 0,
                tv_nsec: TICK.as_nanos() as i64,
            };
            events.clear();
            let room = rustix::buffer::spare_capacity(&mut events);
            let before = (Instant::now(), self.total.body_bytes);
            epoll::wait(&self.waiting, room, Some(&timeout)).context(|| "epoll_wait".into())?;
            let waited = before.0.elapsed();
            for event in &events {
                let index = event.data.u64() as usize;
                self.turn(index, &mut connections[index], &mut closed, TURN_BYTES_MAX)?;
            }
            if tick.elapsed() >= TICK {
                tick = Instant::now();
                for (index, place) in connections.iter_mut().enumerate() {
                    if !self.is_ending && place.as_ref().is_some_and(Connection::is_slow) {
                        self.turn(index, place, &mut closed, SLOW_BYTES)?;
                    }
                    let Some(connection) = place else { continue };
                    if connection.moved.elapsed() > PATIENCE {
                        let end = connection.cut("nothing for half a minute");
                        self.close(index, place, &mut closed, end)?;
                    }
                }
            }
            self.pace.turned(waited, self.total.body_bytes > before.1);
        }
        let (elapsed, body_bytes, responses) = measured.expect("a span that has ended");
        Ok(Outcome {
            elapsed_ns: elapsed.as_nanos() as u64,
            body_bytes,
            responses,
            compared_bytes: self.total.body_bytes,
            pauses: self.pace.pauses,
            ..self.total.clone()
        })
    }

    /// Returns a failure with some complaints, and with the generator's own pauses as a possible
    /// cause.
    fn failure(&self, what: &str) -> Failure {
        let complaints = self.total.complaints.join("; ");
        Failure::new(format!(
            "{what}: {complaints}; {}; nothing has come since {:.0} ms",
            self.pace.pauses,
            1e3 * self.pace.silence().as_secs_f64()
        ))
    }

    /// Stops new requests; all responses in progress are completed.
    fn end(&mut self, connections: &mut [Option<Connection>]) -> Result<()> {
        self.is_ending = true;
        for (index, place) in connections.iter().enumerate() {
            if let Some(connection) = place.as_ref().filter(|connection| connection.is_slow()) {
                self.await_on(index, connection, epoll::EventFlags::IN)?;
            }
        }
        Ok(())
    }

    /// Begins to open a connection.
    fn open(&mut self, index: usize, wish: Option<Wish>) -> Result<Connection> {
        let kind = Kind::of(index);
        let wish = wish.unwrap_or_else(|| kind.wish(&self.shelf, &mut self.random));
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let family = match self.settings.server {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let socket = socket_with(family, SocketType::STREAM, flags, None);
        let socket = socket.context(|| "making a socket".into())?;
        if kind == Kind::Slow {
            set_socket_recv_buffer_size(&socket, SLOW_BUFFER_BYTES)
                .context(|| "setting options of a socket".into())?;
        }
        match connect(&socket, &self.settings.server) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(errno) => {
                return Err(errno).context(|| format!("connecting to {}", self.settings.server));
            }
        }
        let data = epoll::EventData::new_u64(index as u64);
        epoll::add(&self.waiting, &socket, data, epoll::EventFlags::OUT)
            .context(|| "epoll_ctl".into())?;
        self.opening += 1;
        let mut connection = Connection {
            kind,
            stream: TcpStream::from(socket),
            wish,
            abort_at: None,
            phase: Phase::Opening,
            answers: 0,
            is_last: false,
            moved: Instant::now(),
        };
        self.decide_abort(&mut connection);
        Ok(connection)
    }

    fn decide_abort(&mut self, connection: &mut Connection) {
        let len = connection.wish.part.end - connection.wish.part.start;
        let aborts = connection.kind == Kind::Aborts && len > 1;
        connection.abort_at = aborts.then(|| 1 + self.random.below(len - 1));
    }

    fn await_on(&self, index: usize, connection: &Connection, on: epoll::EventFlags) -> Result<()> {
        let data = epoll::EventData::new_u64(index as u64);
        epoll::modify(&self.waiting, &connection.stream, data, on).context(|| "epoll_ctl".into())
    }

    /// Continues a connection, and handles its end.
    fn turn(
        &mut self,
        index: usize,
        place: &mut Option<Connection>,
        closed: &mut Vec<(usize, Option<Wish>)>,
        most: usize,
    ) -> Result<()> {
        let Some(connection) = place else {
            return Ok(());
        };
        let was_slow = connection.is_slow();
        let was_opening = matches!(connection.phase, Phase::Opening);
        let end = if was_opening {
            self.opened(connection)
        } else {
            self.receive(connection, most)
        };
        if let Some(end) = end {
            return self.close(index, place, closed, end);
        }
        if was_opening || was_slow != connection.is_slow() {
            let on = if connection.is_slow() && !self.is_ending {
                epoll::EventFlags::empty()
            } else {
                epoll::EventFlags::IN
            };
            self.await_on(index, connection, on)?;
        }
        Ok(())
    }

    fn close(
        &mut self,
        index: usize,
        place: &mut Option<Connection>,
        closed: &mut Vec<(usize, Option<Wish>)>,
        end: End,
    ) -> Result<()> {
        let Some(connection) = place.take() else {
            return Ok(());
        };
        if matches!(connection.phase, Phase::Opening) {
            self.opening -= 1;
        }
        let mut again = None;
        let mut complain = |what: String| {
            if self.total.complaints.len() < COMPLAINTS_MAX {
                self.total.complaints.push(what);
            }
        };
        match end {
            End::Finished => {}
            End::Aborted => self.total.aborted += 1,
            End::Unanswered => {
                self.total.repeated += 1;
                again = Some(connection.wish);
            }
            End::Lost(how) => {
                self.total.lost += 1;
                complain(how);
            }
            End::Wrong(how) => {
                self.total.wrong += 1;
                complain(how);
            }
        }
        if self.total.lost + self.total.wrong >= FAILURES_MAX {
            return Err(self.failure(&format!("{FAILURES_MAX} answers were wrong or lost")));
        }
        closed.push((index, again));
        Ok(())
    }

    /// Handles the result of the connection attempt.
    fn opened(&mut self, connection: &mut Connection) -> Option<End> {
        match socket_error(&connection.stream) {
            Ok(Ok(())) => {}
            Ok(Err(errno)) | Err(errno) => return Some(connection.cut(&errno.to_string())),
        }
        self.opening -= 1;
        self.total.opened += 1;
        connection.phase = Phase::Head(Vec::new());
        // Else the kernel would delay the end of a request that follows another one.
        let _ = connection.stream.set_nodelay(true);
        self.ask(connection)
    }

    fn ask(&mut self, connection: &mut Connection) -> Option<End> {
        let request = self.shelf.request(&connection.wish);
        connection.moved = Instant::now();
        match connection.stream.write(request.as_bytes()) {
            Ok(sent) if sent == request.len() => None,
            Ok(_) => Some(End::Lost(
                "a request does not fit into an empty send buffer".into(),
            )),
            Err(error) => Some(connection.cut(&error.to_string())),
        }
    }

    /// Receives from a connection, up to `most` bytes.
    fn receive(&mut self, connection: &mut Connection, most: usize) -> Option<End> {
        let mut taken = 0;
        while taken < most {
            let received = match recv(
                &connection.stream,
                &mut self.buffer[..most - taken],
                RecvFlags::empty(),
            ) {
                Ok((_, 0)) => return Some(connection.cut("closed")),
                Ok((_, received)) => received,
                Err(Errno::AGAIN) => return None,
                Err(Errno::INTR) => continue,
                Err(errno) => return Some(connection.cut(&errno.to_string())),
            };
            taken += received;
            connection.moved = Instant::now();
            let buffer = std::mem::take(&mut self.buffer);
            let end = self.advance(connection, &buffer[..received]);
            self.buffer = buffer;
            if end.is_some() {
                return end;
            }
        }
        None
    }

    /// Processes received bytes.
    fn advance(&mut self, connection: &mut Connection, bytes: &[u8]) -> Option<End> {
        let head = match &mut connection.phase {
            Phase::Opening => return None,
            Phase::Body { .. } => return self.advance_body(connection, bytes),
            Phase::Head(head) => head,
        };
        head.extend_from_slice(bytes);
        let Some(len) = head.windows(4).position(|four| four == b"\r\n\r\n") else {
            let is_long = head.len() >= HEAD_BYTES_MAX;
            return is_long.then(|| End::Lost("a header without end".into()));
        };
        let text = String::from_utf8_lossy(&head[..len]).into_owned();
        let body = head.split_off(len + 4);
        let parsed = Head::parse(&text).ok_or(format!("not a response: {text:?}"));
        let checked = parsed.and_then(|head| {
            self.shelf.check_head(&connection.wish, &head)?;
            Ok(head)
        });
        let head = match checked {
            Ok(head) => head,
            Err(how) => return Some(End::Lost(how)),
        };
        connection.is_last = head
            .field("connection")
            .is_some_and(|word| word.eq_ignore_ascii_case("close"));
        connection.phase = Phase::Body { offset: 0 };
        self.advance_body(connection, &body)
    }

    fn advance_body(&mut self, connection: &mut Connection, bytes: &[u8]) -> Option<End> {
        let Phase::Body { offset } = &mut connection.phase else {
            return None;
        };
        let len = connection.wish.part.end - connection.wish.part.start;
        if *offset + bytes.len() as u64 > len {
            return Some(End::Wrong(format!(
                "more than the {len} bytes that there are"
            )));
        }
        if let Err(how) = self.shelf.check(&connection.wish, *offset, bytes) {
            return Some(End::Wrong(how));
        }
        *offset += bytes.len() as u64;
        self.total.body_bytes += bytes.len() as u64;
        if connection
            .abort_at
            .is_some_and(|abort_at| *offset >= abort_at)
            && *offset < len
        {
            // One half abort with an explicit reset, the others by a close with unread data, for
            // which the kernel sends one.
            if self.random.below(2) == 0 {
                let _ = set_socket_linger(&connection.stream, Some(Duration::ZERO));
            }
            return Some(End::Aborted);
        }
        if *offset < len {
            return None;
        }
        self.total.responses += 1;
        connection.answers += 1;
        if self.is_ending || connection.is_last {
            return Some(End::Finished);
        }
        connection.phase = Phase::Head(Vec::new());
        connection.wish = connection.kind.wish(&self.shelf, &mut self.random);
        self.decide_abort(connection);
        self.ask(connection)
    }
}
