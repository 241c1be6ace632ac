//! Addresses bound by applications, and the listeners among them (RFC 9293 §3.10.1, passive OPEN).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::TcpLayer;
use crate::app::{AppEvent, Application, Bind, BindError, BindingId, Owner, StreamOptions};
use crate::stack::Stack;
use crate::tables::bindings::{Bindings, Destination};
use crate::tables::connections::{ConnectionHandle, Entry};
use crate::tables::tuple::Tuple;

impl Stack {
    /// Binds an address of the stack, or all of a family, and a port; 0 lets the stack choose.
    pub fn bind(&mut self, bind: &Bind) -> Result<BindingId, BindError> {
        let ip = bind.address.ip();
        if !ip.is_unspecified() && !self.ground.config.is_own(ip) {
            return Err(BindError::NoAddress);
        }
        let TcpLayer {
            bindings,
            ephemeral_ports,
            ..
        } = &mut self.tcp;
        let unspecified = SocketAddr::new(unspecified(ip), 0);
        bindings.bind(bind, |is_free| {
            ephemeral_ports.choose(ip, unspecified, is_free)
        })
    }

    /// Accepts connections to a bound address from now on; a repeated call changes options.
    pub fn listen(&mut self, binding: BindingId, options: StreamOptions) -> Result<(), BindError> {
        self.tcp.bindings.listen(binding, options)
    }

    /// Releases a bound address. Connections accepted there continue.
    pub fn release(&mut self, binding: BindingId) {
        self.tcp.bindings.release(binding);
    }

    /// The address of a binding, with the chosen port.
    pub fn bound_address(&self, binding: BindingId) -> Option<SocketAddr> {
        self.tcp.bindings.address(binding)
    }

    /// Has the server accept connections to this port of all addresses, unless it already does.
    ///
    /// # Panics
    /// If another application has the port: the server comes first.
    pub(crate) fn serve_port(&mut self, port: u16) {
        if self.tcp.bindings.has_owner(port, Owner::SERVER) {
            return;
        }
        let all = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port);
        let bound = self.bind(&Bind::new(Owner::SERVER, all));
        let listens = bound.and_then(|binding| self.listen(binding, StreamOptions::default()));
        assert_eq!(listens, Ok(()), "the server comes first");
    }

    /// The traffic class of connections that a listener gets.
    pub(crate) fn class_of_listener(&self, tuple: &Tuple) -> u8 {
        let Destination::Listener(listener) = self.destination(tuple) else {
            return 0;
        };
        let options = self.tcp.bindings.options(listener);
        options.map_or(0, |options| options.traffic_class.of(tuple.remote))
    }

    /// The destination of a connection that a peer opens.
    pub(crate) fn destination(&self, tuple: &Tuple) -> Destination {
        let hash = self.tcp.connections.hash(tuple);
        let to = self.tcp.bindings.destination(tuple.local, hash);
        let to = self.tcp.bindings.unless_exhausted(to, tuple.remote.ip());
        self.without_server(tuple, to)
    }

    /// Has the application accept a deferred connection; false if it was not deferred.
    #[cold]
    pub(crate) fn accept_deferred<A: Application>(
        &mut self,
        now_us: u64,
        handle: ConnectionHandle,
        app: &mut A,
    ) -> bool {
        let deferred = self.tcp.connections.get_mut(handle);
        let Some(entry) = deferred.filter(|entry| entry.is_deferred) else {
            return false;
        };
        entry.is_deferred = false;
        entry.told = true;
        unreserve(&mut self.tcp.bindings, entry);
        entry.app_deadline_us = None;
        let (stream, peer) = (entry.stream, entry.tuple.remote);
        self.ground.counters.connections_accepted += 1;
        let event = AppEvent::Accepted { peer, tls: None };
        app.on_event(&mut self.streams(now_us), stream, event);
        true
    }

    /// Accepts no more connections, nor QUIC connections: a new one is answered with RST, as by a
    /// kernel whose listening socket is closed, or refused. Half-open ones are forgotten.
    pub fn stop_listening(&mut self) {
        self.tcp.bindings.stop_listening();
        self.tcp.gate.close();
        self.stop_quic();
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
