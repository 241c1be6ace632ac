//! A server behind a proxy or balancer: it identifies itself, and echoes received data.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};

use rustix::net;
use rustix::process::Pid;

use crate::web::content;
use crate::{Result, namespace};

/// Protocol of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speech {
    /// HTTP/1.1. `GET /N` returns N bytes of [`content`] of seed N, `GET /chunked/N` the same in
    /// chunks, `POST` the received body, and an upgrade an echo of all later bytes. `GET /gate`
    /// waits for [`Backend::open_gate`].
    Http,
    /// Echoes all bytes, and the end of the stream.
    Echo,
}

/// See the [module documentation](self).
pub struct Backend {
    /// Port of its listener.
    pub port: u16,
    shared: Arc<Shared>,
    listener: OwnedFd,
    listening: Option<JoinHandle<()>>,
}

/// Held from a request's head to the end of its response.
type Busy = Arc<Mutex<()>>;

struct Shared {
    name: String,
    speech: Speech,
    /// A line of the PROXY protocol precedes all other bytes.
    expects_header: bool,
    connections: AtomicUsize,
    requests: AtomicUsize,
    /// Heads of requests, and lines of the PROXY protocol.
    heads: Mutex<Vec<String>>,
    gate: Mutex<bool>,
    gate_moved: Condvar,
    is_over: AtomicBool,
    /// Connections, each with the lock held during a response.
    streams: Mutex<Vec<(TcpStream, Busy)>>,
}

impl Backend {
    /// Starts a backend on this port of all addresses, of both families.
    pub fn new(port: u16, speech: Speech) -> Backend {
        Backend::with(port, speech, false)
    }

    /// Starts a backend in the network namespace of a process.
    pub fn inside(process: Pid, port: u16, speech: Speech) -> Result<Backend> {
        namespace::inside(process, || Ok(Backend::new(port, speech)))
    }

    /// Starts a backend that expects a line of the PROXY protocol on each connection.
    pub fn behind_header(port: u16, speech: Speech) -> Backend {
        Backend::with(port, speech, true)
    }

