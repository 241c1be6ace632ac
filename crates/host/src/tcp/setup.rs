//! Listeners whose SYNs NIC workers answer ([`contract::setup`]).
//!
//! A worker gets SETUP when it joins, when listeners change, and when the key does. Once it has
//! reported that it is ready, it gets SYNs in one of two ways:
//!
//! | | |
//! |---|---|
//! | steered | a packet filter delivers SYNs to the worker's own port, by the steering map, and the host sees none |
//! | handed on | the host gets SYNs like all frames, and hands them on, by FRAME: without a steering map, or to a NIC stack on another machine |
//!
//! Either way the host keeps SYNs of connections that it may know: those in its table, in
//! TIME-WAIT, parted with, or spliced. It keeps all SYNs when no worker is ready. It answers those
//! that a worker hands up, as without setup offload.
//!
//! The ACK that completes a handshake goes to the host. The host checks its cookie under the
//! workers' key, and under the previous one ([`KEY_US`]).

use std::sync::Arc;

use contract::limits::{FRAME_BYTES_MAX, SETUP_LISTENERS_MAX};
use contract::setup::{SetupListener, SetupListeners, SetupOptions};
use contract::{Command, Setup};
use netdev::steering::{SteeringMap, Target};
use rustc_hash::FxHashSet;
use tcp::{EcnPolicy, SynCookies, derive_key};
use wire::frame::TcpPacket;

use super::fast_open;
use crate::ground::Ground;
use crate::ground::workers::{Deferred, Life, OwnedSetup, Ready};
use crate::tables::tuple::Tuple;
use crate::tcp::TcpLayer;

/// How long workers use a key, in microseconds. A cookie is valid for two minutes: the previous key
/// stays valid for another period.
const KEY_US: u64 = 512_000_000;

/// How long a worker may use a key beyond its period, in microseconds: SETUP with the next one is
/// in transit.
const KEY_GRACE_US: u64 = 60_000_000;

const _: () = assert!(
    KEY_GRACE_US + SynCookies::LIFETIME_US_MAX < KEY_US,
    "no cookie is older than the key before"
);

/// First purpose under which keys of cookies are derived from the stack's secret, one for each
/// period.
const KEY_PURPOSE: u64 = 1 << 32;

/// The state of setup.
#[derive(Debug)]
pub(crate) struct SetupState {
    /// Number of the last SETUP.
    epoch: u64,
    /// The contents of the last SETUP.
    made_of: Option<MadeOf>,
    listeners: Arc<[u8]>,
    /// The ports of the listeners.
    ports: FxHashSet<u16>,
    /// Connections noted in the map since the last cleanup.
    noted: usize,
    form: Form,
    /// The worker that got the last SYN handed on.
    last_worker: usize,
    /// Cookies under the key of this period, and of the previous one.
    cookies: Option<(u64, [SynCookies; 2])>,
}

/// The inputs of SETUP: a change makes another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MadeOf {
    /// Set if NIC workers answer SYNs at all.
    bindings: Option<u64>,
    key: u64,
    mss: [u16; 2],
    mac: [u8; 6],
    takes_ecn: bool,
    /// The period of its keys, if SYNs may carry data.
    fast_open: Option<u64>,
}

/// How SYNs get to workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Not at all.
    None,
    Steered,
    HandedOn,
}

impl SetupState {
    pub(crate) fn new() -> SetupState {
        SetupState {
            epoch: 0,
            made_of: None,
            listeners: Arc::new([]),
            ports: FxHashSet::default(),
            noted: 0,
            form: Form::None,
            last_worker: 0,
            cookies: None,
        }
    }

    /// The stack has a new connection.
    pub(crate) fn note(&mut self, map: &SteeringMap, tuple: &Tuple) {
        map.note(tuple.local, tuple.remote);
        self.noted += 1;
    }

    /// True if NIC workers answer SYNs to this port.
    pub(crate) fn has_port(&self, port: u16) -> bool {
        self.ports.contains(&port)
    }

    /// Cookies under the workers' key, and under the previous one.
    pub(crate) fn cookies(&mut self, secret: &[u8; 16], now_us: u64) -> &[SynCookies; 2] {
        let period = now_us / KEY_US;
        if self.cookies.as_ref().is_none_or(|(of, _)| *of != period) {
            let of = |period| SynCookies::new(key(secret, period));
            let both = [of(period), of(period.saturating_sub(1))];
            self.cookies = Some((period, both));
        }
        &self.cookies.as_ref().expect("they were made").1
    }
}

