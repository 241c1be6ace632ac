//! Programs for developers, which lie beside this one.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use clap::Args;
use failure::Failure;

/// Arguments that the program gets as they are.
#[derive(Clone, Debug, Args)]
pub(crate) struct CompanionArgs {
    /// Arguments of the program
    #[arg(
        value_name = "ARGUMENT",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub(crate) arguments: Vec<OsString>,
}

pub(crate) const SIM_HELP: &str =
    "The program `splitway-sim`, which must lie beside this one, does the work.

A seed determines a scenario: a network with its faults, disks, clients. The real host stack, NIC \
workers and server run in it, in virtual time; the same seed always gives the same run. It needs \
no privileges and touches neither network nor files.

Examples:
  cargo build --release -p splitway-sim
  splitway sim --seed 7 --trace
  splitway sim --seed 7 --pcap 7.pcap
  splitway sim --seeds 0..10000";

pub(crate) const BENCH_HELP: &str =
    "The program `splitway-bench`, which must lie beside this one, \
does the work; `make bench` builds both. Tables, plots and raw values go to target/bench.

Examples:
  sudo splitway bench --quick             everything, in four minutes, as a smoke test
  sudo splitway bench targets             promises, and which hold on this machine
  sudo splitway bench figure8a table1     figures of the paper
  splitway bench figure8a --help          options";

/// A program that packages do not have.
pub(crate) struct Companion {
    program: &'static str,
    remedy: &'static str,
}

pub(crate) const SIM: Companion = Companion {
    program: "splitway-sim",
    remedy: "The simulation is a separate program, which must lie beside this one. This builds \
             both: cargo build --release -p splitway-cli -p splitway-sim",
};

pub(crate) const BENCH: Companion = Companion {
    program: "splitway-bench",
    remedy: "The benchmarks are a separate program, which must lie beside this one. `make bench` \
             builds both and runs them; so does: cargo build --release -p splitway-cli -p \
             splitway-bench",
};

/// Executes a program in place of this one.
pub(crate) fn execute(companion: &Companion, args: &CompanionArgs) -> Result<(), Failure> {
    let own =
        std::env::current_exe().map_err(|error| Failure::broken("finding this program", error))?;
    let program = own.with_file_name(companion.program);
    let error = Command::new(&program).args(&args.arguments).exec();
    let failure = Failure::input(format!("starting {}", program.display()), error);
    Err(failure.remedy(companion.remedy))
}
