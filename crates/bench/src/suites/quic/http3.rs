//! As much of HTTP/3 (RFC 9114) as a load of GETs needs: frames, and field sections without a
//! dynamic table (RFC 9204 §4.5).

use testbed::{Failure, Result};

/// Types of frames (RFC 9114 §7.2).
const DATA: u64 = 0;
const HEADERS: u64 = 1;
const SETTINGS: u64 = 4;

/// The type of a control stream (RFC 9114 §6.2.1).
const CONTROL: u8 = 0;

/// The prefix of a field section that refers to no dynamic table.
const NO_DYNAMIC_TABLE: [u8; 2] = [0, 0];

/// `:status: 200`, which is entry 25 of the static table.
const STATUS_200: u8 = 0b1100_0000 | 25;

/// Most bytes of a field section that is accepted.
const SECTION_BYTES_MAX: u64 = 4096;

/// Most bytes of a frame's header: two integers.
const FRAME_HEADER_BYTES_MAX: usize = 16;

/// An integer of variable length (RFC 9000 §16).
fn varint(value: u64) -> Vec<u8> {
    match value {
        0..64 => vec![value as u8],
        64..16_384 => (0x4000 | value as u16).to_be_bytes().to_vec(),
        16_384..1_073_741_824 => (0x8000_0000 | value as u32).to_be_bytes().to_vec(),
        _ => (0xc000_0000_0000_0000 | value).to_be_bytes().to_vec(),
    }
}

/// Takes such an integer from the front, if all of it is there.
fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let len = 1 << (bytes.first()? >> 6);
    let (number, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    let value = number
        .iter()
        .fold(0, |value, &byte| value << 8 | u64::from(byte));
    Some(value & (u64::MAX >> (66 - 8 * len)))
}

fn frame_header(kind: u64, payload_bytes: u64) -> Vec<u8> {
    [varint(kind), varint(payload_bytes)].concat()
}

fn headers(section: &[u8]) -> Vec<u8> {
    [&frame_header(HEADERS, section.len() as u64), section].concat()
}

/// What a side's control stream begins with.
pub(super) fn control_stream() -> Vec<u8> {
    [&[CONTROL][..], &frame_header(SETTINGS, 0)].concat()
}

/// An integer with a prefix (RFC 7541 §5.1).
fn prefixed(pattern: u8, bits: u32, value: usize) -> Vec<u8> {
    let mask = (1 << bits) - 1;
    if value < mask {
        return vec![pattern | value as u8];
    }
    let mut bytes = vec![pattern | mask as u8];
    let mut rest = value - mask;
    while rest > 127 {
        bytes.push(rest as u8 | 128);
        rest >>= 7;
    }
    bytes.push(rest as u8);
    bytes
}

fn take_prefixed(bytes: &mut &[u8], bits: u32) -> Option<usize> {
    let mask = (1 << bits) - 1;
    let (first, rest) = bytes.split_first()?;
    *bytes = rest;
    let mut value = usize::from(*first) & mask;
    if value < mask {
        return Some(value);
    }
    for shift in [0, 7, 14] {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value += usize::from(byte & 127) << shift;
        if *byte < 128 {
            return Some(value);
        }
    }
    None
}

/// A GET for a path.
pub(super) fn request(path: &str) -> Vec<u8> {
    let mut section = NO_DYNAMIC_TABLE.to_vec();
    for (name, value) in [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "localhost"),
        (":path", path),
    ] {
        section.extend(prefixed(0b0010_0000, 3, name.len()));
        section.extend_from_slice(name.as_bytes());
        section.extend(prefixed(0, 7, value.len()));
        section.extend_from_slice(value.as_bytes());
    }
    headers(&section)
}

/// The path of a [`request`], once all of it is there.
pub(super) fn path(request: &[u8]) -> Option<String> {
    let mut rest = request;
    let kind = take_varint(&mut rest)?;
    let len = take_varint(&mut rest)?;
    let mut section = rest.get(..usize::try_from(len).ok()?)?;
    if kind != HEADERS {
        return None;
    }
    section = section.strip_prefix(&NO_DYNAMIC_TABLE)?;
    let text = |section: &mut &[u8], bits| {
        let len = take_prefixed(section, bits)?;
        let (text, rest) = section.split_at_checked(len)?;
        *section = rest;
        String::from_utf8(text.to_vec()).ok()
    };
    while !section.is_empty() {
        let name = text(&mut section, 3)?;
        let value = text(&mut section, 7)?;
        if name == ":path" {
            return Some(value);
        }
    }
    None
}

