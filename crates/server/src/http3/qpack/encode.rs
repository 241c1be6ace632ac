//! Encodes field sections with indices of the static table and literals (RFC 9204 §4.5).

use crate::http3::qpack::integer;
use crate::http3::qpack::static_table::{STATIC_TABLE, named};

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