    fn with(port: u16, speech: Speech, expects_header: bool) -> Backend {
        let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
        let listener = TcpListener::bind(any).unwrap();
        // Room for as many simultaneous connections as a test opens: the kernel resets some of
        // those beyond 128.
        rustix::net::listen(&listener, 4096).unwrap();
        let copy = listener.try_clone().unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            name: format!("b{port}"),
            speech,
            expects_header,
            connections: AtomicUsize::new(0),
            requests: AtomicUsize::new(0),
            heads: Mutex::default(),
            gate: Mutex::new(false),
            gate_moved: Condvar::new(),
            is_over: AtomicBool::new(false),
            streams: Mutex::default(),
        });
        let serving = Arc::clone(&shared);
        let listening = thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                if serving.is_over.load(Ordering::Relaxed) {
                    return;
                }
                let (copy, busy) = (stream.try_clone().unwrap(), Busy::default());
                let of_stream = (copy, Arc::clone(&busy));
                serving.streams.lock().unwrap().push(of_stream);
                let serving = Arc::clone(&serving);
                let builder = thread::Builder::new().stack_size(256 << 10);
                let serve = move || {
                    serving.serve(&stream, &busy);
                    // `streams` keeps a copy, so that a drop does not close the socket.
                    let _ = stream.shutdown(Shutdown::Both);
                };
                builder.spawn(serve).unwrap();
            }
        });
        Backend {
            port,
            shared,
            listener: copy.into(),
            listening: Some(listening),
        }
    }

    /// Returns the number of connections so far that have sent data.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Returns the number of requests read completely so far.
    pub fn requests(&self) -> usize {
        self.shared.requests.load(Ordering::Relaxed)
    }

    /// Returns heads of requests, and lines of the PROXY protocol, in the order of arrival.
    pub fn heads(&self) -> Vec<String> {
        self.shared.heads.lock().unwrap().clone()
    }

    /// Releases waiting responses, and all later ones.
    pub fn open_gate(&self) {
        *self.shared.gate.lock().unwrap() = true;
        self.shared.gate_moved.notify_all();
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        self.open_gate();
        // Stops the listener, then ends all connections.
        let _ = net::shutdown(&self.listener, net::Shutdown::Both);
        if let Some(listening) = self.listening.take() {
            let _ = listening.join();
        }
        // No response is cut short.
        for (stream, busy) in self.shared.streams.lock().unwrap().drain(..) {
            let _busy = busy.lock();
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Shared {
    fn serve(&self, stream: &TcpStream, busy: &Busy) {
        let _ = stream.set_nodelay(true);
        let mut reader = BufReader::new(stream);
        match reader.fill_buf() {
            Ok(bytes) if !bytes.is_empty() => {}
            _ => return,
        }
        self.connections.fetch_add(1, Ordering::Relaxed);
        if self.expects_header {
            let mut line = String::new();
            if reader.read_line(&mut line).is_err() {
                return;
            }
            self.heads.lock().unwrap().push(line);
        }
        match self.speech {
            Speech::Echo => {
                let _ = echo(&mut reader, stream);
            }
            Speech::Http => while self.answer(&mut reader, stream, busy).is_some() {},
        }
    }

    /// Returns `None` if the connection is over.
    fn answer(
        &self,
        reader: &mut BufReader<&TcpStream>,
        mut stream: &TcpStream,
        busy: &Busy,
    ) -> Option<()> {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            let before = head.len();
            reader.read_line(&mut head).ok()?;
            if head.len() == before {
                return None;
            }
        }
        let field = |name: &str| {
            let mut lines = head
                .split("\r\n")
                .skip(1)
                .filter_map(|it| it.split_once(": "));
            lines.find_map(|(found, value)| found.eq_ignore_ascii_case(name).then_some(value))
        };
        let target = head.split(' ').nth(1)?.to_owned();
        let name = &self.name;
        if field("upgrade").is_some() {
            let answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
                          Upgrade: echo\r\n\r\n";
            stream.write_all(answer.as_bytes()).ok()?;
            echo(reader, stream).ok()?;
            return None;
        }
        let _busy = busy.lock();
        let mut body = Vec::new();
        if let Some(length) = field("content-length") {
            body.resize(length.parse().ok()?, 0);
            reader.read_exact(&mut body).ok()?;
        } else if field("transfer-encoding").is_some() {
            read_chunks(reader, &mut body)?;
        }
        self.heads.lock().unwrap().push(head.clone());
        self.requests.fetch_add(1, Ordering::Relaxed);
        if target == "/gate" {
            self.wait();
        }
        if head.starts_with("GET") {
            let bytes = target.rsplit('/').next()?.parse().unwrap_or(10);
            body = content(bytes, bytes as u64);
        }
        let begin = format!("HTTP/1.1 200 OK\r\nX-Backend: {name}\r\n");
        if target.starts_with("/chunked/") {
            write!(stream, "{begin}Transfer-Encoding: chunked\r\n\r\n").ok()?;
            for chunk in body.chunks(10_007) {
                write!(stream, "{:X}\r\n", chunk.len()).ok()?;
                stream.write_all(chunk).ok()?;
                stream.write_all(b"\r\n").ok()?;
            }
            stream.write_all(b"0\r\n\r\n").ok()?;
        } else {
            write!(stream, "{begin}Content-Length: {}\r\n\r\n", body.len()).ok()?;
            stream.write_all(&body).ok()?;
        }
        Some(())
    }

    fn wait(&self) {
        let mut is_open = self.gate.lock().unwrap();
        while !*is_open {
            is_open = self.gate_moved.wait(is_open).unwrap();
        }
    }
}

/// Echoes all bytes, and the end of the stream.
fn echo(reader: &mut BufReader<&TcpStream>, mut stream: &TcpStream) -> std::io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let count = reader.read(&mut buffer)?;
        if count == 0 {
            return stream.shutdown(Shutdown::Write);
        }
        stream.write_all(&buffer[..count])?;
    }
}

fn read_chunks(reader: &mut impl BufRead, body: &mut Vec<u8>) -> Option<()> {
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let size = usize::from_str_radix(line.trim_end(), 16).ok()?;
        let start = body.len();
        body.resize(start + size + 2, 0);
        reader.read_exact(&mut body[start..]).ok()?;
        body.truncate(start + size);
        if size == 0 {
            return Some(());
        }
    }
}
