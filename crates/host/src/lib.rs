//! The host stack: connections, timers, neighbours and the in-process stream interface.
//!
//! A [`Shard`] is one event loop on one core. It owns a port, a channel to every NIC worker, a
//! timing wheel and the connections; shards share nothing. Inside it, [`Stack`] does the work
//! without any system call, so that a simulation can run it too. Servers stand on [`app`].
//!
//! | Module | Contents |
//! |---|---|
//! | [`app`] | the interface for servers: events and operations |
//! | [`splicing`] | the same of streams that a NIC stack joins |
//! | `stack` | frames and events in, to a layer; SENDs and packets out |
//! | `tcp`, `quic` | the layers: each transport's connections |
//! | `ground` | what both stand on: the link, NIC workers, files, events, counters |
//! | `streams` | operations of an application, to the layer of the stream |
//! | `applications` | two applications of one shard |
//! | `config`, `counters` | configuration of a shard; its counters |
//! | `tables/` | `connections`, `files`, `syn_queue`, `spent_cookies`, `sources`, `time_wait` |
//! | ... their keys, and how they shrink | `tuple`, `keyed_hash`; `sparsity` |
//! | ... connections that only end; that wait for the same thing | `orphans`, `waiting` |
//! | ... connections of which a NIC stack runs the end, and that it joins | `parted`; `splices` |
//! | ... bound addresses; ports of connections from this side | `bindings`; `ephemeral_ports` |
//! | ... which connections go when there are too many | `by_source`, `victims` |
//! | `nics/` | `nic_source`; `nic_stacks`, `balance`, `rebalance`: choice of workers; `governor` |
//! | `link/` | `neighbor`: ARP, NDP; `icmp`; `duplicate`: address detection; `mac`; `reply_limit` |
//! | `tls_layer` | the TLS layer of a connection |
//! | `timer` | the timing wheel |
//! | `episode` | which of many equal events deserves a line in the log |
//! | `shard`, `polling` | the event loop and its sleep |
//!
//! It may touch the clock, ports, the contract, `tcp`, `tls` and `quic`. It never touches file
//! content, and it does not know the NIC stack's code.

#![forbid(unsafe_code)]

pub mod app;
mod applications;
mod config;
mod counters;
mod episode;
mod ground;
mod link;
mod nics;
mod polling;
mod quic;
mod shard;
pub mod splicing;
mod stack;
mod streams;
mod tables;
mod tcp;
mod timer;
mod tls_layer;

pub use crate::ground::link::Link;
pub use crate::quic::{
    QuicInfo, QuicListenError, QuicListener, QuicTraceEvent, QuicTraceRefusal, QuicTraceWanted,
    QuicTracer, TracedConnection,
};
/// What traces of QUIC connections consist of.
pub use ::quic::{
    CloseReason as QuicCloseReason, CongestionState, Metrics, PacketType, TraceEvent, TracedFrame,
    TracedPacket,
};
pub use ::quic::{
    PreferredAddress as QuicPreferredAddress, Secret as QuicSecret, Settings as QuicSettings,
};
pub use ::tcp::CongestionAlgorithm;
pub use applications::{Absent, Applications};
pub use config::{
    Admission, Changeable, HeaderPort, OffloadPolicy, Proxies, QuicReceive, StackConfig,
};
pub use contract::{Growth, PassedId};
pub use counters::Counters;
pub use episode::Episode;
pub use link::duplicate::{Duplicate, find_duplicate};
pub use nics::nic_source::{NicLoss, NicSource};
pub use nics::nic_stacks::{NIC_STACKS_MAX, NicRefusal};
pub use polling::Polling;
pub use shard::{Shard, ShardError, monotonic_us};
pub use stack::{
    ChannelCorrupt, ConnectionInfo, ConnectionView, DivisionView, FileInfo, Stack, Usage,
    WorkerView,
};
pub use tables::sources::Source;
