//! Number of instructions of a workload, counted by callgrind: the same in each run, independent of
//! the machine's load.
//!
//! A benchmark without a harness passes a [`Count`] to [`check`] as its whole `main`. The program
//! runs again under callgrind, which counts only within functions of the workload, such as
//! `counted_turn`. These must not be inlined.
//!
//! With `--functions` (`cargo bench --bench NAME -- --functions`) it also prints the instructions
//! of each function, per piece of work: its own, and with all callees.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::process::{Command, ExitCode, Stdio};

/// A count, with its bounds.
#[derive(Debug)]
pub struct Count {
    /// Name of the count, with its unit: "instructions per ACK and SEND at 1000 connections".
    pub what: &'static str,
    /// Part of the name of the counted functions.
    pub within: &'static str,
    /// Pieces of work that the workload does there.
    pub times: u64,
    /// Instructions per piece of work at the last review. More than 5 % above it fails: find the
    /// cause, or raise the value deliberately.
    pub committed: u64,
    /// Promised limit, if any.
    pub promised: Option<u64>,
    /// The work.
    pub workload: fn(),
}

/// Permitted growth beyond the committed value, in percent.
const GROWTH_PERCENT_MAX: u64 = 5;

/// Argument that makes the program do the work itself.
const WORKLOAD: &str = "--workload";

/// Argument that prints the functions.
const FUNCTIONS: &str = "--functions";

/// Number of functions printed: those with most instructions of their own or with callees.
const FUNCTIONS_PRINTED: usize = 40;

/// The environment variable that permits a run without valgrind.
const MAY_SKIP: &str = "SPLITWAY_NO_VALGRIND";

impl Count {
    fn bound(&self) -> u64 {
        let bound = self.committed * (100 + GROWTH_PERCENT_MAX) / 100;
        self.promised.map_or(bound, |promised| promised.min(bound))
    }
}

/// Counts, prints the result, and fails if it exceeds its bound.
pub fn check(count: &Count) -> ExitCode {
    if std::env::args().any(|argument| argument == WORKLOAD) {
        (count.workload)();
        return ExitCode::SUCCESS;
    }
    let Some(profile) = profile(count.within) else {
        return not_counted(count.what);
    };
    if std::env::args().any(|argument| argument == FUNCTIONS) {
        print!("{}", functions_text(&functions_in(&profile), count.times));
    }
    let total = total_in(&profile).expect("callgrind's totals");
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

/// Handles missing valgrind. An unchecked bound is worthless: it fails, unless the caller has set
/// [`MAY_SKIP`].
fn not_counted(what: &str) -> ExitCode {
    if std::env::var_os(MAY_SKIP).is_some() {
        println!("{what}: not counted, there is no valgrind");
        return ExitCode::SUCCESS;
    }
    eprintln!("{what}: `valgrind` does not start; install it, or set {MAY_SKIP}=1 to go without");
    ExitCode::FAILURE
}

/// Runs this program under callgrind and returns the profile; `None` without callgrind.
fn profile(within: &str) -> Option<String> {
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
    Some(text)
}

fn total_in(profile: &str) -> Option<u64> {
    let mut lines = profile.lines();
    let total = lines.find_map(|line| line.strip_prefix("totals: "))?;
    total.trim().parse().ok()
}

/// Instructions of a function: its own, and with all callees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cost {
    own: u64,
    inclusive: u64,
}

/// Parses the functions of a profile. A name is defined with a number at its first occurrence; a
/// line of cost is a position and a number, after `calls=` the cost of the call.
fn functions_in(profile: &str) -> BTreeMap<String, Cost> {
    let mut names: BTreeMap<&str, &str> = BTreeMap::new();
    let mut costs: BTreeMap<&str, Cost> = BTreeMap::new();
    let (mut function, mut is_call) = ("", false);
    for line in profile.lines() {
        if let Some(name) = line.strip_prefix("fn=").or(line.strip_prefix("cfn=")) {
            let (number, name) = name.split_once(' ').unwrap_or((name, ""));
            if !name.is_empty() {
                names.insert(number, name);
            }
            if line.starts_with("fn=") {
                function = number;
            }
        } else if line.starts_with("calls=") {
            is_call = true;
        } else if let Some(instructions) = cost_in(line) {
            let cost = costs.entry(function).or_default();
            cost.inclusive += instructions;
            if !std::mem::take(&mut is_call) {
                cost.own += instructions;
            }
        }
    }
    let mut functions: BTreeMap<String, Cost> = BTreeMap::new();
    for (number, cost) in costs {
        let name = names.get(number).copied().unwrap_or(number);
        let sum = functions.entry(name.to_owned()).or_default();
        sum.own += cost.own;
        sum.inclusive += cost.inclusive;
    }
    functions
}

/// Parses the instructions of a line such as `+3 17` or `* 4`.
fn cost_in(line: &str) -> Option<u64> {
    let is_place = |place: &str| {
        let digits = place.trim_start_matches(['+', '-', '*']);
        digits.chars().all(|digit| digit.is_ascii_digit())
    };
    let (place, instructions) = line.split_once(' ')?;
    is_place(place).then(|| instructions.parse().ok())?
}

/// Returns a line for each of the most expensive functions, per piece of work.
fn functions_text(functions: &BTreeMap<String, Cost>, times: u64) -> String {
    let total: u64 = functions.values().map(|cost| cost.own).sum();
    // A function that only calls all others carries no information.
    let is_frame = |cost: &Cost| cost.inclusive >= total && cost.own < total / 1000;
    let mut shown = BTreeSet::new();
    for by in [|cost: &Cost| cost.own, |cost: &Cost| cost.inclusive] {
        let known = functions.iter().filter(|(_, cost)| !is_frame(cost));
        let mut names: Vec<&String> = known.map(|(name, _)| name).collect();
        names.sort_by_key(|name| std::cmp::Reverse(by(&functions[*name])));
        shown.extend(names.into_iter().take(FUNCTIONS_PRINTED / 2));
    }
    let mut shown: Vec<&String> = shown.into_iter().collect();
    shown.sort_by_key(|name| std::cmp::Reverse(functions[*name].own));
    let mut text = "     own  inclusive  function\n".to_owned();
    for name in shown {
        let Cost { own, inclusive } = functions[name];
        let [own, inclusive] = [own, inclusive].map(|count| count as f64 / times as f64);
        text += &format!("{own:8.1} {inclusive:10.1}  {name}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_of_those_who_call_and_own_instructions_are_not() {
        let profile = "events: Ir\nfl=(1) file.rs\nfn=(1) main\n1 5\ncfn=(2) work\n\
                       calls=3 10\n+1 60\n* 2\n\nfl=(1)\nfn=(2)\n10 40\nfi=(2) other.rs\n\
                       -3 20\ntotals: 67\n";
        let functions = functions_in(profile);
        let cost = |own, inclusive| Cost { own, inclusive };
        assert_eq!(functions.len(), 2);
        assert_eq!(functions["main"], cost(7, 67));
        assert_eq!(functions["work"], cost(60, 60));
        let text = functions_text(&functions, 10);
        let lines: Vec<&str> = text.lines().skip(1).map(str::trim).collect();
        assert_eq!(lines, ["6.0        6.0  work", "0.7        6.7  main"]);
        let mut functions = functions;
        functions.insert("below".to_owned(), cost(0, 67_067));
        functions.insert("all of it".to_owned(), cost(67_000, 67_067));
        assert!(!functions_text(&functions, 10).contains("below"));
    }

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
