//! The reception ring of a packet socket, `TPACKET_V2` (Documentation/networking/packet_mmap.rst).
//!
//! The ring is memory that kernel and process share, an array of slots. The status word of a slot
//! names its owner: the kernel fills its own slots and hands them over; the process reads them and
//! hands them back. A frame that does not fit into a slot is cut off there, and waits whole in the
//! socket's queue if the slot's status has that bit (`PACKET_COPY_THRESH`). On a socket with
//! `PACKET_VNET_HDR`, a [`VirtioNetHeader`] stands right before each frame, in its slot and in the
//! queue.

#![allow(unsafe_code)]

use std::io;
use std::num::NonZeroU16;
use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::tpacket2_hdr;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::socket;
use super::virtio::VirtioNetHeader;

/// Length of a slot, in bytes: kernel's header, padding, and a frame of MTU 1500 with room to
/// spare.
const SLOT_BYTES: usize = 2048;
/// Memory that the kernel has to find in one piece, unless a slot is larger.
const BLOCK_BYTES: usize = 64 << 10;

/// Room for the kernel's data before a frame in a slot: its header, an address, padding, all
/// aligned.
pub(super) const SLOT_HEADER_BYTES: usize = 128;

const _: () = assert!(
    BLOCK_BYTES.is_multiple_of(SLOT_BYTES) && SLOT_BYTES.is_multiple_of(libc::TPACKET_ALIGNMENT),
    "slots follow each other without gaps, and each is aligned for its header"
);
const _: () = assert!(align_of::<tpacket2_hdr>() <= libc::TPACKET_ALIGNMENT);

/// A reception ring.
#[derive(Debug)]
pub(super) struct Ring {
    /// Start of the mapping, `slots * slot_bytes` long.
    memory: NonNull<u8>,
    slots: usize,
    slot_bytes: usize,
    /// A [`VirtioNetHeader`] stands before each frame.
    has_virtio: bool,
    /// The slot that the kernel fills next, or has filled.
    next: usize,
}

// SAFETY: The mapping belongs to the process, not to a thread, and `Ring` is its only user here.
unsafe impl Send for Ring {}

impl Ring {
    /// Gives `socket` a ring of `slots` slots, a multiple of 32. `has_virtio`: the socket has
    /// `PACKET_VNET_HDR`.
    pub(super) fn new(socket: &OwnedFd, slots: usize, has_virtio: bool) -> io::Result<Ring> {
        socket::set_integer(socket, libc::PACKET_COPY_THRESH, SLOT_BYTES as libc::c_int)?;
        let mut ring = Ring::map(socket, BLOCK_BYTES, SLOT_BYTES, slots)?;
        ring.has_virtio = has_virtio;
        Ok(ring)
    }

    /// Gives `socket` a ring of `bytes`, in slots of `slot_bytes`, a power of two between
    /// [`SLOT_HEADER_BYTES`] and `bytes`. Frames that do not fit are cut off, and lie nowhere else.
    pub(super) fn with_slots_of(
        socket: &OwnedFd,
        bytes: usize,
        slot_bytes: usize,
        has_virtio: bool,
    ) -> io::Result<Ring> {
        assert!(
            slot_bytes.is_power_of_two() && (SLOT_HEADER_BYTES..=bytes).contains(&slot_bytes),
            "slots follow each other without gaps"
        );
        let block_bytes = BLOCK_BYTES.max(slot_bytes);
        let slots = bytes / block_bytes * block_bytes / slot_bytes;
        let mut ring = Ring::map(socket, block_bytes, slot_bytes, slots)?;
        ring.has_virtio = has_virtio;
        Ok(ring)
    }

    fn map(
        socket: &OwnedFd,
        block_bytes: usize,
        slot_bytes: usize,
        slots: usize,
    ) -> io::Result<Ring> {
        let version = libc::tpacket_versions::TPACKET_V2 as libc::c_int;
        socket::set_integer(socket, libc::PACKET_VERSION, version)?;
        socket::request_ring(socket, block_bytes, slot_bytes, slots)?;
        // SAFETY: A fresh shared mapping at an address of the kernel's choice touches no memory in
        // use.
        let memory = unsafe {
            mmap(
                ptr::null_mut(),
                slots * slot_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                socket,
                0,
            )?
        };
        Ok(Ring {
            memory: NonNull::new(memory.cast()).expect("mmap has not failed"),
            slots,
            slot_bytes,
            has_virtio: false,
            next: 0,
        })
    }

