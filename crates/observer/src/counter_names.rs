//! Counters of processes, by their names in reports, metrics and `stat`.

use counters::{Counter, Kind};

counters::counters! {
    /// What the host process counts beside its stack and its server.
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

/// Counters of one struct, whose names have a prefix in reports.
#[derive(Clone, Copy, Debug)]
pub struct CounterSet {
    /// What their names begin with there.
    pub prefix: &'static str,
    /// Their declarations.
    pub counters: &'static [Counter],
}

/// What a host process reports.
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

/// What a host process reports of its proxy.
pub const PROXY: CounterSet = CounterSet {
    prefix: OF_PROXY,
    counters: proxy::Counters::ALL,
};

/// What a host process reports of each backend of its proxy.
pub const BACKENDS: CounterSet = CounterSet {
    prefix: OF_BACKEND,
    counters: proxy::BackendCounters::ALL,
};

/// What a host process reports of applications in other processes.
pub const SOCKETS_OF_APPLICATIONS: CounterSet = CounterSet {
    prefix: SOCKETS,
    counters: sockets::Counters::ALL,
};

counters::counters! {
    /// What a broker counts.
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

/// What a broker reports.
pub const BROKER: CounterSet = CounterSet {
    prefix: OF_BROKER,
    counters: BrokerCounters::ALL,
};

/// What a worker of a NIC process reports.
pub const NIC: CounterSet = CounterSet {
    prefix: "",
    counters: nic::Counters::ALL,
};

/// What a fetcher reports of each origin, and of all.
pub const ORIGINS: CounterSet = CounterSet {
    prefix: ORIGIN,
    counters: origin::OriginCounters::ALL,
};

/// What a fetcher reports of its cache directory.
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

/// What the stack and the server have counted.
pub fn host(stack: &host::Counters, server: &server::Counters) -> Vec<(String, u64)> {
    let server = named(HTTP, server.rows());
    named("", stack.rows()).chain(server).collect()
}

/// What the proxy has counted.
pub fn proxy(counters: &proxy::Counters) -> Vec<(String, u64)> {
    named(OF_PROXY, counters.rows()).collect()
}

/// What the proxy has counted of one backend.
pub fn backend(counters: &proxy::BackendCounters) -> Vec<(String, u64)> {
    named(OF_BACKEND, counters.rows()).collect()
}

/// What was done for applications in other processes.
pub fn sockets(counters: &sockets::Counters) -> Vec<(String, u64)> {
    named(SOCKETS, counters.rows()).collect()
}

/// What a broker has counted.
pub fn broker(counters: &BrokerCounters) -> Vec<(String, u64)> {
    named(OF_BROKER, counters.rows()).collect()
}

/// What the host process itself has counted.
pub fn host_process(counters: &HostProcessCounters) -> Vec<(String, u64)> {
    named("", counters.rows()).collect()
}

/// What NIC workers have counted.
pub fn nic(counters: &nic::Counters) -> Vec<(String, u64)> {
    named("", counters.rows()).collect()
}

/// What a relay has counted of its session.
pub fn control_link(counters: &contract::ethernet::session::Counters) -> Vec<(String, u64)> {
    named(CONTROL_LINK, counters.rows()).collect()
}

/// What a fetcher has counted of one origin.
pub fn origin(counters: &origin::OriginCounters) -> Vec<(String, u64)> {
    named(ORIGIN, counters.rows()).collect()
}

/// All that a fetcher has counted.
pub fn fetcher(totals: &origin::Totals) -> Vec<(String, u64)> {
    let cache = named(ORIGIN, totals.cache.rows());
    named(ORIGIN, totals.origins.rows()).chain(cache).collect()
}

/// What two processes in the same place have counted together under a name.
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
