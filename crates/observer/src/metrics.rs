//! The state of all processes as the observer knows it, and its output.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::json;
use server::{AccessRecord, NO_RESPONSE};

use crate::catalog::{self, Counted, Kind, Metric};
use crate::exposition::{Exposition, Histogram, Labels, seconds};
use crate::format::parts;
use crate::log_file::LogCounters;
use crate::report::{BackendReport, BrokerReport, FetcherReport, Health, Report, WorkerReport};
use crate::supervised::Supervised;
use crate::top::Top;

/// Longest silence of a host process that serves.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// Files on the dashboard.
const TOP_FILES: usize = 12;

/// Most origins with counters: twice as many as a fetcher reports.
const ORIGINS_MAX: usize = 128;

/// Reports of all processes, and sums over all responses.
#[derive(Debug)]
pub struct Metrics {
    state: Mutex<State>,
    logs: Vec<(&'static str, Arc<LogCounters>)>,
    since: SystemTime,
    host: Vec<Counted>,
    backends: Vec<Counted>,
    nic: Vec<Counted>,
    origins: Vec<Counted>,
    cache: Vec<Counted>,
    broker: Vec<Counted>,
}

#[derive(Debug)]
struct State {
    /// Last report of the host process, and its time.
    host: Option<Report>,
    host_at: Option<Instant>,
    /// Time of the host process's last packet of any kind: reports are skipped while the queue is
    /// full of records.
    heard_at: Option<Instant>,
    /// Last counters of each backend of the proxy.
    backends: Vec<BackendReport>,
    /// The supervisor's last report.
    health: Health,
    /// Last report of each worker, by NIC stack and worker.
    workers: BTreeMap<(usize, usize), Report>,
    /// Number of each NIC stack's process that sent these reports.
    processes: BTreeMap<usize, u64>,
    fetcher: Fetched,
    /// Last report of the broker.
    broker: Option<BrokerReport>,
    accesses: Accesses,
}

/// Last reports of a fetcher.
#[derive(Debug, Default)]
struct Fetched {
    process: u64,
    all: Option<Report>,
    origins: BTreeMap<String, Report>,
}

/// Sums over access records.
#[derive(Debug, Default)]
struct Accesses {
    statuses: BTreeMap<u16, u64>,
    body_bytes: u64,
    offloaded_bytes: u64,
    cut_short: u64,
    first_byte: Histogram,
    total: Histogram,
    top: Top,
}

impl Metrics {
    /// Starts without reports; `logs` are counted under these names.
    pub fn new(logs: Vec<(&'static str, Arc<LogCounters>)>) -> Self {
        let state = State {
            host: None,
            host_at: None,
            heard_at: None,
            backends: Vec::new(),
            health: Health::default(),
            workers: BTreeMap::new(),
            processes: BTreeMap::new(),
            fetcher: Fetched::default(),
            broker: None,
            accesses: Accesses::default(),
        };
        Self {
            state: Mutex::new(state),
            logs,
            since: SystemTime::now(),
            host: catalog::host(),
            backends: catalog::backends(),
            nic: catalog::nic(),
            origins: catalog::origins(),
            cache: catalog::cache(),
            broker: catalog::broker(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a completed response.
    pub fn on_access(&self, record: &AccessRecord<'_>) {
        let accesses = &mut self.lock().accesses;
        *accesses.statuses.entry(record.status).or_default() += 1;
        accesses.body_bytes += record.body_bytes;
        accesses.offloaded_bytes += record.offloaded_bytes;
        accesses.cut_short += u64::from(record.is_cut_short);
        if record.status != NO_RESPONSE {
            accesses.total.observe(record.total_us);
        }
        if let Some(first_byte_us) = record.first_byte_us {
            accesses.first_byte.observe(first_byte_us);
        }
        if let (true, [Some(_), Some(target), _]) =
            (record.status < 400, parts(record.request_line))
        {
            accesses.top.note(target, record.body_bytes);
        }
    }

    /// Takes a report of the host process.
    pub fn on_host(&self, report: Report) {
        let mut state = self.lock();
        let now = Some(Instant::now());
        (state.host, state.host_at, state.heard_at) = (Some(report), now, now);
    }

    /// Takes the counters of all backends of the proxy.
    pub fn on_backends(&self, reports: Vec<BackendReport>) {
        self.lock().backends = reports;
    }

    /// Takes note of any packet from the host process.
    pub fn on_sign_of_life(&self) {
        self.lock().heard_at = Some(Instant::now());
    }

    /// Takes a report of a NIC worker.
    pub fn on_worker(&self, mut told: WorkerReport) {
        let is_known = |name: &str| self.nic.iter().any(|counted| counted.counter == name);
        told.report.counters.retain(|(name, _)| is_known(name));
        let mut state = self.lock();
        let last = state.processes.entry(told.nic).or_insert(told.process);
        if told.process < *last {
            return;
        }
        // A new process counts from zero, its CPU time as well: reports of the previous process's
        // workers are void.
        if std::mem::replace(last, told.process) != told.process {
            state.workers.retain(|(nic, _), _| *nic != told.nic);
        }
        state.workers.insert((told.nic, told.worker), told.report);
    }

    /// Takes a report of the fetcher.
    pub fn on_fetcher(&self, mut told: FetcherReport) {
        let known = self.origins.iter().chain(&self.cache);
        let is_known = |name: &str| known.clone().any(|counted| counted.counter == name);
        told.report.counters.retain(|(name, _)| is_known(name));
        let fetcher = &mut self.lock().fetcher;
        if told.process < fetcher.process {
            return;
        }
        // A new fetcher counts from zero.
        if told.process > fetcher.process {
            *fetcher = Fetched::default();
            fetcher.process = told.process;
        }
        match told.origin {
            None => fetcher.all = Some(told.report),
            Some(origin) => {
                if fetcher.origins.len() < ORIGINS_MAX || fetcher.origins.contains_key(&origin) {
                    fetcher.origins.insert(origin, told.report);
                }
            }
        }
    }

    /// Takes a report of the broker.
    pub fn on_broker(&self, mut told: BrokerReport) {
        let is_known = |name: &str| self.broker.iter().any(|counted| counted.counter == name);
        told.report.counters.retain(|(name, _)| is_known(name));
        let broker = &mut self.lock().broker;
        if broker
            .as_ref()
            .is_none_or(|last| last.process <= told.process)
        {
            *broker = Some(told);
        }
    }

    /// Takes the supervisor's report.
    pub fn on_health(&self, health: Health) {
        self.lock().health = health;
    }

    /// Whether requests are served; if not, why.
    pub fn health(&self) -> Result<(), String> {
        let state = self.lock();
        let Some(heard_at) = state.heard_at else {
            return Err("no report of the host process yet".to_owned());
        };
        let silence = heard_at.elapsed();
        if silence >= SILENCE_MAX {
            return Err(format!(
                "the host process has been silent for {} s",
                silence.as_secs()
            ));
        }
        // A single working NIC stack suffices to send files.
        let missing: Option<Vec<&str>> = state.health.nics.iter().map(Option::as_deref).collect();
        match missing {
            Some(missing) if !missing.is_empty() => Err(missing.join("\n")),
            _ => Ok(()),
        }
    }

    /// Whether new connections are served; if not, why.
    pub fn readiness(&self) -> Result<(), String> {
        if self.lock().health.is_draining {
            return Err("draining: no new connections".to_owned());
        }
        self.health()
    }

    /// The metrics, in Prometheus' text format.
    pub fn text(&self) -> String {
        let state = self.lock();
        let mut text = Exposition::default();
        let own = own();
        let version = env!("CARGO_PKG_VERSION");
        text.metric(&own.build);
        text.sample(&own.build, "", &[("version", &version)], 1);
        let since = self.since.duration_since(UNIX_EPOCH).unwrap_or_default();
        text.single(&own.since, since.as_secs());
        if let Some(host_at) = state.host_at {
            text.single(&own.silence, host_at.elapsed().as_secs_f64());
        }
        state.processes(&own, &mut text);
        Supervised::new().expose(&state.health, &mut text);
        if let Some(host) = &state.host {
            for counted in &self.host {
                if let Some(value) = host.counter(&counted.counter) {
                    text.metric(&counted.metric);
                    sample(&mut text, counted, &[], value);
                }
            }
        }
        state.expose_backends(&self.backends, &mut text);
        for counted in &self.nic {
            let values = state
                .workers
                .iter()
                .filter_map(|(place, report)| Some((place, report.counter(&counted.counter)?)));
            let mut values = values.peekable();
            if values.peek().is_some() {
                text.metric(&counted.metric);
            }
            for ((nic, worker), value) in values {
                sample(
                    &mut text,
                    counted,
                    &[("nic", nic), ("worker", worker)],
                    value,
                );
            }
        }
        state.fetcher.expose(&self.origins, &self.cache, &mut text);
        if let Some(broker) = &state.broker {
            for counted in &self.broker {
                if let Some(value) = broker.report.counter(&counted.counter) {
                    text.metric(&counted.metric);
                    sample(&mut text, counted, &[], value);
                }
            }
        }
        let accesses = &state.accesses;
        text.metric(&own.responses);
        for (status, count) in &accesses.statuses {
            text.sample(&own.responses, "", &[("status", status)], count);
        }
        text.single(&own.body_bytes, accesses.body_bytes);
        text.single(&own.offloaded_bytes, accesses.offloaded_bytes);
        text.single(&own.cut_short, accesses.cut_short);
        text.histogram(&own.first_byte, &accesses.first_byte);
        text.histogram(&own.total, &accesses.total);
        for (metric, count) in [
            (&own.log_lines, (|log| &log.written) as Count),
            (&own.log_lost, |log| &log.lost),
            (&own.log_failures, |log| &log.failures),
        ] {
            text.metric(metric);
            for (name, log) in &self.logs {
                let count = count(log).load(Ordering::Relaxed);
                text.sample(metric, "", &[("log", name)], count);
            }
        }
        text.finish()
    }

    /// The metrics, in JSON for the dashboard.
    pub fn status(&self) -> String {
        let health = self.health();
        let state = self.lock();
        let accesses = &state.accesses;
        let top = accesses.top.first(TOP_FILES).into_iter();
        let top: Vec<_> = top
            .map(|(name, known)| {
                json!({ "name": name, "requests": known.requests, "bytes": known.bytes })
            })
            .collect();
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let workers = state.workers.iter().map(|((nic, worker), report)| {
            json!({
                "nic": nic,
                "worker": worker,
                "counters": counters(report),
                "cpu_us": cpu_us(report),
            })
        });
        let workers: Vec<_> = workers.collect();
        let host = state.host.as_ref();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "now_ms": now.as_millis() as u64,
            "health": health.err(),
            "host": host.map(|report| {
                json!({ "counters": counters(report), "cpu_us": cpu_us(report) })
            }),
            "workers": workers,
            "fetcher": state.fetcher.all.as_ref().map(counters),
            "statuses": accesses.statuses,
            "body_bytes": accesses.body_bytes,
            "offloaded_bytes": accesses.offloaded_bytes,
            "cut_short": accesses.cut_short,
            "first_byte": {
                "count": accesses.first_byte.count,
                "sum_us": accesses.first_byte.sum_us,
            },
            "total": { "count": accesses.total.count, "sum_us": accesses.total.sum_us },
            "top": top,
        })
        .to_string()
    }
}

impl State {
    /// Writes the resource usage of the processes.
    fn processes(&self, own: &Own, text: &mut Exposition) {
        // Each worker reports the usage of its whole process.
        let mut nics: BTreeMap<usize, &Report> = BTreeMap::new();
        for ((nic, _), report) in &self.workers {
            let last = nics.entry(*nic).or_insert(report);
            if cpu_us(report) > cpu_us(last) {
                *last = report;
            }
        }
        let host = self
            .host
            .iter()
            .map(|report| ("host", String::new(), report));
        let nics = nics
            .into_iter()
            .map(|(nic, report)| ("nic", nic.to_string(), report));
        let fetcher = self.fetcher.all.iter();
        let fetcher = fetcher.map(|report| ("fetcher", String::new(), report));
        let broker = self.broker.iter();
        let broker = broker.map(|told| ("broker", String::new(), &told.report));
        let all: Vec<_> = host.chain(nics).chain(fetcher).chain(broker).collect();
        text.metric(&own.cpu);
        for (process, nic, report) in &all {
            for (mode, us) in [
                ("user", report.cpu_user_us),
                ("system", report.cpu_system_us),
            ] {
                let labels: Labels<'_> = &[("process", process), ("nic", nic), ("mode", &mode)];
                text.sample(&own.cpu, "", labels, seconds(us));
            }
        }
        text.metric(&own.memory);
        for (process, nic, report) in &all {
            let labels: Labels<'_> = &[("process", process), ("nic", nic)];
            text.sample(&own.memory, "", labels, report.memory_bytes_max);
        }
    }
}

impl State {
    fn expose_backends(&self, of_backends: &[Counted], text: &mut Exposition) {
        for counted in of_backends {
            let values = self.backends.iter().filter_map(|report| {
                let mut counters = report.counters.iter();
                let (_, value) = counters.find(|(name, _)| *name == counted.counter)?;
                Some((report, *value))
            });
            let mut values = values.peekable();
            if values.peek().is_some() {
                text.metric(&counted.metric);
            }
            for (report, value) in values {
                let labels: Labels<'_> = &[("pool", &report.pool), ("backend", &report.backend)];
                sample(text, counted, labels, value);
            }
        }
    }
}

impl Fetched {
    fn expose(&self, of_origins: &[Counted], of_cache: &[Counted], text: &mut Exposition) {
        for counted in of_origins {
            let values = self.origins.iter();
            let values =
                values.filter_map(|(url, report)| Some((url, report.counter(&counted.counter)?)));
            let mut values = values.peekable();
            if values.peek().is_some() {
                text.metric(&counted.metric);
            }
            for (url, value) in values {
                sample(text, counted, &[("origin", url)], value);
            }
        }
        for counted in of_cache {
            let all = self.all.as_ref();
            if let Some(value) = all.and_then(|report| report.counter(&counted.counter)) {
                text.metric(&counted.metric);
                sample(text, counted, &[], value);
            }
        }
    }
}

type Count = fn(&LogCounters) -> &AtomicU64;

fn cpu_us(report: &Report) -> u64 {
    report.cpu_user_us.saturating_add(report.cpu_system_us)
}

fn counters(report: &Report) -> BTreeMap<&str, u64> {
    let counters = report.counters.iter();
    counters
        .map(|(name, value)| (name.as_str(), *value))
        .collect()
}

fn sample(text: &mut Exposition, counted: &Counted, labels: Labels<'_>, value: u64) {
    if counted.is_us {
        text.sample(&counted.metric, "", labels, seconds(value))
    } else {
        text.sample(&counted.metric, "", labels, value)
    }
}

/// Metrics of the observer's own.
struct Own {
    build: Metric,
    since: Metric,
    silence: Metric,
    cpu: Metric,
    memory: Metric,
    responses: Metric,
    body_bytes: Metric,
    offloaded_bytes: Metric,
    cut_short: Metric,
    first_byte: Metric,
    total: Metric,
    log_lines: Metric,
    log_lost: Metric,
    log_failures: Metric,
}

#[cfg(test)]
impl Own {
    fn all(&self) -> [&Metric; 14] {
        [
            &self.build,
            &self.since,
            &self.silence,
            &self.cpu,
            &self.memory,
            &self.responses,
            &self.body_bytes,
            &self.offloaded_bytes,
            &self.cut_short,
            &self.first_byte,
            &self.total,
            &self.log_lines,
            &self.log_lost,
            &self.log_failures,
        ]
    }
}

fn own() -> Own {
    let metric = |name: &str, kind, help: &str| Metric {
        name: format!("splitway_{name}"),
        kind,
        help: help.to_owned(),
    };
    use Kind::{Counter, Gauge};
    Own {
        build: metric("build_info", Gauge, "Always 1; its label is the version."),
        since: metric(
            "observer_start_time_seconds",
            Gauge,
            "Start time of the observer process, in seconds since the epoch. Metrics of access \
             records count from then.",
        ),
        silence: metric(
            "host_report_age_seconds",
            Gauge,
            "Time since the host process last reported its counters; it does so once a second.",
        ),
        cpu: metric(
            "process_cpu_seconds_total",
            Counter,
            "CPU time of host process, NIC processes, fetcher and broker, in seconds.",
        ),
        memory: metric(
            "process_resident_memory_max_bytes",
            Gauge,
            "Largest resident set of a process.",
        ),
        responses: metric(
            "access_responses_total",
            Counter,
            "Finished responses, by status; 499: the connection ended before there was one.",
        ),
        body_bytes: metric(
            "access_body_bytes_total",
            Counter,
            "Body bytes that clients acknowledged, of finished responses.",
        ),
        offloaded_bytes: metric(
            "access_offloaded_bytes_total",
            Counter,
            "Of these, bytes that came from files and bypassed the host.",
        ),
        cut_short: metric(
            "access_cut_short_total",
            Counter,
            "Responses cut short by the end of their connection.",
        ),
        first_byte: metric(
            "access_first_byte_seconds",
            Kind::Histogram,
            "Time from the end of a request's head until TCP had the response's first byte.",
        ),
        total: metric(
            "access_duration_seconds",
            Kind::Histogram,
            "Time from the end of a request's head until its response finished.",
        ),
        log_lines: metric("log_lines_total", Counter, "Lines written to a log."),
        log_lost: metric(
            "log_lines_lost_total",
            Counter,
            "Lines dropped because a log could not take them before the buffer was full.",
        ),
        log_failures: metric(
            "log_write_failures_total",
            Counter,
            "Failed writes to a log.",
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::exposition::parse;
    use crate::format::tests::record;

    const UPDATE: &str = "UPDATE_METRICS=1 cargo test -p splitway-observer metrics";

    /// Reports of host process and NIC workers, in which no two counters have the same value.
    fn told() -> (Report, Report) {
        let values = |rows: &[Counted], from: u64| -> Vec<(String, u64)> {
            let rows = rows.iter().zip(from..);
            rows.map(|(counted, value)| (counted.counter.clone(), value * 1_000_000))
                .collect()
        };
        let report = |counters| Report {
            counters,
            cpu_user_us: 1_500_000,
            cpu_system_us: 500_000,
            memory_bytes_max: 4_096,
        };
        (
            report(values(&catalog::host(), 1)),
            report(values(&catalog::nic(), 1_000)),
        )
    }

    fn metrics() -> Metrics {
        let metrics = Metrics::new(vec![("access", Arc::default())]);
        let (host, worker) = told();
        metrics.on_host(host);
        for (nic, worker_number) in [(0, 0), (0, 1), (1, 0)] {
            metrics.on_worker(WorkerReport {
                nic,
                worker: worker_number,
                process: 1,
                report: worker.clone(),
            });
        }
        metrics.on_access(&record());
        metrics
    }

    #[test]
    fn scrapers_can_read_all_that_was_told() {
        let samples = parse(&metrics().text());
        for (counted, value) in catalog::host().iter().zip(1u32..) {
            let scale = if counted.is_us { 1.0 } else { 1e6 };
            let sample = samples[&counted.metric.name];
            assert_eq!(sample, f64::from(value) * scale, "{}", counted.metric.name);
        }
        for (counted, value) in catalog::nic().iter().zip(1_000u32..) {
            let scale = if counted.is_us { 1.0 } else { 1e6 };
            for labels in [
                "nic=\"0\",worker=\"0\"",
                "nic=\"0\",worker=\"1\"",
                "nic=\"1\",worker=\"0\"",
            ] {
                let name = format!("{}{{{labels}}}", counted.metric.name);
                assert_eq!(samples[&name], f64::from(value) * scale, "{name}");
            }
        }
        let version = env!("CARGO_PKG_VERSION");
        for (name, value) in [
            (
                format!("splitway_build_info{{version=\"{version}\"}}").as_str(),
                1.0,
            ),
            ("splitway_access_responses_total{status=\"206\"}", 1.0),
            ("splitway_access_body_bytes_total", 1_000.0),
            ("splitway_access_offloaded_bytes_total", 900.0),
            ("splitway_access_cut_short_total", 1.0),
            ("splitway_access_duration_seconds_sum", 0.001_234),
            ("splitway_access_first_byte_seconds_count", 1.0),
            (
                "splitway_process_cpu_seconds_total{process=\"host\",nic=\"\",mode=\"user\"}",
                1.5,
            ),
            (
                "splitway_process_cpu_seconds_total{process=\"nic\",nic=\"1\",mode=\"system\"}",
                0.5,
            ),
            (
                "splitway_process_resident_memory_max_bytes{process=\"nic\",nic=\"0\"}",
                4_096.0,
            ),
            ("splitway_log_lines_total{log=\"access\"}", 0.0),
        ] {
            assert_eq!(samples[name], value, "{name}");
        }
        parse(&Metrics::new(Vec::new()).text());
    }

    #[test]
    fn the_page_about_metrics_lists_all_of_them() {
        let (own, supervised) = (own(), Supervised::new());
        let metrics: Vec<Metric> = own
            .all()
            .into_iter()
            .chain(supervised.all())
            .cloned()
            .chain(catalog::host().into_iter().map(|counted| counted.metric))
            .chain(
                catalog::backends()
                    .into_iter()
                    .map(|counted| counted.metric),
            )
            .chain(catalog::nic().into_iter().map(|counted| counted.metric))
            .chain(catalog::origins().into_iter().map(|counted| counted.metric))
            .chain(catalog::broker().into_iter().map(|counted| counted.metric))
            .chain(catalog::cache().into_iter().map(|counted| counted.metric))
            .collect();
        let rows: String = metrics
            .iter()
            .map(|Metric { name, kind, help }| format!("| `{name}` | {} | {help} |\n", kind.name()))
            .collect();
        let begin = format!("<!-- `{UPDATE}` writes what follows. -->\n");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
        let page = fs::read_to_string(&path).unwrap();
        let (before, _) = page.split_once(&begin).expect("where the table begins");
        let expected =
            format!("{before}{begin}\n| Metric | Type | Meaning |\n|---|---|---|\n{rows}");
        if std::env::var_os("UPDATE_METRICS").is_some() {
            fs::write(&path, &expected).unwrap();
        } else {
            assert!(
                page == expected,
                "docs/metrics.md is not what the code has; run\n  {UPDATE}"
            );
        }
    }

    #[test]
    fn a_host_process_that_is_silent_is_not_well() {
        let metrics = metrics();
        assert_eq!(metrics.health(), Ok(()));
        let long_ago = Instant::now().checked_sub(2 * SILENCE_MAX).unwrap();
        metrics.lock().heard_at = long_ago.into();
        assert!(metrics.health().unwrap_err().contains("silent for 10 s"));
        // A host process that sends records but no reports, for lack of room, is alive.
        metrics.on_sign_of_life();
        assert_eq!(metrics.health(), Ok(()));
        let nothing = Metrics::new(Vec::new()).health();
        assert!(nothing.unwrap_err().contains("no report"));
    }

    #[test]
    fn what_a_nic_process_has_told_ends_with_it() {
        let metrics = Metrics::new(Vec::new());
        let (_, report) = told();
        let on_worker = |process, worker, cpu_user_us| {
            metrics.on_worker(WorkerReport {
                nic: 0,
                worker,
                process,
                report: Report {
                    cpu_user_us,
                    ..report.clone()
                },
            });
        };
        let cpu = || {
            let samples = parse(&metrics.text());
            samples["splitway_process_cpu_seconds_total{process=\"nic\",nic=\"0\",mode=\"user\"}"]
        };
        on_worker(1, 0, 8_000_000);
        on_worker(1, 1, 9_000_000);
        assert_eq!(cpu(), 9.0);
        on_worker(2, 0, 1_000_000);
        assert_eq!(cpu(), 1.0);
        // The previous process still sends a report.
        on_worker(1, 1, 9_500_000);
        assert_eq!(cpu(), 1.0);
        assert_eq!(metrics.lock().workers.len(), 1);
    }

    #[test]
    fn what_a_broker_has_told_is_shown_until_another_one_counts_from_zero() {
        let metrics = metrics();
        let rows = catalog::broker();
        let told = |process, from: u64| BrokerReport {
            process,
            report: Report {
                counters: rows
                    .iter()
                    .zip(from..)
                    .map(|(counted, value)| (counted.counter.clone(), value))
                    .chain([("not_of_a_broker".to_owned(), 7)])
                    .collect(),
                cpu_user_us: 2_000_000,
                ..Report::default()
            },
        };
        assert!(!metrics.text().contains("splitway_broker_"));
        metrics.on_broker(told(1, 100));
        let text = metrics.text();
        let samples = parse(&text);
        for (place, counted) in rows.iter().enumerate() {
            assert_eq!(samples[&counted.metric.name], 100.0 + place as f64);
        }
        assert_eq!(samples["splitway_broker_attached_total"], 100.0);
        assert!(!text.contains("not_of_a_broker"));
        let cpu = "splitway_process_cpu_seconds_total{process=\"broker\",nic=\"\",mode=\"user\"}";
        assert_eq!(samples[cpu], 2.0);
        metrics.on_broker(told(2, 1));
        metrics.on_broker(told(1, 200));
        let text = metrics.text();
        assert_eq!(parse(&text)["splitway_broker_attached_total"], 1.0);
    }

    #[test]
    fn what_a_fetcher_has_told_is_shown_by_origin_and_ends_with_it() {
        let metrics = metrics();
        let of_origins = catalog::origins();
        let rows: Vec<Counted> = of_origins.iter().cloned().chain(catalog::cache()).collect();
        let report = |from: u64| Report {
            counters: rows
                .iter()
                .zip(from..)
                .map(|(counted, value)| (counted.counter.clone(), value))
                .collect(),
            cpu_user_us: 3_000_000,
            ..Report::default()
        };
        let on_fetcher = |process, origin: Option<&str>, from| {
            metrics.on_fetcher(FetcherReport {
                process,
                origin: origin.map(str::to_owned),
                report: report(from),
            });
        };
        on_fetcher(1, Some("http://a.example"), 100);
        on_fetcher(1, Some("http://b.example/\"x\""), 200);
        on_fetcher(1, None, 300);
        let text = metrics.text();
        let samples = parse(&text);
        for (place, counted) in rows.iter().enumerate() {
            let name = &counted.metric.name;
            if place < of_origins.len() {
                let value = samples[&format!("{name}{{origin=\"http://a.example\"}}")];
                assert_eq!(value, 100.0 + place as f64, "{name}");
                assert!(text.contains("origin=\"http://b.example/\\\"x\\\"\""));
            } else {
                assert_eq!(samples[name], 300.0 + place as f64, "{name}")
            }
        }
        let cpu = "splitway_process_cpu_seconds_total{process=\"fetcher\",nic=\"\",mode=\"user\"}";
        assert_eq!(samples[cpu], 3.0);
        let status: serde_json::Value = serde_json::from_str(&metrics.status()).unwrap();
        assert_eq!(status["fetcher"]["origin_hits"], 301);
        // The next fetcher counts from zero, and reports of the previous one are ignored.
        on_fetcher(2, Some("http://a.example"), 1);
        on_fetcher(1, Some("http://b.example"), 200);
        let text = metrics.text();
        assert!(!text.contains("b.example"), "{text}");
        for number in 0..2 * ORIGINS_MAX {
            on_fetcher(2, Some(&format!("http://{number}")), 1);
        }
        assert_eq!(metrics.lock().fetcher.origins.len(), ORIGINS_MAX);
    }

    #[test]
    fn each_backend_has_its_values_until_it_is_gone() {
        let metrics = metrics();
        let report = |backend: &str, first: u64| BackendReport {
            pool: "web".to_owned(),
            backend: backend.to_owned(),
            counters: catalog::backends()
                .into_iter()
                .map(|counted| counted.counter)
                .zip(first..)
                .chain([("made_up".to_owned(), 7)])
                .collect(),
        };
        metrics.on_backends(vec![report("a", 100), report("b", 200)]);
        let text = metrics.text();
        let samples = parse(&text);
        for (counted, value) in catalog::backends().iter().zip(100u32..) {
            for (backend, more) in [("a", 0), ("b", 100)] {
                let name = format!(
                    "{}{{pool=\"web\",backend=\"{backend}\"}}",
                    counted.metric.name
                );
                assert_eq!(samples[&name], f64::from(value + more), "{name}");
            }
        }
        assert!(!text.contains("made_up"));
        metrics.on_backends(vec![report("b", 300)]);
        assert!(!metrics.text().contains("backend=\"a\""));
    }

    #[test]
    fn unknown_counters_are_not_kept() {
        let metrics = metrics();
        let counters = (0..1000).map(|number| (format!("made up {number}"), 1));
        metrics.on_worker(WorkerReport {
            nic: 0,
            worker: 0,
            process: 1,
            report: Report {
                counters: counters.collect(),
                ..Report::default()
            },
        });
        assert!(!metrics.status().contains("made up"));
    }

    #[test]
    fn the_dashboard_gets_numbers_by_the_names_that_processes_have_for_them() {
        let status: serde_json::Value = serde_json::from_str(&metrics().status()).unwrap();
        assert_eq!(status["host"]["counters"]["frames_received"], 1_000_000);
        assert_eq!(status["host"]["cpu_us"], 2_000_000);
        assert_eq!(status["workers"][1]["worker"], 1);
        assert_eq!(status["workers"][2]["counters"]["opens"], 1_000_000_000);
        assert_eq!(status["statuses"]["206"], 1);
        assert_eq!(status["top"][0]["name"], "/a%20b");
        assert!(status["health"].is_null());
    }
}
