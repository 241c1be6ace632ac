//! The server: the real host stack, the real NIC workers and the real application, on one link.
//!
//! A [`ChannelTap`] between the host stack and each worker sees every command and event.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use contract::channel::{HostChannel, in_memory_of};
use contract::tls::Version;
use host::{Changeable, Link, QuicReceive, Stack, StackConfig};
use netdev::memory::{self, MemoryPort};
use netdev::steering::{Arrived, Decision, PacketType, SteeringMap};
use netdev::{Frame, Port};
use nic::{Progress, Sleep};
use wire::frame::parse_segment;

use crate::addresses::{MAC, PORT, TLS_PORT, WEARING_PORT, address, preferred};
use crate::channel_tap::ChannelTap;
use crate::control_link::{ControlLink, ControlLinkCounters};
use crate::entropy;
use crate::file_versions::FileVersions;
use crate::flow_affinity::FlowAffinityCheck;
use crate::nic_crash_stats::NicCrashStats;
use crate::nonce_check::NonceCheck;
use crate::ports::FaultyPort;
use crate::random::Random;
use crate::router;
use crate::scenario::{Death, Replacing, Scenario, SetupForm};
use crate::site;
use crate::trace::Trace;
use crate::violation::{Violation, violation};
use crate::wire_watch::WireWatch;
use crate::worker_slot::{SlotMaker, WorkerSlot};

/// Record limit per key of the TLS listeners whose keys last.
const RECORDS_PER_KEY_MAX: u64 = 1 << 23;

/// Interval at which the host rates the load: short, so that a run sees many changes.
const LOAD_INTERVAL_US: u64 = 40_000;

/// Most frames, and events of each worker, that a turn of the host handles.
const BATCH: usize = 256;

/// Number of clients from which on a run is a crowd.
const CROWD_MIN: usize = 100;

/// Longest sleep of a worker that may miss a wakeup, in microseconds.
const BRIEF_US: u64 = 1_000;

/// The server.
pub(crate) struct Machine {
    pub(crate) stack: Stack,
    pub(crate) app: server::Server,
    /// The workers of all NIC stacks, in their order; none of a NIC stack without a process.
    pub(crate) slots: Vec<Option<WorkerSlot>>,
    /// Flow affinity, across deaths of NIC processes.
    pub(crate) affinity: FlowAffinityCheck,
    /// Present if any client speaks TLS.
    pub(crate) nonces: Option<NonceCheck>,
    /// Present if any client speaks QUIC.
    pub(crate) watch: Option<Rc<RefCell<WireWatch>>>,
    /// Number of workers of each NIC stack.
    workers: usize,
    processes: Vec<Process>,
    pub(crate) deaths: NicCrashStats,
    /// Link to the NIC process's machine, if it is another one.
    control: Option<ControlLink>,
    /// Ended workers of that machine with events that its relay has not received yet.
    dying: Vec<Dying>,
    /// Back-off of the host machine once the relay has all events.
    parts_us: Option<u64>,
    pub(crate) versions: FileVersions,
    maker: SlotMaker,
    port: FaultyPort,
    far: MemoryPort,
    /// Destinations of the packets of a turn; kept for its memory.
    departed: Vec<SocketAddr>,
    /// The server's addresses.
    own: Vec<IpAddr>,
    /// The part of the stack's configuration that a reload may change.
    changeable: Changeable,
    /// The map that steers frames to the workers' ports, if there is one.
    map: Option<SteeringMap>,
    /// SYNs that the map has steered to workers.
    pub(crate) syns_steered: u64,
    /// Other TCP frames that it has steered to them, ...
    pub(crate) frames_steered: u64,
    /// ... and QUIC datagrams.
    pub(crate) datagrams_steered: u64,
    /// Received frames that the host has not handled yet.
    pub(crate) inbox: Vec<Vec<u8>>,
}

/// The process of a NIC stack.
#[derive(Debug, Default)]
struct Process {
    /// Ends of this process, the next one, and so on.
    fates: VecDeque<Death>,
    /// Turns of this process, and superpackets that have left it.
    turns: u64,
    departures: u64,
    /// Time at which the next process begins.
    revives_us: Option<u64>,
}

