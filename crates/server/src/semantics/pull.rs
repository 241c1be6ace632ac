//! What comes from an origin elsewhere: a fetcher gets it, and says where its bytes lie below the
//! NIC stack's root.

use std::fmt;
use std::io::Write;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use http::{HeaderName, HeaderValue, StatusCode};

use crate::semantics::pattern::Pattern;
use crate::semantics::relative_path::RelativePath;

/// One client's wish for one object. Never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Which paths of a site come from an origin.
#[derive(Clone, Debug)]
pub struct Pull {
    /// Compared with a path as a rule's is.
    pub pattern: Pattern,
    /// Which origin: its URL.
    pub origin: Arc<str>,
}

/// Where a rule has what it is about come from, whatever its site says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RulePull {
    /// From no origin: it is a file, or it is not there.
    Off,
    /// From this origin: its URL.
    From(Arc<str>),
}

/// The fetcher of objects from origins.
pub trait Origins: Send {
    /// Fields of a request by which an origin may select what it answers, in small letters.
    fn selecting(&self) -> &'static [&'static str];
    /// Asks an origin for an object: its path and query, escaped, with a slash at the start.
    /// `fields` are those of the request that may select a variant. [`OriginEvent::Object`],
    /// [`OriginEvent::Refused`] or [`OriginEvent::Lost`] follows.
    fn ask(
        &mut self,
        ticket: Ticket,
        origin: &Arc<str>,
        target: &str,
        fields: &[(&'static str, String)],
    );
    /// Asks for the first of these segments of an object; the client is going to need the others.
    /// [`OriginEvent::Segment`] or [`OriginEvent::Lost`] follows.
    fn want(&mut self, ticket: Ticket, segments: Range<u64>);
    /// Asks again for the first of these, which was said to be there, and is not, or is not as long
    /// as it should be. The same follows.
    fn want_again(&mut self, ticket: Ticket, segments: Range<u64>);
    /// The ticket is not needed any more. Nothing follows.
    fn done(&mut self, ticket: Ticket);
    /// What is new, if anything is.
    fn hear(&mut self) -> Option<(Ticket, OriginEvent)>;
    /// Readable when there is something to hear, or to be done.
    fn wake_fd(&self) -> BorrowedFd<'_>;
}

/// What becomes of a wish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OriginEvent {
    /// The object is known.
    Object(Box<Object>),
    /// There is none, or none to be had. Nothing follows.
    Refused {
        /// What the client gets.
        status: StatusCode,
        /// Where it is sent, if this is a redirect.
        location: Option<HeaderValue>,
        /// What the origin says besides, unless it has failed.
        passed: Option<Box<Passed>>,
        /// How that has come.
        how: CacheStatus,
    },
    /// The segment is there.
    Segment(u64),
    /// The rest of it is not to be had. Nothing follows.
    Lost {
        /// What a client gets that has no head yet.
        status: StatusCode,
    },
}

/// A version of an object: files of equal length that never change, one behind the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Where its segments lie, below the NIC stack's root. The name of each is its number, in eight
    /// hexadecimal digits or more.
    pub directory: RelativePath,
    /// All of it.
    pub size_bytes: u64,
    /// Each segment but the last.
    pub segment_bytes: NonZeroU64,
    /// What tells this version from others of the same target.
    pub tag: u64,
    /// Seconds since the epoch.
    pub last_modified_s: Option<u64>,
    /// What the origin says of it.
    pub passed: Passed,
    /// Segments that are there, as far as is known, as runs: the first one, and the one behind the
    /// last.
    pub present: Vec<(u64, u64)>,
    /// How it has come.
    pub how: CacheStatus,
}

/// What an origin says that clients get.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Fields, `Date` among them, but none that the server itself has something to say of.
    pub fields: Vec<(HeaderName, HeaderValue)>,
    /// RFC 9111 §4.2.3, in seconds. `None` if the response is made now.
    pub age_s: Option<u64>,
}

/// What a cache had to do with an answer, in nginx's words (`$upstream_cache_status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheStatus {
    /// It was there.
    Hit,
    /// It was not there.
    Miss,
    /// What was there was stale, and the origin had another one.
    Expired,
    /// What was there was stale, and the origin says that it is still good.
    Revalidated,
    /// It is stale, and stands in for an origin that fails.
    Stale,
    /// It is stale, and given while the origin is being asked.
    Updating,
    /// It is for one client alone.
    Bypass,
}

impl CacheStatus {
    /// As the access log has it.
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

    /// The value of `Cache-Status` (RFC 9211 §2).
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
    /// Leaves only the fields for a refusal that the server itself makes now. The freshness of an
    /// object would let a cache keep that refusal in its place (RFC 9111 §3).
    pub(crate) fn drop_freshness(&mut self) {
        let is_of_freshness = |name: &HeaderName| {
            // RFC 9213 §2.1: further ones are `CDN-Cache-Control` and the like.
            let name = name.as_str();
            ["date", "expires", "surrogate-control"].contains(&name)
                || name.ends_with("cache-control")
        };
        self.fields.retain(|(name, _)| !is_of_freshness(name));
        self.age_s = None;
    }

    /// Allocated bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let fields = self.fields.iter();
        let texts = fields.map(|(name, value)| name.as_str().len() + value.len());
        let places = self.fields.capacity() * size_of::<(HeaderName, HeaderValue)>();
        places + texts.sum::<usize>()
    }

    /// The first value of a field.
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

    /// The segment in which a byte lies, where that begins and how long it is.
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
