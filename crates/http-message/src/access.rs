//! Records of completed exchanges, and the log in which they wait.
//!
//! Records are packed one behind the other into packets, which the log's writer takes at the end of
//! a turn. A writer that is behind delays no response: the log holds `PACKETS_MAX` packets, and
//! drops and counts further records.

use std::collections::VecDeque;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::request::without_empty_lines;

/// Longest packet, in bytes, unless a single record is longer.
const PACKET_BYTES: usize = 32 << 10;

/// Most packets that wait for the writer.
const PACKETS_MAX: usize = 16;

/// Longest time that a record waits for others to share its packet, in microseconds.
const WAIT_US_MAX: u64 = 50_000;

/// Most bytes of requests kept until their responses are complete, on all connections together.
const HELD_BYTES_MAX: usize = 16 << 20;

/// Most spare buffers for the text of requests.
const SPARE_MAX: usize = 512;

/// A completed response, and its request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessRecord<'a> {
    /// The client; its port is 0 if it is not known.
    pub client: SocketAddr,
    /// The peer of the connection, if it is a proxy that passes on connections or requests.
    pub proxy: Option<IpAddr>,
    /// Number of the connection, unique within a server.
    pub connection: u64,
    /// Number of the request on its connection, from 1.
    pub request: u32,
    /// Time of the response's end, in microseconds of the host's clock (`CLOCK_MONOTONIC`).
    pub ended_us: u64,
    /// From the end of the request's head to the end of the response: its complete acknowledgement,
    /// or its abort. In microseconds.
    pub total_us: u64,
    /// From the end of the request's head until TCP had the first byte of the response, in
    /// microseconds; `None` if it never had.
    pub first_byte_us: Option<u64>,
    /// Status of the response; [`NO_RESPONSE`] if the connection ended before there was one.
    pub status: u16,
    /// Bytes of the body that the client has acknowledged.
    pub body_bytes: u64,
    /// Acknowledged bytes of the body that came from files, and bypassed the host.
    pub offloaded_bytes: u64,
    /// Packets and SENDs of the connection so far that repeated bytes.
    pub retransmissions: u32,
    /// The connection ended before the response did.
    pub is_cut_short: bool,
    /// TLS parameters, if the request came over TLS.
    #[serde(borrow)]
    pub tls: Option<AccessTls<'a>>,
    /// Content coding of the file, if it has one.
    pub coding: Option<&'a str>,
    /// Role of the cache, if the response comes from an origin: a name of RFC 9211.
    pub cache: Option<&'a str>,
    /// Backend that the request was forwarded to, if any.
    pub backend: Option<&'a str>,
    /// Number of times that the request was forwarded again, to another backend.
    pub retries: u8,
    /// First name of the site, if it was found and has one.
    pub site: Option<&'a str>,
    /// First line of the request without its end, as far as received.
    #[serde(with = "serde_bytes")]
    pub request_line: &'a [u8],
    /// The field `Host`.
    #[serde(borrow, with = "serde_bytes")]
    pub host: Option<&'a [u8]>,
    /// The field `Range`.
    #[serde(borrow, with = "serde_bytes")]
    pub range: Option<&'a [u8]>,
    /// The field `Referer`.
    #[serde(borrow, with = "serde_bytes")]
    pub referer: Option<&'a [u8]>,
    /// The field `User-Agent`.
    #[serde(borrow, with = "serde_bytes")]
    pub user_agent: Option<&'a [u8]>,
}

/// TLS parameters of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessTls<'a> {
    /// Version, such as `TLSv1.3`.
    pub version: &'a str,
    /// Cipher, such as `AES-256-GCM`.
    pub cipher: &'a str,
    /// The handshake resumed an earlier session.
    pub is_resumed: bool,
}

/// Status of a request whose connection ended before a response, as in nginx.
pub const NO_RESPONSE: u16 = 499;

