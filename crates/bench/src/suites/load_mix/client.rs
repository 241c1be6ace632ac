//! Thousands of clients of four kinds, on one thread and one core. They compare every byte with
//! what the file holds, and keep account of every request.
//!
//! A server may close a connection between two responses, so a request that has got no byte of an
//! answer on a connection which has brought answers before is sent again on another one (RFC 9112
//! §9.3.1), and counted as such. Any other request that is not answered to the end is lost.

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

/// Most bytes that are taken from a connection before the next has its turn.
const TURN_BYTES_MAX: usize = 256 << 10;

/// What a slow reader takes in each tick, and the receive buffer that it asks for.
const SLOW_BYTES: usize = 16 << 10;
const SLOW_BUFFER_BYTES: usize = 32 << 10;
const TICK: Duration = Duration::from_millis(100);

/// How long nothing may come of an answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Most connections that are being opened at once: a listening socket has room for some hundreds.
const OPENING_MAX: usize = 200;

/// Complaints that are reported, at most. With a thousand there is nothing more to be learnt.
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
    /// The arguments that say the same.
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

/// What came of it: printed as one line of JSON.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Bytes of bodies within the measured span.
    pub(crate) body_bytes: u64,
    /// Answers that came to their end in it.
    pub(crate) responses: u64,
    /// The measured span, in nanoseconds.
    pub(crate) elapsed_ns: u64,
    /// Since the beginning: bytes that were compared, which are all.
    pub(crate) compared_bytes: u64,
    /// Connections that were opened.
    pub(crate) opened: u64,
    /// Answers that a client did not want to the end.
    pub(crate) aborted: u64,
    /// Requests that were sent again, since the server had closed a connection between two answers.
    pub(crate) repeated: u64,
    /// Answers with a wrong byte, or with more bytes than there are.
    pub(crate) wrong: u64,
    /// Requests that were not answered to the end.
    pub(crate) lost: u64,
    /// Some of what was wrong or lost.
    pub(crate) complaints: Vec<String>,
    /// The longest pauses of the generator, since the beginning.
    pub(crate) pauses: Pauses,
}

/// What a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// It asks for file after file.
    Whole,
    /// It asks for part after part.
    Parts,
    /// It reads slowly, and lets its receive window close.
    Slow,
    /// It goes away in the middle of an answer, and comes back.
    Aborts,
}

impl Kind {
    /// Six in ten want files, two parts, one is slow, one goes away.
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

/// What a connection is in the middle of.
enum Phase {
    Opening,
    /// Reading status and header fields; what has come of them.
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
    /// The client goes away after so many bytes.
    abort_at: Option<u64>,
    phase: Phase,
    /// Answers that it has brought.
    answers: u64,
    /// The server closes it behind this answer.
    is_last: bool,
    /// When something has come last.
    moved: Instant,
}

/// Why a connection is not used any more.
enum End {
    /// There is nothing to be asked for, or the server has said that it would close it.
    Finished,
    Aborted,
    /// Closed by the server between two answers.
    Unanswered,
    Lost(String),
    Wrong(String),
}

impl Connection {
    /// It was cut.
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

    /// It is read in ticks, and not when something has come.
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
    /// Nothing new is asked for, and no client is slow any more.
    is_ending: bool,
    total: Outcome,
    pace: Pace,
}

/// Generates load until the measured span is over and all that was under way has come; prints
/// [`READY`] when each connection has had an answer, on average, and then the [`Outcome`].
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
        // Those to be opened, and what they are to ask for if that is known.
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
                // A client that has lost an answer may ask again.
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

    /// What has gone wrong, some of what led to it, and whether it was the generator itself that
    /// did not run.
    fn failure(&self, what: &str) -> Failure {
        let complaints = self.total.complaints.join("; ");
        Failure::new(format!(
            "{what}: {complaints}; {}; nothing has come since {:.0} ms",
            self.pace.pauses,
            1e3 * self.pace.silence().as_secs_f64()
        ))
    }

    /// From here on, all that is under way is brought to its end.
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

    /// Has a connection go on, and deals with its end.
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

    /// The server has accepted the connection, or not.
    fn opened(&mut self, connection: &mut Connection) -> Option<End> {
        match socket_error(&connection.stream) {
            Ok(Ok(())) => {}
            Ok(Err(errno)) | Err(errno) => return Some(connection.cut(&errno.to_string())),
        }
        self.opening -= 1;
        self.total.opened += 1;
        connection.phase = Phase::Head(Vec::new());
        // Else the kernel would hold back the end of a request behind another one.
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

    /// Takes what a connection has, up to a bound.
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

    /// Goes on with what has come.
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
            // One half say so with a reset, the others leave that to their kernel, for what they
            // have not read.
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
