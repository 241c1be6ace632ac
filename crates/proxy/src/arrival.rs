//! How a client has arrived.

use std::net::{IpAddr, SocketAddr};

use host::app::StreamId;
use http_message::access::AccessTls;

/// See the [module documentation](self).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    /// Number of the listener.
    pub(crate) listener: usize,
    /// The TCP stream, which HTTP/2 shares among clients of sessions.
    pub(crate) connection: StreamId,
    /// Requests on the connection before the session's first one.
    pub(crate) requests_before: u32,
    /// The client.
    pub(crate) peer: SocketAddr,
    /// The peer of the connection, if a header of the PROXY protocol has named another client.
    pub(crate) proxy: Option<IpAddr>,
    /// The address that the client has connected to.
    pub(crate) local: SocketAddr,
    /// Negotiated parameters, if the connection speaks TLS.
    pub(crate) tls: Option<AccessTls<'static>>,
}