impl<'a> AccessRecord<'a> {
    /// Takes the first record of a packet, and returns it with the bytes behind it; `None` if there
    /// is none, or if it is malformed.
    pub fn take(packet: &'a [u8]) -> Option<(Self, &'a [u8])> {
        postcard::take_from_bytes(packet).ok()
    }
}

/// The writer of the log.
pub trait AccessSink: Send {
    /// Takes a packet of records; false if the writer is behind, and would have to wait. `lost`:
    /// number of records dropped so far.
    fn take(&mut self, packet: &[u8], lost: u64) -> bool;
}

/// Records that wait for the writer.
pub struct AccessLog {
    sink: Box<dyn AccessSink>,
    /// The first packet is full or due; the last one has room.
    packets: VecDeque<Vec<u8>>,
    spare_packets: Vec<Vec<u8>>,
    spare_texts: Vec<Vec<u8>>,
    held_bytes: usize,
    /// Time at which the oldest waiting record was noted, in microseconds.
    waits_since_us: Option<u64>,
    /// The writer has not taken the last packet offered.
    is_behind: bool,
    lost: u64,
}

impl AccessLog {
    /// Creates a log that passes its packets to `sink`.
    pub fn new(sink: Box<dyn AccessSink>) -> Self {
        AccessLog {
            sink,
            packets: VecDeque::new(),
            spare_packets: Vec::new(),
            spare_texts: Vec::new(),
            held_bytes: 0,
            waits_since_us: None,
            is_behind: false,
            lost: 0,
        }
    }

    /// Number of dropped records.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Latest time for the next call of [`AccessLog::on_turn`].
    pub fn next_timeout_us(&self) -> Option<u64> {
        Some(self.waits_since_us?.saturating_add(WAIT_US_MAX))
    }

    /// Passes full packets and overdue records to the writer.
    pub fn on_turn(&mut self, now_us: u64) {
        let is_due = self.next_timeout_us().is_some_and(|at_us| at_us <= now_us);
        // A writer that is behind is asked again when the next packet is due.
        if is_due || self.packets.len() > 1 && !self.is_behind {
            self.hand_over();
            self.waits_since_us = self.is_behind.then_some(now_us);
        }
    }

    fn hand_over(&mut self) {
        self.is_behind = false;
        while let Some(packet) = self.packets.front() {
            self.is_behind = !self.sink.take(packet, self.lost);
            if self.is_behind {
                return;
            }
            if let Some(mut packet) = self.packets.pop_front() {
                packet.clear();
                self.spare_packets.push(packet);
            }
        }
    }

    /// Returns a buffer for at most `bytes` of a request's text; `None` if too many bytes are held
    /// already.
    fn hold(&mut self, bytes: usize) -> Option<Vec<u8>> {
        if self.held_bytes + bytes > HELD_BYTES_MAX {
            self.lost += 1;
            return None;
        }
        Some(self.spare_texts.pop().unwrap_or_default())
    }

    /// Adds a record, unless too many packets wait already.
    pub fn note(&mut self, record: &AccessRecord<'_>) {
        let is_full = |packet: &Vec<u8>| packet.len() >= PACKET_BYTES - ROOM_BYTES;
        if self.packets.back().is_none_or(is_full) {
            if self.packets.len() >= PACKETS_MAX {
                self.lost += 1;
                return;
            }
            self.packets
                .push_back(self.spare_packets.pop().unwrap_or_default());
        }
        let Some(packet) = self.packets.pop_back() else {
            return;
        };
        // Writing to memory does not fail.
        let packet = postcard::to_extend(record, packet).unwrap_or_default();
        self.packets.push_back(packet);
        self.waits_since_us.get_or_insert(record.ended_us);
    }
}

/// Room for a record of the usual length: a packet that has less is full.
const ROOM_BYTES: usize = 1 << 10;

impl Drop for AccessLog {
    fn drop(&mut self) {
        self.hand_over();
    }
}

