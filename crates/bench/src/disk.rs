//! Serving files that are not in memory: Splitway, nginx with `sendfile`, and nginx with direct reads in threads.
//!
//! Before each run the kernel is made to forget every file, and a run asks for each of them once. What came from
//! the disk within it is reported beside the rest.

use std::fmt::Write as _;
use std::fs::File;
use std::path::PathBuf;

use rustix::fs::{Advice, fadvise};
use rustix::process::Signal;
use serde::Serialize;
use testbed::site::Site;
use testbed::{Context, Result};

use crate::publish::publish;
use crate::run::{self, Run, Server};
use crate::table::{SERVER_HEADINGS, Spread, server_cells, spread_of, verdict};
use crate::{Ground, load, splitway_server, start_nginx, start_splitway};

/// What is promised: CPU time per gigabyte of both processes, as a part of that of nginx's worker with `sendfile`.
const BOTH_RATIO_MAX: f64 = 1.2;

/// What is measured.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub(crate) struct Settings {
    /// Fewer and shorter runs: enough to see that nothing is broken, too few to claim anything
    #[arg(long)]
    quick: bool,
    /// Runs against each server; 5, or 2 if it is to be quick
    #[arg(long)]
    rounds: Option<usize>,
    /// Most seconds of each run; it ends earlier when all files have been served
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Connections, each asking for file after file
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// Number of files; 5000, or 3000 if it is to be quick: more than any cache holds that a server has unasked. They take
    /// that much room on the disk of target/bench
    #[arg(long)]
    files: Option<usize>,
    /// Size of each file, in bytes
    #[arg(long, default_value_t = 1_000_000)]
    file_bytes: u64,
    /// A further argument for `splitway serve`, such as `--splitway=--workers=2`; may be repeated
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    splitway: Vec<String>,
    /// Where tables go [default: target/bench]
    #[arg(long, value_name = "DIRECTORY")]
    output: Option<PathBuf>,
}

impl Settings {
    fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 2 } else { 5 }).max(1)
    }

    fn files(&self) -> usize {
        self.files.unwrap_or(if self.quick { 3000 } else { 5000 })
    }
}

/// Everything that was measured.
#[derive(Debug, Serialize)]
struct Disk {
    settings: Settings,
    runs: Vec<Run>,
}

/// Names of the servers, and of their processes.
const SERVERS: [(&str, &[&str]); 3] = [
    ("splitway", &["host", "nic"]),
    (SENDFILE, &["worker"]),
    (DIRECT, &["worker"]),
];
const SENDFILE: &str = "nginx sendfile";
const DIRECT: &str = "nginx aio threads, directio";

pub(crate) fn measure(settings: &Settings) -> Result<()> {
    let ground = Ground::prepare(settings.files(), settings.file_bytes)?;
    let files = open_all(&ground.site, settings.files())?;
    let mut splitway = start_splitway(&ground, &settings.splitway, false)?;
    let nginx = start_nginx(&ground, &splitway, false, None)?;
    let worker = nginx.worker()?;
    let servers = [
        splitway_server(&splitway),
        Server::new(SENDFILE, nginx.address(), [("worker", worker)]),
        Server::new(DIRECT, nginx.direct_address(), [("worker", worker)]),
    ];
    let mut disk = Disk {
        settings: settings.clone(),
        runs: Vec::new(),
    };
    for round in 0..settings.rounds() {
        for place in 0..servers.len() {
            let server = &servers[(place + round) % servers.len()];
            forget(&files)?;
            let load = load::Settings {
                server: server.address,
                connections: settings.connections,
                files: settings.files(),
                file_bytes: settings.file_bytes,
                seconds: settings.seconds,
                discard: false,
                once: true,
                certificate: None,
            };
            let run = run::run(server, &load)?;
            eprintln!("{run}  {:.2} from the disk", run.device_share());
            disk.runs.push(run);
        }
    }
    splitway.end_with(Signal::TERM)?;
    let output = settings.output.as_ref().unwrap_or(&ground.output);
    publish(output, "disk", disk.markdown(), &disk, [])
}

