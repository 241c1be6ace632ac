//! NIC stacks: where they come from, which are there, how many of their workers are in use, and
//! which of these a connection goes to.

pub(crate) mod balance;
pub(crate) mod governor;
pub(crate) mod nic_source;
pub(crate) mod nic_stacks;
pub(crate) mod rebalance;
