//! Observation of frames that ports send and receive, from beside the ports.
//!
//! A process with the privilege opens a [`Tap`] for each kind of frames; another, which needs none,
//! reads the frames ([`TapReader`]). The kernel keeps the filter: a reader cannot see more frames
//! than the tap was opened for. A [mark](super::PacketPort::set_mark) distinguishes a port from
//! others on the same interface.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::error::{OpenError, System};
use super::interface::Interface;
use super::ring::{Ring, SLOT_HEADER_BYTES};
pub use super::selection::{Only, Taken};
pub use super::tapped::Tapped;
use super::{filter, segmentation, socket};

/// Memory for frames that wait to be read, in bytes: for some thousand beginnings of frames.
const RING_BYTES: usize = 16 << 20;

/// Memory for whole superpackets, with slots larger than [`LARGE_SLOT_BYTES`], in bytes.
const LARGE_RING_BYTES: usize = 32 << 20;
const LARGE_SLOT_BYTES: usize = 64 << 10;

/// Largest snaplen, in bytes: more than a superpacket has.
pub const SNAPLEN_MAX: u32 = (512 << 10) - SLOT_HEADER_BYTES as u32;

/// A socket that takes in frames for [`TapReader`].
#[derive(Debug)]
pub struct Tap {
    socket: OwnedFd,
}

impl Tap {
    /// Opens a tap on an interface, for the first `snaplen` bytes of each frame. Needs
    /// `CAP_NET_RAW`.
    pub fn open(
        interface: &str,
        taken: Taken<'_>,
        only: Only,
        snaplen: u32,
    ) -> Result<Tap, OpenError> {
        let found = Interface::find(interface)?;
        let mut program = filter::tapped(taken, only, snaplen.clamp(1, SNAPLEN_MAX));
        let mut open = || -> Result<Tap, System> {
            let opened =
                socket::open().map_err(|error| System::new("opening a packet socket", error))?;
            // Before the socket is bound, so that nothing else ever gets in.
            socket::attach_filter(&opened, &mut program)
                .and_then(|()| socket::lock_filter(&opened))
                .map_err(|error| System::new("filtering what is captured", error))?;
            socket::bind(&opened, found.index, libc::ETH_P_ALL as u16)
                .map_err(|error| System::new("binding to the interface", error))?;
            Ok(Tap { socket: opened })
        };
        open().map_err(|system| system.on(interface))
    }

    /// True if this process can mark packets, and so a port of a process with the same privileges.
    pub fn can_mark() -> bool {
        socket::open().is_ok_and(|socket| socket::set_mark(&socket, 0).is_ok())
    }

    /// Returns the socket, to be passed on.
    pub fn into_socket(self) -> OwnedFd {
        self.socket
    }
}

/// Reads the frames that a tap takes from now on.
#[derive(Debug)]
pub struct TapReader {
    // The ring goes before its socket.
    ring: Ring,
    socket: OwnedFd,
    snaplen: usize,
    dropped: u64,
}

impl TapReader {
    /// Reads from the socket of a [`Tap`] that was opened for `snaplen` bytes of each frame.
    pub fn new(socket: OwnedFd, snaplen: u32) -> io::Result<TapReader> {
        let snaplen = snaplen.clamp(1, SNAPLEN_MAX) as usize;
        let slot_bytes = (snaplen + SLOT_HEADER_BYTES).next_power_of_two();
        let bytes = if slot_bytes > LARGE_SLOT_BYTES {
            LARGE_RING_BYTES
        } else {
            RING_BYTES
        };
        let has_virtio = segmentation::ask(&socket);
        let ring = Ring::with_slots_of(&socket, bytes, slot_bytes, has_virtio)?;
        Ok(TapReader {
            ring,
            socket,
            snaplen,
            dropped: 0,
        })
    }

    /// Hands up to `budget` frames to `handle`; returns their number. A superpacket of UDP counts
    /// as one, and is handed over as its datagrams, if the kernel reports their length (Linux 6.2).
    pub fn receive(&mut self, budget: usize, handle: &mut dyn FnMut(Tapped<'_>)) -> usize {
        for taken in 0..budget {
            let Some(slot) = self.ring.next() else {
                return taken;
            };
            let tapped = Tapped {
                time_ns: slot.time_ns,
                len: slot.len,
                bytes: slot.bytes,
            };
            let is_cut = slot
                .segment_bytes
                .is_some_and(|bytes| tapped.cut(bytes, self.snaplen, handle));
            if !is_cut {
                handle(tapped);
            }
        }
        budget
    }

    /// Returns the number of frames that were dropped since the beginning, because they came faster
    /// than they were read.
    pub fn dropped(&mut self) -> io::Result<u64> {
        self.dropped += socket::drops(&self.socket)?;
        Ok(self.dropped)
    }

    /// Returns the socket's pending error, if there is one, such as that the interface is down.
    pub fn take_error(&self) -> io::Result<()> {
        Ok(rustix::net::sockopt::socket_error(&self.socket)??)
    }
}

impl AsFd for TapReader {
    /// Readable when a frame was taken.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
