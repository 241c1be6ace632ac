//! A crowd: hundreds of clients with simultaneous requests, for properties that only numbers show.
//!
//! Uses the same stacks, clients and links as the scenarios, without faults other than loss. The
//! checks that a scenario makes at every step are left out, so that a run of a thousand clients
//! takes seconds; every byte is compared nevertheless.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::IpAddr;
use std::rc::Rc;

use tcp::{CongestionAlgorithm, EcnPolicy};

use crate::client::Client;
use crate::file_versions::FileVersions;
use crate::link::Link;
use crate::machine::Machine;
use crate::random::Random;
use crate::router;
use crate::scenario::BEGINNING_US;
use crate::scenario::{
    ClientPlan, DiskPlan, Faults, File, LinkPlan, Manner, Parting, PathPlan, PortPlan, Scenario,
    Trouble,
};
use crate::trace::{Options, Trace};
use crate::violation::{Check, Violation};

/// Parameters of a crowd. Each client has a path of its own, and fetches one file on one
/// connection.
#[derive(Clone, Debug)]
pub struct Crowd {
    /// Seed of loss and disk latencies.
    pub seed: u64,
    /// Number of clients, at most 1,000.
    pub clients: usize,
    /// Number of files; clients choose in turn.
    pub files: usize,
    /// Size of each file, in bytes.
    pub file_bytes: u64,
    /// Time within which the clients begin, one after the other, in microseconds.
    pub begin_within_us: u64,
    /// NIC workers.
    pub workers: usize,
    /// Rate of each worker's port, in bytes per second, headers included; unlimited if `None`.
    pub port_bytes_per_second: Option<u64>,
    /// Memory of each worker for content, in bytes.
    pub cache_bytes: usize,
    /// Round-trip time of each path, in microseconds.
    pub round_trip_us: u64,
    /// Rate of each path, in bytes per second.
    pub bytes_per_second: u64,
    /// Packets per million that are lost on the way to the clients.
    pub loss_ppm: u32,
    /// Longest latency of a disk read, in microseconds.
    pub disk_us_max: u64,
    /// Longest time until all clients have finished, in microseconds.
    pub within_us: u64,
}

/// Result of a crowd's run.
#[derive(Clone, Debug)]
pub struct CrowdReport {
    /// Virtual time from the beginning to the last byte, in microseconds.
    pub elapsed_us: u64,
    /// Bytes received by each client when the first one finished.
    pub bytes_at_first_end: Vec<u64>,
    /// SENDs and packets that repeat bytes.
    pub retransmissions: u64,
    /// Sum of the NIC workers' counters.
    pub nic: nic::Counters,
    /// Share of each worker.
    pub shares: Vec<WorkerShare>,
}

/// One worker's share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerShare {
    /// Connections served by this worker from beginning to end.
    pub connections: usize,
    /// File bytes sent by this worker.
    pub file_bytes: u64,
}

impl CrowdReport {
    /// Returns Jain's index of the bytes that clients had received when the first one finished: 1
    /// if all had the same number, 1/n if one of n clients had everything.
    pub fn jain_index(&self) -> f64 {
        let bytes = self.bytes_at_first_end.iter().map(|&bytes| bytes as f64);
        let (sum, squares) = bytes.fold((0.0, 0.0), |(sum, squares), bytes| {
            (sum + bytes, squares + bytes * bytes)
        });
        sum * sum / (squares * self.bytes_at_first_end.len() as f64)
    }
}

/// Runs a crowd. Fails if a client does not get every byte, or gets a wrong one.
pub fn run_crowd(crowd: &Crowd) -> Result<CrowdReport, Violation> {
    let mut place = Place::new(crowd);
    place.run(BEGINNING_US + crowd.within_us)?;
    let machine = &place.machine;
    let mut nic = nic::Counters::default();
    let mut shares = Vec::new();
    for (number, slot) in machine.slots() {
        let counters = slot.worker.counters();
        nic.add(&counters);
        shares.push(WorkerShare {
            connections: machine.affinity.flows_of(number),
            file_bytes: counters.file_sent_bytes,
        });
    }
    Ok(CrowdReport {
        elapsed_us: place.now_us - BEGINNING_US,
        bytes_at_first_end: place.bytes_at_first_end,
        retransmissions: machine.stack.counters().retransmissions,
        nic,
        shares,
    })
}

