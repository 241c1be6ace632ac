//! An HTTP client on the kernel's TCP, or on another stream, which checks every byte.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::ops::Range;
use std::time::Duration;

use crate::site::KnownFile;
use crate::{Context, Failure, Result};

/// Time limit of a read or a write.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Longest response head accepted, in bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// A connection to a server.
#[derive(Debug)]
pub struct Connection<S = TcpStream> {
    stream: S,
    buffer: Box<[u8]>,
    /// Bytes read from the stream and not used yet.
    unread: Range<usize>,
}

/// Status and header fields of a response.
#[derive(Clone, Debug)]
pub struct Head {
    /// 200, 404, …
    pub status: u16,
    fields: Vec<(String, String)>,
}

impl Head {
    /// Parses status line and fields, without the empty line that follows.
    pub fn parse(text: &str) -> Option<Head> {
        let mut lines = text.split("\r\n");
        let status = lines
            .next()?
            .strip_prefix("HTTP/1.1 ")?
            .get(..3)?
            .parse()
            .ok()?;
        let fields = lines
            .map(|line| {
                let (name, value) = line.split_once(':')?;
                Some((name.to_ascii_lowercase(), value.trim().to_owned()))
            })
            .collect::<Option<_>>()?;
        Some(Head { status, fields })
    }

    /// Returns the value of a field, by its name in lower case.
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut values = self.fields.iter().filter(|(field, _)| field == name);
        values.next().map(|(_, value)| value.as_str())
    }

    /// Returns the length of the body, in bytes.
    pub fn content_length(&self) -> Result<u64> {
        let value = self.field("content-length");
        value
            .and_then(|value| value.parse().ok())
            .ok_or_else(|| Failure::new(format!("Content-Length is {value:?}")))
    }
}

impl Connection {
    /// Connects.
    pub fn open(server: SocketAddr) -> Result<Connection> {
        let stream = TcpStream::connect_timeout(&server, PATIENCE)
            .context(|| format!("connecting to {server}"))?;
        Connection::on(stream)
    }

    /// Uses an existing connection.
    pub fn on(stream: TcpStream) -> Result<Connection> {
        be_patient(&stream)?;
        Ok(Connection::over(stream))
    }

    /// Sends FIN.
    pub fn finish(&mut self) -> Result<()> {
        self.stream
            .shutdown(Shutdown::Write)
            .context(|| "shutting a socket down".into())
    }
}

/// Sets a time limit for reads and writes of a socket.
pub fn be_patient(stream: &TcpStream) -> Result<()> {
    stream
        .set_read_timeout(Some(PATIENCE))
        .and_then(|()| stream.set_write_timeout(Some(PATIENCE)))
        .and_then(|()| stream.set_nodelay(true))
        .context(|| "setting options of a socket".into())
}

impl<S: Read + Write> Connection<S> {
    /// Uses any stream.
    pub fn over(stream: S) -> Connection<S> {
        Connection {
            stream,
            buffer: vec![0; 64 << 10].into(),
            unread: 0..0,
        }
    }

    /// Returns the stream, for direct use by a test.
    pub fn stream(&self) -> &S {
        &self.stream
    }

    /// Returns the stream, mutable.
    pub fn stream_mut(&mut self) -> &mut S {
        &mut self.stream
    }

