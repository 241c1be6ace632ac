//! A port that is no end of any connection: it takes all frames that arrive on an interface, for
//! any destination and with pending offloads, and sends frames as they are.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use super::error::{OpenError, System};
use super::interface::Interface;
use super::send::send;
use super::virtio::VirtioNetHeader;
use super::{buffers, filter, socket};
use crate::SendError;

/// Longest frame: the largest that the kernel lets `gso_max_size` be (`GSO_MAX_SIZE`), and headers.
const FRAME_BYTES_MAX: usize = (512 << 10) + 256;

/// Memory for frames that wait to be read, in bytes as the kernel counts them: some milliseconds of
/// 10 Gbit/s.
const RECEIVE_BUFFER_BYTES: usize = 32 << 20;

/// A frame that has arrived.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// From the Ethernet header on.
    pub bytes: &'a [u8],
    /// Work that the sender has left to the receiver.
    pub unfinished: VirtioNetHeader,
    /// Time that it has waited to be taken, in nanoseconds.
    pub waited_ns: u64,
}

/// The port. Frames with a VLAN tag do not come through: the kernel has taken the tag off.
#[derive(Debug)]
pub struct PromiscuousPort {
    interface: Interface,
    socket: OwnedFd,
    buffer: Box<[u8]>,
    dropped: u64,
}

impl PromiscuousPort {
    /// Opens a port on an interface. Needs `CAP_NET_RAW`.
    pub fn open(interface: &str) -> Result<PromiscuousPort, OpenError> {
        let found = Interface::find(interface)?;
        let socket = open_socket(found.index).map_err(|system| system.on(interface))?;
        Ok(PromiscuousPort {
            interface: found,
            socket,
            buffer: vec![0; VirtioNetHeader::BYTES + FRAME_BYTES_MAX].into(),
            dropped: 0,
        })
    }

    /// Name of the interface.
    pub fn interface(&self) -> &str {
        &self.interface.name
    }

    /// Returns the number of frames that were dropped since it was opened, because they came faster
    /// than they were taken.
    pub fn dropped(&mut self) -> io::Result<u64> {
        self.dropped += socket::drops(&self.socket)?;
        Ok(self.dropped)
    }

    /// Hands up to `budget` frames to `handle`; returns their number. `NotFound` if the interface
    /// is gone; an interface that is down has no frames.
    pub fn receive(
        &mut self,
        budget: usize,
        handle: &mut dyn FnMut(Arrival<'_>),
    ) -> io::Result<usize> {
        for received in 0..budget {
            let (len, stamp_ns) = match socket::receive_stamped(&self.socket, &mut self.buffer) {
                Ok(received) => received,
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::AGAIN | Errno::INTR) => return Ok(received),
                    Some(Errno::NETDOWN) => {
                        self.interface.still_there(&self.socket)?;
                        return Ok(received);
                    }
                    _ => return Err(error),
                },
            };
            let taken = self.buffer.get(..len).unwrap_or_default();
            if let Some((header, bytes)) = taken.split_first_chunk() {
                handle(Arrival {
                    bytes,
                    unfinished: VirtioNetHeader::from_bytes(*header),
                    waited_ns: stamp_ns.map_or(0, |stamp| realtime_ns().saturating_sub(stamp)),
                });
            }
        }
        Ok(budget)
    }

    /// Sends a frame that consists of `pieces`. Only the kernel checks it.
    pub fn send(&self, unfinished: VirtioNetHeader, pieces: [&[u8]; 2]) -> Result<(), SendError> {
        let virtio = unfinished.to_bytes();
        let iov = [&virtio[..], pieces[0], pieces[1]].map(IoSlice::new);
        send(&self.socket, &iov)
    }
}

impl AsFd for PromiscuousPort {
    /// Readable when a frame has arrived.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Returns the time of the clock by which the kernel stamps arriving frames.
fn realtime_ns() -> u64 {
    let now = clock_gettime(ClockId::Realtime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn open_socket(index: u32) -> Result<OwnedFd, System> {
    let opened = socket::open().map_err(|error| System::new("opening a packet socket", error))?;
    socket::set_integer(&opened, libc::PACKET_VNET_HDR, 1)
        .map_err(|error| System::new("passing superpackets on (PACKET_VNET_HDR)", error))?;
    // Before the socket is bound, so that nothing else ever gets in.
    socket::attach_filter(&opened, &mut filter::passing())
        .map_err(|error| System::new("filtering by direction", error))?;
    socket::stamp_arrivals(&opened)
        .map_err(|error| System::new("asking for times of arrival (SO_TIMESTAMPNS)", error))?;
    buffers::enlarge_receive(&opened, RECEIVE_BUFFER_BYTES)
        .and_then(|()| buffers::enlarge_send(&opened, RECEIVE_BUFFER_BYTES))
        .map_err(|error| System::new("enlarging the buffers", error.into()))?;
    socket::bind(&opened, index, libc::ETH_P_ALL as u16)
        .map_err(|error| System::new("binding to the interface", error))?;
    socket::be_promiscuous(&opened, index)
        .map_err(|error| System::new("taking in what is for others", error))?;
    Ok(opened)
}
