//! The settings of an endpoint, and its bounds.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use contract::tls::Cipher;
use rustls::KeyLog;
use rustls::crypto::CryptoProvider;
use rustls::server::ProducesTickets;
use tcp::CongestionAlgorithm;

use crate::secret::Secret;

/// Bounds on the state that clients can make the host keep, and on how far the host runs ahead of
/// the NIC stack.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at a time, closed ones not included. Beyond that, clients that do not validate
    /// their address with Retry are refused, and others unless the caller makes room
    /// ([`Endpoint::needs_room`](crate::Endpoint::needs_room)).
    pub connections_max: usize,
    /// From this number of connections on, clients must validate their address with Retry (RFC 9000
    /// §8.1.2).
    pub retry_above: usize,
    /// The same, by the number of half-open connections.
    pub half_open_max: usize,
    /// Streams that a client may have open, bidirectional and unidirectional each; of the latter,
    /// twelve at most.
    pub streams_max: u32,
    /// Receive window of a stream, in bytes.
    pub stream_receive_bytes_max: u32,
    /// Receive window of a connection, in bytes.
    pub receive_bytes_max: u32,
    /// From this number of connections on, new clients get receive windows of
    /// [`Limits::RECEIVE_BYTES_MIN`], for a stream and for the connection.
    pub receive_less_above: usize,
    /// Unacknowledged extents, on all streams of a connection.
    pub extents_max: usize,
    /// Bytes written and not acknowledged, on all streams of a connection.
    pub send_bytes_max: u64,
    /// Bytes of datagrams at the NIC stack, not reported as departed. Above this, a connection
    /// builds no more: time spent waiting there lengthens the measured round trip.
    pub undeparted_bytes_max: u64,
    /// The same, of all connections of a worker. At this bound each connection has one SEND at a
    /// time there: it builds packets only when they can leave, out of all that may be sent by then.
    pub all_undeparted_bytes_max: u64,
    /// Tokens remembered as used (RFC 9000 §8.1.4). Beyond that, the oldest tokens are refused,
    /// used or not.
    pub used_tokens_max: usize,
    /// Sessions kept for [`Settings::early_data`]. When they are full, the older half is forgotten.
    pub sessions_max: usize,
    /// Stateless resets (RFC 9000 §10.3) per second.
    pub resets_per_second: u32,
}

impl Limits {
    /// The smallest receive window, in bytes.
    pub const RECEIVE_BYTES_MIN: u32 = 16 << 10;
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 65_536,
            retry_above: 16_384,
            half_open_max: 1024,
            streams_max: 100,
            stream_receive_bytes_max: 64 << 10,
            receive_bytes_max: 256 << 10,
            receive_less_above: 4096,
            extents_max: 4096,
            send_bytes_max: 16 << 20,
            undeparted_bytes_max: 1 << 20,
            all_undeparted_bytes_max: 2 << 20,
            used_tokens_max: 65_536,
            sessions_max: 32_768,
            resets_per_second: 1000,
        }
    }
}

/// Sources of randomness for handshakes.
#[derive(Clone, Debug)]
pub struct Crypto {
    /// Random numbers and key exchanges; its cipher suites are unused.
    pub provider: CryptoProvider,
    /// Session tickets.
    pub tickets: Arc<dyn ProducesTickets>,
}

/// Addresses of the server to which clients with support for it migrate once their handshake is
/// confirmed (RFC 9000 §9.6): one for each version of IP. A client migrates only if the handshake
/// named one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PreferredAddress {
    /// For clients with IPv4.
    pub v4: Option<Ipv4Addr>,
    /// For clients with IPv6.
    pub v6: Option<Ipv6Addr>,
    /// The port of the endpoint.
    pub port: u16,
}

impl PreferredAddress {
    /// True if neither is set.
    pub fn is_none(&self) -> bool {
        self.v4.is_none() && self.v6.is_none()
    }
}

/// The most 1-RTT packets per key (RFC 9001 §6.6), unless the cipher permits fewer.
#[derive(Clone, Copy, Debug)]
pub struct AeadLimits {
    /// Packets sealed with a key. The engine updates keys 10,000 packets earlier.
    pub confidentiality: u64,
    /// Packets of a connection that fail to open; one more closes it.
    pub integrity: u64,
}

impl Default for AeadLimits {
    /// The limits of the cipher.
    fn default() -> Self {
        Self {
            confidentiality: u64::MAX,
            integrity: u64::MAX,
        }
    }
}

/// The settings of an endpoint.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Application protocols, best first. A client that offers none of them is refused.
    pub alpn: Vec<Vec<u8>>,
    /// Ciphers, best first, at least one.
    pub ciphers: Vec<Cipher>,
    /// Session tickets after a handshake; 0: sessions are not resumed.
    pub tickets: usize,
    /// Whether a client that resumes a session may send data before the handshake is complete. Such
    /// data can be replayed (RFC 8446 §8): the endpoint keeps sessions and resumes each once, so
    /// that a replay finds none (§8.1). While receive windows are small
    /// ([`Limits::receive_less_above`]), early data is refused: clients remember larger ones.
    pub early_data: bool,
    /// Gets the secrets of each connection, for debugging.
    pub key_log: Option<Arc<dyn KeyLog>>,
    /// Congestion control.
    pub congestion: CongestionAlgorithm,
    /// A connection that receives nothing for this long is over.
    pub idle_timeout: Duration,
    /// Whether clients may change their address.
    pub migration: bool,
    /// Where clients migrate to, with [`migration`](Self::migration).
    pub preferred_address: PreferredAddress,
    /// Whether clients with the extension are asked to acknowledge less often
    /// (draft-ietf-quic-ack-frequency).
    pub ack_frequency: bool,
    /// Largest datagram that path MTU discovery tries, in bytes, at most
    /// [`contract::limits::QUIC_DATAGRAM_BYTES_MAX`]; 1,200 are always possible.
    pub datagram_bytes_max: u16,
    /// Keys of tokens, stateless resets and connection IDs derive from it. An endpoint with the
    /// same secret accepts this one's tokens, and resets its connections once it has lost them (RFC
    /// 9000 §10.3.2). `None`: a random one.
    pub secret: Option<Secret>,
    /// Seed of all random choices outside handshakes. `None`: random.
    pub seed: Option<[u8; 32]>,
    /// Random choices of handshakes, for reproducible simulations. `None`: random.
    pub crypto: Option<Crypto>,
    /// Limits on the use of keys.
    pub aead_limits: AeadLimits,
    /// Bounds.
    pub limits: Limits,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            alpn: vec![b"h3".to_vec()],
            ciphers: vec![
                Cipher::Aes128Gcm,
                Cipher::Aes256Gcm,
                Cipher::ChaCha20Poly1305,
            ],
            tickets: 2,
            early_data: false,
            key_log: None,
            congestion: CongestionAlgorithm::default(),
            idle_timeout: Duration::from_secs(30),
            migration: true,
            preferred_address: PreferredAddress::default(),
            ack_frequency: true,
            datagram_bytes_max: 1452,
            secret: None,
            seed: None,
            crypto: None,
            aead_limits: AeadLimits::default(),
            limits: Limits::default(),
        }
    }
}
