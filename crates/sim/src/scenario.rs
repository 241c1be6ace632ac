//! Scenarios: the machines, the network, the disk, the requests and the faults that a seed
//! determines.

use std::fmt;
use std::ops::Range;

use contract::tls::{Cipher, Suite, Version};
use host::QuicReceive;
use tcp::{CongestionAlgorithm, EcnPolicy};

use crate::random::Random;

/// The clocks' reading at the beginning, in microseconds.
pub(crate) const BEGINNING_US: u64 = 1_000_000;

/// How a file is replaced by its next version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replacing {
    /// The new version is renamed over the file: a reader that has opened the old one keeps it.
    Renamed,
    /// The file is rewritten in place: the old version is gone for all readers.
    Rewritten,
}

/// End of all faults of the network, the disk and the machines, in microseconds from the beginning;
/// after it, every operation must complete.
pub(crate) const CALM_US: u64 = 20_000_000;

/// Offset behind the last file's number that stands for a missing file.
const MISSING: usize = 7;

/// Offset behind the last file's number that stands for the directory.
pub(crate) const DIRECTORY: usize = 8;

/// Longest absence of a NIC process with files of its own, in microseconds: shorter than the host's
/// wait.
const GONE_US_MAX: u64 = 4_000_000;

/// How SYNs reach NIC workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetupForm {
    /// From the wire, steered by a map.
    Steered,
    /// From the host, as FRAME.
    HandedOn,
}

/// All parameters that a seed determines.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    /// Workers of each NIC stack.
    pub(crate) workers: usize,
    pub(crate) nic_stacks: usize,
    /// The roots are replicas. If not, each has some of the files.
    pub(crate) replicas: bool,
    /// MTU of the server's link, in bytes.
    pub(crate) mtu: usize,
    pub(crate) superpacket_max: usize,
    pub(crate) congestion: CongestionAlgorithm,
    /// Number of half-open connections beyond which SYNs are answered with cookies.
    pub(crate) half_open_max: usize,
    /// Delay from a process's wake-up to its turn.
    pub(crate) turn_us: Range<u64>,
    /// Wake-ups per million that are delayed by `stall_us` instead.
    pub(crate) stall_ppm: u32,
    pub(crate) stall_us: Range<u64>,
    /// SENDs and echoes per million that are lost between the stacks.
    pub(crate) contract_loss_ppm: u32,
    /// Restarts of workers without state: time in microseconds from the beginning, and number.
    pub(crate) restarts: Vec<(u64, usize)>,
    /// Ends of each NIC stack's processes, in order.
    pub(crate) deaths: Vec<Vec<Death>>,
    /// Replacements of files: time in microseconds from the beginning, file, and manner.
    pub(crate) replacements: Vec<(u64, usize, Replacing)>,
    pub(crate) disk: DiskPlan,
    pub(crate) files: Vec<File>,
    pub(crate) paths: Vec<PathPlan>,
    pub(crate) clients: Vec<ClientPlan>,
    pub(crate) hostiles: Vec<HostilePlan>,
    pub(crate) host_port: PortPlan,
    pub(crate) nic_port: PortPlan,
    pub(crate) cramped: Option<Cramped>,
    /// The link to the NIC stack, if it is on another machine.
    pub(crate) control: Option<ControlPlan>,
    /// Reported load of each worker, last first: the number of workers in use follows it. Empty:
    /// all workers are in use throughout.
    pub(crate) loads: Vec<Vec<Load>>,
    /// Memory of each worker for content, in bytes.
    pub(crate) cache_bytes: usize,
    /// Record limit per key of the listener whose keys do not last.
    pub(crate) records_per_key_max: u64,
    /// Connections whose end a NIC worker runs at most, if NIC workers do.
    pub(crate) parted_max: Option<usize>,
    /// A map steers frames of these connections to their workers.
    pub(crate) parts_are_steered: bool,
    /// How SYNs reach NIC workers, if NIC workers answer them.
    pub(crate) setup: Option<SetupForm>,
    /// Number of QUIC connections from which on clients must validate their address by Retry.
    pub(crate) retry_above: usize,
    /// Resuming QUIC clients may send early data.
    pub(crate) early_data: bool,
    /// The server has a preferred address, to which QUIC clients may migrate.
    pub(crate) has_preferred: bool,
    /// Where clients' 1-RTT packets are opened, from each time in microseconds on; until the first,
    /// at the host.
    pub(crate) receptions: Vec<(u64, QuicReceive)>,
    /// A map steers packets to the NIC workers that open them.
    pub(crate) receptions_are_steered: bool,
    /// Tags are withheld from new NIC workers: a bug that the checks must detect.
    pub(crate) forgets_tags: bool,
}

/// A worker's reported load from a time on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) at_us: u64,
    pub(crate) busy_permille: u32,
}

