//! Hardware: parameters, each with its source.

/// Gbit/s of one GB/s.
pub const GBIT_PER_GB: f64 = 8.0;

/// A number from an outside source, or an assumption.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameter {
    /// Its value.
    pub value: f64,
    /// Unit of the value.
    pub unit: &'static str,
    /// The source; "assumed", with the reason, if there is none.
    pub source: &'static str,
}

const fn parameter(value: f64, unit: &'static str, source: &'static str) -> Parameter {
    Parameter {
        value,
        unit,
        source,
    }
}

/// A NIC that runs a NIC stack on cores of its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Nic {
    /// Its name.
    pub name: &'static str,
    /// Rate of all ports together.
    pub link: Parameter,
    /// Peak bandwidth of its memory, reads and writes together.
    pub memory: Parameter,
    /// Peak sending rate of its cores, with the bytes already in its memory.
    pub cores: Parameter,
    /// Bandwidth of its PCIe slot in one direction.
    pub pcie: Parameter,
}

/// Mellanox BlueField-2, as in the paper.
pub const BLUEFIELD_2: Nic = Nic {
    name: "BlueField-2",
    link: parameter(100.0, "Gbit/s", "IO-TCP §5.1: 100G BlueField-2"),
    memory: parameter(
        25.6,
        "GB/s",
        "IO-TCP footnote 7; NVIDIA BlueField-2 manual: one channel of DDR4-3200, 64 bit",
    ),
    cores: parameter(
        80.0,
        "Gbit/s",
        "IO-TCP §5.4: what a NIC reaches without disk I/O, taken for the limit of its eight A72 \
         cores",
    ),
    pcie: parameter(
        252.0,
        "Gbit/s",
        "NVIDIA BlueField-2 manual: PCIe 4.0 x16, 16 GT/s, 128b/130b",
    ),
};

/// NVIDIA BlueField-3.
pub const BLUEFIELD_3: Nic = Nic {
    name: "BlueField-3",
    link: parameter(400.0, "Gbit/s", "NVIDIA BlueField-3 datasheet"),
    memory: parameter(
        89.6,
        "GB/s",
        "NVIDIA BlueField-3 manual: DDR5-5600, 128 bit; IO-TCP §5.4 says about 90",
    ),
    cores: parameter(
        240.0,
        "Gbit/s",
        "assumed: BlueField-2's, times two for 16 cores instead of 8, times 1.5 for an A78 instead \
         of an A72",
    ),
    pcie: parameter(
        504.0,
        "Gbit/s",
        "NVIDIA BlueField-3 manual: PCIe 5.0 x16, 32 GT/s, 128b/130b",
    ),
};

/// A disk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Disk {
    /// Its name.
    pub name: &'static str,
    /// Peak read rate.
    pub read: Parameter,
    /// Peak rate of 4 KiB reads.
    pub reads_per_s: Parameter,
}

/// Intel Optane 900P, as in the paper.
pub const OPTANE_900P: Disk = Disk {
    name: "Intel Optane 900P",
    read: parameter(2.5, "GB/s", "IO-TCP §5.1: advertised 2500 MB/s"),
    reads_per_s: parameter(
        550e3,
        "reads/s",
        "Intel Optane SSD 900P, product brief: 4 KB, random",
    ),
};

/// A disk on four lanes of PCIe 4.0.
pub const PCIE_4_DISK: Disk = Disk {
    name: "NVMe on PCIe 4.0 x4",
    read: parameter(
        6.9,
        "GB/s",
        "Samsung PM9A3, product brief: 6,900 MB/s sequential",
    ),
    reads_per_s: parameter(
        1.1e6,
        "reads/s",
        "Samsung PM9A3, product brief: 4 KB, random",
    ),
};

/// A disk on four lanes of PCIe 5.0.
pub const PCIE_5_DISK: Disk = Disk {
    name: "NVMe on PCIe 5.0 x4",
    read: parameter(
        14.0,
        "GB/s",
        "Samsung PM1743, product brief: 14,000 MB/s sequential",
    ),
    reads_per_s: parameter(
        2.5e6,
        "reads/s",
        "Samsung PM1743, product brief: 4 KB, random",
    ),
};

/// Fraction of a link's rate that is stream bytes.
pub const GOODPUT: Parameter = parameter(
    1448.0 / 1538.0,
    "",
    "MTU 1500: 20 bytes IPv4, 32 TCP with timestamps, 18 Ethernet, 20 preamble and gap (IEEE \
     802.3)",
);

/// Bytes moved by a NIC's memory for each byte from a disk to the wire.
pub const MEMORY_BYTES_PER_BYTE: Parameter = parameter(
    25.6 / (95.2 / 2.0 / GBIT_PER_GB),
    "",
    "calibrated: IO-TCP §5.2, 95.2 Gbit/s on two BlueField-2 with disks to spare, limited by their \
     memory. Two (once in, once out) would do if the memory reached its peak",
);

/// CPU time of a NIC worker on a core of the host machine, through a packet socket.
pub const SOFTWARE_NIC: Parameter = parameter(
    0.20,
    "s/GB",
    "measured: `make bench`, superpackets of 257 KB",
);

/// CPU time of the host stack for a frame from the ring of a packet socket, which the calibration
/// excludes.
pub const FRAME_RECEPTION: Parameter = parameter(0.07, "µs", "measured: TPACKET_V2 ring");
