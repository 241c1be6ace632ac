//! Addresses that applications bind, and the listeners among them (RFC 9293 §3.10.1, passive OPEN).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::Stack;
use crate::app::{AppEvent, Application, Bind, BindError, BindingId, Owner, StreamOptions};
use crate::tables::bindings::{Bindings, Destination};
use crate::tables::connections::{ConnectionHandle, Entry};
use crate::tables::tuple::Tuple;

impl Stack {
    /// Binds an address of the stack, or all of a family, and a port; 0 is chosen.
    pub fn bind(&mut self, bind: &Bind) -> Result<BindingId, BindError> {
        let ip = bind.address.ip();
        if !ip.is_unspecified() && !self.config.is_own(ip) {
            return Err(BindError::NoAddress);
        }
        let Stack {
            bindings,
            ephemeral_ports,
            ..
        } = self;
        let unspecified = SocketAddr::new(unspecified(ip), 0);
        bindings.bind(bind, |is_free| {
            ephemeral_ports.choose(ip, unspecified, is_free)
        })
    }

    /// Accepts connections to a bound address from now on; again, changes their options.
    pub fn listen(&mut self, binding: BindingId, options: StreamOptions) -> Result<(), BindError> {
        self.bindings.listen(binding, options)
    }

    /// Lets go of a bound address. Connections that were accepted there go on.
    pub fn release(&mut self, binding: BindingId) {
        self.bindings.release(binding);
    }

    /// The address of a binding, with the port that was chosen.
    pub fn bound_address(&self, binding: BindingId) -> Option<SocketAddr> {
        self.bindings.address(binding)
    }

    /// Has the server accept connections to this port of all addresses, unless it does already.
    ///
    /// # Panics
    /// If another application has the port: the server comes first.
    pub(super) fn serve_port(&mut self, port: u16) {
        if self.bindings.has_owner(port, Owner::SERVER) {
            return;
        }
        let all = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port);
        let bound = self.bind(&Bind::new(Owner::SERVER, all));
        let listens = bound.and_then(|binding| self.listen(binding, StreamOptions::default()));
        assert_eq!(listens, Ok(()), "the server comes first");
    }

    /// Where a connection goes that a peer opens.
    pub(super) fn destination(&self, tuple: &Tuple) -> Destination {
        let hash = self.connections.hash(tuple);
        let to = self.bindings.destination(tuple.local, hash);
        self.without_server(tuple, to)
    }

    /// Has the application accept a connection that was deferred; false if it was not.
    #[cold]
    pub(super) fn accept_deferred<A: Application>(
        &mut self,
        now_us: u64,
        handle: ConnectionHandle,
        app: &mut A,
    ) -> bool {
        let deferred = self.connections.get_mut(handle);
        let Some(entry) = deferred.filter(|entry| entry.is_deferred) else {
            return false;
        };
        entry.is_deferred = false;
        entry.told = true;
        unreserve(&mut self.bindings, entry);
        entry.app_deadline_us = None;
        let (stream, peer) = (entry.stream, entry.tuple.remote);
        self.counters.connections_accepted += 1;
        let event = AppEvent::Accepted { peer, tls: None };
        app.on_event(&mut self.streams(now_us), stream, event);
        true
    }

    /// Accepts no more connections, of QUIC either: from now on who begins one is answered with
    /// RST, as by a kernel whose listening socket is closed, or refused. Those that are half-open
    /// are forgotten.
    pub fn stop_listening(&mut self) {
        self.bindings.stop_listening();
        self.gate.close();
        self.stop_quic();
    }
}

fn unspecified(like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// The application hears of a connection, or never will.
#[inline]
pub(super) fn unreserve(bindings: &mut Bindings, entry: &mut Entry) {
    if std::mem::take(&mut entry.is_reserved)
        && let Some(listener) = entry.listener
    {
        bindings.unreserve(listener);
    }
}

/// A connection is established: true if its listener has it accepted with its first data
/// (`TCP_DEFER_ACCEPT`, tcp(7)), or when the time for that has passed.
pub(super) fn defers_accept(bindings: &Bindings, now_us: u64, entry: &mut Entry) -> bool {
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
