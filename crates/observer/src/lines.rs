//! Splits a pipe's byte stream into whole lines.

/// Longest line, in bytes; longer ones are cut.
const LINE_BYTES_MAX: usize = 64 << 10;

/// Bytes after the last line end.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    rest: Vec<u8>,
}

impl Lines {
    /// Appends bytes, and passes all complete lines to `take` at once.
    pub(crate) fn push(&mut self, bytes: &[u8], take: impl FnOnce(&[u8])) {
        self.rest.extend_from_slice(bytes);
        if self.rest.len() > LINE_BYTES_MAX && !self.rest.contains(&b'\n') {
            self.rest.push(b'\n');
        }
        if let Some(end) = self.rest.iter().rposition(|&byte| byte == b'\n') {
            take(&self.rest[..=end]);
            self.rest.drain(..=end);
        }
    }

    /// Passes the rest as a line at the end of the stream.
    pub(crate) fn finish(mut self, take: impl FnOnce(&[u8])) {
        if !self.rest.is_empty() {
            self.rest.push(b'\n');
            take(&self.rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_whole_however_they_arrive() {
        let text = b"one\ntwo, which is longer\n\nand an end without a line's";
        for size in 1..text.len() {
            let (mut lines, mut taken) = (Lines::default(), Vec::new());
            for piece in text.chunks(size) {
                lines.push(piece, |whole| {
                    assert!(whole.ends_with(b"\n"));
                    taken.extend_from_slice(whole);
                });
            }
            lines.finish(|rest| taken.extend_from_slice(rest));
            assert_eq!(taken, [&text[..], b"\n"].concat(), "in pieces of {size}");
        }
    }

    #[test]
    fn what_never_ends_is_cut() {
        let mut lines = Lines::default();
        let mut taken = 0;
        for _ in 0..100 {
            lines.push(&[b'x'; 4096], |whole| taken += whole.len());
            assert!(lines.rest.len() <= LINE_BYTES_MAX + 4096);
        }
        assert!(taken > 300_000);
    }
}
