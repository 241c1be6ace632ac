//! Results as Markdown: the machine, tables, promises, published values, notes.

use std::fmt::Write as _;

use super::{Bound, Check, Results, Selection, Table};
use crate::measure::run::ALL_NAMES;
use crate::measure::spread::verdict;

/// A text that lines are added to.
#[derive(Default)]
struct Text(String);

impl Text {
    fn line(&mut self, words: impl AsRef<str>) {
        self.0.push_str(words.as_ref());
        self.0.push('\n');
    }

    fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.0.push('|');
        for cell in cells {
            // Writing to a string does not fail.
            let _ = write!(self.0, " {cell} |");
        }
        self.0.push('\n');
    }

    fn head(&mut self, headings: Vec<String>) {
        let columns = headings.len();
        self.row(headings);
        self.line(format!("|{}", "---|".repeat(columns)));
    }
}

impl Results {
    pub(super) fn markdown(&self) -> String {
        let mut text = Text::default();
        text.line(format!("# {}\n", self.title));
        text.line(format!("`{}`\n\n{}", self.command, self.machine));
        for table in &self.tables {
            let groups = self.groups(Some(table.part));
            if !groups.is_empty() {
                text.line("");
                table.write(&groups, &mut text);
            }
        }
        for plot in &self.plots {
            text.line(format!("\n![{}]({}.svg)", plot.title(self), plot.file));
        }
        if !self.checks.is_empty() {
            text.line("");
            self.write_checks(&mut text);
        }
        if !self.published.is_empty() {
            text.line("");
            text.head(
                ["Published (IO-TCP, NSDI 2023)", "Where", "Value"]
                    .map(str::to_owned)
                    .into(),
            );
            for published in &self.published {
                text.row([
                    published.series.to_owned(),
                    published.source.to_owned(),
                    format!("{} {}", published.value, published.unit),
                ]);
            }
        }
        if !self.notes.is_empty() {
            text.line("");
            for note in &self.notes {
                text.line(format!("- {note}"));
            }
        }
        text.0
    }

    fn write_checks(&self, text: &mut Text) {
        text.head(
            ["Measure", "Measured", "Wanted", ""]
                .map(str::to_owned)
                .into(),
        );
        for check in &self.checks {
            let value = check.value.map_or("not measured".to_owned(), |value| {
                let digits = if value.abs() < 10.0 { 3 } else { 0 };
                format!("{value:.digits$}")
            });
            text.row([
                check.what.clone(),
                value,
                check.bound.to_string(),
                check.verdict().to_owned(),
            ]);
        }
    }
}

impl Check {
    fn verdict(&self) -> &'static str {
        match self.bound {
            Bound::None => "",
            _ => verdict(self.met),
        }
    }
}

impl Table {
    fn write(&self, groups: &[Selection<'_>], text: &mut Text) {
        if !self.title.is_empty() {
            text.line(format!("## {}\n", self.title));
        }
        let mut headings = vec![self.series.to_owned()];
        headings.extend(
            self.conditions
                .iter()
                .map(|(_, heading)| (*heading).to_owned()),
        );
        headings.extend(self.columns.iter().map(|column| column.heading.to_owned()));
        text.head(headings);
        for group in groups {
            let first = group.samples[0];
            let mut cells = vec![first.series.clone()];
            let conditions = self.conditions.iter();
            cells.extend(conditions.map(|(name, _)| {
                let value = first.conditions.get(name);
                value.map_or(String::new(), ToString::to_string)
            }));
            let columns = self.columns.iter();
            match group.failure() {
                Some(reason) => {
                    let reason = reason.replace('|', "/").replace('\n', " ");
                    cells.push(format!("failed: {reason}"));
                    cells.extend(columns.skip(1).map(|_| String::new()));
                }
                None => {
                    cells.extend(columns.map(|column| group.cell(column.measure, column.digits)))
                }
            }
            text.row(cells);
        }
    }
}

impl Selection<'_> {
    fn cell(&self, measure: &str, digits: usize) -> String {
        let Some(prefix) = measure.strip_suffix('*') else {
            return self.spread(measure).cell(digits);
        };
        let names = self.samples[0].measures.keys();
        let processes = names.filter_map(|name| name.strip_prefix(prefix));
        let cells: Vec<String> = processes
            .filter(|process| !ALL_NAMES.contains(process))
            .map(|process| {
                let spread = self.spread(&format!("{prefix}{process}"));
                format!("{process} {}", spread.cell(digits))
            })
            .collect();
        cells.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::results;
    use super::super::{Published, column};
    use super::*;

    #[test]
    fn a_table_has_a_row_for_each_series_and_condition() {
        let mut results = results(&[("a", 1.0, 5.0), ("b", 1.0, 7.0), ("a", 1.0, 9.0)]);
        results.samples[0]
            .measures
            .insert("cpu_s_per_gb.host".into(), 0.25);
        results.samples[0]
            .measures
            .insert("cpu_s_per_gb.server".into(), 0.5);
        results.table(Table {
            part: "",
            title: "Some",
            series: "Server",
            conditions: &[("connections", "Connections")],
            columns: vec![
                column("gbit_per_s", "Gbit/s", 1),
                column("cpu_s_per_gb.*", "each", 2),
            ],
        });
        let text = results.markdown();
        for row in [
            "## Some",
            "| Server | Connections | Gbit/s | each |\n|---|---|---|---|",
            "| a | 1 | 7.0 (5.0–9.0) | host 0.25 |",
            "| b | 1 | 7.0 |  |",
        ] {
            assert!(text.contains(row), "{row}\n{text}");
        }
    }

    #[test]
    fn a_series_of_which_a_run_has_failed_has_the_reason_in_its_row() {
        let mut results = results(&[("a", 1.0, 5.0), ("b", 1.0, 7.0)]);
        results.fail("", "b", &[("connections", 1.0)], "a connection is lost");
        results.table(Table::of(
            "",
            vec![
                column("gbit_per_s", "Gbit/s", 1),
                column("cpu_s_per_gb.*", "each", 2),
            ],
        ));
        let text = results.markdown();
        for row in ["| a | 5.0 |  |", "| b | failed: a connection is lost |  |"] {
            assert!(text.contains(row), "{row}\n{text}");
        }
        assert!(results.has_failed("", "b", "connections", 1.0));
        assert!(!results.has_failed("", "a", "connections", 1.0));
    }

    #[test]
    fn a_check_says_whether_it_is_met() {
        let mut results = results(&[]);
        results.check("host", 0.0125, Bound::AtMost(1.0 / 80.0));
        results.check("both", 0.31, Bound::AtMost(0.3));
        results.check("ceiling", f64::NAN, Bound::AtLeast(400.0));
        results.check("machine", 0.5, Bound::None);
        let text = results.markdown();
        for row in [
            "| host | 0.013 | at most 0.0125 | met |",
            "| both | 0.310 | at most 0.3 | NOT MET |",
            "| ceiling | not measured | at least 400 | NOT MET |",
            "| machine | 0.500 |  |  |",
        ] {
            assert!(text.contains(row), "{row}\n{text}");
        }
    }

    #[test]
    fn published_values_name_their_source() {
        let mut results = results(&[]);
        results.publish_beside(&[Published {
            source: "figure 7",
            series: "IO-TCP, one core",
            measure: "gbit_per_s",
            x: None,
            value: 78.1,
            unit: "Gbit/s",
        }]);
        let text = results.markdown();
        assert!(
            text.contains("| IO-TCP, one core | figure 7 | 78.1 Gbit/s |"),
            "{text}"
        );
    }
}