fn key(secret: &[u8; 16], period: u64) -> [u8; 16] {
    derive_key(secret, KEY_PURPOSE + period)
}

impl TcpLayer {
    /// Steers by this map: the host's port receives only frames that no other port gets.
    pub(crate) fn steer_with(&mut self, ground: &mut Ground, map: SteeringMap) {
        map.set_targets(&[]);
        map.set_ports(self.setup.ports.iter().copied());
        ground.steering = Some(map);
        self.sort_out_notes(ground);
        self.steer(ground);
    }

    /// True if workers get SETUP: to answer SYNs, or to name their ports for packet filters.
    #[inline]
    pub(crate) fn has_setup(&self, ground: &Ground) -> bool {
        ground.config.setup_offload.is_permitted() || ground.steering.is_some()
    }

    /// Sends SETUP to workers if its inputs have changed.
    #[cold]
    #[inline(never)]
    pub(crate) fn look_at_setup(&mut self, ground: &mut Ground, now_us: u64) {
        if self.setup.noted >= SteeringMap::NOTES_MAX {
            self.sort_out_notes(ground);
        }
        let answers_syns = ground.config.setup_offload.is_permitted();
        let made_of = MadeOf {
            bindings: answers_syns.then(|| self.bindings.revision()),
            key: now_us / KEY_US,
            mss: [self.config_v4.mss, self.config_v6.mss],
            mac: ground.link.mac,
            takes_ecn: ground.config.tcp.ecn != EcnPolicy::Off,
            fast_open: ground.config.fast_open.then(|| fast_open::period(now_us)),
        };
        if self.setup.made_of == Some(made_of) {
            return;
        }
        self.setup.made_of = Some(made_of);
        self.setup.epoch += 1;
        let listeners = self.listeners_to_set_up(ground);
        self.setup.listeners = SetupListeners::to_bytes(&listeners).into();
        self.setup.ports = listeners.iter().map(|listener| listener.port).collect();
        if let Some(map) = &ground.steering {
            map.set_ports(self.setup.ports.iter().copied());
        }
        for worker in 0..ground.workers.len() {
            self.send_setup(ground, now_us, worker);
        }
    }

    /// Time of the next change of keys, in microseconds.
    pub(crate) fn next_setup_us(&self) -> Option<u64> {
        let made_of = self.setup.made_of?;
        Some((made_of.key + 1) * KEY_US)
    }

    fn listeners_to_set_up(&self, ground: &Ground) -> Vec<SetupListener> {
        let [v4, v6] = [self.config_v4.mss, self.config_v6.mss];
        let permitted = ground.config.setup_offload;
        let listening = self.bindings.listening();
        let wanted = listening.filter(|(.., options)| permitted.applies(options.setup_offload));
        let wanted = wanted.map(|(scope, port, options)| {
            let mss_max = options.mss_max.unwrap_or(u16::MAX).max(1);
            SetupListener {
                scope,
                port,
                mss_v4: v4.min(mss_max),
                mss_v6: v6.min(mss_max),
                fast_open: options.takes_syn_text(ground.config.fast_open),
            }
        });
        let mut listeners: Vec<SetupListener> = wanted.collect();
        listeners.truncate(SETUP_LISTENERS_MAX);
        listeners
    }

    /// Sends a worker the last SETUP, if any.
    pub(crate) fn send_setup(&mut self, ground: &mut Ground, now_us: u64, worker: usize) {
        let Some(made_of) = self.setup.made_of else {
            return;
        };
        let fast_open_keys = self.fast_open_cookies(ground, now_us).keys();
        let config = &ground.config.tcp;
        let bytes = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        let setup = Setup {
            epoch: self.setup.epoch,
            issued_us: now_us,
            host_us: now_us,
            valid_us: (made_of.key + 1) * KEY_US + KEY_GRACE_US - now_us,
            cookie_key: key(&ground.config.secret, made_of.key),
            ts_offset_key: self.isn.ts_offset_key(),
            fast_open_keys,
            options: SetupOptions {
                receive_buffer_bytes: bytes(config.receive_buffer_bytes),
                receive_buffer_bytes_max: bytes(config.receive_buffer_bytes_max),
                window_scaling: config.window_scaling,
                timestamps: config.timestamps,
                sack: config.sack,
                ecn: made_of.takes_ecn,
            },
            source_mac: made_of.mac,
            listeners: SetupListeners::default(),
        };
        ground.counters.setups += 1;
        ground.workers[worker].send_or_defer(Deferred::Setup(Box::new(OwnedSetup {
            setup,
            listeners: Arc::clone(&self.setup.listeners),
        })));
    }