/// End of a NIC process. Its workers, their state, and all unread commands and events are lost;
/// sent packets are on the network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Death {
    /// Latest turn of its workers, counted from the process's start.
    pub(crate) turn: u64,
    /// Number of sent superpackets after which it dies at once, even within a turn.
    pub(crate) departures: u64,
    /// Number of events of the last turn that still reach the host.
    pub(crate) events: u32,
    /// Time until the next process begins.
    pub(crate) gone_us: u64,
    /// The host detects the death before that.
    pub(crate) is_noticed: bool,
    /// A file that is replaced meanwhile.
    pub(crate) replaces: Option<usize>,
}

/// Rings of minimal capacity between the stacks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cramped {
    /// SENDs that a worker accepts at a time.
    pub(crate) jobs_max: usize,
    /// Until [`CALM_US`], commands that reach the worker in each interval `every_us`.
    pub(crate) commands_max: usize,
    pub(crate) every_us: u64,
}

/// The link between the host machine and the NIC machine, in either direction.
#[derive(Clone, Debug)]
pub(crate) struct ControlPlan {
    pub(crate) link: LinkPlan,
    /// Frames per million that arrive with a bit flipped.
    pub(crate) damage_ppm: u32,
}

/// Faults of the server's ports, until [`CALM_US`].
#[derive(Clone, Debug)]
pub(crate) struct PortPlan {
    /// Packets per million that find the port busy, and for how long it then is.
    pub(crate) busy_ppm: u32,
    pub(crate) busy_us: Range<u64>,
    /// Packets per million that are dropped.
    pub(crate) drop_ppm: u32,
    /// The port's rate, at all times: beyond it the port is busy.
    pub(crate) bytes_per_second: Option<u64>,
    /// Seed of the port's generator.
    pub(crate) seed: u64,
}

/// Behaviour of the disk.
#[derive(Clone, Debug)]
pub(crate) struct DiskPlan {
    pub(crate) depth_max: usize,
    pub(crate) latency_us: Range<u64>,
    /// Operations per million that take `slow_us` instead.
    pub(crate) slow_ppm: u32,
    pub(crate) slow_us: Range<u64>,
    /// Submissions per million that the kernel refuses for now.
    pub(crate) refuses_ppm: u32,
}

/// A file on the disk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct File {
    pub(crate) size: u64,
    pub(crate) trouble: Trouble,
    /// Its timestamps are old enough to name a version.
    pub(crate) settled: bool,
}

/// Fault of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    Nothing,
    OpenFails {
        errno: u16,
    },
    ReadFails {
        from: u64,
        errno: u16,
    },
    /// A writer changes it all the time without changing its metadata: no two reads of any part
    /// give the same bytes.
    Scribbled,
}

/// The path between the server and some clients: a link in each direction.
#[derive(Clone, Debug)]
pub(crate) struct PathPlan {
    pub(crate) down: LinkPlan,
    pub(crate) up: LinkPlan,
}

/// A link in one direction. Faults end with [`CALM_US`]; rate, delay, queue and MTU stay.
#[derive(Clone, Debug)]
pub(crate) struct LinkPlan {
    pub(crate) bytes_per_second: u64,
    pub(crate) delay_us: u64,
    /// Longer queues drop at the tail.
    pub(crate) queue_bytes_max: u64,
    /// Queue length, in bytes, from which on ECN-capable packets are marked.
    pub(crate) mark_bytes: Option<u64>,
    pub(crate) mtu: usize,
    /// The sender of too large a packet gets an ICMP error.
    pub(crate) tells_too_big: bool,
    pub(crate) faults: Faults,
}

/// Faults of a link.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) loss_ppm: u32,
    /// Gilbert's model: probabilities that the bad state begins, and ends, with a packet.
    pub(crate) burst_begins_ppm: u32,
    pub(crate) burst_ends_ppm: u32,
    pub(crate) duplicate_ppm: u32,
    pub(crate) corrupt_ppm: u32,
    pub(crate) reorder_ppm: u32,
    /// Additional delay of a packet that is overtaken.
    pub(crate) reorder_us: Range<u64>,
    /// Intervals in which no packet gets through, in microseconds from the beginning.
    pub(crate) black_holes: Vec<Range<u64>>,
}

/// A client: our own TCP, asking for files.
#[derive(Clone, Debug)]
pub(crate) struct ClientPlan {
    pub(crate) path: usize,
    pub(crate) ipv6: bool,
    /// A neighbour of the server, rather than behind its router.
    pub(crate) on_link: bool,
    pub(crate) begins_us: u64,
    /// Requested files, on each of its connections, one after the other. A number beyond the files
    /// stands for a missing file or the directory.
    pub(crate) connections: Vec<Vec<usize>>,
    /// All requests are sent at once.
    pub(crate) pipelines: bool,
    pub(crate) manner: Manner,
    pub(crate) parting: Parting,
    pub(crate) mtu: usize,
    pub(crate) receive_buffer_bytes: usize,
    pub(crate) timestamps: bool,
    pub(crate) ecn: EcnPolicy,
    pub(crate) window_scaling: bool,
    pub(crate) time_wait_us: u64,
    /// Packets that arrive within this time of the first one may be merged before TCP sees them.
    pub(crate) merges_us: Option<u64>,
    pub(crate) tls: Option<TlsPlan>,
    /// It speaks HTTP/3 instead of HTTP/1.1 over TCP.
    pub(crate) quic: Option<QuicPlan>,
}

