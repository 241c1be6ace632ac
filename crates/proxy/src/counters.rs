//! Event counts of a proxy, and of its backends.

counters::counters! {
    /// Counts since the proxy's start.
    pub struct Counters {
        /// Connections accepted by the proxy.
        connections_accepted: Counter,
        /// Client connections that have ended.
        connections_closed: Counter,
        /// Requests whose head was read, valid or not.
        requests: Counter,
        /// Requests over HTTP/2.
        http2_requests: Counter,
        /// HTTP/2 streams reset because of a client error.
        http2_stream_errors: Counter,
        /// HTTP/2 connections closed because of a client error.
        http2_connection_errors: Counter,
        /// HTTP/2 connections closed because the client caused too much work that leads to no
        /// response.
        http2_excessive_loads: Counter,
        /// Backend responses forwarded to clients, without 1xx heads.
        responses: Counter,
        /// 4xx responses of the proxy's own.
        refused_4xx: Counter,
        /// 5xx responses of the proxy's own.
        refused_5xx: Counter,
        /// Connections joined with a backend in TCP mode.
        tunnels: Counter,
        /// Connections upgraded to tunnels.
        upgrades: Counter,
        /// Tunnels that a NIC stack was to splice.
        splices: Counter,
        /// Tunnels that the NIC stack could not splice: the host copies them.
        splices_refused: Counter,
        /// Tunnels that the host copies on: they did not become quiet, or were returned.
        splices_returned: Counter,
        /// Bytes of tunnels forwarded without copying, in either direction. The following counters
        /// include them.
        spliced_bytes: Counter,
        /// Bytes of bodies and tunnels sent to backends.
        bytes_in: Counter,
        /// Bytes of bodies and tunnels sent to clients.
        bytes_out: Counter,
        /// Connections to backends begun.
        backend_connects: Counter,
        /// Connections to backends that failed.
        backend_connect_failures: Counter,
        /// Requests sent to a backend on an idle connection, or on one of HTTP/2 that has answered
        /// others.
        backend_reuses: Counter,
        /// HTTP/2 streams opened to backends.
        backend_http2_streams: Counter,
        /// HTTP/2 streams that backends refused, or did not process before they closed the
        /// connection.
        backend_http2_unprocessed: Counter,
        /// HTTP/2 streams to backends reset because of an error of the backend.
        backend_http2_stream_errors: Counter,
        /// HTTP/2 connections to backends closed because of an error of the backend.
        backend_http2_connection_errors: Counter,
        /// Requests that failed at a backend before a response.
        backend_failures: Counter,
        /// Requests retried, at another backend or on another connection.
        retries: Counter,
        /// Requests whose body was waited for before a backend was chosen.
        bodies_awaited: Counter,
        /// Requests that waited for a backend.
        queued: Counter,
        /// Requests that timed out waiting for a backend.
        queue_timeouts: Counter,
        /// Requests dropped from a full queue for the request of a source with fewer places.
        queue_evictions: Counter,
        /// Requests and tunnels ended because their clients delayed them and others waited for a
        /// connection to the backend.
        evictions: Counter,
        /// Requests ended because their clients sent or took less than `rate_min`.
        rate_timeouts: Counter,
        /// Connections to backends not begun because no local port was left.
        backend_ports_exhausted: Counter,
        /// Health checks passed by backends.
        checks_passed: Counter,
        /// Health checks failed by backends.
        checks_failed: Counter,
        /// Backends ejected because requests failed.
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
        /// Requests that got a connection to the backend, and connections joined with it. Each
        /// retry counts.
        requests: Counter,
        /// Of these, requests that the backend answered, and connections joined with it.
        responses: Counter,
        /// Requests, and connections in TCP mode, that failed at the backend: connecting failed, or
        /// no response came.
        requests_failed: Counter,
        /// Health checks that the backend failed.
        checks_failed: Counter,
        /// Times that the backend was ejected because requests failed.
        ejections: Counter,
        /// Connections to the backend in use, including those being established; of HTTP/2, its
        /// streams.
        connections: Gauge,
        /// Idle connections to the backend, kept for reuse.
        connections_idle: Gauge,
        /// HTTP/2 connections to the backend, including idle ones and those being established.
        http2_connections: Gauge,
        /// 1 while health checks report the backend up, or there are none; otherwise 0.
        up: Gauge,
        /// 1 while the backend is down because its name has no address; otherwise 0.
        unresolved: Gauge,
        /// 1 while the backend is ejected because requests failed; otherwise 0.
        ejected: Gauge,
        /// 1 while the configuration drains the backend; otherwise 0.
        draining: Gauge,
    }
}
