//! The head of a response before it is encoded.
//!
//! HPACK encodes field blocks in the order in which they are sent (RFC 9113 §4.3), and streams take
//! turns. So an exchange writes its head in a form of its own, and the connection encodes that when
//! the stream's turn has come: the length of the head and of the body, the status, and each field
//! with the lengths of its name and value.

use host::app::StreamId;
use http::{HeaderName, HeaderValue, StatusCode};

use crate::exchange::version::Version;
use crate::semantics::rate::Multiplexed;
use crate::semantics::versions::HttpVersion;
use http2::field::FIELD_BYTES;

/// The version of an HTTP/2 exchange. It is stateless: the stream has the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Http2;

/// Length of the head, of the body, and the status.
const FIXED_BYTES: usize = 4 + 8 + 2;

/// Bit beside the status: trailers end the body.
const HAS_TRAILERS: u16 = 1 << 15;

/// Lengths of a field's name and value.
const LENGTHS_BYTES: usize = 1 + 4;

impl Version for Http2 {
    const NAME: &'static str = "HTTP/2.0";

    const VERSION: HttpVersion = HttpVersion::Http2;

    /// The TCP stream.
    type Connection = StreamId;

    fn multiplexed(connection: StreamId) -> Option<Multiplexed> {
        Some(Multiplexed::Tcp(connection))
    }

    fn carrier(connection: StreamId, _stream: StreamId) -> StreamId {
        connection
    }

    fn begin(self, out: &mut Vec<u8>, status: StatusCode) {
        out.extend_from_slice(&[0; 4 + 8]);
        out.extend_from_slice(&status.as_u16().to_le_bytes());
    }

    fn field(self, out: &mut Vec<u8>, name: &str, value: &[u8]) {
        self.field_with(out, name, |out| out.extend_from_slice(value));
    }

    fn field_with(self, out: &mut Vec<u8>, name: &str, write: impl FnOnce(&mut Vec<u8>)) {
        debug_assert!(name.len() <= u8::MAX.into(), "names of responses are short");
        out.push(name.len() as u8);
        let value_length = out.len();
        out.extend_from_slice(&[0; 4]);
        out.extend(name.bytes().map(|byte| byte.to_ascii_lowercase()));
        let value = out.len();
        write(out);
        let value_bytes = (out.len() - value) as u32;
        out[value_length..value_length + 4].copy_from_slice(&value_bytes.to_le_bytes());
    }

    fn end(self, out: &mut Vec<u8>, body_bytes: u64) {
        let head_bytes = out.len() as u32;
        out[..4].copy_from_slice(&head_bytes.to_le_bytes());
        out[4..12].copy_from_slice(&body_bytes.to_le_bytes());
    }

    fn end_interim(self, out: &mut Vec<u8>) {
        // Not 0: END_STREAM does not come with it.
        self.end(out, 1);
    }

    fn trailers(self, out: &mut Vec<u8>, fields: &[(HeaderName, HeaderValue)]) -> bool {
        out.extend_from_slice(&[0; FIXED_BYTES]);
        for (name, value) in fields {
            self.field(out, name.as_str(), value.as_bytes());
        }
        self.end(out, 0);
        true
    }

    fn expect_trailers(response: &mut [u8], trailers_bytes: u64) {
        if let Some(head) = Head::read(response) {
            let body_bytes = head.body_bytes + trailers_bytes;
            response[4..12].copy_from_slice(&body_bytes.to_le_bytes());
            response[FIXED_BYTES - 1] |= (HAS_TRAILERS >> 8) as u8;
        }
    }

    fn has_longer_section(response: &[u8], bytes_max: u32) -> bool {
        let bytes_max = u64::from(bytes_max);
        Head::read(response).is_some_and(|head| head.section_bytes() > bytes_max)
    }

    fn body_start(response: &[u8]) -> usize {
        Head::read(response).map_or(response.len(), |head| head.bytes)
    }
}

/// A head as an exchange has written it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head<'a> {
    /// Length in the form of this module, in bytes.
    pub(crate) bytes: usize,
    /// Length of the body that follows.
    pub(crate) body_bytes: u64,
    /// 0: of trailers.
    pub(crate) status: u16,
    /// The body ends with trailers, in the form of this module.
    pub(crate) has_trailers: bool,
    fields: &'a [u8],
}

