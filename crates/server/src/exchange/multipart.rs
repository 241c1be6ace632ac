//! `multipart/byteranges`: several ranges of a file as one body (RFC 9110 §14.6, RFC 2046 §5.1).
//!
//! Each part's head is written when its turn comes, so a body of hundreds of parts costs the host
//! its ranges, and no text.

use std::io::Write;
use std::ops::Range;

use crate::exchange::lines;

/// Length of a boundary, in characters; RFC 2046 §5.1.1 permits 70.
const BOUNDARY_BYTES: usize = 32;

/// The rest of a multipart body, from the next part on.
#[derive(Debug)]
pub(crate) struct Multipart {
    boundary: [u8; BOUNDARY_BYTES],
    content_type: Box<[u8]>,
    /// Size of the whole file.
    size_bytes: u64,
    /// Ranges of the remaining parts, the last one first.
    later: Vec<Range<u64>>,
}

impl Multipart {
    /// Creates a body of `ranges`, in their order. `boundary` must not occur in the file.
    pub(crate) fn new(
        mut ranges: Vec<Range<u64>>,
        boundary: [u64; 2],
        content_type: Box<[u8]>,
        size_bytes: u64,
    ) -> Self {
        ranges.reverse();
        let mut text = [0; BOUNDARY_BYTES];
        // The text is as long as two numbers.
        let _ = write!(&mut text[..], "{:016x}{:016x}", boundary[0], boundary[1]);
        Multipart {
            boundary: text,
            content_type,
            size_bytes,
            later: ranges,
        }
    }

    pub(crate) fn boundary(&self) -> &[u8] {
        &self.boundary
    }

    /// Memory use, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let ranges_bytes = self.later.capacity() * size_of::<Range<u64>>();
        size_of::<Multipart>() + self.content_type.len() + ranges_bytes
    }

    /// Bytes of the file in the remaining parts.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.later.iter().map(|range| range.end - range.start).sum()
    }

    /// Length of the remaining body, in bytes.
    pub(crate) fn body_bytes(&self) -> u64 {
        let fixed = head_bytes(self.content_type.len(), self.size_bytes);
        let heads = self.later.iter().map(|range| {
            fixed + decimal_bytes(range.start) + decimal_bytes(range.end.saturating_sub(1))
        });
        heads.sum::<u64>() + self.file_bytes() + CLOSE_BYTES
    }

    /// Writes the head of the next part, and returns its range. After the last part, writes the end
    /// of the body.
    pub(crate) fn begin_part(&mut self, out: &mut Vec<u8>) -> Option<Range<u64>> {
        // Before the first delimiter, too, the line break is part of the delimiter (RFC 2046
        // §5.1.1); some clients rely on it.
        out.extend_from_slice(b"\r\n--");
        out.extend_from_slice(&self.boundary);
        let Some(range) = self.later.pop() else {
            out.extend_from_slice(b"--\r\n");
            return None;
        };
        lines::end(out);
        lines::line(out, "Content-Type", &self.content_type);
        lines::line_with(out, "Content-Range", |out| {
            write_content_range(out, &range, self.size_bytes);
        });
        lines::end(out);
        Some(range)
    }
}

/// Length of the end of a body, in bytes.
const CLOSE_BYTES: u64 = ("\r\n----\r\n".len() + BOUNDARY_BYTES) as u64;

/// Length of a part's head but for the two offsets, in bytes.
fn head_bytes(content_type_bytes: usize, size_bytes: u64) -> u64 {
    const FIXED: &str = "\r\n--\r\nContent-Type: \r\nContent-Range: bytes -/\r\n\r\n";
    (FIXED.len() + BOUNDARY_BYTES + content_type_bytes) as u64 + decimal_bytes(size_bytes)
}

/// Longest head of a part of a file of `size_bytes` with such a content type, in bytes.
pub(crate) fn head_bytes_max(content_type_bytes: usize, size_bytes: u64) -> u64 {
    head_bytes(content_type_bytes, size_bytes) + 2 * decimal_bytes(size_bytes)
}

/// Writes the value of `Content-Range`.
pub(crate) fn write_content_range(out: &mut Vec<u8>, range: &Range<u64>, size_bytes: u64) {
    let (first, last) = (range.start, range.end - 1);
    // Writing to a `Vec` cannot fail.
    let _ = write!(out, "bytes {first}-{last}/{size_bytes}");
}

/// Length of a number as text, in bytes.
fn decimal_bytes(number: u64) -> u64 {
    u64::from(number.checked_ilog10().unwrap_or(0)) + 1
}

#[cfg(test)]
#[expect(
    clippy::single_range_in_vec_init,
    reason = "a body of one part is one, too"
)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// The body, with a letter for each byte of the file.
    fn written(mut body: Multipart) -> Vec<u8> {
        let mut out = Vec::new();
        while let Some(range) = body.begin_part(&mut out) {
            out.resize(out.len() + (range.end - range.start) as usize, b'x');
        }
        out
    }

    #[test]
    fn a_body_begins_with_a_line_break_and_its_boundary() {
        let body = Multipart::new(vec![5..7, 0..1], [1, 2], (*b"a/b").into(), 10);
        assert_eq!(
            String::from_utf8(written(body)).unwrap(),
            "\r\n--00000000000000010000000000000002\r\nContent-Type: a/b\r\n\
             Content-Range: bytes 5-6/10\r\n\r\nxx\
             \r\n--00000000000000010000000000000002\r\nContent-Type: a/b\r\n\
             Content-Range: bytes 0-0/10\r\n\r\nx\
             \r\n--00000000000000010000000000000002--\r\n"
        );
    }

    #[test]
    fn the_longest_head_is_that_of_the_last_byte() {
        for size_bytes in [1, 9, 10, 11, 1 << 40, u64::MAX] {
            let last = vec![size_bytes - 1..size_bytes];
            let body = Multipart::new(last, [0, 0], (*b"video/mp4").into(), size_bytes);
            let head_bytes = body.body_bytes() - 1 - CLOSE_BYTES;
            let longest = head_bytes_max("video/mp4".len(), size_bytes);
            assert!(
                (head_bytes..=head_bytes + 2).contains(&longest),
                "{size_bytes}"
            );
        }
    }

    proptest! {
        #[test]
        fn the_length_of_a_body_is_known_in_advance(
            ranges in vec((0..u64::MAX - 300, 1..300u64), 1..20),
            boundary in any::<[u64; 2]>(),
            content_type in vec(b'a'..=b'z', 0..80),
        ) {
            let ranges: Vec<_> = ranges.iter().map(|&(at, len)| at..at + len).collect();
            let body = Multipart::new(ranges, boundary, content_type.into(), u64::MAX);
            let expected = body.body_bytes();
            prop_assert_eq!(written(body).len() as u64, expected);
        }
    }
}
