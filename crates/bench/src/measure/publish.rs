//! Where the results of a measurement go.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;
use testbed::{Context, Result};

/// `target/bench`, beside the directory of this program; it is made if it is not there.
pub(crate) fn results_directory() -> Result<PathBuf> {
    let own = std::env::current_exe().context(|| "finding this program".into())?;
    // target/release/splitway-bench
    let beside = own.parent().expect("an absolute path");
    let directory = beside.parent().unwrap_or(beside).join("bench");
    fs::create_dir_all(&directory).context(|| format!("creating {}", directory.display()))?;
    Ok(directory)
}

/// Prints a measurement's Markdown, and writes it to a directory: `NAME.md`, `NAME.json` with
/// everything that was measured, and its plots, each with its file name. The directory is made if
/// it is not there.
pub(crate) fn publish<'a>(
    directory: &Path,
    name: &str,
    markdown: String,
    measured: &impl Serialize,
    plots: impl IntoIterator<Item = (&'a str, String)>,
) -> Result<()> {
    println!("\n{markdown}");
    fs::create_dir_all(directory).context(|| format!("creating {}", directory.display()))?;
    let json = serde_json::to_string_pretty(measured).context(|| "writing JSON".into())?;
    let tables = [
        (format!("{name}.json"), json),
        (format!("{name}.md"), markdown),
    ];
    let plots = plots.into_iter().map(|(name, svg)| (name.to_owned(), svg));
    for (name, text) in tables.into_iter().chain(plots) {
        let path = directory.join(name);
        fs::write(&path, text).context(|| format!("writing {}", path.display()))?;
        println!("{}", path.display());
    }
    Ok(())
}
