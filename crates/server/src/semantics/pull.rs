//! Content from origins: a fetcher gets it, and reports where its bytes lie below the NIC stack's
//! root.

use std::fmt;
use std::io::Write;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use http::{HeaderName, HeaderValue, StatusCode};

use crate::semantics::pattern::Pattern;
use crate::semantics::relative_path::RelativePath;

/// Identifies one client's request for one object. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Paths of a site that come from an origin.
#[derive(Clone, Debug)]
pub struct Pull {
    /// Compared with a path as a rule's pattern is.
    pub pattern: Pattern,
    /// URL of the origin.
    pub origin: Arc<str>,
}

/// Source of the paths of a rule, regardless of its site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RulePull {
    /// No origin: the path is a file, or missing.
    Off,
    /// The origin with this URL.
    From(Arc<str>),
}

/// The fetcher of objects from origins.
pub trait Origins: Send {
    /// Request fields by which an origin may select its response, in lower case.
    fn selecting(&self) -> &'static [&'static str];
    /// Asks an origin for an object: its path and query, escaped, with a slash at the start.
    /// `fields` are those of the request that may select a variant. [`OriginEvent::Object`],
    /// [`OriginEvent::Refused`] or [`OriginEvent::Lost`] follows, perhaps after
    /// [`OriginEvent::EarlyHints`].
    fn ask(
        &mut self,
        ticket: Ticket,
        origin: &Arc<str>,
        target: &str,
        fields: &[(&'static str, String)],
    );
    /// Asks for the first segment of a range of an object's segments; the client will need the
    /// others. [`OriginEvent::Segment`] or [`OriginEvent::Lost`] follows.
    fn want(&mut self, ticket: Ticket, segments: Range<u64>);
    /// Asks again for the first segment of a range, which was reported present but is missing or of
    /// the wrong length. The same events follow.
    fn want_again(&mut self, ticket: Ticket, segments: Range<u64>);
    /// Ends a ticket. No event follows.
    fn done(&mut self, ticket: Ticket);
    /// Returns the next event, if there is one.
    fn hear(&mut self) -> Option<(Ticket, OriginEvent)>;
    /// Descriptor that is readable when [`Origins::hear`] has an event to return or work to do.
    fn wake_fd(&self) -> BorrowedFd<'_>;
}

/// An event about a ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OriginEvent {
    /// The object is known.
    Object(Box<Object>),
    /// Links of an early hint of the origin, before its answer (RFC 8297).
    EarlyHints(Vec<HeaderValue>),
    /// There is no such object, or it is unavailable. The last event.
    Refused {
        /// Status of the response to the client.
        status: StatusCode,
        /// `Location` of a redirect.
        location: Option<HeaderValue>,
        /// Fields of the origin's response, unless the origin has failed.
        passed: Option<Box<Passed>>,
        /// Role of the cache.
        how: CacheStatus,
    },
    /// The segment is present.
    Segment(u64),
    /// The rest of the object is unavailable. The last event.
    Lost {
        /// Status for a client that has no response head yet.
        status: StatusCode,
    },
}

impl OriginEvent {
    /// Role of the cache, if the event answers a request.
    pub(crate) fn how(&self) -> Option<CacheStatus> {
        match self {
            OriginEvent::Object(object) => Some(object.how),
            OriginEvent::Refused { how, .. } => Some(*how),
            OriginEvent::EarlyHints(_) | OriginEvent::Segment(_) | OriginEvent::Lost { .. } => None,
        }
    }
}

/// A version of an object, stored in consecutive segment files that never change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Directory of its segments, below the NIC stack's root. A segment's file name is its number,
    /// in eight or more hexadecimal digits.
    pub directory: RelativePath,
    /// Size of the whole object.
    pub size_bytes: u64,
    /// Size of each segment but the last.
    pub segment_bytes: NonZeroU64,
    /// Number that distinguishes this version from others of the same target.
    pub tag: u64,
    /// Seconds since the epoch.
    pub last_modified_s: Option<u64>,
    /// Fields of the origin's response.
    pub passed: Passed,
    /// Trailers of the origin's response, for a response with the whole object.
    pub trailers: Vec<(HeaderName, HeaderValue)>,
    /// Segments known to be present, as half-open ranges.
    pub present: Vec<(u64, u64)>,
    /// Role of the cache.
    pub how: CacheStatus,
}

