//! `splitway bench`: runs the separate program `splitway-bench`, which lies beside this one.

use std::os::unix::process::CommandExt;
use std::process::Command;

use clap::Args;
use failure::Failure;

/// The benchmarks.
#[derive(Clone, Debug, Args)]
pub(crate) struct BenchArgs {
    /// Benchmarks to run, all by default, and then their options
    #[arg(
        value_name = "NAME|OPTION",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub(crate) arguments: Vec<std::ffi::OsString>,
}

pub(crate) const BENCH_HELP: &str =
    "The program `splitway-bench`, which must lie beside this one, \
does the work; `make bench` builds both. Tables, plots and raw values go to target/bench.

Examples:
  sudo splitway bench --quick             everything, in four minutes, as a smoke test
  sudo splitway bench targets             promises, and which hold on this machine
  sudo splitway bench figure8a table1     figures of the paper
  splitway bench figure8a --help          options";

/// Name of the program.
const PROGRAM: &str = "splitway-bench";

/// Executes the program in place of this one.
pub(crate) fn run(args: &BenchArgs) -> Result<(), Failure> {
    let own =
        std::env::current_exe().map_err(|error| Failure::broken("finding this program", error))?;
    let program = own.with_file_name(PROGRAM);
    let error = Command::new(&program).args(&args.arguments).exec();
    let failure = Failure::input(format!("starting {}", program.display()), error);
    Err(failure.remedy(
        "The benchmarks are a separate program, which must lie beside this one. `make bench` \
         builds both and runs them; so does: cargo build --release -p splitway-cli -p \
         splitway-bench",
    ))
}