/// How a client speaks TLS.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TlsPlan {
    pub(crate) suite: Suite,
    /// It uses the listener whose keys soon reach their record limit.
    pub(crate) wears: bool,
    /// Received plaintext after which it updates its key and requests an update of the server's.
    pub(crate) updates_every_bytes: Option<u64>,
    /// Plaintext bytes of each record that it sends; in TLS 1.3, padding is added.
    pub(crate) record_bytes: usize,
    pub(crate) padding_bytes: usize,
    /// It sends close_notify before FIN.
    pub(crate) says_close: bool,
    /// Windows of its HTTP/2 connection and streams, in bytes, if it speaks HTTP/2 instead of
    /// HTTP/1.1.
    pub(crate) http2: Option<u32>,
}

/// How a client speaks QUIC.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuicPlan {
    pub(crate) cipher: Cipher,
    /// Flow control windows of a stream and of the connection, in bytes.
    pub(crate) stream_window_bytes: u32,
    pub(crate) window_bytes: u32,
    /// Received bytes after which it updates the keys.
    pub(crate) updates_every_bytes: Option<u64>,
    /// Received bytes of a connection after which it migrates to another port.
    pub(crate) moves_after_bytes: Option<u64>,
    /// It migrates to the server's preferred address instead.
    pub(crate) moves_over: bool,
    /// Received bytes of a response after which it stops the stream.
    pub(crate) stops_after_bytes: Option<u64>,
    /// It sends CONNECTION_CLOSE; if not, it vanishes silently.
    pub(crate) says_close: bool,
}

/// How a client behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// It reads all bytes at once.
    Steady,
    /// It reads `bytes` in each interval `every_us`.
    Slow { bytes: usize, every_us: u64 },
    /// It stops reading for a time after this number of bytes.
    Pauses { after_bytes: u64, for_us: u64 },
    /// It resets the connection after this number of bytes.
    Resets { after_bytes: u64 },
    /// It vanishes silently after this number of bytes.
    Vanishes { after_bytes: u64 },
}

impl Manner {
    /// Reports whether its downloads complete.
    pub(crate) fn stays(self) -> bool {
        !matches!(self, Manner::Resets { .. } | Manner::Vanishes { .. })
    }
}

/// An attacker.
#[derive(Clone, Debug)]
pub(crate) struct HostilePlan {
    pub(crate) ipv6: bool,
    pub(crate) begins_us: u64,
    /// Number of its acts, and their interval.
    pub(crate) acts: u32,
    pub(crate) every_us: Range<u64>,
}

/// The end that closes a connection first, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parting {
    /// The client sends FIN when it has everything.
    ClientFirst,
    /// It asks the server to close after the last response.
    ServerFirst,
    /// It sends FIN right after its last request.
    HalfClose,
}

