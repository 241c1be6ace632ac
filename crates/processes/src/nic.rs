//! The NIC process: the NIC stack for one host stack, confined to reading below its root, and from
//! descriptors that the broker passes (`door`).

mod door;
pub mod memory;

use std::ffi::CStr;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use contract::control::{HelloError, nic_hello};
use failure::Failure;
use netdev::packet::{OpenError, PacketPort};
use netdev::steering::Target;
use netsetup::device;
use nic::{PassedFiles, Sources, WorkerResources};
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::thread::CapabilitySet;
use sandbox::{lockdown, memory_limit, seccomp};
use serde::{Deserialize, Serialize};

use crate::heap;
use crate::ipc::ablation::NicAblation;
use crate::ipc::capture_request::NIC_MARK;
use crate::ipc::child::{self, tell_if_writable};
use crate::ipc::launch::{self, Settings};
use crate::ipc::messages::FromNic;
use crate::ipc::nic_control;
use crate::ipc::shared_link::{Shared, SharedLink};
use crate::ipc::signals::Signals;
use crate::nic::door::Door;
use config::Text;
use config::size::{Size, cache_bytes};
use observer::Report;
use observer::counter_names;

/// Capabilities that the process keeps: reading files that only root may read, if root serves them,
/// and locking buffers in memory (io_uring registers them).
const CAPABILITIES: CapabilitySet = CapabilitySet::DAC_READ_SEARCH.union(CapabilitySet::IPC_LOCK);

/// Longest wait for the broker to pass the files of all applications. After that, connections that
/// send from missing files are reset when the host stack goes on.
const FILES_WAIT: Duration = Duration::from_secs(2);

/// Settings of a NIC process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NicSettings {
    /// Interface to send packets on.
    pub device: String,
    /// Directory below which files are opened, and never outside.
    #[serde(with = "launch::path")]
    pub root: PathBuf,
    /// Number of workers, each a thread with a port of its own.
    pub workers: u16,
    /// Memory for content of all workers together.
    #[serde(default)]
    pub cache: Option<Text<Size>>,
    /// Default of `cache`, from the memory free when the server started.
    #[serde(default)]
    pub cache_default: Option<Text<Size>>,
    /// Whether to report the workers' counters to the supervisor.
    #[serde(default)]
    pub reports_counters: bool,
    /// Whether the broker holds files of applications, which the host stack may ask for at once.
    #[serde(default)]
    pub awaits_files: bool,
    /// Addresses whose frames a steering map assigns to the workers; the map is the last of the
    /// further descriptors. Empty: no steering.
    #[serde(default)]
    pub steered_to: Vec<IpAddr>,
    /// The stack's ports, if the kernel has its addresses as well. The set of addresses comes as
    /// the last further descriptor, but before the map.
    #[serde(default)]
    pub share: Option<Box<SharedLink>>,
    /// Whether no predecessor holds memory that this process is to take over.
    #[serde(default)]
    pub is_first: bool,
    /// Switches for measurements.
    #[serde(default)]
    pub ablation: NicAblation,
}

impl Settings for NicSettings {
    const NAME: &'static str = "NIC process";
    const COMMAND: &'static str = "nic-process";
    const TASK_NAME: &'static CStr = c"splitway-nic";
}

/// Runs until the host stack is gone or a signal ends it.
pub fn run() -> Result<(), Failure> {
    let mut launched = launch::enter::<NicSettings>()?;
    let host = launched.take_socket()?;
    let mut others: Vec<OwnedFd> = std::iter::from_fn(|| launched.take_any_socket()).collect();
    let (settings, control) = (launched.settings, launched.control);
    let is_steered = !settings.steered_to.is_empty();
    let map = is_steered.then(|| others.pop()).flatten();
    let share = settings.share.as_ref();
    let shared = share.and_then(|link| Some(Shared::new(link, others.pop()?)));
    let files = others.pop();
    lockdown::forbid_core_dumps()?;
    let signals = Signals::catch_ends()?;
    let workers = usize::from(settings.workers);
    let (device, path) = (&settings.device, &settings.root);
    let root = nic::RootDir::open(path)
        .map_err(|error| Failure::input(format!("root {}", path.display()), error))?;
    let map = map.as_ref();
    let shared = shared.as_ref();
    let ports = std::iter::repeat_with(|| open_port(device, shared, map, &settings.steered_to))
        .take(workers)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| device::port_failed(device, &error))?;
    for port in &ports {
        if let Err(error) = port.set_mark(NIC_MARK) {
            tracing::debug!(%error, "captures cannot mark packets of this process");
        }
    }
    let config = config(&settings);
    let ports = reserve(&settings, &config, ports)?;

    // Everything that needs a privilege or another file is open now.
    lockdown::keep_capabilities(CAPABILITIES)?;
    lockdown::confine_to(root.as_fd())?;

    let door = files.map(Door::new).transpose();
    let door = door.map_err(|error| Failure::broken("taking files of applications", error))?;
    let door = door.map(Arc::new);
    if let Some(door) = door.as_ref().filter(|_| settings.awaits_files) {
        door.wait_until_complete(FILES_WAIT);
    }

    let session = match nic_hello(host, workers) {
        Ok(session) => session,
        // The host stack has closed the connection before the start.
        Err(HelloError::Closed) => return Ok(()),
        Err(error) => return Err(Failure::broken("connecting to the host process", error)),
    };
    let ready = || {
        child::tell(FromNic::Ready { workers }).map_err(io::Error::other)?;
        heap::give_back_when_idle();
        nic_control::follow(control);
        if let Some(door) = &door {
            Arc::clone(door).follow()?;
        }
        seccomp::allow_only(seccomp::Kind::Nic).map_err(io::Error::other)
    };
    let tell = |worker, counters: &nic::Counters| {
        report_worker(worker, counter_names::nic(counters));
    };
    let tell: Option<nic::ReportCounters<'_>> = if settings.reports_counters {
        Some(&tell)
    } else {
        None
    };
    let sources = Sources {
        root,
        passed: door.clone().map(|door| door as Arc<dyn PassedFiles>),
    };
    let counters = nic::run(
        &config,
        sources,
        session,
        ports,
        signals.as_fd(),
        ready,
        tell,
    )
    .map_err(|error| Failure::broken("NIC process", error))?;
    child::report(counter_names::nic(&counters))
}

