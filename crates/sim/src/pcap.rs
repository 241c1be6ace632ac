//! Captures in the classic format of libpcap, with virtual time stamps.

use std::io::{self, Write};

/// LINKTYPE_ETHERNET
const LINK_TYPE: u32 = 1;

/// Longest packet that a capture holds, in bytes.
const SNAP_BYTES_MAX: u32 = 1 << 18;

/// Writes the file's header: microsecond time stamps, version 2.4.
pub(crate) fn write_header(out: &mut dyn Write) -> io::Result<()> {
    let mut header = Vec::with_capacity(24);
    header.extend_from_slice(&0xa1b2_c3d4u32.to_le_bytes());
    header.extend_from_slice(&2u16.to_le_bytes());
    header.extend_from_slice(&4u16.to_le_bytes());
    // Time zone and accuracy, which are unused.
    header.extend_from_slice(&[0; 8]);
    header.extend_from_slice(&SNAP_BYTES_MAX.to_le_bytes());
    header.extend_from_slice(&LINK_TYPE.to_le_bytes());
    out.write_all(&header)
}

/// Writes a frame that was seen `at_us` microseconds after the beginning.
pub(crate) fn write_frame(out: &mut dyn Write, at_us: u64, frame: &[u8]) -> io::Result<()> {
    let len = frame.len() as u32;
    let mut record = Vec::with_capacity(16 + frame.len());
    record.extend_from_slice(&((at_us / 1_000_000) as u32).to_le_bytes());
    record.extend_from_slice(&((at_us % 1_000_000) as u32).to_le_bytes());
    record.extend_from_slice(&len.to_le_bytes());
    record.extend_from_slice(&len.to_le_bytes());
    record.extend_from_slice(frame);
    out.write_all(&record)
}
