//! What can be set.

use crate::buffer::BLOCK_BYTES;
use crate::need::PIECES_MAX;
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

/// How packets of a QUIC connection are put in order that have come in another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reorder {
    /// In a ring with a slot for each packet number.
    #[default]
    Ring,
    /// In a list, for measurements: to see what the ring is good for.
    Linear,
    /// Not at all, for measurements: the host gets them as they come.
    Off,
}

/// Settings of the NIC stack. Bounds are per worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Memory for file content, in bytes: what is on its way, what is kept until it is
    /// acknowledged, and the cache. Taken from the machine as it is needed. At least
    /// [`Config::CACHE_BYTES_MIN`] are used.
    pub cache_bytes: usize,
    /// Memory that the administrator has set aside as huge pages, free or not, in bytes: a warning
    /// says so if it would have done for the content, and others have it.
    pub huge_bytes_set_aside: u64,
    /// How files are read.
    pub reader: ReaderKind,
    /// Read past the kernel's page cache where the file system allows it.
    pub direct: bool,
    /// Most files open at once, including those that are closed and still being sent.
    pub files_max: usize,
    /// Most flows with something queued or retained. Memory is taken as they come: some hundred
    /// bytes each. Fewer than the host has connections ([`Config::FLOWS_MAX`]) lets idle ones stand
    /// in the way of others. Of as many idle flows at most, the worker remembers where their
    /// streams are: some 200 bytes each.
    pub flows_max: usize,
    /// Most SENDs accepted and not departed, some hundred bytes each. Beyond, commands stay in the
    /// ring; since paced SENDs count while they are held, there must be room for some of each busy
    /// connection.
    pub jobs_max: usize,
    /// Memory for keys, and for records that are defined and not acknowledged, in bytes: their
    /// plaintext as far as it is inline, and some tens of bytes for each; a key counts a kilobyte.
    /// Taken as they come. KEY and RECORDS beyond it are refused, and the host resets their
    /// connections. It takes a broken host to get there, or thousands of clients that acknowledge
    /// nothing, each of which can have it asked for some tens of kilobytes.
    pub records_bytes: usize,
    /// Most connections that the host has parted with, in TIME-WAIT or not: some 200 bytes each.
    pub parted_max: usize,
    /// Of these, connections that are not in TIME-WAIT: some kilobytes each.
    pub parted_open_max: usize,
    /// Most splices: some 500 bytes each.
    pub spliced_max: usize,
    /// Longest time to poll before sleeping, in microseconds. Polling happens only while sleeps
    /// have been this short lately, and never on the only core that there is. About what falling
    /// asleep and waking up cost is enough.
    pub spin_us_max: u64,
    /// Take the time that a SEND has waited here out of the round-trip time that its timestamp will
    /// tell (IO-TCP §3.5). Off for measurements only, to see what that is good for.
    pub correct_timestamps: bool,
    /// How packets of QUIC connections are put in order; other than the default for measurements
    /// only.
    pub reorder: Reorder,
    /// Have reads complete later, for measurements: a slow disk.
    pub read_delay: Option<ReadDelay>,
}

impl Config {
    /// Less memory for file content would not hold what one superpacket may need: a SEND may
    /// consist of many segments, and each may begin and end in the midst of a block.
    pub const CACHE_BYTES_MIN: usize = PIECES_MAX * BLOCK_BYTES;
    /// What all workers together have by default: a quarter of the machine's memory, at most 1 GiB,
    /// in bytes.
    pub fn cache_bytes_default() -> usize {
        let machine = rustix::system::sysinfo();
        let bytes = (machine.totalram as u64).saturating_mul(machine.mem_unit.into());
        (bytes / 4).min(1 << 30) as usize
    }

    /// Default of [`Config::flows_max`]: as many as a host stack has connections unless told
    /// otherwise, all of them with the same worker.
    pub const FLOWS_MAX: usize = 1 << 17;

    /// Default of [`Config::parted_max`]: a minute's worth of TIME-WAIT at 2,000 connections per
    /// second.
    pub const PARTED_MAX: usize = 1 << 17;
}

impl Default for Config {
    fn default() -> Self {
        Config {
            cache_bytes: 128 << 20,
            huge_bytes_set_aside: 0,
            reader: ReaderKind::Auto,
            direct: true,
            files_max: 1 << 20,
            flows_max: Config::FLOWS_MAX,
            jobs_max: 1 << 15,
            records_bytes: 1 << 30,
            parted_max: Config::PARTED_MAX,
            parted_open_max: 1 << 15,
            spliced_max: 1 << 15,
            spin_us_max: 5,
            correct_timestamps: true,
            reorder: Reorder::default(),
            read_delay: None,
        }
    }
}
