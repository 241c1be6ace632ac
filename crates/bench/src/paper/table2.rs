//! What to do with a second core: table 2 of IO-TCP. A SmartNIC alone, a SmartNIC and a core that
//! serve half of the clients each, and the split.
//!
//! One machine has no SmartNIC: here one of its cores stands for it.

use serde::Serialize;
use testbed::Result;

use crate::CLIENT_CORE;
use crate::SERVER_CORE;
use crate::measure::plan::Plan;
use crate::measure::results::{Bound, Plot, Results};
use crate::measure::rounds::Rounds;
use crate::measure::run::{self, Server};
use crate::measure::table;
use crate::paper;
use crate::servers::server_set::{ServerSet, Wanted, Workspace, move_to_core};
use crate::suites::plain;

/// The settings of the benchmark.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub(crate) struct Settings {
    #[command(flatten)]
    #[serde(flatten)]
    rounds: Rounds,
    /// Connections [default: 1600 as in the paper, or 64 for quick runs]
    #[arg(long)]
    connections: Option<usize>,
}

impl Settings {
    fn connections(&self) -> usize {
        let default = if self.rounds.is_quick() { 64 } else { 1600 };
        self.connections.unwrap_or(default)
    }
}

const FILES: usize = 300;
const FILE_BYTES: u64 = 300_000;

/// The one part of the results.
const PART: &str = "ways";

/// Ways to use two cores.
const ONE: &str = "lighttpd on one core";
const BOTH: &str = "lighttpd on each of two cores";
const SPLIT: &str = "Splitway, host and NIC process on a core each";
const TOGETHER: &str = "Splitway, both on one core";

/// Returns the planned duration.
pub(crate) fn plan(settings: &Settings) -> Plan {
    let mut plan = Plan::new();
    plan.files(FILES, FILE_BYTES);
    plan.beds(1);
    plan.turns(&settings.rounds, 4, settings.connections(), FILE_BYTES);
    plan
}

pub(crate) fn measure(settings: &Settings) -> Result<()> {
    let rounds = &settings.rounds;
    let connections = settings.connections();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let second_core = second_core(cores);
    let workspace = Workspace::prepare(FILES, FILE_BYTES)?;
    let server_set = ServerSet::start(&workspace, &Wanted::default())?;
    let title = format!(
        "Table 2: what a second core is good for, files of 300 KB, {connections} connections"
    );
    let mut results = Results::new("table2", title, settings)?;
    server_set.describe(&mut results)?;
    let second = server_set.second_lighttpd(&workspace, second_core)?;

    let [splitway, _, one] = server_set.servers()?;
    let mut both = one.clone();
    both.addresses.push(second.address());
    both.processes.extend(
        second
            .workers()?
            .into_iter()
            .map(|pid| ("second worker", pid)),
    );
    let ways = [
        (ONE, one),
        (BOTH, both),
        (TOGETHER, splitway.clone()),
        (SPLIT, splitway),
    ];
    let place = |way: &str, server: &Server| -> Result<()> {
        let nic = server.processes.iter().filter(|(name, _)| *name == "nic");
        for &(_, pid) in nic {
            move_to_core(
                pid,
                if way == SPLIT {
                    second_core
                } else {
                    SERVER_CORE
                },
            )?;
        }
        Ok(())
    };
    for (way, server) in &ways {
        place(way, server)?;
        run::warm_up(
            rounds,
            server,
            workspace.load(server, connections, rounds.seconds()),
        )?;
    }
    rounds.take_turns(&ways, |(way, server)| {
        place(way, server)?;
        let run = run::run(
            server,
            &workspace.load(server, connections, rounds.seconds()),
        )?;
        eprintln!("{way:46} {run}");
        results.add(PART, *way, &[], run.measures());
        Ok(())
    })?;
    server_set.end(&mut results)?;
    report(&mut results, second_core);
    results.publish(rounds.output(&workspace.output))
}

/// The core that stands for the SmartNIC: the client's, if there is no other.
fn second_core(cores: usize) -> usize {
    (0..cores)
        .find(|core| ![SERVER_CORE, CLIENT_CORE].contains(core))
        .unwrap_or(CLIENT_CORE)
}

fn report(results: &mut Results, second_core: usize) {
    table::add(results, PART, &[]);
    results.plot(Plot::bars("table2", PART, ("gbit_per_s", "Gbit/s")));
    results.publish_beside(paper::TABLE_2);
    results.note(
        "The paper's SmartNIC has 8 Arm cores and less memory bandwidth than the host; here it is \
         a second core of the same machine, which is as fast as the first. So nothing is to be \
         learnt here about the weakness of such a card, on which the paper's table rests; what \
         remains is what the split does with two cores that two servers could have had.",
    );
    if second_core == CLIENT_CORE {
        results.note(
            "This machine has two cores, and the client needs one: whatever runs on the second \
             core takes it from the client. Look at CPU time, not at throughput.",
        );
    }
    results.note(plain::NOTE);
    let ratio = |a, b, measure| results.ratio(PART, (a, measure), (b, measure));
    let checks = [
        (
            "throughput, split against lighttpd on both cores",
            ratio(SPLIT, BOTH, "gbit_per_s"),
        ),
        (
            "throughput, split against lighttpd on one",
            ratio(SPLIT, ONE, "gbit_per_s"),
        ),
        (
            "CPU per GB of all processes, split against lighttpd on both cores",
            ratio(SPLIT, BOTH, "cpu_s_per_gb.server"),
        ),
    ];
    for (what, value) in checks {
        results.check(what, value, Bound::None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_core_is_the_clients_only_where_there_is_no_third() {
        assert_eq!(second_core(2), CLIENT_CORE);
        assert_eq!(second_core(8), 2);
    }
}
