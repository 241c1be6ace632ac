//! The chunked transfer coding (RFC 9112 §7.1).
//!
//! Extensions are parsed and dropped, and so are trailer fields unless the decoder is to keep them,
//! as §7.1.1 and §7.1.2 allow: they reach no other party.

use std::fmt;
use std::ops::Range;

/// Most digits of a chunk's size. No real chunk needs more.
const SIZE_DIGITS_MAX: u8 = 15;

/// Longest extensions of one chunk, in bytes.
const EXTENSION_BYTES_MAX: usize = 1 << 10;

/// Longest trailer section, in bytes.
pub const TRAILER_BYTES_MAX: usize = 8 << 10;

/// Bytes that are not in the chunked coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkError;

impl fmt::Display for ChunkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the body is not chunked as RFC 9112 says")
    }
}

impl std::error::Error for ChunkError {}

/// Position of the next byte in the coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Size { digits: u8, size: u64 },
    Extension { bytes: usize, size: u64 },
    SizeLf { size: u64 },
    Data { left: u64 },
    DataCr,
    DataLf,
    TrailerStart { bytes: usize },
    Trailer { bytes: usize },
    TrailerLf { bytes: usize },
    LastLf,
    Done,
}

/// Decodes a chunked body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoder {
    state: State,
    /// The trailer section, if it is kept.
    trailers: Option<Vec<u8>>,
}

/// Result of [`Decoder::step`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Number of consumed bytes.
    pub consumed: usize,
    /// Range of the content within the consumed bytes.
    pub content: Range<usize>,
}

impl Default for Decoder {
    fn default() -> Self {
        Decoder {
            state: State::Size { digits: 0, size: 0 },
            trailers: None,
        }
    }
}

impl Decoder {
    /// A decoder that keeps the trailer section.
    pub fn with_trailers() -> Self {
        Decoder {
            trailers: Some(Vec::new()),
            ..Decoder::default()
        }
    }

    /// Takes the kept trailer section: lines with their ends, without the empty one. At most 8 KiB.
    pub fn take_trailers(&mut self) -> Vec<u8> {
        self.trailers.take().unwrap_or_default()
    }

    /// True if the body is complete.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Consumes bytes up to the end of the next piece of content, or all bytes.
    ///
    /// # Errors
    ///
    /// The end of the body is in doubt.
    pub fn step(&mut self, bytes: &[u8]) -> Result<Step, ChunkError> {
        self.step_within(bytes, usize::MAX)
    }

    /// As [`Decoder::step`], with at most `content_max` bytes of content. With 0, it stops before
    /// the content.
    ///
    /// # Errors
    ///
    /// The end of the body is in doubt.
    pub fn step_within(&mut self, bytes: &[u8], content_max: usize) -> Result<Step, ChunkError> {
        let mut at = 0;
        while at < bytes.len() && !self.is_done() {
            if let State::Data { left } = self.state {
                let left_here = usize::try_from(left).unwrap_or(usize::MAX);
                let end = bytes
                    .len()
                    .min(at.saturating_add(left_here.min(content_max)));
                let left = left - (end - at) as u64;
                self.state = match left {
                    0 => State::DataCr,
                    left => State::Data { left },
                };
                return Ok(Step {
                    consumed: end,
                    content: at..end,
                });
            }
            let before = self.state;
            self.state = next(before, bytes[at])?;
            let is_of_line = matches!(self.state, State::Trailer { .. } | State::TrailerLf { .. });
            if let Some(trailers) = &mut self.trailers
                && (is_of_line || matches!(before, State::TrailerLf { .. }))
            {
                trailers.push(bytes[at]);
            }
            at += 1;
        }
        Ok(Step {
            consumed: at,
            content: at..at,
        })
    }
}

/// Returns the state after a byte outside of content.
fn next(state: State, byte: u8) -> Result<State, ChunkError> {
    let bounded = |bytes: usize, max| (bytes < max).then_some(bytes + 1).ok_or(ChunkError);
    Ok(match (state, byte) {
        (State::Size { digits, size }, _) if byte.is_ascii_hexdigit() => {
            if digits == SIZE_DIGITS_MAX {
                return Err(ChunkError);
            }
            let digit = (byte as char).to_digit(16).map_or(0, u64::from);
            State::Size {
                digits: digits + 1,
                size: size << 4 | digit,
            }
        }
        (State::Size { digits: 1.., size }, b'\r') => State::SizeLf { size },
        (State::Size { digits: 1.., size }, b';') => State::Extension { bytes: 0, size },
        (State::Extension { size, .. }, b'\r') => State::SizeLf { size },
        // A bare LF ends a line for some parsers, and does not for others.
        (State::Extension { bytes, size }, b'\t' | b' '..=b'~') => State::Extension {
            bytes: bounded(bytes, EXTENSION_BYTES_MAX)?,
            size,
        },
        (State::SizeLf { size: 0 }, b'\n') => State::TrailerStart { bytes: 0 },
        (State::SizeLf { size }, b'\n') => State::Data { left: size },
        (State::DataCr, b'\r') => State::DataLf,
        (State::DataLf, b'\n') => State::Size { digits: 0, size: 0 },
        (State::TrailerStart { .. }, b'\r') => State::LastLf,
        (State::Trailer { bytes }, b'\r') => State::TrailerLf { bytes },
        // A folded line (§5.2), or one without a name.
        (State::TrailerStart { .. }, b' ' | b'\t' | b':') => return Err(ChunkError),
        (
            State::TrailerStart { bytes } | State::Trailer { bytes },
            b'\t' | b' '..=b'~' | 0x80..=0xff,
        ) => State::Trailer {
            bytes: bounded(bytes, TRAILER_BYTES_MAX)?,
        },
        (State::TrailerLf { bytes }, b'\n') => State::TrailerStart { bytes },
        (State::LastLf, b'\n') => State::Done,
        _ => return Err(ChunkError),
    })
}

