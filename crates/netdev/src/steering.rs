//! Which port gets an arriving frame: the host's, or that of a NIC worker.
//!
//! A map decides, an array of `bpf(2)` that the host stack writes in place (`BPF_F_MMAPABLE`) and
//! the packet filters of all ports read. Each port has a program of its own, made for the name that
//! the map knows it by ([`Target`]), and the programs complement each other: what one takes, no
//! other does. Where the map says nothing, a frame is the host's.
//!
//! | A frame is a NIC worker's if it | |
//! |---|---|
//! | is sent to this machine alone | unicast, no VLAN, to an own address |
//! | is a TCP segment or a datagram of UDP | in an IP packet without options, extension headers or fragments |
//! | belongs to a *flow* | [`SteeringMap::list_flow`]: a connection whose frames the worker gets, whatever their flags |
//!
//! or if it is, in place of the last,
//!
//! | | |
//! |---|---|
//! | a plain SYN of TCP | without ACK, FIN or RST, not from an own address |
//! | for a port of the map | [`SteeringMap::set_ports`] |
//! | of no connection that the host may know | [`SteeringMap::note`]: a bit for each hash of addresses and ports |
//! | and has a worker | [`SteeringMap::set_targets`]: by the same hash |
//!
//! A flow is known by its protocol and all of its addresses and ports. A bit may be set for a
//! connection that has ended, or for another of the same hash. Then the frame is the host's, as all
//! are without a map: it is never the other way round.
//!
//! | File | What it holds |
//! |---|---|
//! | `map` | the map, and its layout |
//! | `decide` | the decision in Rust: what programs are held against, and what a simulation uses |
//! | `program`, `assembler` | the same as programs of eBPF |
//! | `siphash` | their hash |
//! | `bpf` | `bpf(2)` |

mod assembler;
mod bpf;
mod decide;
mod map;
mod program;
mod siphash;

pub use self::decide::{Arrived, Decision, PacketType};
pub use self::map::{KEY_BYTES, Protocol, SteeringMap, Target, create_map};
pub(crate) use self::program::{Family, load};