    /// A worker is ready to answer SYNs; false if it got no such SETUP.
    pub(crate) fn on_setup_ready(
        &mut self,
        ground: &mut Ground,
        worker: usize,
        epoch: u64,
        steering: u32,
    ) -> bool {
        if epoch == 0 || epoch > self.setup.epoch {
            return false;
        }
        let target = Target::new(steering);
        ground.workers[worker].setup = Some(Ready { target });
        self.steer(ground);
        true
    }

    /// Steers SYNs, and frames of flows, to the workers that are ready.
    pub(crate) fn steer(&mut self, ground: &mut Ground) {
        ground.set_flow_targets();
        if !ground.config.setup_offload.is_permitted() {
            return;
        }
        let serving = ground
            .workers
            .iter()
            .filter(|nic| nic.life == Life::Serving);
        let ready: Vec<Ready> = serving.filter_map(|nic| nic.setup).collect();
        let targets: Vec<Target> = ready.iter().filter_map(|ready| ready.target).collect();
        let form = match &ground.steering {
            Some(map) => {
                map.set_targets(&targets);
                let any_handed_on = targets.len() < ready.len();
                match (targets.is_empty(), any_handed_on) {
                    (false, _) => Form::Steered,
                    (true, true) => Form::HandedOn,
                    (true, false) => Form::None,
                }
            }
            None if ready.is_empty() => Form::None,
            None => Form::HandedOn,
        };
        if std::mem::replace(&mut self.setup.form, form) != form {
            match form {
                Form::None => tracing::info!("setup offload: the host answers SYNs"),
                Form::Steered => {
                    tracing::info!("setup offload: a packet filter gives SYNs to NIC workers");
                }
                Form::HandedOn => {
                    tracing::info!("setup offload: the host hands SYNs on to NIC workers");
                }
            }
        }
    }

    /// Hands a SYN on to a worker that answers it. True if one does.
    #[cold]
    pub(crate) fn hand_syn_on(
        &mut self,
        ground: &mut Ground,
        packet: &TcpPacket<'_>,
        bytes: &[u8],
    ) -> bool {
        let is_syn = packet.segment.header.flags.begin_connection();
        let port = packet.segment.header.destination_port;
        if !is_syn || bytes.len() > FRAME_BYTES_MAX || !self.setup.has_port(port) {
            return false;
        }
        let count = ground.workers.len();
        let after = self.setup.last_worker + 1;
        for worker in (after..after + count).map(|worker| worker % count) {
            let nic = &mut ground.workers[worker];
            if nic.setup.is_some()
                && nic.has_room()
                && nic.channel.send(&Command::Frame { bytes }).is_ok()
            {
                self.setup.last_worker = worker;
                ground.counters.syns_handed_on += 1;
                return true;
            }
        }
        false
    }

    /// How workers get the SYNs that they answer; `None` if they answer none.
    pub(crate) fn syn_path(&self) -> Option<&'static str> {
        match self.setup.form {
            Form::None => None,
            Form::Steered => Some("steered"),
            Form::HandedOn => Some("handed on"),
        }
    }

    /// True if the host hands SYNs on.
    #[inline]
    pub(crate) fn hands_syns_on(&self) -> bool {
        self.setup.form == Form::HandedOn
    }

    /// Removes notes of connections that have ended.
    fn sort_out_notes(&mut self, ground: &mut Ground) {
        let Some(map) = &ground.steering else {
            return;
        };
        let open = self.connections.iter().map(|entry| entry.tuple);
        let parted = self.teardown.parted.tuples();
        let spliced = self.splicing.splices.tuples();
        let known = open
            .chain(self.time_waits.tuples())
            .chain(parted)
            .chain(spliced);
        map.note_only(known.map(|tuple| (tuple.local, tuple.remote)));
        self.setup.noted = 0;
    }
}
