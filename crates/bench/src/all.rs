//! Several benchmarks, one after the other, each in a process of its own.

use std::process::{Command, ExitCode};

/// What is measured unless told, in this order: targets look at what the ceiling has come to. Links are not, which take
/// an hour.
const ALL: [&str; 19] = [
    CEILING,
    "targets",
    "plain",
    "disk",
    "workers",
    "tls",
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
];

/// It takes a minute or two even if it is to be quick.
const CEILING: &str = "ceiling";

/// All, or what three minutes are enough for.
fn unless_told(options: &[String]) -> Vec<&'static str> {
    let is_quick = options.iter().any(|option| option == "--quick");
    let names = ALL.into_iter();
    names.filter(|name| !is_quick || *name != CEILING).collect()
}

/// The names with which a command line begins, and what follows: `[NAME]... [OPTION]...`.
pub(crate) fn split(words: &[String]) -> (&[String], &[String]) {
    let names = words.iter().take_while(|word| !word.starts_with('-'));
    words.split_at(names.count())
}

/// Runs benchmarks by name, all if there is none, each with these options. One that fails does not keep the others from
/// being run.
pub(crate) fn run(names: &[String], options: &[String]) -> ExitCode {
    let names: Vec<&str> = match names {
        [] => unless_told(options),
        names => names.iter().map(String::as_str).collect(),
    };
    let mut failed = Vec::new();
    for name in names {
        eprintln!("\n== {name}");
        let ran = std::env::current_exe()
            .and_then(|own| Command::new(own).arg(name).args(options).status());
        match ran {
            Ok(status) if status.success() => {}
            Ok(_) => failed.push(name.to_owned()),
            Err(error) => failed.push(format!("{name} ({error})")),
        }
    }
    if failed.is_empty() {
        return ExitCode::SUCCESS;
    }
    eprintln!("\nsplitway-bench: failed: {}", failed.join(", "));
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_before_options() {
        let words = ["table1", "figure2", "--rounds", "3"].map(str::to_owned);
        let (names, options) = split(&words);
        assert_eq!((names.len(), options.len()), (2, 2));
        assert_eq!(split(&words[2..]).0.len(), 0);
    }

    #[test]
    fn a_quick_run_leaves_out_what_takes_long() {
        assert_eq!(unless_told(&[]).len(), ALL.len());
        let quick = unless_told(&["--quick".to_owned()]);
        assert!(!quick.contains(&CEILING) && quick.contains(&"targets"));
    }

    #[test]
    fn all_that_is_run_unless_told_exists() {
        use clap::CommandFactory;
        let command = crate::Arguments::command();
        for name in ALL {
            assert!(command.find_subcommand(name).is_some(), "{name}");
        }
    }
}