impl Scenario {
    /// Draws a scenario.
    pub(crate) fn draw(seed: u64) -> Scenario {
        let mut random = Random::new(seed);
        let weather = random.pick(&[
            Weather::Clear,
            Weather::Fair,
            Weather::Fair,
            Weather::Bad,
            Weather::Bad,
            Weather::Storm,
        ]);
        let files = draw_files(&mut random);
        let paths: Vec<PathPlan> = (0..random.within(1..4))
            .map(|_| PathPlan::draw(&mut random, weather))
            .collect();
        let clients = (0..random.within(1..8))
            .map(|_| ClientPlan::draw(&mut random, &files, &paths))
            .collect();
        let workers = random.pick(&[1, 1, 1, 2, 2, 3, 4]);
        let restarts = (0..random.pick(&[0, 0, 0, 0, 1, 3]))
            .map(|_| {
                let worker = random.within(0..workers as u64) as usize;
                (random.across(1_000..CALM_US), worker)
            })
            .collect();
        let mut scenario = Scenario {
            workers,
            nic_stacks: 1,
            replicas: false,
            contract_loss_ppm: random.pick(&[0, 0, 0, 0, 1_000, 50_000]),
            restarts,
            deaths: Vec::new(),
            replacements: Vec::new(),
            mtu: random.pick(&[1500, 1500, 1500, 9000, 1280]),
            superpacket_max: random.pick(&[65_535, 65_535, 16_000, 4_000]),
            congestion: random.pick(&CongestionAlgorithm::ALL),
            half_open_max: random.pick(&[0, 1, 4096, 4096]),
            turn_us: random.pick(&[0..1, 1..20, 1..20, 5..200]),
            stall_ppm: random.pick(&[0, 0, 1_000, 10_000]),
            stall_us: 500..20_000,
            disk: DiskPlan::draw(&mut random, weather),
            files,
            paths,
            clients,
            hostiles: (0..random.pick(&[0, 0, 0, 1, 1, 2]))
                .map(|_| HostilePlan::draw(&mut random))
                .collect(),
            // New parameters are drawn last, so that the rest of a seed's scenario stays the same.
            host_port: PortPlan::draw(&mut random, weather),
            nic_port: PortPlan::draw(&mut random, weather),
            cramped: random.one_in(2).then(|| Cramped {
                jobs_max: random.pick(&[1, 4, 32]),
                commands_max: random.pick(&[1, 4]),
                every_us: random.pick(&[1, 100, 2_000, 10_000]),
            }),
            control: None,
            loads: Vec::new(),
            cache_bytes: nic::Config::CACHE_BYTES_MIN,
            records_per_key_max: u64::MAX,
            parted_max: None,
            parts_are_steered: false,
            setup: None,
            retry_above: usize::MAX,
            has_preferred: false,
            receptions: Vec::new(),
            receptions_are_steered: false,
            early_data: false,
            forgets_tags: false,
        };
        for client in &mut scenario.clients {
            client.merges_us = random.pick(&[None, None, None, Some(20), Some(200), Some(2_000)]);
        }
        scenario.deaths = vec![draw_deaths(&mut random, scenario.files.len())];
        let files = scenario.files.len() as u64;
        scenario.replacements = (0..random.pick(&[0, 0, 0, 1, 4]))
            .map(|_| {
                let how = random.pick(&[Replacing::Renamed, Replacing::Rewritten]);
                let at_us = random.across(1_000..CALM_US);
                (at_us, random.within(0..files) as usize, how)
            })
            .collect();
        if random.one_in(3) {
            scenario.control = Some(ControlPlan::draw(&mut random));
            // All workers are one process there, and die together.
            scenario.restarts.clear();
        } else if random.one_in(3) {
            scenario.draw_more_nic_stacks(&mut random);
        }
        for death in scenario.deaths.iter_mut().flatten() {
            death.is_noticed = !random.one_in(4);
        }
        if random.one_in(3) {
            scenario.draw_tls(&mut random);
        }
        if scenario.workers > 1 && random.one_in(2) {
            scenario.draw_loads(&mut random);
        }
        if random.one_in(3) {
            scenario.draw_quic(&mut random);
        }
        scenario
    }

    /// Lets NIC stacks run the end of connections.
    pub(crate) fn draw_teardown(&mut self, seed: u64) {
        // A generator of its own: the rest of the scenario is the same with and without.
        let mut random = Random::new(!seed);
        self.parted_max = Some(random.pick(&[1, 2, 1000, 1000, 1000]));
        self.parts_are_steered = self.control.is_none() && random.one_in(2);
    }

    /// Lets NIC workers answer SYNs.
    pub(crate) fn draw_setup(&mut self, seed: u64) {
        let mut random = Random::new(!seed ^ 0x5e70);
        let is_steered = self.control.is_none() && random.one_in(2);
        self.setup = Some(if is_steered {
            SetupForm::Steered
        } else {
            SetupForm::HandedOn
        });
    }

    /// Draws a load for each worker that rises and falls until [`CALM_US`].
    fn draw_loads(&mut self, random: &mut Random) {
        let loads = (0..self.workers_of_all()).map(|_| {
            let mut at_us = BEGINNING_US;
            let mut loads = Vec::new();
            while at_us < BEGINNING_US + CALM_US {
                loads.push(Load {
                    at_us,
                    busy_permille: random.pick(&[0, 100, 400, 700, 950, 1000]),
                });
                at_us += random.across(20_000..2_000_000);
            }
            loads.push(Load {
                at_us,
                busy_permille: 0,
            });
            loads.reverse();
            loads
        });
        self.loads = loads.collect();
    }

    /// Lets most clients use TLS.
    fn draw_tls(&mut self, random: &mut Random) {
        self.records_per_key_max = random.across(2..300);
        let scribbled = random.one_in(3).then(|| {
            self.files.push(File {
                size: random.across(1_000..1_000_000),
                trouble: Trouble::Scribbled,
                settled: random.one_in(2),
            });
            self.files.len() - 1
        });
        for client in &mut self.clients {
            if random.one_in(4) {
                continue;
            }
            client.tls = Some(TlsPlan::draw(random));
            // Without TLS there is no way to check the response.
            for asked in client.connections.iter_mut().flatten() {
                if let Some(scribbled) = scribbled.filter(|_| random.one_in(3)) {
                    *asked = scribbled;
                }
            }
        }
        if self.has_tls() {
            // No real transport loses SENDs: the host resets connections whose records were sealed
            // out of order.
            self.contract_loss_ppm = 0;
            if self.workers > 1 {
                // Workers of one process end together.
                self.restarts.clear();
            }
        }
    }