/// An ended worker whose events are not all passed on.
struct Dying {
    number: usize,
    relay: ChannelTap,
    /// Events that must still be passed: those up to the last tag.
    left: u32,
}

/// Processes that have work to do.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Woken {
    pub(crate) host: bool,
    pub(crate) workers: bool,
}

impl Machine {
    pub(crate) fn new(
        scenario: &Scenario,
        clock_us: &Rc<Cell<u64>>,
        versions: &FileVersions,
        random: &mut Random,
        logs: bool,
    ) -> Machine {
        let link = memory::Link {
            macs: [MAC, router::ROUTER_MAC],
            mtu: scenario.mtu,
            superpacket_max: scenario.superpacket_max.max(scenario.mtu),
            ..memory::Link::default()
        };
        let (port, far) = memory::pair(link);
        let port = FaultyPort::new(port, &scenario.host_port, 0, clock_us.clone());
        let defaults = nic::Config::default();
        let is_steered = scenario.setup == Some(SetupForm::Steered)
            || scenario.parts_are_steered
            || scenario.receptions_are_steered;
        let watch = scenario.has_quic().then(Rc::<RefCell<WireWatch>>::default);
        let mut maker = SlotMaker {
            config: nic::Config {
                cache_bytes: scenario.cache_bytes,
                parted_open_max: scenario.parted_max.unwrap_or(defaults.parted_open_max),
                jobs_max: scenario
                    .cramped
                    .map_or(defaults.jobs_max, |cramped| cramped.jobs_max),
                ..defaults
            },
            link,
            port: scenario.nic_port.clone(),
            cramped: scenario.cramped,
            watches_turns: scenario.clients.len() < CROWD_MIN,
            watches_records: scenario.has_tls(),
            watch: watch.clone(),
            forgets_tags: scenario.forgets_tags,
            is_steered,
            made: 0,
            disk: scenario.disk.clone(),
            parts: if scenario.replicas {
                1
            } else {
                scenario.nic_stacks
            },
            versions: versions.clone(),
            loads: scenario.loads.clone(),
            contract_loss_ppm: scenario.contract_loss_ppm,
            clock_us: clock_us.clone(),
            random: random.fork(),
            logs,
        };
        let mut slots = Vec::new();
        let mut channels = Vec::new();
        for number in 0..scenario.workers_of_all() {
            let (slot, channel) = match scenario.control {
                None => {
                    let (slot, channel) = maker.make(number / scenario.workers, number);
                    (Some(slot), channel)
                }
                // The other end is absent until the machines have met.
                Some(_) => (None, in_memory_of(maker.capacity()).0),
            };
            slots.push(slot);
            channels.push(channel);
        }
        let mut secret = [0; 16];
        secret[..8].copy_from_slice(&random.next().to_le_bytes());
        let mut addresses = vec![(address(false), 24), (address(true), 64)];
        if scenario.has_preferred {
            addresses.extend([(preferred(false), 24), (preferred(true), 64)]);
        }
        let own = addresses.iter().map(|(address, _)| *address).collect();
        let config = StackConfig {
            gateways: vec![router::ROUTER_V4.into(), router::ROUTER_V6.into()],
            tcp: tcp::Config {
                congestion: scenario.congestion,
                // Needed where the path between the stacks can lose commands or events.
                departure_timeout: (scenario.contract_loss_ppm > 0)
                    .then_some(Duration::from_secs(10)),
                ..tcp::Config::default()
            },
            connections_max: 2000,
            roots_are_replicas: scenario.replicas,
            setup_offload: scenario.setup.is_some().into(),
            teardown_offload: scenario.parted_max.is_some().into(),
            workers_min: if scenario.loads.is_empty() {
                usize::MAX
            } else {
                1
            },
            load_interval_us: LOAD_INTERVAL_US,
            admission: host::Admission {
                half_open_max: scenario.half_open_max,
                ..host::Admission::default()
            },
            ..StackConfig::new(addresses, vec![PORT], secret)
        };
        let nic_stacks = scenario.nic_stacks;
        let changeable = Changeable::from(&config);
        let mut stack = Stack::awaiting(config, Link::of(&port), nic_stacks, clock_us.get());
        for nic in 0..nic_stacks {
            let channels = channels.drain(..scenario.workers).collect();
            let come = stack.on_nic_come(clock_us.get(), nic, channels);
            come.expect("it comes for the first time");
        }
        let map = is_steered.then(|| SteeringMap::in_memory([random.next() as u8; 16]));
        if let Some(map) = &map {
            stack.steer_with(map.clone());
        }
        if scenario.control.is_some() {
            stack.set_nic_elsewhere(0);
            // Until the machines meet, nothing reads the rings.
            stack.on_nic_lost(clock_us.get(), 0);
        }
        if scenario.has_tls() || scenario.has_quic() {
            entropy::begin(random.fork());
            stack.set_unix_time(site::unix_time(clock_us.get()));
        }
        if scenario.has_tls() {
            let both = [Version::Tls12, Version::Tls13];
            stack.serve_tls(TLS_PORT, site::listener(&both, RECORDS_PER_KEY_MAX));
            let wearing = site::listener(&[Version::Tls13], scenario.records_per_key_max);
            stack.serve_tls(WEARING_PORT, wearing);
        }
        if scenario.has_quic() {
            let listener = site::quic_listener(scenario, random);
            let served = stack.serve_quic(clock_us.get(), &listener);
            served.expect("the settings are sound");
        }
        // Longer than any period of faults: a patient client gets everything.
        let app = server::Server::new(server::Config {
            head_timeout: Duration::from_secs(120),
            idle_timeout: Duration::from_secs(240),
            stall_timeout: match scenario.has_quic() {
                // Acknowledged bytes count in pieces of 256 KiB.
                true => Duration::from_secs(1200),
                false => Duration::from_secs(240),
            },
            // A path that loses nearly everything for half a minute is no slow client.
            bytes_per_second_min: None,
            sites: vec![server::Site {
                listing: true,
                ..server::Site::default()
            }],
            ..server::Config::default()
        });
        Machine {
            stack,
            app,
            slots,
            affinity: FlowAffinityCheck::new(
                nic_stacks > 1 || !scenario.loads.is_empty(),
                scenario.contract_loss_ppm == 0,
            ),
            nonces: scenario.has_tls().then(NonceCheck::default),
            watch,
            workers: scenario.workers,
            processes: (0..nic_stacks)
                .map(|nic| Process {
                    fates: scenario.deaths.get(nic).cloned().unwrap_or_default().into(),
                    ..Process::default()
                })
                .collect(),
            deaths: NicCrashStats::default(),
            control: scenario
                .control
                .as_ref()
                .map(|plan| ControlLink::new(plan, scenario.workers, random.fork())),
            dying: Vec::new(),
            parts_us: None,
            versions: versions.clone(),
            maker,
            port,
            far,
            departed: Vec::new(),
            own,
            changeable,
            map,
            syns_steered: 0,
            frames_steered: 0,
            datagrams_steered: 0,
            inbox: Vec::new(),
        }
    }

