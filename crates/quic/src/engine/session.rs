//! The TLS handshake of a server's connection, behind quinn-proto's interface: rustls, with keys
//! that describe 1-RTT packets instead of sealing them.

use std::any::Any;
use std::io::Cursor;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use aws_lc_rs::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use contract::tls::Cipher;
use quinn_proto::crypto::{
    self, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, Session,
    UnsupportedVersion,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectionId, Side, TransportError, TransportErrorCode};
use rustls::quic::{self, DirectionalKeys, KeyChange, Secrets, ServerConnection, Version};
use rustls::{AlertDescription, HandshakeKind, SupportedCipherSuite};
use zeroize::Zeroizing;

use crate::config::AeadLimits;
use crate::engine::capture::{self, Captured, Raw, capturing};
use crate::engine::keys::{self, DescribingKey, OpeningHeaderKey, OpeningKey, Shared, Unprotected};
use crate::trace::PacketType;
use crate::types::{OpenKey, SealKey};

/// The only supported version (RFC 9000 §15).
pub(super) const VERSION_1: u32 = 1;

/// RFC 9001 §5.8
const RETRY_KEY: [u8; 16] = [
    0xbe, 0x0c, 0x69, 0x0b, 0x9f, 0x66, 0x57, 0x5a, 0x1d, 0x76, 0x6b, 0x54, 0xe3, 0x68, 0xc8, 0x4e,
];
const RETRY_NONCE: [u8; 12] = [
    0x46, 0x15, 0x99, 0xd3, 0x5d, 0x63, 0x2b, 0xf2, 0x23, 0x98, 0x25, 0xbb,
];

/// Shared state from which sessions start.
pub(super) struct Sessions {
    pub(super) rustls: Arc<rustls::ServerConfig>,
    pub(super) initial: quic::Suite,
    pub(super) aead_limits: AeadLimits,
    /// Where the first packet of a connection is traced, before it has a session.
    pub(super) first: Shared,
    pub(super) hellos: Hellos,
}

/// Number of ClientHellos processed: each costs a signature, or nearly so. A connection that fails
/// right after that has cost it, too.
#[derive(Clone, Debug, Default)]
pub(super) struct Hellos(Arc<AtomicU64>);