    /// Adds clients that use QUIC to the others, or replaces these.
    fn draw_quic(&mut self, random: &mut Random) {
        self.retry_above = random.pick(&[usize::MAX, usize::MAX, usize::MAX, 0, 1]);
        let first = if random.one_in(3) {
            0
        } else {
            let others = self.clients.len();
            for _ in 0..random.within(1..4) {
                let like = random.within(0..others as u64) as usize;
                let mut client = self.clients[like].clone();
                client.begins_us = random.within(0..2_000_000);
                self.clients.push(client);
            }
            others
        };
        for client in &mut self.clients[first..] {
            client.tls = None;
            client.quic = Some(QuicPlan::draw(random, client.receive_buffer_bytes));
        }
        self.early_data = random.one_in(2);
        self.has_preferred = random.one_in(2);
        for quic in self.clients.iter_mut().filter_map(|it| it.quic.as_mut()) {
            quic.moves_over = self.has_preferred && random.one_in(2);
        }
        if random.one_in(2) {
            self.draw_receptions(random);
        }
        // No real transport loses QSENDs, and a departure is not reported twice.
        self.contract_loss_ppm = 0;
    }

    /// Lets NIC workers open QUIC packets of clients, at times or throughout.
    fn draw_receptions(&mut self, random: &mut Random) {
        self.receptions = (0..random.within(1..6))
            .map(|_| {
                let at_us = random.within(0..4_000_000);
                let after_bytes = random.pick(&[0, 0, 2_000, 50_000, 500_000]);
                let receive = match random.one_in(3) {
                    true => QuicReceive::Host,
                    false => QuicReceive::Nic { after_bytes },
                };
                (at_us, receive)
            })
            .collect();
        self.receptions[0] = (0, QuicReceive::NIC);
        self.receptions_are_steered = self.control.is_none() && random.one_in(2);
    }

    /// Reports whether a client uses QUIC.
    pub(crate) fn has_quic(&self) -> bool {
        self.clients.iter().any(|client| client.quic.is_some())
    }

    /// Reports whether a client uses TLS.
    pub(crate) fn has_tls(&self) -> bool {
        self.clients.iter().any(|client| client.tls.is_some())
    }

    /// Reports whether the last events of NIC workers may be lost: connections may then be reset
    /// because it is unknown which records were sealed.
    pub(crate) fn loses_tags(&self) -> bool {
        let falls_silent = self.control.as_ref().is_some_and(ControlPlan::falls_silent);
        falls_silent && self.has_tls()
    }

    fn draw_more_nic_stacks(&mut self, random: &mut Random) {
        self.nic_stacks = random.pick(&[2, 2, 3]);
        self.replicas = random.one_in(2);
        for _ in 1..self.nic_stacks {
            self.deaths.push(draw_deaths(random, self.files.len()));
        }
        if !self.replicas {
            // The host fails requests for files of a NIC stack that is away for longer.
            for death in self.deaths.iter_mut().flatten() {
                death.gone_us = death.gone_us.min(GONE_US_MAX);
            }
        }
    }

    /// Returns the number of workers of all NIC stacks.
    pub(crate) fn workers_of_all(&self) -> usize {
        self.workers * self.nic_stacks
    }

    /// Returns the number of NIC processes that are to die.
    pub(crate) fn deaths_planned(&self) -> usize {
        self.deaths.iter().map(Vec::len).sum()
    }

    /// Reports whether packets may be lost between the stack that sends them and the link.
    pub(crate) fn loses_inside(&self) -> bool {
        let is_moody = |plan: &PortPlan| plan.busy_ppm + plan.drop_ppm > 0;
        self.contract_loss_ppm > 0 || is_moody(&self.host_port) || is_moody(&self.nic_port)
    }

    /// Reports whether a SYN may be answered with a cookie. The connection is then reset if its
    /// first segment is lost, and the client must retry.
    pub(crate) fn has_cookies(&self) -> bool {
        self.half_open_max < 1_000
    }

    /// Returns the bytes of all requested files, each counted per request.
    pub(crate) fn bytes(&self) -> u64 {
        let requests = self.clients.iter().flat_map(|client| &client.connections);
        let sizes = requests.flatten().filter_map(|&file| self.files.get(file));
        sizes.map(|file| file.size).sum()
    }

    /// Returns the time from [`CALM_US`] within which every operation must complete, in
    /// microseconds.
    pub(crate) fn patience_us(&self) -> u64 {
        let slowest = self.paths.iter().map(|path| path.down.bytes_per_second);
        let sending_us = self.bytes() * 1_000_000 / slowest.min().unwrap_or(1);
        let asked_bytes = |client: &ClientPlan| -> u64 {
            let asked = client.connections.iter().flatten();
            let sizes = asked.filter_map(|&file| self.files.get(file).map(|file| file.size));
            sizes.sum()
        };
        let waiting_us = |client: &ClientPlan| {
            let path = &self.paths[client.path];
            let round_trip_us = path.down.delay_us + path.up.delay_us;
            let windows = asked_bytes(client) / (client.receive_buffer_bytes.min(65_535)) as u64;
            (windows + 1) * round_trip_us
        };
        let reading_us = |client: &ClientPlan| match client.manner {
            Manner::Slow { bytes, every_us } => (asked_bytes(client) / bytes as u64 + 1) * every_us,
            Manner::Pauses { for_us, .. } => for_us * client.connections.len() as u64,
            _ => 0,
        };
        let waiting_us = self.clients.iter().map(waiting_us).max().unwrap_or(0);
        let reading_us = self.clients.iter().map(reading_us).max().unwrap_or(0);
        // Back-off may have doubled a timer just before the calm, and full queues may drop a few
        // more packets.
        200_000_000 + 4 * sending_us + 4 * waiting_us + 2 * reading_us
    }
}

