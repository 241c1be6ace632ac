//! The stream of one connection, and its files.

use std::ops::Range;
use std::time::Duration;

use host::app::{FileHandle, Io, ListPlace, StreamId};
use host::{Growth, PassedId};

pub(crate) const STREAM: StreamId = StreamId(1);

/// One stream, and files that are all the same.
#[derive(Default)]
pub(crate) struct Net {
    pub(crate) inbox: &'static [u8],
    pub(crate) opens: u64,
    pub(crate) written: u64,
    pub(crate) file_bytes: u64,
    pub(crate) acknowledged: u64,
}

impl Io for Net {
    fn read(&mut self, _: StreamId, buffer: &mut [u8]) -> usize {
        let count = buffer.len().min(self.inbox.len());
        let (now, later) = self.inbox.split_at(count);
        buffer[..count].copy_from_slice(now);
        self.inbox = later;
        count
    }

    fn write(&mut self, _: StreamId, bytes: &[u8]) -> usize {
        self.written += std::hint::black_box(bytes).len() as u64;
        bytes.len()
    }

    fn write_file(&mut self, _: StreamId, _: FileHandle, range: Range<u64>) -> u64 {
        let bytes = range.end - range.start;
        self.written += bytes;
        self.file_bytes += bytes;
        bytes
    }

    fn open(&mut self, _: StreamId, path: &[u8], _: Growth) -> FileHandle {
        std::hint::black_box(path);
        self.opens += 1;
        FileHandle(self.opens)
    }

    fn open_passed(&mut self, _: StreamId, _: PassedId) -> FileHandle {
        unreachable!("the server opens files by path")
    }

    fn list(&mut self, _: StreamId, _: &[u8], _: Option<ListPlace>) -> FileHandle {
        unreachable!("no request is for a directory")
    }

    fn close_file(&mut self, _: FileHandle) {}

    fn shutdown(&mut self, _: StreamId) {
        panic!("the connection goes on");
    }

    fn abort(&mut self, _: StreamId) {
        panic!("nothing is wrong");
    }

    fn set_timer(&mut self, _: StreamId, _: Option<Duration>) {}

    fn set_idle(&mut self, _: StreamId, _: bool) {}

    fn set_max_pacing_rate(&mut self, _: StreamId, _: Option<u64>) {}

    fn set_notsent_lowat(&mut self, _: StreamId, _: u64) {}

    fn acknowledged(&self, _: StreamId) -> u64 {
        self.acknowledged
    }

    fn unacknowledged(&self, _: StreamId) -> u64 {
        self.written - self.acknowledged
    }

    fn unsent(&self, _: StreamId) -> u64 {
        0
    }

    fn usable_window(&self, _: StreamId) -> u64 {
        0
    }

    fn waits_for_peer(&self, _: StreamId) -> bool {
        self.written > self.acknowledged
    }

    fn retransmissions(&self, _: StreamId) -> u32 {
        0
    }

    fn now_us(&self) -> u64 {
        self.opens
    }

    fn unix_time(&self) -> Duration {
        Duration::from_secs(784_111_777)
    }
}
