//! A program that loads no library: this process answers its calls on sockets.

use std::path::Path;
use std::process::Command;

use compat::Compat;
use failure::Failure;
use preload::rules::{Rule, Rules};
use rustix::process::Pid;

use crate::commands::run::RunArgs;
use crate::commands::run::wait::Descendants;

/// Runs a program on the stack at `socket`, and returns its exit code.
pub(crate) fn run(
    command: Command,
    socket: &Path,
    args: &RunArgs,
    descendants: &Descendants,
) -> Result<u8, Failure> {
    let rules = |rules: &[Rule]| rules.iter().copied().collect::<Rules>();
    let (listen, connect) = (rules(&args.listen), rules(&args.connect));
    let (child, compat) = Compat::start(command, socket, listen, connect)?;
    let code = descendants.wait(Pid::from_child(&child));
    compat.finish();
    code
}
