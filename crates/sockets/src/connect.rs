//! Unconnected sockets, connections that applications open, and the ends of both.

use std::net::{Ipv4Addr, SocketAddr};

use host::app::{Bind, BindError, BindingId, StreamId};
use rustix::io::Errno;
use socket_channel::message::BindFlags;
use socket_channel::{Family, Flags, HandleId, SocketId};

use crate::application::{App, Context};
use crate::errno;
use crate::state::socket::{Kind, Own, Socket, Unconnected};
use crate::state::stream::Stream;

/// Returns the flag for a connection whose peer is on this stack.
pub(crate) fn looped(cx: &Context<'_>, stream: StreamId) -> Flags {
    if cx.io.is_looped(stream) {
        Flags::LOOPED
    } else {
        Flags::default()
    }
}

/// Reports whether a socket may have an address: an IPv6 socket may have IPv4 addresses too, which
/// programs give in mapped form.
fn is_of(family: Family, address: SocketAddr) -> bool {
    family == Family::V6 || address.is_ipv4()
}

/// Returns the bound address for a connection to a peer: an IPv6 unspecified address also stands
/// for IPv4.
fn bound_for(local: SocketAddr, peer: SocketAddr) -> SocketAddr {
    let is_of_all = local.is_ipv6() && local.ip().is_unspecified();
    if is_of_all && peer.is_ipv4() {
        (Ipv4Addr::UNSPECIFIED, local.port()).into()
    } else {
        local
    }
}

/// Reports whether an address is a multicast or broadcast one (`tcp_v4_connect` of Linux).
fn is_group(address: SocketAddr) -> bool {
    match address {
        SocketAddr::V4(v4) => v4.ip().is_multicast() || v4.ip().is_broadcast(),
        SocketAddr::V6(v6) => v6.ip().is_multicast(),
    }
}

impl App {
    /// Makes a socket for a handle.
    pub(crate) fn open(
        &mut self,
        cx: &mut Context<'_>,
        handle: HandleId,
        family: Family,
    ) -> Result<SocketId, Errno> {
        if !self.is_free(cx, handle) {
            return Err(Errno::BADF);
        }
        let kind = Kind::Unconnected(Unconnected::default());
        let made = self.insert(Flags::STREAM, Some(handle), kind, cx.counters);
        let id = made.ok_or(Errno::NFILE)?;
        if let Some(socket) = self.socket(id) {
            socket.own = Own::of(family);
        }
        Ok(id)
    }

    /// Binds a socket.
    pub(crate) fn bind(
        &mut self,
        cx: &mut Context<'_>,
        id: SocketId,
        address: SocketAddr,
        flags: BindFlags,
    ) -> Result<(), Errno> {
        let (owner, uid) = (self.owner(), self.uid);
        let is_allowed = self.grant.rules.allows_port(address.port())
            && self.grant.rules.allows_address(address.ip());
        let socket = self.socket(id).ok_or(Errno::BADF)?;
        let Kind::Unconnected(unconnected) = &mut socket.kind else {
            return Err(Errno::INVAL);
        };
        if socket.record.flags().has(Flags::CLOSED) {
            return Err(Errno::CONNRESET);
        }
        if unconnected.binding.is_some() {
            return Err(Errno::INVAL);
        }
        if !is_of(socket.own.family, address) {
            return Err(Errno::AFNOSUPPORT);
        }
        if !is_allowed {
            return Err(Errno::ACCESS);
        }
        if cx.io.bindings(owner) >= self.grant.bindings_max as usize {
            return Err(self.refuse_binding(cx));
        }
        let wanted = Bind {
            owner,
            address,
            v6_only: flags.has(BindFlags::V6_ONLY),
            reuse_address: flags.has(BindFlags::REUSE_ADDR),
            reuse_port: flags.has(BindFlags::REUSE_PORT).then_some(uid),
        };
        let mut bound = cx.io.bind(&wanted);
        if bound == Err(BindError::InUse) && self.close_hung_up(cx) {
            // The closed socket may have been this one.
            self.socket(id).ok_or(Errno::BADF)?;
            bound = cx.io.bind(&wanted);
        }
        let binding = bound.map_err(errno::of_bind)?;
        let socket = self.socket(id).ok_or(Errno::BADF)?;
        if let Kind::Unconnected(unconnected) = &mut socket.kind {
            unconnected.binding = Some(binding);
        }
        socket.own.ip = Some(address.ip()).filter(|ip| !ip.is_unspecified());
        socket.own.is_port_named = address.port() != 0;
        let local = cx.io.bound_address(binding).unwrap_or(address);
        socket.set_local(local);
        socket.record.note(Flags::BOUND);
        self.touch(id);
        Ok(())
    }

