//! Several benchmarks, one after the other, each in its own process, with common results.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use clap::{CommandFactory, Parser};
use testbed::{Context, Failure, Result};

use crate::measure::index::{self, Entry};
use crate::measure::publish::results_directory;
use crate::{Arguments, plan};

/// The default benchmarks, in order: the model uses the results of `ceiling`. Links and `soak` take
/// an hour, so they are left out, as are `load-mix` and `programs`.
const ALL: [&str; 29] = [
    "ceiling",
    "targets",
    "plain",
    "disk",
    "workers",
    "tls",
    "http2",
    "figure2",
    "table1",
    "table2",
    "figure7",
    "figure8a",
    "figure8b",
    "figure9",
    "figure10",
    "figure11a",
    "figure11b",
    "figure12b",
    "fairness",
    "latency",
    "sockets",
    "proxy",
    "offload",
    "quic",
    "quic-engines",
    "figure3",
    "figure12a",
    "table4",
    "cores",
];

/// A name for several benchmarks.
const MODEL: (&str, &[&str]) = ("model", &["figure3", "figure12a", "table4", "cores"]);

/// Time limit of all benchmarks for quick runs.
const QUICK_SECONDS_MAX: f64 = 240.0;

/// Splits a command line into its leading names and the rest: `[NAME]... [OPTION]...`.
pub(crate) fn split(words: &[String]) -> (&[String], &[String]) {
    let names = words.iter().take_while(|word| !word.starts_with('-'));
    words.split_at(names.count())
}

