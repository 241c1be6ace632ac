//! Frame headers (RFC 9113 §4.1), and the frames that a server sends beside responses.

use crate::code::Code;

/// Frame types (RFC 9113 §6, RFC 9218 §7.1).
pub mod kind {
    /// DATA (RFC 9113 §6.1).
    pub const DATA: u8 = 0x0;
    /// HEADERS (RFC 9113 §6.2).
    pub const HEADERS: u8 = 0x1;
    /// PRIORITY (RFC 9113 §6.3).
    pub const PRIORITY: u8 = 0x2;
    /// RST_STREAM (RFC 9113 §6.4).
    pub const RST_STREAM: u8 = 0x3;
    /// SETTINGS (RFC 9113 §6.5).
    pub const SETTINGS: u8 = 0x4;
    /// PUSH_PROMISE (RFC 9113 §6.6).
    pub const PUSH_PROMISE: u8 = 0x5;
    /// PING (RFC 9113 §6.7).
    pub const PING: u8 = 0x6;
    /// GOAWAY (RFC 9113 §6.8).
    pub const GOAWAY: u8 = 0x7;
    /// WINDOW_UPDATE (RFC 9113 §6.9).
    pub const WINDOW_UPDATE: u8 = 0x8;
    /// CONTINUATION (RFC 9113 §6.10).
    pub const CONTINUATION: u8 = 0x9;
    /// PRIORITY_UPDATE (RFC 9218 §7.1).
    pub const PRIORITY_UPDATE: u8 = 0x10;
}

/// Flags (RFC 9113 §6).
pub mod flag {
    /// Of SETTINGS and PING.
    pub const ACK: u8 = 0x1;
    /// Of DATA and HEADERS.
    pub const END_STREAM: u8 = 0x1;
    /// Of HEADERS and CONTINUATION.
    pub const END_HEADERS: u8 = 0x4;
    /// Of DATA and HEADERS.
    pub const PADDED: u8 = 0x8;
    /// Of HEADERS.
    pub const PRIORITY: u8 = 0x20;
}

/// Length of a frame header, in bytes.
pub const HEADER_BYTES: usize = 9;

/// SETTINGS_MAX_FRAME_SIZE of this side, its least value: longest payload of a frame, in bytes.
pub const PAYLOAD_BYTES_MAX: usize = 1 << 14;

/// Greatest ID of a stream.
pub const STREAM_ID_MAX: u32 = (1 << 31) - 1;

/// The integer of 31 bits that begins these bytes, behind a reserved bit: a stream's ID, or an
/// increment.
pub fn read_31_bits(bytes: &[u8]) -> Option<u32> {
    let four = bytes.first_chunk()?;
    Some(u32::from_be_bytes(*four) & STREAM_ID_MAX)
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Length of the payload, in bytes; less than 2^24.
    pub payload_bytes: u32,
    /// Type: one of [`kind`].
    pub kind: u8,
    /// Of [`flag`].
    pub flags: u8,
    /// The stream's ID; 0 for the connection.
    pub stream: u32,
}

impl Header {
    /// The header that begins these bytes, if it is whole.
    pub fn read(bytes: &[u8]) -> Option<Header> {
        let header: &[u8; HEADER_BYTES] = bytes.first_chunk()?;
        let [a, b, c, kind, flags, stream @ ..] = *header;
        Some(Header {
            payload_bytes: u32::from_be_bytes([0, a, b, c]),
            kind,
            flags,
            stream: u32::from_be_bytes(stream) & STREAM_ID_MAX,
        })
    }

    /// Appends the header.
    pub fn write(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.payload_bytes.to_be_bytes()[1..]);
        out.extend_from_slice(&[self.kind, self.flags]);
        out.extend_from_slice(&self.stream.to_be_bytes());
    }

    /// True if the frame has this flag.
    pub fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Appends a frame whose payload is in two parts.
fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: [&[u8]; 2]) {
    let header = Header {
        payload_bytes: (payload[0].len() + payload[1].len()) as u32,
        kind,
        flags,
        stream,
    };
    header.write(out);
    payload.iter().for_each(|part| out.extend_from_slice(part));
}

