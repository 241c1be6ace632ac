//! State shared by all exchanges of a server.

use std::collections::HashMap;
use std::sync::Arc;

use host::Episode;
use host::app::StreamId;
use http_message::access::AccessLog;

use crate::config::Config;
use crate::counters::Counters;
use crate::exchange::input::Pool;
use crate::semantics::date::DateCache;
use crate::semantics::fields::{Field, Head};
use crate::semantics::joined_rules::JoinedRules;
use crate::semantics::pull::{Origins, Ticket};
use crate::semantics::rate::Rates;
use crate::semantics::request_limit::RequestCounts;
use crate::semantics::site::{Names, Site};
use crate::semantics::target;

/// See the [module documentation](self).
pub(crate) struct Shared {
    /// The configuration without its sites.
    pub(crate) config: Config,
    pub(crate) sites: Vec<Arc<Site>>,
    /// The rules of each site.
    pub(crate) rules: Vec<JoinedRules>,
    /// Requests that limits of rules count.
    pub(crate) request_counts: RequestCounts,
    /// Requests beyond them.
    pub(crate) many_requests: Episode,
    pub(crate) counters: Counters,
    pub(crate) access_log: Option<AccessLog>,
    pub(crate) date: DateCache,
    pub(crate) pool: Pool,
    /// The response being written.
    pub(crate) out: Vec<u8>,
    /// The path being resolved.
    pub(crate) path: Vec<u8>,
    /// The `Location` being written.
    pub(crate) location: Vec<u8>,
    /// The path being opened, below the NIC stack's root.
    pub(crate) file_path: Vec<u8>,
    /// Sites by name.
    pub(crate) names: Names,
    pub(crate) rates: Rates,
    /// Each connection closes with its next response, or when it has nothing to do.
    pub(crate) is_draining: bool,
    /// Largest SETTINGS_MAX_FIELD_SECTION_SIZE sent so far. Later ones are no smaller: a client may
    /// use an earlier value for its early data (RFC 9114 §7.2.4.2).
    pub(crate) section_bytes_max: u64,
    /// Streams of HTTP/2 so far.
    pub(crate) http2_streams: u64,
    /// Memory that connections hold for listings, in bytes.
    pub(crate) listings_bytes: usize,
    /// Clients slower than the minimum rate.
    pub(crate) slow_clients: Episode,
    /// Requests with more ranges than the limit.
    pub(crate) many_ranges: Episode,
    /// The fetcher of objects from origins.
    pub(crate) origins: Option<Box<dyn Origins>>,
    /// The stream of each ticket, and the host's stream that carries it.
    pub(crate) tickets: HashMap<Ticket, (StreamId, StreamId)>,
    pub(crate) ticket_last: u64,
}

impl Shared {
    /// Ends a ticket of a connection.
    pub(crate) fn end_ticket(&mut self, ticket: Ticket) {
        self.tickets.remove(&ticket);
        if let Some(origins) = &mut self.origins {
            origins.done(ticket);
        }
    }

    /// Notes a client that takes less than the least rate: its TCP connection is reset.
    pub(crate) fn note_slow_client(&mut self, now_us: u64, stream: StreamId) {
        self.counters.rate_timeouts += 1;
        if self.slow_clients.begins(now_us) {
            tracing::warn!(
                stream = stream.0,
                "a client takes less than rate_min: it is reset; later ones are only counted"
            );
        }
    }

    /// Returns the number of the request's site, by the authority of its target, else by its
    /// `Host`.
    pub(crate) fn site(&mut self, head: Head<'_>, target: &[u8]) -> usize {
        if self.names.is_empty() {
            return 0;
        }
        let authority = target::authority(target).or_else(|| head.value(Field::Host));
        self.names.site(authority.unwrap_or_default())
    }
}
