//! A port for frames of one EtherType, to and from any machine on the link, or one machine alone:
//! for communication between two machines of one system.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use wire::ethernet;

use super::error::{OpenError, System};
use super::interface::Interface;
use super::send::send;
use super::{buffers, filter, socket};
use crate::SendError;

/// Memory for frames that wait, in bytes as the kernel counts them: more than may be on their way
/// at once.
const BUFFER_BYTES: usize = 8 << 20;

/// The port. MTU and hardware address are those that the interface had when it was opened.
#[derive(Debug)]
pub struct ControlPort {
    interface: Interface,
    ether_type: u16,
    socket: OwnedFd,
    buffer: Box<[u8]>,
}

impl ControlPort {
    /// Opens a port on an interface. Needs `CAP_NET_RAW`. With a `peer`, the kernel drops frames of
    /// all other senders: of many ports on one link, each is woken, and its buffer is filled, by
    /// its own machine alone.
    pub fn open(
        interface: &str,
        ether_type: u16,
        peer: Option<[u8; 6]>,
    ) -> Result<ControlPort, OpenError> {
        let found = Interface::find(interface)?;
        let socket =
            open_socket(found.index, ether_type, peer).map_err(|system| system.on(interface))?;
        Ok(ControlPort {
            buffer: vec![0; ethernet::HEADER_BYTES + found.mtu].into(),
            interface: found,
            ether_type,
            socket,
        })
    }

    /// Returns the interface's hardware address.
    pub fn mac(&self) -> [u8; 6] {
        self.interface.mac
    }

    /// Returns the most bytes of a frame after the Ethernet header.
    pub fn mtu(&self) -> usize {
        self.interface.mtu
    }

    /// Sends a frame; `payload` follows the Ethernet header.
    pub fn send(&self, to: [u8; 6], payload: &[u8]) -> Result<(), SendError> {
        let mut header = [0; ethernet::HEADER_BYTES];
        header[..6].copy_from_slice(&to);
        header[6..12].copy_from_slice(&self.interface.mac);
        header[12..].copy_from_slice(&self.ether_type.to_be_bytes());
        let iov = [IoSlice::new(&header), IoSlice::new(payload)];
        send(&self.socket, &iov)
    }

    /// Hands up to `budget` frames to `handle`, each with its source address and the bytes after
    /// the Ethernet header, padding included; returns their number. `NotFound` if the interface is
    /// gone; an interface that is down has no frames.
    pub fn receive(
        &mut self,
        budget: usize,
        handle: &mut dyn FnMut([u8; 6], &mut [u8]),
    ) -> io::Result<usize> {
        for received in 0..budget {
            let len = match recv(&self.socket, &mut self.buffer[..], RecvFlags::DONTWAIT) {
                Ok((_, len)) => len,
                Err(Errno::AGAIN | Errno::INTR) => return Ok(received),
                Err(Errno::NETDOWN) => {
                    self.interface.still_there(&self.socket)?;
                    return Ok(received);
                }
                Err(error) => return Err(error.into()),
            };
            let frame = self.buffer.get_mut(..len).unwrap_or_default();
            if let Some((header, payload)) =
                frame.split_first_chunk_mut::<{ ethernet::HEADER_BYTES }>()
                && let Some(from) = header[6..].first_chunk()
            {
                handle(*from, payload);
            }
        }
        Ok(budget)
    }
}

impl AsFd for ControlPort {
    /// Readable when a frame has arrived.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn open_socket(index: u32, ether_type: u16, peer: Option<[u8; 6]>) -> Result<OwnedFd, System> {
    let opened = socket::open().map_err(|error| System::new("opening a packet socket", error))?;
    // Before the socket is bound, so that nothing else ever gets in.
    let mut program = match peer {
        Some(peer) => filter::sent_here_by(peer),
        None => filter::sent_here(),
    };
    socket::attach_filter(&opened, &mut program)
        .map_err(|error| System::new("filtering by address", error))?;
    buffers::enlarge_receive(&opened, BUFFER_BYTES)
        .and_then(|()| buffers::enlarge_send(&opened, BUFFER_BYTES))
        .map_err(|error| System::new("enlarging the buffers", error.into()))?;
    socket::bind(&opened, index, ether_type)
        .map_err(|error| System::new("binding to the interface", error))?;
    Ok(opened)
}