/// Puts the headers of HEADERS, and of CONTINUATION if one frame does not hold it, before the
/// fragments of a field block. The block is at the end of `out`, from `start` on, behind room for a
/// header of [`HEADER_BYTES`].
pub fn finish_block(out: &mut Vec<u8>, start: usize, stream: u32, end_stream: bool) {
    let block_bytes = out.len() - start - HEADER_BYTES;
    let is_one = block_bytes <= PAYLOAD_BYTES_MAX;
    let last = if is_one { flag::END_HEADERS } else { 0 };
    let header = Header {
        payload_bytes: block_bytes.min(PAYLOAD_BYTES_MAX) as u32,
        kind: kind::HEADERS,
        flags: last | if end_stream { flag::END_STREAM } else { 0 },
        stream,
    };
    let mut written = Vec::with_capacity(HEADER_BYTES);
    header.write(&mut written);
    out[start..start + HEADER_BYTES].copy_from_slice(&written);
    if is_one {
        return;
    }
    let rest = out.split_off(start + HEADER_BYTES + PAYLOAD_BYTES_MAX);
    let mut fragments = rest.chunks(PAYLOAD_BYTES_MAX).peekable();
    while let Some(fragment) = fragments.next() {
        let is_last = fragments.peek().is_none();
        let flags = if is_last { flag::END_HEADERS } else { 0 };
        frame(out, kind::CONTINUATION, flags, stream, [fragment, b""]);
    }
}

/// Appends DATA.
pub fn data(out: &mut Vec<u8>, stream: u32, content: &[u8], end_stream: bool) {
    let flags = if end_stream { flag::END_STREAM } else { 0 };
    frame(out, kind::DATA, flags, stream, [content, b""]);
}

/// Appends SETTINGS.
pub fn settings(out: &mut Vec<u8>, payload: &[u8]) {
    frame(out, kind::SETTINGS, 0, 0, [payload, b""]);
}

/// Appends the acknowledgment of SETTINGS.
pub fn settings_ack(out: &mut Vec<u8>) {
    frame(out, kind::SETTINGS, flag::ACK, 0, [b"", b""]);
}

/// Appends the answer to PING.
pub fn ping_ack(out: &mut Vec<u8>, payload: &[u8; 8]) {
    frame(out, kind::PING, flag::ACK, 0, [payload, b""]);
}

/// Appends GOAWAY; `last` is the greatest ID of the streams that are answered.
pub fn goaway(out: &mut Vec<u8>, last: u32, code: Code, why: &str) {
    let mut payload = [0; 8];
    payload[..4].copy_from_slice(&last.to_be_bytes());
    payload[4..].copy_from_slice(&code.0.to_be_bytes());
    frame(out, kind::GOAWAY, 0, 0, [&payload, why.as_bytes()]);
}

/// Appends RST_STREAM.
pub fn rst_stream(out: &mut Vec<u8>, stream: u32, code: Code) {
    let code = code.0.to_be_bytes();
    frame(out, kind::RST_STREAM, 0, stream, [&code, b""]);
}

/// Appends WINDOW_UPDATE; `stream` 0 for the connection.
pub fn window_update(out: &mut Vec<u8>, stream: u32, increment: u32) {
    let increment = increment.to_be_bytes();
    frame(out, kind::WINDOW_UPDATE, 0, stream, [&increment, b""]);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: RFC 9113 §4.1
    #[test]
    fn headers_are_read_as_they_are_written_without_the_reserved_bit() {
        let header = Header {
            payload_bytes: 0x01_02_03,
            kind: kind::HEADERS,
            flags: flag::END_STREAM | flag::PADDED,
            stream: STREAM_ID_MAX,
        };
        let mut bytes = Vec::new();
        header.write(&mut bytes);
        assert_eq!(bytes, [1, 2, 3, 1, 9, 0x7f, 0xff, 0xff, 0xff]);
        bytes[5] |= 0x80;
        assert_eq!(Header::read(&bytes), Some(header));
        for cut in 0..HEADER_BYTES {
            assert_eq!(Header::read(&bytes[..cut]), None);
        }
    }

    /// Covers: RFC 9113 §6.4, RFC 9113 §6.5, RFC 9113 §6.7, RFC 9113 §6.8, RFC 9113 §6.9
    #[test]
    fn frames_of_the_connection_have_the_layout_of_the_text() {
        let mut out = Vec::new();
        settings_ack(&mut out);
        ping_ack(&mut out, b"12345678");
        goaway(&mut out, 5, Code::ENHANCE_YOUR_CALM, "why");
        rst_stream(&mut out, 3, Code::CANCEL);
        window_update(&mut out, 0, 70_000);
        let expected = [
            &[0, 0, 0, 4, 1, 0, 0, 0, 0][..],
            &[0, 0, 8, 6, 1, 0, 0, 0, 0],
            b"12345678",
            &[0, 0, 11, 7, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0xb],
            b"why",
            &[0, 0, 4, 3, 0, 0, 0, 0, 3, 0, 0, 0, 8],
            &[0, 0, 4, 8, 0, 0, 0, 0, 0, 0, 1, 0x11, 0x70],
        ];
        assert_eq!(out, expected.concat());
    }
}
