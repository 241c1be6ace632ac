//! Logs, metrics and the dashboard: what the observer process does with what it is sent, so that
//! neither a slow disk nor a slow scraper holds up the processes that serve.
//!
//! | Module | Its one idea |
//! |---|---|
//! | `report` | what processes report of themselves |
//! | `counter_names` | counters of processes, by their names in reports |
//! | `packet` | what the host process sends, and how |
//! | `intake` | what arrives |
//! | `access_format`, `format` | the forms of the access log; its lines |
//! | `log_file` | a file that may be slow, full, or replaced |
//! | `lines` | whole lines out of a pipe |
//! | `metrics`, `catalog` | all that is known; which metric is which counter |
//! | `exposition` | Prometheus' text format |
//! | `supervised` | metrics of what the supervisor watches |
//! | `top` | the files that are asked for most |
//! | [`admin`] | HTTP for those who watch |
//!
//! It touches descriptors that it gets, and a clock.
#![forbid(unsafe_code)]

mod access_format;
pub mod admin;
mod catalog;
pub mod counter_names;
mod exposition;
mod format;
mod intake;
mod lines;
mod log_file;
mod metrics;
mod packet;
mod report;
mod supervised;
mod top;

pub use access_format::AccessFormat;
pub use intake::{Logs, receive_errors, receive_records, wait};
pub use log_file::{LogCounters, LogFile};
pub use metrics::Metrics;
pub use packet::{PACKET_BYTES_MAX, Packet, SocketSink, backends, report};
pub use report::{
    BackendReport, BrokerReport, CertificateReport, DirectoryReport, FetcherReport, Health, Report,
    WorkerReport,
};
