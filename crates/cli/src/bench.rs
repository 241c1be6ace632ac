//! `splitway bench`: another program, which lies beside this one.

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::args::BenchArgs;
use failure::Failure;

/// What the other program is called.
const PROGRAM: &str = "splitway-bench";

/// Becomes the other program.
pub(crate) fn run(args: &BenchArgs) -> Result<(), Failure> {
    let own = std::env::current_exe()
        .map_err(|error| Failure::broken("finding the own program", error))?;
    let program = own.with_file_name(PROGRAM);
    let error = Command::new(&program).args(&args.arguments).exec();
    let failure = Failure::input(format!("starting {}", program.display()), error);
    Err(failure.remedy(
        "The benchmarks are a program of their own, which must lie beside this one. `make bench` builds both and runs \
         them; so does: cargo build --release -p splitway-cli -p splitway-bench",
    ))
}
