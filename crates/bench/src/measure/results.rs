//! Results of a benchmark, in one form for all benchmarks: samples, with tables, plots and JSON
//! made from them.
//!
//! A benchmark adds a [`Sample`] for each run, its tables and plots, the bounds promised for its
//! measures, and published values, and publishes the whole: `NAME.md`, `NAME.json` and
//! `NAME-….svg`.
//!
//! | Module | Contents |
//! |---|---|
//! | [`machine`] | the machine of the measurement |
//! | [`counts`] | Splitway's own counters |
//! | [`saved`] | the same, read again |
//! | [`markdown`] | tables |
//! | [`plot`] | line charts and bars |

mod counts;
pub(crate) mod machine;
mod markdown;
mod plot;
mod saved;

use std::collections::BTreeMap;
use std::fmt::{Display, Formatter};
use std::path::Path;

use serde::{Deserialize, Serialize};
use testbed::{Context, Result};

pub(crate) use machine::Machine;
pub(crate) use plot::Plot;
pub(crate) use saved::Saved;

use crate::measure::publish::publish;
use crate::measure::spread::Spread;

/// Values of one run by name, units last: `gbit_per_s`, `cpu_s_per_gb.host`.
pub(crate) type Measures = BTreeMap<String, f64>;

/// Conditions that differ between samples of the same series, by name: `connections`.
pub(crate) type Conditions = BTreeMap<&'static str, f64>;

/// One run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Sample {
    /// The comparison of the benchmark to which it belongs.
    pub(crate) part: &'static str,
    /// Measured server, or way to run one.
    pub(crate) series: String,
    pub(crate) conditions: Conditions,
    pub(crate) measures: Measures,
    /// Reason of the failure, without measures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failure: Option<String>,
}

/// Samples of the same series under the same conditions, summed up.
#[derive(Debug, Serialize)]
struct Summary {
    part: &'static str,
    series: String,
    conditions: Conditions,
    rounds: usize,
    measures: BTreeMap<String, Spread>,
}

/// Bound of a value, promised or aimed for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Bound {
    AtMost(f64),
    AtLeast(f64),
    /// No bound: the value is reported only.
    None,
}

impl Bound {
    fn is_met(self, value: f64) -> bool {
        match self {
            Bound::AtMost(most) => value <= most,
            Bound::AtLeast(least) => value >= least,
            Bound::None => true,
        }
    }
}

impl Display for Bound {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let number = |value: f64| {
            let text = format!("{value:.4}");
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        };
        match self {
            Bound::AtMost(most) => write!(f, "at most {}", number(*most)),
            Bound::AtLeast(least) => write!(f, "at least {}", number(*least)),
            Bound::None => Ok(()),
        }
    }
}

/// A value with its bound.
#[derive(Debug, Serialize)]
pub(crate) struct Check {
    pub(crate) what: String,
    /// `None` if it was not measured.
    pub(crate) value: Option<f64>,
    pub(crate) bound: Bound,
    pub(crate) met: bool,
}

/// A value that others have published.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Published {
    /// Figure, table or section of the paper.
    pub(crate) source: &'static str,
    /// Server or variant of the value.
    pub(crate) series: &'static str,
    /// Comparable measure of this benchmark.
    pub(crate) measure: &'static str,
    /// Place on the x axis, if any.
    pub(crate) x: Option<f64>,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
}

/// A table: a row for each series and condition of a part.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) part: &'static str,
    /// Heading of the table, if any.
    pub(crate) title: &'static str,
    /// Heading of the column of series.
    pub(crate) series: &'static str,
    /// Conditions that have a column: their names, and the headings.
    pub(crate) conditions: &'static [(&'static str, &'static str)],
    pub(crate) columns: Vec<Column>,
}

impl Table {
    /// Returns a table of servers that differ in nothing else.
    pub(crate) fn of(part: &'static str, columns: Vec<Column>) -> Table {
        Table {
            part,
            title: "",
            series: "Server",
            conditions: &[],
            columns,
        }
    }

