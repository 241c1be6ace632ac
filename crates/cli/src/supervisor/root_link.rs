//! A root that is a symbolic link, as for releases that are switched: the supervisor follows it at
//! the start and on every reload. In between the directory stays, also for NIC processes that take
//! the place of another.

use std::path::Path;

use crate::supervisor::children::Children;
use crate::supervisor::nic::NicSupervisor;
use config::root::follow;

/// Follows the root again: if it leads elsewhere now, another NIC process is started below that.
/// Returns what there is to say about it. `is_cache_below`: the fetcher writes below the root, so
/// that it must stay.
pub(crate) fn follow_again(
    root: Option<&Path>,
    nics: &mut [NicSupervisor],
    children: &mut Children,
    is_cache_below: bool,
) -> Option<String> {
    let root = root?;
    let nic = nics.iter_mut().find(|nic| nic.root().is_some())?;
    let before = nic.root()?.to_owned();
    let change = follow(root).and_then(|leads_to| {
        if leads_to == before {
            return Ok(None);
        }
        let text = format!("root {} leads to {}", root.display(), leads_to.display());
        if is_cache_below {
            let why = "and the cache directory lies below the one before: not before a restart";
            return Ok(Some(format!("{text}, {why}")));
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
