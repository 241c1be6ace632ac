//! A client of either transport.

use std::net::IpAddr;

use crate::client::Client;
use crate::client_quic::QuicPeer;
use crate::file_versions::FileVersions;
use crate::random::Random;
use crate::scenario::{ClientPlan, Scenario};
use crate::violation::Check;

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) enum Peer {
    Tcp(Box<Client>),
    Quic(Box<QuicPeer>),
}

/// Evaluates the same expression for either.
macro_rules! either {
    ($peer:expr, $inner:ident => $does:expr) => {
        match $peer {
            Peer::Tcp($inner) => $does,
            Peer::Quic($inner) => $does,
        }
    };
}

impl Peer {
    pub(crate) fn new(
        number: usize,
        scenario: &Scenario,
        versions: &FileVersions,
        begins_us: u64,
        random: Random,
    ) -> Peer {
        let plan = scenario.clients[number].clone();
        let versions = versions.clone();
        match plan.quic {
            Some(quic) => Peer::Quic(Box::new(QuicPeer::new(
                number,
                plan,
                quic,
                versions,
                begins_us,
                scenario.retry_above != usize::MAX,
                random,
            ))),
            None => Peer::Tcp(Box::new(Client::new(
                number,
                plan,
                versions,
                begins_us,
                scenario.has_cookies(),
                scenario.loses_tags(),
                random,
            ))),
        }
    }

    pub(crate) fn plan(&self) -> &ClientPlan {
        either!(self, inner => &inner.plan)
    }

    pub(crate) fn address(&self) -> IpAddr {
        either!(self, inner => inner.address)
    }

    pub(crate) fn bytes_received(&self) -> u64 {
        either!(self, inner => inner.bytes_received)
    }

    /// Returns the number of connections that ended early.
    pub(crate) fn connections_lost(&self) -> u64 {
        either!(self, inner => inner.connections_lost)
    }

    /// Returns the number of QUIC connections that were answered from the preferred address.
    pub(crate) fn moved_over(&self) -> u64 {
        match self {
            Peer::Tcp(_) => 0,
            Peer::Quic(client) => client.moved_over,
        }
    }

    /// Returns the number of connections that ended early where tags may be lost with a NIC
    /// process.
    pub(crate) fn connections_unproven(&self) -> u64 {
        match self {
            Peer::Tcp(client) => client.connections_unproven,
            Peer::Quic(_) => 0,
        }
    }

    /// Returns the time of its next timer, in microseconds.
    pub(crate) fn next_us(&self) -> Option<u64> {
        either!(self, inner => inner.next_us())
    }

    /// Reports whether all responses have arrived, or the client has vanished.
    pub(crate) fn is_finished(&self) -> bool {
        either!(self, inner => inner.is_finished())
    }

    /// Reports whether the client is finished and its connections are closed.
    pub(crate) fn is_gone(&self) -> bool {
        either!(self, inner => inner.is_gone())
    }

    /// Checks that a client which stays has finished.
    pub(crate) fn check_finished(&self) -> Check {
        either!(self, inner => inner.check_finished())
    }

    /// Runs the timers that are due.
    pub(crate) fn on_time(&mut self, now_us: u64, frames: &mut Vec<Vec<u8>>) -> Check {
        either!(self, inner => inner.on_time(now_us, frames))
    }

    /// Takes a received frame.
    pub(crate) fn on_frame(
        &mut self,
        now_us: u64,
        bytes: &[u8],
        frames: &mut Vec<Vec<u8>>,
    ) -> Check {
        either!(self, inner => inner.on_frame(now_us, bytes, frames))
    }
}
