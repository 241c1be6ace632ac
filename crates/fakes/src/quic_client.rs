//! A QUIC client: quinn-proto, with the unmodified handshake and keys of rustls.

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::io::Cursor;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use aes_gcm::aead::AeadInPlace;
use aes_gcm::{Aes128Gcm, KeyInit, Nonce, Tag};
use bytes::BytesMut;
use quinn_proto::crypto::{
    self, CryptoError, ExportKeyingMaterialError, HeaderKey, HmacKey, KeyPair, Keys, PacketKey,
    Session,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{
    ClientConfig, ConnectError, Connection, ConnectionHandle, ConnectionId, ConnectionIdGenerator,
    DatagramEvent, Dir, EcnCodepoint, Endpoint, EndpointConfig, Event, IdleTimeout, ReadError,
    Side, StreamId, TokenStore, TransportConfig, TransportError, TransportErrorCode, VarInt,
};
use rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::pki_types::ServerName;
use rustls::quic::{self, ClientConnection, KeyChange, Secrets, Version};
use sha2::{Digest, Sha256};
pub use wire::ip::Ecn;

pub use quinn_proto::TokenMemoryCache;
pub use rustls::ClientConfig as TlsConfig;

/// Datagrams that a client passes to the kernel at once: as many as quinn's sockets do.
const SUPERPACKET_DATAGRAMS_MAX: usize = 10;

/// Settings of a client.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    /// Name of the server.
    pub server_name: &'a str,
    /// The application protocol.
    pub alpn: &'a [u8],
    /// Limit of unread data on all streams, in bytes.
    pub window_bytes: u32,
    /// Limit of unread data on each stream, in bytes.
    pub stream_window_bytes: u32,
    /// Idle timeout, in milliseconds.
    pub idle_timeout_ms: u32,
    /// Time of the connection attempt, in microseconds.
    pub begins_us: u64,
    /// Seed of all random choices except the handshake's.
    pub seed: u64,
    /// Tokens from the server, which prove the client's address (RFC 9000 §8.1.3).
    pub tokens: Option<&'a Arc<TokenMemoryCache>>,
}

impl Default for Setup<'_> {
    fn default() -> Self {
        Self {
            server_name: "localhost",
            alpn: b"h3",
            window_bytes: 8 << 20,
            stream_window_bytes: 4 << 20,
            idle_timeout_ms: 30_000,
            begins_us: 0,
            seed: 0,
            tokens: None,
        }
    }
}

/// Connection IDs computed from a seed and an address.
#[derive(Clone)]
struct Ids {
    seed: u64,
    local: SocketAddr,
    count: u64,
}

impl ConnectionIdGenerator for Ids {
    fn generate_cid(&mut self) -> ConnectionId {
        self.count += 1;
        let Ids { seed, local, count } = self;
        let digest = Sha256::digest(format!("{seed} {local} {count}"));
        ConnectionId::new(&digest[..CONNECTION_ID_BYTES])
    }

    fn cid_len(&self) -> usize {
        CONNECTION_ID_BYTES
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

/// Length of a client's connection IDs, in bytes.
pub const CONNECTION_ID_BYTES: usize = 8;

/// A client with one connection. Time is in microseconds since its start.
///
/// Its keys record opened packets: two different packets with the same number are a panic.
pub struct QuicClient {
    start: Instant,
    endpoint: Endpoint,
    handle: ConnectionHandle,
    connection: Connection,
    server: SocketAddr,
    /// The client's address, which may change.
    pub local: SocketAddr,
    outgoing: VecDeque<Vec<u8>>,
    /// The handshake is complete.
    pub is_connected: bool,
    /// Reason of the connection's end.
    pub lost: Option<String>,
}

/// Result of a read from a stream.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// Bytes.
    Bytes(Vec<u8>),
    /// Nothing yet.
    Blocked,
    /// The end.
    Finished,
    /// The server has reset the stream.
    Reset(u64),
}

impl QuicClient {
    /// Connects to a server named `localhost`.
    ///
    /// # Panics
    /// If the configuration is not one of QUIC.
    pub fn connect(
        config: rustls::ClientConfig,
        alpn: &[u8],
        addresses: (SocketAddr, SocketAddr),
        seed: u64,
    ) -> Self {
        let setup = Setup {
            alpn,
            seed,
            ..Setup::default()
        };
        Self::connect_as(config, addresses, &setup)
    }