impl fmt::Debug for AccessLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting: usize = self.packets.iter().map(Vec::len).sum();
        f.debug_struct("AccessLog")
            .field("waiting_bytes", &waiting)
            .field("lost", &self.lost)
            .finish_non_exhaustive()
    }
}

/// Request fields that are logged.
pub const FIELDS: [&[u8]; 4] = [b"host", b"range", b"referer", b"user-agent"];

/// Logged text of a request, its pieces one behind the other.
#[derive(Debug)]
pub struct RequestText {
    bytes: Vec<u8>,
    /// Ends of the site's name, the request line, and each field; a missing field has `None`.
    site_end: usize,
    line_end: usize,
    field_ends: [Option<usize>; FIELDS.len()],
}

impl RequestText {
    /// Keeps the logged text of a request's head, and the name of its site; `None` if too many
    /// bytes are held already.
    pub fn new(
        log: &mut AccessLog,
        request: &[u8],
        site: Option<&dyn fmt::Display>,
    ) -> Option<Self> {
        let request = without_empty_lines(request);
        let mut lines = request.split(|&byte| byte == b'\n');
        let line = lines.next().unwrap_or_default();
        let mut found: [Option<&[u8]>; FIELDS.len()] = [None; FIELDS.len()];
        for line in lines {
            for (name, value) in FIELDS.iter().zip(&mut found) {
                let rest = line.split_at_checked(name.len());
                if let Some((_, rest)) = rest.filter(|(start, _)| start.eq_ignore_ascii_case(name))
                    && let Some(text) = rest.strip_prefix(b":")
                {
                    // The first of several counts, as in nginx.
                    value.get_or_insert(text.trim_ascii());
                }
            }
        }
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        Self::keep(log, request.len(), site, line, found)
    }

    /// Keeps the text of a connection without requests, for which at most a host is known.
    pub fn of_host(
        log: &mut AccessLog,
        host: Option<&str>,
        site: Option<&dyn fmt::Display>,
    ) -> Option<Self> {
        let host = host.map(str::as_bytes);
        let found = [host, None, None, None];
        Self::keep(log, host.map_or(0, <[u8]>::len), site, b"", found)
    }

    fn keep(
        log: &mut AccessLog,
        bytes_max: usize,
        site: Option<&dyn fmt::Display>,
        line: &[u8],
        found: [Option<&[u8]>; FIELDS.len()],
    ) -> Option<Self> {
        let mut bytes = log.hold(bytes_max)?;
        if let Some(site) = site {
            use std::io::Write as _;
            // Writing to memory does not fail.
            let _ = write!(bytes, "{site}");
        }
        let site_end = bytes.len();
        bytes.extend_from_slice(line);
        let line_end = bytes.len();
        let field_ends = found.map(|value| {
            bytes.extend_from_slice(value?);
            Some(bytes.len())
        });
        log.held_bytes += bytes.len();
        Some(RequestText {
            bytes,
            site_end,
            line_end,
            field_ends,
        })
    }

    /// The name of the site.
    pub fn site(&self) -> Option<&str> {
        let name = std::str::from_utf8(&self.bytes[..self.site_end]).ok()?;
        Some(name).filter(|name| !name.is_empty())
    }

    /// The first line, without its end.
    pub fn request_line(&self) -> &[u8] {
        &self.bytes[self.site_end..self.line_end]
    }

    /// Returns the value of the field with this number in [`FIELDS`].
    pub fn field(&self, number: usize) -> Option<&[u8]> {
        let end = self.field_ends[number]?;
        let before = self.field_ends[..number].iter().rev().flatten().next();
        Some(&self.bytes[*before.unwrap_or(&self.line_end)..end])
    }

    /// Releases the text.
    pub fn release(mut self, log: &mut AccessLog) {
        log.held_bytes -= self.bytes.len();
        if log.spare_texts.len() < SPARE_MAX && self.bytes.capacity() <= PACKET_BYTES {
            self.bytes.clear();
            log.spare_texts.push(self.bytes);
        }
    }
}
