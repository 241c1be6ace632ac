//! A ring's end, from which records are passed on as they are.

use std::os::fd::BorrowedFd;

use contract::channel::{Corrupt, Full, HostChannel, NicChannel};

/// The end of a worker's channel that the stack on this machine does not have.
pub trait Ring {
    /// The longest record that it takes, in bytes.
    const RECORD_BYTES_MAX: usize;
    /// The next record from the stack; an empty one means nothing.
    fn receive_record(&mut self) -> Result<Option<&[u8]>, Corrupt>;
    /// True if the stack can be sent a record of any length now.
    fn has_room(&mut self) -> bool;
    /// Sends the stack a record.
    fn send_record(&mut self, record: &[u8]) -> Result<(), Full>;
    /// Lets the stack know.
    fn flush(&mut self);
    /// Arms the wake-ups: for room, and if so, for records. False if there is something to do.
    fn prepare_sleep(&mut self, for_records: bool) -> bool;
    /// Disarms them.
    fn finish_sleep(&mut self);
    /// Answers the stack's heartbeat, or, if `is_due`, asks it for one. Returns how many it has
    /// missed in a row.
    fn heartbeat(&mut self, _is_due: bool) -> u32 {
        0
    }
    /// Readable when there is something to do.
    fn wake_fd(&self) -> Option<BorrowedFd<'_>>;
}

/// A ring that takes nothing and says nothing: the stack that is to be at its other end has not
/// come yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoStack;

impl Ring for NoStack {
    const RECORD_BYTES_MAX: usize = usize::MAX;
    fn receive_record(&mut self) -> Result<Option<&[u8]>, Corrupt> {
        Ok(None)
    }
    fn has_room(&mut self) -> bool {
        false
    }
    fn send_record(&mut self, _: &[u8]) -> Result<(), Full> {
        Err(Full)
    }
    fn flush(&mut self) {}
    fn prepare_sleep(&mut self, _: bool) -> bool {
        true
    }
    fn finish_sleep(&mut self) {}
    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

macro_rules! ring {
    ($channel:ty, $heartbeat:expr) => {
        impl Ring for $channel {
            const RECORD_BYTES_MAX: usize = <$channel>::record_bytes_max();
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
                $heartbeat(self, is_due)
            }
            fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
                self.wake_fd()
            }
        }
    };
}

ring!(HostChannel, |channel: &mut HostChannel, is_due| {
    if is_due { channel.heartbeat() } else { 0 }
});
ring!(NicChannel, |channel: &mut NicChannel, _| {
    channel.answer_heartbeat();
    0
});
