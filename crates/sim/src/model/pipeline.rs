//! The stations that a byte passes from disk to wire, and the host core that controls them. Each
//! has a rate, and the slowest decides: with the number of connections that content servers have,
//! every station always has work queued.

use super::Calibration;
use super::hardware::{
    Disk, FRAME_RECEPTION, GBIT_PER_GB, GOODPUT, MEMORY_BYTES_PER_BYTE, Nic, SOFTWARE_NIC,
};

/// A station.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Station {
    /// The cores of the host stack.
    HostCores,
    /// The disks.
    Disks,
    /// The NICs' slots, through which bytes come from the disks.
    Pcie,
    /// The NICs' memory.
    NicMemory,
    /// The NICs' cores.
    NicCores,
    /// The links.
    Links,
}

impl Station {
    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Station::HostCores => "host cores",
            Station::Disks => "NVMe disks",
            Station::Pcie => "PCIe slot",
            Station::NicMemory => "NIC memory bandwidth",
            Station::NicCores => "NIC cores",
            Station::Links => "link",
        }
    }
}

/// Unit that clients acknowledge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acks {
    /// Superpackets of 64 KB.
    Superpacket,
    /// Two packets.
    TwoPackets,
}

/// A server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Server {
    /// Model of its NICs.
    pub nic: Nic,
    /// Number of NICs.
    pub nics: usize,
    /// Model of its disks.
    pub disk: Disk,
    /// Number of disks, all NICs together. Zero: everything is in the NICs' memory.
    pub disks: usize,
    /// Cores of the host stack.
    pub host_cores: usize,
}

impl Calibration {
    /// Returns the rate that one core controls, in Gbit/s, with frames from a packet socket's ring
    /// instead of memory.
    pub fn gbit_per_core(&self, acks: Acks) -> f64 {
        let (s_per_gb, acks_per_gb) = match acks {
            Acks::Superpacket => (self.superpacket_s_per_gb, self.superpacket_acks_per_gb),
            Acks::TwoPackets => (self.two_packets_s_per_gb, self.two_packets_acks_per_gb),
        };
        let reception_s_per_gb = acks_per_gb * FRAME_RECEPTION.value / 1e6;
        GBIT_PER_GB / (s_per_gb + reception_s_per_gb)
    }
}

impl Server {
    /// Returns the rate of each station, in Gbit/s of files.
    pub fn rates(&self, calibration: &Calibration, acks: Acks) -> Vec<(Station, f64)> {
        let nics = self.nics as f64;
        let memory = self.nic.memory.value * GBIT_PER_GB;
        let mut rates = vec![
            (
                Station::HostCores,
                self.host_cores as f64 * calibration.gbit_per_core(acks),
            ),
            (Station::NicCores, nics * self.nic.cores.value),
            (Station::Links, nics * self.nic.link.value * GOODPUT.value),
        ];
        if self.disks > 0 {
            let disks = self.disks as f64 * self.disk.read.value * GBIT_PER_GB;
            rates.extend([
                (Station::Disks, disks),
                (Station::Pcie, nics * self.nic.pcie.value),
                (
                    Station::NicMemory,
                    nics * memory / MEMORY_BYTES_PER_BYTE.value,
                ),
            ]);
        }
        rates
    }

    /// Returns the slowest station and its rate, which is the server's.
    pub fn bottleneck(&self, calibration: &Calibration, acks: Acks) -> (Station, f64) {
        let rates = self.rates(calibration, acks).into_iter();
        let slowest = rates.min_by(|a, b| a.1.total_cmp(&b.1));
        slowest.expect("there are always some")
    }
}

/// Hardware needed to reach a rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Needs {
    /// The rate, in Gbit/s of files.
    pub gbit_per_s: f64,
    /// Cores of the host stack.
    pub host_cores: usize,
    /// Number of NICs.
    pub nics: usize,
    /// The station that requires this number of NICs.
    pub nics_for: Station,
    /// Number of disks.
    pub disks: usize,
    /// Cores of the same machine that replace the NICs, if there are none.
    pub software_nic_cores: usize,
}

/// Computes the hardware needed to reach a rate with these NICs and disks.
pub fn needs(
    gbit_per_s: f64,
    nic: Nic,
    disk: Disk,
    calibration: &Calibration,
    acks: Acks,
) -> Needs {
    let count = |each: f64| (gbit_per_s / each).ceil().max(1.0) as usize;
    let one = Server {
        nic,
        nics: 1,
        disk,
        disks: 1,
        host_cores: 1,
    };
    let of_nic =
        |&(station, _): &(Station, f64)| !matches!(station, Station::HostCores | Station::Disks);
    let rates = one.rates(calibration, acks);
    let slowest = rates.iter().copied().filter(of_nic);
    let (nics_for, each_nic) = slowest
        .min_by(|a, b| a.1.total_cmp(&b.1))
        .expect("a NIC has a link");
    Needs {
        gbit_per_s,
        host_cores: count(calibration.gbit_per_core(acks)),
        nics: count(each_nic),
        nics_for,
        disks: count(disk.read.value * GBIT_PER_GB),
        software_nic_cores: count(GBIT_PER_GB / SOFTWARE_NIC.value),
    }
}

