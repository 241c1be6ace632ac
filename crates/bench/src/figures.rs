//! IO-TCP's figures that are a throughput over something, each with the servers that it compares: figures 2, 7, 8, 9, 11
//! and 12b. They differ in a few numbers, which stand in [`FIGURES`].

use serde::Serialize;
use testbed::Result;

use crate::bed::{Bed, Ground, LIGHTTPD, NGINX, SPLITWAY, Wanted};
use crate::paper;
use crate::plain;
use crate::results::{Plot, Published, Results};
use crate::rounds::Rounds;
use crate::run::{self, Server};
use crate::table::{self, Conditions};

/// A figure of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    Figure2,
    Figure7,
    Figure8a,
    Figure8b,
    Figure9,
    Figure11a,
    Figure11b,
    Figure12b,
}

/// What is measured.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub(crate) struct Settings {
    #[command(flatten)]
    #[serde(flatten)]
    rounds: Rounds,
    /// Points on the x axis [default: those of the paper, or one or two of them if it is to be quick]
    #[arg(long, value_delimiter = ',')]
    points: Vec<u64>,
    /// Connections, where that is not the x axis [default: 1600 as in the paper, or 64 if it is to be quick]
    #[arg(long)]
    connections: Option<usize>,
    /// A further argument for `splitway serve`, such as `--splitway=--cache=512M`; may be repeated
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    splitway: Vec<String>,
}

/// What stands on the x axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Axis {
    FileBytes,
    Connections,
    Cores,
    AckDelayUs,
}

/// How a figure is measured.
struct Figure {
    name: Name,
    /// What its files are called.
    file: &'static str,
    title: &'static str,
    axis: Axis,
    /// Those of the paper, where it names them.
    points: &'static [u64],
    quick_points: &'static [u64],
    /// If that is not the x axis.
    file_bytes: u64,
    servers: &'static [&'static str],
    plain: bool,
    tls: bool,
    published: &'static [Published],
    /// What is different from the paper, beside the machine.
    note: &'static str,
}

const ALL: &[&str] = &[SPLITWAY, NGINX, LIGHTTPD];

