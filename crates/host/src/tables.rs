//! The tables of a shard: connections, half-open and ended ones, files, sources, and the order in
//! which they go.

pub(crate) mod bindings;
pub(crate) mod by_source;
pub(crate) mod connections;
pub(crate) mod ephemeral_ports;
pub(crate) mod files;
pub(crate) mod keyed_hash;
pub(crate) mod orphans;
pub(crate) mod parted;
pub(crate) mod sources;
pub(crate) mod sparsity;
pub(crate) mod spent_cookies;
pub(crate) mod splices;
pub(crate) mod syn_queue;
pub(crate) mod time_wait;
pub(crate) mod tuple;
pub(crate) mod victims;
pub(crate) mod waiting;
