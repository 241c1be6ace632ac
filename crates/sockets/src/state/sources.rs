//! Where the connections of an application come from: no source may take all of its places.

use std::collections::HashMap;
use std::net::IpAddr;

use host::Source;

/// Connections that were accepted and are not over, by source.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    connections: HashMap<Source, u32>,
    /// Sources of connections that are over, and not yet taken off.
    freed: Vec<IpAddr>,
}

impl Sources {
    /// One more; returns how many it has now.
    pub(crate) fn add(&mut self, ip: IpAddr) -> u32 {
        let connections = self.connections.entry(Source::from(ip)).or_default();
        *connections += 1;
        *connections
    }

    /// A connection is over, if it was an accepted one.
    pub(crate) fn free(&mut self, ip: Option<IpAddr>) {
        self.freed.extend(ip);
    }

    /// Takes off one that is over: its source, and how many that had before.
    pub(crate) fn take_freed(&mut self) -> Option<(IpAddr, u32)> {
        let ip = self.freed.pop()?;
        let source = Source::from(ip);
        let connections = self.connections.get_mut(&source)?;
        let before = *connections;
        *connections -= 1;
        if before == 1 {
            self.connections.remove(&source);
        }
        Some((ip, before))
    }
}
