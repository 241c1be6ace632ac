//! What has happened so far.

use http::StatusCode;

/// Counts since the server's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections that peers established.
    pub connections_accepted: u64,
    /// Connections that are over, for whatever reason.
    pub connections_closed: u64,
    /// Request heads that were answered, whole or broken.
    pub requests: u64,
    /// Responses begun, by the first digit of their status less one: `[1]` counts 2xx.
    pub responses: [u64; 5],
    /// Bytes of response heads and error pages handed to the host stack: real bytes.
    pub real_bytes: u64,
    /// Bytes of file ranges handed to the host stack: virtual bytes, promised to the peer.
    pub virtual_bytes: u64,
    /// Requests that did not arrive in time.
    pub head_timeouts: u64,
    /// Kept-alive connections closed because no further request came.
    pub idle_timeouts: u64,
    /// Connections aborted because the peer acknowledged nothing for too long.
    pub stall_timeouts: u64,
    /// Connections aborted because the peer acknowledged less than the least rate.
    pub rate_timeouts: u64,
    /// Requests answered 503 because the NIC stack did not say whether their file is open, or 504
    /// because an origin's answer did not come.
    pub open_timeouts: u64,
    /// Connections aborted because the rest of what an origin had promised was not to be had.
    pub contents_lost: u64,
    /// Connections aborted because the peer did not close after the last response.
    pub linger_timeouts: u64,
}

impl Counters {
    /// Names and values.
    pub fn rows(&self) -> [(&'static str, u64); 17] {
        let [
            responses_1xx,
            responses_2xx,
            responses_3xx,
            responses_4xx,
            responses_5xx,
        ] = self.responses;
        [
            ("connections_accepted", self.connections_accepted),
            ("connections_closed", self.connections_closed),
            ("requests", self.requests),
            ("responses_1xx", responses_1xx),
            ("responses_2xx", responses_2xx),
            ("responses_3xx", responses_3xx),
            ("responses_4xx", responses_4xx),
            ("responses_5xx", responses_5xx),
            ("real_bytes", self.real_bytes),
            ("virtual_bytes", self.virtual_bytes),
            ("head_timeouts", self.head_timeouts),
            ("idle_timeouts", self.idle_timeouts),
            ("stall_timeouts", self.stall_timeouts),
            ("rate_timeouts", self.rate_timeouts),
            ("open_timeouts", self.open_timeouts),
            ("contents_lost", self.contents_lost),
            ("linger_timeouts", self.linger_timeouts),
        ]
    }

    pub(crate) fn response(&mut self, status: StatusCode) {
        let class = usize::from(status.as_u16() / 100);
        if let Some(count) = self.responses.get_mut(class.wrapping_sub(1)) {
            *count += 1;
        }
    }
}