impl Hellos {
    fn count(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl crypto::ServerConfig for Sessions {
    fn initial_keys(
        &self,
        version: u32,
        client_id: &ConnectionId,
    ) -> Result<Keys, UnsupportedVersion> {
        if version != VERSION_1 {
            return Err(UnsupportedVersion);
        }
        Ok(initial_keys(&self.initial, client_id, &self.first))
    }

    fn retry_tag(&self, _version: u32, client_id: &ConnectionId, packet: &[u8]) -> [u8; 16] {
        let mut pseudo_packet = vec![client_id.len() as u8];
        pseudo_packet.extend_from_slice(client_id);
        pseudo_packet.extend_from_slice(packet);
        let key = UnboundKey::new(&aead::AES_128_GCM, &RETRY_KEY).map(LessSafeKey::new);
        let nonce = Nonce::assume_unique_for_key(RETRY_NONCE);
        let sealed = key.and_then(|key| {
            key.seal_in_place_separate_tag(nonce, Aad::from(pseudo_packet), &mut [])
        });
        // The key has the cipher's length, and the plaintext is empty.
        let mut tag = [0; 16];
        if let Ok(sealed) = sealed {
            tag.copy_from_slice(sealed.as_ref());
        }
        tag
    }

    fn start_session(
        self: Arc<Self>,
        _version: u32,
        parameters: &TransportParameters,
    ) -> Box<dyn Session> {
        let mut encoded = Vec::new();
        parameters.write(&mut encoded);
        let recorder = Shared::default();
        recorder.take_trace(&self.first);
        if let Some(trace) = recorder.lock().trace() {
            trace.on_parameters(true, &encoded);
        }
        let connection = ServerConnection::new(Arc::clone(&self.rustls), Version::V1, encoded);
        // It refuses only configurations without TLS 1.3, or with their own bound on early data.
        let connection = connection.expect("the configuration is one of QUIC");
        Box::new(ServerSession {
            tls: Tls::Handshaking(Box::new(connection)),
            hellos: self.hellos.clone(),
            initial: self.initial,
            aead_limits: self.aead_limits,
            recorder,
            has_reported: false,
            one_rtt: None,
        })
    }
}

fn initial_keys(suite: &quic::Suite, client_id: &ConnectionId, recorder: &Shared) -> Keys {
    let keys = suite.keys(client_id, rustls::Side::Server, Version::V1);
    keys::of_handshake(keys, PacketType::Initial, recorder)
}

/// The part of a session that the endpoint takes.
pub(super) struct Handshake {
    pub(super) recorder: Shared,
    pub(super) alpn: Option<Vec<u8>>,
    pub(super) server_name: Option<String>,
    pub(super) cipher: Option<Cipher>,
    pub(super) is_resumed: bool,
}

/// The secrets from which 1-RTT keys are made.
struct OneRtt {
    cipher: Cipher,
    header_key: Zeroizing<Vec<u8>>,
    /// The peer's header protection key.
    open_header_key: Zeroizing<Vec<u8>>,
    next: Secrets,
    /// Generation of the next keys.
    generation: u32,
}

enum Tls {
    Handshaking(Box<ServerConnection>),
    /// The handshake is complete and all of rustls's output taken: its state is freed.
    Complete(Box<Agreed>),
}

/// The result of a handshake.
#[derive(Clone)]
struct Agreed {
    alpn: Option<Vec<u8>>,
    server_name: Option<String>,
    is_resumed: bool,
    /// [`Tls::parameters`]
    parameters: Option<Vec<u8>>,
}

impl Tls {
    fn agreed(&self) -> Agreed {
        match self {
            Self::Handshaking(connection) => Agreed {
                alpn: connection.alpn_protocol().map(<[u8]>::to_vec),
                server_name: connection.server_name().map(str::to_owned),
                is_resumed: connection.handshake_kind() == Some(HandshakeKind::Resumed),
                parameters: self.parameters().map(<[u8]>::to_vec),
            },
            Self::Complete(agreed) => Agreed::clone(agreed),
        }
    }

    /// The client's transport parameters, as it encoded them.
    fn parameters(&self) -> Option<&[u8]> {
        match self {
            Self::Handshaking(connection) => connection.quic_transport_parameters(),
            Self::Complete(agreed) => agreed.parameters.as_deref(),
        }
    }

    fn is_handshaking(&self) -> bool {
        match self {
            Self::Handshaking(connection) => connection.is_handshaking(),
            Self::Complete(_) => false,
        }
    }
}

struct ServerSession {
    tls: Tls,
    hellos: Hellos,
    initial: quic::Suite,
    aead_limits: AeadLimits,
    recorder: Shared,
    has_reported: bool,
    one_rtt: Option<OneRtt>,
}

impl ServerSession {
    fn describing(
        &self,
        key: &dyn quic::PacketKey,
        [raw, open]: [Raw; 2],
        one_rtt: &OneRtt,
        generation: u32,
    ) -> Box<dyn PacketKey> {
        let open = OpenKey {
            key: open.key,
            iv: open.iv,
            header_key: one_rtt.open_header_key.clone(),
        };
        let AeadLimits {
            confidentiality,
            integrity,
        } = self.aead_limits;
        Box::new(DescribingKey {
            key: Arc::new(SealKey {
                generation,
                cipher: one_rtt.cipher,
                key: raw.key,
                iv: raw.iv,
                header_key: one_rtt.header_key.clone(),
                packets_max: key.confidentiality_limit().min(confidentiality),
                open,
            }),
            integrity_limit: key.integrity_limit().min(integrity),
            recorder: self.recorder.clone(),
        })
    }

    fn one_rtt(
        &mut self,
        suite: SupportedCipherSuite,
        keys: quic::Keys,
        next: Secrets,
        mut raw: Captured,
    ) -> Option<Keys> {
        let quic::Keys { local, remote } = keys;
        let DirectionalKeys { header, packet } = local;
        let one_rtt = OneRtt {
            cipher: capture::cipher(suite.suite())?,
            header_key: raw.header(&*header)?.key,
            open_header_key: raw.header(&*remote.header)?.key,
            next,
            generation: 1,
        };
        let raw = [raw.packet(&*packet)?, raw.packet(&*remote.packet)?];
        let sealing = self.describing(&*packet, raw, &one_rtt, 0);
        self.one_rtt = Some(one_rtt);
        Some(Keys {
            header: KeyPair {
                local: Box::new(Unprotected {
                    sample_bytes: header.sample_len(),
                }),
                remote: OpeningHeaderKey::boxed(remote.header, self.recorder.clone()),
            },
            packet: KeyPair {
                local: sealing,
                remote: OpeningKey::boxed(remote.packet, 0, self.recorder.clone()),
            },
        })
    }
}

impl Session for ServerSession {
    fn initial_keys(&self, client_id: &ConnectionId, _side: Side) -> Keys {
        initial_keys(&self.initial, client_id, &self.recorder)
    }

    /// Always present: the endpoint looks for its [`Handshake`] from the beginning.
    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        let agreed = self.tls.agreed();
        Some(Box::new(Handshake {
            recorder: self.recorder.clone(),
            alpn: agreed.alpn,
            server_name: agreed.server_name,
            cipher: self.one_rtt.as_ref().map(|one_rtt| one_rtt.cipher),
            is_resumed: agreed.is_resumed,
        }))
    }

    /// Clients are not asked for certificates.
    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        None
    }

