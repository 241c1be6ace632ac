//! Counters of a fetcher.

counters::counters! {
    /// Events so far, of one origin or of all.
    pub struct OriginCounters {
        /// Requests of clients for objects of an origin.
        asked: Counter,
        /// Of these, hits, fresh or stale.
        hits: Counter,
        /// Of these, misses: a request to the origin is sent, is under way, or is withheld after a
        /// failure.
        misses: Counter,
        /// Of these, misses that waited for a request already under way.
        coalesced: Counter,
        /// Requests answered with a stale object, during revalidation or because the origin failed.
        stale: Counter,
        /// Answers passed to one client alone, since they may not be shared.
        passed: Counter,
        /// Requests to an origin, without retries after a failure.
        requests: Counter,
        /// Of these, requests answered 304.
        revalidated: Counter,
        /// Of these, requests that failed or broke off.
        failures: Counter,
        /// Downloads that ended early because the rest of their version was not available.
        lost: Counter,
        /// Content fetched from an origin.
        fetched_bytes: Counter,
        /// Segments missing from the cache directory, or damaged there, and fetched again.
        damaged_segments: Counter,
        /// Answers of an origin refused because the cache lacked room for all of them (503).
        no_room: Counter,
        /// Answers of an origin refused because they have more header fields than are kept (502).
        oversized_heads: Counter,
        /// Variants evicted for others of the same target.
        evicted_variants: Counter,
    }
}

counters::counters! {
    /// Events and contents of the cache directory.
    pub struct CacheCounters {
        /// Objects evicted from the cache directory.
        evicted_objects: Counter,
        /// Content removed from the cache directory, to make room or because it was outdated.
        evicted_bytes: Counter,
        /// Refusals and failures of origins forgotten to make room for others.
        evicted_refusals: Counter,
        /// Objects in the cache directory, complete or partial.
        cached_objects: Gauge,
        /// Content in the cache directory.
        cached_bytes: Gauge,
    }
}

/// The sums of a fetcher's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Of all origins.
    pub origins: OriginCounters,
    /// Of the cache directory.
    pub cache: CacheCounters,
}

/// The sums, and the share of each origin.
#[derive(Debug)]
pub struct Counted<'a> {
    /// Over all origins.
    pub total: Totals,
    /// By origin URL, for each origin with a request.
    pub origins: Vec<(&'a str, OriginCounters)>,
}
