//! Counters, and punctuality of the emulator.

use std::fmt;

use serde::Serialize;

use crate::conditions::Rate;
use crate::direction::Counters;

/// Events in both directions.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Seed of all random choices.
    pub seed: u64,
    /// Lifetime of the link, in nanoseconds.
    pub elapsed_ns: u64,
    /// Reports from the first interface to the second, and back.
    pub directions: [DirectionReport; 2],
}

/// Events in one direction.
#[derive(Clone, Debug, Serialize)]
pub struct DirectionReport {
    /// The interface where packets arrived.
    pub from: String,
    /// The interface where they left.
    pub to: String,
    /// Counters of packets.
    pub counters: Counters,
    /// Frames dropped before the emulator received them, because they arrived too fast. Not a part
    /// of the emulated link: measurements with any of them are unreliable.
    pub overrun: u64,
    /// Frames that the other interface refused, such as those longer than its MTU.
    pub refused: u64,
    /// Frames for several packets whose segmentation is not supported, counted as one packet.
    pub uncut: u64,
    /// Lateness of packets, compared with their due times.
    pub lateness: Lateness,
}

/// Lateness of packets. The emulator uses each frame's time of arrival, so that a late look at the
/// frame is no lateness if the delay is longer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Lateness {
    /// Sum over all departures, in nanoseconds.
    pub sum_ns: u64,
    /// Maximum, in nanoseconds.
    pub max_ns: u64,
    /// Number of departures.
    pub departures: u64,
    /// Departures more than 1 ms late.
    pub above_1_ms: u64,
}

impl Lateness {
    /// Adds a departure.
    pub fn add(&mut self, late_ns: u64) {
        self.sum_ns += late_ns;
        self.max_ns = self.max_ns.max(late_ns);
        self.departures += 1;
        self.above_1_ms += u64::from(late_ns > 1_000_000);
    }

    /// Returns the mean, in nanoseconds.
    pub fn mean_ns(&self) -> u64 {
        self.sum_ns / self.departures.max(1)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:.1} s with seed {}",
            self.elapsed_ns as f64 / 1e9,
            self.seed
        )?;
        for direction in &self.directions {
            let DirectionReport {
                from,
                to,
                counters,
                overrun,
                refused,
                uncut,
                lateness,
            } = direction;
            let bits_per_s = counters.bytes as f64 * 8e9 / self.elapsed_ns.max(1) as f64;
            let rate = Rate(bits_per_s as u64).shown();
            writeln!(
                f,
                "{from} to {to}: {} packets in {} frames, {} bytes ({rate} on average)",
                counters.packets, counters.frames, counters.bytes
            )?;
            writeln!(
                f,
                "  departed {}, lost {}, dropped by a full queue {} (it held {} bytes at most), \
                 held back {}, duplicated {}",
                counters.departed,
                counters.lost,
                counters.queue_drops,
                counters.queue_bytes_max,
                counters.reordered,
                counters.duplicated
            )?;
            writeln!(
                f,
                "  late by {:.3} ms on average, {:.3} ms at most; by more than 1 ms: {} of {} \
                 departures",
                lateness.mean_ns() as f64 / 1e6,
                lateness.max_ns as f64 / 1e6,
                lateness.above_1_ms,
                lateness.departures
            )?;
            for (count, what) in [
                (
                    overrun,
                    "frames came faster than the emulator took them, and were dropped",
                ),
                (
                    refused,
                    "frames were refused by the interface they were to leave from",
                ),
                (
                    uncut,
                    "frames stood for several packets but not of TCP, and counted as one each",
                ),
            ] {
                if *count > 0 {
                    writeln!(f, "  {count} {what}")?;
                }
            }
        }
        Ok(())
    }
}
