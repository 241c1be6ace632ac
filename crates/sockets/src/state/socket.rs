//! A socket of an application.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use host::app::BindingId;
use socket_channel::{Family, Flags, HandleId, HostRecord, SocketId};

use crate::state::file::File;
use crate::state::listener::Listener;
use crate::state::options::Options;
use crate::state::stream::Stream;

/// A socket: its record, and the host's private state.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) record: HostRecord,
    /// Descriptor that determines its lifetime; `None` before a connection is accepted, and after
    /// the last copy is closed.
    pub(crate) handle: Option<HandleId>,
    pub(crate) options: Options,
    pub(crate) own: Own,
    /// The record shows the options.
    pub(crate) tells_options: bool,
    pub(crate) kind: Kind,
    /// Hints of its last changes are still to be sent.
    pub(crate) is_changed: bool,
}

/// Kind of a socket.
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all are streams, which each request would reach through a box"
)]
#[derive(Debug)]
pub(crate) enum Kind {
    /// Neither connected nor listening.
    Unconnected(Unconnected),
    Listener(Listener),
    Stream(Stream),
    File(File),
}

/// A socket that may become a listener or a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Unconnected {
    pub(crate) binding: Option<BindingId>,
}

/// Local end that a socket keeps when it is disconnected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Own {
    pub(crate) family: Family,
    /// Address to which it was bound, unless that was the unspecified one.
    pub(crate) ip: Option<IpAddr>,
    /// The application has named the port.
    pub(crate) is_port_named: bool,
    /// Its last port.
    port: u16,
}

impl Own {
    pub(crate) fn of(family: Family) -> Own {
        Own {
            family,
            ip: None,
            is_port_named: false,
            port: 0,
        }
    }

    /// Returns the address to which it was bound, or the unspecified one.
    pub(crate) fn ip_or_all(&self) -> IpAddr {
        let all = match self.family {
            Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
            Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
        };
        self.ip.unwrap_or(all)
    }

    /// Notes the port of its local address, whether or not the record shows it.
    pub(crate) fn note_port(&mut self, local: SocketAddr) {
        self.port = local.port();
    }

    /// Returns the local address after a disconnect; `None` if it never had one. As in the kernel,
    /// it includes the port even after its release.
    pub(crate) fn left(&self) -> Option<SocketAddr> {
        (self.port != 0).then(|| SocketAddr::new(self.ip_or_all(), self.port))
    }
}

impl Socket {
    pub(crate) fn new(record: HostRecord, handle: Option<HandleId>, kind: Kind) -> Socket {
        Socket {
            record,
            handle,
            options: Options::default(),
            own: Own::of(Family::V4),
            tells_options: false,
            kind,
            is_changed: false,
        }
    }

    pub(crate) fn id(&self) -> SocketId {
        self.record.id()
    }

    /// Sets its local address, in the record too.
    pub(crate) fn set_local(&mut self, local: SocketAddr) {
        self.own.note_port(local);
        self.record.set_local(local);
    }

    pub(crate) fn stream(&self) -> Option<&Stream> {
        match &self.kind {
            Kind::Stream(stream) => Some(stream),
            Kind::Unconnected(_) | Kind::Listener(_) | Kind::File(_) => None,
        }
    }

    pub(crate) fn stream_mut(&mut self) -> Option<&mut Stream> {
        match &mut self.kind {
            Kind::Stream(stream) => Some(stream),
            Kind::Unconnected(_) | Kind::Listener(_) | Kind::File(_) => None,
        }
    }

    pub(crate) fn listener_mut(&mut self) -> Option<&mut Listener> {
        match &mut self.kind {
            Kind::Listener(listener) => Some(listener),
            Kind::Unconnected(_) | Kind::Stream(_) | Kind::File(_) => None,
        }
    }

    /// Publishes the options in the record from now on.
    pub(crate) fn tell_options(&mut self) {
        self.tells_options = true;
        let options = self.options;
        self.record
            .set_options(|option| options.get(option).unwrap_or_default());
    }

    /// Reports whether the socket is closed in both directions for good.
    pub(crate) fn is_over(&self) -> bool {
        self.record.flags().has(Flags::CLOSED)
    }
}
