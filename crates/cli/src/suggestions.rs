//! Suggestions for a command line that cannot be parsed.
//!
//! `clap` suggests every similar name, hidden ones included. Here a suggestion is a visible name
//! that differs in few letters, or the option with the meaning that the given one has in other
//! servers.

use clap::Command;
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};

use crate::cli::Cli;

/// Names in other servers of options of `serve`.
const OTHER_NAMES: [(&str, &str); 11] = [
    ("port", "listen"),
    ("bind", "addr"),
    ("address", "addr"),
    ("ip", "addr"),
    ("interface", "dev"),
    ("cert", "tls-cert"),
    ("certificate", "tls-cert"),
    ("key", "tls-key"),
    ("threads", "workers"),
    ("upstream", "origin"),
    ("conf", "config"),
];

/// Replaces the suggestions in an error about this line, which excludes the program's name.
pub(crate) fn improve(error: &mut Error, mut line: impl Iterator<Item = String>) {
    let program = Cli::command_line();
    match error.kind() {
        ErrorKind::InvalidSubcommand => improve_commands(error, &program),
        ErrorKind::UnknownArgument => {
            let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidArg) else {
                return;
            };
            let given = given.split('=').next().unwrap_or_default().to_owned();
            let command = line.find_map(|word| shown(&program).find(|it| it.get_name() == word));
            let (Some(command), Some(name)) = (command, given.strip_prefix("--")) else {
                return;
            };
            match meant(command, name) {
                Some(meant) => {
                    let meant = ContextValue::String(format!("--{meant}"));
                    error.insert(ContextKind::SuggestedArg, meant);
                }
                None => {
                    error.remove(ContextKind::SuggestedArg);
                }
            }
        }
        _ => {}
    }
}

fn improve_commands(error: &mut Error, program: &Command) {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.clone()],
        Some(ContextValue::Strings(texts)) => texts.clone(),
        _ => Vec::new(),
    };
    let given = text(ContextKind::InvalidSubcommand).concat();
    let mut suggested = text(ContextKind::SuggestedSubcommand);
    suggested.retain(|name| {
        let mut all = program.get_subcommands();
        let is_hidden = all.any(|it| it.get_name() == name && it.is_hide_set());
        !is_hidden && is_alike(&given, name)
    });
    if suggested.is_empty() {
        error.remove(ContextKind::SuggestedSubcommand)
    } else {
        error.insert(
            ContextKind::SuggestedSubcommand,
            ContextValue::Strings(suggested),
        )
    };
}

fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    let below = command.get_subcommands();
    below.filter(|below| !below.is_hide_set())
}

/// Returns the option of a command that was probably meant.
fn meant<'a>(command: &'a Command, name: &str) -> Option<&'a str> {
    let arguments = command.get_arguments().filter(|it| !it.is_hide_set());
    let options: Vec<&str> = arguments.filter_map(|it| it.get_long()).collect();
    let other = OTHER_NAMES.iter().find(|(other, _)| *other == name);
    let other = other.and_then(|(_, own)| options.iter().find(|option| *option == own));
    let nearest = options.iter().filter(|option| is_alike(name, option));
    let nearest = nearest.min_by_key(|option| strsim::damerau_levenshtein(name, option));
    other.or(nearest).copied()
}

/// Returns whether `given` may be a misspelling of `name`: at most a third of its letters differ.
fn is_alike(given: &str, name: &str) -> bool {
    let wrong_max = (given.chars().count() / 3).max(1);
    strsim::damerau_levenshtein(given, name) <= wrong_max
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaint(line: &str) -> String {
        let words = line.split_whitespace();
        let mut error = Cli::command_line()
            .try_get_matches_from(std::iter::once("splitway").chain(words.clone()))
            .unwrap_err();
        improve(&mut error, words.map(str::to_owned));
        error.render().to_string()
    }

    #[test]
    fn commands_that_are_shown_and_alike_are_suggested() {
        for (line, meant) in [
            ("serv", "'serve'"),
            ("srve", "'serve'"),
            ("chekc", "'check'"),
            ("ctl relod", "'reload'"),
        ] {
            let text = complaint(line);
            assert!(text.contains(meant), "{line}: {text}");
            assert!(text.matches("exist").count() == 1, "{line}: {text}");
            assert!(!text.contains("observe"), "{line}: {text}");
        }
        for line in ["obsrve", "hosts", "zzz"] {
            let text = complaint(line);
            assert!(!text.contains("similar"), "{line}: {text}");
        }
    }

    #[test]
    fn options_that_are_alike_or_mean_the_same_are_suggested() {
        for (line, meant) in [
            ("serve site --port 80", "'--listen'"),
            ("serve site --port=80", "'--listen'"),
            ("--log debug serve site --lisen 80", "'--listen'"),
            ("serve site --tls-listn 80", "'--tls-listen'"),
            ("serve site --cert x", "'--tls-cert'"),
            ("stat --prot 80", "'--port'"),
        ] {
            let text = complaint(line);
            assert!(
                text.contains(&format!("argument exists: {meant}")),
                "{line}: {text}"
            );
        }
        for line in [
            "serve site --end-with-paren",
            "nic site --dev x --port 80",
            "serve --zzz",
        ] {
            let text = complaint(line);
            assert!(!text.contains("similar"), "{line}: {text}");
        }
    }
}
