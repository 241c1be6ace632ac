//! What a fetcher counts.

/// What has happened so far, of one origin or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Objects that the host process has asked for.
    pub asked: u64,
    /// Of these, those that were there, fresh or stale.
    pub hits: u64,
    /// Of these, those that the origin was asked for, was being asked for, or is left alone with.
    pub misses: u64,
    /// Of these, those that waited for a request that was under way.
    pub coalesced: u64,
    /// Answered from what was stale.
    pub stale: u64,
    /// For one client alone, since they may not be shared.
    pub passed: u64,
    /// Requests to origins, without those repeated after a failure.
    pub requests: u64,
    /// Of these, those that were answered 304.
    pub revalidated: u64,
    /// Of these, those that have failed or were broken off.
    pub failures: u64,
    /// Tickets whose version was not to be had to its end.
    pub lost: u64,
    /// Content that has come from origins, in bytes.
    pub fetched_bytes: u64,
    /// Segments that were missing in the cache directory, or not as they were written, and are
    /// fetched again.
    pub damaged: u64,
    /// Answers that did not come in parts, and found no room beside what is read or fetched.
    pub no_room: u64,
    /// Variants that had to make room for others of their target.
    pub evicted_variants: u64,
    /// Objects that have made room for others. This and what follows is not counted by origin.
    pub evicted_objects: u64,
    /// Content that has been removed, in bytes.
    pub evicted_bytes: u64,
    /// Objects that are there now, or in parts.
    pub cached_objects: u64,
    /// Content that is there now, in bytes.
    pub cached_bytes: u64,
}

/// What a fetcher tells of what it does.
#[derive(Debug)]
pub struct Counted<'a> {
    /// All together.
    pub total: Counters,
    /// What is counted by origin, by the URLs of those that were asked for something.
    pub origins: Vec<(&'a str, Counters)>,
}

impl Counters {
    /// So many rows, the first ones, are counted by origin.
    pub const OF_ORIGIN: usize = 14;

    /// All of them by name.
    pub fn rows(&self) -> [(&'static str, u64); 18] {
        [
            ("origin_asked", self.asked),
            ("origin_hits", self.hits),
            ("origin_misses", self.misses),
            ("origin_coalesced", self.coalesced),
            ("origin_stale", self.stale),
            ("origin_passed", self.passed),
            ("origin_requests", self.requests),
            ("origin_revalidated", self.revalidated),
            ("origin_failures", self.failures),
            ("origin_lost", self.lost),
            ("origin_fetched_bytes", self.fetched_bytes),
            ("origin_damaged_segments", self.damaged),
            ("origin_no_room", self.no_room),
            ("origin_evicted_variants", self.evicted_variants),
            ("origin_evicted_objects", self.evicted_objects),
            ("origin_evicted_bytes", self.evicted_bytes),
            ("origin_cached_objects", self.cached_objects),
            ("origin_cached_bytes", self.cached_bytes),
        ]
    }

    /// What another origin has a part in.
    pub fn add(&mut self, other: &Counters) {
        self.asked += other.asked;
        self.hits += other.hits;
        self.misses += other.misses;
        self.coalesced += other.coalesced;
        self.stale += other.stale;
        self.passed += other.passed;
        self.requests += other.requests;
        self.revalidated += other.revalidated;
        self.failures += other.failures;
        self.lost += other.lost;
        self.fetched_bytes += other.fetched_bytes;
        self.damaged += other.damaged;
        self.no_room += other.no_room;
        self.evicted_variants += other.evicted_variants;
    }
}
