//! CPU cost of disk reads (IO-TCP, figure 3): a core issues reads until it or the disks are
//! saturated.

use super::hardware::Disk;

/// CPU cost of a read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReadCost {
    /// For each read, in microseconds.
    pub read_us: f64,
    /// For each page of 4 KiB that it fills, in microseconds.
    pub page_us: f64,
}

/// fio on the paper's CPU (Xeon Silver 4210, Linux 4.14). Assumed, within the bounds of the paper's
/// two statements: with reads of 4 KB a core saturates one disk and not two, so a read takes more
/// than 0.91 µs; with 16 KB three and not four, so a read takes between 1.64 and 2.18 µs.
pub const FIO: ReadCost = ReadCost {
    read_us: 1.5,
    page_us: 0.1,
};

/// A NIC worker: io_uring, O_DIRECT, blocks of 64 KiB. Measured: 0.008 s/GB, 0.52 µs for a block.
pub const NIC_WORKER: ReadCost = ReadCost {
    read_us: 0.36,
    page_us: 0.01,
};

const PAGE_BYTES: u64 = 4096;

impl ReadCost {
    /// Returns the CPU time of a read of `block_bytes`, in microseconds.
    pub fn us(&self, block_bytes: u64) -> f64 {
        self.read_us + self.page_us * block_bytes.div_ceil(PAGE_BYTES) as f64
    }

    /// Returns the fraction of a core that `disks` disks take at their full rate; more than 1 if
    /// one core does not suffice.
    pub fn core_share(&self, disk: &Disk, disks: usize, block_bytes: u64) -> f64 {
        let by_bytes = disk.read.value * 1e9 / block_bytes as f64;
        let reads_per_s = by_bytes.min(disk.reads_per_s.value);
        disks as f64 * reads_per_s * self.us(block_bytes) / 1e6
    }
}

#[cfg(test)]
mod tests {
    use super::super::hardware::OPTANE_900P;
    use super::super::paper;
    use super::*;

    #[test]
    fn a_core_saturates_as_many_disks_as_in_the_paper() {
        for (block_bytes, saturated, too_many) in paper::FIO {
            assert!(FIO.core_share(&OPTANE_900P, saturated, block_bytes) <= 1.0);
            assert!(FIO.core_share(&OPTANE_900P, too_many, block_bytes) > 1.0);
        }
    }

    #[test]
    fn larger_blocks_cost_a_core_less_and_more_disks_more() {
        for cost in [FIO, NIC_WORKER] {
            for (small, large) in [
                (4 << 10, 16 << 10),
                (16 << 10, 64 << 10),
                (64 << 10, 1 << 20),
            ] {
                for disks in 1..8 {
                    let share = |block, disks| cost.core_share(&OPTANE_900P, disks, block);
                    assert!(share(large, disks) < share(small, disks));
                    assert!(share(small, disks + 1) > share(small, disks));
                }
            }
        }
        assert_eq!(FIO.core_share(&OPTANE_900P, 0, 4096), 0.0);
    }

    #[test]
    fn a_nic_workers_read_costs_what_was_measured() {
        let s_per_gb = NIC_WORKER.us(64 << 10) / 1e6 * (1e9 / f64::from(64 << 10));
        assert!((s_per_gb - 0.008).abs() < 0.0005, "{s_per_gb}");
    }
}
