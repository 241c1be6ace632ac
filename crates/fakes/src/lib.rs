//! Peers that tests play by hand: what stands where the other stack, the client or the device
//! would.
//!
//! | Module | What it plays |
//! |---|---|
//! | [`nic`] | a NIC stack, at its end of the rings |
//! | [`sealer`] | the part of it that seals records, with RustCrypto |
//! | [`recording_port`] | a port that records what is sent |
//! | [`null_port`] | a port that drops all of it |
//! | [`site`] | a TLS listener with certificates, and clients that trust them |
//! | [`tls_server`] | a TLS connection of the host stack with what seals for it |
//! | [`run_sealer`] | ... which is this |
//! | [`tls_pair`] | the client of rustls against it |
//! | [`quic_client`] | a QUIC client: quinn-proto and rustls, as they are |
//! | [`http3`] | what a client of HTTP/3 sends and reads on its streams |
//! | [`weather`] | what a network does to datagrams |
//! | [`forger`] | a TLS client that does as it likes |
//! | [`keys`] | keys that seal and open records by RustCrypto |
//! | [`content`] | content of files that is known without being stored |
//! | [`seeds`] | randomised tests that say which seed replays them |
//!
//! It may touch what both stacks share, and neither of them. Only tests, benchmarks and the
//! simulation use it.

#![forbid(unsafe_code)]

pub mod content;
pub mod forger;
pub mod http3;
pub mod keys;
pub mod nic;
pub mod null_port;
pub mod quic_client;
pub mod recording_port;
pub mod run_sealer;
pub mod sealer;
pub mod seeds;
pub mod site;
pub mod tls_pair;
pub mod tls_server;
pub mod weather;
