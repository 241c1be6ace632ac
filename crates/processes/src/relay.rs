//! The relay: a process on each of two machines that acts as the stack on the other.
//!
//! | Module | Purpose |
//! |---|---|
//! | `host_side` | on the host's machine, in the place of a NIC process |
//! | `nic_side` | on the NIC stack's machine, in the place of the host process |

pub mod host_side;
pub mod nic_side;
