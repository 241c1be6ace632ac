//! Results that another run has written, for benchmarks that depend on others and for the page of
//! all results.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use testbed::{Context, Result};

use super::Bound;
use crate::measure::spread::Spread;

/// The fields of `NAME.json` that other benchmarks use.
#[derive(Debug, Deserialize)]
pub(crate) struct Saved {
    pub(crate) title: String,
    pub(crate) is_simulated: bool,
    checks: Vec<SavedCheck>,
    samples: Vec<SavedSample>,
}

#[derive(Debug, Deserialize)]
struct SavedCheck {
    bound: Bound,
    met: bool,
}

/// Numbers that are NaN are null in the file.
#[derive(Debug, Deserialize)]
struct SavedSample {
    part: String,
    series: String,
    conditions: BTreeMap<String, f64>,
    measures: BTreeMap<String, Option<f64>>,
}

impl Saved {
    /// Reads the file that `splitway-bench BENCHMARK` has written to this directory.
    pub(crate) fn read(directory: &Path, benchmark: &str) -> Result<Saved> {
        Saved::read_file(&directory.join(format!("{benchmark}.json")), benchmark)
    }

    /// Reads the file at any path.
    pub(crate) fn read_file(path: &Path, benchmark: &str) -> Result<Saved> {
        let advice = || {
            format!(
                "reading {}, which `splitway-bench {benchmark}` of this version writes",
                path.display()
            )
        };
        let text = std::fs::read_to_string(path).context(advice)?;
        serde_json::from_str(&text).context(advice)
    }

    /// Returns median and extremes of a measure, of the samples of a series under these conditions.
    pub(crate) fn spread(
        &self,
        part: &str,
        series: &str,
        conditions: &[(&str, f64)],
        measure: &str,
    ) -> Spread {
        let is_meant = |sample: &&SavedSample| {
            let mut wanted = conditions.iter();
            (sample.part.as_str(), sample.series.as_str()) == (part, series)
                && wanted.all(|(name, value)| sample.conditions.get(*name) == Some(value))
        };
        let samples = self.samples.iter().filter(is_meant);
        Spread::of(samples.filter_map(|sample| *sample.measures.get(measure)?))
    }

    /// Returns the values of a condition in a part, ascending.
    pub(crate) fn values_of(&self, part: &str, condition: &str) -> Vec<f64> {
        let samples = self.samples.iter().filter(|sample| sample.part == part);
        let mut values: Vec<f64> = samples
            .filter_map(|sample| sample.conditions.get(condition).copied())
            .collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        values
    }

    /// Returns the number of bounded values, and the number within their bounds.
    pub(crate) fn promises(&self) -> (usize, usize) {
        let bound = |check: &&SavedCheck| check.bound != Bound::None;
        let checks = || self.checks.iter().filter(bound);
        (checks().count(), checks().filter(|check| check.met).count())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::results;
    use super::*;

    #[test]
    fn what_was_published_is_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let mut written = results(&[("a", 1.0, 5.0), ("a", 4.0, 7.0), ("a", 4.0, 9.0)]);
        written.add(
            "",
            "a",
            &[("connections", 4.0)],
            [("gbit_per_s".to_owned(), f64::NAN)].into(),
        );
        written.check("kept", 1.0, Bound::AtMost(1.0));
        written.check("broken", 2.0, Bound::AtMost(1.0));
        written.check("told", 2.0, Bound::None);
        written.publish(directory.path()).unwrap();
        let read = Saved::read(directory.path(), "name").unwrap();
        assert_eq!((read.title.as_str(), read.is_simulated), ("Title", false));
        assert_eq!(read.promises(), (2, 1));
        assert_eq!(read.values_of("", "connections"), [1.0, 4.0]);
        let median = |connections| {
            read.spread("", "a", &[("connections", connections)], "gbit_per_s")
                .median
        };
        assert_eq!((median(1.0), median(4.0)), (5.0, 8.0));
        assert!(median(2.0).is_nan());
    }

    #[test]
    fn what_cannot_be_read_says_what_writes_it() {
        let directory = tempfile::tempdir().unwrap();
        let missing = Saved::read(directory.path(), "ceiling").unwrap_err();
        std::fs::write(directory.path().join("ceiling.json"), r#"{ "cells": [] }"#).unwrap();
        let other = Saved::read(directory.path(), "ceiling").unwrap_err();
        for failure in [missing, other] {
            let text = failure.to_string();
            assert!(text.contains("splitway-bench ceiling"), "{text}");
        }
    }
}