    /// Connects with these settings.
    ///
    /// # Panics
    /// If the configuration is not one of QUIC.
    pub fn connect_as(
        mut config: rustls::ClientConfig,
        (local, server): (SocketAddr, SocketAddr),
        setup: &Setup<'_>,
    ) -> Self {
        config.alpn_protocols = vec![setup.alpn.to_vec()];
        let mut rng_seed = [0; 32];
        rng_seed[..8].copy_from_slice(&setup.seed.to_le_bytes());
        let mut own = EndpointConfig::new(Arc::new(NoResets));
        own.rng_seed(Some(rng_seed));
        let ids = Ids {
            seed: setup.seed,
            local,
            count: 0,
        };
        let first = Ids {
            seed: !setup.seed,
            local,
            count: 0,
        };
        own.cid_generator(move || Box::new(ids.clone()));
        let mut client = ClientConfig::new(Arc::new(Sessions(Arc::new(config))));
        client.initial_dst_cid_provider(Arc::new(move || first.clone().generate_cid()));
        let mut transport = TransportConfig::default();
        transport
            .receive_window(VarInt::from_u32(setup.window_bytes))
            .stream_receive_window(VarInt::from_u32(setup.stream_window_bytes))
            .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(
                setup.idle_timeout_ms,
            ))));
        client.transport_config(Arc::new(transport));
        if let Some(tokens) = setup.tokens {
            client.token_store(Arc::clone(tokens) as Arc<dyn TokenStore>);
        }
        let start = Instant::now();
        let mut endpoint = Endpoint::new(Arc::new(own), None, true, None);
        let begins = start + Duration::from_micros(setup.begins_us);
        let (handle, connection) = endpoint
            .connect(begins, client, server, setup.server_name)
            .expect("the configuration is one of QUIC");
        Self {
            start,
            endpoint,
            handle,
            connection,
            server,
            local,
            outgoing: VecDeque::new(),
            is_connected: false,
            lost: None,
        }
    }

    fn at(&self, now_us: u64) -> Instant {
        self.start + Duration::from_micros(now_us)
    }

    /// Handles a datagram from the server.
    pub fn on_datagram(&mut self, now_us: u64, payload: &[u8], is_marked: bool) {
        let ecn = if is_marked { Ecn::Ce } else { Ecn::NotEct };
        self.on_packet(now_us, payload, ecn);
    }

    /// Handles a datagram with the ECN field of its IP header.
    pub fn on_packet(&mut self, now_us: u64, payload: &[u8], ecn: Ecn) {
        let ecn = match ecn {
            Ecn::NotEct => None,
            Ecn::Ect0 => Some(EcnCodepoint::Ect0),
            Ecn::Ect1 => Some(EcnCodepoint::Ect1),
            Ecn::Ce => Some(EcnCodepoint::Ce),
        };
        let mut answer = Vec::new();
        let event = self.endpoint.handle(
            self.at(now_us),
            self.server,
            Some(self.local.ip()),
            ecn,
            BytesMut::from(payload),
            &mut answer,
        );
        match event {
            Some(DatagramEvent::ConnectionEvent(_, event)) => self.connection.handle_event(event),
            Some(DatagramEvent::Response(_)) => self.outgoing.push_back(answer),
            Some(DatagramEvent::NewConnection(_)) | None => {}
        }
        self.after();
    }

    /// Returns the next datagram for the server.
    pub fn poll_datagram(&mut self, now_us: u64) -> Option<Vec<u8>> {
        if self.outgoing.is_empty() {
            let mut buffer = Vec::new();
            let transmit = self
                .connection
                .poll_transmit(self.at(now_us), 1, &mut buffer)?;
            buffer.truncate(transmit.size);
            self.outgoing.push_back(buffer);
        }
        self.outgoing.pop_front()
    }

    /// Returns the next datagrams for the server, back to back, and the length of each but the
    /// last, in bytes: the form of `UDP_SEGMENT`.
    pub fn poll_superpacket(&mut self, now_us: u64) -> Option<(Vec<u8>, usize)> {
        if let Some(datagram) = self.outgoing.pop_front() {
            let each = datagram.len();
            return Some((datagram, each));
        }
        let mut buffer = Vec::new();
        let at = self.at(now_us);
        let transmit = self
            .connection
            .poll_transmit(at, SUPERPACKET_DATAGRAMS_MAX, &mut buffer)?;
        buffer.truncate(transmit.size);
        Some((buffer, transmit.segment_size.unwrap_or(transmit.size)))
    }

    /// Returns the time at which [`on_timeout`](Self::on_timeout) is due.
    pub fn next_timeout_us(&mut self) -> Option<u64> {
        let at = self.connection.poll_timeout()?;
        let ns = at.saturating_duration_since(self.start).as_nanos();
        Some(ns.div_ceil(1000) as u64)
    }

    /// Handles the passage of time.
    pub fn on_timeout(&mut self, now_us: u64) {
        self.connection.handle_timeout(self.at(now_us));
        self.after();
    }

    fn after(&mut self) {
        while let Some(event) = self.connection.poll_endpoint_events() {
            if let Some(answer) = self.endpoint.handle_event(self.handle, event) {
                self.connection.handle_event(answer);
            }
        }
        while let Some(event) = self.connection.poll() {
            match event {
                Event::Connected => self.is_connected = true,
                Event::ConnectionLost { reason } => self.lost = Some(reason.to_string()),
                _ => {}
            }
        }
    }

    /// Opens a stream, and sends a request on it, with the stream's end.
    pub fn request(&mut self, request: &[u8]) -> Option<u64> {
        let id = self.connection.streams().open(Dir::Bi)?;
        let mut stream = self.connection.send_stream(id);
        let written = stream.write(request).expect("a request is short");
        assert_eq!(written, request.len());
        stream.finish().expect("a stream that was just opened");
        Some(id.into())
    }

    /// Reads received data of a stream.
    ///
    /// # Panics
    /// If the stream is not open.
    pub fn receive(&mut self, stream: u64) -> Received {
        self.receive_some(stream, usize::MAX)
    }

    /// Reads received data of a stream, at most `bytes_max` bytes.
    ///
    /// # Panics
    /// If the stream is not open.
    pub fn receive_some(&mut self, stream: u64, bytes_max: usize) -> Received {
        let id = StreamId::from(VarInt::from_u64(stream).expect("a stream"));
        let mut receiving = self.connection.recv_stream(id);
        let mut chunks = receiving.read(true).expect("the stream is open");
        let received = match chunks.next(bytes_max) {
            Ok(Some(chunk)) => Received::Bytes(chunk.bytes.to_vec()),
            Ok(None) => Received::Finished,
            Err(ReadError::Blocked) => Received::Blocked,
            Err(ReadError::Reset(code)) => Received::Reset(code.into_inner()),
        };
        let _ = chunks.finalize();
        received
    }

    /// Opens a stream, and sends first bytes on it, without the stream's end.
    pub fn open(&mut self, first: &[u8]) -> Option<u64> {
        let id = self.connection.streams().open(Dir::Bi)?;
        self.send(id.into(), first);
        Some(id.into())
    }

    /// Opens a unidirectional stream to the server.
    pub fn open_unidirectional(&mut self) -> Option<u64> {
        self.connection.streams().open(Dir::Uni).map(Into::into)
    }

    /// Accepts the next unidirectional stream of the server.
    pub fn accept(&mut self) -> Option<u64> {
        self.connection.streams().accept(Dir::Uni).map(Into::into)
    }

    /// Sends further bytes on a stream.
    ///
    /// # Panics
    /// If the stream is not open, or flow control does not permit all bytes.
    pub fn send(&mut self, stream: u64, bytes: &[u8]) {
        let id = StreamId::from(VarInt::from_u64(stream).expect("a stream"));
        let written = self.connection.send_stream(id).write(bytes);
        assert_eq!(written.expect("the stream is open"), bytes.len());
    }

    /// Sends as many bytes on a stream as flow control permits, and returns their number.
    pub fn send_some(&mut self, stream: u64, bytes: &[u8]) -> usize {
        let id = StreamId::from(VarInt::from_u64(stream).expect("a stream"));
        let written = self.connection.send_stream(id).write(bytes);
        written.unwrap_or(0)
    }

    /// Fills a stream's flow-control window, and returns the number of bytes sent.
    pub fn fill(&mut self, stream: u64) -> usize {
        let id = StreamId::from(VarInt::from_u64(stream).expect("a stream"));
        let mut sent = 0;
        while let Ok(written) = self.connection.send_stream(id).write(&[b'x'; 1000]) {
            sent += written;
        }
        sent
    }

    /// Resets a stream.
    pub fn reset(&mut self, stream: u64, code: u32) {
        let id = StreamId::from(VarInt::from_u64(stream).expect("a stream"));
        let reset = self
            .connection
            .send_stream(id)
            .reset(VarInt::from_u32(code));
        assert!(reset.is_ok(), "the stream is open");
    }

    /// Sends STOP_SENDING for a stream.
    pub fn stop(&mut self, stream: u64, code: u32) {
        let id = StreamId::from(VarInt::from_u64(stream).expect("a stream"));
        let stopped = self.connection.recv_stream(id).stop(VarInt::from_u32(code));
        assert!(stopped.is_ok(), "the stream is open");
    }

    /// Continues from another address, and sends packets from it.
    pub fn move_to(&mut self, local: SocketAddr) {
        self.local = local;
        self.connection.local_address_changed();
    }

    /// Returns true once the server has confirmed the handshake (HANDSHAKE_DONE, RFC 9001 §4.1.2).
    /// Before, no client changes its address (RFC 9000 §9).
    pub fn is_confirmed(&self) -> bool {
        self.connection.stats().frame_rx.handshake_done > 0
    }

    /// Returns true if the client resumes a session that permits early data: data sent before the
    /// handshake is complete leaves with it, and is lost if the server rejects it.
    pub fn may_send_early(&self) -> bool {
        self.connection.has_0rtt()
    }

    /// Returns true if the handshake is complete, and the server has accepted the early data.
    pub fn is_early_data_accepted(&self) -> bool {
        self.is_connected && self.connection.has_0rtt() && self.connection.accepted_0rtt()
    }

    /// Returns true if no state of the connection is left, not even the wait for stray packets.
    pub fn is_drained(&self) -> bool {
        self.connection.is_drained()
    }

    /// Updates the keys.
    pub fn update_keys(&mut self) {
        self.connection.force_key_update();
    }

    /// Closes the connection.
    pub fn close(&mut self, now_us: u64, code: u32) {
        let at = self.at(now_us);
        self.connection
            .close(at, VarInt::from_u32(code), bytes::Bytes::new());
    }
}

