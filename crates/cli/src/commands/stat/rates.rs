//! How fast it goes, from one look at a server to the next.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use processes::ipc::stat_report::{Document, Host};

/// Counts at a moment.
pub(super) struct Sample {
    at: Instant,
    server: Option<[u64; 3]>,
    /// Bytes acknowledged of each connection.
    acked: HashMap<u64, u64>,
    /// Bytes that each application has sent.
    sent: HashMap<u32, u64>,
}

/// How fast it went in a span of time.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Rates {
    pub(super) server: Option<ServerRates>,
    /// Bytes acknowledged of each connection, per second.
    acked: HashMap<u64, u64>,
    /// Bytes that each application has sent, per second.
    sent: HashMap<u32, u64>,
}

/// Each per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ServerRates {
    /// Bytes handed down to be sent, again or for the first time.
    pub(super) bytes: u64,
    pub(super) requests: u64,
    pub(super) connections: u64,
}

impl Sample {
    pub(super) fn of(document: &Document) -> Self {
        let acked = document.connections.iter();
        let acked = acked.map(|connection| (connection.stream, connection.tcp.bytes_acked));
        let sent = document.applications.iter().map(|application| {
            let bytes = application
                .sent_bytes
                .saturating_add(application.file_bytes);
            (application.application, bytes)
        });
        Self {
            at: Instant::now(),
            server: document.host.as_ref().map(counts),
            acked: acked.collect(),
            sent: sent.collect(),
        }
    }

    /// How fast it went since then.
    pub(super) fn since(&self, before: &Self) -> Rates {
        self.after(before, self.at - before.at)
    }

    fn after(&self, before: &Self, time: Duration) -> Rates {
        let us = time.as_micros().max(1);
        let rate = |now: u64, then: u64| {
            let per_second = u128::from(now.saturating_sub(then)) * 1_000_000 / us;
            u64::try_from(per_second).unwrap_or(u64::MAX)
        };
        let server = self.server.zip(before.server).map(|(now, then)| {
            let [bytes, requests, connections] = [0, 1, 2].map(|at| rate(now[at], then[at]));
            ServerRates {
                bytes,
                requests,
                connections,
            }
        });
        let acked = self.acked.iter().filter_map(|(stream, now)| {
            let then = before.acked.get(stream)?;
            Some((*stream, rate(*now, *then)))
        });
        let sent = self.sent.iter().filter_map(|(number, now)| {
            let then = before.sent.get(number)?;
            Some((*number, rate(*now, *then)))
        });
        Rates {
            server,
            acked: acked.collect(),
            sent: sent.collect(),
        }
    }
}

impl Rates {
    /// Bytes of a connection that were acknowledged, per second; `None` if it was not there before.
    pub(super) fn acked(&self, stream: u64) -> Option<u64> {
        self.acked.get(&stream).copied()
    }

    /// Bytes that an application has sent, per second; `None` if it was not there before.
    pub(super) fn sent(&self, application: u32) -> Option<u64> {
        self.sent.get(&application).copied()
    }
}

fn counts(host: &Host) -> [u64; 3] {
    let count = |name| host.counters.get(name).copied().unwrap_or(0);
    [
        count("real_bytes") + count("virtual_bytes"),
        count("http_requests") + count("proxy_requests"),
        count("connections_accepted"),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::text::tests::document;
    use super::*;

    #[test]
    fn rates_are_of_what_was_there_before() {
        let mut then = document(1);
        let mut now = document(2);
        now.connections[1].stream = 99;
        now.connections[0].tcp.bytes_acked = then.connections[0].tcp.bytes_acked + 3000;
        let counters = [
            ("virtual_bytes", 10_000),
            ("http_requests", 7),
            ("connections_accepted", 1),
        ];
        let host = now.host.as_mut().unwrap();
        host.counters = counters
            .map(|(name, count)| (name.to_owned(), count))
            .into();
        then.host.as_mut().unwrap().counters.clear();
        now.applications[0].file_bytes += 700;
        now.applications[1].application = 99;
        let rates = Sample::of(&now).after(&Sample::of(&then), Duration::from_millis(500));
        let server = ServerRates {
            bytes: 20_000,
            requests: 14,
            connections: 2,
        };
        assert_eq!(rates.server, Some(server));
        assert_eq!(rates.acked(now.connections[0].stream), Some(6000));
        assert_eq!(rates.acked(99), None, "it is new");
        assert_eq!((rates.sent(100), rates.sent(99)), (Some(1400), None));
        then.host = None;
        let rates = Sample::of(&now).after(&Sample::of(&then), Duration::ZERO);
        assert_eq!(rates.server, None);
    }
}
