//! Prometheus' text format, version 0.0.4.

use std::fmt::{Display, Write};

use crate::catalog::Metric;

/// Media type of the response.
pub(crate) const MEDIA_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The text of the metrics written so far.
#[derive(Debug, Default)]
pub(crate) struct Exposition {
    text: String,
}

/// Label names and values of a sample.
pub(crate) type Labels<'a> = &'a [(&'a str, &'a dyn Display)];

impl Exposition {
    /// Begins a metric; all its samples follow.
    pub(crate) fn metric(&mut self, metric: &Metric) {
        let Metric { name, kind, help } = metric;
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "# HELP {name} {help}");
        let _ = writeln!(self.text, "# TYPE {name} {}", kind.name());
    }

    /// Writes a sample; `suffix` follows the metric's name, in histograms.
    pub(crate) fn sample(
        &mut self,
        metric: &Metric,
        suffix: &str,
        labels: Labels<'_>,
        value: impl Display,
    ) {
        let _ = write!(self.text, "{}{suffix}", metric.name);
        for (number, (name, value)) in labels.iter().enumerate() {
            let value = value.to_string();
            let value = value
                .replace('\\', "\\\\")
                .replace('"', "\\\"")
                .replace('\n', "\\n");
            let before = if number == 0 { '{' } else { ',' };
            let _ = write!(self.text, "{before}{name}=\"{value}\"");
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.text, "{end} {value}");
    }

    /// Writes a metric with one sample.
    pub(crate) fn single(&mut self, metric: &Metric, value: impl Display) {
        self.metric(metric);
        self.sample(metric, "", &[], value);
    }

    /// Writes a histogram of durations.
    pub(crate) fn histogram(&mut self, metric: &Metric, histogram: &Histogram) {
        self.metric(metric);
        let mut below = 0;
        for (bound_us, count) in BOUNDS_US.iter().zip(&histogram.counts) {
            below += count;
            self.sample(metric, "_bucket", &[("le", &seconds(*bound_us))], below);
        }
        self.sample(metric, "_bucket", &[("le", &"+Inf")], histogram.count);
        self.sample(metric, "_sum", &[], seconds(histogram.sum_us));
        self.sample(metric, "_count", &[], histogram.count);
    }

    pub(crate) fn finish(self) -> String {
        self.text
    }
}

/// Converts microseconds to seconds.
pub(crate) fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

/// Upper bounds of a histogram's buckets, in microseconds.
const BOUNDS_US: [u64; 15] = [
    100,
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    1_000_000,
    5_000_000,
    30_000_000,
    300_000_000,
];

/// Distribution of durations.
#[derive(Clone, Debug, Default)]
pub(crate) struct Histogram {
    /// Count of each bucket, without those of lower buckets.
    counts: [u64; BOUNDS_US.len()],
    pub count: u64,
    pub sum_us: u64,
}

impl Histogram {
    pub(crate) fn observe(&mut self, us: u64) {
        let bucket = BOUNDS_US.partition_point(|bound_us| *bound_us < us);
        if let Some(count) = self.counts.get_mut(bucket) {
            *count += 1;
        }
        self.count += 1;
        self.sum_us = self.sum_us.saturating_add(us);
    }
}

/// Checks a text as scrapers do, and returns its samples: names with labels, and values.
#[cfg(test)]
pub(crate) fn parse(text: &str) -> std::collections::BTreeMap<String, f64> {
    let is_name = |name: &str| {
        !name.starts_with(|c: char| c.is_ascii_digit())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let mut samples = std::collections::BTreeMap::new();
    let mut seen = std::collections::BTreeSet::new();
    let (mut current, mut kind) = (String::new(), String::new());
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            assert!(is_name(name) && help.len() > 5, "{line}");
            assert!(seen.insert(name.to_owned()), "{name} is there twice");
            let typed = lines.next().unwrap();
            let typed = typed.strip_prefix("# TYPE ").unwrap();
            let (typed_name, typed_kind) = typed.split_once(' ').unwrap();
            assert_eq!(typed_name, name);
            (current, kind) = (name.to_owned(), typed_kind.to_owned());
            assert!(["counter", "gauge", "histogram"].contains(&typed_kind));
            assert_eq!(name.ends_with("_total"), kind == "counter", "{name}");
            continue;
        }
        let (sample, value) = line.rsplit_once(' ').unwrap();
        let (name, labels) = sample.split_once('{').unwrap_or((sample, "}"));
        let suffix = name
            .strip_prefix(&current)
            .unwrap_or_else(|| panic!("{line} in {current}"));
        match kind.as_str() {
            "histogram" => assert!(["_bucket", "_sum", "_count"].contains(&suffix), "{line}"),
            _ => assert_eq!(suffix, "", "{line}"),
        }
        let labels = labels.strip_suffix('}').unwrap();
        for label in labels.split("\",").filter(|label| !label.is_empty()) {
            let (name, value) = label.split_once("=\"").unwrap_or_else(|| panic!("{line}"));
            assert!(is_name(name) && !value.contains('\n'), "{line}");
        }
        let value: f64 = value.parse().unwrap_or_else(|_| panic!("{line}"));
        assert!(
            samples.insert(sample.to_owned(), value).is_none(),
            "{sample} twice"
        );
    }
    samples
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Kind;

    #[test]
    fn samples_differ_by_labels_that_are_escaped() {
        let metric = Metric {
            name: "things_total".to_owned(),
            kind: Kind::Counter,
            help: "What\nthere \\ is.".to_owned(),
        };
        let mut exposition = Exposition::default();
        exposition.metric(&metric);
        exposition.sample(&metric, "", &[("a", &"\"\\\n"), ("b", &2)], 3);
        let text = exposition.finish();
        assert_eq!(
            text,
            "# HELP things_total What\\nthere \\\\ is.\n# TYPE things_total counter\n\
             things_total{a=\"\\\"\\\\\\n\",b=\"2\"} 3\n"
        );
    }

    #[test]
    fn a_histogram_counts_all_below_each_bound() {
        let mut histogram = Histogram::default();
        for us in [0, 100, 101, 4_000, 400_000_000] {
            histogram.observe(us);
        }
        let metric = Metric {
            name: "times_seconds".to_owned(),
            kind: Kind::Histogram,
            help: "Some times.".to_owned(),
        };
        let mut exposition = Exposition::default();
        exposition.histogram(&metric, &histogram);
        let samples = parse(&exposition.finish());
        for (bound, count) in [
            ("0.0001", 2.0),
            ("0.00025", 3.0),
            ("0.0025", 3.0),
            ("0.005", 4.0),
            ("300", 4.0),
            ("+Inf", 5.0),
        ] {
            assert_eq!(
                samples[&format!("times_seconds_bucket{{le=\"{bound}\"}}")],
                count,
                "{bound}"
            );
        }
        assert_eq!(samples["times_seconds_count"], 5.0);
        assert!((samples["times_seconds_sum"] - 400.004_201).abs() < 1e-9);
        assert_eq!(samples.len(), BOUNDS_US.len() + 3);
    }
}
