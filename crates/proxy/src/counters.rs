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
        /// Tunnels that a NIC stack was to join.
        splices: Counter,
        /// Tunnels that it could not, so that they are copied.
        splices_refused: Counter,
        /// Tunnels that the host goes on copying: they did not become quiet, or came back.
        splices_returned: Counter,
        /// Bytes of tunnels that went without being copied, in either direction. They count among
        /// the following as well.
        spliced_bytes: Counter,
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

counters::counters! {
    /// Counts of one backend in one pool, since it is known.
    pub struct BackendCounters {
        /// Requests that have got a connection to the backend, and connections joined with it. One
        /// that is tried again counts again.
        requests: Counter,
        /// Of these, those that the backend has answered, and the connections joined with it.
        responses: Counter,
        /// Requests, and connections in TCP mode, that failed at the backend: no connection was
        /// established, or no response came.
        requests_failed: Counter,
        /// Health checks that the backend has failed.
        checks_failed: Counter,
        /// How often the backend was taken out because requests failed there.
        ejections: Counter,
        /// Connections to the backend in use, those that are being established included.
        connections: Gauge,
        /// Connections to the backend that wait to be used again.
        connections_idle: Gauge,
        /// 1 while health checks say that the backend is up, or there are none; otherwise 0.
        up: Gauge,
        /// 1 while the backend is taken out because requests failed there; otherwise 0.
        ejected: Gauge,
        /// 1 while the configuration has the backend drain; otherwise 0.
        draining: Gauge,
    }
}
