//! What a fetcher counts.

counters::counters! {
    /// What has happened so far, of one origin or of all.
    pub struct OriginCounters {
        /// Objects of an origin that clients have asked for.
        asked: Counter,
        /// Of these, those that were there, fresh or stale.
        hits: Counter,
        /// Of these, those that the origin was asked for, was being asked for, or is left alone
        /// with.
        misses: Counter,
        /// Of these, those that waited for a request that was under way.
        coalesced: Counter,
        /// Answered from what was stale, while the origin was asked or because it failed.
        stale: Counter,
        /// For one client alone, since they may not be shared.
        passed: Counter,
        /// Requests to an origin, without those repeated after a failure.
        requests: Counter,
        /// Of these, those that were answered 304.
        revalidated: Counter,
        /// Of these, those that have failed or were broken off.
        failures: Counter,
        /// Downloads that ended early because the rest of their version was not to be had.
        lost: Counter,
        /// Content that has come from an origin.
        fetched_bytes: Counter,
        /// Segments that were missing in the cache directory, or not as they were written, and are
        /// fetched again.
        damaged_segments: Counter,
        /// Answers of an origin that were refused since the cache had no room for all of them
        /// (503).
        no_room: Counter,
        /// Variants that have made room for others of the same target.
        evicted_variants: Counter,
    }
}

counters::counters! {
    /// What has happened to the cache directory so far.
    pub struct CacheCounters {
        /// Objects that have made room for others in the cache directory.
        evicted_objects: Counter,
        /// Content that was removed from the cache directory, for others or because it was out of
        /// date.
        evicted_bytes: Counter,
        /// Objects in the cache directory, whole or in parts.
        cached_objects: Gauge,
        /// Content in the cache directory.
        cached_bytes: Gauge,
    }
}

/// What a fetcher has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Of all origins.
    pub origins: OriginCounters,
    /// Of the cache directory.
    pub cache: CacheCounters,
}

/// The same, and what each origin has a part in.
#[derive(Debug)]
pub struct Counted<'a> {
    /// All together.
    pub total: Totals,
    /// By the URLs of the origins that were asked for something.
    pub origins: Vec<(&'a str, OriginCounters)>,
}
