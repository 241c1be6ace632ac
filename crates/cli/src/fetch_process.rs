//! The fetcher: fetches what comes from origins into the cache directory, and may write nowhere else.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::{Mode, OFlags};
use rustix::thread::CapabilitySet;

use crate::error::Failure;
use crate::messages::{Message, Report};
use crate::origin_options::FetchArgs;
use crate::signals::EndSignals;
use crate::{child, lockdown};

/// Runs until the host process is gone or a signal ends it.
pub(crate) fn run(args: &FetchArgs) -> Result<(), Failure> {
    let host = child::adopt_control_socket(c"splitway-fetch")?;
    lockdown::forbid_core_dumps()?;
    let signals = EndSignals::catch()?;
    let what = format!("cache directory {}", args.cache_dir.display());
    let config = args.config()?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(&args.cache_dir, flags, Mode::empty())
        .map_err(|errno| Failure::input(&what, errno))?;
    let ports: Vec<u16> = config.origins.iter().map(origin::OriginUrl::port).collect();

    // Everything that needs a privilege or another file is open now.
    lockdown::keep_capabilities(CapabilitySet::empty())?;
    lockdown::confine_to_writing(directory.as_fd(), &ports)?;
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
    let counters = origin::run(&config, host, stop, ready).map_err(|error| match error {
        origin::FetcherError::Cache(_, error)
            if error.kind() == io::ErrorKind::PermissionDenied =>
        {
            Failure::input(&what, error).remedy(
                "It must belong to the user who runs the server: the fetcher has no privileges.",
            )
        }
        origin::FetcherError::Cache(_, error) => Failure::input(&what, error),
        error => Failure::broken("fetcher", error),
    })?;
    let rows = counters
        .rows()
        .map(|(name, value)| (name.to_owned(), value));
    child::tell(&Message::Report(Report::now(rows.into())))
}
