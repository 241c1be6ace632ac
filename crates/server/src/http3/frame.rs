//! Frames (RFC 9114 §7).

use crate::http3::varint;

/// Types of frames.
pub(crate) mod kind {
    /// DATA
    pub(crate) const DATA: u64 = 0x0;
    /// HEADERS
    pub(crate) const HEADERS: u64 = 0x1;
    /// CANCEL_PUSH
    pub(crate) const CANCEL_PUSH: u64 = 0x3;
    /// SETTINGS
    pub(crate) const SETTINGS: u64 = 0x4;
    /// PUSH_PROMISE
    pub(crate) const PUSH_PROMISE: u64 = 0x5;
    /// GOAWAY
    pub(crate) const GOAWAY: u64 = 0x7;
    /// MAX_PUSH_ID
    pub(crate) const MAX_PUSH_ID: u64 = 0xd;
    /// PRIORITY_UPDATE of a request stream (RFC 9218 §7.2)
    pub(crate) const PRIORITY_UPDATE: u64 = 0xf0700;
    /// PRIORITY_UPDATE of a push
    pub(crate) const PRIORITY_UPDATE_PUSH: u64 = 0xf0701;
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: u64,
    /// Length of the payload, in bytes.
    pub(crate) payload_bytes: u64,
}

impl Header {
    /// Reads a header at the front of `bytes`; returns its length too. `None` if it is incomplete.
    pub(crate) fn read(bytes: &[u8]) -> Option<(Header, usize)> {
        let (kind, kind_bytes) = varint::read(bytes)?;
        let (payload_bytes, length_bytes) = varint::read(&bytes[kind_bytes..])?;
        let header = Header {
            kind,
            payload_bytes,
        };
        Some((header, kind_bytes + length_bytes))
    }

    /// Appends the header.
    pub(crate) fn write(self, out: &mut Vec<u8>) {
        varint::write(out, self.kind);
        varint::write(out, self.payload_bytes);
    }
}

/// True for frame types of HTTP/2 that HTTP/3 forbids (RFC 9114 §7.2.8).
pub(crate) fn is_of_http2(kind: u64) -> bool {
    matches!(kind, 0x2 | 0x6 | 0x8 | 0x9)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: RFC 9114 §7.1
    #[test]
    fn headers_are_read_as_they_are_written() {
        for (kind, payload_bytes) in [(0, 0), (1, 63), (0xd, 64), (0xf0700, 1 << 40)] {
            let header = Header {
                kind,
                payload_bytes,
            };
            let mut out = Vec::new();
            header.write(&mut out);
            for cut in 0..out.len() {
                assert_eq!(Header::read(&out[..cut]), None);
            }
            assert_eq!(Header::read(&out), Some((header, out.len())));
        }
    }
}
