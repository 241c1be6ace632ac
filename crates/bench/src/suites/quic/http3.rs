//! The HTTP/3 (RFC 9114) that a load of GETs needs beyond the tests' [`fakes::http3`]: requests and
//! responses that arrive in pieces.

use fakes::http3::{DATA, HEADERS, SETTINGS, fields, frame, headers, section, varint};
use testbed::{Failure, Result};

/// The type of a control stream (RFC 9114 §6.2.1).
const CONTROL: u8 = 0;

/// Length of a field section's prefix without dynamic table references.
const PREFIX_BYTES: usize = 2;

/// `:status: 200`, entry 25 of the static table.
const STATUS_200: u8 = 0b1100_0000 | 25;

/// Most bytes of an accepted field section.
const SECTION_BYTES_MAX: u64 = 4096;

/// Most bytes of a frame's header: two integers.
const FRAME_HEADER_BYTES_MAX: usize = 16;

/// Takes a variable-length integer (RFC 9000 §16) from the front, if it is complete.
fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let len = 1 << (bytes.first()? >> 6);
    let (number, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    let value = number
        .iter()
        .fold(0, |value, &byte| value << 8 | u64::from(byte));
    Some(value & (u64::MAX >> (66 - 8 * len)))
}

/// The beginning of a control stream.
pub(super) fn control_stream() -> Vec<u8> {
    [&[CONTROL][..], &frame(SETTINGS, [])].concat()
}

/// A GET for a path.
pub(super) fn request(path: &str) -> Vec<u8> {
    headers(&[
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "localhost"),
        (":path", path),
    ])
}

/// The path of a [`request`], once it is complete.
pub(super) fn path(request: &[u8]) -> Option<String> {
    let mut rest = request;
    let kind = take_varint(&mut rest)?;
    let len = take_varint(&mut rest)?;
    let section = rest.get(..usize::try_from(len).ok()?)?;
    let found = fields(section).into_iter();
    let mut paths = found.filter(|(name, _)| kind == HEADERS && name == ":path");
    paths.next().map(|(_, path)| path)
}

/// The bytes before a body of this length: a response head, and the header of the DATA frame around
/// the body.
pub(super) fn response_head(body_bytes: u64) -> Vec<u8> {
    let mut section = section(&[("content-length", &body_bytes.to_string())]);
    section.insert(PREFIX_BYTES, STATUS_200);
    [frame(HEADERS, section), varint(DATA), varint(body_bytes)].concat()
}

/// Reads a response that arrives in pieces.
#[derive(Debug, Default)]
pub(super) struct Response {
    /// A partial frame header, or the partial field section of the head.
    partial: Vec<u8>,
    /// The type of the current frame, and its missing bytes.
    frame: Option<(u64, u64)>,
    has_head: bool,
}

impl Response {
    /// Takes bytes from the front up to the next piece of the body; takes all if there is none.
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
    use fakes::http3::RESERVED;

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
        // With a frame of an unknown type (RFC 9114 §9) in between.
        let unknown = frame(RESERVED, b"abc");
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
        let bytes = frame(HEADERS, [0, 0, 0b1100_0000 | 27]);
        let failure = Response::default().next(&mut &bytes[..]).unwrap_err();
        assert!(failure.to_string().contains("status"));
        let body_first = frame(DATA, [0]);
        assert!(Response::default().next(&mut &body_first[..]).is_err());
    }
}
