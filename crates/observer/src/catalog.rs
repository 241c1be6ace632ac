//! The metric of each counter of a process.

use counters::Counter;

use crate::counter_names::{
    BACKENDS, BROKER, CACHE, CounterSet, HOST, NIC, ORIGINS, PROXY, SOCKETS_OF_APPLICATIONS,
};

/// Type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Grows until the process restarts.
    Counter,
    /// Goes up and down, or is a maximum.
    Gauge,
    /// Distribution of durations.
    Histogram,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

impl From<counters::Kind> for Kind {
    fn from(kind: counters::Kind) -> Self {
        match kind {
            counters::Kind::Counter => Self::Counter,
            counters::Kind::Gauge | counters::Kind::Maximum => Self::Gauge,
        }
    }
}

/// A metric.
#[derive(Clone, Debug)]
pub(crate) struct Metric {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) help: String,
}

/// A counter of a process, by its name in reports, and its metric.
#[derive(Clone, Debug)]
pub(crate) struct Counted {
    pub(crate) counter: String,
    pub(crate) metric: Metric,
    /// The counter is in microseconds, the metric in seconds.
    pub(crate) is_us: bool,
}

impl Counted {
    /// `process`: prefix of the metric names.
    fn new(process: &str, prefix: &str, counter: &Counter) -> Self {
        let name = format!("{prefix}{}", counter.name);
        let kind = Kind::from(counter.kind);
        let in_seconds = name.strip_suffix("_us");
        let unit = in_seconds.map_or_else(|| name.clone(), |name| format!("{name}_seconds"));
        let total = match kind {
            Kind::Counter => "_total",
            Kind::Gauge | Kind::Histogram => "",
        };
        let help = match in_seconds {
            Some(_) => counter.help().replace(" in microseconds", " in seconds"),
            None => counter.help().to_owned(),
        };
        Self {
            metric: Metric {
                name: format!("splitway_{process}{unit}{total}"),
                kind,
                help,
            },
            is_us: in_seconds.is_some(),
            counter: name,
        }
    }

    fn all(process: &str, sets: &[CounterSet]) -> Vec<Self> {
        let counters = sets.iter().flat_map(|set| {
            let counters = set.counters.iter();
            counters.map(|counter| Self::new(process, set.prefix, counter))
        });
        counters.collect()
    }
}

/// Metrics of the host process.
pub(crate) fn host() -> Vec<Counted> {
    let mut counted = Counted::all("host_", &HOST);
    counted.extend(Counted::all("", &[PROXY, SOCKETS_OF_APPLICATIONS]));
    counted
}

/// Metrics of each backend of the proxy.
pub(crate) fn backends() -> Vec<Counted> {
    Counted::all("", &[BACKENDS])
}

/// Metrics of each worker of a NIC process.
pub(crate) fn nic() -> Vec<Counted> {
    Counted::all("nic_", &[NIC])
}

/// Metrics of a broker.
pub(crate) fn broker() -> Vec<Counted> {
    Counted::all("", &[BROKER])
}

/// Metrics of a fetcher for each origin.
pub(crate) fn origins() -> Vec<Counted> {
    Counted::all("", &[ORIGINS])
}

/// Metrics of a fetcher's cache directory.
pub(crate) fn cache() -> Vec<Counted> {
    Counted::all("", &[CACHE])
}