/// Opens what the site holds, with nothing left to be written.
fn open_all(site: &Site, count: usize) -> Result<Vec<File>> {
    let open = |index: usize| {
        let path = site.root().join(load::file_name(index));
        File::open(&path)
            .and_then(|file| file.sync_data().map(|()| file))
            .context(|| format!("opening {}", path.display()))
    };
    (0..count).map(open).collect()
}

/// Has the kernel drop what it keeps of these files.
fn forget(files: &[File]) -> Result<()> {
    files.iter().try_for_each(|file| {
        fadvise(file, 0, None, Advice::DontNeed).context(|| "dropping a file from memory".into())
    })
}

impl Disk {
    fn spread(&self, server: &str, value: impl Fn(&Run) -> f64) -> Spread {
        spread_of(&self.runs, server, value)
    }

    fn markdown(&self) -> String {
        let mut text = String::new();
        let mut line = |words: String| {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{words}");
        };
        let settings = &self.settings;
        line(format!(
            "{} files of {} bytes, not in memory, each asked for once in a run; {} connections; {} rounds; medians (least–most)\n",
            settings.files(),
            settings.file_bytes,
            settings.connections,
            settings.rounds(),
        ));
        line(format!("{SERVER_HEADINGS} from the disk |"));
        line("|---|---|---|---|---|---|".into());
        for (server, processes) in SERVERS {
            line(format!(
                "{} {} |",
                server_cells(&self.runs, server, processes),
                self.spread(server, Run::device_share).cell(2),
            ));
        }
        line(String::new());
        line("| Splitway against | CPU s/GB, server | Promised | | CPU s/GB, machine |".into());
        line("|---|---|---|---|---|".into());
        for (peer, promised) in [(SENDFILE, Some(BOTH_RATIO_MAX)), (DIRECT, None)] {
            let ratio = |value: fn(&Run) -> f64| {
                self.spread("splitway", value).median / self.spread(peer, value).median
            };
            let server = ratio(Run::server_s_per_gb);
            let promise = promised.map_or_else(
                || "| ".to_owned(),
                |most| format!("at most {most} | {}", verdict(server <= most)),
            );
            let machine = ratio(Run::machine_s_per_gb);
            line(format!(
                "| {peer} | {server:.3} | {promise} | {machine:.3} |"
            ));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Outcome;
    use crate::run::ProcessCost;

    fn run(server: &'static str, name: &'static str, cpu_ns: u64) -> Run {
        Run {
            server,
            connections: 64,
            load: Outcome {
                body_bytes: 1_000_000_000,
                responses: 1000,
                compared: 10,
                elapsed_ns: 1_000_000_000,
            },
            processes: vec![ProcessCost {
                name,
                cpu_ns,
                memory_bytes: 1,
                cache_bytes: 1,
            }],
            machine_ns: 1_000_000_000,
            interrupt_ns: 0,
            device_read_bytes: 500_000_000,
        }
    }

    fn disk(nic_ns: u64) -> Disk {
        Disk {
            settings: Settings {
                quick: true,
                rounds: None,
                seconds: 10,
                connections: 64,
                files: None,
                file_bytes: 1_000_000,
                splitway: Vec::new(),
                output: None,
            },
            runs: vec![
                run("splitway", "nic", nic_ns),
                run(SENDFILE, "worker", 500_000_000),
                run(DIRECT, "worker", 1_000_000_000),
            ],
        }
    }

    #[test]
    fn the_table_says_whether_the_promise_is_kept_and_what_came_from_the_disk() {
        let kept = disk(600_000_000).markdown();
        assert!(kept.contains("| nginx sendfile | 1.200 | at most 1.2 | met |"));
        assert!(kept.contains("| 0.50 (0.50–0.50) |"), "{kept}");
        let broken = disk(601_000_000).markdown();
        assert!(broken.contains("at most 1.2 | NOT MET |"), "{broken}");
    }
}