    /// Sets a title.
    pub(crate) fn titled(self, title: &'static str) -> Table {
        Table { title, ..self }
    }

    /// Sets another heading for the series than servers.
    pub(crate) fn of_each(self, series: &'static str) -> Table {
        Table { series, ..self }
    }

    /// Adds a column for each of `conditions`.
    pub(crate) fn over(self, conditions: crate::measure::spread::Conditions) -> Table {
        Table { conditions, ..self }
    }
}

/// A column with medians and spread of a measure. A measure `cpu_s_per_gb.*` stands for the
/// measures of all processes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    pub(crate) measure: &'static str,
    pub(crate) heading: &'static str,
    pub(crate) digits: usize,
}

/// A column.
pub(crate) const fn column(measure: &'static str, heading: &'static str, digits: usize) -> Column {
    Column {
        measure,
        heading,
        digits,
    }
}

/// All results of a benchmark.
#[derive(Debug, Serialize)]
pub(crate) struct Results {
    benchmark: &'static str,
    title: String,
    /// Computed by a model instead of measured.
    is_simulated: bool,
    command: String,
    machine: Machine,
    settings: serde_json::Value,
    summary: Vec<Summary>,
    checks: Vec<Check>,
    published: Vec<Published>,
    /// Counters of the servers, over all their runs.
    counters: Vec<serde_json::Value>,
    notes: Vec<String>,
    samples: Vec<Sample>,
    #[serde(skip)]
    tables: Vec<Table>,
    #[serde(skip)]
    plots: Vec<Plot>,
}

impl Results {
    /// Returns empty results. `benchmark` is the base name of their files.
    pub(crate) fn new(
        benchmark: &'static str,
        title: impl Into<String>,
        settings: &impl Serialize,
    ) -> Result<Results> {
        Ok(Results {
            benchmark,
            title: title.into(),
            is_simulated: false,
            command: std::env::args().collect::<Vec<_>>().join(" "),
            machine: Machine::read()?,
            settings: serde_json::to_value(settings).context(|| "writing JSON".into())?,
            summary: Vec::new(),
            checks: Vec::new(),
            published: Vec::new(),
            counters: Vec::new(),
            notes: Vec::new(),
            samples: Vec::new(),
            tables: Vec::new(),
            plots: Vec::new(),
        })
    }

    /// Returns empty results of a model.
    pub(crate) fn simulated(
        benchmark: &'static str,
        title: impl std::fmt::Display,
        settings: &impl Serialize,
    ) -> Result<Results> {
        let mut results = Results::new(benchmark, format!("Simulated: {title}"), settings)?;
        results.is_simulated = true;
        results.machine.has_no_network();
        Ok(results)
    }

    pub(crate) fn machine(&mut self) -> &mut Machine {
        &mut self.machine
    }