    /// Delivers a frame from the link. Returns the worker whose port has taken it, `None` for the
    /// host's port.
    pub(crate) fn arrive(&mut self, frame: Vec<u8>) -> Option<usize> {
        let is_group = frame.first().is_some_and(|byte| byte & 1 == 1);
        let packet_type = match (frame.starts_with(&MAC), is_group) {
            (true, _) => PacketType::Host,
            (false, true) => PacketType::Group,
            (false, false) => PacketType::OtherHost,
        };
        let arrived = Arrived {
            bytes: &frame,
            packet_type,
            has_vlan: false,
        };
        let map = self.map.as_ref();
        let Some(Decision::Worker(target)) = map.map(|map| map.decide(&self.own, &arrived)) else {
            self.inbox.push(frame);
            return None;
        };
        match parse_segment(&frame, true) {
            None => self.datagrams_steered += 1,
            Some(it) if it.segment.header.flags.begin_connection() => self.syns_steered += 1,
            Some(_) => self.frames_steered += 1,
        }
        let mut slots = self.slots.iter_mut().enumerate();
        let (number, slot) = slots.find_map(|(number, slot)| {
            let slot = slot.as_mut()?;
            (slot.worker.port().target() == Some(target)).then_some((number, slot))
        })?;
        slot.far.put(&frame);
        Some(number)
    }

