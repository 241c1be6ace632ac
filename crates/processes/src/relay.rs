//! The relay: on each of two machines, the process that stands for the stack of the other.
//!
//! | Module | What it does |
//! |---|---|
//! | `host_side` | on the host's machine, in the place of a NIC process |
//! | `nic_side` | on the NIC stack's machine, in the place of the host process |

pub mod host_side;
pub mod nic_side;
