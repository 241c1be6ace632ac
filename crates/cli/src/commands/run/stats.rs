//! `--stats`: the report on a program's sockets at its end.

use std::fmt::Write as _;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;

use failure::Failure;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use preload::environment::{Counted, TALLY, Tally};

use crate::commands::run::inherited;
use crate::terminal::grouped;

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct Stats {
    tally: Tally,
    /// Memory file that the program inherits.
    file: OwnedFd,
}

impl Stats {
    /// Starts with zero counters.
    pub(crate) fn begin() -> Result<Stats, Failure> {
        let failed = |error: io::Error| Failure::broken("making counters", error);
        let (tally, file) = Tally::create().map_err(failed)?;
        let file = inherited(file).map_err(failed)?;
        Ok(Stats { tally, file })
    }

    /// Has the program of `command` count.
    pub(crate) fn pass_to(&self, command: &mut Command) {
        command.env(TALLY, self.file.as_raw_fd().to_string());
    }

    /// Formats the counters after the program's end; CPU time covers its processes that were waited
    /// for.
    pub(crate) fn table(&self) -> String {
        let usage = getrusage(UsageWho::RUSAGE_CHILDREN);
        let us = |time: TimeVal| time.tv_sec() * 1_000_000 + time.tv_usec();
        let cpu_us = usage.map_or(0, |usage| us(usage.user_time()) + us(usage.system_time()));
        table(|what| self.tally.get(what), cpu_us.unsigned_abs())
    }
}

fn table(count: impl Fn(Counted) -> u64, cpu_us: u64) -> String {
    let (sent, file_bytes) = (count(Counted::Sent), count(Counted::FileBytes));
    let all = sent.saturating_add(file_bytes);
    let share = match all {
        0 => String::new(),
        all => format!("{:.2} %", file_bytes as f64 / all as f64 * 100.0),
    };
    let of = |what| grouped(count(what));
    let rows = [
        ("", "program".to_owned()),
        ("connections accepted", of(Counted::Accepted)),
        ("connections begun", of(Counted::Begun)),
        ("bytes received", of(Counted::Received)),
        ("bytes sent", grouped(all)),
        ("of these offloaded, of files", grouped(file_bytes)),
        ("offloaded share", share),
        ("bytes passed by the NIC stack", of(Counted::Passed)),
        ("listeners left to the kernel", of(Counted::KernelListeners)),
        (
            "connections left to the kernel",
            of(Counted::KernelConnections),
        ),
        (
            "CPU time",
            format!("{}.{} ms", grouped(cpu_us / 1000), cpu_us % 1000 / 100),
        ),
    ];
    let mut text = String::new();
    for (label, cell) in rows {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{label:<36}{cell:>16}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_what_was_offloaded_is_of_all_that_was_sent() {
        let count = |what| match what {
            Counted::Sent => 250_000,
            Counted::FileBytes => 750_000,
            Counted::Accepted => 12,
            _ => 0,
        };
        let text = table(count, 1_234_560);
        let cell = |label: &str| {
            let line = text.lines().find(|line| line.starts_with(label));
            line.expect(label)[36..].trim().to_owned()
        };
        assert_eq!(cell("connections accepted"), "12");
        assert_eq!(cell("bytes sent"), "1,000,000");
        assert_eq!(cell("offloaded share"), "75.00 %");
        assert_eq!(cell("CPU time"), "1,234.5 ms");
        assert!(text.lines().all(|line| line.len() == 52));
        let text = table(|_| 0, 0);
        assert!(text.contains("offloaded share"), "{text}");
    }
}
