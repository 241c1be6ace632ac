//! What all exchanges of a server share.

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
use crate::semantics::pull::{Origins, Ticket};
use crate::semantics::rate::Rates;
use crate::semantics::site::{Names, Site};
use crate::semantics::target;

/// See the [module documentation](self).
pub(crate) struct Shared {
    /// Without its sites.
    pub(crate) config: Config,
    pub(crate) sites: Vec<Arc<Site>>,
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
    /// The greatest SETTINGS_MAX_FIELD_SECTION_SIZE so far. None that follows is less: a client may
    /// go by an earlier one with its early data (RFC 9114 §7.2.4.2).
    pub(crate) section_bytes_max: u64,
    /// Streams of HTTP/2 so far.
    pub(crate) http2_streams: u64,
    /// Memory that connections hold for listings, in bytes.
    pub(crate) listings_bytes: usize,
    /// Clients that are slower than the least rate.
    pub(crate) slow_clients: Episode,
    /// Requests with more ranges than they may have.
    pub(crate) many_ranges: Episode,
    /// The fetcher of objects from origins.
    pub(crate) origins: Option<Box<dyn Origins>>,
    /// Whose tickets they are.
    pub(crate) tickets: HashMap<Ticket, StreamId>,
    pub(crate) ticket_last: u64,
}

impl Shared {
    /// A wish of a connection's is over.
    pub(crate) fn end_ticket(&mut self, ticket: Ticket) {
        self.tickets.remove(&ticket);
        if let Some(origins) = &mut self.origins {
            origins.done(ticket);
        }
    }

    /// The site that a request is for: the one of its target's authority, else that of its `Host`.
    pub(crate) fn site(&mut self, head: Head<'_>, target: &[u8]) -> usize {
        if self.names.is_empty() {
            return 0;
        }
        let authority = target::authority(target).or_else(|| head.value(Field::Host));
        self.names.site(authority.unwrap_or_default())
    }
}
