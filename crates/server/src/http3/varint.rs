//! Variable-length integers (RFC 9000 §16).

/// Largest value.
pub(crate) const MAX: u64 = (1 << 62) - 1;

/// Reads an integer at the front of `bytes`; returns its length too. `None` if it is incomplete.
pub(crate) fn read(bytes: &[u8]) -> Option<(u64, usize)> {
    let &first = bytes.first()?;
    let length = 1 << (first >> 6);
    let rest = bytes.get(1..length)?;
    let value = rest.iter().fold(u64::from(first & 0x3f), |value, &byte| {
        value << 8 | u64::from(byte)
    });
    Some((value, length))
}

/// Appends an integer of at most [`MAX`].
pub(crate) fn write(out: &mut Vec<u8>, value: u64) {
    debug_assert!(value <= MAX);
    let bytes = value.to_be_bytes();
    match value {
        0..0x40 => out.push(bytes[7]),
        0x40..0x4000 => out.extend_from_slice(&[bytes[6] | 0x40, bytes[7]]),
        0x4000..0x4000_0000 => {
            out.push(bytes[4] | 0x80);
            out.extend_from_slice(&bytes[5..]);
        }
        _ => {
            out.push(bytes[0] | 0xc0);
            out.extend_from_slice(&bytes[1..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: RFC 9000 §A.1
    #[test]
    fn examples_of_the_text() {
        for (bytes, value) in [
            (
                &[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c][..],
                151_288_809_941_952_652,
            ),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
        ] {
            assert_eq!(read(bytes), Some((value, bytes.len())));
            let mut out = Vec::new();
            write(&mut out, value);
            assert_eq!(out, bytes);
            for cut in 0..bytes.len() {
                assert_eq!(read(&bytes[..cut]), None);
            }
        }
        assert_eq!(
            read(&[0x40, 0x25, 9]),
            Some((37, 2)),
            "not the shortest form"
        );
    }

    /// Covers: RFC 9000 §16
    #[test]
    fn what_is_written_is_read() {
        for bits in 0..62 {
            for value in [(1 << bits) - 1, 1 << bits, MAX >> bits] {
                let mut out = Vec::new();
                write(&mut out, value);
                assert_eq!(read(&out), Some((value, out.len())));
            }
        }
    }
}
