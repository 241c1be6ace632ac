//! Foundation of end-to-end tests and measurements.
//!
//! | Module | Contents |
//! |---|---|
//! | [`namespace`] | a program in network, mount and process namespaces of its own |
//! | [`path`] | a path with an emulated link in it |
//! | [`routed`] | a path with a router in it |
//! | [`site`] | files whose bytes are computed instead of stored |
//! | [`splitway`] | `splitway serve`, started, awaited, and always ended |
//! | [`web`] | an origin with responses chosen by the test |
//! | [`backend`] | a server behind a proxy, which echoes received data |
//! | [`fuse`] | a file system that a test stops, and whose files it changes undetected |
//! | [`injection`] | system calls injected into a running process |
//! | [`http`] | a client on the kernel's TCP that checks every byte |
//! | [`link`] | new links of the kernel, until they are up |
//! | [`process`] | processes: ending them, waiting for their end |
//! | [`procfs`] | the kernel's accounts of a process: CPU time, memory |
//! | [`instructions`] | instruction counts of a workload |
//! | [`wait`] | waiting for a condition, with a deadline |
//! | [`failure`] | the error of this crate |
//!
//! It does not depend on the product's crates: it has a user's view.
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