    /// Refuses a binding: the application has bound its maximum of addresses.
    #[cold]
    fn refuse_binding(&mut self, cx: &mut Context<'_>) -> Errno {
        cx.counters.bindings_refused += 1;
        if !std::mem::replace(&mut self.is_full_logged, true) {
            tracing::warn!(
                app = self.id.0,
                uid = self.uid,
                bindings_max = self.grant.bindings_max,
                "an application has bound as many addresses as it may"
            );
        }
        Errno::NOBUFS
    }

    /// Binds a socket to any port, of its kept address or of all addresses.
    pub(crate) fn bind_any(
        &mut self,
        cx: &mut Context<'_>,
        id: SocketId,
    ) -> Result<BindingId, Errno> {
        let ip = self.socket(id).ok_or(Errno::BADF)?.own.ip_or_all();
        self.bind(cx, id, SocketAddr::new(ip, 0), BindFlags::NONE)?;
        match self.socket(id).map(|socket| &socket.kind) {
            Some(Kind::Unconnected(unconnected)) => unconnected.binding.ok_or(Errno::BADF),
            _ => Err(Errno::BADF),
        }
    }

    /// Starts to open a connection.
    pub(crate) fn connect(
        &mut self,
        cx: &mut Context<'_>,
        id: SocketId,
        peer: SocketAddr,
    ) -> Result<(), Errno> {
        let owner = self.owner();
        let may_connect = self.grant.rules.may_connect;
        let socket = self.socket(id).ok_or(Errno::BADF)?;
        let options = socket.options;
        let own = socket.own;
        let Unconnected { binding } = match &socket.kind {
            Kind::Unconnected(_) if socket.is_over() => return Err(Errno::CONNRESET),
            Kind::Unconnected(unconnected) => *unconnected,
            Kind::Stream(_) if socket.record.flags().has(Flags::CONNECTING) => {
                return Err(Errno::ALREADY);
            }
            Kind::Stream(_) | Kind::Listener(_) => return Err(Errno::ISCONN),
            Kind::File(_) => return Err(Errno::NOTSOCK),
        };
        if !is_of(own.family, peer) {
            return Err(Errno::AFNOSUPPORT);
        }
        if is_group(peer) {
            return Err(Errno::NETUNREACH);
        }
        if !may_connect {
            return Err(Errno::ACCESS);
        }
        let kept = own.ip.map(|ip| SocketAddr::new(ip, 0));
        let local = binding.and_then(|binding| cx.io.bound_address(binding));
        let local = local.or(kept).map(|local| bound_for(local, peer));
        let opened = cx.io.connect(owner, local, peer);
        let opened = opened.map_err(errno::of_connect).and_then(|stream| {
            let addresses = cx.io.addresses(stream);
            let is_allowed =
                |(local, _): &(SocketAddr, SocketAddr)| self.grant.rules.allows_address(local.ip());
            if addresses.as_ref().is_some_and(is_allowed) {
                return Ok((stream, addresses));
            }
            cx.io.abort(stream);
            Err(Errno::ACCESS)
        });
        let (stream, addresses) = opened?;
        if !self.has_buffers_on_demand() {
            self.provide_both(id);
        }
        let app = self.id;
        let socket = self.socket(id).ok_or(Errno::BADF)?;
        options.apply(cx.io, stream);
        if let Some((local, peer)) = addresses {
            socket.set_local(local);
            socket.record.set_peer(peer);
        }
        socket.record.set(Flags::CONNECTING | looped(cx, stream));
        socket.kind = Kind::Stream(Stream::new(stream, None, binding));
        cx.places.streams.insert(stream, (app, id));
        self.connections += 1;
        cx.counters.connections_opened += 1;
        self.grant_file_credit(cx, id);
        if options.notsent_lowat_bytes().is_some() {
            self.bound_notsent(cx, id);
        }
        cx.places.is_looping |= cx.io.is_looped(stream);
        Ok(())
    }