#[cfg(test)]
mod tests {
    use super::super::hardware::{BLUEFIELD_2, BLUEFIELD_3, OPTANE_900P, PCIE_5_DISK};
    use super::super::paper::{self, Point};
    use super::*;

    /// A core that is never the bottleneck in the paper's measurements.
    const FAST: Calibration = Calibration {
        connections: 1600,
        superpacket_s_per_gb: 0.016,
        superpacket_acks_per_gb: 16e3,
        two_packets_s_per_gb: 0.08,
        two_packets_acks_per_gb: 345e3,
    };

    fn of_paper(nics: usize, disks: usize) -> Server {
        Server {
            nic: BLUEFIELD_2,
            nics,
            disk: OPTANE_900P,
            disks,
            host_cores: 1,
        }
    }

    /// Returns the model's error, as a fraction of the measured value.
    fn error(server: &Server, point: &Point) -> f64 {
        let (_, modelled) = server.bottleneck(&FAST, Acks::Superpacket);
        (modelled - point.value).abs() / point.value
    }

    #[test]
    fn what_the_paper_measured_comes_out_where_the_model_was_not_calibrated() {
        // Within 10 %: the model has no losses but those of the slowest station.
        for (server, point, station) in [
            (of_paper(2, 4), paper::PLAIN, Station::Disks),
            (of_paper(2, 4), paper::TLS, Station::Disks),
            (of_paper(1, 4), paper::ONE_NIC, Station::NicMemory),
        ] {
            let (slowest, modelled) = server.bottleneck(&FAST, Acks::Superpacket);
            assert_eq!(slowest, station, "{point:?}");
            assert!(error(&server, &point) < 0.1, "{modelled}, {point:?}");
        }
    }

    #[test]
    fn what_the_model_was_calibrated_with_comes_out_again() {
        let spare = of_paper(2, 8);
        assert_eq!(
            spare.bottleneck(&FAST, Acks::Superpacket).0,
            Station::NicMemory
        );
        assert!(error(&spare, &paper::DISKS_TO_SPARE) < 1e-9);
        assert!(error(&of_paper(1, 0), &paper::NO_DISK) < 1e-9);
    }

    #[test]
    fn the_next_nic_does_what_the_authors_expect_of_it() {
        let server = Server {
            nic: BLUEFIELD_3,
            disk: PCIE_5_DISK,
            ..of_paper(1, 8)
        };
        let (_, modelled) = server.bottleneck(&FAST, Acks::Superpacket);
        assert!(modelled > paper::BLUEFIELD_3_EXPECTED.value, "{modelled}");
    }

    #[test]
    fn more_of_anything_is_never_slower() {
        let rate = |server: &Server| server.bottleneck(&FAST, Acks::Superpacket).1;
        for (nics, disks) in [(1, 1), (1, 4), (2, 4), (4, 8), (8, 64)] {
            let server = of_paper(nics, disks);
            let more = [
                Server {
                    nics: nics + 1,
                    ..server
                },
                Server {
                    disks: disks + 1,
                    ..server
                },
                Server {
                    host_cores: 2,
                    ..server
                },
                Server {
                    nic: BLUEFIELD_3,
                    ..server
                },
            ];
            for more in more {
                assert!(rate(&more) >= rate(&server), "{more:?}");
            }
        }
    }

    #[test]
    fn more_acks_need_more_of_the_host_and_nothing_else() {
        assert!(FAST.gbit_per_core(Acks::TwoPackets) < FAST.gbit_per_core(Acks::Superpacket));
        let [few, many] = [Acks::Superpacket, Acks::TwoPackets]
            .map(|acks| needs(400.0, BLUEFIELD_3, PCIE_5_DISK, &FAST, acks));
        assert!(many.host_cores > few.host_cores);
        assert_eq!((many.nics, many.disks), (few.nics, few.disks));
    }

    #[test]
    fn what_is_needed_reaches_the_rate_and_one_less_does_not() {
        for gbit_per_s in [1.0, 100.0, 200.0, 400.0, 800.0] {
            for nic in [BLUEFIELD_2, BLUEFIELD_3] {
                let needs = needs(gbit_per_s, nic, PCIE_5_DISK, &FAST, Acks::TwoPackets);
                let server = Server {
                    nic,
                    nics: needs.nics,
                    disk: PCIE_5_DISK,
                    disks: needs.disks,
                    host_cores: needs.host_cores,
                };
                let rate = |server: &Server| server.bottleneck(&FAST, Acks::TwoPackets).1;
                assert!(rate(&server) >= gbit_per_s);
                let less = Server {
                    nics: needs.nics - 1,
                    ..server
                };
                assert!(rate(&less) < gbit_per_s);
            }
        }
    }
}
