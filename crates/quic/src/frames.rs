//! The frames of a 1-RTT packet (RFC 9000 §19, and the ACK frequency extension): where stream data
//! lies in a plaintext.
//!
//! The parser knows every type that quinn-proto writes, and refuses all others: a packet that does
//! not parse to its last byte may hold undetected placeholders.

use std::fmt;
use std::ops::Range;

/// Stream data in a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StreamData {
    pub(crate) stream: u64,
    /// Offset of its first byte in the stream.
    pub(crate) offset: u64,
    /// Where it lies in the plaintext.
    pub(crate) at: Range<usize>,
}

/// Why a plaintext does not parse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameError {
    /// The type of the frame is unknown.
    UnknownType(u64),
    /// A frame extends past the end of the packet.
    Truncated,
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownType(kind) => write!(f, "unknown frame type {kind:#x}"),
            Self::Truncated => f.write_str("a frame is truncated"),
        }
    }
}

/// Reads variable-length integers and counted bytes (RFC 9000 §16).
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// The bytes at a place that was read.
    pub(crate) fn bytes(&self, at: Range<usize>) -> &'a [u8] {
        &self.bytes[at]
    }

    /// Skips the zero bytes that follow, and returns how many.
    pub(crate) fn skip_zeros(&mut self) -> usize {
        let rest = &self.bytes[self.at..];
        let zeros = rest.iter().take_while(|byte| **byte == 0).count();
        self.at += zeros;
        zeros
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.at >= self.bytes.len()
    }

    pub(crate) fn skip(&mut self, len: u64) -> Result<Range<usize>, FrameError> {
        let left = (self.bytes.len() - self.at) as u64;
        if len > left {
            return Err(FrameError::Truncated);
        }
        let start = self.at;
        self.at += len as usize;
        Ok(start..self.at)
    }

    /// RFC 9000 §16
    pub(crate) fn varint(&mut self) -> Result<u64, FrameError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let first = *rest.first().ok_or(FrameError::Truncated)?;
        let (value, len) = match first >> 6 {
            0 => (Some(first.into()), 1),
            1 => (
                rest.first_chunk().map(|it| u16::from_be_bytes(*it).into()),
                2,
            ),
            2 => (
                rest.first_chunk().map(|it| u32::from_be_bytes(*it).into()),
                4,
            ),
            _ => (rest.first_chunk().map(|it| u64::from_be_bytes(*it)), 8),
        };
        // The first two bits encode the length.
        let value: u64 = value.ok_or(FrameError::Truncated)?;
        self.at += len;
        Ok(value & (u64::MAX >> (64 - 8 * len + 2)))
    }

    fn varints(&mut self, count: u64) -> Result<(), FrameError> {
        for _ in 0..count {
            self.varint()?;
        }
        Ok(())
    }

    /// A length and as many bytes.
    pub(crate) fn counted(&mut self) -> Result<Range<usize>, FrameError> {
        let len = self.varint()?;
        self.skip(len)
    }
}

/// The data of a PATH_CHALLENGE, and of the PATH_RESPONSE that answers it (RFC 9000 §19.17).
pub(crate) type PathToken = [u8; 8];

/// A frame, as far as this crate cares.
enum Found {
    Stream(StreamData),
    /// Of this packet number and others below.
    Ack(u64),
    Crypto,
    PathChallenge(PathToken),
    PathResponse(PathToken),
    /// Any other probing frame (RFC 9000 §9.1).
    Probing,
    Other,
}

/// A probing packet (RFC 9000 §9.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Probe {
    /// The challenge in it.
    pub(crate) challenge: Option<PathToken>,
}

/// The packet of this plaintext as a probing packet, if it is one.
pub(crate) fn probe(plaintext: &[u8]) -> Option<Probe> {
    let mut probe = Some(Probe { challenge: None });
    let frames = each(plaintext, |frame| match frame {
        Found::PathChallenge(token) => {
            probe = probe.map(|_| Probe {
                challenge: Some(token),
            });
        }
        Found::PathResponse(_) | Found::Probing => {}
        Found::Stream(_) | Found::Ack(_) | Found::Crypto | Found::Other => probe = None,
    });
    probe.filter(|_| frames.is_ok())
}

