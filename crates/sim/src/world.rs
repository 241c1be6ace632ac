//! The world: all parts of a scenario, and the event loop.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::rc::Rc;

use host::QuicReceive;
use tcp::Instant;
use wire::datagram;
use wire::frame::{Received, parse};

use crate::audit::Audit;
use crate::control_link::ControlLinkCounters;
use crate::cwnd_check::WindowCheck;
use crate::division_counters::DivisionCounters;
use crate::file_versions::FileVersions;
use crate::hostile::Hostile;
use crate::link::{Link, Loss};
use crate::machine::Machine;
use crate::nic_crash_stats::NicCrashStats;
use crate::peer::Peer;
use crate::quic_counters::QuicCounters;
use crate::random::Random;
use crate::router;
use crate::scenario::{BEGINNING_US, CALM_US, Replacing, Scenario, SetupForm};
use crate::setup_counters::SetupCounters;
use crate::teardown_counters::TeardownCounters;
use crate::tls_counters::TlsCounters;
use crate::trace::Trace;
use crate::violation::{Check, ensure, violation};
use crate::worker_slot::WorkerSlot;

/// Time within which the server drops connections of vanished peers, in microseconds: the last
/// retransmissions of a FIN take a quarter of an hour.
const AFTERMATH_US: u64 = 4 * 3600 * 1_000_000;

/// Event limit of a run, beyond the needs of any scenario.
const HAPPENINGS_MAX: u64 = 20_000_000;

/// Length of a tick of the host's timing wheel plus a margin, in microseconds.
const WHEEL_TICK_US: u64 = 1_100;

/// Delay to hostile peers, in microseconds.
const HOSTILE_US: u64 = 100;

/// Delay of a neighbour's answer, in microseconds.
const NEIGHBOR_US: Range<u64> = 20..500;

/// The path between the server and some clients.
struct Path {
    down: Link,
    up: Link,
}

/// Destination of a frame in flight.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Arriving {
    Server(Vec<u8>),
    Client(usize, Vec<u8>),
    Hostile(usize, Vec<u8>),
}

pub(crate) struct World<'a> {
    scenario: Scenario,
    now_us: u64,
    clock_us: Rc<Cell<u64>>,
    random: Random,
    pub(crate) trace: Trace<'a>,
    machine: Machine,
    paths: Vec<Path>,
    clients: Vec<Peer>,
    hostiles: Vec<Hostile>,
    /// Workers to be replaced, the next one last.
    restarts: Vec<(u64, usize)>,
    /// Files to be replaced, the next one last.
    replacements: Vec<(u64, usize, Replacing)>,
    /// Changes of the place where QUIC packets are opened, the next one last.
    receptions: Vec<(u64, QuicReceive)>,
    is_calm: bool,
    audit: Audit,
    windows: WindowCheck,
    future: BinaryHeap<Reverse<(u64, u64, Arriving)>>,
    scheduled: u64,
    host_turn_us: Option<u64>,
    worker_turns_us: Vec<Option<u64>>,
    pub(crate) happenings: u64,
    pub(crate) frames_lost: u64,
    frames: Vec<Vec<u8>>,
}

