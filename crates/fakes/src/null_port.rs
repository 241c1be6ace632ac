//! A port that drops all packets.

use std::io;
use std::os::fd::BorrowedFd;

use netdev::{Frame, Port, SendError, Superpacket};

/// Accepts packets, and drops them.
pub struct NullPort {
    /// Longest IP packet accepted, in bytes.
    pub superpacket_max: usize,
}

impl Port for NullPort {
    fn mac(&self) -> [u8; 6] {
        [2; 6]
    }
    fn mtu(&self) -> usize {
        1500
    }
    fn superpacket_max(&self, _ipv6: bool) -> usize {
        self.superpacket_max
    }
    fn send(&mut self, packet: &Superpacket<'_>) -> Result<(), SendError> {
        std::hint::black_box(packet);
        Ok(())
    }
    fn receive(&mut self, _: usize, _: &mut dyn FnMut(Frame<'_>)) -> io::Result<usize> {
        Ok(0)
    }
    fn receive_fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }
    fn send_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
