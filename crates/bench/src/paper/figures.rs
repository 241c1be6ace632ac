//! IO-TCP's figures that are a throughput over something, each with the servers that it compares:
//! figures 2, 7, 8, 9, 11 and 12b. They differ in a few numbers, which stand in [`FIGURES`].

use serde::Serialize;
use testbed::Result;

use crate::measure::plan::Plan;
use crate::measure::results::{Bound, Plot, Published, Results, Table};
use crate::measure::rounds::Rounds;
use crate::measure::run::{self, Run, Server};
use crate::measure::spread::Conditions;
use crate::measure::table::{self, COST};
use crate::paper;
use crate::servers::server_set::{LIGHTTPD, NGINX, SPLITWAY, ServerSet, Wanted, Workspace};
use crate::suites::plain;

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

/// The settings of the benchmark.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub(crate) struct Settings {
    #[command(flatten)]
    #[serde(flatten)]
    rounds: Rounds,
    /// Points on the x axis [default: those of the paper, or one or two for quick runs]
    #[arg(long, value_delimiter = ',')]
    points: Vec<u64>,
    /// Connections, unless they are the x axis [default: 1600 as in the paper, or 64 for quick
    /// runs]
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
    /// Base name of its files, and of its further plots: of cost, and over sizes.
    file: &'static str,
    further: (&'static str, &'static str),
    title: &'static str,
    axis: Axis,
    /// Those of the paper, where it names them.
    points: &'static [u64],
    quick_points: &'static [u64],
    /// If that is not the x axis; several have a plot over sizes as well.
    sizes: &'static [u64],
    servers: &'static [&'static str],
    plain: bool,
    tls: bool,
    published: &'static [Published],
    /// Differences from the paper, beside the machine.
    note: &'static str,
}

const ALL: &[&str] = &[SPLITWAY, NGINX, LIGHTTPD];

const RATE: (&str, &str) = ("gbit_per_s", "Gbit/s");

/// Numbers of connections between which the paper states a loss.
const FIGURE_9_ENDS: [f64; 2] = [1000.0, 4000.0];