    /// True if a [`VirtioNetHeader`] stands before each frame.
    pub(super) fn has_virtio(&self) -> bool {
        self.has_virtio
    }

    /// Returns the next frame, if one has arrived.
    pub(super) fn next(&mut self) -> Option<Slot<'_>> {
        let at = self.next * self.slot_bytes;
        // SAFETY: `next` is below `slots`, so the slot lies within the mapping.
        let slot = unsafe { self.memory.add(at) };
        // SAFETY: A slot begins with its aligned status word, which both sides access atomically.
        // Acquire orders the kernel's writes before its hand-over of the slot.
        let status = unsafe { status_of(slot) }.load(Ordering::Acquire);
        if status & libc::TP_STATUS_USER == 0 {
            return None;
        }
        self.next = (self.next + 1) % self.slots;
        // SAFETY: The slot belongs to the process, so the kernel does not write to it; it begins
        // with an aligned header of plain integers.
        let header = unsafe { slot.cast::<tpacket2_hdr>().read() };
        let start = usize::from(header.tp_mac);
        let len = header.tp_snaplen as usize;
        let within = start
            .checked_add(len)
            .is_some_and(|end| end <= self.slot_bytes);
        let bytes = match within && start >= size_of::<tpacket2_hdr>() {
            // SAFETY: The range lies within the slot, behind its header, and the slot belongs to
            // the process until `Slot` is dropped.
            true => unsafe { slice::from_raw_parts(slot.add(start).as_ptr(), len) },
            false => &[],
        };
        let virtio_end = size_of::<tpacket2_hdr>() + VirtioNetHeader::BYTES;
        let segment_bytes = match self.has_virtio && within && start >= virtio_end {
            true => {
                // SAFETY: The range lies within the slot, behind its header and before the frame;
                // bytes need no alignment, and the slot belongs to the process.
                let virtio = unsafe { slot.add(start - VirtioNetHeader::BYTES).cast().read() };
                VirtioNetHeader::from_bytes(virtio).datagram_bytes()
            }
            false => None,
        };
        Some(Slot {
            slot,
            status,
            segment_bytes,
            len: header.tp_len as usize,
            time_ns: u64::from(header.tp_sec) * 1_000_000_000 + u64::from(header.tp_nsec),
            bytes,
        })
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: The mapping belongs to `self`, and no `Slot` borrows it any more. The call cannot
        // fail; if it did, there would be nothing to do.
        let _ = unsafe { munmap(self.memory.as_ptr().cast(), self.slots * self.slot_bytes) };
    }
}

/// A slot that belongs to the process. The kernel gets it back when this is dropped.
#[derive(Debug)]
pub(super) struct Slot<'a> {
    slot: NonNull<u8>,
    status: u32,
    /// See [`Frame::segment_bytes`](crate::Frame::segment_bytes); `None` if the ring has no virtio
    /// headers.
    pub(super) segment_bytes: Option<NonZeroU16>,
    /// Length of the frame, in bytes; more than `bytes` if it does not fit.
    pub(super) len: usize,
    /// Time of sending or reception, in nanoseconds of the realtime clock.
    pub(super) time_ns: u64,
    /// The frame, or its beginning.
    pub(super) bytes: &'a [u8],
}

impl Slot<'_> {
    /// True if the whole frame waits in the socket's queue.
    pub(super) fn is_queued(&self) -> bool {
        self.status & libc::TP_STATUS_COPY != 0
    }

    /// True if the kernel or the NIC has verified the transport checksum, or if it has not been
    /// computed yet because the sender is on this machine.
    pub(super) fn checksum_valid(&self) -> bool {
        self.status & (libc::TP_STATUS_CSUM_VALID | libc::TP_STATUS_CSUMNOTREADY) != 0
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        // SAFETY: As in `Ring::next`. Release orders the process's reads before the kernel's next
        // writes.
        unsafe { status_of(self.slot) }.store(libc::TP_STATUS_KERNEL, Ordering::Release);
    }
}

/// Returns the status word of a slot.
///
/// # Safety
/// `slot` must be the start of a slot in a mapped ring.
unsafe fn status_of<'a>(slot: NonNull<u8>) -> &'a AtomicU32 {
    // SAFETY: `slot` is the start of a slot, by the caller's contract; `tp_status` comes first in
    // the header.
    unsafe { slot.cast::<AtomicU32>().as_ref() }
}

const _: () = assert!(std::mem::offset_of!(tpacket2_hdr, tp_status) == 0);
