//! Builds the configurations of quinn-proto and rustls from the settings.

use std::net::{SocketAddrV4, SocketAddrV6};
use std::sync::Arc;
use std::time::Duration;

use ::aws_lc_rs::rand;
use contract::limits::QUIC_DATAGRAM_BYTES_MAX;
use contract::tls::Cipher;
use quinn_proto::{
    AckFrequencyConfig, EndpointConfig, IdleTimeout, MtuDiscoveryConfig, ServerConfig, TimeSource,
    TransportConfig, ValidationTokenConfig, VarInt,
};
use rustls::crypto::aws_lc_rs::{self, Ticketer};
use rustls::server::NoServerSessionStorage;
use rustls::time_provider::TimeProvider;
use rustls::version::TLS13;
use tls::Certificates;

use crate::config::{Limits, PreferredAddress, Settings};
use crate::engine::capture;
use crate::engine::controller::Controllers;
use crate::engine::keys::Shared;
use crate::engine::secrets::Issued;
use crate::engine::session::{Hellos, Sessions, VERSION_1};
use crate::engine::sessions::KeptSessions;
use crate::engine::time::{Clock, TimeOfDay};
use crate::engine::tokens::{self, UsedTokens};
use crate::engine::waiting;
use crate::extents::PLACEHOLDER_BYTES;
use crate::secret::Secret;

/// The requested [`AckFrequencyConfig::ack_eliciting_threshold`]: an acknowledgment costs the host
/// as much as half a packet sent.
const PACKETS_PER_ACK: u32 = 10;

/// Unidirectional streams that a client may have open: HTTP/3 has three (RFC 9114 §6.2), and
/// clients may try others (§6.2.3). Each allowed stream takes memory of every connection.
const STREAMS_UNI_MAX: u32 = 12;

/// Never reached: on a path with many packets in flight, more than the usual three overtake a
/// packet that is slightly late (RFC 9002 §6.1.1). Only time decides, as with RACK (RFC 8985 §3.1).
const PACKET_THRESHOLD: u32 = u32::MAX;

/// In round trips: a packet a quarter of a round trip late does not count as lost (RFC 9002 §6.1.2;
/// RACK's reordering window, RFC 8985 §6.2).
const TIME_THRESHOLD: f32 = 1.25;

/// Clients acknowledge out-of-order packets at once: otherwise a late packet stays unacknowledged
/// until [`PACKETS_PER_ACK`] more have arrived, and looks lost by then.
const REORDERING_THRESHOLD: u32 = 1;

/// The value in tickets; flow control bounds early data instead (RFC 9001 §4.6.1).
const EARLY_DATA_BYTES_MAX: u32 = u32::MAX;

/// The parts of a quinn-proto endpoint.
pub(super) struct Setup {
    pub(super) endpoint: EndpointConfig,
    pub(super) server: ServerConfig,
    /// The same, with small receive windows.
    pub(super) crowded: ServerConfig,
    /// Traces the first packet of a connection, before it has a session.
    pub(super) first: Shared,
    pub(super) hellos: Hellos,
    /// The connection IDs that the endpoint makes.
    pub(super) issued: Issued,
}

fn random() -> Result<[u8; 32], rustls::Error> {
    let mut bytes = [0; 32];
    rand::fill(&mut bytes)
        .map_err(|_| rustls::Error::General("the system gives no random numbers".into()))?;
    Ok(bytes)
}

impl Setup {
    pub(super) fn new(
        certificates: Arc<Certificates>,
        settings: &Settings,
        clock: Clock,
        time_of_day: &Arc<TimeOfDay>,
    ) -> Result<Self, rustls::Error> {
        let secret = match &settings.secret {
            Some(secret) => secret.clone(),
            None => Secret::new(random()?),
        };
        let seed = settings.seed.map_or_else(random, Ok)?;
        let rustls = rustls_config(certificates, settings, time_of_day)?;
        let first = Shared::default();
        let hellos = Hellos::default();
        let mut crowded_rustls = rustls.clone();
        crowded_rustls.max_early_data_size = 0;
        let initial = capture::initial_suite().ok_or_else(|| {
            rustls::Error::General("the provider lacks the suite of Initial packets".into())
        })?;
        let [sessions, crowded_sessions] = [rustls, crowded_rustls].map(|rustls| Sessions {
            first: first.clone(),
            hellos: hellos.clone(),
            rustls: Arc::new(rustls),
            initial,
            aead_limits: settings.aead_limits,
        });
        let mut endpoint = EndpointConfig::new(secret.reset_key());
        let ids = secret.connection_ids(seed);
        let issued = ids.issued();
        endpoint.cid_generator(move || Box::new(ids.clone()));
        endpoint.supported_versions(vec![VERSION_1]);
        endpoint.rng_seed(Some(seed));
        let resets_per_second = settings.limits.resets_per_second.max(1);
        endpoint.min_reset_interval(Duration::from_secs(1) / resets_per_second);
        let mut server = ServerConfig::new(Arc::new(sessions), secret.token_key());
        server.transport_config(Arc::new(transport(settings, seed, clock)));
        server.migration(settings.migration);
        if settings.migration {
            let PreferredAddress { v4, v6, port } = settings.preferred_address;
            server.preferred_address_v4(v4.map(|ip| SocketAddrV4::new(ip, port)));
            server.preferred_address_v6(v6.map(|ip| SocketAddrV6::new(ip, port, 0, 0)));
        }
        server.time_source(Arc::clone(time_of_day) as _);
        let used = UsedTokens::new(time_of_day.now(), settings.limits.used_tokens_max);
        let mut validation = ValidationTokenConfig::default();
        validation
            .lifetime(tokens::LIFETIME)
            .log(Arc::new(used))
            .sent(tokens::SENT);
        server.validation_token_config(validation);
        server.max_incoming(waiting::CLIENTS_MAX);
        let mut crowded = server.clone();
        crowded.crypto = Arc::new(crowded_sessions);
        crowded.transport_config(Arc::new(transport(&with_less(settings), seed, clock)));
        Ok(Self {
            endpoint,
            server,
            crowded,
            first,
            hellos,
            issued,
        })
    }
}

