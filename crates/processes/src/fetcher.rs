//! The fetcher: fetches responses of origins into the cache directory, and may write nowhere else.

mod reporter;

use std::ffi::CStr;
use std::io;
use std::net::ToSocketAddrs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use failure::Failure;
use origin::{OriginUrl, Trust};
use rustix::fs::{Mode, OFlags};
use rustix::thread::CapabilitySet;
use sandbox::{lockdown, seccomp};
use serde::{Deserialize, Serialize};

use crate::fetcher::reporter::FetcherReporter;
use crate::ipc::child;
use crate::ipc::launch::{self, Settings};
use crate::ipc::messages::FromFetcher;
use crate::ipc::signals::Signals;
use config::Text;
use config::origin_place::SEGMENT_BYTES;
use observer::counter_names;

/// Settings at the start of the fetcher. More origins may follow as messages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FetcherSettings {
    /// The cache directory.
    #[serde(with = "launch::path")]
    pub cache_dir: PathBuf,
    /// Largest size of its content, in bytes.
    pub bytes_max: u64,
    /// Most variants of a target.
    pub variants_max: u16,
    /// Most bytes in the header fields of a response.
    pub head_bytes_max: u64,
    /// Most header fields of a response.
    pub fields_max: u16,
    /// Origins that it may connect to.
    pub origins: Vec<Text<OriginUrl>>,
    /// File with certificates of trusted authorities; `None`: those of this machine.
    #[serde(with = "launch::path::option")]
    pub ca: Option<PathBuf>,
}

impl Settings for FetcherSettings {
    const NAME: &'static str = "fetcher";
    const COMMAND: &'static str = "fetcher";
    const TASK_NAME: &'static CStr = c"splitway-fetch";
}

/// Runs until the host process is gone or a signal ends it.
pub fn run() -> Result<(), Failure> {
    let mut launched = launch::enter::<FetcherSettings>()?;
    let host = launched.take_socket()?;
    let (settings, orders) = (launched.settings, launched.control);
    lockdown::forbid_core_dumps()?;
    let signals = Signals::catch_ends()?;
    let what = format!("cache directory {}", settings.cache_dir.display());
    let config = config(&settings)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(&settings.cache_dir, flags, Mode::empty())
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
        // If the supervisor has ended, this process ends as well.
        if let Err(failure) = child::tell(FromFetcher::Ready) {
            tracing::error!("{failure}");
        }
    };
    let ends = origin::Ends { host, orders, stop };
    let mut reporter = FetcherReporter::default();
    let counters =
        origin::run(&config, ends, ready, |counted| reporter.report(counted)).map_err(|error| {
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
    child::report(counter_names::fetcher(&counters))
}

fn config(settings: &FetcherSettings) -> Result<origin::Config, Failure> {
    let origins: Vec<OriginUrl> = settings.origins.iter().map(|url| url.0.clone()).collect();
    Ok(origin::Config {
        cache_dir: settings.cache_dir.clone(),
        bytes_max: settings.bytes_max,
        variants_max: settings.variants_max.into(),
        field_limits: origin::FieldLimits {
            bytes_max: usize::try_from(settings.head_bytes_max).unwrap_or(usize::MAX),
            count_max: settings.fields_max.into(),
        },
        segment_bytes: SEGMENT_BYTES,
        trust: trust(&origins, settings.ca.as_deref())?,
        origins,
        timeouts: origin::Timeouts::default(),
        boot_id: boot_id(),
    })
}

/// Returns the certificates of trusted authorities, if any are needed.
pub fn trust<'a>(
    urls: impl IntoIterator<Item = &'a OriginUrl>,
    file: Option<&Path>,
) -> Result<Trust, Failure> {
    let trust = match file {
        Some(file) => Trust::of_file(file),
        None if urls.into_iter().any(OriginUrl::is_secure) => Trust::of_machine(),
        None => Ok(Trust::none()),
    };
    trust.map_err(|error| {
        Failure::input("--origin", error).remedy(
            "Install the package ca-certificates, or give the certificate of the authority with \
             --origin-ca FILE.",
        )
    })
}

/// Returns the kernel's identifier of this boot (proc(5)); empty if there is none.
fn boot_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.map(|id| id.trim().to_owned()).unwrap_or_default()
}

/// Has the C library load its name service modules (nsswitch.conf(5)) while memory may still become
/// executable.
fn load_name_service() {
    // Longer than any valid name (RFC 1035 §2.3.4): each module is loaded, and none sends a query.
    let name = "x".repeat(64);
    let found = (name.as_str(), 0).to_socket_addrs();
    tracing::debug!(
        is_found = found.is_ok(),
        "modules that resolve names are loaded"
    );
}