struct Sessions(Arc<rustls::ClientConfig>);

impl crypto::ClientConfig for Sessions {
    fn start_session(
        self: Arc<Self>,
        _version: u32,
        server_name: &str,
        parameters: &TransportParameters,
    ) -> Result<Box<dyn Session>, ConnectError> {
        let mut encoded = Vec::new();
        parameters.write(&mut encoded);
        let name = ServerName::try_from(server_name.to_owned())
            .map_err(|_| ConnectError::InvalidServerName(server_name.into()))?;
        let config = Arc::clone(&self.0);
        let connection = ClientConnection::new(config, Version::V1, name, encoded);
        Ok(Box::new(ClientSession {
            connection: connection.expect("the configuration is one of QUIC"),
            next: None,
        }))
    }
}

struct ClientSession {
    connection: ClientConnection,
    next: Option<Secrets>,
}

fn plain(keys: quic::Keys) -> Keys {
    Keys {
        header: KeyPair {
            local: Box::new(PlainHeaderKey(keys.local.header)),
            remote: Box::new(PlainHeaderKey(keys.remote.header)),
        },
        packet: KeyPair {
            local: PlainPacketKey::new(keys.local.packet),
            remote: PlainPacketKey::new(keys.remote.packet),
        },
    }
}

impl Session for ClientSession {
    fn initial_keys(&self, id: &ConnectionId, _: Side) -> Keys {
        let suite = TLS13_AES_128_GCM_SHA256
            .tls13()
            .and_then(|s| s.quic_suite());
        let suite = suite.expect("aws-lc has the suite of Initial packets");
        let keys = suite.keys(id, rustls::Side::Client, Version::V1);
        Keys {
            header: KeyPair {
                local: Box::new(PlainHeaderKey(keys.local.header)),
                remote: Box::new(PlainHeaderKey(keys.remote.header)),
            },
            packet: KeyPair {
                local: PlainPacketKey::public(keys.local.packet),
                remote: PlainPacketKey::public(keys.remote.packet),
            },
        }
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        None
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        None
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        let keys = self.connection.zero_rtt_keys()?;
        let header = Box::new(PlainHeaderKey(keys.header));
        Some((header, PlainPacketKey::new(keys.packet)))
    }

