//! The measured server: one thread, one edge-triggered epoll set, the same over the kernel's
//! sockets and over split ones. It echoes received bytes, or answers requests for files.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use capi::client::{DEFAULT_PATH, Modes, Options};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit, setrlimit};
use testbed::{Context, Failure, Result};

use super::calls::{Calls, Kernel, Opened, Split};
use crate::load::{HEAD_BYTES_MAX, READY, print_line};

/// Most bytes of one receive call.
const BUFFER_BYTES: usize = 64 << 10;

/// Epoll data of the listener.
const LISTENER: u64 = u64::MAX;

/// The implementation of sockets.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sockets {
    Kernel,
    Split,
}

/// The settings of the server.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Settings {
    /// The implementation of sockets.
    #[arg(long)]
    pub(crate) sockets: Sockets,
    /// Address to listen on.
    #[arg(long)]
    pub(crate) listen: SocketAddr,
    /// The socket of the broker.
    #[arg(long, default_value = DEFAULT_PATH)]
    pub(crate) broker: PathBuf,
    /// Modes of split sockets, by name; the default ones if absent.
    #[arg(long, value_parser = Modes::parse)]
    pub(crate) modes: Option<Modes>,
    /// Close each connection after echoing this number of bytes.
    #[arg(long)]
    pub(crate) close_after: Option<u64>,
    /// Answer requests for files below this directory instead of echoing.
    #[arg(long)]
    pub(crate) files: Option<PathBuf>,
}

/// Serves until it is killed; prints [`READY`] when it listens.
pub(crate) fn serve(settings: &Settings) -> Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).context(|| "allowing more open files".into())?;
    match settings.sockets {
        Sockets::Kernel => {
            let root = settings.files.clone().unwrap_or_default();
            Server::start(Kernel::new(&root), settings)?.run()
        }
        Sockets::Split => {
            let options = Options {
                path: settings.broker.clone(),
                modes: settings.modes.unwrap_or_default(),
                application: None,
            };
            Server::start(Split::attach(&options)?, settings)?.run()
        }
    }
}

struct Server<'a, C> {
    calls: C,
    settings: &'a Settings,
    listener: OwnedFd,
    set: OwnedFd,
    /// Connections by their epoll data.
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    /// Files stay open, as with nginx's `open_file_cache`.
    files: Vec<KnownFile>,
    by_path: HashMap<String, usize>,
    buffer: Vec<u8>,
}

struct Connection {
    fd: OwnedFd,
    /// Echo for which the send buffer had no room.
    unsent: Vec<u8>,
    echoed: u64,
    /// Bytes received of a request head.
    head: Vec<u8>,
    /// The file in progress.
    sending: Option<Sending>,
}

struct Sending {
    /// Index of the file.
    file: usize,
    offset: u64,
}

/// A file that has been requested.
struct KnownFile {
    opened: Opened,
    /// The head of its response.
    head: String,
}

/// Next step of a connection.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Wait,
    Close,
}

impl<'a, C: Calls> Server<'a, C> {
    fn start(calls: C, settings: &'a Settings) -> Result<Server<'a, C>> {
        let listener = calls.listen(settings.listen);
        let listener = listener.context(|| format!("listening at {}", settings.listen))?;
        let set = calls.set().context(|| "epoll_create".into())?;
        calls
            .watch(&set, &listener, LISTENER)
            .context(|| "epoll_ctl".into())?;
        Ok(Server {
            calls,
            settings,
            listener,
            set,
            connections: Vec::new(),
            free: Vec::new(),
            files: Vec::new(),
            by_path: HashMap::new(),
            buffer: vec![0; BUFFER_BYTES],
        })
    }

    fn run(&mut self) -> Result<()> {
        print_line(READY)?;
        let mut found = Vec::new();
        loop {
            found.clear();
            match self.calls.wait(&self.set, &mut found) {
                Ok(()) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno).context(|| "epoll_wait".into()),
            }
            for ready in &found {
                if ready.data == LISTENER {
                    self.accept()?;
                } else {
                    self.turn(ready.data as usize, ready.is_ending)?;
                }
            }
        }
    }

    fn accept(&mut self) -> Result<()> {
        loop {
            let fd = match self.calls.accept(&self.listener) {
                Ok(fd) => fd,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(errno) => return Err(errno).context(|| "accepting".into()),
            };
            let place = self.free.pop().unwrap_or_else(|| {
                self.connections.push(None);
                self.connections.len() - 1
            });
            self.calls
                .watch(&self.set, &fd, place as u64)
                .context(|| "epoll_ctl".into())?;
            self.connections[place] = Some(Connection {
                fd,
                unsent: Vec::new(),
                echoed: 0,
                head: Vec::new(),
                sending: None,
            });
            // Data often arrives with the connection.
            self.turn(place, false)?;
        }
    }

