//! Instructions that a piece of work takes, counted by callgrind: the same in each run, whatever
//! the machine does meanwhile.
//!
//! A benchmark without a harness gives a [`Count`] to [`check`] as its whole `main`. It is run
//! again below callgrind, which counts only within functions of the workload's own, such as
//! `counted_turn`. Those must not be inlined.

use std::ffi::OsStr;
use std::process::{Command, ExitCode, Stdio};

/// What is counted, and what it may come to.
#[derive(Debug)]
pub struct Count {
    /// What it is, with what each count is of: "instructions per ACK and SEND at 1000 connections".
    pub what: &'static str,
    /// A part of the name of the functions within which is counted.
    pub within: &'static str,
    /// How many of them the workload does there.
    pub times: u64,
    /// What each was when it was last looked at. More than 5 % above it fails: find out why, or
    /// raise it knowingly.
    pub committed: u64,
    /// What is promised, if anything.
    pub promised: Option<u64>,
    /// The work.
    pub workload: fn(),
}

/// Growth beyond what is committed, in percent, that is let pass.
const GROWTH_PERCENT_MAX: u64 = 5;

/// Tells the program to do the work itself.
const WORKLOAD: &str = "--workload";

/// The environment variable that lets this pass where there is no valgrind.
const MAY_SKIP: &str = "SPLITWAY_NO_VALGRIND";

impl Count {
    fn bound(&self) -> u64 {
        let bound = self.committed * (100 + GROWTH_PERCENT_MAX) / 100;
        self.promised.map_or(bound, |promised| promised.min(bound))
    }
}

/// Counts, prints what it has come to, and fails if that is too much.
pub fn check(count: &Count) -> ExitCode {
    if std::env::args().any(|argument| argument == WORKLOAD) {
        (count.workload)();
        return ExitCode::SUCCESS;
    }
    let Some(total) = total(count.within) else {
        return not_counted(count.what);
    };
    let (each, bound) = (total / count.times, count.bound());
    println!(
        "{}: {each} (committed {}, bound {bound})",
        count.what, count.committed
    );
    if each <= bound {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// There is no valgrind. A bound that is not checked is none: it fails, unless the caller has said
/// that it knows.
fn not_counted(what: &str) -> ExitCode {
    if std::env::var_os(MAY_SKIP).is_some() {
        println!("{what}: not counted, there is no valgrind");
        return ExitCode::SUCCESS;
    }
    eprintln!("{what}: `valgrind` does not start; install it, or set {MAY_SKIP}=1 to go without");
    ExitCode::FAILURE
}

/// Runs this program under callgrind; `None` if there is none.
fn total(within: &str) -> Option<u64> {
    let program = std::env::current_exe().expect("the path of this program");
    let profile = program.with_extension("callgrind");
    let status = Command::new("valgrind")
        .args(["--tool=callgrind", "--collect-atstart=no"])
        .arg(format!("--toggle-collect=*{within}*"))
        .arg(format!("--callgrind-out-file={}", profile.display()))
        .args([program.as_os_str(), OsStr::new(WORKLOAD)])
        .stderr(Stdio::null())
        .status()
        .ok()?;
    assert!(
        status.success(),
        "the workload fails below valgrind: {status}"
    );
    let text = std::fs::read_to_string(&profile).expect("callgrind's output");
    println!("profile: callgrind_annotate {}", profile.display());
    Some(total_in(&text).expect("callgrind's totals"))
}

fn total_in(profile: &str) -> Option<u64> {
    let mut lines = profile.lines();
    let total = lines.find_map(|line| line.strip_prefix("totals: "))?;
    total.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_is_what_is_committed_and_little_more_or_what_is_promised() {
        let mut count = Count {
            what: "nothing",
            within: "nowhere",
            times: 1,
            committed: 2000,
            promised: None,
            workload: || {},
        };
        assert_eq!(count.bound(), 2100);
        count.promised = Some(2050);
        assert_eq!(count.bound(), 2050);
    }

    #[test]
    fn the_total_is_found() {
        assert_eq!(
            total_in("events: Ir\nfn=(1) main\n1 5\ntotals: 48440\n"),
            Some(48440)
        );
        assert_eq!(total_in("events: Ir\n"), None);
    }
}
