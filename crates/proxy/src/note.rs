//! Access log notes of an exchange.

use std::net::{IpAddr, SocketAddr};

use http_message::access::{AccessRecord, AccessTls, RequestText};

use crate::shared::Shared;

/// An exchange that is not complete.
#[derive(Debug)]
pub(crate) struct Note {
    text: Option<RequestText>,
    begun_us: u64,
    first_byte_us: Option<u64>,
}

/// The parties and the result of an exchange.
#[derive(Clone, Debug)]
pub(crate) struct Outcome<'a> {
    pub(crate) client: SocketAddr,
    /// The peer that has named the client.
    pub(crate) proxy: Option<IpAddr>,
    pub(crate) tls: Option<AccessTls<'static>>,
    pub(crate) connection: u64,
    pub(crate) request: u32,
    pub(crate) status: u16,
    pub(crate) body_bytes: u64,
    pub(crate) retransmissions: u32,
    pub(crate) is_cut_short: bool,
    pub(crate) backend: Option<&'a str>,
    pub(crate) retries: u8,
}

impl Note {
    /// Begins the note of an exchange with this head, or other bytes; `pool` is the name of its
    /// pool.
    pub(crate) fn new(shared: &mut Shared, now_us: u64, head: &[u8], pool: Option<&str>) -> Self {
        let log = shared.access_log.as_mut();
        let pool = pool.as_ref().map(|name| name as &dyn std::fmt::Display);
        Note {
            text: log.and_then(|log| RequestText::new(log, head, pool)),
            begun_us: now_us,
            first_byte_us: None,
        }
    }

    /// Begins the note of a connection in TCP mode, with the server name of TLS if there is one.
    pub(crate) fn of_host(
        shared: &mut Shared,
        now_us: u64,
        host: Option<&str>,
        pool: Option<&str>,
    ) -> Self {
        let log = shared.access_log.as_mut();
        let pool = pool.as_ref().map(|name| name as &dyn std::fmt::Display);
        Note {
            text: log.and_then(|log| RequestText::of_host(log, host, pool)),
            begun_us: now_us,
            first_byte_us: None,
        }
    }

    /// Notes the first byte for the client.
    pub(crate) fn on_first_byte(&mut self, now_us: u64) {
        self.first_byte_us.get_or_insert(now_us);
    }

    /// Writes the record of the completed exchange.
    pub(crate) fn end(self, shared: &mut Shared, now_us: u64, outcome: &Outcome<'_>) {
        let (Some(log), Some(text)) = (shared.access_log.as_mut(), self.text) else {
            return;
        };
        let since = |at_us: u64| at_us.saturating_sub(self.begun_us);
        log.note(&AccessRecord {
            client: outcome.client,
            proxy: outcome.proxy,
            connection: outcome.connection,
            request: outcome.request,
            ended_us: now_us,
            total_us: since(now_us),
            first_byte_us: self.first_byte_us.map(since),
            status: outcome.status,
            body_bytes: outcome.body_bytes,
            offloaded_bytes: 0,
            retransmissions: outcome.retransmissions,
            is_cut_short: outcome.is_cut_short,
            tls: outcome.tls,
            coding: None,
            cache: None,
            backend: outcome.backend,
            retries: outcome.retries,
            site: text.site(),
            request_line: text.request_line(),
            host: text.field(0),
            range: text.field(1),
            referer: text.field(2),
            user_agent: text.field(3),
        });
        text.release(log);
    }
}