/// Severity of the faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weather {
    Clear,
    Fair,
    Bad,
    Storm,
}

fn draw_files(random: &mut Random) -> Vec<File> {
    let count = random.pick(&[1, 2, 4, 8, 16, 40]);
    let most = random.pick(&[3_000, 50_000, 50_000, 300_000, 300_000, 1_500_000]);
    let trouble = random.pick(&[0, 0, 0, 100_000]);
    let mut draw = || {
        let size = random.pick(&[random.clone().within(0..2), random.clone().across(1..most)]);
        random.next();
        let troubles = [
            Trouble::OpenFails { errno: 12 },
            Trouble::ReadFails {
                from: random.within(0..size + 1),
                errno: 5,
            },
            Trouble::ReadFails {
                from: 0,
                errno: 116,
            },
        ];
        let bad = random.happens(trouble);
        File {
            size,
            trouble: if bad {
                random.pick(&troubles)
            } else {
                Trouble::Nothing
            },
            settled: !random.one_in(8),
        }
    };
    (0..count).map(|_| draw()).collect()
}

fn draw_deaths(random: &mut Random, files: usize) -> Vec<Death> {
    // The supervisor's back-off doubles with each restart.
    let mut gone_us = random.pick(&[1, 1_000, 20_000]);
    let short = random.one_in(3);
    let count = random.pick(&[0, 0, 1, 4, 8]);
    let draw = |_| {
        gone_us *= 2;
        let (turns, departures) = if short {
            (random.across(1..12), random.across(1..4))
        } else {
            (random.across(1..2_000), random.across(1..500))
        };
        let by_turn = random.one_in(2);
        Death {
            turn: if by_turn { turns } else { u64::MAX },
            departures: if by_turn { u64::MAX } else { departures },
            events: random.pick(&[0, 1, u32::MAX]),
            gone_us,
            is_noticed: true,
            replaces: random
                .one_in(8)
                .then(|| random.within(0..files as u64) as usize),
        }
    };
    (0..count).map(draw).collect()
}

impl DiskPlan {
    fn draw(random: &mut Random, weather: Weather) -> DiskPlan {
        DiskPlan {
            depth_max: random.pick(&[1, 4, 32]),
            latency_us: random.pick(&[0..1, 20..100, 100..5_000]),
            slow_ppm: match weather {
                Weather::Clear => 0,
                _ => random.pick(&[0, 10_000, 200_000]),
            },
            slow_us: random.pick(&[5_000..50_000, 100_000..3_000_000]),
            refuses_ppm: random.pick(&[0, 0, 0, 100_000]),
        }
    }
}

impl PortPlan {
    fn draw(random: &mut Random, weather: Weather) -> PortPlan {
        let often = match weather {
            Weather::Clear => [0; 4],
            _ => [0, 0, 1_000, 50_000],
        };
        PortPlan {
            busy_ppm: random.pick(&often),
            busy_us: random.pick(&[1..50, 100..3_000, 1_000..100_000]),
            drop_ppm: random.pick(&often),
            bytes_per_second: None,
            seed: random.next(),
        }
    }
}

impl PathPlan {
    fn draw(random: &mut Random, weather: Weather) -> PathPlan {
        let bytes_per_second = random.across(30_000..125_000_000);
        let delay_us = random.across(20..150_000);
        let mtu = random.pick(&[9000, 9000, 9000, 1500, 1400, 1280]);
        // Asymmetric paths: the way back is slower, longer, or has other faults.
        let mut up_rate = bytes_per_second;
        let mut up_delay_us = delay_us;
        let mut up_weather = weather;
        if random.one_in(3) {
            up_rate = (bytes_per_second / random.pick(&[1, 4, 20])).max(20_000);
            up_delay_us = random.across(20..150_000);
            up_weather = random.pick(&[Weather::Clear, weather, Weather::Bad]);
        }
        PathPlan {
            down: LinkPlan::draw(random, weather, bytes_per_second, delay_us, mtu),
            up: LinkPlan::draw(random, up_weather, up_rate, up_delay_us, mtu),
        }
    }
}

