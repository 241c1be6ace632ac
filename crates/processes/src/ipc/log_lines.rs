//! Writes log lines to standard error, whole and without blocking. If standard error has no room,
//! lines are dropped and counted.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use config::log_level::LogLevel;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Registry, reload};

static LOST: AtomicU64 = AtomicU64::new(0);

/// Returns the number of lines of this process that standard error did not take.
pub fn lost() -> u64 {
    LOST.load(Ordering::Relaxed)
}

/// Longest write to a pipe that is atomic (`PIPE_BUF`, pipe(7)), in bytes.
const LINE_BYTES_MAX: usize = 4096;

/// Returns the line, truncated to the length of an atomic write.
fn fitting(line: &[u8]) -> Cow<'_, [u8]> {
    const CUT: &[u8] = "…\n".as_bytes();
    if line.len() <= LINE_BYTES_MAX {
        return line.into();
    }
    let mut end = LINE_BYTES_MAX - CUT.len();
    // Not within a UTF-8 character.
    while end > 0 && line[end] & 0xc0 == 0x80 {
        end -= 1;
    }
    [&line[..end], CUT].concat().into()
}

/// Writer of whole lines.
#[derive(Debug)]
pub struct LogLines;

impl Write for LogLines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let whole = io::stderr().write_all(&fitting(line));
        if whole.is_err() {
            LOST.fetch_add(1, Ordering::Relaxed);
        }
        whole.map(|()| line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The log's level, once the log is started.
static LEVEL: OnceLock<reload::Handle<LevelFilter, Registry>> = OnceLock::new();

/// Starts the log of this process on standard error, in colours with `ansi`.
pub fn start(level: LogLevel, ansi: bool) {
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(|| LogLines)
        .with_ansi(ansi)
        // If standard error has no room, a complaint about that has none either.
        .log_internal_errors(false);
    let (filter, handle) = reload::Layer::new(filter(level));
    tracing_subscriber::registry()
        .with(filter)
        .with(lines)
        .init();
    let _ = LEVEL.set(handle);
}

/// Changes the log level of this process, if its log is started.
pub fn set_level(level: LogLevel) {
    let Some(handle) = LEVEL.get() else {
        return;
    };
    match handle.reload(filter(level)) {
        Ok(()) => tracing::info!(%level, "the log level has changed"),
        Err(error) => tracing::warn!(%error, "the log level stays as it is"),
    }
}

fn filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

/// Starts the log of a process that a supervisor has started: in colours on a terminal.
pub fn start_of_process(level: LogLevel) {
    start(level, io::stderr().is_terminal());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_too_long_for_a_pipe_is_cut_and_still_a_line() {
        for (length, character) in [(4096, "x"), (4097, "x"), (9000, "ä"), (9001, "€")] {
            let text = format!("{}\n", character.repeat(length / character.len()));
            let line = fitting(text.as_bytes());
            assert!(line.len() <= LINE_BYTES_MAX);
            let line = std::str::from_utf8(&line).unwrap();
            assert!(line.ends_with('\n'));
            if text.len() > LINE_BYTES_MAX {
                assert!(line.ends_with("…\n") && line.len() > LINE_BYTES_MAX - 8);
            } else {
                assert_eq!(line, text);
            }
        }
    }
}
