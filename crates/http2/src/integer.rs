//! Integers with a prefix (RFC 9204 §4.1.1, RFC 7541 §5.1).

/// Why an integer cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoInteger {
    /// It continues beyond the bytes.
    Partial,
    /// It has more than 62 bits.
    TooLarge,
}

/// The integer in the low `prefix_bits` of the first byte and those after it, and its length.
pub fn read(bytes: &[u8], prefix_bits: u32) -> Result<(u64, usize), NoInteger> {
    let mask = (1 << prefix_bits) - 1;
    let first = u64::from(*bytes.first().ok_or(NoInteger::Partial)?) & mask;
    if first < mask {
        return Ok((first, 1));
    }
    let mut value = first;
    for (at, &byte) in bytes[1..].iter().enumerate() {
        let shift = 7 * at as u32;
        // Nine bytes hold 63 bits: their sum fits in 64.
        if shift > 56 {
            return Err(NoInteger::TooLarge);
        }
        value += u64::from(byte & 0x7f) << shift;
        if value >= 1 << 62 {
            return Err(NoInteger::TooLarge);
        }
        if byte & 0x80 == 0 {
            return Ok((value, at + 2));
        }
    }
    Err(NoInteger::Partial)
}

/// Appends an integer; `pattern` has the high bits of the first byte.
pub fn write(out: &mut Vec<u8>, pattern: u8, prefix_bits: u32, value: usize) {
    let mask = (1_usize << prefix_bits) - 1;
    if value < mask {
        out.push(pattern | value as u8);
        return;
    }
    out.push(pattern | mask as u8);
    write_rest(value - mask, |byte| out.push(byte));
}

/// Writes the bytes after a full prefix.
pub fn write_rest(mut rest: usize, mut put: impl FnMut(u8)) {
    while rest >= 0x80 {
        put(rest as u8 | 0x80);
        rest >>= 7;
    }
    put(rest as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: RFC 7541 §C.1, RFC 9204 §4.1.1
    #[test]
    fn examples_of_the_text() {
        for (value, prefix_bits, bytes) in [
            (10, 5, &[0b01010][..]),
            (1337, 5, &[0b11111, 0b1001_1010, 0b0000_1010]),
            (42, 8, &[0b0010_1010]),
        ] {
            let mut out = Vec::new();
            write(&mut out, 0, prefix_bits, value as usize);
            assert_eq!(out, bytes);
            assert_eq!(read(bytes, prefix_bits), Ok((value, bytes.len())));
        }
    }

    #[test]
    fn what_is_written_is_read() {
        for prefix_bits in 3..=8 {
            for value in (0..2000).chain([1 << 20, 1 << 40, (1 << 62) - 1]) {
                let mut out = Vec::new();
                write(&mut out, 0, prefix_bits, value);
                assert_eq!(read(&out, prefix_bits), Ok((value as u64, out.len())));
                for cut in 0..out.len() {
                    assert_eq!(read(&out[..cut], prefix_bits), Err(NoInteger::Partial));
                }
            }
        }
    }

    /// Covers: RFC 9204 §4.1.1
    #[test]
    fn integers_of_more_than_62_bits_are_refused() {
        let mut out = Vec::new();
        write(&mut out, 0, 3, 1 << 62);
        assert_eq!(read(&out, 3), Err(NoInteger::TooLarge));
        let zeros = [&[0xff][..], &[0x80; 100]].concat();
        assert_eq!(read(&zeros, 8), Err(NoInteger::TooLarge));
        assert_eq!(read(&[0xff; 100], 8), Err(NoInteger::TooLarge));
    }
}
