//! What end-to-end tests and measurements stand on.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`namespace`] | a program in network, mount and process namespaces of its own |
//! | [`path`] | a path with an emulated link in it |
//! | [`routed`] | a path with a router in it |
//! | [`site`] | files whose every byte is known without being stored |
//! | [`splitway`] | `splitway serve`, started, awaited, and never left behind |
//! | [`web`] | an origin that does what the test says |
//! | [`backend`] | a server for what stands before it: it sends back what it got |
//! | [`fuse`] | a file system that a test stops, and whose files it changes unseen |
//! | [`injection`] | system calls that a running process is made to make |
//! | [`http`] | a client on the kernel's TCP that checks every byte |
//! | [`link`] | links that the kernel is still bringing up |
//! | [`process`] | processes: ending them, waiting for their end |
//! | [`procfs`] | what the kernel tells of a process: CPU time, memory |
//! | [`instructions`] | instructions that a piece of work takes |
//! | [`wait`] | waiting for a condition, with a deadline |
//! | [`failure`] | the error of this crate |
//!
//! Nothing here knows the product's crates: it sees what a user sees.
#![forbid(unsafe_code)]

pub mod backend;
pub mod failure;
pub mod fuse;
pub mod http;
#[cfg(target_arch = "x86_64")]
pub mod injection;
pub mod instructions;
pub mod link;
pub mod namespace;
pub mod path;
pub mod process;
pub mod procfs;
pub mod routed;
pub mod site;
pub mod splitway;
pub mod wait;
pub mod web;

pub use failure::{Context, Failure, Result};
