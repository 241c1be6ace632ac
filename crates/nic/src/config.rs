//! What can be set.

use crate::buffer::BLOCK_BYTES;
use crate::plan::PIECES_MAX;
use crate::reader::delay::ReadDelay;

/// How files are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReaderKind {
    /// io_uring where it is allowed, else threads.
    #[default]
    Auto,
    /// io_uring; refusing to start where it is forbidden.
    Uring,
    /// Threads.
    Threads,
}

/// Settings of the NIC stack. Bounds are per worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Memory for file content, in bytes; allocated and touched at start. At least
    /// [`Config::BUFFER_BYTES_MIN`] are used.
    pub buffer_bytes: usize,
    /// Of these, at most so many stay with content that nobody needs at the moment, in bytes. Less keeps
    /// buffers warm in the CPU's cache, more avoids reads of files that are asked for again and again.
    pub cache_bytes_max: usize,
    /// How files are read.
    pub reader: ReaderKind,
    /// Read past the kernel's page cache where the file system allows it.
    pub direct: bool,
    /// Most files open at once, including those that are closed and still being sent.
    pub files_max: usize,
    /// Most flows with something queued or retained. Memory is taken as they come: some hundred bytes each.
    /// Fewer than the host has connections ([`Config::FLOWS_MAX`]) lets idle ones stand in the way of others.
    pub flows_max: usize,
    /// Most SENDs accepted and not departed, some hundred bytes each. Beyond, commands stay in the ring; since
    /// paced SENDs count while they are held, there must be room for some of each busy connection.
    pub jobs_max: usize,
    /// Longest time to poll before sleeping, in microseconds. Polling happens only while sleeps have
    /// been this short lately, and never on the only core that there is. About what falling asleep and
    /// waking up cost is enough.
    pub spin_us_max: u64,
    /// Take the time that a SEND has waited here out of the round-trip time that its timestamp will tell (IO-TCP
    /// §3.5). Off for measurements only, to see what that is good for.
    pub correct_timestamps: bool,
    /// Have reads complete later, for measurements: a slow disk.
    pub read_delay: Option<ReadDelay>,
}

impl Config {
    /// Less memory for file content would not hold what one superpacket may need.
    pub const BUFFER_BYTES_MIN: usize = PIECES_MAX * BLOCK_BYTES;
    /// Default of [`Config::flows_max`]: as many as a host stack has connections unless told otherwise, all
    /// of them with the same worker.
    pub const FLOWS_MAX: usize = 1 << 17;
}

impl Default for Config {
    fn default() -> Self {
        Config {
            buffer_bytes: 128 << 20,
            cache_bytes_max: 112 << 20,
            reader: ReaderKind::Auto,
            direct: true,
            files_max: 1 << 16,
            flows_max: Config::FLOWS_MAX,
            jobs_max: 1 << 15,
            spin_us_max: 5,
            correct_timestamps: true,
            read_delay: None,
        }
    }
}