    /// Changes where QUIC packets are opened, as a reload does.
    pub(crate) fn change_reception(&mut self, to: QuicReceive) {
        self.changeable.quic_receive = to;
        self.stack.change(&self.changeable);
    }

    /// Returns the workers in existence with their numbers.
    pub(crate) fn slots(&self) -> impl Iterator<Item = (usize, &WorkerSlot)> {
        let slots = self.slots.iter().enumerate();
        slots.filter_map(|(number, slot)| Some((number, slot.as_ref()?)))
    }

    /// Returns the workers of a NIC stack.
    fn workers_of(&self, nic: usize) -> Range<usize> {
        nic * self.workers..(nic + 1) * self.workers
    }

    /// Replaces a worker by one without state. Where there are TLS connections, it is the only
    /// worker of its NIC stack, and the host is notified of its end.
    pub(crate) fn restart(
        &mut self,
        number: usize,
        now_us: u64,
        trace: &mut Trace<'_>,
    ) -> Result<(), Violation> {
        self.end(number..number + 1, now_us, trace)?;
        let (slot, channel) = self.successor(number);
        self.slots[number] = Some(slot);
        if self.nonces.is_some() {
            self.stack.on_nic_ended(now_us, number);
        }
        self.stack.on_nic_restarted(now_us, number, channel);
        Ok(())
    }

    /// Ends workers. Their events in the rings of this machine are passed on up to the last tag.
    fn end(
        &mut self,
        workers: Range<usize>,
        now_us: u64,
        trace: &mut Trace<'_>,
    ) -> Result<(), Violation> {
        for number in workers {
            let Some(mut slot) = self.slots[number].take() else {
                continue;
            };
            self.affinity.on_end(number);
            if self.nonces.is_none() {
                continue;
            }
            let mut left = slot.relay.end();
            self.deaths.unread += u64::from(left > 0);
            if self.control.is_some() {
                let relay = slot.relay;
                self.dying.push(Dying {
                    number,
                    relay,
                    left,
                });
                continue;
            }
            while left > 0 {
                let passed = slot.relay.events(
                    now_us,
                    number,
                    &mut self.affinity,
                    &mut self.nonces,
                    trace,
                )?;
                left = left.saturating_sub(passed as u32);
                if left > 0 {
                    // The host drains its ring meanwhile.
                    self.hear(now_us)?;
                }
            }
            if let Some(nonces) = &mut self.nonces {
                nonces.on_end(slot.relay.life)?;
            }
        }
        Ok(())
    }

    /// Passes events of the other machine's ended workers to its relay, as far as there is room.
    /// After the last event, the relay finds the workers gone.
    fn hear_dying(&mut self, now_us: u64, trace: &mut Trace<'_>) -> Result<(), Violation> {
        for dying in &mut self.dying {
            let Dying {
                number,
                relay,
                left,
            } = dying;
            let passed =
                relay.events(now_us, *number, &mut self.affinity, &mut self.nonces, trace)?;
            *left = left.saturating_sub(passed as u32);
            if let Some(nonces) = &mut self.nonces
                && *left == 0
            {
                nonces.on_end(relay.life)?;
            }
        }
        self.dying.retain(|dying| dying.left > 0);
        if let Some(control) = &mut self.control
            && self.dying.is_empty()
            && let Some(back_off_us) = self.parts_us.take()
        {
            control.part(now_us, back_off_us);
        }
        Ok(())
    }

    /// Drops the events of the other machine's ended workers: the session is over.
    fn forget_dying(&mut self) {
        self.parts_us = None;
        for Dying { relay, .. } in self.dying.drain(..) {
            if let Some(nonces) = &mut self.nonces {
                nonces.on_lost(relay.life);
            }
        }
    }

    /// Lets the host receive all events in the rings.
    fn hear(&mut self, now_us: u64) -> Result<(), Violation> {
        match self.stack.on_channels(now_us, usize::MAX) {
            Ok(_) => Ok(()),
            Err(corrupt) => violation(format!("{corrupt:?}")),
        }
    }

