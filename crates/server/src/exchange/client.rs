//! The client of a request: the peer of its connection, or whom trusted proxies name.

use std::net::{IpAddr, SocketAddr};

use client_address::forwarded;
use client_address::prefix::any_contains;
use host::Source;
use host::app::Proxied;

use crate::config::Config;
use crate::semantics::fields::Head;
use crate::semantics::scheme::Scheme;

/// Where a connection comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    /// The peer of the connection.
    pub(crate) peer: SocketAddr,
    /// The client that a header of the PROXY protocol has named, or else the peer.
    pub(crate) address: SocketAddr,
    /// The address is that of a proxy which names clients in its requests.
    pub(crate) is_forwarding: bool,
    /// The scheme of its requests.
    pub(crate) scheme: Scheme,
}

impl Arrival {
    pub(crate) fn new(
        config: &Config,
        peer: SocketAddr,
        proxied: Option<&Proxied>,
        scheme: Scheme,
    ) -> Self {
        let address = proxied.map_or(peer, |proxied| proxied.client);
        Arrival {
            peer,
            address,
            is_forwarding: any_contains(&config.forwarded_from, address.ip()),
            scheme,
        }
    }

    /// The source of the connection.
    pub(crate) fn source(&self) -> Source {
        Source::from(self.address.ip())
    }
}

/// The client of the requests of an exchange.
#[derive(Debug)]
pub(crate) enum Client {
    /// The one of the connection.
    Own(Source),
    /// The one that the proxy names in each request.
    Forwarded(Box<Forwarded>),
}

/// A client behind a proxy.
#[derive(Debug)]
pub(crate) struct Forwarded {
    /// The proxy.
    hop: SocketAddr,
    /// The client of the last request, or the proxy.
    address: SocketAddr,
}

impl Client {
    pub(crate) fn new(arrival: &Arrival) -> Self {
        let hop = arrival.address;
        match arrival.is_forwarding {
            false => Client::Own(arrival.source()),
            true => Client::Forwarded(Box::new(Forwarded { hop, address: hop })),
        }
    }

    /// The source against which responses count.
    pub(crate) fn source(&self) -> Source {
        match self {
            Client::Own(source) => *source,
            Client::Forwarded(forwarded) => Source::from(forwarded.address.ip()),
        }
    }

    /// The address of a client that a proxy has named in the last request.
    pub(crate) fn forwarded(&self) -> Option<SocketAddr> {
        match self {
            Client::Own(_) => None,
            Client::Forwarded(forwarded) => Some(forwarded.address),
        }
    }

    /// The same without a port.
    pub(crate) fn forwarded_ip(&self) -> Option<IpAddr> {
        self.forwarded().map(|address| address.ip())
    }

    /// Returns the client that a request names, or the proxy if it has no head, and whether a proxy
    /// has written something else than an address; `None` if requests may name no client.
    pub(crate) fn named(
        &self,
        config: &Config,
        head: Option<Head<'_>>,
    ) -> Option<(SocketAddr, bool)> {
        let Client::Forwarded(forwarded) = self else {
            return None;
        };
        let hop = forwarded.hop;
        let Some(head) = head else {
            return Some((hop, false));
        };
        let (field, trusted) = (config.forwarded, &config.forwarded_from);
        let named = forwarded::client(field, head.values_named(field.name()), hop, trusted);
        Some((named.address, named.is_malformed))
    }

    /// The client of the request in hand has this address.
    pub(crate) fn set(&mut self, named: SocketAddr) {
        if let Client::Forwarded(forwarded) = self {
            forwarded.address = named;
        }
    }
}
