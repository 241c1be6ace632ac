//! A socket of an application.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use host::app::BindingId;
use socket_channel::{Family, Flags, HandleId, HostRecord, SocketId};

use crate::state::file::File;
use crate::state::listener::Listener;
use crate::state::options::Options;
use crate::state::stream::Stream;

/// One socket: its record, and what the host alone knows of it.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) record: HostRecord,
    /// The descriptor that it lives as long as; none before a connection is accepted, and after
    /// the last copy is closed.
    pub(crate) handle: Option<HandleId>,
    pub(crate) options: Options,
    pub(crate) own: Own,
    /// The record says what they are.
    pub(crate) tells_options: bool,
    pub(crate) kind: Kind,
    /// Hints of its last changes are still to be sent.
    pub(crate) is_changed: bool,
}

/// What a socket is.
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

/// What a socket keeps of its own end when it is disconnected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Own {
    pub(crate) family: Family,
    /// The address that it was bound to, if that was not all.
    pub(crate) ip: Option<IpAddr>,
    /// The application has named the port.
    pub(crate) is_port_named: bool,
    /// The last port that it had.
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

    /// The address that it was bound to, or all.
    pub(crate) fn ip_or_all(&self) -> IpAddr {
        let all = match self.family {
            Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
            Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
        };
        self.ip.unwrap_or(all)
    }

    /// It has this address now, whether or not its record says so.
    pub(crate) fn note_port(&mut self, local: SocketAddr) {
        self.port = local.port();
    }

    /// Where it is after it was disconnected; `None` if it never was anywhere. As the kernel does,
    /// it names the port also if that is not its own any more.
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

    /// Says where its own end is.
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

    /// Says in the record what the options are, from now on.
    pub(crate) fn tell_options(&mut self) {
        self.tells_options = true;
        let options = self.options;
        self.record
            .set_options(|option| options.get(option).unwrap_or_default());
    }

    /// True if nothing will come or go any more.
    pub(crate) fn is_over(&self) -> bool {
        self.record.flags().has(Flags::CLOSED)
    }
}