/// Runs benchmarks by name, all if there is none, each with these options. A failure does not
/// prevent the others from running.
pub(crate) fn run(names: &[String], options: &[String]) -> ExitCode {
    match carry_out(names, options) {
        Ok(failed) if failed.is_empty() => ExitCode::SUCCESS,
        Ok(failed) => {
            eprintln!("\nsplitway-bench: failed: {}", failed.join(", "));
            ExitCode::FAILURE
        }
        Err(failure) => {
            eprintln!("splitway-bench: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn carry_out(names: &[String], options: &[String]) -> Result<Vec<String>> {
    let benchmarks = planned(&meant(names), options)?;
    let (output, options) = with_output(options, &results_directory()?)?;
    let expected: f64 = benchmarks.iter().map(|(_, seconds)| seconds).sum();
    eprintln!(
        "{} benchmarks, which take about {:.0} minutes; results go to {}",
        benchmarks.len(),
        (expected / 60.0).max(1.0),
        output.display()
    );
    let begun = Instant::now();
    let mut entries = Vec::new();
    for (name, planned_seconds) in benchmarks {
        eprintln!("\n== {name}");
        let begun = Instant::now();
        let ran = std::env::current_exe()
            .and_then(|own| Command::new(own).arg(&name).args(&options).status());
        let failure = match ran {
            Ok(status) if status.success() => None,
            Ok(status) => Some(status.to_string()),
            Err(error) => Some(error.to_string()),
        };
        entries.push(Entry {
            name,
            planned_seconds,
            seconds: begun.elapsed().as_secs_f64(),
            failure,
        });
    }
    let page = index::write(&output, &entries)?;
    println!("{}", page.display());
    let seconds = begun.elapsed().as_secs_f64();
    if is_quick(&options) && seconds > QUICK_SECONDS_MAX {
        eprintln!(
            "This took {seconds:.0} s, and was meant to take at most {QUICK_SECONDS_MAX:.0}: is \
             the machine doing something else?"
        );
    }
    let failed = entries.into_iter().filter_map(|entry| {
        let failure = entry.failure?;
        Some(format!("{} ({failure})", entry.name))
    });
    Ok(failed.collect())
}

/// Resolves names and aliases to the names of benchmarks, each once.
fn meant(names: &[String]) -> Vec<String> {
    let given: Vec<&str> = match names {
        [] => ALL.to_vec(),
        names => names.iter().map(String::as_str).collect(),
    };
    let (model, parts) = MODEL;
    let each = given.into_iter().flat_map(|name| {
        if name == model {
            parts.to_vec()
        } else {
            vec![name]
        }
    });
    let command = Arguments::command();
    let mut meant: Vec<String> = Vec::new();
    for name in each {
        let found = command.find_subcommand(name);
        let name = found.map_or(name, clap::Command::get_name).to_owned();
        if !meant.contains(&name) {
            meant.push(name);
        }
    }
    meant
}

/// Returns the planned duration of each, in seconds; fails for an unknown benchmark or option,
/// before anything is measured.
fn planned(names: &[String], options: &[String]) -> Result<Vec<(String, f64)>> {
    let plan_of = |name: &String| {
        let words = ["splitway-bench", name.as_str()].map(str::to_owned);
        let words = words.iter().chain(options).cloned();
        let arguments = Arguments::try_parse_from(words);
        let arguments = arguments.context(|| format!("{name}, with these options"))?;
        Ok((name.clone(), plan(&arguments.benchmark).seconds()))
    };
    names.iter().map(plan_of).collect()
}

const OUTPUT: &str = "--output";

fn is_quick(options: &[String]) -> bool {
    options.iter().any(|option| option == "--quick")
}

/// Returns the directory of the results, and the options with it: the one given, or a new one below
/// `results`.
fn with_output(options: &[String], results: &Path) -> Result<(PathBuf, Vec<String>)> {
    let mut options = options.to_vec();
    let mut words = options.iter();
    while let Some(word) = words.next() {
        let given = match word.strip_prefix(OUTPUT) {
            Some("") => words.next().map(String::as_str),
            Some(rest) => rest.strip_prefix('='),
            None => None,
        };
        if let Some(directory) = given {
            return Ok((PathBuf::from(directory), options));
        }
    }
    let directory = new_directory(results)?;
    let text = directory.to_str().ok_or_else(|| {
        Failure::new(format!(
            "{} is not UTF-8: name another directory with {OUTPUT}",
            directory.display()
        ))
    })?;
    options.extend([OUTPUT.to_owned(), text.to_owned()]);
    Ok((directory, options))
}

/// Creates `run-1`, or the first after it that does not exist.
fn new_directory(results: &Path) -> Result<PathBuf> {
    for number in 1_u32.. {
        let directory = results.join(format!("run-{number}"));
        match std::fs::create_dir(&directory) {
            Ok(()) => return Ok(directory),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                return Err(error).context(|| format!("creating {}", directory.display()));
            }
        }
    }
    Err(Failure::new(format!(
        "{} is full of runs",
        results.display()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn names_come_before_options() {
        let words = words(&["table1", "figure2", "--rounds", "3"]);
        let (names, options) = split(&words);
        assert_eq!((names.len(), options.len()), (2, 2));
        assert_eq!(split(&words[2..]).0.len(), 0);
    }

    #[test]
    fn names_stand_for_benchmarks_and_each_is_run_once() {
        let names = words(&["figure10a", "model", "figure10b", "table4", "unknown"]);
        let expected = [
            "figure10",
            "figure3",
            "figure12a",
            "table4",
            "cores",
            "unknown",
        ];
        assert_eq!(meant(&names), expected);
        assert_eq!(meant(&[]), ALL);
    }

    #[test]
    fn every_figure_and_table_that_one_machine_can_carry_or_the_model_draws_is_run_unless_told() {
        for name in [
            "figure2",
            "figure3",
            "figure7",
            "figure8a",
            "figure8b",
            "figure9",
            "figure10",
            "figure11a",
            "figure11b",
            "figure12a",
            "figure12b",
            "table1",
            "table2",
            "table4",
            "fairness",
            "latency",
            "cores",
        ] {
            assert!(ALL.contains(&name), "{name}");
        }
    }

    fn seconds(options: &[&str]) -> f64 {
        let planned = planned(&meant(&[]), &words(options)).unwrap();
        for (name, seconds) in &planned {
            println!("{name}: {seconds:.1} s");
            assert!(*seconds > 0.0, "{name}");
        }
        planned.iter().map(|(_, seconds)| seconds).sum()
    }

    #[test]
    fn a_quick_run_of_all_ends_in_time() {
        // A tenth is left for time in no plan.
        let seconds = seconds(&["--quick", "--output=x"]);
        assert!(seconds < 0.9 * QUICK_SECONDS_MAX, "{seconds}");
    }

    #[test]
    fn all_of_it_takes_as_long_as_the_manual_says() {
        let hours = seconds(&[]) / 3600.0;
        assert!((3.0..4.0).contains(&hours), "{hours}");
    }

    #[test]
    fn what_one_benchmark_does_not_know_is_said_before_anything_is_measured() {
        let unknown = |names: &[&str], options: &[&str]| {
            planned(&meant(&words(names)), &words(options))
                .unwrap_err()
                .to_string()
        };
        let failure = unknown(&["figure2", "fairness"], &["--discard"]);
        assert!(
            failure.contains("figure2") && failure.contains("--discard"),
            "{failure}"
        );
        assert!(unknown(&["figure99"], &[]).contains("figure99"));
    }

    #[test]
    fn results_of_one_run_are_recorded_together() {
        let directory = tempfile::tempdir().unwrap();
        let (first, options) = with_output(&words(&["--quick"]), directory.path()).unwrap();
        assert_eq!(options, ["--quick", "--output", first.to_str().unwrap()]);
        let (second, _) = with_output(&[], directory.path()).unwrap();
        assert!(first.is_dir() && second.is_dir() && first != second);
        for given in [
            &["--output", "here", "--quick"][..],
            &["--quick", "--output=here"],
        ] {
            let (output, options) = with_output(&words(given), directory.path()).unwrap();
            assert_eq!(output, Path::new("here"));
            assert_eq!(options, given);
        }
    }
}
