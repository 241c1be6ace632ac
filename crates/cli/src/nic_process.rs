//! The NIC process: the NIC stack for one host stack, confined to reading below its root.

use std::ffi::CStr;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;

use contract::control::{HelloError, nic_hello};
use failure::Failure;
use netdev::packet::PacketPort;
use netsetup::device;
use rustix::fs::{Mode, OFlags};
use rustix::thread::CapabilitySet;
use sandbox::{lockdown, memory_limit, seccomp};
use serde::{Deserialize, Serialize};

use crate::cache_option::{CacheOption, Size};
use crate::capture::asked::NIC_MARK;
use crate::config::Text;
use crate::launch::{self, Settings};
use crate::measuring::NicMeasuring;
use crate::messages::FromNic;
use crate::signals::Signals;
use crate::telling::report_worker;
use crate::{child, heap};

/// What the process may keep: reading files that only root may read, if it is root that serves them,
/// and buffers that stay in memory (io_uring registers them).
const CAPABILITIES: CapabilitySet = CapabilitySet::DAC_READ_SEARCH.union(CapabilitySet::IPC_LOCK);

/// What a NIC process starts with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct NicSettings {
    /// Interface to send packets on.
    pub(crate) device: String,
    /// Directory below which files are opened, and never outside.
    #[serde(with = "launch::path")]
    pub(crate) root: PathBuf,
    /// Workers, each a thread with a port of its own.
    pub(crate) workers: u16,
    /// Memory for content, of all workers together.
    #[serde(default)]
    pub(crate) cache: Option<Text<Size>>,
    /// Report to the supervisor what the workers count.
    #[serde(default)]
    pub(crate) reports_counters: bool,
    #[serde(default)]
    pub(crate) ablation: NicMeasuring,
}

impl Settings for NicSettings {
    const NAME: &'static str = "NIC process";
    const COMMAND: &'static str = "nic-process";
    const TASK_NAME: &'static CStr = c"splitway-nic";
}

/// Runs until the host stack is gone or a signal ends it.
pub(crate) fn run() -> Result<(), Failure> {
    let launched = launch::enter::<NicSettings>()?;
    let settings = launched.settings;
    let host = launched
        .socket
        .ok_or_else(|| Failure::broken("NIC process", "the socket of the host did not arrive"))?;
    lockdown::forbid_core_dumps()?;
    let signals = Signals::catch_ends()?;
    let workers = usize::from(settings.workers);
    let (device, path) = (&settings.device, &settings.root);
    let what = format!("root {}", path.display());
    let root = nic::RootDir::open(path).map_err(|error| Failure::input(&what, error))?;
    let ports = std::iter::repeat_with(|| PacketPort::send_only(device))
        .take(workers)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| device::port_failed(device, &error))?;
    for port in &ports {
        if let Err(error) = port.set_mark(NIC_MARK) {
            tracing::debug!(%error, "captures will not tell what this process sends");
        }
    }
    let config = config(&settings);

    // Everything that needs a privilege or another file is open now.
    lockdown::keep_capabilities(CAPABILITIES)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(path, flags, Mode::empty())
        .map_err(|errno| Failure::input(&what, errno))?;
    lockdown::confine_to(directory.as_fd())?;

    let session = match nic_hello(host, workers) {
        Ok(session) => session,
        // The host stack has closed the connection before it began.
        Err(HelloError::Closed) => return Ok(()),
        Err(error) => return Err(Failure::broken("meeting the host process", error)),
    };
    child::tell(FromNic::Ready { workers })?;
    let ready = || {
        heap::give_back_when_idle();
        seccomp::allow_only(seccomp::Kind::Nic).map_err(io::Error::other)
    };
    let tell = |worker, counters: &nic::Counters| {
        report_worker(worker, self::counters(counters));
    };
    let tell: Option<nic::Tell<'_>> = if settings.reports_counters {
        Some(&tell)
    } else {
        None
    };
    let counters = nic::run(&config, root, session, ports, signals.as_fd(), ready, tell)
        .map_err(|error| Failure::broken("NIC process", error))?;
    child::report(self::counters(&counters))
}

fn config(settings: &NicSettings) -> nic::Config {
    let cache = CacheOption {
        cache: settings.cache.map(|size| size.0),
    };
    let mut config = nic::Config {
        huge_bytes_set_aside: memory_limit::huge_bytes_set_aside(),
        cache_bytes: cache.each_bytes(settings.workers, memory_limit::limit_bytes()),
        ..nic::Config::default()
    };
    settings.ablation.apply(&mut config);
    config
}

/// What the workers have counted together.
pub(crate) fn counters(counters: &nic::Counters) -> Vec<(String, u64)> {
    counters
        .rows()
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}
