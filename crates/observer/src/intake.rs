//! Receives records and reports of the host process, and log lines of all processes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, recv};
use server::AccessRecord;

use crate::access_format::AccessFormat;
use crate::format::{self, Clock};
use crate::lines::Lines;
use crate::log_file::LogFile;
use crate::metrics::Metrics;
use crate::packet::{PACKET_BYTES_MAX, Packet};

/// Least time between two reports of losses.
const LOSS_PAUSE: Duration = Duration::from_secs(10);

/// Waits until `source` is readable; false if only `stop` is.
///
/// # Errors
///
/// Those of poll(2).
pub fn wait(source: impl AsFd, stop: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    let mut fds = [
        PollFd::new(&source, PollFlags::IN),
        PollFd::from_borrowed_fd(stop, PollFlags::IN),
    ];
    retry_on_intr(|| poll(&mut fds, None))?;
    Ok(!fds[0].revents().is_empty() || fds[1].revents().is_empty())
}

/// Like [`wait`], but false if waiting fails.
pub(crate) fn wait_or_stop(source: BorrowedFd<'_>, stop: BorrowedFd<'_>) -> bool {
    wait(source, stop).unwrap_or(false)
}

/// Destinations of records.
#[derive(Clone, Copy, Debug)]
pub struct Logs<'a> {
    /// The access log.
    pub access: Option<&'a LogFile>,
    /// Format of the access log's lines.
    pub format: AccessFormat,
    /// The key log.
    pub keys: Option<&'a LogFile>,
}

/// Receives packets of the host process, until `stop` is readable and none are left.
pub fn receive_records(records: &OwnedFd, stop: BorrowedFd<'_>, logs: Logs<'_>, metrics: &Metrics) {
    let mut buffer = vec![0; PACKET_BYTES_MAX];
    let mut lines = Vec::new();
    let mut losses = Losses::of("accesses are in no log");
    let mut key_losses = Losses::of("secrets are not in the key log");
    while let Ok(true) = wait(records, stop) {
        let received = retry_on_intr(|| recv(records, &mut buffer[..], RecvFlags::DONTWAIT));
        let packet = match received {
            Ok((_, length)) if length > 0 => &buffer[..length],
            Err(Errno::AGAIN) => continue,
            // The supervisor holds the other end, too: it is gone.
            _ => return,
        };
        let mut records = match Packet::parse(packet) {
            Some(Packet::Accesses { lost, records }) => {
                metrics.on_sign_of_life();
                losses.note(lost);
                records
            }
            Some(Packet::Report(report)) => {
                metrics.on_host(report);
                continue;
            }
            Some(Packet::Keys { lost, line }) => {
                key_losses.note(lost);
                if let Some(log) = logs.keys {
                    log.push(line);
                }
                continue;
            }
            Some(Packet::Backends(reports)) => {
                metrics.on_backends(reports);
                continue;
            }
            None => {
                tracing::warn!("the host process sent an invalid message");
                continue;
            }
        };
        let clock = Clock::now();
        lines.clear();
        while let Some((record, rest)) = AccessRecord::take(records) {
            metrics.on_access(&record);
            if logs.access.is_some() {
                format::write(logs.format, clock, &record, &mut lines);
            }
            records = rest;
        }
        if let Some(log) = logs.access {
            log.push(&lines);
        }
    }
}

/// Records that the host process dropped because the observer was behind.
#[derive(Debug)]
struct Losses {
    what: &'static str,
    told: u64,
    told_at: Option<Instant>,
}

impl Losses {
    fn of(what: &'static str) -> Self {
        Self {
            what,
            told: 0,
            told_at: None,
        }
    }

    fn note(&mut self, lost: u64) {
        let is_late = |at: Instant| at.elapsed() >= LOSS_PAUSE;
        if lost > self.told && self.told_at.is_none_or(is_late) {
            let more = lost - self.told;
            let what = self.what;
            tracing::warn!("{more} more {what}: so many at once could not be written");
            (self.told, self.told_at) = (lost, Some(Instant::now()));
        }
    }
}

/// Receives the log lines of all processes, until `stop` is readable and none are left.
pub fn receive_errors(errors: &OwnedFd, stop: BorrowedFd<'_>, log: &LogFile) {
    let mut buffer = vec![0; 64 << 10];
    let mut lines = Lines::default();
    while let Ok(true) = wait(errors, stop) {
        match retry_on_intr(|| rustix::io::read(errors, &mut buffer[..])) {
            Ok(length) if length > 0 => lines.push(&buffer[..length], |whole| log.push(whole)),
            Err(Errno::AGAIN) => {}
            _ => break,
        }
    }
    lines.finish(|rest| log.push(rest));
}
