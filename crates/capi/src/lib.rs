//! Sockets of the split stack for other programs: libsplitway.
//!
//! A program that links this library has its TCP connections in the host stack, and sends files
//! that only the NIC stack reads. A split socket is a real descriptor, so `dup`, `fork`, `epoll`
//! and the rest of what the kernel knows of descriptors go on to work; bytes go through memory that
//! the program shares with the host stack.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`client`] | the application's half of the channel, as safe Rust |
//! | [`abi`] | the same as C functions: `splitway.h` |
//! | `sys` | calls of the C library that have no safe form |
//!
//! It touches the broker's socket, the application's shared memory, and descriptors; `unsafe` is in
//! `abi` and `sys` only.
#![deny(unsafe_code)]

#[allow(unsafe_code, reason = "C passes pointers")]
pub mod abi;
pub mod client;
#[allow(unsafe_code, reason = "it is what the module is for")]
mod sys;

pub use client::Client;
pub use socket_channel::message::Info;
pub use socket_channel::{Family, FileMeta, How};
