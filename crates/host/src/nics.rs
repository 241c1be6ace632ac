//! NIC stacks: their sources, their presence, the number of workers in use, and the worker of a
//! connection.

pub(crate) mod balance;
pub(crate) mod governor;
pub(crate) mod nic_source;
pub(crate) mod nic_stacks;
pub(crate) mod rebalance;
