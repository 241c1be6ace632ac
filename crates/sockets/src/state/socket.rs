//! A socket of an application.

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
    pub(crate) kind: Kind,
    /// Hints of its last changes are still to be sent.
    pub(crate) is_changed: bool,
}

/// What a socket is.
#[derive(Debug)]
pub(crate) enum Kind {
    /// Neither connected nor listening.
    Unconnected(Unconnected),
    Listener(Listener),
    Stream(Stream),
    File(File),
}

/// A socket that may become a listener or a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unconnected {
    pub(crate) family: Family,
    pub(crate) binding: Option<BindingId>,
}

impl Socket {
    pub(crate) fn new(record: HostRecord, handle: Option<HandleId>, kind: Kind) -> Socket {
        Socket {
            record,
            handle,
            options: Options::default(),
            kind,
            is_changed: false,
        }
    }

    pub(crate) fn id(&self) -> SocketId {
        self.record.id()
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

    /// True if nothing will come or go any more.
    pub(crate) fn is_over(&self) -> bool {
        self.record.flags().has(Flags::CLOSED)
    }
}
