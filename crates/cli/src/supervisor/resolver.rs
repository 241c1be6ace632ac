//! Looks up names of backends, in the network namespace in which the user has started Splitway: the
//! host process can ask no resolver.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};

use failure::Failure;

use crate::supervisor::initial_netns::InitialNetns;
use config::{Config, Forwarding};

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct Resolver(InitialNetns);

impl Resolver {
    /// One that asks from the namespace in which this process is now.
    pub(crate) fn here() -> Result<Self, Failure> {
        InitialNetns::here().map(Self)
    }

    /// What a proxy forwards, with the addresses of all its backends.
    pub(crate) fn read(&self, config: &Config) -> Result<Forwarding, Failure> {
        Forwarding::read(&config.proxy, |host, port| {
            let found = self.0.run_in(|| Ok(look_up(host, port)));
            found.unwrap_or_else(|failure| Err(io::Error::other(failure.to_string())))
        })
    }
}

/// Asks the system's resolver. Each address counts once.
fn look_up(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let mut found: Vec<SocketAddr> = (host, port).to_socket_addrs()?.collect();
    found.sort_unstable();
    found.dedup();
    Ok(found)
}
