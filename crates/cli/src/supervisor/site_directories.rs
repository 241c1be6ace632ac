//! Checks the directories and error pages of sites below the root, opened as the NIC process does.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use failure::Failure;
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

use config::{Config, Site, Text};

/// Returns a failure for each that cannot be opened.
pub(crate) fn look(config: &Config, root: &Path) -> Vec<Failure> {
    let Ok(directory) = open(CWD, root, OFlags::DIRECTORY, ResolveFlags::empty()) else {
        // `check_root` reports the reason.
        return Vec::new();
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
            // A link may lead out of the site's root, but not out of the server's root.
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
}

/// Path resolution of the NIC process.
const BELOW: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);

fn open(
    directory: impl AsFd,
    path: impl AsRef<Path>,
    flags: OFlags,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    // Does not wait for the writer of a FIFO.
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

/// Returns whether an origin may provide missing content of the site.
fn may_come_from_origin(config: &Config, site: &Site) -> bool {
    let by_rule = site.rule.iter().filter_map(|rule| rule.origin.as_ref());
    let mut choices = site.origin.iter().chain(by_rule);
    choices.any(|choice| choice.0.url().is_some())
        || (site.origin.is_none() && !config.origin.urls.is_empty())
}
