//! Sources of an application's connections: no source may take all places.

use std::collections::HashMap;
use std::net::IpAddr;

use host::Source;

/// Accepted connections that are not over, by source.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    connections: HashMap<Source, u32>,
    /// Sources of ended connections that are not yet subtracted.
    freed: Vec<IpAddr>,
}

impl Sources {
    /// Adds a connection; returns the source's number of connections.
    pub(crate) fn add(&mut self, ip: IpAddr) -> u32 {
        let connections = self.connections.entry(Source::from(ip)).or_default();
        *connections += 1;
        *connections
    }

    /// Notes the end of a connection, if it was an accepted one.
    pub(crate) fn free(&mut self, ip: Option<IpAddr>) {
        self.freed.extend(ip);
    }

    /// Subtracts an ended connection; returns its source and the source's previous number.
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
