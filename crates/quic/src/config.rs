//! The settings of an endpoint, and its bounds.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use contract::tls::Cipher;
use rustls::KeyLog;
use rustls::crypto::CryptoProvider;
use rustls::server::ProducesTickets;
use tcp::CongestionAlgorithm;

/// What a client may make the host keep, and how far the host runs ahead of the NIC stack.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at a time. A client that comes then is refused.
    pub connections_max: usize,
    /// From so many connections on, a client must show that it gets what is sent to its address
    /// (RFC 9000 §8.1.2).
    pub retry_above: usize,
    /// Streams that a client may have open, of each direction; of those that go one way, twelve at
    /// most.
    pub streams_max: u32,
    /// What a client may send on a stream before it is read, in bytes.
    pub stream_receive_bytes_max: u32,
    /// The same, on all streams of a connection.
    pub receive_bytes_max: u32,
    /// From so many connections on, clients that come may send no more than
    /// [`Limits::RECEIVE_BYTES_MIN`] before it is read, on a stream and altogether.
    pub receive_less_above: usize,
    /// Extents that wait for their acknowledgment, on all streams of a connection.
    pub extents_max: usize,
    /// Bytes written that are not acknowledged, on all streams of a connection.
    pub send_bytes_max: u64,
    /// Bytes in datagrams that the NIC stack has been given and has not reported as departed: as
    /// long as there are more, a connection makes no others. What waits there looks like a longer
    /// round trip.
    pub undeparted_bytes_max: u64,
    /// The same, of all connections of a worker: as long as there are as many, a connection has one
    /// SEND at a time there. What waits behind that of many others is then made when it can leave, of all
    /// that may be sent by then.
    pub all_undeparted_bytes_max: u64,
    /// Tokens that are known to be used (RFC 9000 §8.1.4). Where there are more, the oldest tokens
    /// are refused, used or not.
    pub used_tokens_max: usize,
    /// Sessions that are kept for [`Settings::early_data`]. The oldest half is forgotten where
    /// there is no room.
    pub sessions_max: usize,
}

impl Limits {
    /// What every client may send before it is read, in bytes.
    pub const RECEIVE_BYTES_MIN: u32 = 16 << 10;
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 65_536,
            retry_above: 16_384,
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
        }
    }
}

/// Where handshakes get what is left to chance.
#[derive(Clone, Debug)]
pub struct Crypto {
    /// Random numbers and key exchanges; its cipher suites are not used.
    pub provider: CryptoProvider,
    /// Session tickets.
    pub tickets: Arc<dyn ProducesTickets>,
}

/// Addresses of the server to which clients move that know how, once their handshake is confirmed
/// (RFC 9000 §9.6): one for each version of IP. No client moves that was not told of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PreferredAddress {
    /// For clients with IPv4.
    pub v4: Option<Ipv4Addr>,
    /// For clients with IPv6.
    pub v6: Option<Ipv6Addr>,
    /// The port of the endpoint, which stays the same.
    pub port: u16,
}

impl PreferredAddress {
    /// True if there is none.
    pub fn is_none(&self) -> bool {
        self.v4.is_none() && self.v6.is_none()
    }
}

/// How long keys of 1-RTT packets are used (RFC 9001 §6.6): for no more packets than this, nor than
/// their cipher permits.
#[derive(Clone, Copy, Debug)]
pub struct AeadLimits {
    /// Packets sealed with a key. The engine updates keys 10,000 packets before.
    pub confidentiality: u64,
    /// Packets of a connection that do not open: one more closes it.
    pub integrity: u64,
}

impl Default for AeadLimits {
    /// What the cipher permits.
    fn default() -> Self {
        Self {
            confidentiality: u64::MAX,
            integrity: u64::MAX,
        }
    }
}

/// What an endpoint wants.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Application protocols, best first. A client that asks for others only is refused.
    pub alpn: Vec<Vec<u8>>,
    /// Ciphers, best first, at least one.
    pub ciphers: Vec<Cipher>,
    /// Session tickets after a handshake; 0: sessions are not resumed.
    pub tickets: usize,
    /// Whether a client that resumes a session may send data before the handshake is complete. Such
    /// data can be recorded and sent again (RFC 8446 §8): sessions are kept, and each is resumed
    /// once, so that a copy finds none (§8.1). A client that comes while receive windows are small
    /// ([`Limits::receive_less_above`]) is refused early data: it was told of larger ones.
    pub early_data: bool,
    /// What gets the secrets of each connection, for debugging, if anything does.
    pub key_log: Option<Arc<dyn KeyLog>>,
    /// Congestion control.
    pub congestion: CongestionAlgorithm,
    /// A connection on which nothing comes for so long is over.
    pub idle_timeout: Duration,
    /// Whether clients may change their address.
    pub migration: bool,
    /// Where clients move to, with [`migration`](Self::migration).
    pub preferred_address: PreferredAddress,
    /// Whether clients that know how are asked to acknowledge less often
    /// (draft-ietf-quic-ack-frequency).
    pub ack_frequency: bool,
    /// Largest datagram that is tried, in bytes, at most
    /// [`contract::limits::QUIC_DATAGRAM_BYTES_MAX`]; 1,200 are always possible.
    pub datagram_bytes_max: u16,
    /// From which the keys of tokens, stateless resets and connection IDs are made. Who has the
    /// same can reset connections of an endpoint that has lost them. `None`: one by chance.
    pub secret: Option<[u8; 32]>,
    /// What decides all that is left to chance but for handshakes. `None`: chance.
    pub seed: Option<[u8; 32]>,
    /// What decides the same for handshakes, in a simulation in which everything is to happen once
    /// more. `None`: chance.
    pub crypto: Option<Crypto>,
    /// How long keys are used.
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
