//! redis, and its load: `redis-benchmark` on the client's core.

use testbed::process::{run as run_tool, tool};
use testbed::procfs::{cpu_ns, machine_time};
use testbed::{Failure, Result};

use super::bed::{CONTROL, CONTROL_PARTS};
use crate::CLIENT_CORE;
use crate::measure::results::Measures;
use crate::measure::run::{Server, add_sum};

/// Requests of a run with one in flight, by client: enough for about a second.
const REQUESTS: usize = 100_000;
const REQUESTS_QUICK: usize = 20_000;

/// Connections of a run with one request each.
const CONNECTIONS: usize = 40_000;
const CONNECTIONS_QUICK: usize = 10_000;

/// A load.
#[derive(Clone, Copy, Debug)]
pub(in crate::suites) struct Load {
    pub(in crate::suites) clients: usize,
    /// Requests in flight on each connection.
    pub(in crate::suites) pipelined: usize,
    /// Connections persist; else the client closes each after its response.
    pub(in crate::suites) stays: bool,
}

impl Load {
    pub(in crate::suites) fn conditions(self) -> [(&'static str, f64); 2] {
        [
            ("clients", self.clients as f64),
            ("pipelined", self.pipelined as f64),
        ]
    }

    fn requests(self, is_quick: bool) -> usize {
        let requests = match (self.stays, is_quick) {
            (true, false) => REQUESTS,
            (true, true) => REQUESTS_QUICK,
            (false, false) => return CONNECTIONS,
            (false, true) => return CONNECTIONS_QUICK,
        };
        // With one client, requests are sequential.
        let scarce = if self.clients == 1 { 4 } else { 1 };
        requests * self.pipelined / scarce
    }
}

/// Does one run; returns requests per second, and CPU time of each process for a request.
pub(in crate::suites) fn run(server: &Server, load: Load, is_quick: bool) -> Result<Measures> {
    let address = server.addresses[0];
    let requests = load.requests(is_quick);
    let mut command = tool(&format!(
        "taskset --cpu-list {CLIENT_CORE} redis-benchmark -h {} -p {} -t get --csv -c {} -P {} \
         -n {requests} -k {}",
        address.ip(),
        address.port(),
        load.clients,
        load.pipelined,
        u8::from(load.stays),
    ));
    let cpu = || {
        let processes = server.processes.iter();
        let costs = processes.map(|(name, pid)| Ok((*name, cpu_ns(*pid)?)));
        costs.collect::<Result<Vec<_>>>()
    };
    let (before, machine_before) = (cpu()?, machine_time()?);
    let said = run_tool(&mut command)?;
    let (after, machine_after) = (cpu()?, machine_time()?);
    let rate = rate_in(&said).ok_or_else(|| Failure::new(format!("redis-benchmark: {said}")))?;
    let mut measures = Measures::new();
    measures.insert("requests_per_s".into(), rate);
    let mut tell = |name: &str, before_ns: u64, after_ns: u64| {
        let us = after_ns.saturating_sub(before_ns) as f64 / 1e3 / requests as f64;
        measures.insert(format!("cpu_us_per_request.{name}"), us);
    };
    for ((name, before), (_, after)) in before.into_iter().zip(after) {
        tell(name, before, after);
    }
    tell("machine", machine_before.busy_ns, machine_after.busy_ns);
    add_sum(&mut measures, "cpu_us_per_request", CONTROL, &CONTROL_PARTS);
    let all: Vec<_> = server.processes.iter().map(|(name, _)| *name).collect();
    add_sum(&mut measures, "cpu_us_per_request", "server", &all);
    Ok(measures)
}

/// Returns the requests per second in a line such as `"GET","81234.57","0.3",…`.
fn rate_in(said: &str) -> Option<f64> {
    let line = said.lines().find(|line| line.starts_with("\"GET\""))?;
    let rate = line.split(',').nth(1)?;
    rate.trim_matches('"').parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_found() {
        let said = "\"test\",\"rps\",\"avg_latency_ms\"\n\"GET\",\"81234.57\",\"0.311\"\n";
        assert_eq!(rate_in(said), Some(81_234.57));
        assert_eq!(rate_in("Could not connect to Redis"), None);
    }
}
