//! Tables, ratios, and whether the promises are kept.

use std::fmt::{Display, Formatter, Write as _};

use serde::Serialize;

use super::{HandshakeRun, Kind, Settings, kinds};
use crate::run::Run;
use crate::table::{SERVER_HEADINGS, Spread, server_cells, spread_of, verdict};

pub(super) const SPLITWAY: &str = "splitway";
pub(super) const NGINX: &str = "nginx";
pub(super) const LIGHTTPD: &str = "lighttpd";

/// Names of the servers, and of their processes.
const SERVERS: [(&str, &[&str]); 3] = [
    (SPLITWAY, &["host", "nic"]),
    (NGINX, &["worker"]),
    (LIGHTTPD, &["server"]),
];

/// What is promised of both processes together: their CPU time per gigabyte, as a part of that of nginx's worker.
const BOTH_RATIO_MAX: f64 = 0.35;

/// What is promised of the host process alone.
const HOST_RATIO_MAX: f64 = 1.0 / 40.0;

/// What is promised of throughput, as a multiple of nginx's.
const THROUGHPUT_RATIO_MIN: f64 = 2.0;

/// What is promised of handshakes, per second and per second of CPU time, as a multiple of nginx's.
const HANDSHAKE_RATIO_MIN: f64 = 1.0;

const NOTE: &str = "\
CPU time is user and system time of all threads of a process. Servers run on one core, the client on another, with
what it receives. The client decrypts one response in a hundred, and counts the records of the others; it verifies one
handshake in a hundred. Where a server's core is not busy all the time, it is the client that was slow, and its rate says
little. Machines are noisy: compare ratios of one invocation.";

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    settings: Settings,
    pub(super) runs: Vec<Run>,
    pub(super) handshakes: Vec<HandshakeRun>,
}

/// What is told of a run of handshakes.
type Value = fn(&HandshakeRun) -> f64;

impl HandshakeRun {
    fn per_s(&self) -> f64 {
        self.load.handshakes as f64 / self.load.elapsed_ns as f64 * 1e9
    }

    fn cpu_ns(&self) -> u64 {
        self.processes.iter().map(|process| process.cpu_ns).sum()
    }

    fn per_cpu_s(&self) -> f64 {
        self.load.handshakes as f64 / self.cpu_ns() as f64 * 1e9
    }

    /// The part of its core that the server has used.
    fn busy(&self) -> f64 {
        self.cpu_ns() as f64 / self.load.elapsed_ns as f64
    }
}

impl Display for HandshakeRun {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:9} {:7} {:6.0} handshakes/s  {:6.0} per CPU-s  {} verified",
            self.server,
            self.kind.name(),
            self.per_s(),
            self.per_cpu_s(),
            self.load.verified
        )
    }
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::New => "new",
            Kind::Resumed => "resumed",
        }
    }
}

impl Report {
    pub(super) fn new(settings: Settings) -> Report {
        Report {
            settings,
            runs: Vec::new(),
            handshakes: Vec::new(),
        }
    }

    fn spread(&self, server: &str, value: impl Fn(&Run) -> f64) -> Spread {
        spread_of(&self.runs, server, value)
    }

    /// The median of Splitway's runs against that of another's.
    fn ratio(&self, peer: &str, value: fn(&Run) -> f64) -> f64 {
        self.spread(SPLITWAY, value).median / self.spread(peer, value).median
    }

    fn handshake_spread(&self, server: &str, kind: Kind, value: Value) -> Spread {
        let runs = self.handshakes.iter();
        let runs = runs.filter(|run| run.server == server && run.kind == kind);
        Spread::of(runs.map(value))
    }

    fn handshake_ratio(&self, peer: &str, kind: Kind, value: Value) -> f64 {
        let median = |server| self.handshake_spread(server, kind, value).median;
        median(SPLITWAY) / median(peer)
    }

    pub(super) fn markdown(&self) -> String {
        let mut text = String::new();
        let mut line = |words: String| {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{words}");
        };
        let settings = &self.settings;
        line(format!(
            "TLS 1.3, AES-256-GCM, ECDSA P-256; {} rounds of {} s; {} files of {} bytes, {} keep-alive connections; medians (least–most)\n",
            settings.rounds.count(),
            settings.rounds.seconds(),
            settings.files,
            settings.file_bytes,
            settings.connections,
        ));
        line(SERVER_HEADINGS.into());
        line("|---|---|---|---|---|".into());
        for (server, processes) in SERVERS {
            line(server_cells(&self.runs, server, processes));
        }
        line(String::new());
        line("| Server | Handshakes | per s | per CPU-s | its core busy |".into());
        line("|---|---|---|---|---|".into());
        for (server, _) in SERVERS {
            for &kind in kinds(server) {
                let spread = |value| self.handshake_spread(server, kind, value);
                line(format!(
                    "| {server} | {} | {} | {} | {} |",
                    kind.name(),
                    spread(HandshakeRun::per_s).cell(0),
                    spread(HandshakeRun::per_cpu_s).cell(0),
                    spread(HandshakeRun::busy).cell(2),
                ));
            }
        }
        line(String::new());
        line("| Splitway against | nginx | Promised | | lighttpd |".into());
        line("|---|---|---|---|---|".into());
        for row in self.rows() {
            line(row);
        }
        line(format!("\n{NOTE}"));
        text
    }

