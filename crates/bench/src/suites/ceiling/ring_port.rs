//! The host stack's port: frames in a ring between two processes, of the same make as the
//! contract's.
//! The host's end is that of a NIC stack in the contract, since the host receives many frames and
//! sends few: records are longer in that direction, and the ring is larger.

use std::io;
use std::os::fd::BorrowedFd;

use contract::channel::{NicChannel, NicSide, Side};
use netdev::{Frame, Offload, Port, SendError, Superpacket};
use wire::ethernet;

/// The host's hardware address.
pub(super) const HOST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// Largest IP packet on the wire, in bytes.
const MTU: usize = 1500;

/// See the [module documentation](self).
#[derive(Debug)]
pub(super) struct RingPort {
    channel: NicChannel,
    superpacket_bytes: usize,
    frame: Vec<u8>,
    /// The last poll found nothing, so the wake-up is armed.
    is_armed: bool,
}

impl RingPort {
    /// Returns a port on a link whose NIC segments IP packets of up to `superpacket_bytes` bytes.
    pub(super) fn new(channel: NicChannel, superpacket_bytes: usize) -> RingPort {
        RingPort {
            channel,
            superpacket_bytes,
            frame: Vec::new(),
            is_armed: false,
        }
    }
}

impl Port for RingPort {
    fn mac(&self) -> [u8; 6] {
        HOST_MAC
    }

    fn mtu(&self) -> usize {
        MTU
    }

    fn superpacket_max(&self, _ipv6: bool) -> usize {
        self.superpacket_bytes
    }

    fn send(&mut self, packet: &Superpacket<'_>) -> Result<(), SendError> {
        self.frame.clear();
        self.frame.extend_from_slice(packet.header);
        for slice in packet.payload {
            self.frame.extend_from_slice(slice);
        }
        let ip_bytes = self.frame.len().saturating_sub(ethernet::HEADER_BYTES);
        let is_cut = matches!(packet.offload, Offload::Tcp { .. }) && ip_bytes > MTU;
        if is_cut || self.frame.len() > NicSide::RECORD_BYTES_MAX {
            let why =
                "what has no file bytes and is longer than a handshake's packet is not expected";
            return Err(SendError::Failed(io::Error::new(
                io::ErrorKind::InvalidInput,
                why,
            )));
        }
        self.channel
            .send_record(&self.frame)
            .map_err(|_| SendError::Dropped)?;
        self.channel.flush();
        Ok(())
    }

    fn receive(&mut self, budget: usize, handle: &mut dyn FnMut(Frame<'_>)) -> io::Result<usize> {
        if std::mem::take(&mut self.is_armed) {
            self.channel.finish_sleep();
        }
        let mut received = 0;
        while received < budget {
            let record = self.channel.receive_record();
            let Some(bytes) = record.map_err(|_| corrupt())? else {
                // A consumer that finds nothing may sleep, and must be woken, unless a frame has
                // arrived meanwhile.
                if received == 0 && !self.channel.prepare_sleep_to_carry(true) {
                    continue;
                }
                self.is_armed = received == 0;
                break;
            };
            received += 1;
            // As NICs do, the other side vouches for the checksum.
            handle(Frame {
                bytes,
                checksum_valid: true,
                segment_bytes: None,
            });
        }
        Ok(received)
    }

    fn receive_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.channel.wake_fd().into_iter().collect()
    }

    fn send_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

fn corrupt() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the indices of the frames' ring make no sense",
    )
}
