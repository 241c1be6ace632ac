//! The fetcher: fetches what comes from origins into the cache directory, and may write nowhere else.

use std::io;
use std::net::ToSocketAddrs;
use std::os::fd::AsFd;

use failure::Failure;
use rustix::fs::{Mode, OFlags};
use rustix::thread::CapabilitySet;
use sandbox::{lockdown, seccomp};

use crate::messages::{Message, Report};
use crate::origin_options::FetchArgs;
use crate::signals::Signals;
use crate::telling::FetcherTeller;
use crate::{child, fd_passing};

/// Runs until the host process is gone or a signal ends it.
pub(crate) fn run(args: &FetchArgs) -> Result<(), Failure> {
    let host = child::adopt_control_socket(c"splitway-fetch")?;
    // It was sent before this process began.
    let given = fd_passing::receive(&host)?.and_then(|(_, orders)| orders);
    let orders = given.ok_or_else(|| {
        Failure::broken(
            "fetcher",
            "the socket from which it is told more did not arrive",
        )
    })?;
    lockdown::forbid_core_dumps()?;
    let signals = Signals::catch_ends()?;
    let what = format!("cache directory {}", args.cache_dir.display());
    let config = args.config()?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(&args.cache_dir, flags, Mode::empty())
        .map_err(|errno| Failure::input(&what, errno))?;
    let ports: Vec<u16> = config.origins.iter().map(origin::OriginUrl::port).collect();

    // Everything that needs a privilege or another file is open now.
    lockdown::keep_capabilities(CapabilitySet::empty())?;
    load_name_service();
    lockdown::confine_to_writing(directory.as_fd(), &ports)?;
    seccomp::allow_only(seccomp::Kind::Fetcher)?;
    let stop = signals
        .as_fd()
        .try_clone_to_owned()
        .map_err(|error| Failure::broken("watching signals", error))?;
    let ready = || {
        // A supervisor that does not hear is gone, and this process will be, too.
        if let Err(failure) = child::tell(&Message::FetcherReady) {
            tracing::error!("{failure}");
        }
    };
    let ends = origin::Ends { host, orders, stop };
    let mut teller = FetcherTeller::default();
    let counters =
        origin::run(&config, ends, ready, |counted| teller.tell(counted)).map_err(|error| {
            match error {
        origin::FetcherError::Cache(_, error)
            if error.kind() == io::ErrorKind::PermissionDenied =>
        {
            Failure::input(&what, error).remedy(
                "It must belong to the user who runs the server: the fetcher has no privileges.",
            )
        }
        origin::FetcherError::Cache(_, error) => Failure::input(&what, error),
        error => Failure::broken("fetcher", error),
    }
        })?;
    let rows = counters
        .rows()
        .map(|(name, value)| (name.to_owned(), value));
    child::tell(&Message::Report(Report::now(rows.into())))
}

/// Has the C library load whatever it resolves names by (nsswitch.conf(5)) while memory may still become code.
fn load_name_service() {
    // Longer than any name (RFC 1035 §2.3.4): each module is asked, and none asks anybody else.
    let name = "x".repeat(64);
    let found = (name.as_str(), 0).to_socket_addrs();
    tracing::debug!(
        is_found = found.is_ok(),
        "modules that resolve names are loaded"
    );
}