/// Appends the line before `bytes` of content, which must not be 0.
pub fn begin(out: &mut Vec<u8>, bytes: usize) {
    use std::io::Write as _;
    // Writing to memory does not fail.
    let _ = write!(out, "{bytes:x}\r\n");
}

/// Bytes behind the content of a chunk.
pub const CHUNK_END: &[u8] = b"\r\n";

/// The last chunk, which the trailer section follows.
pub const LAST_CHUNK: &[u8] = b"0\r\n";

/// The line that ends the trailer section.
pub const TRAILERS_END: &[u8] = b"\r\n";

/// The last chunk, with an empty trailer section.
pub const LAST: &[u8] = b"0\r\n\r\n";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn trailers_are_kept_on_demand() {
        let body = b"3\r\nabc\r\n0;x\r\nA: b\r\nC:d\r\n\r\nmore";
        for (mut decoder, kept) in [
            (Decoder::default(), &b""[..]),
            (Decoder::with_trailers(), b"A: b\r\nC:d\r\n"),
        ] {
            let mut rest = &body[..];
            while !decoder.is_done() {
                rest = &rest[decoder.step(&rest[..1]).unwrap().consumed..];
            }
            assert_eq!((rest, &*decoder.take_trailers()), (&b"more"[..], kept));
        }
    }

    #[test]
    fn content_is_bounded_and_stays_where_there_is_no_room() {
        let (body, mut decoder) = (b"5\r\nabcde\r\n0\r\n\r\n", Decoder::default());
        let step = decoder.step_within(body, 0).unwrap();
        assert_eq!((step.consumed, step.content), (3, 3..3));
        let step = decoder.step_within(&body[3..], 2).unwrap();
        assert_eq!((step.consumed, step.content), (2, 0..2));
        let step = decoder.step_within(&body[5..], 9).unwrap();
        assert_eq!((step.consumed, step.content), (3, 0..3));
        let step = decoder.step_within(&body[8..], 0).unwrap();
        assert_eq!((step.consumed, decoder.is_done()), (7, true));
    }

    /// The content, and the bytes left behind it.
    fn decode(pieces: &[&[u8]]) -> Result<(Vec<u8>, Vec<u8>, bool), ChunkError> {
        let mut decoder = Decoder::default();
        let (mut content, mut rest) = (Vec::new(), Vec::new());
        for piece in pieces {
            let mut piece = *piece;
            while !piece.is_empty() && !decoder.is_done() {
                let step = decoder.step(piece)?;
                content.extend_from_slice(&piece[step.content]);
                piece = &piece[step.consumed..];
            }
            rest.extend_from_slice(piece);
        }
        Ok((content, rest, decoder.is_done()))
    }

    #[test]
    fn content_comes_out_and_the_rest_stays() {
        let body = b"5;a=b\r\nhello\r\n0A\r\n, wonderfu\r\n1\r\nl\r\n0\r\nX: y\r\n\r\nGET";
        let whole = (b"hello, wonderful".to_vec(), b"GET".to_vec(), true);
        assert_eq!(decode(&[body]), Ok(whole.clone()));
        for at in 0..body.len() {
            let (one, other) = body.split_at(at);
            assert_eq!(decode(&[one, other]), Ok(whole.clone()), "{at}");
        }
    }

    #[test]
    fn what_has_two_readings_is_refused() {
        for body in [
            "\r\n",
            "+5\r\nhello\r\n",
            "0x5\r\nhello\r\n",
            " 5\r\nhello\r\n",
            "5 \r\nhello\r\n",
            "5\nhello\r\n",
            "5\r\rhello",
            "5\r\nhello\n0\r\n",
            "5\r\nhello0\r\n",
            "5;\n",
            "5;a=\u{1}\r\n",
            "-1\r\n",
            "g\r\n",
            "1000000000000000\r\n",
            "0\r\n folded\r\n",
            "0\r\n: x\r\n",
            "0\r\nA: b\n",
            "0\r\n\n",
        ] {
            assert_eq!(decode(&[body.as_bytes()]), Err(ChunkError), "{body:?}");
        }
        let long = [
            format!("5;{}", "x".repeat(2000)),
            format!("0\r\n{}", "x".repeat(9000)),
        ];
        for body in long {
            assert_eq!(decode(&[body.as_bytes()]), Err(ChunkError));
        }
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_decoded(
            chunks in proptest::collection::vec(
                proptest::collection::vec(any::<u8>(), 1..300), 0..8),
            cut in any::<proptest::sample::Index>(),
        ) {
            let mut body = Vec::new();
            for chunk in &chunks {
                begin(&mut body, chunk.len());
                body.extend_from_slice(chunk);
                body.extend_from_slice(CHUNK_END);
            }
            body.extend_from_slice(LAST);
            let (one, other) = body.split_at(cut.index(body.len()));
            let (content, rest, is_done) = decode(&[one, other]).unwrap();
            prop_assert_eq!(content, chunks.concat());
            prop_assert!(rest.is_empty() && is_done);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&[&bytes]);
        }
    }
}
