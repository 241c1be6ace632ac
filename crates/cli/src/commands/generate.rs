//! Manual pages and completions for shells, from the definitions that the command line is read
//! with.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
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

/// Writes what is asked for about a program.
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

/// The pages of a command and of all below it.
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

/// What stands below the options in `--help` is one text to `clap`, headings included.
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
    let mut command = without_hidden_commands(program);
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command, "splitway", directory)?;
    }
    Ok(())
}

/// What is left to complete: completions would offer hidden commands as well.
fn without_hidden_commands(command: &clap::Command) -> clap::Command {
    let shown = command
        .get_subcommands()
        .filter(|below| !below.is_hide_set());
    clap::Command::new(command.get_name().to_owned())
        .about(command.get_about().cloned().unwrap_or_default())
        .disable_help_subcommand(true)
        .args(command.get_arguments().cloned())
        .groups(command.get_groups().cloned())
        .subcommands(shown.map(without_hidden_commands))
}
