//! Results published by IO-TCP (Kim et al., NSDI 2023), for comparison. Facts, each with its place.

/// A measurement of the paper.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// The measured configuration.
    pub what: &'static str,
    /// The result.
    pub value: f64,
    /// Its place in the paper.
    pub place: &'static str,
}

const fn point(what: &'static str, value: f64, place: &'static str) -> Point {
    Point { what, value, place }
}

/// Gbit/s on two NICs with two disks each and one host core.
pub const PLAIN: Point = point("500 KB files, 1,600 connections", 78.1, "figure 7");
/// The same over TLS.
pub const TLS: Point = point("the same over TLS", 77.4, "figure 7, abstract");
/// Gbit/s with disks to spare.
pub const DISKS_TO_SPARE: Point = point("raw disk access, eight disks", 95.2, "§5.2");
/// Gbit/s on one NIC and one host core.
pub const ONE_NIC: Point = point("300 KB files on one NIC", 44.13, "table 2");
/// Gbit/s of a NIC that reads no disk.
pub const NO_DISK: Point = point("no disk I/O, each NIC", 80.0, "§5.4");
/// Gbit/s that the authors expect of a BlueField-3, at least; their footnote computes 141.
pub const BLUEFIELD_3_EXPECTED: Point = point("expected of a BlueField-3", 100.0, "§5.4");

/// Block size in bytes, number of disks that a core just saturates, and number that it does not
/// (figure 3 and its text).
pub const FIO: [(u64, usize, usize); 2] = [(4 << 10, 1, 2), (16 << 10, 3, 4)];

/// Factor by which the lookups' miss ratio grows with concurrent disk I/O (figure 12a).
pub const LOOKUP_MISS_FACTOR: Point = point("cache misses of the TCB lookup", 24.0, "figure 12a");
/// Fraction of the lookups that is lost by it.
pub const LOOKUP_LOSS: Point = point("lookups lost", 0.30, "figure 12a");

/// Instructions per cycle (table 4).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ipc {
    /// Name of the function.
    pub function: &'static str,
    /// IPC with the data plane on the same CPU.
    pub before: f64,
    /// IPC without the data plane.
    pub after: f64,
}

const fn ipc(function: &'static str, before: f64, after: f64) -> Ipc {
    Ipc {
        function,
        before,
        after,
    }
}

/// Table 4, its rows in order.
pub const TABLE_4: [Ipc; 5] = [
    ipc("parsing HTTP requests", 0.82, 1.57),
    ipc("writing response headers", 0.92, 1.89),
    ipc("checking for expired RTOs", 2.65, 3.26),
    ipc("processing ACKs", 0.13, 1.24),
    ipc("overall", 0.93, 1.47),
];
