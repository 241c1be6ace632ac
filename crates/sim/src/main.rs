//! `splitway-sim`: runs of the deterministic simulation, to look at one or to try many.
#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use failure::Failure;
use sim::{Options, Sink, replay_command, run};

/// Run the deterministic simulation of both stacks
#[derive(Clone, Debug, Parser)]
#[command(name = "splitway-sim", version, after_help = HELP)]
struct Arguments {
    /// Seed to run
    #[arg(long, value_name = "N", required_unless_present = "seeds")]
    seed: Option<u64>,

    /// Print events line by line: packets, commands, events, reads
    #[arg(long, conflicts_with = "seeds")]
    trace: bool,

    /// Write the packets on the server's link to a file for tcpdump and Wireshark
    #[arg(long, value_name = "FILE", conflicts_with = "seeds")]
    pcap: Option<PathBuf>,

    /// Have NIC workers answer SYNs, in every scenario
    #[arg(long)]
    setup_offload: bool,

    /// Have NIC stacks run connection teardown, in every scenario
    #[arg(long)]
    teardown_offload: bool,

    /// Run many seeds, and print those that break a promise
    #[arg(long, value_name = "A..B", conflicts_with = "seed", value_parser = parse_seeds)]
    seeds: Option<Range<u64>>,
}

const HELP: &str = "A seed determines a scenario: a network with its faults, disks, \
clients. The real host stack, NIC workers and server run in it, in virtual time; the same seed \
always gives the same run. It needs no privileges and touches neither network nor files. The exit \
code is 0 only if every promise was kept.

Examples:
  splitway-sim --seed 7 --trace
  splitway-sim --seed 7 --pcap 7.pcap
  splitway-sim --seeds 0..10000";

fn main() -> ExitCode {
    match run_seeds(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // There is no other place for it.
            let _ = writeln!(io::stderr().lock(), "splitway-sim: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}

/// Writes to standard output at once, unless that is closed.
fn say(text: &str) {
    let mut stdout = io::stdout().lock();
    let _ = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush());
}

/// Runs one seed, or all of a range.
fn run_seeds(args: &Arguments) -> Result<(), Failure> {
    match (&args.seeds, args.seed) {
        (Some(seeds), _) => try_many(seeds.clone(), args),
        (None, Some(seed)) => show_one(seed, args),
        (None, None) => Err(Failure::broken("simulation", "no seed was named")),
    }
}

fn show_one(seed: u64, args: &Arguments) -> Result<(), Failure> {
    let stdout = RefCell::new(io::stdout().lock());
    let capture = match args.pcap.as_deref() {
        Some(path) => {
            let what = format!("capture {}", path.display());
            let file = File::create(path).map_err(|error| Failure::input(&what, error))?;
            Some((what, RefCell::new(BufWriter::new(file))))
        }
        None => None,
    };
    let options = Options {
        trace: args.trace.then_some(&stdout as Sink<'_>),
        pcap: capture.as_ref().map(|(_, file)| file as Sink<'_>),
        teardown: args.teardown_offload,
        setup: args.setup_offload,
    };
    let report = run(seed, &options);
    drop(stdout);
    if let Some((what, file)) = capture {
        let flushed = file.into_inner().flush();
        flushed.map_err(|error| Failure::broken(what, error))?;
    }
    say(&format!("{report}\n"));
    match report.violation {
        None => Ok(()),
        Some(violation) => Err(Failure::broken(format!("seed {seed}"), violation)),
    }
}

fn try_many(seeds: Range<u64>, args: &Arguments) -> Result<(), Failure> {
    let (mut tried, mut failed, mut deaths, mut lost) = (0, 0, 0, 0);
    for seed in seeds {
        let options = Options {
            teardown: args.teardown_offload,
            setup: args.setup_offload,
            ..Options::default()
        };
        let report = run(seed, &options);
        tried += 1;
        deaths += report.nic_deaths.all;
        lost += report.connections_lost;
        if report.violation.is_some() {
            failed += 1;
            let mut replay = replay_command(seed);
            if args.setup_offload {
                replay += " --setup-offload";
            }
            if args.teardown_offload {
                replay += " --teardown-offload";
            }
            say(&format!("{report}\n    {replay}\n"));
        }
    }
    say(&format!(
        "{tried} seeds, {failed} of them broke a promise; {deaths} NIC deaths, {lost} connections \
         lost\n"
    ));
    match failed {
        0 => Ok(()),
        _ => Err(Failure::broken(
            "simulation",
            "promises were broken, see above",
        )),
    }
}

/// A range of seeds as `A..B`.
fn parse_seeds(text: &str) -> Result<Range<u64>, String> {
    let ends = text.split_once("..");
    let range = ends.and_then(|(start, end)| Some(start.parse().ok()?..end.parse().ok()?));
    range
        .filter(|range| !range.is_empty())
        .ok_or_else(|| "a range of seeds looks like 0..1000".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Arguments, clap::Error> {
        Arguments::try_parse_from(line.split(' '))
    }

    #[test]
    fn the_program_takes_one_seed_or_a_range() {
        let one = parse("splitway-sim --seed 7 --trace").unwrap();
        assert_eq!((one.seed, one.trace), (Some(7), true));
        assert_eq!(
            parse("splitway-sim --seeds 3..9").unwrap().seeds,
            Some(3..9)
        );
        for line in [
            "splitway-sim",
            "splitway-sim --seeds 9..3",
            "splitway-sim --seeds 5",
            "splitway-sim --seeds 0..9 --trace",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