    fn early_data_accepted(&self) -> Option<bool> {
        Some(self.connection.is_early_data_accepted())
    }

    fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    fn read_handshake(&mut self, bytes: &[u8]) -> Result<bool, TransportError> {
        self.connection.read_hs(bytes).map_err(|error| {
            let alert = self.connection.alert();
            TransportError {
                code: alert.map_or(TransportErrorCode::PROTOCOL_VIOLATION, |alert| {
                    TransportErrorCode::crypto(alert.into())
                }),
                frame: None,
                reason: error.to_string(),
            }
        })?;
        Ok(false)
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        match self.connection.quic_transport_parameters() {
            None => Ok(None),
            Some(encoded) => Ok(Some(TransportParameters::read(
                Side::Client,
                &mut Cursor::new(encoded),
            )?)),
        }
    }

    fn write_handshake(&mut self, bytes: &mut Vec<u8>) -> Option<Keys> {
        match self.connection.write_hs(bytes)? {
            KeyChange::Handshake { keys } => Some(plain(keys)),
            KeyChange::OneRtt { keys, next } => {
                self.next = Some(next);
                Some(plain(keys))
            }
        }
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        let keys = self.next.as_mut()?.next_packet_keys();
        Some(KeyPair {
            local: PlainPacketKey::new(keys.local),
            remote: PlainPacketKey::new(keys.remote),
        })
    }

