//! The load on an echo server: each connection sends a message and waits for its echo, on one
//! thread and one core. Every byte is compared.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};
use testbed::{Context, Failure, Result};

use crate::RECEIVE_WAIT_MAX;
use crate::load::{
    Latencies, Outcome, Percentiles, READY, begin_connection, conclude, print_line, take_place,
};

/// Number of offsets in the random bytes where messages begin, so that successive messages of a
/// connection differ, as do messages of different connections.
const RANDOM_BYTES: usize = 64 << 10;

/// Most bytes received at once.
const READ_BYTES_MAX: usize = 256 << 10;

/// The load to generate.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Settings {
    /// Address of the server.
    #[arg(long)]
    pub(crate) server: SocketAddr,
    /// Number of connections.
    #[arg(long)]
    pub(crate) connections: usize,
    /// Length of a message, in bytes.
    #[arg(long)]
    pub(crate) message_bytes: usize,
    /// Length of the measured span, in seconds.
    #[arg(long)]
    pub(crate) seconds: f64,
    /// The server closes each connection after the first echo, and another replaces it; the time to
    /// open it counts.
    #[arg(long)]
    pub(crate) short: bool,
}

impl Settings {
    /// Returns the arguments for these settings.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![
            "echo-load".into(),
            format!("--server={}", self.server),
            format!("--connections={}", self.connections),
            format!("--message-bytes={}", self.message_bytes),
            format!("--seconds={}", self.seconds),
        ];
        if self.short {
            arguments.push("--short".into());
        }
        arguments
    }
}

struct Connection {
    socket: OwnedFd,
    is_open: bool,
    /// Offset of its message in the random bytes.
    start: usize,
    sent: usize,
    received: usize,
    asked: Instant,
    first_byte: Instant,
    /// The connection, or a predecessor in its slot, has had an echo.
    is_served: bool,
}

struct Load<'a> {
    settings: &'a Settings,
    random_bytes: Vec<u8>,
    buffer: Vec<u8>,
    messages: u64,
    served: usize,
    total: Outcome,
    latencies: Latencies,
}

/// Generates load until the measured span is over; prints [`READY`], and then the outcome.
pub(crate) fn generate(settings: &Settings) -> Result<()> {
    if settings.connections == 0 || settings.message_bytes == 0 {
        return Err(Failure::new("a load has connections, and messages bytes"));
    }
    take_place()?;
    let mut load = Load {
        settings,
        random_bytes: random_bytes(RANDOM_BYTES + settings.message_bytes),
        buffer: vec![0; READ_BYTES_MAX],
        messages: 0,
        served: 0,
        total: Outcome::default(),
        latencies: Latencies::new(),
    };
    load.run()
}

/// Returns bytes of a xorshift: the same in each run.
fn random_bytes(len: usize) -> Vec<u8> {
    let mut random = 0x5eed_u64;
    let words = std::iter::repeat_with(|| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random.to_le_bytes()
    });
    words.take(len.div_ceil(8)).flatten().take(len).collect()
}

