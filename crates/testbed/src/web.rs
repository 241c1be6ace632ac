//! A web server with responses chosen by the test: an origin for clients that fetch from one.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

/// Response of the origin.
#[derive(Clone, Default)]
pub struct Reply {
    /// Status code.
    pub status: u16,
    /// Further fields, each with its line end.
    pub fields: String,
    /// Interim responses before it, as bytes.
    pub interim: String,
    /// Trailers of a body in chunks, each with its line end.
    pub trailers: String,
    /// Body to send, unless the connection ends before.
    pub body: Vec<u8>,
    /// Announced length, instead of the body's.
    pub claims: Option<u64>,
    /// Sends the body in chunks, without a length.
    pub is_chunked: bool,
    /// Number of body bytes after which the server closes the connection.
    pub cut_at: Option<usize>,
    /// Number of body bytes after which the server waits for [`Web::open_gate`].
    pub gate_at: Option<usize>,
    /// Sends no response.
    pub is_silent: bool,
}

impl Reply {
    /// Returns a 200 with these fields.
    pub fn ok(fields: &str, body: &[u8]) -> Reply {
        let fields = fields.lines().map(|line| format!("{line}\r\n"));
        Reply {
            status: 200,
            fields: fields.collect(),
            body: body.to_vec(),
            ..Reply::default()
        }
    }

    /// Returns a response with a status only.
    pub fn status(status: u16) -> Reply {
        Reply {
            status,
            ..Reply::default()
        }
    }

    /// Returns the response of an origin that supports ranges.
    pub fn in_parts(request: &Request, etag: &str, fields: &str, body: &[u8]) -> Reply {
        let mut reply = Reply::ok(fields, body);
        reply.fields += &format!("ETag: {etag}\r\nAccept-Ranges: bytes\r\n");
        let range = request.field("range");
        let is_meant = request.field("if-range").is_none_or(|tag| tag == etag);
        if let Some(range) = range.filter(|_| is_meant) {
            let (first, last) = range
                .strip_prefix("bytes=")
                .unwrap()
                .split_once('-')
                .unwrap();
            let (first, last): (usize, usize) = (first.parse().unwrap(), last.parse().unwrap());
            reply.status = 206;
            reply.fields += &format!("Content-Range: bytes {first}-{last}/{}\r\n", body.len());
            reply.body = body[first..(last + 1).min(body.len())].to_vec();
        } else if request.field("if-none-match") == Some(etag) {
            reply.status = 304;
            reply.body.clear();
        }
        reply
    }
}

/// A received request.
#[derive(Clone, Debug)]
pub struct Request {
    /// Path and query.
    pub target: String,
    fields: Vec<(String, String)>,
}

impl Request {
    /// Returns the value of a field, by its name in lower case.
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.fields.iter();
        let found = fields.find(|(known, _)| known == name)?;
        Some(&found.1)
    }
}

type Handler = dyn Fn(&Request) -> Reply + Send + Sync;

/// See the [module documentation](self).
pub struct Web {
    /// Base URL, without a slash at the end.
    pub url: String,
    shared: Arc<Shared>,
}

struct Shared {
    handler: Mutex<Arc<Handler>>,
    requests: Mutex<Vec<Request>>,
    /// Responses cut off by the client.
    refused: AtomicUsize,
    gate: Mutex<bool>,
    gate_moved: Condvar,
    is_over: AtomicBool,
}

impl Web {
    /// Starts an origin on a free port of the loopback interface.
    pub fn new(handler: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Web {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Shared {
            handler: Mutex::new(Arc::new(handler)),
            requests: Mutex::default(),
            refused: AtomicUsize::new(0),
            gate: Mutex::new(false),
            gate_moved: Condvar::new(),
            is_over: AtomicBool::new(false),
        });
        let serving = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming() {
                if serving.is_over.load(Ordering::Relaxed) {
                    return;
                }
                let (stream, serving) = (stream.unwrap(), Arc::clone(&serving));
                thread::spawn(move || serving.serve(stream));
            }
        });
        Web { url, shared }
    }

    /// Replaces the handler of requests.
    pub fn answers(&self, handler: impl Fn(&Request) -> Reply + Send + Sync + 'static) {
        *self.shared.handler.lock().unwrap() = Arc::new(handler);
    }

    /// Releases waiting bodies, and all later ones.
    pub fn open_gate(&self) {
        *self.shared.gate.lock().unwrap() = true;
        self.shared.gate_moved.notify_all();
    }

    /// Returns the number of responses cut off by the client.
    pub fn refused(&self) -> usize {
        self.shared.refused.load(Ordering::Relaxed)
    }

    /// Returns the requests received so far.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.requests.lock().unwrap().clone()
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        self.open_gate();
        let _ = TcpStream::connect(self.url.trim_start_matches("http://"));
    }
}

impl Shared {
    fn serve(&self, stream: TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while let Some(request) = read_request(&mut reader) {
            if self.is_over.load(Ordering::Relaxed) {
                return;
            }
            self.requests.lock().unwrap().push(request.clone());
            let handler = Arc::clone(&self.handler.lock().unwrap());
            let reply = handler(&request);
            if self.answer(&stream, &reply).is_none() {
                return;
            }
        }
    }

    /// Returns `None` if the connection is over.
    fn answer(&self, mut stream: &TcpStream, reply: &Reply) -> Option<()> {
        if reply.is_silent {
            self.wait();
            return None;
        }
        let length = match (reply.status, reply.is_chunked) {
            (304, _) => String::new(),
            (_, true) => "Transfer-Encoding: chunked\r\n".to_owned(),
            (_, false) => {
                let length = reply.claims.unwrap_or(reply.body.len() as u64);
                format!("Content-Length: {length}\r\n")
            }
        };
        let head = format!(
            "{}HTTP/1.1 {} X\r\n{length}{}\r\n",
            reply.interim, reply.status, reply.fields
        );
        stream.write_all(head.as_bytes()).ok()?;
        let end = reply.cut_at.unwrap_or(usize::MAX).min(reply.body.len());
        let gate = reply.gate_at.unwrap_or(usize::MAX).min(end);
        for (index, part) in [&reply.body[..gate], &reply.body[gate..end]]
            .into_iter()
            .enumerate()
        {
            if index == 1 && gate < end {
                self.wait();
            }
            if reply.is_chunked && !part.is_empty() {
                write!(stream, "{:x}\r\n", part.len()).ok()?;
            }
            if stream.write_all(part).is_err() {
                self.refused.fetch_add(1, Ordering::Relaxed);
                return None;
            }
            if reply.is_chunked && !part.is_empty() {
                stream.write_all(b"\r\n").ok()?;
            }
        }
        let is_cut = reply.cut_at.is_some() || reply.claims.is_some();
        if is_cut {
            return None;
        }
        if reply.is_chunked {
            write!(stream, "0\r\n{}\r\n", reply.trailers).ok()?;
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

fn read_request(reader: &mut impl BufRead) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let target = line.split(' ').nth(1)?.to_owned();
    let mut fields = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else {
            return Some(Request { target, fields });
        };
        fields.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
}

/// Returns bytes that depend on their position and on `seed`.
pub fn content(bytes: usize, seed: u64) -> Vec<u8> {
    let at = |index: usize| {
        let number = (index as u64 / 8 + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (number >> (8 * (index % 8))) as u8
    };
    (0..bytes).map(at).collect()
}
