//! The frames of a response: HEADERS, and one DATA frame around its whole body (RFC 9114 §4.1).
//!
//! The length of a body is known in advance, so nothing separates its file ranges, and everything
//! after the head is queued as with HTTP/1.1.

use host::app::QuicConnection;
use http::{HeaderName, HeaderValue, StatusCode};

use crate::exchange::version::Version;
use crate::http3::frame::{Header, kind};
use crate::http3::qpack::encode;
use crate::http3::varint;
use crate::semantics::rate::Multiplexed;
use crate::semantics::versions::HttpVersion;

/// The version of an HTTP/3 exchange. It is stateless: the stream has the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Http3;

/// Offset of the length in a HEADERS frame.
const LENGTH_AT: usize = 1;

/// Size of the length in a HEADERS frame, in bytes, unless the frame is longer than
/// [`SHORT_BYTES_MAX`].
const LENGTH_BYTES: usize = 2;

/// Longest payload whose length fits in [`LENGTH_BYTES`].
const SHORT_BYTES_MAX: usize = 0x3fff;

impl Version for Http3 {
    const NAME: &'static str = "HTTP/3.0";

    const VERSION: HttpVersion = HttpVersion::Http3;

    type Connection = QuicConnection;

    fn multiplexed(connection: QuicConnection) -> Option<Multiplexed> {
        Some(Multiplexed::Quic(connection))
    }

    fn begin(self, out: &mut Vec<u8>, status: StatusCode) {
        out.extend_from_slice(&[kind::HEADERS as u8, 0, 0]);
        encode::begin(out);
        self.text(out, ":status", status.as_str());
    }

    fn field(self, out: &mut Vec<u8>, name: &str, value: &[u8]) {
        self.field_with(out, name, |out| out.extend_from_slice(value));
    }

    fn field_with(self, out: &mut Vec<u8>, name: &str, write: impl FnOnce(&mut Vec<u8>)) {
        encode::field_with(out, name, write);
    }

    fn end(self, out: &mut Vec<u8>, body_bytes: u64) {
        let payload_bytes = out.len() - LENGTH_AT - LENGTH_BYTES;
        let length = if payload_bytes <= SHORT_BYTES_MAX {
            payload_bytes as u32 | 0x4000
        } else {
            payload_bytes as u32 | 0x8000_0000
        };
        let length = length.to_be_bytes();
        out[LENGTH_AT..LENGTH_AT + LENGTH_BYTES].copy_from_slice(&length[2..]);
        if payload_bytes > SHORT_BYTES_MAX {
            out.splice(LENGTH_AT..LENGTH_AT, length[..2].iter().copied());
        }
        if body_bytes > 0 {
            let data = Header {
                kind: kind::DATA,
                payload_bytes: body_bytes.min(varint::MAX),
            };
            data.write(out);
        }
    }

    fn trailers(self, out: &mut Vec<u8>, fields: &[(HeaderName, HeaderValue)]) -> bool {
        out.extend_from_slice(&[kind::HEADERS as u8, 0, 0]);
        encode::begin(out);
        for (name, value) in fields {
            self.field(out, name.as_str(), value.as_bytes());
        }
        self.end(out, 0);
        true
    }

    fn has_longer_section(response: &[u8], bytes_max: u32) -> bool {
        let may_be = (response.len() * encode::EXPANSION_MAX) as u64 > u64::from(bytes_max);
        may_be
            && Header::read(response).is_some_and(|(headers, start)| {
                let section = &response[start..];
                let end = section.len().min(headers.payload_bytes as usize);
                encode::section_bytes(&section[..end]) > u64::from(bytes_max)
            })
    }

    fn body_start(response: &[u8]) -> usize {
        let end =
            |start: usize| Header::read(&response[start..]).map(|(it, len)| (it, start + len));
        let Some((headers, start)) = end(0) else {
            return response.len();
        };
        let behind = start + headers.payload_bytes as usize;
        end(behind).map_or(behind, |(_, body)| body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: RFC 9114 §4.1, RFC 9114 §7.2.1, RFC 9114 §7.2.2
    #[test]
    fn frames_have_their_lengths_whatever_they_are() {
        for value_bytes in [0, 1, 100, 16_360, 16_370, 16_380, 16_390, 70_000] {
            for body_bytes in [0, 1, 63, 64, 1 << 40] {
                let mut out = Vec::new();
                Http3.begin(&mut out, StatusCode::OK);
                Http3.field(&mut out, "x", &vec![b'v'; value_bytes]);
                Http3.end(&mut out, body_bytes);
                let (headers, start) = Header::read(&out).unwrap();
                assert_eq!(headers.kind, kind::HEADERS);
                let behind = start + headers.payload_bytes as usize;
                let mut last = out[..behind].iter().rev();
                assert_eq!(last.next(), Some(if value_bytes == 0 { &0 } else { &b'v' }));
                match Header::read(&out[behind..]) {
                    None => assert_eq!((body_bytes, behind), (0, out.len())),
                    Some((data, bytes)) => {
                        assert_eq!((data.kind, data.payload_bytes), (kind::DATA, body_bytes));
                        assert_eq!(behind + bytes, out.len());
                    }
                }
                assert_eq!(Http3::body_start(&out), out.len());
            }
        }
    }
}