    /// Makes a worker without state, and the host's end of its channel.
    fn successor(&mut self, number: usize) -> (WorkerSlot, HostChannel) {
        let (mut slot, channel) = self.maker.make(number / self.workers, number);
        slot.relay.replays = true;
        self.versions.lose_descriptors();
        (slot, channel)
    }

    /// Returns when the next NIC process begins, if one is missing.
    pub(crate) fn revives_us(&self) -> Option<u64> {
        let processes = self.processes.iter();
        processes.filter_map(|process| process.revives_us).min()
    }

    /// Starts a NIC process without state, if it is time for one. Returns its workers.
    pub(crate) fn revive(&mut self, now_us: u64) -> Range<usize> {
        let is_due = |process: &Process| process.revives_us.is_some_and(|at_us| at_us <= now_us);
        let Some(nic) = self.processes.iter().position(is_due) else {
            return 0..0;
        };
        let process = &mut self.processes[nic];
        process.revives_us = None;
        process.turns = 0;
        process.departures = 0;
        let mut channels = Vec::new();
        for number in self.workers_of(nic) {
            let (slot, channel) = self.successor(number);
            self.slots[number] = Some(slot);
            channels.push(channel);
        }
        self.stack.on_nic_ended(now_us, nic);
        let come = self.stack.on_nic_come(now_us, nic, channels);
        come.expect("it has as many workers as before");
        self.workers_of(nic)
    }

    /// Ends the process of a NIC stack; only its sent packets remain.
    fn die(
        &mut self,
        nic: usize,
        death: Death,
        now_us: u64,
        trace: &mut Trace<'_>,
    ) -> Result<(), Violation> {
        trace.note(now_us, || format!("NIC process {nic} ends: {death:?}"));
        let workers = self.workers_of(nic);
        self.deaths.count(&self.slots[workers.clone()]);
        self.end(workers, now_us, trace)?;
        // A replica may take its place before the next process begins.
        self.versions.lose_descriptors();
        match self.control {
            None => self.processes[nic].revives_us = Some(now_us + death.gone_us),
            Some(_) => {
                self.parts_us = Some(death.gone_us);
                self.hear_dying(now_us, trace)?;
            }
        }
        if let Some(number) = death.replaces {
            self.versions.replace(number, Replacing::Renamed);
        }
        if death.is_noticed && self.control.is_none() {
            self.lose_nic(nic, now_us)?;
        }
        Ok(())
    }

    /// Notifies the host of a lost NIC stack, after its last events.
    fn lose_nic(&mut self, nic: usize, now_us: u64) -> Result<(), Violation> {
        self.hear(now_us)?;
        self.stack.on_nic_ended(now_us, nic);
        self.stack.on_nic_lost(now_us, nic);
        Ok(())
    }

    /// Returns when the relays have something to do.
    pub(crate) fn control_us(&self) -> Option<u64> {
        self.control.as_ref().and_then(ControlLink::next_us)
    }

    /// Schedules the relays' next check of the rings.
    pub(crate) fn wake_control(&mut self, at_us: u64) {
        if let Some(control) = &mut self.control {
            control.wake(at_us);
        }
    }

    /// Reports whether the relays have delivered everything.
    pub(crate) fn is_control_settled(&self) -> bool {
        self.parts_us.is_none() && self.control.as_ref().is_none_or(ControlLink::is_settled)
    }

    pub(crate) fn control_link(&self) -> ControlLinkCounters {
        let control = self.control.as_ref();
        control.map_or_else(Default::default, |control| control.counters)
    }

