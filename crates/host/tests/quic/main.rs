//! QUIC connections: clients are quinn, a NIC stack fills in and seals with aws-lc, and the host is
//! what is tested.
#![forbid(unsafe_code)]

mod app;
mod closes;
mod crowded;
mod downloads;
mod early;
mod flood;
mod memory;
mod nic;
mod nics;
mod opener;
mod preferred;
mod receive;
mod strays;
mod streams;
mod world;
