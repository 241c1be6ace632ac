//! Frame and packet headers, checksums.
//!
//! [`frame::parse`] turns a received Ethernet frame into a [`frame::Received`];
//! [`frame::TcpTemplate`] writes the headers of a TCP packet, and [`frame::HeaderMut`] changes such
//! headers in place (the NIC stack does, for every superpacket it cuts from a SEND).
//! [`datagram`] and [`frame::UdpHeaderMut`] are the same for datagrams.
//!
//! | Module | Content |
//! |---|---|
//! | [`frame`] | whole frames: classification of received ones, headers of outgoing ones |
//! | [`ethernet`], [`ip`], [`tcp`] | one layer each; TCP and its options are written for speed |
//! | [`datagram`] | UDP: datagrams that have arrived, and whole ones to be sent |
//! | [`arp`], [`icmp`], [`icmpv4`], [`icmpv6`] | the cold paths, on `smoltcp::wire` |
//! | [`checksum`] | the Internet checksum (RFC 1071) |
//! | `error` | reasons for dropping a frame |
//!
//! This crate may touch its arguments only. Its input may be hostile: every function that takes
//! received bytes answers with an error value, never a panic.

#![forbid(unsafe_code)]

pub mod arp;
pub mod checksum;
pub mod datagram;
pub mod ethernet;
pub mod frame;
pub mod icmp;
pub mod icmpv4;
pub mod icmpv6;
pub mod ip;
pub mod tcp;

mod error;

pub use error::ParseError;
