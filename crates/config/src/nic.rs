//! The NIC stack.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::text::Text;
use crate::control_link::NicPlace;
use crate::size::Size;

/// NIC stack: the source of content.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Nic {
    /// Directory whose files are served, by the server's own NIC process.
    pub root: Option<PathBuf>,
    /// NIC workers, from 1 to 64, each a thread with its own port and its share of the cache. The
    /// load decides how many of them are in use; the others sleep.
    pub workers: u16,
    /// Minimum workers in use, from 1 to `workers`; if equal to `workers`, all are always in use.
    /// It applies to each NIC stack, including attached ones, which set their own number of
    /// workers.
    pub workers_min: u16,
    /// Memory for content, shared by all workers, such as `"512M"` or `"2G"`. Default: a quarter of
    /// the memory of the machine, or of the control group if its limit is lower, at most 1G and
    /// half of what is free.
    pub cache: Option<Text<Size>>,
    /// Running NIC stacks to attach to: the socket of a NIC process, or `"eth:IFACE,MAC"`, another
    /// machine.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub attach: Vec<Text<NicPlace>>,
    /// File with the key that both machines share, for `"eth:IFACE,MAC"`; `splitway keygen` creates
    /// one.
    pub key_file: Option<PathBuf>,
    /// Declare the roots of all NIC stacks copies of each other, modification times included: if
    /// one stack goes away, responses continue from another.
    pub replicas: bool,
}

impl Nic {
    /// How many of the NIC stacks are on other machines.
    pub fn remotes(&self) -> usize {
        let remote = |place: &&Text<NicPlace>| matches!(place.0, NicPlace::Ethernet { .. });
        self.attach.iter().filter(remote).count()
    }
}

impl Default for Nic {
    fn default() -> Self {
        Self {
            root: None,
            workers: 1,
            workers_min: 1,
            cache: None,
            attach: Vec::new(),
            key_file: None,
            replicas: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nic_stacks_on_other_machines_are_counted() {
        let nic: Nic =
            toml::from_str("attach = ['/run/nic.sock', 'eth:eth1,02:00:5e:10:00:01']").unwrap();
        assert_eq!((nic.attach.len(), nic.remotes()), (2, 1));
    }
}
