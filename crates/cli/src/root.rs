//! A root that is a symbolic link, as for releases that are switched: it is followed at the start and on every reload. In
//! between the directory stays, also for NIC processes that take the place of another.

use std::path::{Path, PathBuf, absolute};

use failure::Failure;
use rustix::fs::{Access, AtFlags, CWD};
use rustix::io::Errno;

use crate::children::Children;
use crate::nic_keeper::NicKeeper;

/// Fails unless `root` is a directory whose files can be listed and opened.
pub(crate) fn check_root(root: &Path) -> Result<(), Failure> {
    let what = format!("root {}", root.display());
    let stat = rustix::fs::stat(root).map_err(|errno| match errno {
        Errno::NOENT => Failure::input(&what, "no such directory"),
        errno => Failure::input(&what, errno),
    })?;
    if !rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir() {
        return Err(Failure::input(what, "not a directory")
            .remedy("Give the directory that holds the file."));
    }
    rustix::fs::accessat(
        CWD,
        root,
        Access::READ_OK | Access::EXEC_OK,
        AtFlags::EACCESS,
    )
    .map_err(|errno| {
        Failure::input(what, format!("not readable: {errno}"))
            .remedy("This user needs permission to read and to search it.")
    })
}

/// The directory that a root leads to.
pub(crate) fn follow(root: &Path) -> Result<PathBuf, Failure> {
    check_root(root)?;
    root.canonicalize()
        .map_err(|error| Failure::input(format!("root {}", root.display()), error))
}

/// Whether a root leads elsewhere than its path says.
pub(crate) fn is_link(root: &Path) -> bool {
    match (absolute(root), root.canonicalize()) {
        (Ok(path), Ok(leads_to)) => path != leads_to,
        _ => false,
    }
}

/// Follows the root again: if it leads elsewhere now, another NIC process is started below that. Returns what there is to
/// say about it. `is_cache_below`: the fetcher writes below the root, so that it must stay.
pub(crate) fn follow_again(
    root: Option<&Path>,
    keepers: &mut [NicKeeper],
    children: &mut Children,
    is_cache_below: bool,
) -> Option<String> {
    let root = root?;
    let keeper = keepers.iter_mut().find(|keeper| keeper.root().is_some())?;
    let before = keeper.root()?.to_owned();
    let change = follow(root).and_then(|leads_to| {
        if leads_to == before {
            return Ok(None);
        }
        let text = format!("root {} leads to {}", root.display(), leads_to.display());
        if is_cache_below {
            let why = "and the cache directory lies below the one before: not before a restart";
            return Ok(Some(format!("{text}, {why}")));
        }
        keeper.change_root(children, leads_to)?;
        Ok(Some(format!(
            "{text} now: a NIC process that reads it is started"
        )))
    });
    match change {
        Ok(text) => text,
        Err(failure) => Some(format!("{failure}; {} stays", before.display())),
    }
}
