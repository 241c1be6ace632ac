//! TCP: its connections, and the listeners that accept them.
//!
//! | File | Contents |
//! |---|---|
//! | `arrival` | segments, and those of no connection |
//! | `admission` | half-open connections, SYN cookies, limits on new connections |
//! | `turns` | connections to serve, and their timers |
//! | `transmit` | SENDs, own packets, ACKD |
//! | `endings` | how connections end |
//! | `streams` | the application's operations |
//! | `connect` | connections that this side opens |
//! | `listening` | addresses that applications bind, and listeners |
//! | `fast_open` | text in SYNs |
//! | `loopback` | connections with both ends here |
//! | `proxied` | connections that trusted proxies pass on |
//! | `tls_streams` | connections that speak TLS |
//! | `records` | their records, for the NIC workers, and what becomes of the tags |
//! | `route` | where a connection goes whose NIC stack is gone, or lacks its file |
//! | `migration` | a connection that goes from one worker to another |
//! | `setup` | listeners whose SYNs NIC workers answer |
//! | `teardown` | connections whose end a NIC stack runs |
//! | `splice` | connections that a NIC stack joins |
//! | `memory` | their shares in the account of memory |

pub(crate) mod admission;
pub(crate) mod arrival;
pub(crate) mod connect;
pub(crate) mod endings;
pub(crate) mod fast_open;
pub(crate) mod listening;
pub(crate) mod loopback;
pub(crate) mod memory;
pub(crate) mod migration;
pub(crate) mod proxied;
pub(crate) mod records;
pub(crate) mod route;
pub(crate) mod setup;
pub(crate) mod splice;
pub(crate) mod streams;
pub(crate) mod teardown;
pub(crate) mod tls_streams;
pub(crate) mod transmit;
pub(crate) mod turns;

use std::collections::VecDeque;
use std::sync::Arc;

use self::admission::Gate;
use self::arrival::Resets;
use self::loopback::Loopback;
use self::migration::Migrations;
use self::setup::SetupState;
use self::splice::Splicing;
use self::teardown::Teardown;
use crate::config::StackConfig;
use crate::ground::link::Link;
use crate::tables::bindings::Bindings;
use crate::tables::connections::{ConnectionHandle, Connections};
use crate::tables::ephemeral_ports::EphemeralPorts;
use crate::tables::keyed_hash::KeyedHash;
use crate::tables::orphans::Orphans;
use crate::tables::time_wait::TimeWaits;
use crate::tables::waiting::Waiting;
use crate::timer::TimerWheel;

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct TcpLayer {
    pub(crate) config_v4: tcp::Config,
    pub(crate) config_v6: tcp::Config,
    /// Listening ports with a congestion control of their own.
    pub(crate) port_congestion: Vec<(u16, tcp::CongestionAlgorithm)>,
    /// Listening ports that speak TLS.
    pub(crate) tls_listeners: Vec<(u16, Arc<tls::Config>)>,
    pub(crate) isn: tcp::IsnGenerator,
    pub(crate) connections: Connections,
    pub(crate) time_waits: TimeWaits,
    pub(crate) wheel: TimerWheel,
    pub(crate) due: Vec<usize>,
    pub(crate) bindings: Bindings,
    pub(crate) ephemeral_ports: EphemeralPorts,
    /// RSTs for segments without a connection.
    pub(crate) resets: Resets,
    /// Connections to serve.
    pub(crate) dirty: VecDeque<ConnectionHandle>,
    /// Dirty connections in a TLS handshake: they come last, and few at a time.
    pub(crate) shaking_hands: VecDeque<ConnectionHandle>,
    pub(crate) loopback: Loopback,
    /// Connections that wait for a neighbour's address.
    pub(crate) waiting_neighbor: Waiting,
    pub(crate) gate: Gate,
    pub(crate) migrations: Migrations,
    pub(crate) orphans: Orphans,
    pub(crate) teardown: Teardown,
    pub(crate) setup: SetupState,
    pub(crate) fast_open: fast_open::Cookies,
    pub(crate) splicing: Splicing,
}

impl TcpLayer {
    pub(crate) fn new(config: &StackConfig, link: &Link, now_us: u64) -> TcpLayer {
        let with_mss = |mss, peer_mss_default, ipv6| tcp::Config {
            mss,
            peer_mss_default,
            ipv6,
            ..config.tcp
        };
        let hash_key = config.hash_key();
        TcpLayer {
            config_v4: with_mss(link.mss(false), 536, false),
            config_v6: with_mss(link.mss(true), 1220, true),
            port_congestion: Vec::new(),
            tls_listeners: Vec::new(),
            isn: tcp::IsnGenerator::new(config.secret),
            connections: Connections::new(&hash_key),
            time_waits: TimeWaits::new(KeyedHash(hash_key)),
            wheel: TimerWheel::new(now_us),
            due: Vec::new(),
            bindings: Bindings::default(),
            ephemeral_ports: EphemeralPorts::new(config.ephemeral_ports.clone(), hash_key),
            resets: Resets::new(config, now_us),
            dirty: VecDeque::new(),
            shaking_hands: VecDeque::new(),
            loopback: Loopback::default(),
            waiting_neighbor: Waiting::default(),
            gate: Gate::new(config.admission, config.secret, hash_key),
            migrations: Migrations::default(),
            orphans: Orphans::default(),
            teardown: Teardown::new(&hash_key),
            setup: SetupState::new(),
            fast_open: fast_open::Cookies::new(&config.secret, now_us),
            splicing: Splicing::new(&hash_key),
        }
    }
}
