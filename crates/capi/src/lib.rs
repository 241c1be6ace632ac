//! Sockets of the split stack for other programs: libsplitway.
//!
//! The TCP connections of a program that links this library live in the host stack, and only the
//! NIC stack reads the files that it sends. A split socket is a real descriptor, so `dup`, `fork`,
//! `epoll` and the kernel's other operations on descriptors work on it; bytes go through memory
//! that the program shares with the host stack.
//!
//! | Module | Contents |
//! |---|---|
//! | [`client`] | the application's half of the channel, as safe Rust |
//! | [`abi`] | the same as C functions: `splitway.h` |
//! | `sys` | calls of the C library that have no safe form |
//!
//! ```no_run
//! use std::io::IoSlice;
//! use std::os::fd::AsFd;
//!
//! use splitway::client::{Client, DescriptorFlags, Options, SendFlags};
//! use splitway::{Family, How};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::attach(&Options::from_environment()?)?;
//! let socket = client.socket(Family::V4, DescriptorFlags::default())?;
//! client.connect(socket.as_fd(), ([192, 0, 2, 1], 7).into())?;
//! client.send(socket.as_fd(), &[IoSlice::new(b"hello")], SendFlags::default())?;
//! client.shutdown(socket.as_fd(), How::Write)?;
//! client.close(socket)?;
//! # Ok(())
//! # }
//! ```
//!
//! The library uses the broker's socket, the application's shared memory, and descriptors. Only
//! `abi` and `sys` contain `unsafe` code.
#![deny(unsafe_code)]

#[allow(unsafe_code, reason = "C passes pointers")]
pub mod abi;
pub mod client;
#[allow(unsafe_code, reason = "it is what the module is for")]
mod sys;

pub use client::Client;
pub use socket_channel::message::Info;
pub use socket_channel::{Family, FileMeta, How, SpliceStage};