/// True if a plaintext answers the challenge.
pub(crate) fn answers(plaintext: &[u8], challenge: PathToken) -> bool {
    let mut is_answer = false;
    let frames = each(plaintext, |frame| {
        is_answer |= matches!(frame, Found::PathResponse(token) if token == challenge);
    });
    is_answer && frames.is_ok()
}

/// What a packet of the peer is looked through for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Looked {
    /// CRYPTO frames, and short STREAM frames.
    pub(crate) fragments: u32,
    /// The largest packet number that it acknowledges.
    pub(crate) acknowledged: Option<u64>,
}

/// Looks through a plaintext; STREAM frames with less than `short_bytes` are short, and `found`
/// gets the data of each. What cannot be parsed is left out, with all behind it.
pub(crate) fn look_through(
    plaintext: &[u8],
    short_bytes: usize,
    mut found: impl FnMut(StreamData),
) -> Looked {
    let mut looked = Looked::default();
    let _ = each(plaintext, |frame| match frame {
        Found::Stream(data) => {
            looked.fragments += u32::from(data.at.len() < short_bytes);
            found(data);
        }
        Found::Crypto => looked.fragments += 1,
        Found::Ack(largest) => looked.acknowledged = looked.acknowledged.max(Some(largest)),
        _ => {}
    });
    looked
}

/// True if a plaintext has no frame but ACK: the peer need not acknowledge it.
pub(crate) fn is_ack_only(plaintext: &[u8]) -> bool {
    // Most packets begin with another frame.
    let mut is_ack_only = matches!(plaintext.first(), Some(0x02 | 0x03));
    if is_ack_only {
        let frames = each(plaintext, |frame| {
            is_ack_only &= matches!(frame, Found::Ack(_));
        });
        is_ack_only &= frames.is_ok();
    }
    is_ack_only
}

/// Calls `found` with each piece of stream data, in order.
pub(crate) fn stream_data(
    plaintext: &[u8],
    mut found: impl FnMut(StreamData),
) -> Result<(), FrameError> {
    each(plaintext, |frame| {
        if let Found::Stream(data) = frame {
            found(data);
        }
    })
}

/// Calls `found` with each frame, in order.
#[inline]
fn each(plaintext: &[u8], mut found: impl FnMut(Found)) -> Result<(), FrameError> {
    let mut reader = Reader::new(plaintext);
    while !reader.is_at_end() {
        let kind = reader.varint()?;
        found(reader.frame(kind)?);
    }
    Ok(())
}

