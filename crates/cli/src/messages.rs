//! What a child tells its supervisor: one JSON object per line on its standard output.

use nix::sys::resource::{UsageWho, getrusage};
use serde::{Deserialize, Serialize};

use failure::Failure;
use sandbox::lockdown::LockedOut;

/// A line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Message {
    /// The host stack answers on the link, and is locked out of the file system.
    HostReady(LockedOut),
    /// The NIC stack takes commands.
    NicReady {
        /// Number of workers.
        workers: usize,
    },
    /// The fetcher takes wishes.
    FetcherReady,
    /// The host stack uses what was passed to it as the NIC stack of this number, the how manieth time, from 1.
    NicJoined(usize, u64),
    /// The host stack does not use it, for this reason.
    NicRefused(usize, u64, String),
    /// The host stack has lost it, in this way.
    NicLost(usize, u64, String),
    /// The host stack misses the heartbeat of the one that it uses: of this worker.
    NicSilent(usize, u64, usize),
    /// The host process uses from now on what was passed to it first, with so many certificates.
    Reloaded(usize),
    /// The host process goes on with what it has, for this reason.
    ReloadRefused(String),
    /// The host process has taken leave of all connections, as it was told.
    Drained,
    /// The process does its work: it was asked.
    Turning,
    /// What a worker of a NIC process has counted so far.
    Counting(usize, Report),
    /// What the fetcher has counted so far: of an origin, by its URL, or of all.
    Fetched(Option<String>, Report),
    /// The observer takes in what is said.
    ObserverReady,
    /// The observer writes to the file that it was given for a log.
    LogChanged,
    /// Hosts may come in, at this address on the control link.
    DoorOpen(String),
    /// The host at this address has been let in, the how manieth, and needs a NIC process.
    GuestCame(u8, String),
    /// It has gone; this is what its session has counted.
    GuestGone(u8, Report),
    /// The child ends because of this.
    Failed(Failure),
    /// The child ends in order; this is what it did.
    Report(Report),
}

/// What a process did in its life.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Counters of the stack, in its own order.
    pub(crate) counters: Vec<(String, u64)>,
    /// CPU time in user mode, in microseconds.
    pub(crate) cpu_user_us: u64,
    /// CPU time in the kernel, in microseconds.
    pub(crate) cpu_system_us: u64,
    /// Largest resident set, in bytes.
    pub(crate) memory_bytes_max: u64,
}

impl Report {
    /// A report on the calling process, so far.
    pub(crate) fn now(counters: Vec<(String, u64)>) -> Self {
        let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else {
            return Self {
                counters,
                ..Self::default()
            };
        };
        let micros = |seconds: i64, micros: i64| {
            u64::try_from(seconds.saturating_mul(1_000_000).saturating_add(micros)).unwrap_or(0)
        };
        Self {
            counters,
            cpu_user_us: micros(usage.user_time().tv_sec(), usage.user_time().tv_usec()),
            cpu_system_us: micros(usage.system_time().tv_sec(), usage.system_time().tv_usec()),
            memory_bytes_max: u64::try_from(usage.max_rss())
                .unwrap_or(0)
                .saturating_mul(1024),
        }
    }

    /// Adds what another process did in the same place.
    pub(crate) fn absorb(&mut self, other: &Self) {
        for (name, value) in &other.counters {
            match self.counters.iter_mut().find(|(own, _)| own == name) {
                Some((_, sum)) => *sum = sum.saturating_add(*value),
                None => self.counters.push((name.clone(), *value)),
            }
        }
        self.cpu_user_us = self.cpu_user_us.saturating_add(other.cpu_user_us);
        self.cpu_system_us = self.cpu_system_us.saturating_add(other.cpu_system_us);
        self.memory_bytes_max = self.memory_bytes_max.max(other.memory_bytes_max);
    }

    /// The value of a counter; `None` if the stack has no such counter.
    pub(crate) fn counter(&self, name: &str) -> Option<u64> {
        self.counters
            .iter()
            .find(|(own, _)| own == name)
            .map(|(_, value)| *value)
    }
}

impl Message {
    /// Writes the message as a line to standard output, and hands it over at once.
    pub(crate) fn send(&self) -> std::io::Result<()> {
        self.write(std::io::stdout().lock())
    }

    /// Writes it to standard output, which somebody has locked.
    pub(crate) fn write(&self, mut stdout: std::io::StdoutLock<'_>) -> std::io::Result<()> {
        use std::io::Write;
        let mut line = serde_json::to_vec(self).map_err(std::io::Error::other)?;
        line.push(b'\n');
        stdout.write_all(&line)?;
        stdout.flush()
    }
}

