//! The processes that do the work, each started by a supervisor with [settings](crate::ipc::launch)
//! of its own.
//!
//! | Module | What it does |
//! |---|---|
//! | `host` | the host process: connections and HTTP |
//! | `nic` | the NIC process: files and packets |
//! | `relay` | the two ends of a control link between machines |
//! | `fetcher` | fetches from origins into the cache directory |
//! | `observer` | logs, metrics, dashboard |
//! | `heap` | memory that goes back to the kernel |

pub(crate) mod fetcher;
pub(crate) mod heap;
pub(crate) mod host;
pub(crate) mod nic;
pub(crate) mod observer;
pub(crate) mod relay;
