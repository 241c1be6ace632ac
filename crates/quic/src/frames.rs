//! The frames of a 1-RTT packet (RFC 9000 §19, and the ACK frequency extension): where stream data
//! lies in a plaintext.
//!
//! It knows every type that the engine's QUIC can write, and refuses all others: a packet that is
//! not understood to its last byte may hold placeholders that are not found.

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

/// Why a plaintext is not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameError {
    /// No frame of this type is known.
    UnknownType(u64),
    /// A frame goes on behind the end of the packet.
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

/// Reads numbers and lengths (RFC 9000 §16).
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// What a place that was read holds.
    pub(crate) fn bytes(&self, at: Range<usize>) -> &'a [u8] {
        &self.bytes[at]
    }

    /// Skips all bytes of zero that follow: how many.
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
        // The first two bits are the length.
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

    /// A length, and as many bytes.
    pub(crate) fn counted(&mut self) -> Result<Range<usize>, FrameError> {
        let len = self.varint()?;
        self.skip(len)
    }
}

/// Calls `found` with each piece of stream data, in order.
pub(crate) fn stream_data(
    plaintext: &[u8],
    mut found: impl FnMut(StreamData),
) -> Result<(), FrameError> {
    let mut reader = Reader::new(plaintext);
    while !reader.is_at_end() {
        let kind = reader.varint()?;
        match kind {
            // PADDING: most often as much as fits.
            0x00 => {
                reader.skip_zeros();
            }
            // PING, HANDSHAKE_DONE, IMMEDIATE_ACK
            0x01 | 0x1e | 0x1f => {}
            // ACK
            0x02 | 0x03 => {
                reader.varints(2)?;
                let ranges = reader.varint()?;
                reader.varint()?;
                reader.varints(ranges.saturating_mul(2))?;
                if kind == 0x03 {
                    reader.varints(3)?;
                }
            }
            // RESET_STREAM
            0x04 => reader.varints(3)?,
            // STOP_SENDING, MAX_STREAM_DATA, STREAM_DATA_BLOCKED
            0x05 | 0x11 | 0x15 => reader.varints(2)?,
            // CRYPTO
            0x06 => {
                reader.varint()?;
                reader.counted()?;
            }
            // NEW_TOKEN
            0x07 => {
                reader.counted()?;
            }
            0x08..=0x0f => found(reader.stream(kind)?),
            // MAX_DATA, MAX_STREAMS, DATA_BLOCKED, STREAMS_BLOCKED, RETIRE_CONNECTION_ID
            0x10 | 0x12..=0x14 | 0x16 | 0x17 | 0x19 => reader.varints(1)?,
            // NEW_CONNECTION_ID: a connection ID of a counted length, a token of 16 bytes.
            0x18 => {
                reader.varints(2)?;
                let len = reader.skip(1)?;
                reader.skip(u64::from(plaintext[len.start]) + 16)?;
            }
            // PATH_CHALLENGE, PATH_RESPONSE
            0x1a | 0x1b => {
                reader.skip(8)?;
            }
            // CONNECTION_CLOSE of the transport; of the application
            0x1c => {
                reader.varints(2)?;
                reader.counted()?;
            }
            0x1d => {
                reader.varint()?;
                reader.counted()?;
            }
            // DATAGRAM to the packet's end; with a length
            0x30 => reader.at = plaintext.len(),
            0x31 => {
                reader.counted()?;
            }
            // ACK_FREQUENCY
            0xaf => reader.varints(4)?,
            _ => return Err(FrameError::UnknownType(kind)),
        }
    }
    Ok(())
}

impl Reader<'_> {
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
        // A count that no packet can hold ends with the packet.
        let absurd = [
            0x02, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0,
        ];
        assert_eq!(parse(&absurd), Err(FrameError::Truncated));
    }

    /// A type that the engine's QUIC learns to write is to be taught here first.
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

    /// A file of the very quinn-proto that this crate is built with.
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
