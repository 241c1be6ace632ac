//! `splitway check`: whether a server could be started with a configuration, as far as that can be
//! told without starting it.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use clap::Args;
use failure::Failure;
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

use crate::args::overlay;
use crate::supervisor::broker;
use crate::supervisor::origin_plan::OriginPlan;
use crate::terminal::say;
use config::certificates::CertificateSource;
use config::control_link::NicPlace;
use config::key_file;
use config::root::check_root;
use config::{Config, Content, Site, Text};

/// The check of a configuration.
#[derive(Clone, Debug, Args)]
pub(crate) struct CheckArgs {
    /// File, as for `serve --config` or `proxy --config`
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Checks a file and all that it names; says so if it is good.
pub(crate) fn run(args: &CheckArgs) -> Result<(), Failure> {
    let file = &args.file;
    let config = overlay::load_file(file)?;
    // One that is there for what comes from origins is made when it is needed.
    let root = config.nic.root.as_deref();
    let root = root.filter(|root| root.exists() || !OriginPlan::makes_root(&config));
    let failures = [
        root.map_or(Ok(()), check_root),
        root.map_or(Ok(()), |_| OriginPlan::look(&config)),
        root.map_or(Ok(()), |root| check_sites(&config, root)),
        check_key_file(&config),
        config.quic.secret().map(|_| ()),
        CertificateSource::check(&config, None).map(|_| ()),
        Content::read(&config, None).map(|_| ()),
        broker::settings(&config.sockets).map(|_| ()),
    ];
    let failures = failures.into_iter().filter_map(Result::err);
    let failure = failures.reduce(Failure::and);
    failure.map_or_else(
        || {
            say(&format!("{}: good\n", file.display()));
            Ok(())
        },
        Err,
    )
}

/// That of NIC stacks on other machines.
fn check_key_file(config: &Config) -> Result<(), Failure> {
    let mut places = config.nic.attach.iter();
    let is_needed = places.any(|place| matches!(place.0, NicPlace::Ethernet { .. }));
    match &config.nic.key_file {
        Some(path) if is_needed => key_file::read(path).map(|_| ()),
        _ => Ok(()),
    }
}

/// Roots and error pages of sites, below the root: opened as the NIC process opens them.
fn check_sites(config: &Config, root: &Path) -> Result<(), Failure> {
    let Ok(directory) = open(CWD, root, OFlags::DIRECTORY, ResolveFlags::empty()) else {
        // `check_root` says why.
        return Ok(());
    };
    let mut failures = Vec::new();
    for (number, site) in config.site.iter().enumerate() {
        if may_come_from_origin(config, site) {
            continue;
        }
        let below = site.root.0.to_string();
        let path = if below.is_empty() { "." } else { &below };
        if let Err(errno) = open(&directory, path, OFlags::DIRECTORY, BELOW) {
            let what = format!("site[{number}].root {below:?}");
            failures.push(unreadable(what, errno, root));
            continue;
        }
        for (status, Text(page)) in &site.error_pages {
            let page = page.to_string();
            // A link may lead out of the site's root, but not out of the root of all.
            let opened = open(
                &directory,
                Path::new(path).join(&page),
                OFlags::empty(),
                BELOW,
            );
            let what = format!("site[{number}].error_pages.{status} {page:?}");
            match opened.and_then(|file| rustix::fs::fstat(&file)) {
                Ok(stat) if FileType::from_raw_mode(stat.st_mode).is_file() => {}
                Ok(_) => failures.push(Failure::input(what, "not a regular file")),
                Err(errno) => failures.push(unreadable(what, errno, &root.join(&below))),
            }
        }
    }
    failures
        .into_iter()
        .reduce(Failure::and)
        .map_or(Ok(()), Err)
}

/// As the NIC process resolves paths.
const BELOW: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);

fn open(
    directory: impl AsFd,
    path: impl AsRef<Path>,
    flags: OFlags,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    // A FIFO without a writer is not waited for.
    let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    openat2(directory, path.as_ref(), flags, Mode::empty(), resolve)
}

fn unreadable(what: String, errno: Errno, root: &Path) -> Failure {
    match errno {
        Errno::NOENT => Failure::input(what, format!("it is not below {}", root.display())),
        Errno::XDEV => Failure::input(what, format!("it leads out of {}", root.display()))
            .remedy("Files outside the NIC stack's root are never served."),
        errno => Failure::input(what, errno),
    }
}

/// What a site lacks may come from an origin.
fn may_come_from_origin(config: &Config, site: &Site) -> bool {
    let by_rule = site.rule.iter().filter_map(|rule| rule.origin.as_ref());
    let mut choices = site.origin.iter().chain(by_rule);
    choices.any(|choice| choice.0.url().is_some())
        || (site.origin.is_none() && !config.origin.urls.is_empty())
}
