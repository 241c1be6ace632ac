//! Encodes field sections with indices of the static table and literals (RFC 9204 §4.5).

use crate::http3::qpack::static_table::{STATIC_TABLE, named};
use http2::field::FIELD_BYTES;
use http2::integer;

/// Begins a field section without a dynamic table (RFC 9204 §4.5.1).
pub(crate) fn begin(out: &mut Vec<u8>) {
    out.extend_from_slice(&[0, 0]);
}

/// Appends a field whose value `write` appends. Capitals in names become lower case.
pub(crate) fn field_with(out: &mut Vec<u8>, name: &str, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    match named(name).next() {
        // Literal Field Line with Name Reference: 0b01, N set or not, static.
        Some(index) => integer::write(out, 0b0101_0000, 4, index.into()),
        // Literal Field Line with Literal Name: 0b001, N set or not, not coded.
        None => {
            integer::write(out, 0b0010_0000, 3, name.len());
            out.extend(name.bytes().map(|byte| byte.to_ascii_lowercase()));
        }
    }
    let length_at = out.len();
    out.push(0);
    write(out);
    let value = &out[length_at + 1..];
    let is_exact = |&index: &u8| STATIC_TABLE[usize::from(index)].1.as_bytes() == value;
    if let Some(index) = named(name).find(is_exact) {
        // Indexed Field Line: 0b1, static.
        out.truncate(start);
        return integer::write(out, 0b1100_0000, 6, index.into());
    }
    set_length(out, length_at);
}

/// Largest ratio of a field section's size to its encoded length.
pub(crate) const EXPANSION_MAX: usize = 128;

/// The size of a field section of this module as peers limit it (RFC 9114 §4.2.2).
pub(crate) fn section_bytes(section: &[u8]) -> u64 {
    let mut rest = section.get(2..).unwrap_or_default();
    let mut bytes = 0;
    while let Some(&first) = rest.first() {
        let (name, value) = match first >> 6 {
            0b10 | 0b11 => {
                let (name, value) = STATIC_TABLE[take(&mut rest, 6)];
                (name.len(), value.len())
            }
            0b01 => {
                let name = STATIC_TABLE[take(&mut rest, 4)].0;
                (name.len(), skip(&mut rest, 7))
            }
            _ => (skip(&mut rest, 3), skip(&mut rest, 7)),
        };
        bytes += (name + value + FIELD_BYTES) as u64;
    }
    bytes
}

/// Takes an integer.
fn take(rest: &mut &[u8], prefix_bits: u32) -> usize {
    // `field_with` wrote it, so it is whole.
    let (value, bytes) = integer::read(rest, prefix_bits).unwrap_or((0, rest.len()));
    *rest = &rest[bytes..];
    value as usize
}

/// Skips a string; returns its length.
fn skip(rest: &mut &[u8], prefix_bits: u32) -> usize {
    let length = take(rest, prefix_bits);
    *rest = rest.get(length..).unwrap_or_default();
    length
}

/// Replaces this byte by the length of the uncoded string behind it.
fn set_length(out: &mut Vec<u8>, at: usize) {
    const MASK: usize = 0x7f;
    let length = out.len() - at - 1;
    out[at] = length.min(MASK) as u8;
    if length >= MASK {
        let mut place = at + 1;
        integer::write_rest(length - MASK, |byte| {
            out.insert(place, byte);
            place += 1;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9114 §4.2.2
    #[test]
    fn a_section_has_the_size_of_its_fields() {
        let long = "v".repeat(3000);
        let own = [0, 126, 127, 128, 3000].map(|bytes| ("x-own", &long[..bytes]));
        let named = [("server", "x"), ("X-Of-A-Name-Longer-Than-Its-Prefix", "")];
        let mut all = Vec::new();
        begin(&mut all);
        let mut sum = 0;
        for (name, value) in STATIC_TABLE.into_iter().chain(own).chain(named) {
            let mut one = Vec::new();
            begin(&mut one);
            for out in [&mut one, &mut all] {
                field_with(out, name, |out| out.extend_from_slice(value.as_bytes()));
            }
            let bytes = (name.len() + value.len() + 32) as u64;
            assert_eq!(section_bytes(&one), bytes, "{name}: {value}");
            assert!(bytes <= ((one.len() - 2) * EXPANSION_MAX) as u64, "{name}");
            sum += bytes;
        }
        assert_eq!(section_bytes(&all), sum);
    }
}
