//! What the supervisor and its processes share: how a process starts, what both sides say, how it
//! ends.
//!
//! | Module | What it does |
//! |---|---|
//! | `launch` | starting a process with its settings |
//! | `child` | a process, seen by its supervisor and by itself |
//! | `messages` | the messages of each pair of processes |
//! | `fd_passing` | messages with descriptors |
//! | `sealed` | sealed files of memory |
//! | `host_configuration` | the configuration of the host process, at its start and on reload |
//! | `stat_report` | the document of `splitway stat` |
//! | `ablation` | switches for measurements, which no file has |
//! | `capture_request` | what `splitway capture` asks for, and gets |
//! | `timeouts` | times that both sides agree on |
//! | `signals` | signals as descriptors |
//! | `log_lines` | how lines reach standard error |

pub(crate) mod ablation;
pub(crate) mod capture_request;
pub(crate) mod child;
pub(crate) mod fd_passing;
pub(crate) mod host_configuration;
pub(crate) mod launch;
pub(crate) mod log_lines;
pub(crate) mod messages;
pub(crate) mod sealed;
pub(crate) mod signals;
pub(crate) mod stat_report;
pub(crate) mod timeouts;
