//! What the supervisor and its processes share: how a process starts, what both sides say, how it
//! ends.
//!
//! | Module | What it does |
//! |---|---|
//! | `launch` | starting a process with its settings |
//! | `child` | a process, seen by its supervisor and by itself |
//! | `messages` | the messages of each pair of processes |
//! | `nic_control` | messages to a NIC process |
//! | `fd_passing` | messages with descriptors |
//! | `sealed` | sealed files of memory |
//! | `host_configuration` | the configuration of the host process, at its start and on reload |
//! | `stat_report` | the document of `splitway stat` |
//! | `ablation` | switches for measurements, which no file has |
//! | `capture_request` | what `splitway capture` asks for, and gets |
//! | `qlog_request` | what `splitway qlog` asks for, and gets |
//! | `timeouts` | times that both sides agree on |
//! | `signals` | signals as descriptors |
//! | `log_lines` | how lines reach standard error |

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
pub mod signals;
pub mod stat_report;
pub mod timeouts;
