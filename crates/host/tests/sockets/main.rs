//! What a stack does for applications with sockets: connections that they open, addresses that they
//! bind.
#![forbid(unsafe_code)]

mod active_open;
mod listening;
mod look_up;
mod loopback;
mod pair;
