//! A root that leads elsewhere than at the start: a symbolic link that was switched, or a directory
//! that another has replaced, as releases do. The supervisor looks at the start and on every
//! reload. In between the directory stays, and for NIC processes that take the place of another the
//! path to which a link led.

use std::path::Path;

use crate::supervisor::children::Children;
use crate::supervisor::nic::NicSupervisor;
use config::root::{Identity, follow};

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
        let used = nic.root_in_use();
        let is_same_path = leads_to == before;
        let is_same = used.is_none_or(|used| Identity::of(&leads_to) == Ok(used));
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
