//! Peers for tests, which replace the other stack, the client or the device.
//!
//! | Module | Peer |
//! |---|---|
//! | [`nic`] | a NIC stack, at its end of the rings |
//! | [`sealer`] | the part of a NIC stack that seals records, with RustCrypto |
//! | [`recording_port`] | a port that records sent packets |
//! | [`null_port`] | a port that drops all packets |
//! | [`site`] | a TLS listener with certificates, and clients that trust them |
//! | [`tls_server`] | a TLS connection of the host stack with its sealer |
//! | [`run_sealer`] | the sealer of such a connection |
//! | [`tls_pair`] | the client of rustls against such a connection |
//! | [`quic_client`] | a QUIC client: quinn-proto and rustls, unmodified |
//! | [`http2`] | frames and field blocks of a client of HTTP/2 |
//! | [`http3`] | frames and fields of an HTTP/3 client |
//! | [`weather`] | effects of a network on datagrams |
//! | [`forger`] | a TLS client that sends arbitrary records |
//! | [`keys`] | keys that seal and open records by RustCrypto |
//! | [`content`] | content of files, computed instead of stored |
//! | [`seeds`] | randomised tests that report the seed of a failure |
//!
//! It may depend on the crates that both stacks share, and on neither stack. Only tests, benchmarks
//! and the simulation use it.

#![forbid(unsafe_code)]

pub mod content;
pub mod forger;
pub mod http2;
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
