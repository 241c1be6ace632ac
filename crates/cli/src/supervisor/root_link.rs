//! Follows a root that changes: a link switched, or a directory replaced, by a release. The
//! supervisor checks it at start and reload. Until then processes keep the directory; a NIC process
//! that replaces another opens the path that the link had at the last check.

use std::path::{Path, PathBuf};

use failure::Failure;
use rustix::io::Errno;

use crate::supervisor::children::Children;
use crate::supervisor::nic::NicSupervisor;
use crate::supervisor::time_limit;
use config::root::{Identity, follow};

/// Follows the root again: if it leads elsewhere now, a NIC process is started below the new
/// directory. Returns a message for the operator, if any. `is_cache_below`: the fetcher writes
/// below the root, which therefore must stay.
pub(crate) fn follow_again(
    root: Option<&Path>,
    nics: &mut [NicSupervisor],
    children: &mut Children,
    is_cache_below: bool,
) -> Option<String> {
    let root = root?;
    let nic = nics.iter_mut().find(|nic| nic.root().is_some())?;
    let before = nic.root()?.to_owned();
    let change = look(root).and_then(|(leads_to, found)| {
        let used = nic.root_in_use();
        let is_same_path = leads_to == before;
        let is_same = used.is_none_or(|used| found == Ok(used));
        if is_same_path && is_same {
            return Ok(None);
        }
        let root = root.display();
        let (text, cache) = match is_same_path {
            true => (
                format!("root {root} is another directory"),
                "and the cache directory in use lies below the one before",
            ),
            false => (
                format!("root {root} leads to {}", leads_to.display()),
                "and the cache directory lies below the one before",
            ),
        };
        if is_cache_below {
            return Ok(Some(format!("{text}, {cache}: not before a restart")));
        }
        nic.change_root(children, leads_to)?;
        Ok(Some(format!(
            "{text} now: a NIC process that reads it is started"
        )))
    });
    match change {
        Ok(text) => text,
        Err(failure) => Some(format!("{failure}; {} stays", before.display())),
    }
}

/// Returns the directory that a root leads to.
fn look(root: &Path) -> Result<(PathBuf, Result<Identity, Errno>), Failure> {
    let at = root.to_owned();
    let found = time_limit::within(time_limit::TIME_MAX, move || -> Result<_, Failure> {
        let leads_to = follow(&at)?;
        let identity = Identity::of(&leads_to);
        Ok((leads_to, identity))
    });
    found.unwrap_or_else(|| {
        let what = format!("root {}", root.display());
        Err(Failure::broken(what, "the file system does not answer"))
    })
}
