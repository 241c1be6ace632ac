//! A ring's end, from which records are forwarded unchanged.

use std::os::fd::BorrowedFd;

use contract::channel::{Channel, Corrupt, Full, HostChannel, HostSide, NicChannel, NicSide, Side};

/// The end of a worker's channel in place of the remote stack. The default methods are those of a
/// ring whose stack is not attached yet.
pub trait Ring {
    /// The longest record that the stack accepts, in bytes.
    const RECORD_BYTES_MAX: usize = usize::MAX;
    /// Receives the next record from the stack; an empty one is ignored.
    fn receive_record(&mut self) -> Result<Option<&[u8]>, Corrupt> {
        Ok(None)
    }
    /// Whether a record of any length can be sent to the stack now.
    fn has_room(&mut self) -> bool {
        false
    }
    /// Sends a record to the stack.
    fn send_record(&mut self, _record: &[u8]) -> Result<(), Full> {
        Err(Full)
    }
    /// Publishes sent records, and wakes the stack.
    fn flush(&mut self) {}
    /// Arms the wake-up for room and, if `for_records`, for records. False if there is work
    /// already.
    fn prepare_sleep(&mut self, _for_records: bool) -> bool {
        true
    }
    /// Disarms the wake-ups.
    fn finish_sleep(&mut self) {}
    /// Answers the stack's heartbeat or, if `is_due`, requests one from the stack. Returns the
    /// number of missed heartbeats in a row.
    fn heartbeat(&mut self, _is_due: bool) -> u32 {
        0
    }
    /// A descriptor that is readable when there is work.
    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A ring whose stack is not attached yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoStack;

impl Ring for NoStack {}

/// The side of a channel that a relay takes.
pub trait RelaySide: Side + Sized {
    /// See [`Ring::heartbeat`].
    fn heartbeat(channel: &mut Channel<Self>, is_due: bool) -> u32;
}

impl RelaySide for HostSide {
    fn heartbeat(channel: &mut HostChannel, is_due: bool) -> u32 {
        if is_due { channel.heartbeat() } else { 0 }
    }
}

impl RelaySide for NicSide {
    fn heartbeat(channel: &mut NicChannel, _is_due: bool) -> u32 {
        channel.answer_heartbeat();
        0
    }
}

impl<S: RelaySide> Ring for Channel<S> {
    const RECORD_BYTES_MAX: usize = S::RECORD_BYTES_MAX;
    fn receive_record(&mut self) -> Result<Option<&[u8]>, Corrupt> {
        self.receive_record()
    }
    fn has_room(&mut self) -> bool {
        self.has_room()
    }
    fn send_record(&mut self, record: &[u8]) -> Result<(), Full> {
        self.send_record(record)
    }
    fn flush(&mut self) {
        self.flush();
    }
    fn prepare_sleep(&mut self, for_records: bool) -> bool {
        self.prepare_sleep_to_carry(for_records)
    }
    fn finish_sleep(&mut self) {
        self.finish_sleep();
    }
    fn heartbeat(&mut self, is_due: bool) -> u32 {
        S::heartbeat(self, is_due)
    }
    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.wake_fd()
    }
}