const FIGURES: [Figure; 8] = [
    Figure {
        name: Name::Figure2,
        file: "figure2",
        title: "Figure 2: throughput of lighttpd and nginx on one core, over file sizes",
        axis: Axis::FileBytes,
        points: &[100_000, 300_000, 500_000, 1_000_000],
        quick_points: &[500_000],
        file_bytes: 0,
        servers: &[NGINX, LIGHTTPD],
        plain: true,
        tls: false,
        published: paper::FIGURE_2,
        note: "The paper's files come from an NVMe disk, these from memory: the disk is what its figure 2 is about, and is \
               measured by `splitway bench disk` and, by function, by `table1`.",
    },
    Figure {
        name: Name::Figure7,
        file: "figure7",
        title: "Figure 7: throughput over the servers' cores, files of 500 KB, plain and over TLS",
        axis: Axis::Cores,
        points: &[1, 2, 4, 6, 8, 10],
        quick_points: &[1],
        file_bytes: 500_000,
        servers: ALL,
        plain: true,
        tls: true,
        published: paper::FIGURE_7,
        note: "The client has a core of the same machine, so that servers have one core less than there are; points with \
               more are left out. Splitway's host and NIC process share the servers' cores, where IO-TCP's NIC stack has 8 of its \
               own on the card; files come from memory, not from four disks; TLS is 1.3 with handshakes, not 1.2 \
               without.",
    },
    Figure {
        name: Name::Figure8a,
        file: "figure8a",
        title: "Figure 8a: throughput over file sizes",
        axis: Axis::FileBytes,
        points: &[100_000, 300_000, 500_000, 1_000_000],
        quick_points: &[100_000, 1_000_000],
        file_bytes: 0,
        servers: ALL,
        plain: true,
        tls: false,
        published: paper::FIGURE_8A,
        note: "The paper shows each server with as many cores as it takes to the most that it reaches; here each has one core, \
               and files come from memory.",
    },
    Figure {
        name: Name::Figure8b,
        file: "figure8b",
        title: "Figure 8b: throughput over file sizes, TLS",
        axis: Axis::FileBytes,
        points: &[100_000, 300_000, 500_000, 1_000_000],
        quick_points: &[500_000],
        file_bytes: 0,
        servers: ALL,
        plain: false,
        tls: true,
        published: paper::FIGURE_8B,
        note: "The paper shows each server with as many cores as it takes to the most that it reaches, encrypts IO-TCP's \
               packets in the card's hardware, and leaves the handshake out. Here each server has one core, which encrypts \
               as well, all speak TLS 1.3, and files come from memory.",
    },
    Figure {
        name: Name::Figure9,
        file: "figure9",
        title: "Figure 9: TLS throughput over connections, files of 500 KB",
        axis: Axis::Connections,
        points: &[64, 1000, 2000, 3000, 4000],
        quick_points: &[1000],
        file_bytes: 500_000,
        servers: &[SPLITWAY, NGINX],
        plain: false,
        tls: true,
        published: paper::FIGURE_9,
        note: "The paper compares one host core with two, this one with nginx; 64 connections are added, which the targets \
               compare with.",
    },
    Figure {
        name: Name::Figure11a,
        file: "figure11a",
        title: "Figure 11a: throughput over connections, files of 300 KB",
        axis: Axis::Connections,
        points: &[1, 2, 4, 8, 16, 32, 64, 128, 256],
        quick_points: &[64],
        file_bytes: 300_000,
        servers: ALL,
        plain: true,
        tls: false,
        published: paper::FIGURE_11A,
        note: "Files come from memory, not from four disks. With one connection the servers' core sleeps between requests, \
               and what counts is how fast processes wake up.",
    },
    Figure {
        name: Name::Figure11b,
        file: "figure11b",
        title: "Figure 11b: throughput over connections, files of 10 KB",
        axis: Axis::Connections,
        points: &[1, 2, 4, 8, 16, 32, 64, 128, 256],
        quick_points: &[1, 64],
        file_bytes: 10_000,
        servers: ALL,
        plain: true,
        tls: false,
        published: paper::FIGURE_11B,
        note: "Files come from memory, not from four disks.",
    },
    Figure {
        name: Name::Figure12b,
        file: "figure12b",
        title: "Figure 12b: throughput over additional delay of the control plane, files of 500 KB",
        axis: Axis::AckDelayUs,
        points: &[0, 5, 10, 20, 50, 100, 200],
        quick_points: &[0, 100],
        file_bytes: 500_000,
        servers: &[SPLITWAY],
        plain: true,
        tls: false,
        published: &[],
        note: "As in the paper, the delay is work: the host process spins for so long with each frame that it receives \
               (`--ack-delay`). It receives one ACK for each superpacket, and not one for every two packets, so that it takes longer \
               delays to see the effect. The paper names no values; its throughput falls with the delay.",
    },
];

/// Keeps the place of the x axis in tables.
const SIZES: Conditions = &[("file_bytes", "File, bytes")];
const CONNECTIONS: Conditions = &[("connections", "Connections")];
const CORES: Conditions = &[("cores", "Cores")];
const DELAYS: Conditions = &[("ack_delay_us", "Delay of each ACK, µs")];

impl Axis {
    fn conditions(self) -> Conditions {
        match self {
            Axis::FileBytes => SIZES,
            Axis::Connections => CONNECTIONS,
            Axis::Cores => CORES,
            Axis::AckDelayUs => DELAYS,
        }
    }
}

/// The one part of the results.
const PART: &str = "files";

/// So many bytes of files, in at most so many of them: more than the caches of a core have.
const SITE_BYTES: u64 = 100_000_000;
const FILES_MAX: u64 = 2000;