const FIGURES: [Figure; 8] = [
    Figure {
        name: Name::Figure2,
        file: "figure2",
        further: ("figure2-cpu", "figure2-sizes"),
        title: "Figure 2: throughput of lighttpd and nginx on one core, over file sizes",
        axis: Axis::FileBytes,
        points: &[100_000, 300_000, 500_000, 1_000_000],
        quick_points: &[500_000],
        sizes: &[],
        servers: &[NGINX, LIGHTTPD],
        plain: true,
        tls: false,
        published: paper::FIGURE_2,
        note: "The paper's files come from an NVMe disk, these from memory: the disk is what its \
            figure 2 is about, and is measured by `splitway bench disk` and, by function, by \
            `table1`.",
    },
    Figure {
        name: Name::Figure7,
        file: "figure7",
        further: ("figure7-cpu", "figure7-sizes"),
        title: "Figure 7: throughput over the servers' cores, plain and over TLS",
        axis: Axis::Cores,
        points: &[1, 2, 4, 6, 8, 10],
        quick_points: &[1],
        sizes: &[500_000, 100_000, 300_000, 1_000_000],
        servers: ALL,
        plain: true,
        tls: true,
        published: paper::FIGURE_7,
        note: "The client has a core of the same machine. Where servers have as many cores as \
            there are, one of them is the client's, and what they do there they take from it: look \
            at CPU time at that point, not at throughput. Points with more cores than there are \
            are left out; `cores` draws them by the model. Splitway's host and NIC process share \
            the servers' cores, where IO-TCP's NIC stack has 8 of its own on the card; files come \
            from memory, not from four disks; TLS is 1.3 with handshakes, not 1.2 without. The \
            paper's figure has files of 500 KB; other sizes, which are those of its figure 8, have \
            a plot of their own.",
    },
    Figure {
        name: Name::Figure8a,
        file: "figure8a",
        further: ("figure8a-cpu", "figure8a-sizes"),
        title: "Figure 8a: throughput over file sizes",
        axis: Axis::FileBytes,
        points: &[100_000, 300_000, 500_000, 1_000_000],
        quick_points: &[100_000, 1_000_000],
        sizes: &[],
        servers: ALL,
        plain: true,
        tls: false,
        published: paper::FIGURE_8A,
        note: "The paper shows each server with as many cores as it takes to the most that it \
            reaches; here each has one core, and files come from memory.",
    },
    Figure {
        name: Name::Figure8b,
        file: "figure8b",
        further: ("figure8b-cpu", "figure8b-sizes"),
        title: "Figure 8b: throughput over file sizes, TLS",
        axis: Axis::FileBytes,
        points: &[100_000, 300_000, 500_000, 1_000_000],
        quick_points: &[500_000],
        sizes: &[],
        servers: ALL,
        plain: false,
        tls: true,
        published: paper::FIGURE_8B,
        note: "The paper shows each server with as many cores as it takes to the most that it \
            reaches, encrypts IO-TCP's packets in the card's hardware, and leaves the handshake \
            out. Here each server has one core, which encrypts as well, all speak TLS 1.3, and \
            files come from memory.",
    },
    Figure {
        name: Name::Figure9,
        file: "figure9",
        further: ("figure9-cpu", "figure9-sizes"),
        title: "Figure 9: TLS throughput over connections, files of 500 KB",
        axis: Axis::Connections,
        points: &[64, 1000, 2000, 3000, 4000],
        quick_points: &[64],
        sizes: &[500_000],
        servers: &[SPLITWAY, NGINX],
        plain: false,
        tls: true,
        published: paper::FIGURE_9,
        note: "The paper compares one host core with two, this one with nginx; 64 connections are \
            added, which the targets compare with.",
    },
    Figure {
        name: Name::Figure11a,
        file: "figure11a",
        further: ("figure11a-cpu", "figure11a-sizes"),
        title: "Figure 11a: throughput over connections, files of 300 KB",
        axis: Axis::Connections,
        points: &[1, 2, 4, 8, 16, 32, 64, 128, 256],
        quick_points: &[64],
        sizes: &[300_000],
        servers: ALL,
        plain: true,
        tls: false,
        published: paper::FIGURE_11A,
        note: "Files come from memory, not from four disks. With one connection the servers' core \
            sleeps between requests, and what counts is how fast processes wake up.",
    },
    Figure {
        name: Name::Figure11b,
        file: "figure11b",
        further: ("figure11b-cpu", "figure11b-sizes"),
        title: "Figure 11b: throughput over connections, files of 10 KB",
        axis: Axis::Connections,
        points: &[1, 2, 4, 8, 16, 32, 64, 128, 256],
        quick_points: &[1, 64],
        sizes: &[10_000],
        servers: ALL,
        plain: true,
        tls: false,
        published: paper::FIGURE_11B,
        note: "Files come from memory, not from four disks.",
    },
    Figure {
        name: Name::Figure12b,
        file: "figure12b",
        further: ("figure12b-cpu", "figure12b-sizes"),
        title: "Figure 12b: throughput over additional delay of the control plane, files of 500 KB",
        axis: Axis::AckDelayUs,
        points: &[0, 5, 10, 20, 50, 100, 200],
        quick_points: &[0, 100],
        sizes: &[500_000],
        servers: &[SPLITWAY],
        plain: true,
        tls: false,
        published: &[],
        note: "As in the paper, the delay is work: the host process spins for so long with each \
            frame that it receives (`--ack-delay`). It receives one ACK for each superpacket, and \
            not one for every two packets, so that it takes longer delays to see the effect. The \
            paper names no values; its throughput falls with the delay.",
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

/// Parts of the results: over the x axis, and over sizes of files where the x axis is another and
/// there are several.
const PART: &str = "files";
const OVER_SIZES: &str = "over sizes";

/// Total size of the files, more than the caches of a core hold, and the limit of their number.
const SITE_BYTES: u64 = 100_000_000;
const FILES_MAX: u64 = 2000;

/// Returns the planned duration.
pub(crate) fn plan(name: Name, settings: &Settings) -> Plan {
    let figure = Figure::of(name);
    let mut plan = Plan::new();
    let mut standing = None;
    for Point { x, scene } in figure.points_of(settings) {
        if standing.as_ref() != Some(&scene) {
            plan.files(files_of(scene.file_bytes), scene.file_bytes);
            plan.beds(1);
        }
        let connections = figure.connections(x, settings);
        let (rounds, servers) = (&settings.rounds, figure.servers.len());
        if figure.plain {
            plan.turns(rounds, servers, connections, scene.file_bytes);
        }
        if figure.tls {
            plan.tls_turns(rounds, servers, connections, scene.file_bytes);
        }
        standing = Some(scene);
    }
    plan
}

/// A place on the x axis, and its setup.
#[derive(Clone, Debug, PartialEq)]
struct Point {
    x: u64,
    scene: Scene,
}

/// Setup of the measurement at a point.
#[derive(Clone, Debug, PartialEq)]
struct Scene {
    file_bytes: u64,
    cores: usize,
    ack_delay_us: u64,
}

pub(crate) fn measure(name: Name, settings: &Settings) -> Result<()> {
    let figure = Figure::of(name);
    let rounds = &settings.rounds;
    let mut results = Results::new(figure.file, figure.title, settings)?;
    let mut standing: Option<(Scene, Workspace, ServerSet)> = None;
    let mut output = None;
    for Point { x, scene } in figure.points_of(settings) {
        let connections = figure.connections(x, settings);
        if standing.as_ref().is_none_or(|(is, ..)| *is != scene) {
            if let Some((_, _, server_set)) = standing.take() {
                server_set.end(&mut results)?;
            }
            let (workspace, server_set) = set_up(&scene, figure, settings)?;
            server_set.describe(&mut results)?;
            output = Some(rounds.output(&workspace.output).to_owned());
            standing = Some((scene.clone(), workspace, server_set));
        }
        let (_, workspace, server_set) = standing.as_ref().expect("it was set up");
        let contenders = figure.contenders(server_set)?;
        for (_, server) in &contenders {
            run::warm_up(
                rounds,
                server,
                workspace.load(server, connections, rounds.seconds()),
            )?;
        }
        rounds.take_turns(&contenders, |(series, server)| {
            let run = run::run(
                server,
                &workspace.load(server, connections, rounds.seconds()),
            )?;
            let (axis, _) = figure.axis.conditions()[0];
            eprintln!("{axis} {x}, {} bytes: {series:13} {run}", scene.file_bytes);
            figure.add(
                &mut results,
                &Point {
                    x,
                    scene: scene.clone(),
                },
                series,
                &run,
            );
            Ok(())
        })?;
    }
    if let Some((_, _, server_set)) = standing {
        server_set.end(&mut results)?;
    }
    report(&mut results, figure);
    match output {
        Some(output) => results.publish(&output),
        None => Ok(()),
    }
}

fn files_of(file_bytes: u64) -> usize {
    (SITE_BYTES / file_bytes).clamp(1, FILES_MAX) as usize
}

fn set_up(scene: &Scene, figure: &Figure, settings: &Settings) -> Result<(Workspace, ServerSet)> {
    let workspace = Workspace::prepare(files_of(scene.file_bytes), scene.file_bytes)?;
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
    let server_set = ServerSet::start(&workspace, &wanted)?;
    Ok((workspace, server_set))
}

impl Figure {
    fn of(name: Name) -> &'static Figure {
        let figure = FIGURES.iter().find(|figure| figure.name == name);
        figure.expect("each has a row")
    }

    /// Returns the points that this machine can measure.
    fn points_of(&self, settings: &Settings) -> Vec<Point> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        self.points_with(settings, cores as u64)
    }

    /// Returns the points for a machine with this number of cores.
    fn points_with(&self, settings: &Settings, cores: u64) -> Vec<Point> {
        let is_quick = settings.rounds.is_quick();
        let points = match (settings.points.as_slice(), is_quick) {
            ([], true) => self.quick_points,
            ([], false) => self.points,
            (given, _) => given,
        };
        let is_over_cores = self.axis == Axis::Cores;
        let is_there = |x: &u64| !is_over_cores || *x <= cores;
        let of = |x: u64| {
            // The client shares a core: other sizes add no information.
            let is_shared = is_over_cores && x == cores;
            let sizes = match (self.sizes, is_quick || is_shared) {
                ([], _) => vec![x],
                (sizes, true) => vec![sizes[0]],
                (sizes, false) => sizes.to_vec(),
            };
            sizes.into_iter().map(move |file_bytes| Point {
                x,
                scene: self.scene(x, file_bytes),
            })
        };
        points
            .iter()
            .copied()
            .filter(is_there)
            .flat_map(of)
            .collect()
    }

    fn scene(&self, x: u64, file_bytes: u64) -> Scene {
        let mut scene = Scene {
            file_bytes: file_bytes.max(1),
            cores: 1,
            ack_delay_us: 0,
        };
        match self.axis {
            Axis::Cores => scene.cores = usize::try_from(x).unwrap_or(1).max(1),
            Axis::AckDelayUs => scene.ack_delay_us = x,
            Axis::FileBytes | Axis::Connections => {}
        }
        scene
    }

    fn connections(&self, x: u64, settings: &Settings) -> usize {
        let usual = if settings.rounds.is_quick() { 64 } else { 1600 };
        match self.axis {
            Axis::Connections => usize::try_from(x).unwrap_or(usize::MAX),
            _ => settings.connections.unwrap_or(usual),
        }
    }

    fn add(&self, results: &mut Results, Point { x, scene }: &Point, series: &str, run: &Run) {
        let x = *x as f64;
        let size = scene.file_bytes as f64;
        if self.sizes.len() > 1 {
            let cores = if x == 1.0 { "core" } else { "cores" };
            let series = format!("{series}, {x} {cores}");
            results.add(OVER_SIZES, series, &[(SIZES[0].0, size)], run.measures());
        }
        if self
            .sizes
            .first()
            .is_none_or(|first| *first == scene.file_bytes)
        {
            let (axis, _) = self.axis.conditions()[0];
            results.add(PART, series, &[(axis, x)], run.measures());
        }
    }

    /// Returns the servers that take turns, with their names in the results.
    fn contenders(&self, server_set: &ServerSet) -> Result<Vec<(String, Server)>> {
        let mut contenders = Vec::new();
        let mut add = |servers: [Server; 3], suffix: &str| {
            let wanted = servers.into_iter();
            let wanted = wanted.filter(|server| self.servers.contains(&server.name));
            contenders.extend(wanted.map(|server| (format!("{}{suffix}", server.name), server)));
        };
        if self.plain {
            add(server_set.servers()?, "");
        }
        if self.tls {
            add(server_set.tls_servers()?, ", TLS");
        }
        Ok(contenders)
    }
}

