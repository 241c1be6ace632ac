//! Event counts of a server.

use http::StatusCode;

counters::counters! {
    /// Counts since the server's start.
    pub struct Counters {
        /// Connections that the server accepted.
        connections_accepted: Counter,
        /// Connections of the server that have ended.
        connections_closed: Counter,
        /// Request heads answered, valid or not.
        requests: Counter,
        /// Responses begun with a 1xx status.
        responses_1xx: Counter,
        /// Responses begun with a 2xx status.
        responses_2xx: Counter,
        /// Responses begun with a 3xx status.
        responses_3xx: Counter,
        /// Responses begun with a 4xx status.
        responses_4xx: Counter,
        /// Responses begun with a 5xx status.
        responses_5xx: Counter,
        /// Bytes of response heads and error pages handed to the host stack.
        real_bytes: Counter,
        /// Bytes of files promised to clients; the host never has them.
        virtual_bytes: Counter,
        /// Requests answered with a whole file because they had more ranges than `ranges_max`.
        ranges_over_limit: Counter,
        /// Requests answered with 429 because their client makes more than a rule's
        /// `request_limit`.
        requests_over_limit: Counter,
        /// Requests whose head did not arrive in time.
        head_timeouts: Counter,
        /// Kept-alive connections closed because no further request came.
        idle_timeouts: Counter,
        /// Connections aborted because the client acknowledged nothing for too long.
        stall_timeouts: Counter,
        /// Connections aborted because the client acknowledged less than `rate_min`.
        rate_timeouts: Counter,
        /// Requests answered 503 because the NIC stack did not open their file in time, 504 because
        /// an origin did not answer, or 425 because the handshake was not over.
        open_timeouts: Counter,
        /// Connections aborted because the rest of an origin's object is not available.
        contents_lost: Counter,
        /// Connections aborted because the client did not close after the last response.
        linger_timeouts: Counter,
        /// Responses over HTTP/2 or HTTP/3 replaced by 502, or a reset, because their head is
        /// longer than the client accepts.
        oversized_heads: Counter,
        /// Requests over HTTP/2 or HTTP/3 answered 421 because their host is not one of the
        /// connection.
        misdirected_requests: Counter,
        /// Requests of trusted proxies whose `X-Forwarded-For` or `Forwarded` has an element of
        /// theirs that is no address.
        forwarded_invalid: Counter,
        /// Requests over HTTP/2.
        http2_requests: Counter,
        /// HTTP/2 streams reset because of a client error.
        http2_stream_errors: Counter,
        /// HTTP/2 connections closed because of a client error.
        http2_connection_errors: Counter,
        /// HTTP/2 connections closed because the client caused too much work that leads to no
        /// response.
        http2_excessive_loads: Counter,
        /// Requests over HTTP/3.
        http3_requests: Counter,
        /// HTTP/3 streams reset because of a client error.
        http3_stream_errors: Counter,
        /// HTTP/3 connections closed because of a client error.
        http3_connection_errors: Counter,
        /// HTTP/3 connections closed because the client caused too much work that leads to no
        /// response.
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
