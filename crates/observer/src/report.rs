//! Reports of processes on themselves, and of the supervisor on all.

use nix::sys::resource::{UsageWho, getrusage};
use serde::{Deserialize, Serialize};

use crate::counter_names;

/// Counters of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerReport {
    /// The NIC stack.
    pub nic: usize,
    /// Number of the worker within the NIC stack.
    pub worker: usize,
    /// Number of the NIC stack's process, from 1; each process counts from zero.
    pub process: u64,
    /// Its counters and resource usage.
    pub report: Report,
}

/// Counters of a fetcher.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetcherReport {
    /// Number of the process, from 1; each process counts from zero.
    pub process: u64,
    /// URL of the origin; `None`: all origins.
    pub origin: Option<String>,
    /// Its counters and resource usage.
    pub report: Report,
}

/// Counters of a broker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokerReport {
    /// Number of the process, from 1; each process counts from zero.
    pub process: u32,
    /// Its counters and resource usage.
    pub report: Report,
}

/// Counters of a backend of the proxy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackendReport {
    /// The pool's name.
    pub pool: String,
    /// The backend's name.
    pub backend: String,
    /// Names and values of its counters.
    pub counters: Vec<(String, u64)>,
}

/// The health of the server, as the supervisor knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// Why each NIC stack does not serve, if it does not.
    pub nics: Vec<Option<String>>,
    /// The server takes no new connections and ends with its last response.
    pub is_draining: bool,
    /// Certificates in use.
    pub certificates: Vec<CertificateReport>,
    /// Directories in use.
    pub directories: Vec<DirectoryReport>,
}

/// A certificate in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateReport {
    /// File of the chain.
    pub certificate: String,
    /// Start of its validity, in seconds since the Unix epoch.
    pub not_before_s: u64,
    /// Last second of its validity, since the Unix epoch.
    pub not_after_s: u64,
}

/// A directory in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryReport {
    /// Path of the directory.
    pub path: String,
    /// The path leads to another directory, or to none.
    pub is_replaced: bool,
}

/// Counters and resource usage of a process since its start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Counters, in the stack's own order.
    pub counters: Vec<(String, u64)>,
    /// CPU time in user mode, in microseconds.
    pub cpu_user_us: u64,
    /// CPU time in the kernel, in microseconds.
    pub cpu_system_us: u64,
    /// Largest resident set, in bytes.
    pub memory_bytes_max: u64,
}

impl Report {
    /// Reports on the calling process.
    pub fn now(counters: Vec<(String, u64)>) -> Self {
        let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else {
            return Self {
                counters,
                ..Self::default()
            };
        };
        let micros = |seconds: i64, micros: i64| {
            u64::try_from(seconds.saturating_mul(1_000_000).saturating_add(micros)).unwrap_or(0)
        };
        Self {
            counters,
            cpu_user_us: micros(usage.user_time().tv_sec(), usage.user_time().tv_usec()),
            cpu_system_us: micros(usage.system_time().tv_sec(), usage.system_time().tv_usec()),
            memory_bytes_max: u64::try_from(usage.max_rss())
                .unwrap_or(0)
                .saturating_mul(1024),
        }
    }

    /// Adds the report of another process in the same place.
    pub fn absorb(&mut self, other: &Self) {
        for (name, value) in &other.counters {
            match self.counters.iter_mut().find(|(own, _)| own == name) {
                Some((_, sum)) => *sum = counter_names::sum(name, *sum, *value),
                None => self.counters.push((name.clone(), *value)),
            }
        }
        self.cpu_user_us = self.cpu_user_us.saturating_add(other.cpu_user_us);
        self.cpu_system_us = self.cpu_system_us.saturating_add(other.cpu_system_us);
        self.memory_bytes_max = self.memory_bytes_max.max(other.memory_bytes_max);
    }

    /// The value of a counter; `None` if the stack has no such counter.
    pub fn counter(&self, name: &str) -> Option<u64> {
        self.counters
            .iter()
            .find(|(own, _)| own == name)
            .map(|(_, value)| *value)
    }
}
