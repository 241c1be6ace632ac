//! A model of what needs hardware that is not here: DPUs, disks and links of up to 800 Gbit/s.
//!
//! Unlike the rest of this crate it does not run the stacks. It takes what was measured of them
//! (what one host core controls, [`Calibration`]), what vendors and the paper say of hardware
//! ([`hardware`]), and asks where the bottleneck is. What it says is a simulation, and
//! `docs/model.md` says what that cannot tell.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`hardware`] | NICs, disks, links: parameters, each with its source |
//! | [`paper`] | what IO-TCP has published, to compare with |
//! | [`pipeline`] | the stations that a byte passes, the slowest of which decides |
//! | [`disks`] | what reading from disks costs a core (IO-TCP, figure 3) |
//! | [`cache`] | a last-level cache into which disks write (figure 12a, table 4) |

pub mod cache;
pub mod disks;
pub mod hardware;
pub mod paper;
pub mod pipeline;

/// What one core of the host stack does, as measured by `splitway-bench ceiling`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Calibration {
    /// Connections with which it was measured.
    pub connections: usize,
    /// CPU time for each gigabyte of files, in seconds, one ACK arriving for each superpacket.
    pub superpacket_s_per_gb: f64,
    /// ACKs for each gigabyte, then.
    pub superpacket_acks_per_gb: f64,
    /// The same with one ACK for two packets.
    pub two_packets_s_per_gb: f64,
    /// ACKs for each gigabyte, then.
    pub two_packets_acks_per_gb: f64,
}
