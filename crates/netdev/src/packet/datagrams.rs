//! Superpackets of datagrams, which the kernel cuts since Linux 6.2, and this port on older ones.

use std::io;

use rustix::io::Errno;

use super::virtio::VirtioNetHeader;
use super::{PacketPort, send_one};
use crate::{Offload, SendError, Superpacket, segment};

/// Datagrams that every kernel with such a cut takes at once (`UDP_MAX_SEGMENTS`: 128 since Linux
/// 6.10).
const KERNEL_DATAGRAMS_MAX: usize = 64;

impl PacketPort {
    /// Sends datagrams that are to be cut.
    pub(super) fn send_datagrams(
        &mut self,
        packet: &Superpacket<'_>,
        virtio: VirtioNetHeader,
    ) -> Result<(), SendError> {
        if !self.cuts_datagrams {
            match send_one(&self.sender, packet, virtio) {
                Err(SendError::Failed(error)) if is_refusal(&error) => {}
                sent => return sent,
            }
        }
        let result = self.send_cut(packet, virtio.gso_size.into());
        let payload: usize = packet.payload.iter().map(|slice| slice.len()).sum();
        let datagrams = payload.div_ceil(virtio.gso_size.max(1).into());
        // A packet with more may have been refused for their number.
        self.cuts_datagrams |= result.is_ok() && datagrams <= KERNEL_DATAGRAMS_MAX;
        result
    }

    /// Sends each datagram as a packet of its own. If the port is busy when some have left, the
    /// others are dropped, as by a full queue: to offer the superpacket again would repeat the
    /// first.
    fn send_cut(&self, packet: &Superpacket<'_>, payload_bytes: usize) -> Result<(), SendError> {
        let mut sent = 0;
        let mut result = Ok(());
        let header = packet.header;
        let cut = segment::cut_datagrams(header, packet.payload, payload_bytes, |frame| {
            if result.is_err() {
                return;
            }
            let complete = Superpacket {
                header: &frame,
                payload: &[],
                offload: Offload::None,
            };
            result = match send_one(&self.sender, &complete, VirtioNetHeader::default()) {
                Err(SendError::WouldBlock) if sent > 0 => Err(SendError::Dropped),
                result => result,
            };
            sent += 1;
        });
        cut.map_err(|error| SendError::Failed(io::Error::new(io::ErrorKind::InvalidInput, error)))?;
        result
    }
}

/// True if the kernel does not know such packets, or takes fewer datagrams in one.
fn is_refusal(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::INVAL.raw_os_error())
}
