//! Content of the files: a function of the file's number and the offset, so that no content is
//! stored.

fn word(file: usize, index: u64) -> u64 {
    let mix = ((file as u64 + 1) << 48 ^ index).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mix ^ (mix >> 29)
}

/// Writes the bytes of a file from `offset` on into `buffer`.
pub(crate) fn fill(file: usize, offset: u64, buffer: &mut [u8]) {
    let mut at = offset;
    let mut rest = buffer;
    while !rest.is_empty() {
        let skipped = (at % 8) as usize;
        let bytes = &word(file, at / 8).to_le_bytes()[skipped..];
        let len = bytes.len().min(rest.len());
        let (now, later) = rest.split_at_mut(len);
        now.copy_from_slice(&bytes[..len]);
        at += len as u64;
        rest = later;
    }
}

/// Returns the offset in `bytes` at which they first differ from the file; `None` if they do not.
pub(crate) fn first_difference(file: usize, offset: u64, bytes: &[u8]) -> Option<usize> {
    let mut expected = [0; 512];
    for (chunk, number) in bytes.chunks(expected.len()).zip(0..) {
        let start = number * expected.len();
        let expected = &mut expected[..chunk.len()];
        fill(file, offset + start as u64, expected);
        if chunk != expected {
            let differs = chunk.iter().zip(&*expected).position(|(a, b)| a != b);
            return differs.map(|at| start + at);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_does_not_depend_on_how_it_is_cut() {
        let mut whole = vec![0; 3000];
        fill(7, 0, &mut whole);
        for (start, end) in [(0, 1), (5, 9), (8, 16), (13, 2999), (1000, 3000)] {
            let mut piece = vec![0; end - start];
            fill(7, start as u64, &mut piece);
            assert_eq!(piece, whole[start..end]);
            assert_eq!(first_difference(7, start as u64, &piece), None);
        }
        whole[2500] ^= 1;
        assert_eq!(first_difference(7, 0, &whole), Some(2500));
    }

    #[test]
    fn files_and_places_differ() {
        let bytes = |file, offset| {
            let mut bytes = [0; 64];
            fill(file, offset, &mut bytes);
            bytes
        };
        assert_ne!(bytes(0, 0), bytes(1, 0));
        assert_ne!(bytes(0, 0), bytes(0, 64));
        assert_ne!(bytes(0, 0), bytes(0, 65_536));
    }
}
