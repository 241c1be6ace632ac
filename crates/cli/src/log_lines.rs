//! How lines reach standard error: whole, and without waiting for it. Where it takes no more, they are counted and lost.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};

static LOST: AtomicU64 = AtomicU64::new(0);

/// Lines of this process that standard error did not take.
pub(crate) fn lost() -> u64 {
    LOST.load(Ordering::Relaxed)
}

/// Writes each line at once.
#[derive(Debug)]
pub(crate) struct LogLines;

impl Write for LogLines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let written = io::stderr().write(line);
        if written.is_err() {
            LOST.fetch_add(1, Ordering::Relaxed);
        }
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
