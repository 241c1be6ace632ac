//! SYNs that a worker answers in the host's place ([`contract::setup`]): SYN,ACKs with cookies,
//! without any state.
//!
//! A SYN comes by FRAME, or at the worker's own port where a packet filter steers it there. A SYN
//! that the worker does not answer is handed up to the host: a SYN for no listener of SETUP, or one
//! that comes when SETUP is too old.
//!
//! A SYN with text and a good cookie of Fast Open (RFC 7413) is handed up as well: the host takes
//! the text. Beyond a number in each second it is answered as one without, and the peer repeats its
//! text.
//!
//! SYN,ACKs go back to the link address that the SYN has come from: the peer's, or that of the
//! router on its way. Nothing waits for a port that is busy; the peer repeats its SYN.

mod run;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use contract::Setup;
use contract::setup::{SetupListener, SetupOptions};
use tcp::{Config, EcnPolicy, FastOpenCookies, Instant, SynCookies, TsOffsets};
use wire::frame::{TcpPacket, TcpTemplate};
use wire::tcp::Header;

use crate::per_second::PerSecond;

/// Most SYNs with text and a good cookie that are handed up in a second.
const FAST_OPENS_UP_MAX: u32 = 10_000;

/// State for answering SYNs.
#[derive(Debug)]
pub(crate) struct SynAnswers {
    /// Time from which on no SYN is answered, in microseconds.
    until_us: u64,
    /// The host's clock minus the worker's, in microseconds.
    host_ahead_us: u64,
    cookies: SynCookies,
    ts_offsets: TsOffsets,
    config: Config,
    source_mac: [u8; 6],
    /// Listeners by port, the most specific first.
    listeners: HashMap<u16, Vec<SetupListener>>,
    fast_open_cookies: FastOpenCookies,
    fast_opens_up: PerSecond,
}

impl SynAnswers {
    fn new(setup: &Setup<'_>) -> SynAnswers {
        let mut listeners: HashMap<u16, Vec<SetupListener>> = HashMap::new();
        for listener in setup.listeners.iter() {
            listeners.entry(listener.port).or_default().push(listener);
        }
        SynAnswers {
            until_us: setup.issued_us.saturating_add(setup.valid_us),
            host_ahead_us: setup.host_us.wrapping_sub(setup.issued_us),
            cookies: SynCookies::new(setup.cookie_key),
            ts_offsets: TsOffsets::new(setup.ts_offset_key),
            config: config(&setup.options),
            source_mac: setup.source_mac,
            listeners,
            fast_open_cookies: FastOpenCookies::new(setup.fast_open_keys),
            fast_opens_up: PerSecond::default(),
        }
    }

    /// True if the SYN brings text that the host takes, and not too many have lately.
    fn brings_text(&mut self, packet: &TcpPacket<'_>, now_us: u64) -> bool {
        self.is_fast_open(packet) && self.fast_opens_up.allows(now_us, FAST_OPENS_UP_MAX)
    }

    fn is_fast_open(&self, packet: &TcpPacket<'_>) -> bool {
        let segment = &packet.segment;
        let (local, remote) = (packet.destination, packet.source);
        let listener = self.listener(local, segment.header.destination_port);
        let option = segment.header.options.fast_open;
        let cookies = &self.fast_open_cookies;
        !segment.payload.is_empty()
            && listener.is_some_and(|listener| listener.fast_open)
            && option.is_some_and(|option| cookies.are_good(local, remote, option))
    }

    fn listener(&self, local: IpAddr, port: u16) -> Option<&SetupListener> {
        let of_port = self.listeners.get(&port)?;
        of_port.iter().find(|it| it.scope.covers(local))
    }

    /// Returns the SYN,ACK that answers a SYN, if the worker may answer it.
    fn answer(&self, packet: &TcpPacket<'_>, now_us: u64) -> Option<(TcpTemplate, Header)> {
        let header = &packet.segment.header;
        let local = SocketAddr::new(packet.destination, header.destination_port);
        let remote = SocketAddr::new(packet.source, header.source_port);
        if now_us >= self.until_us || local.ip() == remote.ip() {
            return None;
        }
        let listener = self.listener(local.ip(), local.port())?;
        let (mss, peer_mss_default) = match local {
            SocketAddr::V4(_) => (listener.mss_v4, 536),
            SocketAddr::V6(_) => (listener.mss_v6, 1220),
        };
        let config = Config {
            mss,
            ipv6: local.is_ipv6(),
            peer_mss_default,
            ..self.config
        };
        let ts_offset = self.ts_offsets.of(local, remote);
        let now = Instant::from_us(now_us.wrapping_add(self.host_ahead_us));
        let syn = &packet.segment;
        let mut answer = (self.cookies).syn_ack(&config, local, remote, syn, ts_offset, now)?;
        if listener.fast_open && header.options.fast_open.is_some() {
            let cookie = self.fast_open_cookies.cookie(local.ip(), remote.ip());
            answer.options.fast_open = Some(cookie);
        }
        let template = TcpTemplate::new(self.source_mac, packet.source_mac, local, remote);
        Some((template, answer))
    }
}

/// Returns the settings that matter to a SYN,ACK.
fn config(options: &SetupOptions) -> Config {
    let bytes = |bytes: u32| bytes as usize;
    Config {
        receive_buffer_bytes: bytes(options.receive_buffer_bytes),
        receive_buffer_bytes_max: bytes(options.receive_buffer_bytes_max),
        window_scaling: options.window_scaling,
        timestamps: options.timestamps,
        sack: options.sack,
        ecn: if options.ecn {
            EcnPolicy::Accept
        } else {
            EcnPolicy::Off
        },
        ..Config::default()
    }
}

/// True for a SYN that begins a connection.
pub(crate) fn is_syn(packet: &TcpPacket<'_>) -> bool {
    packet.segment.header.flags.begin_connection()
}