/// A scheduled event.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Coming {
    ToServer(Vec<u8>),
    ToClient(usize, Vec<u8>),
    /// A client's timer.
    ClientTime(usize),
}

/// State of a crowd's run.
struct Place {
    now_us: u64,
    clock_us: Rc<Cell<u64>>,
    trace: Trace<'static>,
    machine: Machine,
    paths: Vec<(Link, Link)>,
    clients: Vec<Client>,
    /// Time for which each client is scheduled.
    client_times_us: Vec<Option<u64>>,
    future: BinaryHeap<Reverse<(u64, u64, Coming)>>,
    scheduled: u64,
    host_turn_us: Option<u64>,
    worker_turns_us: Vec<Option<u64>>,
    has_finished: Vec<bool>,
    finished: usize,
    bytes_at_first_end: Vec<u64>,
    frames: Vec<Vec<u8>>,
}

/// Delay from a process's wake-up to its turn, in microseconds.
const REACTION_US: u64 = 5;

impl Place {
    fn new(crowd: &Crowd) -> Place {
        let mut random = Random::new(crowd.seed);
        let clock_us = Rc::new(Cell::new(BEGINNING_US));
        let files = vec![
            File {
                size: crowd.file_bytes,
                trouble: Trouble::Nothing,
                settled: true,
            };
            crowd.files
        ];
        let link = |loss_ppm| LinkPlan {
            bytes_per_second: crowd.bytes_per_second,
            delay_us: crowd.round_trip_us / 2,
            queue_bytes_max: (crowd.bytes_per_second * crowd.round_trip_us / 1_000_000).max(60_000),
            mark_bytes: None,
            mtu: 1500,
            tells_too_big: false,
            faults: Faults {
                loss_ppm,
                ..Faults::default()
            },
        };
        let plan = PathPlan {
            down: link(crowd.loss_ppm),
            up: link(0),
        };
        let client_plan = |number: usize| ClientPlan {
            path: number,
            ipv6: false,
            on_link: false,
            begins_us: crowd.begin_within_us * number as u64 / crowd.clients as u64,
            connections: vec![vec![number % crowd.files]],
            pipelines: false,
            manner: Manner::Steady,
            parting: Parting::ClientFirst,
            mtu: 1500,
            receive_buffer_bytes: 1 << 20,
            timestamps: true,
            ecn: EcnPolicy::Off,
            window_scaling: true,
            time_wait_us: 1_000,
            merges_us: None,
            tls: None,
            quic: None,
        };
        let calm = PortPlan {
            busy_ppm: 0,
            busy_us: 0..1,
            drop_ppm: 0,
            bytes_per_second: None,
            seed: 0,
        };
        let scenario = Scenario {
            workers: crowd.workers,
            nic_stacks: 1,
            replicas: false,
            mtu: 1500,
            superpacket_max: 65_535,
            congestion: CongestionAlgorithm::Cubic,
            half_open_max: 4096,
            turn_us: 0..1,
            stall_ppm: 0,
            stall_us: 0..1,
            contract_loss_ppm: 0,
            restarts: Vec::new(),
            deaths: Vec::new(),
            replacements: Vec::new(),
            disk: DiskPlan {
                depth_max: 32,
                latency_us: 20..crowd.disk_us_max.max(21),
                slow_ppm: 0,
                slow_us: 0..1,
                refuses_ppm: 0,
            },
            files: files.clone(),
            paths: vec![plan; crowd.clients],
            clients: (0..crowd.clients).map(client_plan).collect(),
            hostiles: Vec::new(),
            host_port: calm.clone(),
            nic_port: PortPlan {
                bytes_per_second: crowd.port_bytes_per_second,
                ..calm
            },
            cramped: None,
            control: None,
            loads: Vec::new(),
            cache_bytes: crowd.cache_bytes,
            records_per_key_max: u64::MAX,
            parted_max: None,
            parts_are_steered: false,
            setup: None,
            retry_above: usize::MAX,
            early_data: false,
            has_preferred: false,
            receptions: Vec::new(),
            receptions_are_steered: false,
            forgets_tags: false,
        };
        let versions = FileVersions::new(&files);
        let machine = Machine::new(&scenario, &clock_us, &versions, &mut random, false);
        let mut place = Place {
            now_us: BEGINNING_US,
            clock_us,
            trace: Trace::new(Options::default()),
            machine,
            paths: scenario
                .paths
                .iter()
                .map(|plan| {
                    let [down, up] = [&plan.down, &plan.up];
                    (
                        Link::new(down.clone(), random.fork()),
                        Link::new(up.clone(), random.fork()),
                    )
                })
                .collect(),
            clients: scenario
                .clients
                .iter()
                .enumerate()
                .map(|(number, plan)| {
                    let random = random.fork();
                    Client::new(
                        number,
                        plan.clone(),
                        versions.clone(),
                        BEGINNING_US,
                        false,
                        false,
                        random,
                    )
                })
                .collect(),
            client_times_us: vec![None; crowd.clients],
            future: BinaryHeap::new(),
            scheduled: 0,
            host_turn_us: None,
            worker_turns_us: vec![None; crowd.workers],
            has_finished: vec![false; crowd.clients],
            finished: 0,
            bytes_at_first_end: Vec::new(),
            frames: Vec::new(),
        };
        for number in 0..crowd.clients {
            place.schedule_client(number);
        }
        place
    }