/// Reserves the workers' memory.
fn reserve(
    settings: &NicSettings,
    config: &nic::Config,
    ports: Vec<PacketPort>,
) -> Result<Vec<WorkerResources<PacketPort>>, Failure> {
    let cache = settings.cache.map(|size| size.0);
    let reserved = ports
        .into_iter()
        .map(|port| WorkerResources::reserve(config, port));
    let reserved: Result<Vec<_>, _> = reserved.collect();
    let reserved = reserved.map_err(|error| memory::refused(cache, settings.is_first, &error))?;
    // Huge pages are allocated already. The default was within all limits when the server started.
    let ordinary = reserved.iter().filter(|worker| !worker.has_huge_pages());
    let (ordinary, workers) = (ordinary.count() as u64, reserved.len() as u64);
    if let Some(cache) = cache {
        let ordinary_bytes = memory::ordinary_bytes(cache, ordinary, workers);
        memory::check(cache, ordinary_bytes, settings.is_first)?;
    }
    Ok(reserved)
}

/// Opens the port of a worker, which receives the frames that a steering map assigns to it, if
/// possible.
fn open_port(
    device: &str,
    shared: Option<&Shared>,
    map: Option<&OwnedFd>,
    own: &[IpAddr],
) -> Result<PacketPort, OpenError> {
    let mut port = match shared {
        Some(_) => PacketPort::send_only_shared(device)?,
        None => PacketPort::send_only(device)?,
    };
    if let Some(map) = map {
        let (map, target) = (map.as_fd(), random_target());
        let steered = match shared {
            Some(shared) => port.receive_steered_shared(shared.share(), map, target),
            None => port.receive_steered(map, own, target),
        };
        if let Err(error) = steered {
            tracing::warn!(%error, "frames are not steered to this worker");
        }
    }
    Ok(port)
}

/// Returns a unique name for a worker's port.
fn random_target() -> Target {
    let mut bytes = [0; size_of::<u32>()];
    loop {
        // Four bytes are returned at once or not at all, and without blocking once the kernel's
        // generator is ready.
        let filled = getrandom(&mut bytes, GetRandomFlags::empty());
        if let (Ok(_), Some(target)) = (filled, Target::new(u32::from_ne_bytes(bytes))) {
            return target;
        }
    }
}

fn config(settings: &NicSettings) -> nic::Config {
    let cache = settings.cache.or(settings.cache_default);
    let cache = cache.map(|size| size.0);
    let mut config = nic::Config {
        huge_bytes_set_aside: memory_limit::huge_bytes_set_aside(),
        cache_bytes: cache_bytes(cache, settings.workers, memory_limit::limit_bytes()),
        ..nic::Config::default()
    };
    settings.ablation.apply(&mut config);
    config
}

/// In a NIC process: reports the counters of a worker to the supervisor, unless that would block.
fn report_worker(worker: usize, counters: Vec<(String, u64)>) {
    let report = Report::now(counters);
    tell_if_writable(FromNic::Counters { worker, report });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipc::messages::Line;

    #[test]
    fn what_a_worker_tells_is_written_at_once() {
        let counters = counter_names::nic(&nic::Counters::default()).into_iter();
        let counters = counters.map(|(name, _)| (name, u64::MAX));
        let report = Report {
            cpu_user_us: u64::MAX,
            cpu_system_us: u64::MAX,
            memory_bytes_max: u64::MAX,
            counters: counters.collect(),
        };
        let line =
            serde_json::to_vec(&Line::Says(FromNic::Counters { worker: 64, report })).unwrap();
        assert!(line.len() < 4096, "PIPE_BUF: {}", line.len());
    }
}