    /// Verifies the integrity tag of a Retry (RFC 9001 §5.8).
    fn is_valid_retry(&self, id: &ConnectionId, header: &[u8], payload: &[u8]) -> bool {
        let key = [
            0xbe, 0x0c, 0x69, 0x0b, 0x9f, 0x66, 0x57, 0x5a, 0x1d, 0x76, 0x6b, 0x54, 0xe3, 0x68,
            0xc8, 0x4e,
        ];
        let nonce = [
            0x46, 0x15, 0x99, 0xd3, 0x5d, 0x63, 0x2b, 0xf2, 0x23, 0x98, 0x25, 0xbb,
        ];
        let Some((token, tag)) = payload.split_last_chunk::<16>() else {
            return false;
        };
        let pseudo_packet = [&[id.len() as u8], &id[..], header, token].concat();
        let cipher = Aes128Gcm::new(&key.into());
        let opened = cipher.decrypt_in_place_detached(
            Nonce::from_slice(&nonce),
            &pseudo_packet,
            &mut [],
            Tag::from_slice(tag),
        );
        opened.is_ok()
    }

    fn export_keying_material(
        &self,
        _: &mut [u8],
        _: &[u8],
        _: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        Err(ExportKeyingMaterialError)
    }
}

/// A key, with a digest of the packet opened under each packet number.
struct PlainPacketKey {
    key: Box<dyn quic::PacketKey>,
    opened: Mutex<HashMap<u64, [u8; 32]>>,
    is_public: bool,
}