/// What a point is measured with.
#[derive(Clone, Debug, PartialEq)]
struct Scene {
    file_bytes: u64,
    cores: usize,
    ack_delay_us: u64,
}

pub(crate) fn measure(name: Name, settings: &Settings) -> Result<()> {
    let figure = FIGURES.iter().find(|figure| figure.name == name);
    let figure = figure.expect("each has a row");
    let rounds = &settings.rounds;
    let mut results = Results::new(figure.file, figure.title, settings)?;
    let default = if rounds.is_quick() { 64 } else { 1600 };
    let usual_connections = settings.connections.unwrap_or(default);
    let mut standing: Option<(Scene, Ground, Bed)> = None;
    let mut output = None;
    for point in figure.points_of(settings) {
        let scene = figure.scene(point);
        let connections = match figure.axis {
            Axis::Connections => usize::try_from(point).unwrap_or(usize::MAX),
            _ => usual_connections,
        };
        if standing.as_ref().is_none_or(|(is, ..)| *is != scene) {
            if let Some((_, _, bed)) = standing.take() {
                bed.end(&mut results)?;
            }
            let (ground, bed) = set_up(&scene, figure, settings)?;
            bed.describe(&mut results)?;
            output = Some(rounds.output(&ground.output).to_owned());
            standing = Some((scene, ground, bed));
        }
        let (_, ground, bed) = standing.as_ref().expect("it was set up");
        let contenders = figure.contenders(bed)?;
        for (_, server) in &contenders {
            run::warm_up(rounds, server, ground.load(server, connections, 1))?;
        }
        rounds.take_turns(&contenders, |(series, server)| {
            let run = run::run(server, &ground.load(server, connections, rounds.seconds()))?;
            let (axis, _) = figure.axis.conditions()[0];
            eprintln!("{axis} {point}: {series:13} {run}");
            results.add(
                PART,
                series.clone(),
                &[(axis, point as f64)],
                run.measures(),
            );
            Ok(())
        })?;
    }
    if let Some((_, _, bed)) = standing {
        bed.end(&mut results)?;
    }
    report(&mut results, figure);
    match output {
        Some(output) => results.publish(&output),
        None => Ok(()),
    }
}

fn set_up(scene: &Scene, figure: &Figure, settings: &Settings) -> Result<(Ground, Bed)> {
    let files = (SITE_BYTES / scene.file_bytes).clamp(1, FILES_MAX);
    let ground = Ground::prepare(files as usize, scene.file_bytes)?;
    let mut splitway = settings.splitway.clone();
    if scene.ack_delay_us > 0 {
        splitway.push(format!("--ack-delay={}us", scene.ack_delay_us));
    }
    let wanted = Wanted {
        splitway,
        tls: figure.tls,
        cores: scene.cores,
        ..Wanted::default()
    };
    let bed = Bed::start(&ground, &wanted)?;
    Ok((ground, bed))
}

