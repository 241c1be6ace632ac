//! A client that sends any bytes, and notes the server's answers.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use fakes::http2::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, RST_STREAM, frame,
};
use testbed::site::KnownFile;

/// Time after which a server is taken to wait for more.
const SILENCE: Duration = Duration::from_secs(5);

/// The payload of the PING whose answer shows that all earlier frames are handled.
const FENCE: &[u8; 8] = b"fence...";

/// Error codes (RFC 9113 §7), by their numbers.
const CODES: [&str; 14] = [
    "NO_ERROR",
    "PROTOCOL_ERROR",
    "INTERNAL_ERROR",
    "FLOW_CONTROL_ERROR",
    "SETTINGS_TIMEOUT",
    "STREAM_CLOSED",
    "FRAME_SIZE_ERROR",
    "REFUSED_STREAM",
    "CANCEL",
    "COMPRESSION_ERROR",
    "CONNECT_ERROR",
    "ENHANCE_YOUR_CALM",
    "INADEQUATE_SECURITY",
    "HTTP_1_1_REQUIRED",
];

#[derive(Debug, Default)]
struct Stream {
    status: Option<String>,
    body: Vec<u8>,
    is_over: bool,
}

/// See the [module documentation](self).
pub(super) struct Client<'a> {
    stream: TcpStream,
    file: &'a KnownFile,
    inbox: Vec<u8>,
    decoder: loona_hpack::Decoder<'static>,
    block: Vec<u8>,
    streams: BTreeMap<u32, Stream>,
    /// Answers to the present step.
    events: Vec<String>,
    has_error: bool,
    is_closed: bool,
    has_fence: bool,
}

impl<'a> Client<'a> {
    pub(super) fn connect(address: SocketAddr, file: &'a KnownFile) -> Client<'a> {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(SILENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Client {
            stream,
            file,
            inbox: Vec::new(),
            decoder: loona_hpack::Decoder::new(),
            block: Vec::new(),
            streams: BTreeMap::new(),
            events: Vec::new(),
            has_error: false,
            is_closed: false,
            has_fence: false,
        }
    }

    /// Forgets the answers to earlier steps.
    pub(super) fn begin_step(&mut self) {
        self.events.clear();
    }

    /// Sends bytes. A server that has closed takes none.
    pub(super) fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Reads until this stream or the connection is over.
    pub(super) fn read_until_answer(&mut self, watched: u32) {
        let is_over = |client: &Client<'_>| {
            let stream = client.streams.get(&watched);
            client.has_error || stream.is_some_and(|stream| stream.is_over)
        };
        if !self.read_until(is_over) {
            self.events.push("waits".to_owned());
        }
    }

    /// Reads until all frames are handled.
    pub(super) fn read_to_fence(&mut self) {
        if !self.has_error && !self.is_closed {
            self.send(&frame(PING, 0, 0, FENCE));
            self.read_until(|client| client.has_fence || client.has_error);
        }
    }

    /// Reads until the server closes.
    pub(super) fn read_to_end(&mut self) {
        self.read_until(|_| false);
    }

    /// The answers to the last step: statuses first, the end of the connection last, each once.
    pub(super) fn outcome(mut self) -> String {
        if self.is_closed && !self.has_error {
            self.events.push("closes".to_owned());
        }
        let order = |event: &String| match event.as_bytes()[0] {
            b'0'..=b'9' => 0,
            b'P' => 1,
            b'R' => 2,
            b'G' => 3,
            _ => 4,
        };
        self.events
            .sort_by_key(|event| (order(event), event.clone()));
        self.events.dedup();
        self.events.join(", ")
    }

    /// Returns false if the server is silent before that.
    fn read_until(&mut self, is_over: impl Fn(&Client<'_>) -> bool) -> bool {
        let mut buffer = [0; 65_536];
        while !is_over(self) && !self.is_closed {
            match self.stream.read(&mut buffer) {
                Ok(0) => self.is_closed = true,
                Ok(count) => {
                    self.inbox.extend_from_slice(&buffer[..count]);
                    self.take_frames();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(_) => self.is_closed = true,
            }
        }
        true
    }

    fn take_frames(&mut self) {
        let inbox = std::mem::take(&mut self.inbox);
        let mut rest = &inbox[..];
        while let Some((header, behind)) = rest.split_first_chunk::<9>() {
            let length = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
            let Some((payload, behind)) = behind.split_at_checked(length) else {
                break;
            };
            let stream = u32::from_be_bytes([header[5], header[6], header[7], header[8]]);
            self.take(header[3], header[4], stream, payload);
            rest = behind;
        }
        self.inbox = rest.to_vec();
    }

    fn take(&mut self, kind: u8, flags: u8, id: u32, payload: &[u8]) {
        match kind {
            HEADERS | CONTINUATION => {
                assert_eq!(flags & !(END_STREAM | END_HEADERS), 0, "no padding");
                self.block.extend_from_slice(payload);
                if flags & END_HEADERS != 0 {
                    self.take_head(id);
                }
            }
            DATA => {
                let stream = self.streams.entry(id).or_default();
                stream.body.extend_from_slice(payload);
            }
            RST_STREAM => {
                let stream = self.streams.entry(id).or_default();
                // After a response, it concerns the rest of the request (RFC 9113 §8.1).
                if !(stream.is_over && code(payload) == CODES[0]) {
                    self.events.push(format!("RST_STREAM {}", code(payload)));
                }
                stream.is_over = true;
            }
            PING if payload == FENCE => self.has_fence = flags & ACK != 0,
            PING => self.events.push("PING".to_owned()),
            GOAWAY => {
                let code = code(&payload[4..]);
                self.events.push(format!("GOAWAY {code}"));
                self.has_error = code != CODES[0];
            }
            _ => {}
        }
        if matches!(kind, HEADERS | DATA) && flags & END_STREAM != 0 {
            self.end(id);
        }
    }

    fn take_head(&mut self, id: u32) {
        let block = std::mem::take(&mut self.block);
        let fields = self.decoder.decode(&block).expect("a field block");
        let stream = self.streams.entry(id).or_default();
        if fields[0].0 == b":status" {
            let status = String::from_utf8_lossy(&fields[0].1).into_owned();
            self.events.push(status.clone());
            stream.status = Some(status);
        }
    }

    fn end(&mut self, id: u32) {
        let stream = self.streams.entry(id).or_default();
        stream.is_over = true;
        let is_file = stream.status.as_deref() == Some("200") && !stream.body.is_empty();
        if is_file {
            let bytes = stream.body.len() as u64;
            assert_eq!(bytes, self.file.size(), "{id}: the whole file");
            assert_eq!(self.file.check(0, &stream.body), Ok(()));
        }
    }
}

/// The name of the code that begins these bytes.
fn code(bytes: &[u8]) -> &'static str {
    let code = u32::from_be_bytes(bytes[..4].try_into().expect("four bytes"));
    CODES
        .get(code as usize)
        .copied()
        .unwrap_or("an unknown code")
}
