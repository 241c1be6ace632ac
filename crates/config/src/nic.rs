//! The NIC stack.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::text::Text;
use crate::control_link::NicPlace;
use crate::size::Size;

/// The NIC stack: where content comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Nic {
    /// Directory whose files are served, by a NIC process of the server's own.
    pub root: Option<PathBuf>,
    /// Its workers, from 1 to 64, each a thread with its own port and its share of the cache. As
    /// many of them are in use as the load needs; the others sleep.
    pub workers: u16,
    /// Fewest workers in use, from 1 to `workers`; the same number as there means that all are,
    /// always. It holds for each NIC stack, also for those that run already, which say themselves
    /// how many workers they have.
    pub workers_min: u16,
    /// Its memory for content, all workers together, such as `"512M"` or `"2G"`. Without it: a
    /// quarter of the memory of the machine, or of the control group if that may use less, at most
    /// 1G.
    pub cache: Option<Text<Size>>,
    /// NIC stacks that run already: the socket of a NIC process, or `"eth:IFACE,MAC"`, another
    /// machine.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub attach: Vec<Text<NicPlace>>,
    /// File with the key that both machines share, for `"eth:IFACE,MAC"`; `splitway keygen` makes
    /// one.
    pub key_file: Option<PathBuf>,
    /// The roots of all NIC stacks are copies of each other, times of modification included: if one
    /// goes away, responses go on from another.
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