    /// No keys unless early data is accepted.
    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        let Tls::Handshaking(connection) = &self.tls else {
            return None;
        };
        let DirectionalKeys { header, packet } = connection.zero_rtt_keys()?;
        let packet = keys::packet(packet, PacketType::ZeroRtt, &self.recorder);
        Some((keys::header(header), packet))
    }

    /// Only clients call this.
    fn early_data_accepted(&self) -> Option<bool> {
        None
    }

    fn is_handshaking(&self) -> bool {
        self.tls.is_handshaking()
    }

    fn read_handshake(&mut self, bytes: &[u8]) -> Result<bool, TransportError> {
        let Tls::Handshaking(connection) = &mut self.tls else {
            // Clients send no handshake messages once the handshake is complete (RFC 9001 §4.1.3,
            // §6).
            return Err(TransportError {
                code: TransportErrorCode::crypto(AlertDescription::UnexpectedMessage.into()),
                frame: None,
                reason: "a message of TLS behind the handshake".to_owned(),
            });
        };
        let read = connection.read_hs(bytes);
        if connection.negotiated_cipher_suite().is_some() {
            self.hellos.count();
        }
        read.map_err(|error| TransportError {
            code: match connection.alert() {
                Some(alert) => TransportErrorCode::crypto(alert.into()),
                None => TransportErrorCode::PROTOCOL_VIOLATION,
            },
            frame: None,
            reason: error.to_string(),
        })?;
        let is_ready = connection.alpn_protocol().is_some()
            || connection.server_name().is_some()
            || !connection.is_handshaking();
        let is_new = is_ready && !self.has_reported;
        self.has_reported |= is_ready;
        Ok(is_new)
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        let Some(encoded) = self.tls.parameters() else {
            return Ok(None);
        };
        if self.recorder.is_traced()
            && let Some(trace) = self.recorder.lock().trace()
        {
            trace.on_parameters(false, encoded);
        }
        let parameters = TransportParameters::read(Side::Server, &mut Cursor::new(encoded))?;
        Ok(Some(parameters))
    }

    fn write_handshake(&mut self, bytes: &mut Vec<u8>) -> Option<Keys> {
        let Tls::Handshaking(connection) = &mut self.tls else {
            return None;
        };
        let before = bytes.len();
        let (change, raw) = capturing(|| connection.write_hs(bytes));
        let suite = connection.negotiated_cipher_suite();
        let is_silent = change.is_none() && bytes.len() == before;
        if is_silent && !connection.is_handshaking() {
            self.tls = Tls::Complete(Box::new(self.tls.agreed()));
            return None;
        }
        match change? {
            KeyChange::Handshake { keys } => {
                self.recorder.on_hello_answered();
                Some(keys::of_handshake(
                    keys,
                    PacketType::Handshake,
                    &self.recorder,
                ))
            }
            KeyChange::OneRtt { keys, next } => self.one_rtt(suite?, keys, next, raw),
        }
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        let mut one_rtt = self.one_rtt.take()?;
        let (keys, mut raw) = capturing(|| one_rtt.next.next_packet_keys());
        let generation = one_rtt.generation;
        one_rtt.generation += 1;
        let raw = [raw.packet(&*keys.local)?, raw.packet(&*keys.remote)?];
        let local = self.describing(&*keys.local, raw, &one_rtt, generation);
        self.one_rtt = Some(one_rtt);
        Some(KeyPair {
            local,
            remote: OpeningKey::boxed(keys.remote, generation, self.recorder.clone()),
        })
    }

    /// Servers get no Retry packets.
    fn is_valid_retry(&self, _: &ConnectionId, _: &[u8], _: &[u8]) -> bool {
        false
    }

    /// Unused, and rustls offers it only together with both sides of a connection.
    fn export_keying_material(
        &self,
        _output: &mut [u8],
        _label: &[u8],
        _context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        Err(ExportKeyingMaterialError)
    }
}
