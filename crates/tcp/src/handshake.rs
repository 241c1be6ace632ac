//! Connections before they are established: half-open ones, SYN cookies, initial sequence numbers.

pub(crate) mod fast_open;
pub(crate) mod half_open;
pub(crate) mod isn;
pub(crate) mod syn_cookie;