impl<'a> Head<'a> {
    /// Another response follows on the stream.
    pub(crate) fn is_interim(self) -> bool {
        (100..200).contains(&self.status)
    }

    /// The head that begins these bytes.
    pub(crate) fn read(response: &'a [u8]) -> Option<Head<'a>> {
        let (fixed, _) = response.split_first_chunk::<FIXED_BYTES>()?;
        let [a, b, c, d, body_bytes @ .., low, high] = *fixed;
        let bytes = u32::from_le_bytes([a, b, c, d]) as usize;
        Some(Head {
            bytes,
            body_bytes: u64::from_le_bytes(body_bytes),
            status: u16::from_le_bytes([low, high]) & !HAS_TRAILERS,
            has_trailers: u16::from_le_bytes([low, high]) & HAS_TRAILERS != 0,
            fields: response.get(FIXED_BYTES..bytes)?,
        })
    }

    /// Names, in lower case, and values.
    pub(crate) fn fields(self) -> impl Iterator<Item = (&'a str, &'a [u8])> {
        let mut rest = self.fields;
        std::iter::from_fn(move || {
            let (&[name_bytes, value_bytes @ ..], behind) =
                rest.split_first_chunk::<LENGTHS_BYTES>()?;
            let (name, behind) = behind.split_at_checked(name_bytes.into())?;
            let value_bytes = u32::from_le_bytes(value_bytes) as usize;
            let (value, behind) = behind.split_at_checked(value_bytes)?;
            rest = behind;
            Some((str::from_utf8(name).unwrap_or_default(), value))
        })
    }

    /// Size of the field section as peers limit it (RFC 9113 §6.5.2), in bytes.
    fn section_bytes(self) -> u64 {
        let status_bytes = (":status".len() + "200".len() + FIELD_BYTES) as u64;
        let each = self.fields();
        let each = each.map(|(name, value)| (name.len() + value.len() + FIELD_BYTES) as u64);
        status_bytes + each.sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_as_it_was_written() {
        let mut out = Vec::new();
        Http2.begin(&mut out, StatusCode::PARTIAL_CONTENT);
        Http2.text(&mut out, "Content-Type", "text/plain");
        Http2.field(&mut out, "X-Long", &[b'v'; 70_000]);
        Http2.field(&mut out, "x-empty", b"");
        Http2.end(&mut out, 1 << 40);
        let head_bytes = out.len();
        assert!(Head::read(&out[..head_bytes - 1]).is_none());
        out.extend_from_slice(b"body");
        let head = Head::read(&out).unwrap();
        assert_eq!(
            (head.bytes, head.body_bytes, head.status),
            (head_bytes, 1 << 40, 206)
        );
        let long = vec![b'v'; 70_000];
        let expected = [
            ("content-type", &b"text/plain"[..]),
            ("x-long", &long),
            ("x-empty", b""),
        ];
        assert_eq!(head.fields().collect::<Vec<_>>(), expected);
        assert_eq!(Http2::body_start(&out), head_bytes);
        let mut trailers = Vec::new();
        let field = (HeaderName::from_static("a"), HeaderValue::from_static("b"));
        assert!(!head.has_trailers && Http2.trailers(&mut trailers, &[field]));
        Http2::expect_trailers(&mut out, trailers.len() as u64);
        let head = Head::read(&out).unwrap();
        let body_bytes = (1 << 40) + trailers.len() as u64;
        assert_eq!((head.body_bytes, head.status), (body_bytes, 206));
        assert!(head.has_trailers);
        let trailers = Head::read(&trailers).unwrap();
        assert_eq!(trailers.fields().collect::<Vec<_>>(), [("a", &b"b"[..])]);
        assert!(!trailers.is_interim());
        let section_bytes = (7 + 3 + 12 + 10 + 6 + 70_000 + 7 + 4 * 32) as u32;
        assert!(Http2::has_longer_section(&out, section_bytes - 1));
        assert!(!Http2::has_longer_section(&out, section_bytes));
    }
}
