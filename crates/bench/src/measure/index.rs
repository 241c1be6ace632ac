//! One page for all benchmarks of a run: kept promises first, then each benchmark's own page with
//! its tables, its plots, published values, and the differences from their setup.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use testbed::{Context, Result};

use crate::measure::results::Saved;

/// Name of the page's file.
const PAGE: &str = "index.md";

/// A benchmark that was run.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) name: String,
    /// Planned and actual duration.
    pub(crate) planned_seconds: f64,
    pub(crate) seconds: f64,
    /// Reason of its failure, if it failed.
    pub(crate) failure: Option<String>,
}

/// Writes the page beside the results, and returns its path.
pub(crate) fn write(directory: &Path, entries: &[Entry]) -> Result<PathBuf> {
    let path = directory.join(PAGE);
    let text = page(directory, entries)?;
    fs::create_dir_all(directory).context(|| format!("creating {}", directory.display()))?;
    fs::write(&path, text).context(|| format!("writing {}", path.display()))?;
    Ok(path)
}

fn page(directory: &Path, entries: &[Entry]) -> Result<String> {
    let command: Vec<String> = std::env::args().collect();
    let mut head = format!(
        "# Measurements\n\n`{}`\n\n| | | Promises kept | Took, s | Was to take, s |\n\
         |---|---|---|---|---|\n",
        command.join(" ")
    );
    let mut sections = String::new();
    for entry in entries {
        let name = &entry.name;
        let section = directory.join(format!("{name}.md"));
        // A benchmark that fails may have written results before.
        let (what, promises) = if section.exists() {
            let saved = Saved::read(directory, name)?;
            let text = fs::read_to_string(&section)
                .context(|| format!("reading {}", section.display()))?;
            let _ = write!(sections, "\n<a id=\"{name}\"></a>\n\n{}", demoted(&text));
            (format!("[{}](#{name})", saved.title), kept(&saved))
        } else {
            (String::new(), String::new())
        };
        let failure = entry.failure.as_ref();
        let failure = failure.map_or(String::new(), |failure| format!(" **failed**: {failure}"));
        let _ = writeln!(
            head,
            "| {name} | {what}{failure} | {promises} | {:.0} | {:.0} |",
            entry.seconds, entry.planned_seconds
        );
    }
    let sum = |of: fn(&Entry) -> f64| -> f64 { entries.iter().map(of).sum() };
    let _ = writeln!(
        head,
        "| | all | | {:.0} | {:.0} |",
        sum(|entry| entry.seconds),
        sum(|entry| entry.planned_seconds)
    );
    Ok(head + &sections)
}

/// Returns "met of all" promises; empty without promises, "simulated" for computed results.
fn kept(saved: &Saved) -> String {
    match saved.promises() {
        _ if saved.is_simulated => "simulated".to_owned(),
        (0, _) => String::new(),
        (all, met) => format!("{met} of {all}"),
    }
}

/// Returns a page as a section of another.
fn demoted(text: &str) -> String {
    let line = |line: &str| {
        if line.starts_with('#') {
            format!("#{line}\n")
        } else {
            format!("{line}\n")
        }
    };
    text.lines().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::results::{Bound, Plot, Published, Results};

    fn entry(name: &str, failure: Option<&str>) -> Entry {
        Entry {
            name: name.to_owned(),
            planned_seconds: 8.0,
            seconds: 7.4,
            failure: failure.map(str::to_owned),
        }
    }

    fn publish(directory: &Path) {
        let mut results = Results::new("figure7", "Figure 7: throughput", &()).unwrap();
        let measures = [("gbit_per_s".to_owned(), 31.0)].into();
        results.add("files", "splitway", &[("cores", 1.0)], measures);
        crate::measure::table::add(&mut results, "files", &[("cores", "Cores")]);
        results.plot(Plot::lines(
            "figure7",
            "files",
            ("cores", "cores"),
            ("gbit_per_s", "Gbit/s"),
        ));
        results.check("kept", 1.0, Bound::AtMost(1.0));
        results.check("broken", 2.0, Bound::AtMost(1.0));
        results.publish_beside(&[Published {
            source: "figure 7",
            series: "IO-TCP",
            measure: "gbit_per_s",
            x: Some(1.0),
            value: 78.1,
            unit: "Gbit/s",
        }]);
        results.note("Files come from memory.");
        results.publish(directory).unwrap();
    }

    #[test]
    fn the_page_has_each_figures_table_plot_published_values_and_what_differs() {
        let directory = tempfile::tempdir().unwrap();
        publish(directory.path());
        let entries = [
            entry("figure7", None),
            entry("table1", Some("exit status: 1")),
        ];
        let page = write(directory.path(), &entries).unwrap();
        let text = fs::read_to_string(page).unwrap();
        for part in [
            "| figure7 | [Figure 7: throughput](#figure7) | 1 of 2 | 7 | 8 |",
            "| table1 |  **failed**: exit status: 1 |  | 7 | 8 |",
            "| | all | | 15 | 16 |",
            "<a id=\"figure7\"></a>\n\n## Figure 7: throughput",
            "| splitway | 1 | 31.00 |",
            "![Figure 7: throughput](figure7.svg)",
            "| IO-TCP | figure 7 | 78.1 Gbit/s |",
            "- Files come from memory.",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert!(directory.path().join("figure7.svg").exists());
    }

    #[test]
    fn headings_are_one_level_lower() {
        assert_eq!(
            demoted("# One\n\n## Two\ntext # 3\n"),
            "## One\n\n### Two\ntext # 3\n"
        );
    }
}
