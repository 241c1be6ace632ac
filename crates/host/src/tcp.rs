//! TCP connections.

pub(crate) mod admission;
pub(crate) mod arrival;
pub(crate) mod congestion;
pub(crate) mod connect;
pub(crate) mod fast_open;
pub(crate) mod listening;
pub(crate) mod loopback;
pub(crate) mod migration;
pub(crate) mod records;
pub(crate) mod setup;
pub(crate) mod splice;
pub(crate) mod teardown;
pub(crate) mod tls_streams;
pub(crate) mod transmit;
