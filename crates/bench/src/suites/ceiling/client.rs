//! A client at packet level: a few numbers, and the state of the response in progress.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use contract::{FileId, FlowId, Segment};
use testbed::{Failure, Result};
use wire::frame::{self, HEADER_BYTES_MAX, TcpPrefix, TcpTemplate};
use wire::ip::Ecn;
use wire::tcp::{Flags, Header, Options, Timestamps};

use super::ring_port::HOST_MAC;

/// The next hop of the host, behind which all clients are.
pub(super) const GATEWAY_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

pub(super) const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2)), 80);

const FIRST_ADDRESS: u32 = 0xac10_0001;
const FIRST_PORT: u16 = 1024;
const PORTS_PER_ADDRESS: usize = 4000;

/// Receive window of clients, in bytes, and its window scale.
const WINDOW_BYTES: u32 = 1 << 20;
const WINDOW_SHIFT: u8 = 7;

const MSS: u16 = 1460;

/// The far end of a connection.
#[derive(Clone, Debug)]
pub(super) struct Client {
    prefix: TcpPrefix,
    /// Sequence number of the next byte that the client sends.
    seq: u32,
    /// The stack's first sequence number, once it is known.
    stack_isn: Option<u32>,
    /// Bytes of the stream that have arrived.
    pub(super) received: u64,
    /// The last TSval that has arrived.
    echo: u32,
    /// The host's id of the connection.
    flow: Option<FlowId>,
    /// The requested file.
    asked: u32,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Waits for a head.
    Head,
    /// Waits for the file from `offset` on.
    Body { offset: u64 },
}

/// Result of a SEND for a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Taken {
    /// Bytes of the file.
    pub(super) body_bytes: u64,
    /// The response is complete.
    pub(super) is_whole: bool,
}

/// Returns the number of the client with this address, without a check that such a client exists.
pub(super) fn number_of(address: Ipv4Addr, port: u16) -> Option<usize> {
    let nth_address = address.to_bits().checked_sub(FIRST_ADDRESS)? as usize;
    let nth_port = usize::from(port.checked_sub(FIRST_PORT)?);
    (nth_port < PORTS_PER_ADDRESS).then_some(nth_address * PORTS_PER_ADDRESS + nth_port)
}

fn address_of(number: usize) -> SocketAddr {
    let ip = Ipv4Addr::from_bits(FIRST_ADDRESS + (number / PORTS_PER_ADDRESS) as u32);
    SocketAddr::new(ip.into(), FIRST_PORT + (number % PORTS_PER_ADDRESS) as u16)
}

pub(super) fn target_of(file: u32) -> String {
    format!("file-{file}")
}

impl Client {
    pub(super) fn new(number: usize) -> Client {
        let template = TcpTemplate::new(GATEWAY_MAC, HOST_MAC, address_of(number), SERVER);
        Client {
            prefix: TcpPrefix::new(&template).expect("two addresses of IPv4"),
            seq: number as u32,
            stack_isn: None,
            received: 0,
            echo: 0,
            flow: None,
            asked: 0,
            phase: Phase::Head,
        }
    }

    /// Writes a frame that acknowledges the stream up to `acknowledged`.
    fn frame(
        &self,
        number: usize,
        now_us: u64,
        flags: Flags,
        acknowledged: u64,
        text: &[u8],
        frame: &mut Vec<u8>,
    ) {
        let is_syn = flags.contains(Flags::SYN);
        let window = if is_syn {
            u32::from(u16::MAX)
        } else {
            WINDOW_BYTES >> WINDOW_SHIFT
        };
        let header = Header {
            source_port: address_of(number).port(),
            destination_port: SERVER.port(),
            seq: self.seq,
            ack: self.seq_of(acknowledged).unwrap_or(0),
            flags,
            window: window as u16,
            options: Options {
                mss: is_syn.then_some(MSS),
                window_scale: is_syn.then_some(WINDOW_SHIFT),
                sack_permitted: is_syn,
                timestamps: Some(Timestamps {
                    value: (now_us / 1000) as u32,
                    echo_reply: self.echo,
                }),
                ..Options::default()
            },
        };
        let mut buffer = [0; HEADER_BYTES_MAX];
        let len = self.prefix.write(&header, Ecn::NotEct, &mut buffer);
        let written = &mut buffer[..len];
        frame::finish(written, text.len()).expect("a header that was just written");
        frame.clear();
        frame.extend_from_slice(written);
        frame.extend_from_slice(text);
    }

    /// Returns the stack's sequence number of an offset in its stream.
    fn seq_of(&self, offset: u64) -> Option<u32> {
        Some(self.stack_isn?.wrapping_add(1).wrapping_add(offset as u32))
    }

    pub(super) fn syn(&mut self, number: usize, now_us: u64, frame: &mut Vec<u8>) {
        self.frame(number, now_us, Flags::SYN, 0, &[], frame);
        self.seq = self.seq.wrapping_add(1);
    }