    /// Sends bytes.
    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream
            .write_all(bytes)
            .context(|| "sending a request".into())
    }

    /// Sends a request for a file.
    pub fn send_get(&mut self, name: &str) -> Result<()> {
        self.send(request("GET", name).as_bytes())
    }

    /// Reads at least one more byte into the buffer's free part; returns false if the server has
    /// finished.
    fn read_more(&mut self) -> Result<bool> {
        let read = loop {
            match self.stream.read(&mut self.buffer[self.unread.end..]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        let read = read.context(|| "reading a response".into())?;
        self.unread.end += read;
        Ok(read > 0)
    }

    /// Reads status and header fields of the next response.
    pub fn read_head(&mut self) -> Result<Head> {
        self.buffer.copy_within(self.unread.clone(), 0);
        self.unread = 0..self.unread.len();
        loop {
            let unread = &self.buffer[self.unread.clone()];
            if let Some(len) = unread.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                let text = String::from_utf8_lossy(&unread[..len]).into_owned();
                self.unread.start += len + 4;
                return Head::parse(&text)
                    .ok_or_else(|| Failure::new(format!("not a response: {text:?}")));
            }
            if unread.len() >= HEAD_BYTES_MAX {
                return Err(Failure::new(format!(
                    "no end of the header in {} bytes",
                    unread.len()
                )));
            }
            if !self.read_more()? {
                return Err(Failure::new(format!(
                    "the server finished after {} bytes of a header",
                    self.unread.len()
                )));
            }
        }
    }

    /// Reads `len` bytes of a body; `check` is called with each piece and its offset in the body.
    pub fn read_body(
        &mut self,
        len: u64,
        mut check: impl FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut offset = 0;
        while offset < len {
            if self.unread.is_empty() {
                self.unread = 0..0;
                if !self.read_more()? {
                    return Err(Failure::new(format!(
                        "the server finished after {offset} of {len} bytes"
                    )));
                }
            }
            let piece = self
                .unread
                .len()
                .min((len - offset).min(usize::MAX as u64) as usize);
            check(
                offset,
                &self.buffer[self.unread.start..self.unread.start + piece],
            )?;
            self.unread.start += piece;
            offset += piece as u64;
        }
        Ok(())
    }

    /// Reads this part of a file as the next part of a body, and compares it with the file.
    pub fn read_file_part(&mut self, file: &KnownFile, part: Range<u64>) -> Result<()> {
        self.read_body(part.end - part.start, |offset, bytes| {
            file.check(part.start + offset, bytes).map_err(|mismatch| {
                Failure::new(format!(
                    "{}: wrong byte at {}",
                    file.name(),
                    mismatch.offset
                ))
            })
        })
    }

    /// Reads the head of a response with a file.
    pub fn read_file_head(&mut self, file: &KnownFile) -> Result<Head> {
        let head = self.read_head()?;
        let len = head.content_length()?;
        if head.status != 200 || len != file.size() {
            return Err(Failure::new(format!(
                "{} of {} bytes: status {}, Content-Length {len}",
                file.name(),
                file.size(),
                head.status,
            )));
        }
        Ok(head)
    }

    /// Reads a response and compares every byte with the file.
    pub fn read_file(&mut self, file: &KnownFile) -> Result<Head> {
        let head = self.read_file_head(file)?;
        self.read_file_part(file, 0..file.size())?;
        Ok(head)
    }

    /// Requests a file and compares every byte.
    pub fn get(&mut self, file: &KnownFile) -> Result<Head> {
        self.send_get(file.name())?;
        self.read_file(file)
    }

    /// Reads the server's FIN: any other data is an error.
    pub fn read_end(&mut self) -> Result<()> {
        self.buffer.copy_within(self.unread.clone(), 0);
        self.unread = 0..self.unread.len();
        if self.unread.is_empty() && !self.read_more()? {
            return Ok(());
        }
        let unread = &self.buffer[self.unread.clone()];
        let shown = String::from_utf8_lossy(&unread[..unread.len().min(80)]);
        Err(Failure::new(format!("bytes after the response: {shown:?}")))
    }
}

/// Returns the bytes of a request.
pub fn request(method: &str, name: &str) -> String {
    format!("{method} /{name} HTTP/1.1\r\nHost: test\r\n\r\n")
}

/// Downloads a file on a connection of its own and compares every byte.
pub fn download(server: SocketAddr, file: &KnownFile) -> Result<Head> {
    let mut connection = Connection::open(server)?;
    let head = connection.get(file)?;
    connection.finish()?;
    connection.read_end()?;
    Ok(head)
}
