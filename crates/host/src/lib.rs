//! The host stack: connections, timers, neighbours and the in-process stream interface.
//!
//! A [`Shard`] is one event loop on one core. It owns a port, a channel to every NIC worker, a timing
//! wheel and the connections; shards share nothing. Inside it, [`Stack`] does the work without any
//! system call, so that a simulation can run it too. Servers stand on [`app`].
//!
//! | Module | What it holds |
//! |---|---|
//! | [`app`] | the interface for servers: events, and what they may do |
//! | `stack` | frames and events in; SENDs and packets out |
//! | `streams` | what an application may do, on a stack |
//! | `config`, `counters` | what a shard gets at its start; what it has done |
//! | `connections`, `files`, `syn_queue`, `spent_cookies`, `sources`, `time_wait` | the tables |
//! | `sparsity` | when tables give memory back |
//! | `orphans`, `waiting` | connections that only end; connections that wait for the same thing |
//! | `by_source`, `victims` | which connections go when there are too many |
//! | `tuple`, `keyed_hash` | what they are searched by |
//! | `neighbor`, `icmp` | ARP, neighbour discovery, next hops; echo |
//! | `duplicate` | whether another machine has an own address, before it is used |
//! | `reply_limit` | how often what belongs to no connection is answered |
//! | `nic_stacks`, `balance` | which NIC stacks are there, which of their workers a connection goes to |
//! | `secure` | the TLS layer of a connection |
//! | `timer` | the timing wheel |
//! | `episode` | which of many equal events deserves a line in the log |
//! | `shard`, `polling` | the event loop and its sleep |
//! | `nic_source` | where NIC stacks come from |
//!
//! This room may touch the clock, ports, the contract, `tcp` and `tls`. It never touches file content, and it
//! does not know the NIC stack's code.

#![forbid(unsafe_code)]

pub mod app;
mod balance;
mod by_source;
mod config;
mod connections;
mod counters;
mod duplicate;
mod episode;
mod files;
mod icmp;
mod keyed_hash;
mod neighbor;
mod nic_source;
mod nic_stacks;
mod orphans;
mod polling;
mod reply_limit;
mod secure;
mod shard;
mod sources;
mod sparsity;
mod spent_cookies;
mod stack;
mod streams;
mod syn_queue;
mod time_wait;
mod timer;
mod tuple;
mod victims;
mod waiting;

pub use config::{Admission, Changeable, StackConfig};
pub use contract::Growth;
pub use counters::Counters;
pub use duplicate::{Duplicate, find_duplicate};
pub use episode::Episode;
pub use nic_source::{NicLoss, NicRefusal, NicSource};
pub use nic_stacks::NIC_STACKS_MAX;
pub use polling::Polling;
pub use shard::{Shard, ShardError, monotonic_us};
pub use stack::{
    ChannelCorrupt, ConnectionInfo, ConnectionView, FileInfo, Link, Stack, Usage, WorkerView,
};
pub use tcp::CongestionAlgorithm;