    pub(super) fn ack(&self, number: usize, now_us: u64, acknowledged: u64, frame: &mut Vec<u8>) {
        self.frame(number, now_us, Flags::ACK, acknowledged, &[], frame);
    }

    pub(super) fn request(&mut self, number: usize, now_us: u64, file: u32, frame: &mut Vec<u8>) {
        let mut text = [0; 128];
        let mut rest = &mut text[..];
        write!(
            rest,
            "GET /{} HTTP/1.1\r\nHost: {}\r\n\r\n",
            target_of(file),
            SERVER.ip()
        )
        .expect("room for a request");
        let left = rest.len();
        let text = &text[..text.len() - left];
        self.frame(
            number,
            now_us,
            Flags::ACK | Flags::PSH,
            self.received,
            text,
            frame,
        );
        self.seq = self.seq.wrapping_add(text.len() as u32);
        self.asked = file;
    }

    /// Processes a packet of the host's own. Returns true if it establishes the connection.
    pub(super) fn on_packet(&mut self, header: &Header, payload_bytes: usize) -> Result<bool> {
        let flags = header.flags;
        if flags.contains(Flags::RST) || flags.contains(Flags::FIN) || payload_bytes > 0 {
            return Err(Failure::new(format!(
                "the host ends a connection, or says something itself: {header:?}, {payload_bytes} \
                 bytes"
            )));
        }
        if let Some(timestamps) = header.options.timestamps {
            self.echo = timestamps.value;
        }
        let is_new = flags.contains(Flags::SYN) && self.stack_isn.is_none();
        if is_new {
            self.stack_isn = Some(header.seq);
        }
        Ok(is_new)
    }

    /// Processes a SEND for this client: checks that it continues the stream, with the requested
    /// file. `file_of` returns the file that is open under an id; each file has `file_bytes` bytes.
    pub(super) fn on_send(
        &mut self,
        send: &contract::Send<'_>,
        seq: u32,
        tsval: Option<u32>,
        file_bytes: u64,
        file_of: impl Fn(FileId) -> Option<u32>,
    ) -> Result<Taken> {
        let flow = *self.flow.get_or_insert(send.flow);
        let wrong = |what: &str| Err(Failure::new(format!("{what}: {send:?}, to {self:?}")));
        if flow != send.flow {
            return wrong("a SEND of another flow than before");
        }
        if send.stream_offset != self.received || self.seq_of(send.stream_offset) != Some(seq) {
            return wrong("a SEND does not go on where the one before has ended");
        }
        let mut taken = Taken::default();
        let mut phase = self.phase;
        for segment in &send.segments {
            match (phase, segment) {
                _ if taken.is_whole => return wrong("more than what was asked for"),
                (Phase::Head, Segment::Inline(bytes)) => {
                    if content_length(bytes) != Some(file_bytes) {
                        return wrong("not the head of a response with the file");
                    }
                    phase = Phase::Body { offset: 0 };
                }
                (Phase::Body { offset: next }, &Segment::File { file, offset, len }) => {
                    if file_of(file) != Some(self.asked) {
                        return wrong("not the file that was asked for");
                    }
                    let end = offset + u64::from(len);
                    if offset != next || end > file_bytes {
                        return wrong("not the range that comes next");
                    }
                    taken.body_bytes += u64::from(len);
                    taken.is_whole = end == file_bytes;
                    phase = if taken.is_whole {
                        Phase::Head
                    } else {
                        Phase::Body { offset: end }
                    };
                }
                _ => return wrong("a segment that is out of place"),
            }
        }
        self.phase = phase;
        self.received += send.segments.payload_bytes();
        self.echo = tsval.unwrap_or(self.echo);
        Ok(taken)
    }
}

/// Returns the `Content-Length` of a response head; `None` unless it is a whole head of a 200.
fn content_length(head: &[u8]) -> Option<u64> {
    const NAME: &[u8] = b"\r\nContent-Length: ";
    if !head.starts_with(b"HTTP/1.1 200 ") || !head.ends_with(b"\r\n\r\n") {
        return None;
    }
    let at = head.windows(NAME.len()).position(|window| window == NAME)?;
    let value = head[at + NAME.len()..]
        .split(|&byte| byte == b'\r')
        .next()?;
    std::str::from_utf8(value).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_found_by_their_addresses() {
        for number in [0, 1, PORTS_PER_ADDRESS - 1, PORTS_PER_ADDRESS, 63_999] {
            let SocketAddr::V4(address) = address_of(number) else {
                panic!("IPv4");
            };
            assert_eq!(number_of(*address.ip(), address.port()), Some(number));
        }
        assert_eq!(number_of(Ipv4Addr::from_bits(FIRST_ADDRESS), 80), None);
    }

    #[test]
    fn only_whole_heads_of_good_responses_have_a_length() {
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 17\r\nServer: x\r\n\r\n";
        assert_eq!(content_length(head), Some(17));
        assert_eq!(content_length(&head[..head.len() - 1]), None);
        assert_eq!(
            content_length(b"HTTP/1.1 404 Not Found\r\nContent-Length: 17\r\n\r\n"),
            None
        );
    }
}