fn rustls_config(
    certificates: Arc<Certificates>,
    settings: &Settings,
    time_of_day: &Arc<TimeOfDay>,
) -> Result<rustls::ServerConfig, rustls::Error> {
    let mut ciphers = settings.ciphers.clone();
    // Initial packets use it (RFC 9001 §5.2), so every client supports it.
    if ciphers.is_empty() {
        ciphers.push(Cipher::Aes128Gcm);
    }
    let crypto = settings.crypto.as_ref();
    let base = crypto.map_or_else(aws_lc_rs::default_provider, |it| it.provider.clone());
    let provider = Arc::new(capture::provider(&ciphers, base));
    let time = Arc::clone(time_of_day) as Arc<dyn TimeProvider>;
    let mut config = rustls::ServerConfig::builder_with_details(provider, time)
        .with_protocol_versions(&[&TLS13])?
        .with_no_client_auth()
        .with_cert_resolver(certificates);
    config.alpn_protocols.clone_from(&settings.alpn);
    config.send_tls13_tickets = settings.tickets;
    if let Some(key_log) = &settings.key_log {
        config.key_log = Arc::clone(key_log);
    }
    if settings.early_data {
        config.session_storage = Arc::new(KeptSessions::new(settings.limits.sessions_max));
        config.max_early_data_size = EARLY_DATA_BYTES_MAX;
        return Ok(config);
    }
    // Tickets contain their sessions, which then cost no memory.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    if settings.tickets > 0 {
        config.ticketer = match crypto {
            Some(crypto) => Arc::clone(&crypto.tickets),
            None => Ticketer::new()?,
        };
    }
    Ok(config)
}

/// The settings with the smallest receive windows.
fn with_less(settings: &Settings) -> Settings {
    let mut settings = settings.clone();
    let limits = &mut settings.limits;
    let least = Limits::RECEIVE_BYTES_MIN;
    limits.stream_receive_bytes_max = limits.stream_receive_bytes_max.min(least);
    limits.receive_bytes_max = limits.receive_bytes_max.min(least);
    settings
}

fn transport(settings: &Settings, seed: [u8; 32], clock: Clock) -> TransportConfig {
    let limits: &Limits = &settings.limits;
    let [a, b, c, d, e, f, g, h, ..] = seed;
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(limits.streams_max))
        .max_concurrent_uni_streams(VarInt::from_u32(limits.streams_max.min(STREAMS_UNI_MAX)))
        .stream_receive_window(VarInt::from_u32(limits.stream_receive_bytes_max))
        .receive_window(VarInt::from_u32(limits.receive_bytes_max))
        // A partly acknowledged placeholder counts in full.
        .send_window(limits.send_bytes_max + PLACEHOLDER_BYTES as u64)
        .max_idle_timeout(IdleTimeout::try_from(settings.idle_timeout).ok())
        .datagram_receive_buffer_size(None)
        .packet_threshold(PACKET_THRESHOLD)
        .time_threshold(TIME_THRESHOLD)
        .congestion_controller_factory(Arc::new(Controllers {
            algorithm: settings.congestion,
            seed: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            clock,
        }));
    let mut discovery = MtuDiscoveryConfig::default();
    let most = QUIC_DATAGRAM_BYTES_MAX as u16;
    discovery.upper_bound(settings.datagram_bytes_max.min(most));
    transport.mtu_discovery_config(Some(discovery));
    if settings.ack_frequency {
        let mut frequency = AckFrequencyConfig::default();
        frequency
            .ack_eliciting_threshold(VarInt::from_u32(PACKETS_PER_ACK))
            .reordering_threshold(VarInt::from_u32(REORDERING_THRESHOLD));
        transport.ack_frequency_config(Some(frequency));
    }
    transport
}