    /// Against nginx, which the promises are about, and against lighttpd.
    fn rows(&self) -> Vec<String> {
        let row = |what: String, [nginx, lighttpd]: [f64; 2], promised: Promised| {
            let met = verdict(promised.is_met(nginx));
            // Not everything is measured with both.
            let lighttpd = match lighttpd.is_nan() {
                true => String::new(),
                false => format!("{lighttpd:.3}"),
            };
            format!("| {what} | {nginx:.3} | {promised} | {met} | {lighttpd} |")
        };
        let peers = [NGINX, LIGHTTPD];
        let host = self.spread(SPLITWAY, |run| run.process_s_per_gb("host"));
        let mut rows = vec![
            row(
                "host + NIC CPU per GB".into(),
                peers.map(|peer| self.ratio(peer, Run::server_s_per_gb)),
                Promised::AtMost(BOTH_RATIO_MAX),
            ),
            row(
                "host CPU per GB".into(),
                peers.map(|peer| host.median / self.spread(peer, Run::server_s_per_gb).median),
                Promised::AtMost(HOST_RATIO_MAX),
            ),
            row(
                "throughput".into(),
                peers.map(|peer| self.ratio(peer, Run::gbit_per_s)),
                Promised::AtLeast(THROUGHPUT_RATIO_MIN),
            ),
        ];
        let values: [(_, Value); 2] = [
            ("per s", HandshakeRun::per_s),
            ("per CPU-s", HandshakeRun::per_cpu_s),
        ];
        for kind in [Kind::New, Kind::Resumed] {
            for (unit, value) in values {
                rows.push(row(
                    format!("{} handshakes {unit}", kind.name()),
                    peers.map(|peer| self.handshake_ratio(peer, kind, value)),
                    Promised::AtLeast(HANDSHAKE_RATIO_MIN),
                ));
            }
        }
        rows
    }
}

/// A bound of a ratio.
#[derive(Clone, Copy)]
enum Promised {
    AtMost(f64),
    AtLeast(f64),
}

impl Promised {
    fn is_met(self, ratio: f64) -> bool {
        match self {
            Promised::AtMost(most) => ratio <= most,
            Promised::AtLeast(least) => ratio >= least,
        }
    }
}

impl Display for Promised {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Promised::AtMost(most) => write!(f, "at most {most}"),
            Promised::AtLeast(least) => write!(f, "at least {least}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Outcome;
    use crate::run::ProcessCost;
    use crate::tls::handshakes;

    fn cost(name: &'static str, cpu_ns: u64) -> ProcessCost {
        ProcessCost {
            name,
            cpu_ns,
            memory_bytes: 1,
            cache_bytes: 1,
        }
    }

    fn run(server: &'static str, body_bytes: u64, processes: &[(&'static str, u64)]) -> Run {
        Run {
            server,
            connections: 64,
            load: Outcome {
                body_bytes,
                responses: 1000,
                compared: 10,
                elapsed_ns: 1_000_000_000,
            },
            processes: processes.iter().map(|(name, ns)| cost(name, *ns)).collect(),
            machine_ns: 1_000_000_000,
            interrupt_ns: 0,
            device_read_bytes: 0,
        }
    }

    fn greeted(server: &'static str, kind: Kind, handshakes: u64, cpu_ns: u64) -> HandshakeRun {
        HandshakeRun {
            server,
            kind,
            load: handshakes::Outcome {
                handshakes,
                verified: 1,
                elapsed_ns: 1_000_000_000,
            },
            processes: vec![cost("host", cpu_ns)],
        }
    }

    fn report(gb: u64, nic_ns: u64, new: u64) -> Report {
        const GB: u64 = 1_000_000_000;
        let settings = Settings {
            rounds: crate::rounds::Rounds::quick(),
            connections: 64,
            files: 200,
            file_bytes: 500_000,
            splitway: Vec::new(),
            output: None,
        };
        let mut report = Report::new(settings);
        let splitway = [("host", 25_000_000 * gb), ("nic", nic_ns * gb)];
        report.runs = vec![
            run(SPLITWAY, gb * GB, &splitway),
            run(NGINX, GB, &[("worker", GB)]),
            run(LIGHTTPD, GB, &[("server", 2 * GB)]),
        ];
        for server in [NGINX, LIGHTTPD] {
            for &kind in kinds(server) {
                report.handshakes.push(greeted(server, kind, 4000, GB));
            }
        }
        report
            .handshakes
            .push(greeted(SPLITWAY, Kind::New, new, GB));
        report
            .handshakes
            .push(greeted(SPLITWAY, Kind::Resumed, 8000, GB / 2));
        report
    }

    #[test]
    fn the_table_says_which_promises_are_kept() {
        let kept = report(2, 325_000_000, 4000).markdown();
        for row in [
            "| host + NIC CPU per GB | 0.350 | at most 0.35 | met | 0.175 |",
            "| host CPU per GB | 0.025 | at most 0.025 | met | 0.013 |",
            "| throughput | 2.000 | at least 2 | met | 2.000 |",
            "| new handshakes per s | 1.000 | at least 1 | met | 1.000 |",
            "| resumed handshakes per CPU-s | 4.000 | at least 1 | met |  |",
            "| splitway | resumed | 8000 (8000–8000) | 16000 (16000–16000) | 0.50 (0.50–0.50) |",
        ] {
            assert!(kept.contains(row), "{row}\n{kept}");
        }
        let broken = report(1, 326_000_000, 3999).markdown();
        for row in [
            "| host + NIC CPU per GB | 0.351 | at most 0.35 | NOT MET |",
            "| throughput | 1.000 | at least 2 | NOT MET |",
            "| new handshakes per s | 1.000 | at least 1 | NOT MET |",
        ] {
            assert!(broken.contains(row), "{row}\n{broken}");
        }
    }
}