    /// Runs a turn of both relays.
    pub(crate) fn control_turn(
        &mut self,
        now_us: u64,
        trace: &mut Trace<'_>,
    ) -> Result<Woken, Violation> {
        let mut woken = Woken::default();
        let Some(control) = &mut self.control else {
            return Ok(woken);
        };
        let arrived = control.arrive(now_us);
        let mut is_nic_over = false;
        if let Some(session) = arrived.met {
            trace.note(now_us, || "the machines have met".to_owned());
            let ends = (0..self.workers).map(|_| in_memory_of(self.maker.capacity()));
            let (channels, far_ends): (Vec<_>, Vec<_>) = ends.unzip();
            let come = self.stack.on_nic_come(now_us, 0, channels);
            come.expect("it has as many workers as before");
            control.begin_host(session, far_ends);
            woken.host = true;
        }
        if let Some((session, terms)) = arrived.guest {
            trace.note(now_us, || {
                "a NIC process begins for this session".to_owned()
            });
            let replays = self.maker.made > 0;
            self.processes[0].turns = 0;
            self.processes[0].departures = 0;
            self.versions.lose_descriptors();
            is_nic_over = true;
            let mut channels = Vec::new();
            for (number, place) in self.slots.iter_mut().enumerate() {
                self.affinity.on_end(number);
                if let (Some(nonces), Some(slot)) = (&mut self.nonces, place.take()) {
                    nonces.on_lost(slot.relay.life);
                }
                let (mut slot, channel) = self.maker.make(0, number);
                slot.relay.replays = replays;
                *place = Some(slot);
                channels.push(channel);
            }
            control.begin_nic(now_us, session, terms.source_mac, channels);
            woken.workers = true;
        }
        let turned = control.host_turn(now_us);
        woken.host |= turned.worked;
        let is_lost = turned.is_over;
        match control.nic_turn(now_us) {
            Ok(worked) => woken.workers |= worked,
            Err(over) => {
                trace.note(now_us, || {
                    format!("the NIC machine's session is over: {over:?}")
                });
                is_nic_over = true;
                for slot in &mut self.slots {
                    if let (Some(nonces), Some(slot)) = (&mut self.nonces, slot.take()) {
                        nonces.on_lost(slot.relay.life);
                    }
                }
            }
        }
        if is_lost {
            trace.note(now_us, || "the host's session is over".to_owned());
            self.lose_nic(0, now_us)?;
        }
        if is_nic_over {
            self.forget_dying();
        }
        self.hear_dying(now_us, trace)?;
        woken.workers |= self.pass_records(now_us, trace)? > 0;
        Ok(woken)
    }

    /// Passes commands and events between the workers and their relay; returns how many.
    fn pass_records(&mut self, now_us: u64, trace: &mut Trace<'_>) -> Result<usize, Violation> {
        let (affinity, nonces) = (&mut self.affinity, &mut self.nonces);
        let mut passed = 0;
        for (number, slot) in self.slots.iter_mut().enumerate() {
            if let Some(slot) = slot {
                passed += slot
                    .relay
                    .commands(now_us, number, affinity, nonces, trace)?;
                passed += slot.relay.events(now_us, number, affinity, nonces, trace)?;
            }
        }
        Ok(passed)
    }

    /// Ends all faults of the NIC processes and of the channels.
    pub(crate) fn calm_down(&mut self) {
        for process in &mut self.processes {
            process.fates.clear();
        }
        self.maker.contract_loss_ppm = 0;
        self.maker.cramped = None;
        for slot in self.slots.iter_mut().flatten() {
            slot.relay.loss_ppm = 0;
            slot.relay.cramped = None;
        }
    }

    /// Runs a turn of the host's event loop. Returns the processes that then have work to do.
    pub(crate) fn host_turn(
        &mut self,
        now_us: u64,
        trace: &mut Trace<'_>,
        frames: &mut Vec<Vec<u8>>,
    ) -> Result<Woken, Violation> {
        let events = match self.stack.on_channels(now_us, BATCH) {
            Ok(events) => events,
            Err(corrupt) => return Err(Violation(format!("{corrupt:?}"))),
        };
        let arrived = self.inbox.len().min(BATCH);
        for bytes in self.inbox.drain(..arrived) {
            let checksum_valid = false;
            self.stack.on_frame(
                now_us,
                Frame {
                    bytes: &bytes,
                    checksum_valid,
                    segment_bytes: None,
                },
            );
        }
        self.stack.retry_waiting_room();
        self.stack.on_time(now_us);
        self.stack.set_unix_time(site::unix_time(now_us));
        let served = self.stack.serve(now_us, &mut self.port, &mut self.app);
        // Fairness is checked at the workers only.
        self.port.take_departed(&mut self.departed);
        take_frames(&mut self.far, frames);
        let (mut taken, mut passed) = (0, 0);
        for (number, slot) in self.slots.iter_mut().enumerate() {
            if self.control.is_some() {
                // The workers are on another machine.
                break;
            }
            let Some(slot) = slot else {
                continue;
            };
            taken +=
                slot.relay
                    .commands(now_us, number, &mut self.affinity, &mut self.nonces, trace)?;
            // The host has made room for events.
            passed +=
                slot.relay
                    .events(now_us, number, &mut self.affinity, &mut self.nonces, trace)?;
        }
        let host = events + arrived + passed > 0 || served;
        Ok(Woken {
            host,
            workers: host || taken > 0,
        })
    }

