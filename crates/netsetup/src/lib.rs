//! The network around the stack, as the kernel sees it: interfaces, addresses, namespaces, and the
//! sockets between processes.
//!
//! | Module | Its one idea |
//! |---|---|
//! | [`cidr`] | an address and the length of its prefix |
//! | [`netlink`] | rtnetlink queries and changes |
//! | [`device`] | an interface that exists, and the stack's addresses on it |
//! | [`shared`], [`held_ports`] | an interface with addresses that the kernel has as well |
//! | [`veth`] | a veth pair of Splitway's own |
//! | [`namespace`] | a user namespace, for those without privileges |
//! | [`address_lock`] | one stack for each address of a link |
//! | [`seqpacket`], [`listener`] | Unix sockets between processes, and a path where others connect |
//!
//! ```
//! use netsetup::cidr::Cidr;
//!
//! let link: Cidr = "192.0.2.1/24".parse()?;
//! assert!(link.contains("192.0.2.77".parse().unwrap()));
//! # Ok::<(), netsetup::cidr::CidrError>(())
//! ```
//!
//! This crate may touch namespaces, interfaces and Unix sockets. It never sees packets.

#![forbid(unsafe_code)]

pub mod address_lock;
pub mod cidr;
pub mod device;
pub mod held_ports;
pub mod listener;
pub mod namespace;
pub mod netlink;
pub mod seqpacket;
pub mod shared;
pub mod veth;
