//! NIC stacks: where they come from, which are there, and which of their workers a connection goes
//! to.

pub(crate) mod balance;
pub(crate) mod nic_source;
pub(crate) mod nic_stacks;