    fn turn(&mut self, place: usize, is_ending: bool) -> Result<()> {
        // The event may concern a connection closed in the same turn.
        let Some(mut connection) = self.connections[place].take() else {
            return Ok(());
        };
        let next = if self.settings.files.is_some() {
            self.serve_files(&mut connection, is_ending)
        } else {
            self.echo(&mut connection, is_ending)
        };
        match next {
            Ok(Next::Wait) | Err(Errno::AGAIN) => self.connections[place] = Some(connection),
            // A finished client resets its open connections.
            Ok(Next::Close) | Err(Errno::CONNRESET | Errno::PIPE) => {
                self.free.push(place);
                self.calls
                    .close(connection.fd)
                    .context(|| "closing".into())?;
            }
            Err(errno) => return Err(Failure::new(format!("a connection has failed: {errno}"))),
        }
        Ok(())
    }

    fn echo(
        &mut self,
        connection: &mut Connection,
        is_ending: bool,
    ) -> std::result::Result<Next, Errno> {
        loop {
            while !connection.unsent.is_empty() {
                let sent = self.calls.send(&connection.fd, &connection.unsent, false)?;
                connection.unsent.drain(..sent);
                connection.echoed += sent as u64;
            }
            if (self.settings.close_after).is_some_and(|bytes| connection.echoed >= bytes) {
                return Ok(Next::Close);
            }
            let received = self.calls.receive(&connection.fd, &mut self.buffer)?;
            if received == 0 {
                return Ok(Next::Close);
            }
            let bytes = &self.buffer[..received];
            let sent = match self.calls.send(&connection.fd, bytes, false) {
                Ok(sent) => sent,
                Err(Errno::AGAIN) => 0,
                Err(errno) => return Err(errno),
            };
            connection.echoed += sent as u64;
            connection.unsent.extend_from_slice(&bytes[sent..]);
            // Later data causes another edge.
            let is_drained = received < self.buffer.len() && !is_ending;
            let is_closing = self.settings.close_after.is_some();
            if is_drained && connection.unsent.is_empty() && !is_closing {
                return Ok(Next::Wait);
            }
        }
    }

    fn serve_files(
        &mut self,
        connection: &mut Connection,
        is_ending: bool,
    ) -> std::result::Result<Next, Errno> {
        let mut is_drained = false;
        loop {
            while let Some(sending) = &mut connection.sending {
                let opened = &self.files[sending.file].opened;
                let left = opened.bytes - sending.offset;
                if left == 0 {
                    connection.sending = None;
                    break;
                }
                let (fd, file) = (&connection.fd, &opened.file);
                let sent = self
                    .calls
                    .send_file(fd, file, sending.offset, left as usize)?;
                sending.offset += sent as u64;
            }
            if self.answer(connection)? {
                continue;
            }
            if is_drained {
                return Ok(Next::Wait);
            }
            let received = self.calls.receive(&connection.fd, &mut self.buffer)?;
            connection.head.extend_from_slice(&self.buffer[..received]);
            if received == 0 || connection.head.len() >= HEAD_BYTES_MAX {
                return Ok(Next::Close);
            }
            is_drained = received < self.buffer.len() && !is_ending;
        }
    }

    /// Sends the head of the response to a request, if one is complete, and prepares the file.
    fn answer(&mut self, connection: &mut Connection) -> std::result::Result<bool, Errno> {
        let head = &connection.head;
        let Some(end) = head.windows(4).position(|bytes| bytes == b"\r\n\r\n") else {
            return Ok(false);
        };
        let path = path_in(&head[..end]).ok_or(Errno::INVAL)?;
        let known = self.by_path.get(path).copied();
        let file = known.map_or_else(|| self.open(path), Ok)?;
        connection.head.drain(..end + 4);
        let head = &self.files[file].head;
        let sent = self.calls.send(&connection.fd, head.as_bytes(), true)?;
        if sent < head.len() {
            // All earlier bytes were sent: the client has not read a response.
            return Err(Errno::NOBUFS);
        }
        connection.sending = Some(Sending { file, offset: 0 });
        Ok(true)
    }

    /// Opens a file, and returns its index.
    fn open(&mut self, path: &str) -> std::result::Result<usize, Errno> {
        let opened = self.calls.open(path)?;
        let bytes = opened.bytes;
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\n\r\n");
        self.files.push(KnownFile { opened, head });
        let place = self.files.len() - 1;
        self.by_path.insert(path.to_owned(), place);
        Ok(place)
    }
}

/// Returns the path of a GET request.
fn path_in(head: &[u8]) -> Option<&str> {
    let line = head.split(|byte| *byte == b'\r').next()?;
    let rest = std::str::from_utf8(line).ok()?.strip_prefix("GET ")?;
    rest.strip_suffix(" HTTP/1.1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_names_a_path() {
        assert_eq!(path_in(b"GET /file-1 HTTP/1.1\r\nHost: x"), Some("/file-1"));
        assert_eq!(path_in(b"PUT /file-1 HTTP/1.1"), None);
        assert_eq!(path_in(b"GET /file-1"), None);
    }
}
