//! A model of hardware that is not available: DPUs, disks and links of up to 800 Gbit/s.
//!
//! Unlike the rest of this crate it does not run the stacks. It combines measurements of them (the
//! rate that one host core controls, [`Calibration`]) with published parameters of hardware
//! ([`hardware`]), and finds the bottleneck. Its results are a simulation; `docs/model.md` lists
//! their limits.
//!
//! | Module | Contents |
//! |---|---|
//! | [`hardware`] | NICs, disks, links: parameters, each with its source |
//! | [`paper`] | results published by IO-TCP, for comparison |
//! | [`pipeline`] | the stations that a byte passes, the slowest of which decides |
//! | [`disks`] | CPU cost of disk reads (IO-TCP, figure 3) |
//! | [`cache`] | a last-level cache into which disks write (figure 12a, table 4) |

pub mod cache;
pub mod disks;
pub mod hardware;
pub mod paper;
pub mod pipeline;

/// Cost of the host stack per core, as measured by `splitway-bench ceiling`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Calibration {
    /// Number of connections of the measurement.
    pub connections: usize,
    /// CPU time for each gigabyte of files, in seconds, one ACK arriving for each superpacket.
    pub superpacket_s_per_gb: f64,
    /// ACKs for each gigabyte, with one ACK for each superpacket.
    pub superpacket_acks_per_gb: f64,
    /// CPU time for each gigabyte of files, in seconds, with one ACK for two packets.
    pub two_packets_s_per_gb: f64,
    /// ACKs for each gigabyte, with one ACK for two packets.
    pub two_packets_acks_per_gb: f64,
}
