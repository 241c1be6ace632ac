//! Where the results of a measurement go.

use std::fs;
use std::path::Path;

use serde::Serialize;
use testbed::{Context, Result};

/// Prints a measurement's Markdown, and writes it to a directory: `NAME.md`, `NAME.json` with everything that was
/// measured, and its plots, each with its file name. The directory is made if it is not there.
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
