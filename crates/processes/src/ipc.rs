//! The link between the supervisor and its processes: how a process starts, the messages of both
//! sides, how it ends.
//!
//! | Module | Purpose |
//! |---|---|
//! | `launch` | starting a process with its settings |
//! | `child` | a process, seen by its supervisor and by itself |
//! | `messages` | the messages of each pair of processes |
//! | `nic_control` | messages to a NIC process |
//! | `fd_passing` | messages with descriptors |
//! | `sealed` | sealed memory files |
//! | `host_configuration` | the configuration of the host process, at its start and on reload |
//! | `stat_report` | the document of `splitway stat` |
//! | `shared_link` | ports on an interface whose addresses the kernel has as well |
//! | `ablation` | switches for measurements, absent from configuration files |
//! | `capture_request` | request and answer of `splitway capture` |
//! | `qlog_request` | request and answer of `splitway qlog` |
//! | `timeouts` | timeouts of both sides |
//! | `signals` | signals as descriptors |
//! | `log_lines` | writing lines to standard error |

pub mod ablation;
pub mod capture_request;
pub mod child;
pub mod fd_passing;
pub mod host_configuration;
pub mod launch;
pub mod log_lines;
pub mod messages;
pub mod nic_control;
pub mod qlog_request;
pub mod sealed;
pub mod shared_link;
pub mod signals;
pub mod stat_report;
pub mod timeouts;