    /// Adds a run.
    pub(crate) fn add(
        &mut self,
        part: &'static str,
        series: impl Into<String>,
        conditions: &[(&'static str, f64)],
        measures: Measures,
    ) {
        self.push(part, series.into(), conditions, Ok(measures));
    }

    /// Adds a failed run with its reason, which tables show in its row.
    pub(crate) fn fail(
        &mut self,
        part: &'static str,
        series: impl Into<String>,
        conditions: &[(&'static str, f64)],
        reason: impl Into<String>,
    ) {
        self.push(part, series.into(), conditions, Err(reason.into()));
    }

    fn push(
        &mut self,
        part: &'static str,
        series: String,
        conditions: &[(&'static str, f64)],
        outcome: std::result::Result<Measures, String>,
    ) {
        let (measures, failure) = match outcome {
            Ok(measures) => (measures, None),
            Err(reason) => (Measures::new(), Some(reason)),
        };
        self.samples.push(Sample {
            part,
            series,
            conditions: conditions.iter().copied().collect(),
            measures,
            failure,
        });
    }

    /// Whether a run of a series under one condition has failed.
    pub(crate) fn has_failed(
        &self,
        part: &'static str,
        series: &str,
        condition: &'static str,
        value: f64,
    ) -> bool {
        let selection = self.at(part, series, condition, value);
        selection.failure().is_some()
    }

    /// Adds a server's counters.
    pub(crate) fn count(&mut self, counters: serde_json::Value) {
        self.counters.push(counters);
    }

    #[cfg(test)]
    pub(crate) fn checks(&self) -> &[Check] {
        &self.checks
    }

    pub(crate) fn table(&mut self, table: Table) {
        self.tables.push(table);
    }

    pub(crate) fn plot(&mut self, plot: Plot) {
        self.plots.push(plot);
    }

    /// Adds a bound for a value; a value that is no number was not measured.
    pub(crate) fn check(&mut self, what: impl Into<String>, value: f64, bound: Bound) {
        let value = value.is_finite().then_some(value);
        self.checks.push(Check {
            what: what.into(),
            value,
            bound,
            met: value.is_some_and(|value| bound.is_met(value)),
        });
    }

    /// Returns true if all values keep their bounds.
    pub(crate) fn is_kept(&self) -> bool {
        self.checks.iter().all(|check| check.met)
    }

    pub(crate) fn publish_beside(&mut self, published: &[Published]) {
        self.published.extend_from_slice(published);
    }

    /// Adds a note for the reader, of one or more sentences.
    pub(crate) fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Reports whether a part has any sample.
    pub(crate) fn has(&self, part: &str) -> bool {
        self.samples.iter().any(|sample| sample.part == part)
    }

    /// Returns the samples of a series.
    pub(crate) fn of(&self, part: &'static str, series: &str) -> Selection<'_> {
        let samples = self.samples.iter();
        let samples = samples.filter(|sample| sample.part == part && sample.series == series);
        Selection {
            samples: samples.collect(),
        }
    }

    /// Returns the samples of a series under one condition.
    pub(crate) fn at(
        &self,
        part: &'static str,
        series: &str,
        condition: &'static str,
        value: f64,
    ) -> Selection<'_> {
        self.under(part, series, &[(condition, value)])
    }

    /// Returns the median of a measure of one series, as a multiple of the median of another; NaN
    /// unless both were measured.
    pub(crate) fn ratio(
        &self,
        part: &'static str,
        (own, measure): (&str, &str),
        (other, other_measure): (&str, &str),
    ) -> f64 {
        self.of(part, own).median(measure) / self.of(part, other).median(other_measure)
    }

    /// Returns the samples of a series under several conditions.
    pub(crate) fn under(
        &self,
        part: &'static str,
        series: &str,
        conditions: &[(&'static str, f64)],
    ) -> Selection<'_> {
        let mut selection = self.of(part, series);
        selection.samples.retain(|sample| {
            let mut wanted = conditions.iter();
            wanted.all(|(name, value)| sample.conditions.get(name) == Some(value))
        });
        selection
    }

    /// Returns the groups of samples of a part that differ only in the round, in the order of their
    /// first samples.
    fn groups(&self, part: Option<&'static str>) -> Vec<Selection<'_>> {
        let mut groups: Vec<Selection<'_>> = Vec::new();
        for sample in &self.samples {
            if part.is_some_and(|part| part != sample.part) {
                continue;
            }
            match groups.iter_mut().find(|group| group.is_of(sample)) {
                Some(group) => group.samples.push(sample),
                None => groups.push(Selection {
                    samples: vec![sample],
                }),
            }
        }
        groups
    }

    fn sum_up(&mut self) {
        let summaries = self.groups(None).into_iter().map(|group| {
            let first = group.samples[0];
            let mut names: Vec<&String> = group
                .samples
                .iter()
                .flat_map(|sample| sample.measures.keys())
                .collect();
            names.sort();
            names.dedup();
            Summary {
                part: first.part,
                series: first.series.clone(),
                conditions: first.conditions.clone(),
                rounds: group.samples.len(),
                measures: names
                    .into_iter()
                    .map(|name| (name.clone(), group.spread(name)))
                    .collect(),
            }
        });
        self.summary = summaries.collect();
    }

    /// Prints tables, and writes all results to a directory, which is made if it does not exist.
    pub(crate) fn publish(mut self, directory: &Path) -> Result<()> {
        self.tell_counts();
        self.sum_up();
        let plots: Vec<(String, String)> = self
            .plots
            .iter()
            .map(|plot| Ok((format!("{}.svg", plot.file), plot.svg(&self)?)))
            .collect::<Result<_>>()?;
        let plots = plots.iter().map(|(name, svg)| (name.as_str(), svg.clone()));
        publish(directory, self.benchmark, self.markdown(), &self, plots)
    }
}

/// Some samples.
#[derive(Debug)]
pub(crate) struct Selection<'a> {
    samples: Vec<&'a Sample>,
}

impl Selection<'_> {
    /// Returns the reason of a failed run, if any failed.
    fn failure(&self) -> Option<&str> {
        self.samples
            .iter()
            .find_map(|sample| sample.failure.as_deref())
    }

    fn is_of(&self, sample: &Sample) -> bool {
        let first = self.samples[0];
        (first.part, &first.series, &first.conditions)
            == (sample.part, &sample.series, &sample.conditions)
    }

    /// Returns median and extremes of a measure; NaN if no sample has it.
    pub(crate) fn spread(&self, measure: &str) -> Spread {
        let values = self.samples.iter();
        Spread::of(values.filter_map(|sample| sample.measures.get(measure).copied()))
    }

    pub(crate) fn median(&self, measure: &str) -> f64 {
        self.spread(measure).median
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;

    use super::*;

    /// Results with samples of one part: series, connections, Gbit/s.
    pub(crate) fn results(samples: &[(&str, f64, f64)]) -> Results {
        let mut results = Results::new("name", "Title", &()).unwrap();
        for &(series, connections, gbit_per_s) in samples {
            let measures = [("gbit_per_s".to_owned(), gbit_per_s)].into();
            results.add("", series, &[("connections", connections)], measures);
        }
        results
    }

    #[test]
    fn samples_differ_by_series_and_condition() {
        let results = results(&[
            ("a", 1.0, 5.0),
            ("b", 1.0, 7.0),
            ("a", 1.0, 9.0),
            ("a", 4.0, 1.0),
        ]);
        assert_eq!(
            results.at("", "a", "connections", 1.0).median("gbit_per_s"),
            7.0
        );
        assert_eq!(results.of("", "b").median("gbit_per_s"), 7.0);
        assert!(results.of("", "c").median("gbit_per_s").is_nan());
        assert_eq!(results.groups(Some("")).len(), 3);
    }

    #[test]
    fn what_was_not_measured_is_not_met() {
        let mut results = results(&[]);
        results.check("missing", f64::NAN, Bound::AtMost(1.0));
        results.check("met", 1.0, Bound::AtMost(1.0));
        results.check("missed", 0.9, Bound::AtLeast(1.0));
        let met: Vec<bool> = results.checks.iter().map(|check| check.met).collect();
        assert_eq!(met, [false, true, false]);
    }

    #[test]
    fn what_is_published_is_a_file_set_that_holds_every_round() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("made/on/the/way");
        let mut results = results(&[("a", 1.0, 5.0), ("a", 1.0, 9.0)]);
        results.plot(Plot::lines(
            "name-plot",
            "",
            ("connections", "connections"),
            ("gbit_per_s", "Gbit/s"),
        ));
        results.publish(&place).unwrap();
        let json = fs::read_to_string(place.join("name.json")).unwrap();
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["samples"][1]["measures"]["gbit_per_s"], 9.0);
        assert_eq!(json["summary"][0]["measures"]["gbit_per_s"]["median"], 7.0);
        assert_eq!(json["summary"][0]["rounds"], 2);
        assert!(json["machine"]["cores"].as_u64().unwrap() > 0);
        assert!(place.join("name.md").exists() && place.join("name-plot.svg").exists());
    }
}
