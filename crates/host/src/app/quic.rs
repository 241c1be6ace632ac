//! Names and events of QUIC (RFC 9000) for applications: each stream of a connection is a stream of
//! [`Io`](super::Io), with a [`StreamId`](super::StreamId) of its own.
//!
//! | [`Io`](super::Io) | On a stream of QUIC |
//! |---|---|
//! | `read`, `write`, `write_file`, `open`, `list`, `set_timer` | as on others |
//! | `shutdown` | ends the sending side, after all queued bytes |
//! | `abort` | RESET_STREAM and STOP_SENDING, with H3_REQUEST_CANCELLED |
//! | `close` | sends the queued bytes, then the end; STOP_SENDING |
//! | `acknowledged` | bytes of a file count in pieces of up to 256 KiB, when all of one is |
//! | `set_max_pacing_rate` | bounds files, not real bytes |
//! | `congestion_window` | that of the connection |
//! | `set_idle`, `set_option` | nothing: a connection ends by its idle timeout |
//! | `info`, `unread`, `take_unread`, `retransmissions` | nothing is known |
//!
//! A stream whose file cannot be read, or is another version after a NIC stack has been replaced,
//! ends with `DataPlaneFailed`, for its peer with H3_INTERNAL_ERROR; the others go on.

use std::net::SocketAddr;

use super::TlsAgreed;

/// A QUIC connection, as applications name it. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QuicConnection(pub u64);

/// The QUIC connection and stream ID behind a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QuicStream {
    /// The connection.
    pub connection: QuicConnection,
    /// The stream ID (RFC 9000 §2.1).
    pub id: u64,
}

impl QuicStream {
    /// True if data goes one way only.
    pub fn is_unidirectional(self) -> bool {
        self.id & 2 != 0
    }

    /// True if this side has opened it.
    pub fn is_local(self) -> bool {
        self.id & 1 != 0
    }
}

/// An event of a QUIC connection, for an application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuicEvent {
    /// The handshake is over, or early data has come before it is. The connection is new.
    Opened {
        /// Address and port of the peer.
        peer: SocketAddr,
        /// The negotiated TLS parameters.
        tls: Box<TlsAgreed>,
        /// The handshake is not complete. Until
        /// [`HandshakeComplete`](QuicEvent::HandshakeComplete), the peer's bytes may be a replay
        /// from another connection (RFC 8470 §2): they must not cause anything that must not happen
        /// twice.
        is_early: bool,
    },
    /// The handshake of a connection with early data is over.
    HandshakeComplete,
    /// The connection is over; `Closed` of its streams came before.
    Closed(QuicCloseReason),
}

/// Why a QUIC connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuicCloseReason {
    /// This side closed it: [`Io::close_quic`](super::Io::close_quic).
    Local,
    /// The peer's application closed it, with this error code.
    Application(u64),
    /// The peer's QUIC closed it, with this error code (RFC 9000 §20.1).
    Peer(u64),
    /// The peer violated the protocol; the error code that was sent to it.
    Protocol(u64),
    /// A stateless reset arrived (RFC 9000 §10.3).
    Reset,
    /// No packet arrived within the idle timeout.
    TimedOut,
    /// The NIC stack could not read the bytes to send.
    Unreadable,
}
