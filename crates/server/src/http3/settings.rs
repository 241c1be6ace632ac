//! SETTINGS (RFC 9114 §7.2.4).

use crate::http3::code::{Code, Fault};
use crate::http3::frame::{Header, kind};
use crate::http3::varint;

/// SETTINGS_QPACK_MAX_TABLE_CAPACITY (RFC 9204 §5)
const QPACK_MAX_TABLE_CAPACITY: u64 = 0x1;
/// SETTINGS_MAX_FIELD_SECTION_SIZE
const MAX_FIELD_SECTION_SIZE: u64 = 0x6;
/// SETTINGS_QPACK_BLOCKED_STREAMS (RFC 9204 §5)
const QPACK_BLOCKED_STREAMS: u64 = 0x7;

/// Most settings that a peer may send.
const SETTINGS_MAX: usize = 64;

/// Appends a SETTINGS frame: no dynamic table, and the limit on field sections. `salt` chooses a
/// reserved setting, so that peers keep ignoring unknown ones.
pub(crate) fn write(out: &mut Vec<u8>, field_section_bytes_max: u64, salt: u64) {
    let reserved = 0x1f * (salt % (1 << 24)) + 0x21;
    let mut payload = Vec::with_capacity(32);
    for (identifier, value) in [
        (QPACK_MAX_TABLE_CAPACITY, 0),
        (
            MAX_FIELD_SECTION_SIZE,
            field_section_bytes_max.min(varint::MAX),
        ),
        (QPACK_BLOCKED_STREAMS, 0),
        (reserved, salt % 64),
    ] {
        varint::write(&mut payload, identifier);
        varint::write(&mut payload, value);
    }
    let header = Header {
        kind: kind::SETTINGS,
        payload_bytes: payload.len() as u64,
    };
    header.write(out);
    out.extend_from_slice(&payload);
}

/// Parses the payload of a peer's SETTINGS frame: its limit on field sections, if it has one.
/// Responses use no dynamic table, so no other setting matters.
///
/// # Errors
/// H3_SETTINGS_ERROR for a duplicate setting, or an identifier of HTTP/2.
pub(crate) fn read(mut payload: &[u8]) -> Result<Option<u64>, Fault> {
    let (mut seen, mut section_bytes_max) = (Vec::new(), None);
    while !payload.is_empty() {
        let mut take = || {
            let (value, bytes) = varint::read(payload)?;
            payload = &payload[bytes..];
            Some(value)
        };
        let (Some(identifier), Some(value)) = (take(), take()) else {
            let why = "a setting that is cut off";
            return Err(Fault::Connection(Code::FRAME_ERROR, why));
        };
        if matches!(identifier, 0x0 | 0x2..=0x5) {
            return Err(Fault::Connection(
                Code::SETTINGS_ERROR,
                "a setting of HTTP/2",
            ));
        }
        if seen.contains(&identifier) {
            return Err(Fault::Connection(Code::SETTINGS_ERROR, "a setting twice"));
        }
        if seen.len() == SETTINGS_MAX {
            return Err(Fault::Connection(Code::EXCESSIVE_LOAD, "too many settings"));
        }
        seen.push(identifier);
        if identifier == MAX_FIELD_SECTION_SIZE {
            section_bytes_max = Some(value);
        }
    }
    Ok(section_bytes_max)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(payload: &[u8]) -> Option<Code> {
        match read(payload) {
            Ok(_) => None,
            Err(Fault::Connection(code, _)) => Some(code),
            Err(Fault::Stream(_)) => panic!("settings are about a connection"),
        }
    }

    /// Covers: RFC 9114 §7.2.4, RFC 9114 §7.2.4.1, RFC 9114 §7.2.4.2
    #[test]
    fn settings_come_once_and_none_is_of_http2() {
        for salt in [0, 1, 63, 1 << 40, u64::MAX] {
            let mut frame = Vec::new();
            write(&mut frame, 16 << 10, salt);
            let (header, bytes) = Header::read(&frame).unwrap();
            assert_eq!(header.kind, kind::SETTINGS);
            assert_eq!(header.payload_bytes as usize, frame.len() - bytes);
            assert_eq!(read(&frame[bytes..]).ok(), Some(Some(16 << 10)));
        }
        assert_eq!(read(&[7, 1]).ok(), Some(None));
        assert_eq!(code(b""), None);
        for known_to_http2 in [0, 2, 3, 4, 5] {
            assert_eq!(code(&[known_to_http2, 1]), Some(Code::SETTINGS_ERROR));
        }
        assert_eq!(code(&[6, 1, 7, 1, 6, 1]), Some(Code::SETTINGS_ERROR));
        assert_eq!(code(&[0x40, 6, 1, 6, 1]), Some(Code::SETTINGS_ERROR));
        assert_eq!(code(&[6]), Some(Code::FRAME_ERROR));
        assert_eq!(code(&[6, 0x40]), Some(Code::FRAME_ERROR));
        let many: Vec<u8> = (0..65_u16)
            .flat_map(|it| (0x4100 + it).to_be_bytes())
            .collect();
        let many: Vec<u8> = many.chunks(2).flat_map(|it| [it[0], it[1], 0]).collect();
        assert_eq!(code(&many[..64 * 3]), None);
        assert_eq!(code(&many), Some(Code::EXCESSIVE_LOAD));
    }
}
