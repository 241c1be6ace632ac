//! The processes of Splitway, each started by a supervisor with its own [settings](ipc::launch).
//!
//! | Module | Purpose |
//! |---|---|
//! | [`ipc`] | links between the supervisor and processes: starting, messages, descriptors |
//! | [`host`] | the host process: connections and HTTP |
//! | [`nic`] | the NIC process: files and packets |
//! | [`relay`] | the two ends of a control link between machines |
//! | [`cluster`] | the two ends of a session between an application node and a stack node |
//! | [`broker`] | attaches applications to the host stack |
//! | [`fetcher`] | fetches from origins into the cache directory |
//! | [`observer`] | logs, metrics, dashboard |
//! | `closer` | closes descriptors of other processes |
//! | `heap` | returns memory to the kernel |
//!
//! Each process confines itself before it takes anything from outside. It may touch the stacks'
//! entry points, descriptors that the supervisor passes, and the clock. Only [`ipc::child`] starts
//! processes.

#![forbid(unsafe_code)]

pub mod broker;
mod closer;
pub mod cluster;
pub mod fetcher;
mod heap;
pub mod host;
pub mod ipc;
pub mod nic;
pub mod observer;
pub mod relay;