impl LinkPlan {
    fn draw(
        random: &mut Random,
        weather: Weather,
        bytes_per_second: u64,
        delay_us: u64,
        mtu: usize,
    ) -> LinkPlan {
        let delay_bytes = bytes_per_second * 2 * delay_us / 1_000_000;
        let queue_bytes_max =
            (delay_bytes * random.pick(&[1, 2, 4]) / 2).max(random.pick(&[20_000, 60_000]));
        LinkPlan {
            bytes_per_second,
            delay_us,
            queue_bytes_max,
            mark_bytes: random.one_in(2).then_some(queue_bytes_max / 3),
            mtu,
            tells_too_big: random.one_in(2),
            faults: Faults::draw(random, weather, delay_us),
        }
    }
}

impl Faults {
    fn draw(random: &mut Random, weather: Weather, delay_us: u64) -> Faults {
        let often = match weather {
            Weather::Clear => return Faults::default(),
            Weather::Fair => 10_000,
            Weather::Bad => 50_000,
            Weather::Storm => 200_000,
        };
        let rate = |random: &mut Random| {
            if random.one_in(2) {
                random.across(100..often) as u32
            } else {
                0
            }
        };
        let mut faults = Faults {
            loss_ppm: rate(random),
            burst_begins_ppm: rate(random) / 10,
            burst_ends_ppm: random.within(100_000..500_000) as u32,
            duplicate_ppm: rate(random),
            corrupt_ppm: rate(random) / 4,
            reorder_ppm: rate(random),
            reorder_us: 1..(delay_us * random.pick(&[1, 2, 8]) / 4).max(50),
            black_holes: Vec::new(),
        };
        let holes = match weather {
            Weather::Storm => random.within(0..4),
            Weather::Bad => random.within(0..2),
            _ => 0,
        };
        for _ in 0..holes {
            let begins_us = random.within(0..CALM_US / 2);
            let lasts_us = random.across(10_000..8_000_000);
            faults.black_holes.push(begins_us..begins_us + lasts_us);
        }
        faults
    }
}

impl ClientPlan {
    fn draw(random: &mut Random, files: &[File], paths: &[PathPlan]) -> ClientPlan {
        let missing = random.one_in(10);
        let ask = |random: &mut Random| match missing && random.one_in(4) {
            // Drawn from a clone, so that the rest of a seed's scenario stays the same.
            true if random.clone().one_in(2) => files.len() + DIRECTORY,
            true => files.len() + MISSING,
            false => random.within(0..files.len() as u64) as usize,
        };
        let connections = (0..random.pick(&[1, 1, 1, 2, 3]))
            .map(|_| {
                let requests = random.pick(&[1, 1, 2, 3, 8]);
                (0..requests).map(|_| ask(random)).collect()
            })
            .collect();
        let after_bytes = random.across(1..200_000);
        let receive_buffer_bytes = random.pick(&[4_000, 65_535, 128 << 10, 128 << 10, 1 << 20]);
        let manner = match random.within(0..20) {
            0 | 1 => {
                // A full receive buffer is read within a minute.
                let bytes = random.across(100..20_000);
                let every_us_max = bytes * 60_000_000 / receive_buffer_bytes as u64;
                Manner::Slow {
                    bytes: bytes as usize,
                    every_us: random.across(1_000..100_000).min(every_us_max),
                }
            }
            2 | 3 => Manner::Pauses {
                after_bytes,
                for_us: random.across(100_000..20_000_000),
            },
            4 => Manner::Resets { after_bytes },
            5 => Manner::Vanishes { after_bytes },
            _ => Manner::Steady,
        };
        ClientPlan {
            path: random.within(0..paths.len() as u64) as usize,
            ipv6: random.one_in(3),
            on_link: random.one_in(3),
            begins_us: random.pick(&[0, random.clone().within(0..2_000_000)]),
            connections,
            pipelines: random.one_in(3),
            manner,
            parting: random.pick(&[
                Parting::ClientFirst,
                Parting::ServerFirst,
                Parting::HalfClose,
            ]),
            mtu: random.pick(&[1500, 1500, 1500, 9000, 1280]),
            receive_buffer_bytes,
            timestamps: !random.one_in(6),
            ecn: random.pick(&[EcnPolicy::Offer, EcnPolicy::Accept, EcnPolicy::Off]),
            window_scaling: !random.one_in(6),
            time_wait_us: random.pick(&[1_000, 60_000_000]),
            merges_us: None,
            tls: None,
            quic: None,
        }
    }
}

impl TlsPlan {
    /// Returns the application protocol that it offers.
    pub(crate) fn protocol(self) -> &'static str {
        match self.http2 {
            Some(_) => "h2",
            None => "http/1.1",
        }
    }

    fn draw(random: &mut Random) -> TlsPlan {
        let version = random.pick(&[Version::Tls13, Version::Tls13, Version::Tls12]);
        let cipher = random.pick(&[
            Cipher::Aes128Gcm,
            Cipher::Aes256Gcm,
            Cipher::ChaCha20Poly1305,
        ]);
        let wears = random.one_in(3);
        let updates_every_bytes = random.across(1_000..200_000);
        let updates = random.one_in(3);
        // Drawn from a clone, so that the rest of a seed's scenario stays the same.
        let mut http2 = random.clone();
        let window_bytes = http2.pick(&[1000, 65_535, 65_535, 1 << 30]);
        TlsPlan {
            suite: Suite { version, cipher },
            wears: wears && version == Version::Tls13,
            updates_every_bytes: updates.then_some(updates_every_bytes),
            record_bytes: random.pick(&[16_384, 16_384, 100, 7]),
            padding_bytes: random.pick(&[0, 0, 1, 200]),
            says_close: !random.one_in(4),
            http2: http2.one_in(3).then_some(window_bytes),
        }
    }
}

