//! Content of files.

/// Returns the byte of a file at `offset`. Tests name files by a number, which often is their size.
pub fn content(file: u64, offset: u64) -> u8 {
    let word = (offset / 8 + file).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (word ^ (word >> 29)).to_le_bytes()[(offset % 8) as usize]
}