    /// Runs a turn of a worker's loop. Returns when it must run again by itself, if at all, and
    /// whether it has sent the host any event.
    pub(crate) fn worker_turn(
        &mut self,
        number: usize,
        now_us: u64,
        trace: &mut Trace<'_>,
        frames: &mut Vec<Vec<u8>>,
    ) -> Result<(Option<u64>, bool), Violation> {
        let nic = number / self.workers;
        let process = &mut self.processes[nic];
        let Some(slot) = &mut self.slots[number] else {
            return Ok((None, false));
        };
        process.turns += 1;
        let fate = process.fates.front().copied();
        let departures_max = fate.map_or(u64::MAX, |death| death.departures - process.departures);
        slot.worker.port().close_after(departures_max);
        slot.relay
            .commands(now_us, number, &mut self.affinity, &mut self.nonces, trace)?;
        if std::mem::take(&mut slot.asleep) {
            slot.worker.finish_sleep();
        }
        slot.report_load(now_us);
        let Ok(progress) = slot.worker.turn(&|| now_us) else {
            return Err(Violation(format!("worker {number} finds its ring corrupt")));
        };
        let departures_left = slot.worker.port().departures_left();
        process.departures += departures_max - departures_left;
        let fate = fate.filter(|death| death.turn <= process.turns || departures_left == 0);
        if let Some(death) = fate {
            slot.relay.events_max = death.events;
        }
        let before = frames.len();
        take_frames(&mut slot.far, frames);
        if let Some(watch) = &self.watch {
            let mut watch = watch.borrow_mut();
            let mut left = frames[before..].iter();
            left.try_for_each(|frame| watch.on_frame(frame))?;
        }
        for line in slot.disk.take_log() {
            trace.note(now_us, || format!("disk{number} {line}"));
        }
        slot.worker.port().take_departed(&mut self.departed);
        for left in slot.worker.port().take_left() {
            if let Some(nonces) = &mut self.nonces {
                nonces.on_left(slot.relay.life, &left)?;
            }
        }
        if let Some(fairness) = &mut slot.relay.fairness {
            let waiting = slot.worker.flows_waiting(now_us);
            fairness.on_turn(&self.departed, waiting)?;
        }
        // The worker has made room for commands.
        let taken =
            slot.relay
                .commands(now_us, number, &mut self.affinity, &mut self.nonces, trace)?;
        let told =
            slot.relay
                .events(now_us, number, &mut self.affinity, &mut self.nonces, trace)?
                + taken
                > 0;
        if let Some(death) = fate {
            process.fates.pop_front();
            self.die(nic, death, now_us, trace)?;
            return Ok((None, told || death.is_noticed));
        }
        let again_us = match progress {
            Progress::Busy => Some(now_us + 1),
            Progress::Idle => match slot.worker.prepare_sleep() {
                Sleep::Not => Some(now_us + 1),
                sleep => {
                    slot.asleep = true;
                    (sleep == Sleep::Briefly).then_some(now_us + BRIEF_US)
                }
            },
        };
        Ok((again_us, told))
    }
}

/// Takes the frames that a port has put on the link.
fn take_frames(far: &mut MemoryPort, frames: &mut Vec<Vec<u8>>) {
    let taken = far.receive(usize::MAX, &mut |frame| frames.push(frame.bytes.to_vec()));
    debug_assert!(taken.is_ok(), "memory does not fail");
}