impl QuicPlan {
    fn draw(random: &mut Random, receive_buffer_bytes: usize) -> QuicPlan {
        let stream_window_bytes = receive_buffer_bytes as u32;
        let some = |random: &mut Random, of| {
            let bytes = random.across(1..200_000);
            random.one_in(of).then_some(bytes)
        };
        QuicPlan {
            cipher: random.pick(&[
                Cipher::Aes128Gcm,
                Cipher::Aes256Gcm,
                Cipher::ChaCha20Poly1305,
            ]),
            stream_window_bytes,
            window_bytes: stream_window_bytes * random.pick(&[1, 2, 8]),
            updates_every_bytes: some(random, 3).map(|bytes| bytes.max(1_000)),
            moves_after_bytes: some(random, 5),
            moves_over: false,
            stops_after_bytes: some(random, 5),
            says_close: !random.one_in(5),
        }
    }

    /// Returns its cipher suite.
    pub(crate) fn suite(self) -> Suite {
        Suite {
            version: Version::Tls13,
            cipher: self.cipher,
        }
    }
}

impl HostilePlan {
    fn draw(random: &mut Random) -> HostilePlan {
        HostilePlan {
            ipv6: random.one_in(3),
            begins_us: random.within(0..1_000_000),
            acts: random.across(10..300) as u32,
            every_us: random.pick(&[1..500, 1_000..100_000]),
        }
    }
}

impl Scenario {
    /// Writes the parameters of QUIC.
    fn write_quic(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.has_preferred {
            writeln!(f, "the server prefers another address")?;
        }
        let how = match self.receptions_are_steered {
            true => "steered",
            false => "handed on",
        };
        for (at_us, receive) in &self.receptions {
            writeln!(
                f,
                "packets of QUIC are opened from {at_us} on: {receive:?}, {how}"
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Scenario {
            workers,
            nic_stacks,
            mtu,
            superpacket_max,
            congestion,
            turn_us,
            contract_loss_ppm,
            restarts,
            cramped,
            ..
        } = self;
        writeln!(
            f,
            "server: {workers} workers, MTU {mtu}, superpackets of {superpacket_max}, \
             {congestion:?}, turns {turn_us:?} us, contract loses {contract_loss_ppm} ppm, \
             restarts {restarts:?}"
        )?;
        if *nic_stacks > 1 {
            let roots = if self.replicas {
                "copies of one root"
            } else {
                "roots of their own"
            };
            writeln!(f, "{nic_stacks} NIC stacks, with {roots}")?;
        }
        if let Some(parted_max) = self.parted_max {
            let how = match self.parts_are_steered {
                true => "steered",
                false => "handed on",
            };
            writeln!(
                f,
                "workers run the end of {parted_max} connections each, {how}"
            )?;
        }
        if let Some(form) = self.setup {
            writeln!(f, "workers answer SYNs: {form:?}")?;
        }
        if let Some(cramped) = cramped {
            writeln!(f, "rings of the least size: {cramped:?}")?;
        }
        if let Some(control) = &self.control {
            writeln!(f, "two machines: {control:?}")?;
        }
        writeln!(f, "port of the host: {:?}", self.host_port)?;
        writeln!(f, "ports of the workers: {:?}", self.nic_port)?;
        writeln!(f, "disk: {:?}", self.disk)?;
        for (number, loads) in self.loads.iter().enumerate() {
            writeln!(f, "load of worker {number}, from behind: {loads:?}")?;
        }
        self.write_quic(f)?;
        for (at_us, number, how) in &self.replacements {
            writeln!(f, "file f{number} is {how:?} at {at_us}")?;
        }
        for (nic, deaths) in self.deaths.iter().enumerate() {
            for death in deaths {
                writeln!(f, "NIC process {nic} ends: {death:?}")?;
            }
        }
        for (number, file) in self.files.iter().enumerate() {
            writeln!(f, "file f{number}: {} bytes, {:?}", file.size, file.trouble)?;
        }
        for (number, path) in self.paths.iter().enumerate() {
            writeln!(f, "path {number}: down {:?}", path.down)?;
            writeln!(f, "path {number}: up {:?}", path.up)?;
        }
        for (number, client) in self.clients.iter().enumerate() {
            writeln!(f, "client {number}: {client:?}")?;
        }
        for (number, hostile) in self.hostiles.iter().enumerate() {
            writeln!(f, "hostile {number}: {hostile:?}")?;
        }
        Ok(())
    }
}
