//! Which port gets an arriving frame: the host's, or that of a NIC worker.
//!
//! A map decides, an array of `bpf(2)` that the host stack writes in place (`BPF_F_MMAPABLE`) and
//! the packet filters of all ports read. Each port has a program of its own, made for the port's
//! name in the map ([`Target`]), and the programs complement each other: no two take the same
//! frame. Without an entry in the map, a frame is the host's.
//!
//! | A frame is a NIC worker's if it | |
//! |---|---|
//! | is sent to this machine alone | unicast, no VLAN, to an own address |
//! | is a TCP segment or a UDP datagram | in IP without options, extension headers or fragments |
//! | belongs to a *flow* | [`SteeringMap::list_flow`]: a connection whose frames the worker gets |
//!
//! or if it is, in place of the last,
//!
//! | | |
//! |---|---|
//! | a plain SYN of TCP | without ACK, FIN or RST, not from an own address |
//! | for a port of the map | [`SteeringMap::set_ports`] |
//! | of no known connection | [`SteeringMap::note`]: a bit for each hash of addresses and ports |
//! | and has a worker | [`SteeringMap::set_targets`]: by the same hash |
//!
//! A flow is identified by its protocol and all of its addresses and ports. A bit may be set for a
//! connection that has ended, or for another of the same hash. Then the frame is the host's, as all
//! frames are without a map; the reverse never happens.
//!
//! | File | Contents |
//! |---|---|
//! | `map` | the map, and its layout |
//! | `decide` | the decision in Rust: the reference for programs, used by simulations |
//! | `program`, `assembler` | the same as programs of eBPF |
//! | `share` | programs for addresses that the stack shares with the kernel |
//! | `siphash` | their hash |
//! | `bpf` | `bpf(2)` |

mod assembler;
mod bpf;
mod decide;
mod map;
mod program;
mod share;
mod siphash;

pub use self::decide::{Arrived, Decision, PacketType};
pub use self::map::{KEY_BYTES, Protocol, SteeringMap, Target, create_map};
pub(crate) use self::program::{Family, load};
pub(crate) use self::share::load as load_shared;
pub use self::share::{ADDRESSES_MAX, AddressSet, Share, SharedPorts, keep_from_kernel};