impl PlainPacketKey {
    fn new(key: Box<dyn quic::PacketKey>) -> Box<Self> {
        Box::new(Self {
            key,
            opened: Mutex::default(),
            is_public: false,
        })
    }

    /// Returns a key of Initial packets, which is public: a server without state refuses each of a
    /// client's attempts under number 0 (RFC 9001 §5.2), so that reuse is no error.
    fn public(key: Box<dyn quic::PacketKey>) -> Box<dyn PacketKey> {
        Box::new(Self {
            is_public: true,
            ..*Self::new(key)
        })
    }

    /// # Panics
    /// If another packet of this number was opened (RFC 9001 §5.3), or the packet is only padding,
    /// the result of a server that failed to fill its placeholders.
    fn watch(&self, number: u64, digest: [u8; 32], plaintext: &[u8]) {
        if self.is_public {
            return;
        }
        let mut opened = self.opened.lock().expect("no other thread has panicked");
        let before = opened.insert(number, digest);
        assert!(
            before.is_none_or(|before| before == digest),
            "packet number {number} was sealed twice"
        );
        let is_padding = plaintext.iter().all(|byte| *byte == 0);
        assert!(!is_padding, "packet {number} is nothing but zeros");
    }
}

impl PacketKey for PlainPacketKey {
    fn encrypt(&self, number: u64, packet: &mut [u8], header_bytes: usize) {
        let (header, payload) = packet.split_at_mut(header_bytes);
        let (plaintext, tag) = payload.split_at_mut(payload.len() - self.key.tag_len());
        let sealed = self.key.encrypt_in_place(number, header, plaintext);
        tag.copy_from_slice(sealed.expect("a packet is short").as_ref());
    }

    fn decrypt(
        &self,
        number: u64,
        header: &[u8],
        payload: &mut BytesMut,
    ) -> Result<(), CryptoError> {
        let digest = Sha256::digest(&payload[..]).into();
        let opened = self.key.decrypt_in_place(number, header, payload);
        let plaintext = opened.map_err(|_| CryptoError)?;
        self.watch(number, digest, plaintext);
        let len = plaintext.len();
        payload.truncate(len);
        Ok(())
    }

    fn tag_len(&self) -> usize {
        self.key.tag_len()
    }

    fn confidentiality_limit(&self) -> u64 {
        self.key.confidentiality_limit()
    }

    fn integrity_limit(&self) -> u64 {
        self.key.integrity_limit()
    }
}

struct PlainHeaderKey(Box<dyn quic::HeaderProtectionKey>);

impl HeaderKey for PlainHeaderKey {
    fn decrypt(&self, number_at: usize, packet: &mut [u8]) {
        let (header, sample) = packet.split_at_mut(number_at + 4);
        let (first, rest) = header.split_at_mut(1);
        let sample = &sample[..self.sample_size()];
        self.0
            .decrypt_in_place(sample, &mut first[0], &mut rest[number_at - 1..])
            .expect("lengths are right");
    }

    fn encrypt(&self, number_at: usize, packet: &mut [u8]) {
        let (header, sample) = packet.split_at_mut(number_at + 4);
        let (first, rest) = header.split_at_mut(1);
        let sample = &sample[..self.sample_size()];
        self.0
            .encrypt_in_place(sample, &mut first[0], &mut rest[number_at - 1..])
            .expect("lengths are right");
    }

    fn sample_size(&self) -> usize {
        self.0.sample_len()
    }
}

/// The key of stateless resets, which clients do not need.
struct NoResets;

impl HmacKey for NoResets {
    fn sign(&self, data: &[u8], signature: &mut [u8]) {
        signature.copy_from_slice(&Sha256::digest(data));
    }

    fn signature_len(&self) -> usize {
        32
    }

    fn verify(&self, data: &[u8], signature: &[u8]) -> Result<(), CryptoError> {
        if Sha256::digest(data)[..] == *signature {
            Ok(())
        } else {
            Err(CryptoError)
        }
    }
}
