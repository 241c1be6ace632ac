//! Settings of a NIC stack.

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

/// How packets of a QUIC connection that arrive out of order are put in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reorder {
    /// In a ring with a slot for each packet number.
    #[default]
    Ring,
    /// In a list, for measurements: to compare with the ring.
    Linear,
    /// Not at all, for measurements: the host gets them as they come.
    Off,
}

/// Settings of the NIC stack. Bounds are per worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Memory for file content, in bytes: blocks on their way or unacknowledged, and the cache.
    /// Allocated as it is needed. At least [`Config::CACHE_BYTES_MIN`] are used.
    pub cache_bytes: usize,
    /// Memory that the administrator has set aside as huge pages, free or not, in bytes: a warning
    /// is logged if it would have sufficed for the content but others hold it.
    pub huge_bytes_set_aside: u64,
    /// How files are read.
    pub reader: ReaderKind,
    /// Read past the kernel's page cache where the file system allows it.
    pub direct: bool,
    /// Most files open at once, including those that are closed and still being sent.
    pub files_max: usize,
    /// Most flows with something queued or retained. Memory is taken as they come: some hundred
    /// bytes each. With a limit below the host's connections ([`Config::FLOWS_MAX`]), idle ones
    /// stand in the way of others. For at most as many idle flows, the worker remembers the
    /// positions of their streams: some 200 bytes each.
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
    /// Most parted connections that are not in TIME-WAIT: some kilobytes each.
    pub parted_open_max: usize,
    /// Most splices: some 500 bytes each.
    pub spliced_max: usize,
    /// Longest time to poll before sleeping, in microseconds. Polling happens only while sleeps
    /// have been this short lately, and never on a machine's only core. About the cost of falling
    /// asleep and waking up is enough.
    pub spin_us_max: u64,
    /// Whether to exclude the time that a SEND waits in the worker from the round-trip time that
    /// its timestamp measures (IO-TCP §3.5). Off only to measure the effect.
    pub correct_timestamps: bool,
    /// How packets of QUIC connections are put in order; other than the default for measurements
    /// only.
    pub reorder: Reorder,
    /// Delay of reads, for measurements: simulates a slow disk.
    pub read_delay: Option<ReadDelay>,
}

impl Config {
    /// Least memory for file content: the blocks of one superpacket. A SEND may consist of many
    /// segments, and each may begin and end in the midst of a block.
    pub const CACHE_BYTES_MIN: usize = PIECES_MAX * BLOCK_BYTES;
    /// Default for all workers together: a quarter of the machine's memory, at most 1 GiB, in
    /// bytes.
    pub fn cache_bytes_default() -> usize {
        let machine = rustix::system::sysinfo();
        let bytes = (machine.totalram as u64).saturating_mul(machine.mem_unit.into());
        (bytes / 4).min(1 << 30) as usize
    }

    /// Default of [`Config::flows_max`]: a host stack's default number of connections, all with the
    /// same worker.
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
