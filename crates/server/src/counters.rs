//! What has happened so far.

use http::StatusCode;

counters::counters! {
    /// Counts since the server's start.
    pub struct Counters {
        /// Connections that the server has taken.
        connections_accepted: Counter,
        /// Connections of the server that are over.
        connections_closed: Counter,
        /// Request heads that were answered, whole or broken.
        requests: Counter,
        /// Responses begun with a status of 1xx.
        responses_1xx: Counter,
        /// Responses begun with a status of 2xx.
        responses_2xx: Counter,
        /// Responses begun with a status of 3xx.
        responses_3xx: Counter,
        /// Responses begun with a status of 4xx.
        responses_4xx: Counter,
        /// Responses begun with a status of 5xx.
        responses_5xx: Counter,
        /// Bytes of response heads and error pages handed to the host stack.
        real_bytes: Counter,
        /// Bytes of files promised to clients, which the host never has.
        virtual_bytes: Counter,
        /// Requests that did not arrive in time.
        head_timeouts: Counter,
        /// Kept-alive connections closed because no further request came.
        idle_timeouts: Counter,
        /// Connections aborted because the client acknowledged nothing for too long.
        stall_timeouts: Counter,
        /// Connections aborted because the client acknowledged less than `rate_min`.
        rate_timeouts: Counter,
        /// Requests answered 503 because the NIC stack did not say whether their file is open, or
        /// 504 because an origin's answer did not come, or 425 because the handshake was not over.
        open_timeouts: Counter,
        /// Connections aborted because the rest of an object of an origin is not to be had.
        contents_lost: Counter,
        /// Connections aborted because the client did not close after the last response.
        linger_timeouts: Counter,
        /// Requests that came over HTTP/3.
        http3_requests: Counter,
        /// Streams of HTTP/3 that were reset for an error of the client.
        http3_stream_errors: Counter,
        /// Connections of HTTP/3 that were closed for an error of the client.
        http3_connection_errors: Counter,
        /// Those of them whose client asked for too much that leads to no response.
        http3_excessive_loads: Counter,
    }
}

impl Counters {
    pub(crate) fn response(&mut self, status: StatusCode) {
        match status.as_u16() / 100 {
            1 => self.responses_1xx += 1,
            2 => self.responses_2xx += 1,
            3 => self.responses_3xx += 1,
            4 => self.responses_4xx += 1,
            5 => self.responses_5xx += 1,
            _ => {}
        }
    }
}