/// What stands before a body of so many bytes: a response head, and the header of the DATA frame
/// that all of the body is in.
pub(super) fn response_head(body_bytes: u64) -> Vec<u8> {
    let length = body_bytes.to_string();
    let mut section = NO_DYNAMIC_TABLE.to_vec();
    section.push(STATUS_200);
    // content-length, entry 4 of the static table, with a literal value.
    section.push(0b0101_0000 | 4);
    section.extend(prefixed(0, 7, length.len()));
    section.extend_from_slice(length.as_bytes());
    [headers(&section), frame_header(DATA, body_bytes)].concat()
}

/// Reads a response, which comes in pieces.
#[derive(Debug, Default)]
pub(super) struct Response {
    /// A frame's header, as far as it has come, or the field section of the head.
    partial: Vec<u8>,
    /// The frame that is being read, and what is missing of it.
    frame: Option<(u64, u64)>,
    has_head: bool,
}

impl Response {
    /// Takes bytes from the front, until there is some of the body; nothing is left if there is
    /// none.
    pub(super) fn next<'a>(&mut self, bytes: &mut &'a [u8]) -> Result<Option<&'a [u8]>> {
        while !bytes.is_empty() {
            let Some((kind, missing)) = &mut self.frame else {
                self.begin_frame(bytes)?;
                continue;
            };
            let len = bytes
                .len()
                .min(usize::try_from(*missing).unwrap_or(usize::MAX));
            let (some, rest) = bytes.split_at(len);
            *bytes = rest;
            *missing -= len as u64;
            let (kind, is_over) = (*kind, *missing == 0);
            if kind == HEADERS {
                self.partial.extend_from_slice(some);
            }
            if is_over {
                self.frame = None;
                self.end_frame(kind)?;
            }
            if kind == DATA && len > 0 {
                return Ok(Some(some));
            }
        }
        Ok(None)
    }

    fn begin_frame(&mut self, bytes: &mut &[u8]) -> Result<()> {
        let (byte, rest) = bytes
            .split_first()
            .expect("the caller has seen that there is one");
        *bytes = rest;
        self.partial.push(*byte);
        let mut header = &self.partial[..];
        let both = take_varint(&mut header).zip(take_varint(&mut header));
        let Some((kind, len)) = both else {
            debug_assert!(self.partial.len() < FRAME_HEADER_BYTES_MAX);
            return Ok(());
        };
        self.partial.clear();
        if kind == DATA && !self.has_head || kind == HEADERS && len > SECTION_BYTES_MAX {
            return Err(Failure::new(format!(
                "a response begins with a frame of type {kind:#x} and {len} bytes"
            )));
        }
        if len > 0 {
            self.frame = Some((kind, len));
        }
        Ok(())
    }

    fn end_frame(&mut self, kind: u64) -> Result<()> {
        if kind != HEADERS {
            return Ok(());
        }
        let is_200 = matches!(self.partial[..], [0, 0, STATUS_200, ..]);
        self.has_head = true;
        if is_200 {
            self.partial.clear();
            Ok(())
        } else {
            Err(Failure::new(format!(
                "a response's fields do not begin with status 200: {:?}",
                self.partial
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_found_in_a_request_that_is_complete() {
        let long = format!("/{}", "x".repeat(1000));
        for expected in ["/file-1", &long] {
            let request = request(expected);
            assert_eq!(path(&request).as_deref(), Some(expected));
            assert_eq!(path(&request[..request.len() - 1]), None);
        }
    }

    #[test]
    fn a_body_is_found_however_it_comes() {
        let body: Vec<u8> = (0..20_000_u32).map(|at| at as u8).collect();
        // One of an unknown type (RFC 9114 §9) lies between.
        let unknown = [&frame_header(0x21, 3)[..], b"abc"].concat();
        let head = response_head(body.len() as u64);
        let bytes = [&unknown[..], &head, &body, &unknown].concat();
        for piece in [1, 3, 1200, 1 << 20] {
            let (mut response, mut found) = (Response::default(), Vec::new());
            for mut piece in bytes.chunks(piece) {
                while let Some(some) = response.next(&mut piece).unwrap() {
                    found.extend_from_slice(some);
                }
            }
            assert!(found == body, "{piece}");
        }
    }

    #[test]
    fn another_status_is_a_failure() {
        let bytes = headers(&[0, 0, 0b1100_0000 | 27]);
        let failure = Response::default().next(&mut &bytes[..]).unwrap_err();
        assert!(failure.to_string().contains("status"));
        let body_first = frame_header(DATA, 1);
        assert!(Response::default().next(&mut &body_first[..]).is_err());
    }
}