/// Cuts lines out of what arrives in pieces.
#[derive(Debug, Default)]
pub(crate) struct LineBuffer {
    bytes: Vec<u8>,
    /// The line that is arriving is dropped.
    is_too_long: bool,
}

/// Longest message, in bytes: twice what the fetcher's longest report takes.
const LINE_BYTES_MAX: usize = 128 << 10;

impl LineBuffer {
    /// Adds what has arrived. A line longer than any message is dropped as it arrives, so that a child
    /// cannot make its supervisor hold more.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        if self.is_too_long {
            let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
                return;
            };
            self.is_too_long = false;
            rest = &rest[end + 1..];
        }
        self.bytes.extend_from_slice(rest);
        let last = self.bytes.iter().rposition(|byte| *byte == b'\n');
        let begun = last.map_or(0, |end| end + 1);
        if self.bytes.len() - begun > LINE_BYTES_MAX {
            self.bytes.truncate(begun);
            self.bytes
                .extend_from_slice(b"a line that is too long for a message\n");
            self.is_too_long = true;
        }
    }

    /// The next complete line, as a message; a line that is none comes back as it is.
    pub(crate) fn next_message(&mut self) -> Option<Result<Message, String>> {
        let end = self.bytes.iter().position(|byte| *byte == b'\n')?;
        let line: Vec<u8> = self.bytes.drain(..=end).take(end).collect();
        Some(serde_json::from_slice(&line).map_err(|_| String::from_utf8_lossy(&line).into_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_being_cut_anywhere() {
        let messages = [
            Message::NicReady { workers: 2 },
            Message::Failed(Failure::input("port", "in \"use\"\nreally").remedy("wait")),
            Message::Report(Report {
                counters: vec![("sends".into(), 7)],
                ..Report::now(Vec::new())
            }),
        ];
        let mut bytes = Vec::new();
        for message in &messages {
            bytes.extend(serde_json::to_vec(message).unwrap());
            bytes.push(b'\n');
        }
        for piece in 1..bytes.len() {
            let (mut buffer, mut received) = (LineBuffer::default(), Vec::new());
            for bytes in bytes.chunks(piece) {
                buffer.push(bytes);
                received.extend(std::iter::from_fn(|| buffer.next_message()).map(Result::unwrap));
            }
            assert_eq!(received, messages, "in pieces of {piece} bytes");
        }
    }

    #[test]
    fn a_line_that_is_no_message_does_not_hide_the_next() {
        let mut buffer = LineBuffer::default();
        buffer.push(b"warning: something\n{\"nic_ready\":{\"workers\":1}}\n{\"nic");
        assert_eq!(
            buffer.next_message(),
            Some(Err("warning: something".to_owned()))
        );
        assert_eq!(
            buffer.next_message(),
            Some(Ok(Message::NicReady { workers: 1 }))
        );
        assert_eq!(buffer.next_message(), None);
    }

    #[test]
    fn a_line_without_end_takes_bounded_memory_and_hides_no_message() {
        let mut buffer = LineBuffer::default();
        for _ in 0..1_000 {
            buffer.push(&[b'x'; 4096]);
            assert!(buffer.bytes.len() <= LINE_BYTES_MAX + 4096);
        }
        buffer.push(b"\n{\"nic_ready\":{\"workers\":1}}\n");
        assert!(matches!(buffer.next_message(), Some(Err(_))));
        assert_eq!(
            buffer.next_message(),
            Some(Ok(Message::NicReady { workers: 1 }))
        );
        assert_eq!(buffer.next_message(), None);
    }

    #[test]
    fn what_two_processes_did_adds_up() {
        let mut sum = Report {
            counters: vec![("opens".into(), 3)],
            cpu_user_us: 5,
            memory_bytes_max: 100,
            ..Report::default()
        };
        sum.absorb(&Report {
            counters: vec![("opens".into(), 4), ("closes".into(), 1)],
            cpu_user_us: 7,
            memory_bytes_max: 60,
            ..Report::default()
        });
        assert_eq!(
            (sum.counter("opens"), sum.counter("closes")),
            (Some(7), Some(1))
        );
        assert_eq!((sum.cpu_user_us, sum.memory_bytes_max), (12, 100));
    }

    #[test]
    fn a_counter_is_found_by_name() {
        let report = Report::now(vec![("opens".into(), 3)]);
        assert_eq!(report.counter("opens"), Some(3));
        assert_eq!(report.counter("closes"), None);
        assert!(report.memory_bytes_max > 0);
    }
}
