//! What the host process sends to the observer, and how: packets that are dropped when the observer
//! is behind.

use std::io::IoSlice;
use std::os::fd::OwnedFd;

use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use server::AccessSink;

use crate::report::{BackendReport, Report};

/// Longest packet, in bytes: a request's head is bounded, and so are those that share a packet with
/// it.
pub const PACKET_BYTES_MAX: usize = 256 << 10;

/// Before records of accesses.
const ACCESSES: u8 = 0;

/// Before a report in JSON.
const REPORT: u8 = 1;

/// Before reports on backends in JSON.
const BACKENDS: u8 = 2;

/// Before a line of the key log.
const KEYS: u8 = 3;

/// What a packet holds.
pub enum Packet<'a> {
    /// Records of accesses, and how many so far are in no packet, nor will be.
    Accesses {
        /// Records that were dropped so far.
        lost: u64,
        /// One after the other, as [`AccessRecord::take`](server::AccessRecord::take) reads them.
        records: &'a [u8],
    },
    /// What the host process has counted.
    Report(Report),
    /// What it has counted of each backend of its proxy.
    Backends(Vec<BackendReport>),
    /// A line of the key log, and how many so far are in no packet, nor will be.
    Keys {
        /// Lines that were dropped so far.
        lost: u64,
        /// The line.
        line: &'a [u8],
    },
}

impl<'a> Packet<'a> {
    /// Parses a packet; `None` if it makes no sense.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        match bytes.split_first()? {
            (&ACCESSES, rest) => {
                let (lost, records) = rest.split_first_chunk()?;
                let lost = u64::from_le_bytes(*lost);
                Some(Self::Accesses { lost, records })
            }
            (&REPORT, rest) => serde_json::from_slice(rest).ok().map(Self::Report),
            (&KEYS, rest) => {
                let (lost, line) = rest.split_first_chunk()?;
                let lost = u64::from_le_bytes(*lost);
                Some(Self::Keys { lost, line })
            }
            (&BACKENDS, rest) => serde_json::from_slice(rest).ok().map(Self::Backends),
            _ => None,
        }
    }
}

/// A packet with what the host process has counted.
pub fn report(report: &Report) -> serde_json::Result<Vec<u8>> {
    let mut packet = vec![REPORT];
    serde_json::to_writer(&mut packet, report)?;
    Ok(packet)
}

/// A packet with what the host process has counted of all backends of its proxy.
pub fn backends(reports: &[BackendReport]) -> serde_json::Result<Vec<u8>> {
    let mut packet = vec![BACKENDS];
    serde_json::to_writer(&mut packet, reports)?;
    Ok(packet)
}

/// The host process's end of the socket to the observer.
#[derive(Debug)]
pub struct SocketSink(pub OwnedFd);

impl AccessSink for SocketSink {
    fn take(&mut self, packet: &[u8], lost: u64) -> bool {
        self.send(ACCESSES, lost, packet)
    }
}

impl SocketSink {
    /// Takes a line of the key log; false if it is lost. `lost`: how many were before.
    pub fn take_keys(&self, line: &[u8], lost: u64) -> bool {
        self.send(KEYS, lost, line)
    }

    fn send(&self, kind: u8, lost: u64, packet: &[u8]) -> bool {
        let (kind, lost) = ([kind], lost.to_le_bytes());
        let parts = [&kind[..], &lost, packet].map(IoSlice::new);
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(&self.0, &parts, &mut SendAncillaryBuffer::default(), flags).is_ok()
    }
}
