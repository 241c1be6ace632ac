//! The NIC process: the NIC stack for one host stack, confined to reading below its root.

use std::io;
use std::os::fd::AsFd;

use contract::control::{HelloError, nic_hello};
use failure::Failure;
use netdev::packet::PacketPort;
use netsetup::device;
use rustix::fs::{Mode, OFlags};
use rustix::thread::CapabilitySet;
use sandbox::{lockdown, memory_limit, seccomp};

use crate::args::NicArgs;
use crate::capture::asked::NIC_MARK;
use crate::messages::{Message, Report};
use crate::signals::Signals;
use crate::telling::tell_of_worker;
use crate::{child, heap};

/// What the process may keep: reading files that only root may read, if it is root that serves them,
/// and buffers that stay in memory (io_uring registers them).
const CAPABILITIES: CapabilitySet = CapabilitySet::DAC_READ_SEARCH.union(CapabilitySet::IPC_LOCK);

/// Runs until the host stack is gone or a signal ends it.
pub(crate) fn run(args: &NicArgs) -> Result<(), Failure> {
    let control = child::adopt_control_socket(c"splitway-nic")?;
    lockdown::forbid_core_dumps()?;
    let signals = Signals::catch_ends()?;
    let workers = usize::from(args.workers);
    let what = format!("root {}", args.root().display());
    let root = nic::RootDir::open(args.root()).map_err(|error| Failure::input(&what, error))?;
    let ports = std::iter::repeat_with(|| PacketPort::send_only(&args.dev))
        .take(workers)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| device::port_failed(&args.dev, &error))?;
    for port in &ports {
        if let Err(error) = port.set_mark(NIC_MARK) {
            tracing::debug!(%error, "captures will not tell what this process sends");
        }
    }
    let config = config(args);

    // Everything that needs a privilege or another file is open now.
    lockdown::keep_capabilities(CAPABILITIES)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(args.root(), flags, Mode::empty())
        .map_err(|errno| Failure::input(&what, errno))?;
    lockdown::confine_to(directory.as_fd())?;

    let session = match nic_hello(control, workers) {
        Ok(session) => session,
        // A host stack that has thought better of it.
        Err(HelloError::Closed) => return Ok(()),
        Err(error) => return Err(Failure::broken("meeting the host process", error)),
    };
    child::tell(&Message::NicReady { workers })?;
    let ready = || {
        heap::give_back_when_idle();
        seccomp::allow_only(seccomp::Kind::Nic).map_err(io::Error::other)
    };
    let tell = |worker, counters: &nic::Counters| {
        tell_of_worker(worker, self::counters(counters));
    };
    let tell: Option<nic::Tell<'_>> = if args.tell_counters {
        Some(&tell)
    } else {
        None
    };
    let counters = nic::run(&config, root, session, ports, signals.as_fd(), ready, tell)
        .map_err(|error| Failure::broken("NIC process", error))?;
    child::tell(&Message::Report(Report::now(self::counters(&counters))))
}

fn config(args: &NicArgs) -> nic::Config {
    let mut config = nic::Config {
        huge_bytes_set_aside: memory_limit::huge_bytes_set_aside(),
        cache_bytes: args
            .cache
            .each_bytes(args.workers, memory_limit::limit_bytes()),
        ..nic::Config::default()
    };
    args.measuring.apply(&mut config);
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