impl Load<'_> {
    fn run(&mut self) -> Result<()> {
        let waiting =
            epoll::create(epoll::CreateFlags::CLOEXEC).context(|| "epoll_create".into())?;
        let mut connections = Vec::with_capacity(self.settings.connections);
        for index in 0..self.settings.connections {
            connections.push(self.join(index, &waiting)?);
        }
        let mut events = Vec::with_capacity(256);
        let span = Duration::from_secs_f64(self.settings.seconds);
        let mut began: Option<(Instant, Outcome)> = None;
        loop {
            match began {
                None if self.is_under_way() => {
                    print_line(READY)?;
                    self.latencies = Latencies::new();
                    began = Some((Instant::now(), self.total));
                }
                Some((start, before)) if start.elapsed() >= span => {
                    return conclude(&self.outcome(start.elapsed(), before));
                }
                _ => {}
            }
            let patience = Timespec {
                tv_sec: RECEIVE_WAIT_MAX.as_secs() as i64,
                tv_nsec: 0,
            };
            events.clear();
            let spare = rustix::buffer::spare_capacity(&mut events);
            epoll::wait(&waiting, spare, Some(&patience)).context(|| "epoll_wait".into())?;
            if events.is_empty() {
                return Err(Failure::new(format!(
                    "{}: nothing has come for {RECEIVE_WAIT_MAX:?}, after {} echoes",
                    self.settings.server, self.total.responses
                )));
            }
            for event in &events {
                let index = event.data.u64() as usize;
                let connection = &mut connections[index];
                if self.turn(connection)? {
                    let is_served = connection.is_served;
                    *connection = self.join(index, &waiting)?;
                    connection.is_served = is_served;
                }
            }
        }
    }

    fn outcome(&self, elapsed: Duration, before: Outcome) -> Outcome {
        Outcome {
            body_bytes: self.total.body_bytes - before.body_bytes,
            responses: self.total.responses - before.responses,
            compared: self.total.responses,
            elapsed_ns: elapsed.as_nanos() as u64,
            first_byte: Percentiles::of(&self.latencies.first_byte_ns),
            response: Percentiles::of(&self.latencies.response_ns),
        }
    }

    /// Returns true once every connection has had an echo, and the average two.
    fn is_under_way(&self) -> bool {
        let connections = self.settings.connections;
        self.served >= connections && self.total.responses >= 2 * connections as u64
    }

    fn join(&mut self, index: usize, waiting: &OwnedFd) -> Result<Connection> {
        let asked = Instant::now();
        let socket = begin_connection(self.settings.server)?;
        sockopt::set_tcp_nodelay(&socket, true).context(|| "setting options".into())?;
        let data = epoll::EventData::new_u64(index as u64);
        let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
        epoll::add(waiting, &socket, data, flags).context(|| "epoll_ctl".into())?;
        Ok(Connection {
            socket,
            is_open: false,
            start: self.next_start(),
            sent: 0,
            received: 0,
            asked,
            first_byte: asked,
            is_served: false,
        })
    }

    /// Returns the offset of the next message: multiples of an odd number, so that each offset is
    /// used.
    fn next_start(&mut self) -> usize {
        self.messages += 1;
        (self.messages.wrapping_mul(40_503) % RANDOM_BYTES as u64) as usize
    }

    /// Continues a connection. Returns true if another must take its place.
    fn turn(&mut self, connection: &mut Connection) -> Result<bool> {
        if !connection.is_open {
            let error = sockopt::socket_error(&connection.socket).context(|| "SO_ERROR".into())?;
            error.context(|| format!("connecting to {}", self.settings.server))?;
            connection.is_open = true;
        }
        loop {
            if !self.send(connection)? {
                return Ok(false);
            }
            match recv(&connection.socket, &mut self.buffer[..], RecvFlags::empty()) {
                Ok((_, 0)) => return self.end_of(connection),
                Ok((_, len)) => self.take(connection, len)?,
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno).context(|| "receiving".into()),
            }
        }
    }

    /// Sends the rest of the message. Returns false if no byte has been sent yet.
    fn send(&mut self, connection: &mut Connection) -> Result<bool> {
        let message = &self.random_bytes[connection.start..][..self.settings.message_bytes];
        while connection.sent < message.len() {
            let left = &message[connection.sent..];
            match send(&connection.socket, left, SendFlags::NOSIGNAL) {
                Ok(sent) => connection.sent += sent,
                Err(Errno::AGAIN) => return Ok(connection.sent > 0),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno).context(|| "sending".into()),
            }
        }
        Ok(true)
    }

    /// Compares received bytes; after the last one, the next message begins.
    fn take(&mut self, connection: &mut Connection, len: usize) -> Result<()> {
        let message = &self.random_bytes[connection.start..][..self.settings.message_bytes];
        let expected = message[connection.received..connection.sent].get(..len);
        if expected != Some(&self.buffer[..len]) {
            return Err(Failure::new(format!(
                "{}: {len} bytes at {} are not the echo of the {} sent",
                self.settings.server, connection.received, connection.sent
            )));
        }
        if connection.received == 0 {
            connection.first_byte = Instant::now();
        }
        connection.received += len;
        self.total.body_bytes += len as u64;
        if connection.received < message.len() {
            return Ok(());
        }
        // A short connection is complete at its end.
        if self.settings.short {
            return Ok(());
        }
        self.count(connection);
        connection.start = self.next_start();
        (connection.sent, connection.received) = (0, 0);
        connection.asked = Instant::now();
        Ok(())
    }

    fn end_of(&mut self, connection: &mut Connection) -> Result<bool> {
        if !self.settings.short || connection.received < self.settings.message_bytes {
            return Err(Failure::new("the server has closed a connection"));
        }
        self.count(connection);
        Ok(true)
    }

    fn count(&mut self, connection: &mut Connection) {
        let (asked, first_byte) = (connection.asked, connection.first_byte);
        self.latencies.record(asked, first_byte, Instant::now());
        self.total.responses += 1;
        if !connection.is_served {
            connection.is_served = true;
            self.served += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    fn load(settings: &Settings) -> Load<'_> {
        Load {
            settings,
            random_bytes: random_bytes(RANDOM_BYTES + settings.message_bytes),
            buffer: vec![0; READ_BYTES_MAX],
            messages: 0,
            served: 0,
            total: Outcome::default(),
            latencies: Latencies::new(),
        }
    }

    /// A connection whose peer echoes with one byte changed, or none.
    fn echoed(settings: &Settings, listener: &TcpListener, wrong: Option<usize>) -> Result<u64> {
        let mut load = load(settings);
        let waiting = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let mut connection = load.join(0, &waiting)?;
        let (mut peer, _) = listener.accept().unwrap();
        load.turn(&mut connection)?;
        let mut message = vec![0; settings.message_bytes];
        peer.read_exact(&mut message).unwrap();
        if let Some(wrong) = wrong {
            message[wrong] ^= 1;
        }
        peer.write_all(&message).unwrap();
        while load.total.responses == 0 {
            load.turn(&mut connection)?;
        }
        Ok(load.total.body_bytes)
    }

    #[test]
    fn every_byte_of_an_echo_is_compared() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let settings = Settings {
            server: listener.local_addr().unwrap(),
            connections: 1,
            message_bytes: 1000,
            seconds: 1.0,
            short: false,
        };
        // A user who may not choose CUBIC cannot measure either.
        match echoed(&settings, &listener, None) {
            Ok(bytes) => assert_eq!(bytes, 1000),
            Err(failure) => assert!(failure.to_string().contains("CUBIC"), "{failure}"),
        }
        for wrong in [0, 999] {
            let failure = echoed(&settings, &listener, Some(wrong)).unwrap_err();
            let said = failure.to_string();
            assert!(
                said.contains("not the echo") || said.contains("CUBIC"),
                "{said}"
            );
        }
    }

    #[test]
    fn messages_differ_from_one_to_the_next() {
        let settings = Settings {
            server: ([127, 0, 0, 1], 1).into(),
            connections: 1,
            message_bytes: 64,
            seconds: 1.0,
            short: false,
        };
        let mut load = load(&settings);
        let starts: std::collections::BTreeSet<_> =
            (0..RANDOM_BYTES).map(|_| load.next_start()).collect();
        assert_eq!(starts.len(), RANDOM_BYTES);
    }
}
