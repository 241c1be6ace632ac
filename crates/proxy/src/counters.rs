//! What has happened so far.

counters::counters! {
    /// Counts since the proxy's start.
    pub struct Counters {
        /// Connections that the proxy has taken.
        connections_accepted: Counter,
        /// Connections of clients that are over.
        connections_closed: Counter,
        /// Requests whose head was read, whole or broken.
        requests: Counter,
        /// Responses of backends forwarded to clients, heads of 1xx not counted.
        responses: Counter,
        /// Answers of the proxy's own with a status of 4xx.
        refused_4xx: Counter,
        /// Answers of the proxy's own with a status of 5xx.
        refused_5xx: Counter,
        /// Connections joined with a backend in TCP mode.
        tunnels: Counter,
        /// Connections that became tunnels by an upgrade.
        upgrades: Counter,
        /// Bytes of bodies and tunnels that went to backends.
        bytes_in: Counter,
        /// Bytes of bodies and tunnels that went to clients.
        bytes_out: Counter,
        /// Connections to backends that were begun.
        backend_connects: Counter,
        /// Connections to backends that were not established.
        backend_connect_failures: Counter,
        /// Requests that went to a backend on a connection that was there.
        backend_reuses: Counter,
        /// Requests that failed at a backend before a response.
        backend_failures: Counter,
        /// Requests sent once more, to another backend or on another connection.
        retries: Counter,
        /// Requests that waited for a backend.
        queued: Counter,
        /// Requests that waited for a backend in vain.
        queue_timeouts: Counter,
        /// Connections without a valid header of the PROXY protocol, which they had to have.
        proxy_headers_invalid: Counter,
        /// Health checks that a backend has passed.
        checks_passed: Counter,
        /// Health checks that a backend has failed.
        checks_failed: Counter,
        /// Backends taken out because requests failed there.
        ejections: Counter,
        /// Backends that are up.
        backends_up: Gauge,
        /// Backends that are down.
        backends_down: Gauge,
    }
}