    /// Runs until every client has finished.
    fn run(&mut self, deadline_us: u64) -> Check {
        while self.finished < self.clients.len() {
            let wakes_us = [
                self.host_turn_us,
                self.machine.stack.next_timeout_us(),
                self.future.peek().map(|Reverse((at_us, ..))| *at_us),
            ];
            let workers = 0..self.machine.slots.len();
            let workers_us = workers.filter_map(|number| self.worker_us(number));
            let next_us = wakes_us.into_iter().flatten().chain(workers_us).min();
            let next_us = next_us.filter(|&next_us| next_us < deadline_us);
            let Some(next_us) = next_us else {
                let stuck = self.clients.iter().find(|client| !client.is_finished());
                let who = stuck.map_or(String::new(), Client::describe);
                return Err(Violation(format!(
                    "{} of {} have everything; not {who}; {:?}",
                    self.finished,
                    self.clients.len(),
                    self.machine
                        .slots()
                        .map(|(_, slot)| slot.worker.usage())
                        .collect::<Vec<_>>(),
                )));
            };
            self.now_us = self.now_us.max(next_us);
            self.clock_us.set(self.now_us);
            self.let_happen()?;
        }
        Ok(())
    }

    /// Returns when a worker has its next turn unless it is woken earlier.
    fn worker_us(&self, number: usize) -> Option<u64> {
        let slot = self.machine.slots[number].as_ref()?;
        let wakes_us = [
            self.worker_turns_us[number],
            slot.disk.next_us(),
            slot.next_us(),
        ];
        wakes_us.into_iter().flatten().min()
    }

    fn let_happen(&mut self) -> Check {
        let now_us = self.now_us;
        let is_due = |at_us: Option<u64>| at_us.is_some_and(|at_us| at_us <= now_us);
        if is_due(self.future.peek().map(|Reverse((at_us, ..))| *at_us))
            && let Some(Reverse((_, _, what))) = self.future.pop()
        {
            return self.come(what);
        }
        let mut workers = 0..self.machine.slots.len();
        if let Some(number) = workers.find(|&number| is_due(self.worker_us(number))) {
            let mut frames = std::mem::take(&mut self.frames);
            let (again_us, told) =
                self.machine
                    .worker_turn(number, now_us, &mut self.trace, &mut frames)?;
            self.server_sends(&mut frames);
            self.frames = frames;
            self.worker_turns_us[number] = again_us;
            if told {
                self.wake_host();
            }
            return Ok(());
        }
        self.host_turn_us = None;
        let mut frames = std::mem::take(&mut self.frames);
        let woken = self
            .machine
            .host_turn(now_us, &mut self.trace, &mut frames)?;
        self.server_sends(&mut frames);
        self.frames = frames;
        if woken.host {
            self.wake_host();
        }
        if woken.workers {
            let at_us = now_us + REACTION_US;
            for turn_us in &mut self.worker_turns_us {
                *turn_us = Some(turn_us.map_or(at_us, |turn_us| turn_us.min(at_us)));
            }
        }
        Ok(())
    }