impl Reader<'_> {
    /// Parses a frame after its type.
    fn frame(&mut self, kind: u64) -> Result<Found, FrameError> {
        match kind {
            // PADDING: most often up to the end.
            0x00 => {
                self.skip_zeros();
                return Ok(Found::Probing);
            }
            // PING, HANDSHAKE_DONE, IMMEDIATE_ACK
            0x01 | 0x1e | 0x1f => {}
            // ACK
            0x02 | 0x03 => {
                let largest = self.varint()?;
                self.varint()?;
                let ranges = self.varint()?;
                self.varint()?;
                self.varints(ranges.saturating_mul(2))?;
                if kind == 0x03 {
                    self.varints(3)?;
                }
                return Ok(Found::Ack(largest));
            }
            // RESET_STREAM
            0x04 => self.varints(3)?,
            // STOP_SENDING, MAX_STREAM_DATA, STREAM_DATA_BLOCKED
            0x05 | 0x11 | 0x15 => self.varints(2)?,
            // CRYPTO
            0x06 => {
                self.varint()?;
                self.counted()?;
                return Ok(Found::Crypto);
            }
            // NEW_TOKEN
            0x07 => {
                self.counted()?;
            }
            0x08..=0x0f => return Ok(Found::Stream(self.stream(kind)?)),
            // MAX_DATA, MAX_STREAMS, DATA_BLOCKED, STREAMS_BLOCKED, RETIRE_CONNECTION_ID
            0x10 | 0x12..=0x14 | 0x16 | 0x17 | 0x19 => self.varints(1)?,
            // NEW_CONNECTION_ID: a connection ID with its length, a token of 16 bytes.
            0x18 => {
                self.varints(2)?;
                let len = self.skip(1)?;
                self.skip(u64::from(self.bytes[len.start]) + 16)?;
                return Ok(Found::Probing);
            }
            0x1a => return Ok(Found::PathChallenge(self.token()?)),
            0x1b => return Ok(Found::PathResponse(self.token()?)),
            // CONNECTION_CLOSE of the transport; of the application
            0x1c => {
                self.varints(2)?;
                self.counted()?;
            }
            0x1d => {
                self.varint()?;
                self.counted()?;
            }
            // DATAGRAM to the packet's end; with a length
            0x30 => self.at = self.bytes.len(),
            0x31 => {
                self.counted()?;
            }
            // ACK_FREQUENCY
            0xaf => self.varints(4)?,
            _ => return Err(FrameError::UnknownType(kind)),
        }
        Ok(Found::Other)
    }

    fn token(&mut self) -> Result<PathToken, FrameError> {
        let mut token = PathToken::default();
        let at = self.skip(token.len() as u64)?;
        token.copy_from_slice(self.bytes(at));
        Ok(token)
    }

    /// RFC 9000 §19.8
    pub(crate) fn stream(&mut self, kind: u64) -> Result<StreamData, FrameError> {
        let stream = self.varint()?;
        let offset = if kind & 0x04 == 0 { 0 } else { self.varint()? };
        let len = if kind & 0x02 == 0 {
            (self.bytes.len() - self.at) as u64
        } else {
            self.varint()?
        };
        let at = self.skip(len)?;
        Ok(StreamData { stream, offset, at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(plaintext: &[u8]) -> Result<Vec<StreamData>, FrameError> {
        let mut found = Vec::new();
        stream_data(plaintext, |data| found.push(data))?;
        Ok(found)
    }

    #[test]
    fn stream_data_is_found_between_other_frames() {
        let plaintext = [
            0x02, 5, 0, 1, 0, 2, 3, // ACK with two ranges
            0x0e, 4, 0x40, 100, 2, 7, 7,    // STREAM 4 at 100, two bytes
            0x01, // PING
            0x08, 8, 9, 9, 9, // STREAM 8 at 0, to the end
        ];
        let found = parse(&plaintext).expect("frames are known");
        let data = |stream, offset, at| StreamData { stream, offset, at };
        assert_eq!(found, [data(4, 100, 12..14), data(8, 0, 17..20)]);
    }

    #[test]
    fn a_packet_is_looked_through_for_fragments_and_acknowledgments() {
        let plaintext = [
            0x02, 9, 0, 0, 0, // ACK
            0x0e, 4, 0x40, 100, 2, 7, 7, // STREAM with two bytes
            0x06, 0, 1, 7, // CRYPTO
            0x0e, 4, 0, 3, 7, 7, 7,    // STREAM with three
            0x01, // PING
            0x21, // unknown
            0x06, 0, 1, 7,
        ];
        for (short_bytes, fragments) in [(2, 1), (3, 2), (4, 3)] {
            let looked = look_through(&plaintext, short_bytes, |_| {});
            let acknowledged = Some(9);
            let wanted = Looked {
                fragments,
                acknowledged,
            };
            assert_eq!(looked, wanted);
        }
        assert!(is_ack_only(&plaintext[..5]));
        for other in [&[][..], &plaintext[..4], &plaintext[..12], &plaintext[5..]] {
            assert!(!is_ack_only(other), "{other:?}");
        }
    }

    #[test]
    fn a_probe_does_no_more_than_probe() {
        let challenge = [0x1a, 1, 2, 3, 4, 5, 6, 7, 8];
        let response = [0x1b, 8, 7, 6, 5, 4, 3, 2, 1];
        let padding = [0; 20];
        let token = Some([1, 2, 3, 4, 5, 6, 7, 8]);
        let id = [&[0x18, 1, 0, 2, 9, 9][..], &[7; 16]].concat();
        let ping = [0x01];
        for (frames, wanted) in [
            ([&challenge[..], &padding], Some(token)),
            ([&challenge, &response], Some(token)),
            ([&response, &padding], Some(None)),
            ([&id, &padding], Some(None)),
            ([&ping, &challenge], None),
            ([&challenge, &ping], None),
            // A frame that extends past the end.
            ([&challenge, &response[..8]], None),
        ] {
            let probe = probe(&frames.concat());
            assert_eq!(probe.map(|probe| probe.challenge), wanted, "{frames:?}");
        }
        let plaintext = [&ping[..], &response, &padding].concat();
        assert!(answers(&plaintext, [8, 7, 6, 5, 4, 3, 2, 1]));
        assert!(!answers(&plaintext, [8, 7, 6, 5, 4, 3, 2, 2]));
        assert!(!answers(&challenge, [1, 2, 3, 4, 5, 6, 7, 8]));
    }

    #[test]
    fn what_is_not_known_or_not_whole_is_refused() {
        assert_eq!(parse(&[0x20]), Err(FrameError::UnknownType(0x20)));
        assert_eq!(parse(&[0x40, 0xff]), Err(FrameError::UnknownType(0xff)));
        for truncated in [
            &[0x0e, 4, 0, 3, 1][..],
            &[0x06, 0],
            &[0x18, 1, 0, 8],
            &[0xc0],
        ] {
            assert_eq!(
                parse(truncated),
                Err(FrameError::Truncated),
                "{truncated:?}"
            );
        }
        // A count too large for any packet stops at the packet's end.
        let absurd = [
            0x02, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0,
        ];
        assert_eq!(parse(&absurd), Err(FrameError::Truncated));
    }

    /// A frame type new in quinn-proto must be added here first.
    #[test]
    fn every_frame_type_of_the_engine_is_known() {
        let source = engine_source("src/frame.rs");
        let types = source
            .split("frame_types! {\n")
            .nth(1)
            .and_then(|rest| rest.split("\n}").next())
            .expect("quinn-proto lists its frame types");
        let mut kinds: Vec<u64> = types
            .lines()
            .filter_map(|line| line.split_once("= 0x"))
            .map(|(_, number)| hexadecimal(number.trim_end_matches(',')))
            .collect();
        assert_eq!(kinds.len(), 25, "{types}");
        for range in ["STREAM_TYS", "DATAGRAM_TYS"] {
            let line = source
                .lines()
                .find(|line| line.starts_with(&format!("const {range}: RangeInclusive")))
                .expect("quinn-proto has ranges of frame types");
            let bounds = line.split("0x").skip(1);
            let bounds: Vec<u64> = bounds
                .map(|bound| hexadecimal(bound.split([',', ')']).next().unwrap_or_default()))
                .collect();
            kinds.extend(bounds[0]..=bounds[1]);
        }
        for kind in kinds {
            let mut plaintext = vec![0x40 | (kind >> 8) as u8, kind as u8];
            plaintext.extend([0; 64]);
            assert!(
                parse(&plaintext).is_ok(),
                "frame type {kind:#x} is not known"
            );
        }
    }

    fn hexadecimal(digits: &str) -> u64 {
        u64::from_str_radix(digits, 16).unwrap_or_else(|error| panic!("{digits}: {error}"))
    }

    /// A source file of the quinn-proto that this crate is built with.
    fn engine_source(path: &str) -> String {
        let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let output = std::process::Command::new(env!("CARGO"))
            .args(["metadata", "--format-version=1", "--offline", "--locked"])
            .args(["--filter-platform", &platform])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .expect("cargo runs");
        assert!(output.status.success(), "{output:?}");
        let metadata: serde_json::Value =
            serde_json::from_slice(&output.stdout).expect("cargo writes JSON");
        let packages = metadata["packages"].as_array().expect("packages");
        let engines: Vec<_> = packages
            .iter()
            .filter(|package| package["name"] == "quinn-proto")
            .collect();
        assert_eq!(engines.len(), 1, "one version of quinn-proto");
        let manifest = engines[0]["manifest_path"].as_str().expect("a path");
        let root = std::path::Path::new(manifest).parent().expect("a folder");
        std::fs::read_to_string(root.join(path)).expect("sources of dependencies are there")
    }
}
