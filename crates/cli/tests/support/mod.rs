//! Runs of the program that end by themselves, and what they said.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use testbed::process::{Process, run, tool};

/// No run here takes long; one that does has not noticed what it should have.
const PATIENCE: Duration = Duration::from_secs(60);

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_splitway");

/// How a run ended, and what it said.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs `splitway` with these arguments, in this directory.
pub(crate) fn splitway_in(directory: &Path, arguments: &[&str]) -> Outcome {
    outcome(Command::new(PROGRAM).args(arguments).current_dir(directory))
}

/// Runs `splitway` without these capabilities (all: `all`) and with no way to get them.
pub(crate) fn splitway_without(
    capabilities: &[&str],
    directory: &Path,
    arguments: &[&str],
) -> Outcome {
    let without: Vec<String> = capabilities.iter().map(|name| format!("-{name}")).collect();
    let without = without.join(",");
    outcome(
        Command::new("setpriv")
            .args(["--bounding-set", &without, "--inh-caps", &without, PROGRAM])
            .args(arguments)
            .current_dir(directory),
    )
}

/// Runs a command to its end.
pub(crate) fn outcome(command: &mut Command) -> Outcome {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut process = Process::spawn(command).unwrap();
    let status = process.wait(PATIENCE);
    let (mut stdout, mut stderr) = (String::new(), String::new());
    if status.is_err() {
        // Its output ends with it.
        let _ = process.stop(PATIENCE);
    }
    process
        .child()
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut stdout)
        .unwrap();
    process
        .child()
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut stderr)
        .unwrap();
    let code = status
        .unwrap_or_else(|failure| panic!("{failure}: {stdout}{stderr}"))
        .code();
    Outcome {
        code,
        stdout,
        stderr,
    }
}

impl Outcome {
    /// Asserts that the request was refused as it stands: exit code 2, nothing but a complaint, and
    /// in it all of this.
    #[track_caller]
    pub(crate) fn refused(&self, complaints: &[&str]) {
        assert_eq!(self.code, Some(2), "{self:?}");
        assert!(self.stderr.starts_with("splitway: "), "{self:?}");
        assert_eq!(self.stdout, "", "{self:?}");
        assert!(!self.stderr.contains("panicked"), "{self:?}");
        for complaint in complaints {
            assert!(
                self.stderr.contains(complaint),
                "no {complaint:?} in {self:?}"
            );
        }
    }
}

/// Runs a line of words without quotes; its output.
pub(crate) fn sh(line: &str) -> String {
    run(&mut tool(line)).unwrap()
}