    fn come(&mut self, what: Coming) -> Check {
        let mut frames = std::mem::take(&mut self.frames);
        let number = match what {
            Coming::ToServer(frame) => {
                self.machine.inbox.push(frame);
                self.wake_host();
                None
            }
            Coming::ToClient(number, frame) => {
                self.clients[number].on_frame(self.now_us, &frame, &mut frames)?;
                Some(number)
            }
            Coming::ClientTime(number) => {
                self.client_times_us[number] = None;
                let client = &mut self.clients[number];
                if client.next_us().is_some_and(|at_us| at_us <= self.now_us) {
                    client.on_time(self.now_us, &mut frames)?;
                }
                Some(number)
            }
        };
        if let Some(number) = number {
            for frame in frames.drain(..) {
                self.pass(number, frame, false);
            }
            self.schedule_client(number);
            self.look_at(number);
        }
        self.frames = frames;
        Ok(())
    }

    /// Notes that a client has finished, if it has.
    fn look_at(&mut self, number: usize) {
        if self.clients[number].is_finished() && !self.has_finished[number] {
            self.has_finished[number] = true;
            if self.finished == 0 {
                let bytes = self.clients.iter().map(|client| client.bytes_received);
                self.bytes_at_first_end = bytes.collect();
            }
            self.finished += 1;
        }
    }

    fn wake_host(&mut self) {
        let at_us = self.now_us + REACTION_US;
        self.host_turn_us = Some(self.host_turn_us.map_or(at_us, |t| t.min(at_us)));
    }

    fn schedule(&mut self, at_us: u64, what: Coming) {
        self.scheduled += 1;
        let at_us = at_us.max(self.now_us);
        self.future.push(Reverse((at_us, self.scheduled, what)));
    }

    /// Schedules a client, unless it is scheduled for as early a time already.
    fn schedule_client(&mut self, number: usize) {
        let scheduled_us = &mut self.client_times_us[number];
        if let Some(at_us) = self.clients[number].next_us()
            && scheduled_us.is_none_or(|scheduled_us| at_us < scheduled_us)
        {
            *scheduled_us = Some(at_us);
            self.schedule(at_us, Coming::ClientTime(number));
        }
    }

    fn server_sends(&mut self, frames: &mut Vec<Vec<u8>>) {
        for frame in frames.drain(..) {
            if let Some(answer) = router::answer_neighbor(&frame) {
                self.schedule(self.now_us, Coming::ToServer(answer));
            } else if let Some(IpAddr::V4(address)) = router::destination(&frame) {
                self.pass(Client::number_at(address), frame, true);
            }
        }
    }

    /// Sends a frame over the path of a client, down or up.
    fn pass(&mut self, number: usize, frame: Vec<u8>, down: bool) {
        let Some((down_link, up_link)) = self.paths.get_mut(number) else {
            return;
        };
        let link = if down { down_link } else { up_link };
        // A lost frame leaves no trace here.
        let Ok(arrivals) = link.pass(self.now_us - BEGINNING_US, frame) else {
            return;
        };
        for arrival in arrivals {
            let at_us = BEGINNING_US + arrival.at_us;
            let what = if down {
                Coming::ToClient(number, arrival.frame)
            } else {
                Coming::ToServer(arrival.frame)
            };
            self.schedule(at_us, what);
        }
    }
}
