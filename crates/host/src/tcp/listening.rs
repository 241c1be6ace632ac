//! Addresses bound by applications, and the listeners among them (RFC 9293 §3.10.1, passive OPEN).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tcp::CongestionAlgorithm;

use super::TcpLayer;
use crate::app::{AppEvent, Bind, BindError, BindingId, Owner, StreamId, StreamOptions};
use crate::ground::Ground;
use crate::tables::bindings::{Bindings, Destination};
use crate::tables::connections::{ConnectionHandle, Entry};
use crate::tables::tuple::Tuple;

impl TcpLayer {
    /// The congestion control for connections accepted on `port`.
    pub(crate) fn listener_congestion(&self, ground: &Ground, port: u16) -> CongestionAlgorithm {
        self.port_congestion
            .iter()
            .find(|&&(other, _)| other == port)
            .map_or(ground.config.tcp.congestion, |&(_, algorithm)| algorithm)
    }

    /// Binds an address of the stack, or all of a family, and a port; 0 lets the stack choose.
    pub(crate) fn bind(
        &mut self,
        ground: &mut Ground,
        bind: &Bind,
    ) -> Result<BindingId, BindError> {
        let ip = bind.address.ip();
        if !ip.is_unspecified() && !ground.config.is_own(ip) {
            return Err(BindError::NoAddress);
        }
        let TcpLayer {
            bindings,
            ephemeral_ports,
            ..
        } = self;
        let unspecified = SocketAddr::new(unspecified(ip), 0);
        bindings.bind(bind, |is_free| {
            ephemeral_ports.choose(ip, unspecified, is_free)
        })
    }

    /// Has the server accept connections to this port of all addresses, unless it already does.
    ///
    /// # Panics
    /// If another application has the port: the server comes first.
    pub(crate) fn serve_port(&mut self, ground: &mut Ground, port: u16) {
        if self.bindings.has_owner(port, Owner::SERVER) {
            return;
        }
        let all = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port);
        let bound = self.bind(ground, &Bind::new(Owner::SERVER, all));
        let listens =
            bound.and_then(|binding| self.bindings.listen(binding, StreamOptions::default()));
        assert_eq!(listens, Ok(()), "the server comes first");
    }

    /// The traffic class of connections that a listener gets.
    pub(crate) fn class_of_listener(&self, ground: &Ground, tuple: &Tuple) -> u8 {
        let Destination::Listener(listener) = self.destination(ground, tuple) else {
            return 0;
        };
        let options = self.bindings.options(listener);
        options.map_or(0, |options| options.traffic_class.of(tuple.remote))
    }

    /// The destination of a connection that a peer opens.
    pub(crate) fn destination(&self, ground: &Ground, tuple: &Tuple) -> Destination {
        let hash = self.connections.hash(tuple);
        let to = self.bindings.destination(tuple.local, hash);
        let to = self.bindings.unless_exhausted(to, tuple.remote.ip());
        self.without_server(ground, tuple, to)
    }

    /// The event with which an application accepts a deferred connection; `None` if it was not
    /// deferred.
    #[cold]
    pub(crate) fn accept_deferred(
        &mut self,
        ground: &mut Ground,
        handle: ConnectionHandle,
    ) -> Option<(StreamId, AppEvent)> {
        let entry = self.connections.get_mut(handle)?;
        if !std::mem::take(&mut entry.is_deferred) {
            return None;
        }
        entry.told = true;
        unreserve(&mut self.bindings, entry);
        entry.app_deadline_us = None;
        ground.counters.connections_accepted += 1;
        let event = AppEvent::Accepted {
            peer: entry.tuple.remote,
            proxied: entry.proxied.clone(),
            tls: None,
        };
        Some((entry.stream, event))
    }
}

fn unspecified(like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// Frees a reserved place: the application learns of the connection, or never will.
#[inline]
pub(crate) fn unreserve(bindings: &mut Bindings, entry: &mut Entry) {
    if std::mem::take(&mut entry.is_reserved)
        && let Some(listener) = entry.listener
    {
        bindings.unreserve(listener);
    }
}

/// An established connection: true if its listener accepts it with its first data
/// (`TCP_DEFER_ACCEPT`, tcp(7)), or when the time for that has passed.
pub(crate) fn defers_accept(bindings: &Bindings, now_us: u64, entry: &mut Entry) -> bool {
    let options = entry
        .listener
        .and_then(|listener| bindings.options(listener));
    let Some(after) = options.and_then(|options| options.defer_accept) else {
        return false;
    };
    entry.is_deferred = true;
    entry.app_deadline_us = Some(now_us.saturating_add(after.as_micros() as u64));
    true
}
