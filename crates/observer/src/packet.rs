//! Packets from the host process to the observer; they are dropped when the observer is behind.

use std::io::IoSlice;
use std::os::fd::OwnedFd;

use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use server::AccessSink;

use crate::report::{BackendReport, Report};

/// Longest packet, in bytes: a request head is bounded, and so are the records in one packet.
pub const PACKET_BYTES_MAX: usize = 256 << 10;

/// Type of a packet with access records.
const ACCESSES: u8 = 0;

/// Type of a packet with a report, in JSON.
const REPORT: u8 = 1;

/// Type of a packet with backend reports, in JSON.
const BACKENDS: u8 = 2;

/// Type of a packet with a line of the key log.
const KEYS: u8 = 3;

/// The content of a packet.
pub enum Packet<'a> {
    /// Access records, with the number lost so far.
    Accesses {
        /// Records dropped so far.
        lost: u64,
        /// Consecutive records, as read by [`AccessRecord::take`](server::AccessRecord::take).
        records: &'a [u8],
    },
    /// Counters of the host process.
    Report(Report),
    /// Counters of each backend of the proxy.
    Backends(Vec<BackendReport>),
    /// A line of the key log, with the number lost so far.
    Keys {
        /// Lines dropped so far.
        lost: u64,
        /// The line.
        line: &'a [u8],
    },
}

impl<'a> Packet<'a> {
    /// Parses a packet; `None` if it is malformed.
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

/// Encodes a packet with the host process's counters.
pub fn report(report: &Report) -> serde_json::Result<Vec<u8>> {
    let mut packet = vec![REPORT];
    serde_json::to_writer(&mut packet, report)?;
    Ok(packet)
}

/// Encodes a packet with the counters of all backends.
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
    /// Sends a line of the key log; false if it is lost. `lost`: lines lost before.
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