impl<'a> World<'a> {
    pub(crate) fn new(seed: u64, scenario: Scenario, trace: Trace<'a>) -> World<'a> {
        // Not the scenario's generator: its draws may change without changing this one's.
        let mut random = Random::new(seed ^ 0x5157_1357_9bdf_0246);
        let clock_us = Rc::new(Cell::new(BEGINNING_US));
        let versions = FileVersions::new(&scenario.files);
        let machine = Machine::new(
            &scenario,
            &clock_us,
            &versions,
            &mut random,
            trace.has_text(),
        );
        let paths = scenario
            .paths
            .iter()
            .map(|plan| Path {
                down: Link::new(plan.down.clone(), random.fork()),
                up: Link::new(plan.up.clone(), random.fork()),
            })
            .collect();
        let clients = (0..scenario.clients.len())
            .map(|number| Peer::new(number, &scenario, &versions, BEGINNING_US, random.fork()))
            .collect();
        let hostiles = scenario
            .hostiles
            .iter()
            .zip(0..)
            .map(|(plan, number)| Hostile::new(number, plan.clone(), BEGINNING_US, random.fork()))
            .collect();
        let mut restarts = scenario.restarts.clone();
        restarts.sort_by_key(|&(at_us, _)| Reverse(at_us));
        let mut replacements = scenario.replacements.clone();
        replacements.sort_by_key(|&(at_us, ..)| Reverse(at_us));
        let mut receptions = scenario.receptions.clone();
        receptions.sort_by_key(|&(at_us, _)| Reverse(at_us));
        let audit = Audit::new(scenario.loses_inside());
        World {
            now_us: BEGINNING_US,
            restarts,
            replacements,
            receptions,
            is_calm: false,
            clock_us,
            worker_turns_us: vec![None; scenario.workers_of_all()],
            scenario,
            random,
            trace,
            machine,
            paths,
            clients,
            hostiles,
            audit,
            windows: WindowCheck::default(),
            future: BinaryHeap::new(),
            scheduled: 0,
            host_turn_us: None,
            happenings: 0,
            frames_lost: 0,
            frames: Vec::new(),
        }
    }

    /// Returns the microseconds since the beginning.
    pub(crate) fn elapsed_us(&self) -> u64 {
        self.now_us - BEGINNING_US
    }

    pub(crate) fn bytes_received(&self) -> u64 {
        self.clients.iter().map(Peer::bytes_received).sum()
    }

    pub(crate) fn retransmissions(&self) -> u64 {
        self.machine.stack.counters().retransmissions
    }

    /// Returns the counters of worker load and workers in use.
    pub(crate) fn division(&self) -> DivisionCounters {
        DivisionCounters::of(&self.machine.stack.counters())
    }

    pub(crate) fn setup(&self) -> SetupCounters {
        let counters = self.machine.stack.counters();
        SetupCounters {
            steered: (self.scenario.setup == Some(SetupForm::Steered)).into(),
            setups: counters.setups,
            syns_steered: self.machine.syns_steered,
            syns_handed_on: counters.syns_handed_on,
            syns_of_host: counters.syns_received,
            connections: counters.connections_set_up,
        }
    }

    pub(crate) fn teardown(&self) -> TeardownCounters {
        let counters = self.machine.stack.counters();
        TeardownCounters {
            parts: counters.parts,
            refused: counters.parts_refused,
            repeated: counters.parts_repeated,
            taken_back: counters.parted_taken_back,
            finished: counters.parted_finished,
            broken: counters.parted_broken,
            frames: counters.frames_handed_on,
            steered: self.scenario.parts_are_steered.into(),
            frames_steered: self.machine.frames_steered,
        }
    }

    pub(crate) fn connections_moved(&self) -> u64 {
        self.machine.stack.counters().connections_moved
    }

    /// Returns the number of connections that ended early.
    pub(crate) fn connections_lost(&self) -> u64 {
        let lost = self.clients.iter().map(Peer::connections_lost);
        lost.sum()
    }

    /// Returns the counters of TLS connections.
    pub(crate) fn tls(&self) -> TlsCounters {
        let counters = self.machine.stack.counters();
        TlsCounters {
            handshakes: counters.tls_handshakes,
            resumed: counters.tls_handshakes_resumed,
            key_updates: counters.tls_key_updates,
            seal_mismatches: counters.tls_seal_mismatches,
            records_resealed: (self.machine.nonces.as_ref()).map_or(0, |nonces| nonces.resealed),
            unproven: counters.tls_records_unproven,
        }
    }

    /// Returns the counters of QUIC connections.
    pub(crate) fn quic(&self) -> QuicCounters {
        let counters = self.machine.stack.counters();
        let watch = self.machine.watch.as_ref();
        QuicCounters {
            connections: counters.quic_connections_accepted,
            resumed: counters.quic_resumed,
            early: counters.quic_early,
            moved_over: self.clients.iter().map(Peer::moved_over).sum(),
            streams: counters.quic_streams_accepted,
            packets: watch.map_or(0, |watch| watch.borrow().packets),
            keys: counters.quic_keys,
            receive_begun: counters.quic_receive_begun,
            receive_returned: counters.quic_receive_returned,
            datagrams_steered: self.machine.datagrams_steered,
            opened: counters.quic_packets_opened,
            rejected: counters.quic_rejected,
        }
    }

    pub(crate) fn control_link(&self) -> ControlLinkCounters {
        self.machine.control_link()
    }

    pub(crate) fn nic_deaths(&self) -> NicCrashStats {
        self.machine.deaths
    }

    /// Runs the scenario until all connections are over, and checks that nothing is left.
    pub(crate) fn run(&mut self) -> Check {
        let deadline_us = BEGINNING_US + CALM_US + self.scenario.patience_us();
        while !self.clients.iter().all(Peer::is_finished) {
            if !self.step(deadline_us)? {
                for client in &self.clients {
                    client.check_finished()?;
                }
                break;
            }
        }
        let deadline_us = self.now_us + AFTERMATH_US;
        while !self.is_over() {
            if !self.step(deadline_us)? {
                break;
            }
        }
        self.check_leftovers()
    }

    fn is_over(&self) -> bool {
        self.machine.stack.usage() == host::Usage::default()
            && self.clients.iter().all(Peer::is_gone)
            && self
                .hostiles
                .iter()
                .all(|hostile| hostile.next_us().is_none())
            && self.restarts.is_empty()
            && self.machine.revives_us().is_none()
            && self.machine.is_control_settled()
            && self.host_turn_us.is_none()
            && self.worker_turns_us.iter().all(Option::is_none)
            && self
                .machine
                .slots()
                .all(|(_, slot)| slot.disk.next_us().is_none() && slot.next_us().is_none())
    }

    /// Advances to the next event and handles it. False if it is not before `deadline_us`, or there
    /// is none.
    fn step(&mut self, deadline_us: u64) -> Result<bool, crate::Violation> {
        let turns = self
            .worker_turns_us
            .iter()
            .flatten()
            .chain(&self.host_turn_us);
        let arrival = self.future.peek().map(|Reverse((at_us, ..))| *at_us);
        let slots = || self.machine.slots().map(|(_, slot)| slot);
        let disks = slots().filter_map(|slot| slot.disk.next_us());
        let paced = slots().filter_map(WorkerSlot::next_us);
        let clients = self.clients.iter().filter_map(Peer::next_us);
        let next_us = turns
            .copied()
            .chain(arrival)
            .chain(disks)
            .chain(paced)
            .chain(clients)
            .chain(self.restarts.last().map(|(at_us, _)| BEGINNING_US + at_us))
            .chain(
                self.replacements
                    .last()
                    .map(|(at_us, ..)| BEGINNING_US + at_us),
            )
            .chain(
                self.receptions
                    .last()
                    .map(|(at_us, _)| BEGINNING_US + at_us),
            )
            .chain(self.machine.revives_us())
            .chain(self.machine.control_us())
            .chain(self.hostiles.iter().filter_map(Hostile::next_us))
            .chain(self.machine.stack.next_timeout_us())
            .min();
        let Some(next_us) = next_us.filter(|&next_us| next_us < deadline_us) else {
            return Ok(false);
        };
        self.now_us = self.now_us.max(next_us);
        if !self.is_calm && self.elapsed_us() >= CALM_US {
            self.is_calm = true;
            self.machine.calm_down();
        }
        self.clock_us.set(self.now_us);
        self.happenings += 1;
        ensure(self.happenings < HAPPENINGS_MAX, || {
            "it does not come to rest".to_owned()
        })?;
        self.let_happen()?;
        let usage = self.machine.stack.usage();
        ensure(usage.timers <= usage.connections, || {
            format!("more timers than connections: {usage:?}")
        })?;
        Ok(true)
    }

    /// Applies a due change of the place where QUIC packets are opened.
    fn change_reception(&mut self) -> bool {
        let now_us = self.now_us;
        let is_due = |(at_us, _): &mut (u64, QuicReceive)| BEGINNING_US + *at_us <= now_us;
        let Some((_, to)) = self.receptions.pop_if(is_due) else {
            return false;
        };
        self.trace
            .note(now_us, || format!("packets of QUIC are opened: {to:?}"));
        self.machine.change_reception(to);
        self.wake_host();
        true
    }

    /// Handles one of the events that are due.
    fn let_happen(&mut self) -> Check {
        let now_us = self.now_us;
        if self
            .future
            .peek()
            .is_some_and(|Reverse((at_us, ..))| *at_us <= now_us)
            && let Some(Reverse((_, _, what))) = self.future.pop()
        {
            return match what {
                Arriving::Server(frame) => self.arrive_at_server(frame),
                Arriving::Client(number, frame) => self.arrive_at_client(number, &frame),
                Arriving::Hostile(number, frame) => {
                    self.hostiles[number].on_frame(&frame);
                    Ok(())
                }
            };
        }
        let is_due = |(at_us, _): &mut (u64, usize)| BEGINNING_US + *at_us <= now_us;
        if let Some((_, number)) = self.restarts.pop_if(is_due) {
            if self.machine.slots[number].is_none() {
                return Ok(());
            }
            self.trace
                .note(now_us, || format!("nic{number} starts again"));
            self.machine.restart(number, now_us, &mut self.trace)?;
            self.wake_host();
            self.wake_worker(number);
            return Ok(());
        }
        let is_due = |(at_us, ..): &mut (u64, usize, Replacing)| BEGINNING_US + *at_us <= now_us;
        if let Some((_, number, how)) = self.replacements.pop_if(is_due) {
            self.trace
                .note(now_us, || format!("file f{number} is {how:?}"));
            self.machine.versions.replace(number, how);
            return Ok(());
        }
        if self.change_reception() {
            return Ok(());
        }
        if self
            .machine
            .revives_us()
            .is_some_and(|at_us| at_us <= now_us)
        {
            self.trace
                .note(now_us, || "the next NIC process begins".to_owned());
            let workers = self.machine.revive(now_us);
            self.wake_host();
            for number in workers {
                self.wake_worker(number);
            }
            return Ok(());
        }
        if self
            .machine
            .control_us()
            .is_some_and(|at_us| at_us <= now_us)
        {
            return self.control_turn();
        }
        for number in 0..self.clients.len() {
            if self.clients[number]
                .next_us()
                .is_some_and(|at_us| at_us <= now_us)
            {
                let mut frames = std::mem::take(&mut self.frames);
                let result = self.clients[number].on_time(now_us, &mut frames);
                self.clients_send(number, &mut frames)?;
                self.frames = frames;
                return result;
            }
        }
        for number in 0..self.hostiles.len() {
            if self.hostiles[number]
                .next_us()
                .is_some_and(|at_us| at_us <= now_us)
            {
                self.hostile_acts(number);
                return Ok(());
            }
        }
        for number in 0..self.machine.slots.len() {
            let Some(slot) = &self.machine.slots[number] else {
                continue;
            };
            let wakes_us = slot.disk.next_us().into_iter().chain(slot.next_us()).min();
            if wakes_us.is_some_and(|at_us| at_us <= now_us)
                && self.worker_turns_us[number].is_none_or(|at_us| at_us > now_us)
            {
                self.worker_turns_us[number] = Some(now_us);
            }
            if self.worker_turns_us[number].is_some_and(|at_us| at_us <= now_us) {
                return self.worker_turn(number);
            }
        }
        self.host_turn()
    }

    /// Draws the delay from a wake-up now to the process's turn.
    fn reaction_us(&mut self) -> u64 {
        let stalls = self.elapsed_us() < CALM_US && self.random.happens(self.scenario.stall_ppm);
        let range = if stalls {
            self.scenario.stall_us.clone()
        } else {
            self.scenario.turn_us.clone()
        };
        self.random.within(range)
    }

    fn wake_host(&mut self) {
        let at_us = self.now_us + self.reaction_us();
        self.host_turn_us = Some(
            self.host_turn_us
                .map_or(at_us, |turn_us| turn_us.min(at_us)),
        );
    }

    fn wake_worker(&mut self, number: usize) {
        if self.machine.slots[number].is_none() {
            return;
        }
        let at_us = self.now_us + self.reaction_us();
        let turn_us = &mut self.worker_turns_us[number];
        *turn_us = Some(turn_us.map_or(at_us, |turn_us| turn_us.min(at_us)));
    }

    fn host_turn(&mut self) -> Check {
        self.host_turn_us = None;
        let mut frames = std::mem::take(&mut self.frames);
        let woken = self
            .machine
            .host_turn(self.now_us, &mut self.trace, &mut frames)?;
        self.server_sends(&mut frames)?;
        self.frames = frames;
        if woken.host {
            self.wake_host();
        }
        if woken.workers {
            for number in 0..self.machine.slots.len() {
                self.wake_worker(number);
            }
        }
        self.wake_control();
        let views = self.machine.stack.connection_views();
        self.windows.on_host_turn(views)?;
        self.check_timers()
    }

    fn worker_turn(&mut self, number: usize) -> Check {
        self.worker_turns_us[number] = None;
        let mut frames = std::mem::take(&mut self.frames);
        let (again_us, told) =
            self.machine
                .worker_turn(number, self.now_us, &mut self.trace, &mut frames)?;
        self.server_sends(&mut frames)?;
        self.frames = frames;
        self.worker_turns_us[number] = again_us;
        self.forget_turns();
        if told {
            self.wake_host();
        }
        self.wake_control();
        Ok(())
    }

    /// Cancels the turns of workers that have ended.
    fn forget_turns(&mut self) {
        for (turn_us, slot) in self.worker_turns_us.iter_mut().zip(&self.machine.slots) {
            *turn_us = turn_us.filter(|_| slot.is_some());
        }
    }

    /// Schedules the relays' next check of the rings.
    fn wake_control(&mut self) {
        if self.machine.control_us().is_some() {
            let at_us = self.now_us + self.reaction_us();
            self.machine.wake_control(at_us);
        }
    }

    fn control_turn(&mut self) -> Check {
        let woken = self.machine.control_turn(self.now_us, &mut self.trace)?;
        self.forget_turns();
        if woken.host {
            self.wake_host();
        }
        if woken.workers {
            for number in 0..self.machine.slots.len() {
                self.wake_worker(number);
            }
        }
        if woken.host || woken.workers {
            self.wake_control();
        }
        Ok(())
    }

    fn schedule(&mut self, at_us: u64, what: Arriving) {
        self.scheduled += 1;
        self.future
            .push(Reverse((at_us.max(self.now_us), self.scheduled, what)));
    }

    fn client_at(&self, address: IpAddr) -> Option<usize> {
        self.clients
            .iter()
            .position(|client| client.address() == address)
    }

    /// Routes frames that leave the server.
    fn server_sends(&mut self, frames: &mut Vec<Vec<u8>>) -> Check {
        let elapsed_us = self.elapsed_us();
        for frame in frames.drain(..) {
            self.trace.sent(self.now_us, &frame);
            self.trace.capture(self.now_us, &frame);
            match parse(&frame, false) {
                Ok(Received::Tcp(packet)) => self.audit.server_sends(&packet)?,
                Ok(Received::Other) if !is_datagram(&frame) => {
                    return violation("the server sends something else than TCP and UDP");
                }
                Ok(_) => {}
                Err(error) => return violation(format!("the server sends garbage: {error}")),
            }
            if let Some(answer) = router::answer_neighbor(&frame) {
                let after_us = self.random.within(NEIGHBOR_US);
                self.schedule(self.now_us + after_us, Arriving::Server(answer));
                continue;
            }
            let destination = router::destination(&frame);
            let hostile = |hostile: &Hostile| Some(hostile.address) == destination;
            if let Some(number) = self.hostiles.iter().position(hostile) {
                self.schedule(self.now_us + HOSTILE_US, Arriving::Hostile(number, frame));
                continue;
            }
            let client = destination.and_then(|address| self.client_at(address));
            let Some(number) = client else {
                continue;
            };
            let path = self.clients[number].plan().path;
            let mtu = self.paths[path].down.plan.mtu;
            let too_big = router::too_big(&frame, mtu);
            match self.paths[path].down.pass(elapsed_us, frame) {
                Ok(arrivals) => {
                    for arrival in arrivals {
                        let at_us = BEGINNING_US + arrival.at_us;
                        self.schedule(at_us, Arriving::Client(number, arrival.frame));
                    }
                }
                Err(loss) => {
                    self.lose(loss);
                    if loss == Loss::TooBig
                        && self.paths[path].down.plan.tells_too_big
                        && let Some(error) = too_big
                    {
                        self.towards_server(path, error);
                    }
                }
            }
        }
        Ok(())
    }

    fn lose(&mut self, loss: Loss) {
        self.frames_lost += 1;
        self.trace.lost(self.now_us, loss);
    }

    fn clients_send(&mut self, number: usize, frames: &mut Vec<Vec<u8>>) -> Check {
        for frame in frames.drain(..) {
            self.trace.sent(self.now_us, &frame);
            match parse(&frame, false) {
                Ok(Received::Tcp(packet)) => self.audit.peer_sends(&packet)?,
                Ok(Received::Other) if is_datagram(&frame) => {}
                _ => return violation("a client sends garbage"),
            }
            let path = self.clients[number].plan().path;
            self.towards_server(path, frame);
        }
        Ok(())
    }

    fn hostile_acts(&mut self, number: usize) {
        let there: HashSet<SocketAddr> = self
            .machine
            .stack
            .connection_views()
            .map(|view| view.remote)
            .collect();
        let victim = self
            .audit
            .victim(&mut self.random, |peer| there.contains(&peer));
        let mut frames = std::mem::take(&mut self.frames);
        self.hostiles[number].act(self.now_us, victim, &mut frames);
        for frame in frames.drain(..) {
            self.trace.sent(self.now_us, &frame);
            self.schedule(self.now_us + HOSTILE_US, Arriving::Server(frame));
        }
        self.frames = frames;
    }

    fn towards_server(&mut self, path: usize, frame: Vec<u8>) {
        let elapsed_us = self.elapsed_us();
        match self.paths[path].up.pass(elapsed_us, frame) {
            Ok(arrivals) => {
                for arrival in arrivals {
                    let at_us = BEGINNING_US + arrival.at_us;
                    self.schedule(at_us, Arriving::Server(arrival.frame));
                }
            }
            Err(loss) => self.lose(loss),
        }
    }

    fn arrive_at_server(&mut self, frame: Vec<u8>) -> Check {
        self.trace.capture(self.now_us, &frame);
        if let Ok(Received::Tcp(packet)) = parse(&frame, false) {
            self.audit.server_hears(&packet);
        }
        match self.machine.arrive(frame) {
            None => self.wake_host(),
            Some(worker) => self.wake_worker(worker),
        }
        Ok(())
    }

    fn arrive_at_client(&mut self, number: usize, frame: &[u8]) -> Check {
        if let Ok(Received::Tcp(packet)) = parse(frame, false) {
            self.audit.peer_hears(&packet);
        }
        let mut frames = std::mem::take(&mut self.frames);
        let result = self.clients[number].on_frame(self.now_us, frame, &mut frames);
        self.clients_send(number, &mut frames)?;
        self.frames = frames;
        result
    }

    /// Checks that no timer is missing: every waiting flow has one, and the wheel fires in time.
    fn check_timers(&self) -> Check {
        let stack = &self.machine.stack;
        let stack_us = stack.next_timeout_us().unwrap_or(u64::MAX);
        // Where commands and events can be lost, TCP must not rely on the NIC stack.
        let is_reliable = self.scenario.contract_loss_ppm == 0;
        for view in stack.connection_views() {
            let nic_works = is_reliable && view.sends_outstanding > 0;
            let waits = view.tcp.flight_bytes() > 0 || view.tcp.queued_bytes() > 0;
            let timeout_us = view.tcp.next_timeout().map(Instant::as_us);
            ensure(
                !waits || timeout_us.is_some() || nic_works || view.waits,
                || {
                    format!(
                        "no timer is armed: {} {:?}, {} in flight, {} queued",
                        view.remote,
                        view.tcp.state(),
                        view.tcp.flight_bytes(),
                        view.tcp.queued_bytes()
                    )
                },
            )?;
            ensure(
                timeout_us.is_none_or(|at_us| stack_us <= at_us.max(self.now_us) + WHEEL_TICK_US),
                || {
                    format!(
                        "the wheel calls at {stack_us}, too late for {} at {timeout_us:?}",
                        view.remote
                    )
                },
            )?;
        }
        Ok(())
    }

    /// Checks that nothing is left after all connections are over.
    fn check_leftovers(&self) -> Check {
        for client in &self.clients {
            client.check_finished()?;
        }
        let stack = &self.machine.stack;
        let unproven = stack.counters().tls_records_unproven;
        let ended = self.clients.iter().map(Peer::connections_unproven);
        let ended: u64 = ended.sum();
        ensure(ended <= unproven, || {
            format!("{ended} connections have ended, and {unproven} had records in doubt")
        })?;
        ensure(unproven == 0 || self.scenario.loses_tags(), || {
            format!("{unproven} connections had records in doubt, although nothing was lost")
        })?;
        ensure(stack.counters().quic_rejected == 0, || {
            "a NIC worker has rejected a command of QUIC".to_owned()
        })?;
        let left: Vec<String> = stack
            .connection_views()
            .map(|view| format!("{} {:?}", view.remote, view.tcp.state()))
            .collect();
        ensure(stack.usage() == host::Usage::default(), || {
            format!("the host stack still holds {:?}: {left:?}", stack.usage())
        })?;
        let app = self.machine.app.counters();
        ensure(app.connections_accepted == app.connections_closed, || {
            format!("the server's connections do not add up: {app:?}")
        })?;
        let slots = self.machine.slots().count();
        ensure(slots == self.scenario.workers_of_all(), || {
            "a NIC process is missing".to_owned()
        })?;
        for (number, slot) in self.machine.slots() {
            let usage = slot.worker.usage();
            let idle = nic::Usage {
                blocks: usage.blocks,
                blocks_cached: usage.blocks_cached,
                blocks_free: usage.blocks - usage.blocks_cached,
                ..nic::Usage::default()
            };
            ensure(usage == idle, || {
                format!("worker {number} still holds {usage:?}")
            })?;
            ensure(slot.disk.open_files() == 0, || {
                format!("the disk of worker {number} has files open")
            })?;
        }
        Ok(())
    }
}

/// Reports whether a frame is a valid UDP datagram.
fn is_datagram(frame: &[u8]) -> bool {
    matches!(datagram::parse(frame, false), Ok(Some(_)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Trouble;
    use crate::trace::Options;

    /// Returns the violation in the scenario of a seed with a change applied.
    fn broken(seed: u64, change: fn(&mut Scenario)) -> Option<String> {
        let mut scenario = Scenario::draw(seed);
        change(&mut scenario);
        let mut world = World::new(seed, scenario, Trace::new(Options::default()));
        world.run().err().map(|violation| violation.0)
    }

    /// Scenarios in which NIC processes die while clients fetch, over TLS, a file that is being
    /// overwritten.
    fn seeds() -> impl Iterator<Item = u64> {
        let is_such = |scenario: &Scenario| {
            let mut files = scenario.files.iter();
            let is_scribbled = files.any(|file| file.trouble == Trouble::Scribbled);
            is_scribbled && scenario.control.is_none() && scenario.deaths_planned() > 1
        };
        (5_000_000..).filter(move |&seed| is_such(&Scenario::draw(seed)))
    }

    /// A successor without its predecessor's tags seals different bytes under a used nonce, and the
    /// check detects it.
    #[test]
    fn a_nic_stack_without_tags_is_caught_when_it_uses_a_nonce_twice() {
        let mut caught = 0;
        for seed in seeds().take(20) {
            assert_eq!(broken(seed, |_| {}), None, "seed {seed}");
            let forgets = broken(seed, |scenario| scenario.forgets_tags = true);
            let is_caught = forgets.is_some_and(|it| it.contains("two plaintexts under one nonce"));
            caught += u64::from(is_caught);
        }
        assert!(caught >= 2, "{caught}");
    }
}
