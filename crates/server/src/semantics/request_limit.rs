//! How many requests a rule answers in a time, of each client.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::num::NonZeroU32;
use std::time::Duration;

use host::Source;
use http::HeaderName;

/// Most clients whose requests are counted, 24 bytes each. Beyond, one that could make nearly all
/// of its requests at once is forgotten.
const CLIENTS_MAX: usize = 65_536;

/// Clients looked at to find one to forget.
const SAMPLE: usize = 16;

/// A limit of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestLimit {
    /// Number of the limit among those of a server: each counts for itself.
    pub number: u32,
    /// Requests per period.
    pub requests: NonZeroU32,
    /// The period.
    pub per: Duration,
    /// Requests that a client may make at once, if it has made none for a while.
    pub burst: NonZeroU32,
    /// The field whose value distinguishes clients. Default: their addresses. Requests without the
    /// field count by address.
    pub by: Option<HeaderName>,
}

/// The property that distinguishes clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ClientKey<'a> {
    Source(Source),
    Field(&'a [u8]),
}

impl RequestLimit {
    /// The time in which a client may make one request, in microseconds.
    fn interval_us(&self) -> u64 {
        let per_us = u64::try_from(self.per.as_micros()).unwrap_or(u64::MAX);
        (per_us / u64::from(self.requests.get())).max(1)
    }
}

/// The requests of clients, as a bucket of tokens for each: when it is full again.
#[derive(Debug, Default)]
pub(crate) struct RequestCounts {
    full_at_us: HashMap<(u32, u64), u64>,
    hash: RandomState,
}

impl RequestCounts {
    /// Counts a request; `Err` if the client has made too many, with the time until it may make
    /// the next one, in microseconds.
    pub(crate) fn count(
        &mut self,
        now_us: u64,
        limit: &RequestLimit,
        client: ClientKey<'_>,
    ) -> Result<(), u64> {
        let key = (limit.number, self.hash.hash_one(client));
        let interval_us = limit.interval_us();
        let full_at_us = self.full_at_us.get(&key).copied().unwrap_or(0).max(now_us);
        let missing_us = (full_at_us - now_us).saturating_add(interval_us);
        let held_us = interval_us.saturating_mul(u64::from(limit.burst.get()));
        if missing_us > held_us {
            return Err(missing_us - held_us);
        }
        if self.full_at_us.len() >= CLIENTS_MAX && !self.full_at_us.contains_key(&key) {
            self.forget_one();
        }
        self.full_at_us
            .insert(key, full_at_us.saturating_add(interval_us));
        Ok(())
    }

    /// Forgets all clients.
    pub(crate) fn clear(&mut self) {
        self.full_at_us.clear();
    }

    /// Forgets the client of some whose bucket is full first.
    fn forget_one(&mut self) {
        let some = self.full_at_us.iter().take(SAMPLE);
        let first = some.min_by_key(|(_, full_at_us)| **full_at_us);
        if let Some((&key, _)) = first {
            self.full_at_us.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(requests: u32, per_s: u64, burst: u32) -> RequestLimit {
        RequestLimit {
            number: 0,
            requests: NonZeroU32::new(requests).unwrap(),
            per: Duration::from_secs(per_s),
            burst: NonZeroU32::new(burst).unwrap(),
            by: None,
        }
    }

    fn source(n: u32) -> ClientKey<'static> {
        ClientKey::Source(Source::V4(n))
    }

    #[test]
    fn after_a_burst_requests_come_at_the_rate() {
        let mut counts = RequestCounts::default();
        let limit = limit(60, 60, 3);
        let begun_us = 5_000_000;
        for _ in 0..3 {
            assert_eq!(counts.count(begun_us, &limit, source(1)), Ok(()));
        }
        assert_eq!(counts.count(begun_us, &limit, source(1)), Err(1_000_000));
        assert_eq!(
            counts.count(begun_us + 400_000, &limit, source(1)),
            Err(600_000)
        );
        assert_eq!(
            counts.count(begun_us, &limit, source(2)),
            Ok(()),
            "each for itself"
        );
        assert_eq!(
            counts.count(begun_us + 1_000_000, &limit, source(1)),
            Ok(())
        );
        assert_eq!(
            counts.count(begun_us + 1_000_000, &limit, source(1)),
            Err(1_000_000)
        );
        // Refused requests do not count, and time fills the bucket up to the burst.
        let later_us = begun_us + 3_600_000_000;
        let answered = (0..10).filter(|_| counts.count(later_us, &limit, source(1)).is_ok());
        assert_eq!(answered.count(), 3);
    }

    #[test]
    fn limits_and_kinds_of_clients_count_apart() {
        let mut counts = RequestCounts::default();
        let one = limit(1, 3_600, 1);
        let other = RequestLimit {
            number: 1,
            ..one.clone()
        };
        for limit in [&one, &other] {
            for client in [source(1), ClientKey::Field(b"k"), ClientKey::Field(b"l")] {
                assert_eq!(counts.count(0, limit, client), Ok(()));
                assert!(counts.count(0, limit, client).is_err());
            }
        }
        counts.clear();
        assert_eq!(counts.count(0, &one, source(1)), Ok(()));
    }

    #[test]
    fn a_full_table_forgets_no_client_that_is_at_its_limit_before_one_that_is_not() {
        let mut counts = RequestCounts::default();
        let limit = limit(1, 3_600, 2);
        let victim = source(u32::MAX);
        for _ in 0..2 {
            assert_eq!(counts.count(0, &limit, victim), Ok(()));
        }
        for n in 0..2 * CLIENTS_MAX as u32 {
            assert_eq!(counts.count(0, &limit, source(n)), Ok(()));
        }
        assert_eq!(counts.full_at_us.len(), CLIENTS_MAX);
        assert!(counts.count(0, &limit, victim).is_err());
    }
}
