//! Manual pages and shell completions, generated from the definitions of the command line.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgGroup, Args, ValueEnum, ValueHint};
use clap_complete::Shell;

use failure::Failure;

/// What is written, and where.
#[derive(Clone, Debug, Args)]
pub(crate) struct GenerateArgs {
    /// What to write
    #[arg(value_enum)]
    what: What,

    /// Directory to write to; created if missing
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    /// Manual pages, one per command: splitway.1, splitway-serve.1 and so on
    Man,
    /// Completions for bash, zsh and fish: splitway.bash, _splitway, splitway.fish
    Completions,
}

/// Writes manual pages or completions for a program.
pub(crate) fn run(args: &GenerateArgs, program: &clap::Command) -> Result<(), Failure> {
    let write = match args.what {
        What::Man => man,
        What::Completions => completions,
    };
    fs::create_dir_all(&args.directory)
        .and_then(|()| write(program, &args.directory))
        .map_err(|error| Failure::input(format!("writing to {}", args.directory.display()), error))
}

fn man(program: &clap::Command, directory: &Path) -> io::Result<()> {
    let mut program = program.clone().disable_help_subcommand(true);
    program.build();
    pages(&program, directory)
}

/// Writes the pages of a command and of its subcommands.
fn pages(command: &clap::Command, directory: &Path) -> io::Result<()> {
    let shown = command
        .get_subcommands()
        .filter(|below| !below.is_hide_set());
    for below in shown {
        pages(below, directory)?;
    }
    let man = clap_mangen::Man::new(command.clone());
    let mut page = Vec::new();
    man.render(&mut page)?;
    let page = String::from_utf8(page).map_err(io::Error::other)?;
    fs::write(directory.join(man.get_filename()), with_headings(&page))
}

/// `clap` takes everything below the options in `--help` as one text, headings included.
fn with_headings(page: &str) -> String {
    let mut text = String::with_capacity(page.len());
    for line in page.lines() {
        text.push_str(match line {
            ".SH EXTRA" => ".SH NOTES",
            "Example:" => ".SS Example",
            "Examples:" => ".SS Examples",
            line => line,
        });
        text.push('\n');
    }
    text
}

fn completions(program: &clap::Command, directory: &Path) -> io::Result<()> {
    let mut command = to_complete(program);
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command, "splitway", directory)?;
    }
    Ok(())
}

/// Returns a command without hidden commands and options, which completions would offer as well.
fn to_complete(command: &clap::Command) -> clap::Command {
    let shown = command
        .get_subcommands()
        .filter(|below| !below.is_hide_set());
    let args: Vec<Arg> = command
        .get_arguments()
        .filter(|arg| !arg.is_hide_set())
        .cloned()
        .map(with_hint)
        .collect();
    let groups = command.get_groups().map(|group| {
        let members = group
            .get_args()
            .filter(|id| args.iter().any(|arg| arg.get_id() == *id))
            .cloned();
        ArgGroup::new(group.get_id().clone())
            .args(members)
            .multiple(true)
    });
    clap::Command::new(command.get_name().to_owned())
        .about(command.get_about().cloned().unwrap_or_default())
        .disable_help_subcommand(true)
        .groups(groups.collect::<Vec<_>>())
        .args(args)
        .subcommands(shown.map(to_complete))
}

/// Adds a hint about an option's values for shells, from the name of its value. Without a hint they
/// would offer files.
fn with_hint(arg: Arg) -> Arg {
    if !arg.get_action().takes_values() || !arg.get_possible_values().is_empty() {
        return arg;
    }
    let name = arg.get_value_names().and_then(|names| names.first());
    let hint = match name.map_or("", |name| name.as_str()) {
        "FILE" | "FILE|-" | "PATH" | "PATH|-" => ValueHint::FilePath,
        name if name.starts_with("SOCKET") => ValueHint::FilePath,
        "DIR" | "ROOT" | "SITE" => ValueHint::DirPath,
        "USER" => ValueHint::Username,
        "PROGRAM" => ValueHint::CommandWithArguments,
        _ => ValueHint::Other,
    };
    arg.value_hint(hint)
}
