//! Counters of processes, by their names in reports, metrics and `stat`.

use counters::{Counter, Kind};

counters::counters! {
    /// Counters of the host process besides its stack and its server.
    pub struct HostProcessCounters {
        /// Accesses missing from logs and metrics, because the observer was behind.
        access_records_lost: Counter,
        /// Connections in the host stack's table.
        connections: Gauge,
        /// Connections whose FIN is sent and that wait only for their clients.
        connections_orphaned: Gauge,
        /// Handshakes under way, not counting SYN cookies.
        connections_half_open: Gauge,
        /// Memory of connections, over TCP and QUIC: received data, real bytes to send, TLS,
        /// request heads, and buffers of the proxy.
        connection_memory_bytes: Gauge,
        /// Connections in TIME-WAIT.
        connections_time_wait: Gauge,
        /// Connections whose teardown a NIC stack runs.
        connections_parted: Gauge,
        /// QUIC connections, including closed ones that still answer stray packets.
        connections_quic: Gauge,
        /// Streams of QUIC connections.
        streams_quic: Gauge,
        /// Files open at NIC stacks, or being opened.
        files_open: Gauge,
        /// SENDs issued but not departed.
        sends_outstanding: Gauge,
        /// Small commands waiting for room in a ring.
        commands_waiting: Gauge,
        /// NIC workers that take new connections, over all NIC stacks.
        nic_workers_in_use: Gauge,
        /// Lines for the error log dropped on their way for lack of room.
        error_lines_lost: Counter,
    }
}

/// Counters of one struct, with a common prefix in reports.
#[derive(Clone, Copy, Debug)]
pub struct CounterSet {
    /// Prefix of their names in reports.
    pub prefix: &'static str,
    /// Their declarations.
    pub counters: &'static [Counter],
}

/// Counters in a host process's report.
pub const HOST: [CounterSet; 3] = [
    CounterSet {
        prefix: "",
        counters: host::Counters::ALL,
    },
    CounterSet {
        prefix: HTTP,
        counters: server::Counters::ALL,
    },
    CounterSet {
        prefix: "",
        counters: HostProcessCounters::ALL,
    },
];

/// Counters of the proxy in a host process's report.
pub const PROXY: CounterSet = CounterSet {
    prefix: OF_PROXY,
    counters: proxy::Counters::ALL,
};

/// Counters of each backend of the proxy in a host process's report.
pub const BACKENDS: CounterSet = CounterSet {
    prefix: OF_BACKEND,
    counters: proxy::BackendCounters::ALL,
};

/// Counters of applications in other processes in a host process's report.
pub const SOCKETS_OF_APPLICATIONS: CounterSet = CounterSet {
    prefix: SOCKETS,
    counters: sockets::Counters::ALL,
};

counters::counters! {
    /// Counters of a broker.
    pub struct BrokerCounters {
        /// Processes attached by the broker.
        attached: Counter,
        /// Processes of earlier brokers that came to this one.
        reattached: Counter,
        /// Processes refused by the broker.
        refused: Counter,
        /// Descriptors for sockets passed to processes.
        handles: Counter,
        /// Descriptors for sockets refused, because an application or its user holds its maximum.
        handles_refused: Counter,
        /// Descriptors of the host process held by applications.
        descriptors_held: Gauge,
        /// Open files passed to NIC processes.
        files: Counter,
        /// Of these, files held now.
        files_held: Gauge,
        /// Connections to the broker closed because their process violated the protocol.
        cut_off: Counter,
    }
}

/// Counters in a broker's report.
pub const BROKER: CounterSet = CounterSet {
    prefix: OF_BROKER,
    counters: BrokerCounters::ALL,
};

/// Counters in the report of a worker of a NIC process.
pub const NIC: CounterSet = CounterSet {
    prefix: "",
    counters: nic::Counters::ALL,
};

/// Counters in a fetcher's report, of each origin and of all.
pub const ORIGINS: CounterSet = CounterSet {
    prefix: ORIGIN,
    counters: origin::OriginCounters::ALL,
};

