//! What the host process sends to the observer, and how: packets that are dropped when the observer is behind.

use std::io::IoSlice;
use std::os::fd::OwnedFd;

use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use server::AccessSink;

/// Longest packet, in bytes: a request's head is bounded, and so are those that share a packet with it.
pub(crate) const PACKET_BYTES_MAX: usize = 256 << 10;

/// Records of accesses.
pub(crate) struct Packet<'a> {
    /// Records so far that are in no packet, and will be in none.
    pub(crate) lost: u64,
    pub(crate) records: &'a [u8],
}

impl<'a> Packet<'a> {
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (lost, records) = bytes.split_first_chunk()?;
        let lost = u64::from_le_bytes(*lost);
        Some(Self { lost, records })
    }
}

/// The host process's end of the socket to the observer.
#[derive(Debug)]
pub(crate) struct SocketSink(pub(crate) OwnedFd);

impl AccessSink for SocketSink {
    fn take(&mut self, packet: &[u8], lost: u64) -> bool {
        let lost = lost.to_le_bytes();
        let parts = [IoSlice::new(&lost), IoSlice::new(packet)];
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(&self.0, &parts, &mut SendAncillaryBuffer::default(), flags).is_ok()
    }
}