    /// Handles the establishment of a connection that the application opened.
    pub(crate) fn on_connected(&mut self, cx: &mut Context<'_>, id: SocketId) {
        if let Some(socket) = self.socket(id) {
            let (cleared, set) = (Flags::CONNECTING, Flags::CONNECTED);
            socket.record.replace(cleared, set);
            self.anticipate_tx(id);
            self.pump(cx, id);
        }
    }

    /// Closes a socket whose last descriptor is closed.
    pub(crate) fn close(&mut self, cx: &mut Context<'_>, id: SocketId) {
        let Some(socket) = self.socket(id) else {
            return;
        };
        match &socket.kind {
            Kind::Unconnected(unconnected) => {
                if let Some(binding) = unconnected.binding {
                    cx.io.release(binding);
                }
                self.remove(id, cx.counters);
            }
            Kind::Listener(_) => self.close_listener(cx, id),
            Kind::Stream(_) => self.close_stream(cx, id),
            Kind::File(_) => self.close_file(cx, id),
        }
    }

    /// Resets a connection, and reports the error in the record. The socket stays for its
    /// descriptor.
    pub(crate) fn abort(&mut self, cx: &mut Context<'_>, id: SocketId, errno: Errno, flags: Flags) {
        self.abort_held(cx, id);
        self.leave_splice(cx, id, Some(errno));
        self.publish_acked(cx, id);
        let Some(socket) = self.socket(id) else {
            return;
        };
        if let Some(stream) = socket.stream_mut()
            && !std::mem::replace(&mut stream.is_gone, true)
        {
            let (stream_id, binding) = (stream.id, stream.binding.take());
            let current = stream.current.take();
            self.note_closed(id, current);
            self.abort_stream(cx, stream_id, binding);
        }
        let Some(socket) = self.socket(id) else {
            return;
        };
        let flags = flags | Flags::FAILED | Flags::CLOSED;
        socket.record.clear(Flags::SPLICED);
        socket.record.fail(errno::number(errno), flags);
        let bound = match &mut socket.kind {
            Kind::Listener(listener) => Some(listener.binding),
            Kind::Unconnected(unconnected) => unconnected.binding.take(),
            Kind::Stream(_) | Kind::File(_) => None,
        };
        if let Some(binding) = bound {
            cx.io.release(binding);
            cx.places.bindings.remove(&binding);
        }
        self.touch(id);
        let is_closing = |socket: &mut Socket| socket.stream().is_some_and(|it| it.is_closing);
        if self.socket(id).is_some_and(is_closing) {
            self.remove(id, cx.counters);
        }
    }

    fn abort_stream(&mut self, cx: &mut Context<'_>, stream: StreamId, binding: Option<BindingId>) {
        cx.io.abort(stream);
        cx.places.streams.remove(&stream);
        if let Some(binding) = binding {
            cx.io.release(binding);
        }
    }

    /// Removes a connection that is over if no process has it.
    pub(crate) fn remove_if_over(&mut self, cx: &mut Context<'_>, id: SocketId) {
        let is_over = |socket: &&mut Socket| socket.is_over() && socket.handle.is_none();
        if self.socket(id).filter(is_over).is_some() {
            self.remove(id, cx.counters);
        }
    }
}