/// Counters of the cache directory in a fetcher's report.
pub const CACHE: CounterSet = CounterSet {
    prefix: ORIGIN,
    counters: origin::CacheCounters::ALL,
};

const HTTP: &str = "http_";
const OF_PROXY: &str = "proxy_";
const OF_BACKEND: &str = "proxy_backend_";
const SOCKETS: &str = "sockets_";
const OF_BROKER: &str = "broker_";
const ORIGIN: &str = "origin_";
const CONTROL_LINK: &str = "control_link_";

/// Names and values of the stack's and the server's counters.
pub fn host(stack: &host::Counters, server: &server::Counters) -> Vec<(String, u64)> {
    let server = named(HTTP, server.rows());
    named("", stack.rows()).chain(server).collect()
}

/// Names and values of the proxy's counters.
pub fn proxy(counters: &proxy::Counters) -> Vec<(String, u64)> {
    named(OF_PROXY, counters.rows()).collect()
}

/// Names and values of a backend's counters.
pub fn backend(counters: &proxy::BackendCounters) -> Vec<(String, u64)> {
    named(OF_BACKEND, counters.rows()).collect()
}

/// Names and values of the counters for applications in other processes.
pub fn sockets(counters: &sockets::Counters) -> Vec<(String, u64)> {
    named(SOCKETS, counters.rows()).collect()
}

/// Names and values of a broker's counters.
pub fn broker(counters: &BrokerCounters) -> Vec<(String, u64)> {
    named(OF_BROKER, counters.rows()).collect()
}

/// Names and values of the host process's own counters.
pub fn host_process(counters: &HostProcessCounters) -> Vec<(String, u64)> {
    named("", counters.rows()).collect()
}

/// Names and values of a NIC worker's counters.
pub fn nic(counters: &nic::Counters) -> Vec<(String, u64)> {
    named("", counters.rows()).collect()
}

/// Names and values of the session counters of a relay.
pub fn control_link(counters: &contract::ethernet::session::Counters) -> Vec<(String, u64)> {
    named(CONTROL_LINK, counters.rows()).collect()
}

/// Names and values of an origin's counters.
pub fn origin(counters: &origin::OriginCounters) -> Vec<(String, u64)> {
    named(ORIGIN, counters.rows()).collect()
}

/// Names and values of all counters of a fetcher.
pub fn fetcher(totals: &origin::Totals) -> Vec<(String, u64)> {
    let cache = named(ORIGIN, totals.cache.rows());
    named(ORIGIN, totals.origins.rows()).chain(cache).collect()
}

/// Combines a counter's values of two processes in the same place.
pub fn sum(name: &str, one: u64, other: u64) -> u64 {
    let known = NIC.counters.iter().find(|counter| counter.name == name);
    let kind = known.map_or(Kind::Counter, |counter| counter.kind);
    kind.sum(one, other)
}

fn named(
    prefix: &str,
    rows: impl Iterator<Item = (&'static str, u64)>,
) -> impl Iterator<Item = (String, u64)> {
    rows.map(move |(name, value)| (format!("{prefix}{name}"), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_follow_the_kind_of_a_counter() {
        assert_eq!(sum("sends", 3, 4), 7);
        assert_eq!(sum("paced_late_max_us", 3, 4), 4);
    }

    #[test]
    fn no_process_has_a_name_twice() {
        let others = [PROXY, BACKENDS, SOCKETS_OF_APPLICATIONS];
        let host: Vec<CounterSet> = HOST.into_iter().chain(others).collect();
        for sets in [&host[..], &[NIC], &[ORIGINS, CACHE]] {
            let mut names = std::collections::BTreeSet::new();
            for CounterSet { prefix, counters } in sets {
                for counter in *counters {
                    let name = format!("{prefix}{}", counter.name);
                    assert!(names.insert(name.clone()), "{name}");
                }
            }
        }
    }
}