/// Part of an origin's response that clients get.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Fields, including `Date`, without those that the server generates itself.
    pub fields: Vec<(HeaderName, HeaderValue)>,
    /// `Age` (RFC 9111 §4.2.3), in seconds. `None` if the response is generated now.
    pub age_s: Option<u64>,
}

/// Role of the cache in a response, in nginx's terms (`$upstream_cache_status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheStatus {
    /// The object was cached.
    Hit,
    /// The object was not cached.
    Miss,
    /// The cached object was stale, and the origin sent another version.
    Expired,
    /// The cached object was stale, and the origin confirmed it.
    Revalidated,
    /// The cached object is stale, and replaces the response of a failing origin.
    Stale,
    /// The cached object is stale, and served while the origin is being asked.
    Updating,
    /// The response is for one client alone, and is not cached.
    Bypass,
}

impl CacheStatus {
    /// Name in the access log.
    pub fn name(self) -> &'static str {
        match self {
            CacheStatus::Hit => "hit",
            CacheStatus::Miss => "miss",
            CacheStatus::Expired => "expired",
            CacheStatus::Revalidated => "revalidated",
            CacheStatus::Stale => "stale",
            CacheStatus::Updating => "updating",
            CacheStatus::Bypass => "bypass",
        }
    }

    /// Value of `Cache-Status` (RFC 9211 §2).
    pub(crate) fn cache_status(self) -> &'static str {
        match self {
            CacheStatus::Hit => "splitway; hit",
            CacheStatus::Miss => "splitway; fwd=uri-miss; stored",
            CacheStatus::Expired => "splitway; fwd=stale; stored",
            CacheStatus::Revalidated => "splitway; fwd=stale; fwd-status=304",
            CacheStatus::Stale => "splitway; fwd=stale; detail=stale-if-error",
            CacheStatus::Updating => "splitway; hit; detail=stale-while-revalidate",
            CacheStatus::Bypass => "splitway; fwd=uri-miss",
        }
    }
}

impl Passed {
    /// Removes the object's freshness fields, for a refusal that the server generates itself: with
    /// them a cache could store the refusal in the object's place (RFC 9111 §3).
    pub(crate) fn drop_freshness(&mut self) {
        let is_of_freshness = |name: &HeaderName| {
            // RFC 9213 §2.1: `CDN-Cache-Control` and other targeted fields.
            let name = name.as_str();
            ["date", "expires", "surrogate-control"].contains(&name)
                || name.ends_with("cache-control")
        };
        self.fields.retain(|(name, _)| !is_of_freshness(name));
        self.age_s = None;
    }

    /// Allocated memory, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let fields = self.fields.iter();
        let texts = fields.map(|(name, value)| name.as_str().len() + value.len());
        let places = self.fields.capacity() * size_of::<(HeaderName, HeaderValue)>();
        places + texts.sum::<usize>()
    }

    /// Returns the first value of a field.
    pub(crate) fn value(&self, name: &HeaderName) -> Option<&HeaderValue> {
        let mut fields = self.fields.iter();
        let found = fields.find(|(known, _)| known == name);
        found.map(|(_, value)| value)
    }
}

impl Object {
    /// Writes the path of a segment, below the NIC stack's root.
    pub(crate) fn segment_path(&self, segment: u64, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(self.directory.as_bytes());
        // Writing to a `Vec` cannot fail.
        let _ = write!(out, "/{segment:08x}");
    }

    /// Returns the segment that contains a byte, with its start and its length.
    pub(crate) fn segment_of(&self, offset: u64) -> (u64, u64, u64) {
        let segment = offset / self.segment_bytes;
        let start = segment * self.segment_bytes.get();
        let len = (self.size_bytes - start).min(self.segment_bytes.get());
        (segment, start, len)
    }

    pub(crate) fn has(&self, segment: u64) -> bool {
        let mut runs = self.present.iter();
        runs.any(|&(start, end)| (start..end).contains(&segment))
    }
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
