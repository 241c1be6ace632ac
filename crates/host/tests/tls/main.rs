//! Connections that speak TLS: the client is rustls, the NIC stack seals with RustCrypto, and the
//! host is what is tested.
#![forbid(unsafe_code)]

mod client;
mod crowded;
mod downloads;
mod ends;
mod hostile;
mod moved;
mod replaced;
mod restarts;
#[path = "../rig/mod.rs"]
mod rig;