fn report(results: &mut Results, figure: &Figure) {
    let conditions = figure.axis.conditions();
    table::add(results, PART, conditions);
    let x = conditions[0];
    results.plot(Plot::lines(figure.file, PART, x, RATE));
    results.plot(
        Plot::lines(
            figure.further.0,
            PART,
            x,
            ("cpu_s_per_gb.server", "CPU s/GB, all processes of a server"),
        )
        .titled(format!("{}: what it costs", figure.title)),
    );
    if figure.sizes.len() > 1 {
        results.table(
            Table::of(OVER_SIZES, COST.to_vec())
                .titled("Over sizes of files")
                .over(SIZES),
        );
        let plot = Plot::lines(figure.further.1, OVER_SIZES, SIZES[0], RATE);
        results.plot(plot.titled(format!("{}: over file sizes", figure.title)));
    }
    if figure.name == Name::Figure9 {
        let [few, many] = FIGURE_9_ENDS;
        let rate = |connections| {
            results
                .at(PART, "splitway, TLS", x.0, connections)
                .median(RATE.0)
        };
        let lost = 100.0 * (1.0 - rate(many) / rate(few));
        let what = format!("throughput lost at {many} connections against {few}, %");
        results.check(what, lost, Bound::None);
    }
    results.publish_beside(figure.published);
    results.note(figure.note);
    results.note(plain::NOTE);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::run::tests::run;

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
            assert!(!figure.points_with(&settings(&[]), 2).is_empty());
            assert!(figure.plain || figure.tls);
            assert_eq!(figure.sizes.is_empty(), figure.axis == Axis::FileBytes);
        }
    }

    #[test]
    fn points_change_what_the_axis_is_about() {
        let of = |name, x| {
            let mut points = Figure::of(name).points_with(&settings(&[x]), 2).into_iter();
            points.next().unwrap().scene
        };
        let size = of(Name::Figure8a, 300_000);
        assert_eq!(
            (size.file_bytes, size.cores, size.ack_delay_us),
            (300_000, 1, 0)
        );
        let delay = of(Name::Figure12b, 50);
        assert_eq!((delay.file_bytes, delay.ack_delay_us), (500_000, 50));
        let (few, many) = (of(Name::Figure11b, 1), of(Name::Figure11b, 256));
        assert_eq!(few, many, "the servers stay");
    }

    #[test]
    fn figure_7_has_every_size_and_as_many_cores_as_there_are() {
        let figure = Figure::of(Name::Figure7);
        let on = |cores| {
            let points = figure.points_with(&settings(&[]), cores).into_iter();
            let points = points.map(|point| (point.scene.cores, point.scene.file_bytes / 1000));
            points.collect::<Vec<_>>()
        };
        // On two cores, the client has a part of the second.
        assert_eq!(on(2), [(1, 500), (1, 100), (1, 300), (1, 1000), (2, 500)]);
        let large = on(8);
        assert_eq!(large.last(), Some(&(8, 500)));
        assert_eq!(large.len(), 4 * 4 + 1);
        assert!(figure.points_with(&settings(&[100_000]), 2).is_empty());
    }

    #[test]
    fn figure_7_has_a_table_and_a_plot_over_sizes() {
        let figure = Figure::of(Name::Figure7);
        let mut results = Results::new(figure.file, figure.title, &()).unwrap();
        let own = run(SPLITWAY, 1_000_000_000, &[("host", 1)]);
        for point in figure.points_with(&settings(&[]), 2) {
            figure.add(&mut results, &point, SPLITWAY, &own);
        }
        let at = |size| {
            results
                .at(OVER_SIZES, "splitway, 1 core", SIZES[0].0, size)
                .median(RATE.0)
        };
        assert_eq!((at(100_000.0), at(500_000.0)), (8.0, 8.0));
        assert_eq!(results.at(PART, SPLITWAY, "cores", 2.0).median(RATE.0), 8.0);
        report(&mut results, figure);
        let directory = tempfile::tempdir().unwrap();
        results.publish(directory.path()).unwrap();
        assert!(directory.path().join("figure7-sizes.svg").exists());
        let text = std::fs::read_to_string(directory.path().join("figure7.md")).unwrap();
        assert!(text.contains("## Over sizes of files"), "{text}");
    }

    #[test]
    fn figure_9_says_what_many_connections_lose() {
        let figure = Figure::of(Name::Figure9);
        let mut results = Results::new(figure.file, figure.title, &()).unwrap();
        for (connections, bytes) in [(1000.0, 1_000_000_000), (4000.0, 950_000_000)] {
            let own = run(SPLITWAY, bytes, &[("host", 1)]);
            results.add(
                PART,
                "splitway, TLS",
                &[("connections", connections)],
                own.measures(),
            );
        }
        report(&mut results, figure);
        let check = &results.checks()[0];
        assert!(check.what.contains("4000") && (check.value.unwrap() - 5.0).abs() < 1e-9);
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
