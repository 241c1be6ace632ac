//! Logs, metrics and the dashboard: the observer process writes them, so that neither a slow disk
//! nor a slow scraper delays the serving processes.
//!
//! | Module | Its one idea |
//! |---|---|
//! | `report` | reports of processes on themselves |
//! | `counter_names` | counters of processes, by their names in reports |
//! | `packet` | packets of the host process |
//! | `intake` | receiving records, reports and log lines |
//! | `access_format`, `format` | the forms of the access log; its lines |
//! | `log_file` | a file that may be slow, full, or replaced |
//! | `lines` | whole lines out of a pipe |
//! | `metrics`, `catalog` | the state of all processes; which metric is which counter |
//! | `exposition` | Prometheus' text format |
//! | `supervised` | metrics of certificates and directories |
//! | `top` | the most requested files |
//! | [`admin`] | HTTP listener for operators |
//!
//! It touches descriptors passed to it, and a clock.
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