impl Figure {
    /// What is measured of the x axis on this machine.
    fn points_of(&self, settings: &Settings) -> Vec<u64> {
        let points = match (settings.points.as_slice(), settings.rounds.is_quick()) {
            ([], true) => self.quick_points,
            ([], false) => self.points,
            (given, _) => given,
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
        let is_there = |point: &u64| self.axis != Axis::Cores || *point < cores;
        points.iter().copied().filter(is_there).collect()
    }

    fn scene(&self, point: u64) -> Scene {
        let mut scene = Scene {
            file_bytes: self.file_bytes,
            cores: 1,
            ack_delay_us: 0,
        };
        match self.axis {
            Axis::FileBytes => scene.file_bytes = point.max(1),
            Axis::Cores => scene.cores = usize::try_from(point).unwrap_or(1).max(1),
            Axis::AckDelayUs => scene.ack_delay_us = point,
            Axis::Connections => {}
        }
        scene
    }

    /// Who takes turns, and what they are called.
    fn contenders(&self, bed: &Bed) -> Result<Vec<(String, Server)>> {
        let mut contenders = Vec::new();
        let mut add = |servers: [Server; 3], suffix: &str| {
            let wanted = servers.into_iter();
            let wanted = wanted.filter(|server| self.servers.contains(&server.name));
            contenders.extend(wanted.map(|server| (format!("{}{suffix}", server.name), server)));
        };
        if self.plain {
            add(bed.servers()?, "");
        }
        if self.tls {
            add(bed.tls_servers()?, ", TLS");
        }
        Ok(contenders)
    }
}

fn report(results: &mut Results, figure: &Figure) {
    let conditions = figure.axis.conditions();
    table::add(results, PART, conditions);
    let x = conditions[0];
    results.plot(Plot::lines(figure.file, PART, x, ("gbit_per_s", "Gbit/s")));
    results.plot(
        Plot::lines(
            cpu_file(figure.name),
            PART,
            x,
            ("cpu_s_per_gb.server", "CPU s/GB, all processes of a server"),
        )
        .titled(format!("{}: what it costs", figure.title)),
    );
    results.publish_beside(figure.published);
    results.note(figure.note);
    results.note(plain::NOTE);
}

fn cpu_file(name: Name) -> &'static str {
    match name {
        Name::Figure2 => "figure2-cpu",
        Name::Figure7 => "figure7-cpu",
        Name::Figure8a => "figure8a-cpu",
        Name::Figure8b => "figure8b-cpu",
        Name::Figure9 => "figure9-cpu",
        Name::Figure11a => "figure11a-cpu",
        Name::Figure11b => "figure11b-cpu",
        Name::Figure12b => "figure12b-cpu",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::tests::run;

    fn settings(points: &[u64]) -> Settings {
        Settings {
            rounds: Rounds::default(),
            points: points.to_vec(),
            connections: None,
            splitway: Vec::new(),
        }
    }

    #[test]
    fn every_figure_has_a_row_and_points() {
        for figure in &FIGURES {
            let rows = FIGURES.iter().filter(|other| other.name == figure.name);
            assert_eq!(rows.count(), 1);
            assert!(!figure.points_of(&settings(&[])).is_empty() || figure.axis == Axis::Cores);
            assert!(figure.plain || figure.tls);
        }
    }

    #[test]
    fn points_change_what_the_axis_is_about() {
        let of = |name| FIGURES.iter().find(|figure| figure.name == name).unwrap();
        let size = of(Name::Figure8a).scene(300_000);
        assert_eq!(
            (size.file_bytes, size.cores, size.ack_delay_us),
            (300_000, 1, 0)
        );
        let delay = of(Name::Figure12b).scene(50);
        assert_eq!((delay.file_bytes, delay.ack_delay_us), (500_000, 50));
        let connections = of(Name::Figure11b);
        assert_eq!(
            connections.scene(1),
            connections.scene(256),
            "the servers stay"
        );
        assert_eq!(of(Name::Figure7).points_of(&settings(&[1, 100_000])), [1]);
    }

    #[test]
    fn a_figure_has_what_was_published_beside_it() {
        let figure = &FIGURES[1];
        let mut results = Results::new(figure.file, figure.title, &()).unwrap();
        let own = run(SPLITWAY, 1_000_000_000, &[("host", 1)]);
        results.add(PART, SPLITWAY, &[("cores", 1.0)], own.measures());
        report(&mut results, figure);
        let directory = tempfile::tempdir().unwrap();
        results.publish(directory.path()).unwrap();
        let svg = std::fs::read_to_string(directory.path().join("figure7.svg")).unwrap();
        assert!(svg.contains("published: IO-TCP") && svg.contains("splitway"));
        assert!(directory.path().join("figure7-cpu.svg").exists());
    }
}
