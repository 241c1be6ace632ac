//! Messages between the host process and the fetcher, and orders of the fetcher's supervisor: one
//! JSON text per packet.
//!
//! Neither side trusts the other: a packet that is malformed or names an unknown ticket is dropped.
//! A *ticket* is one client's request for one object. The host process chooses its number, and
//! returns it with [`HostRequest::Done`].

use serde::{Deserialize, Serialize};

use crate::fields::{FieldLimits, Fields};

/// Longest packet, in bytes. A target has at most 8 KiB before escaping.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// Longest `Location` that is passed on, in bytes: more than any client follows.
pub(crate) const LOCATION_BYTES_MAX: usize = 8 << 10;

/// Most runs of segments in an [`Object`].
pub const RUNS_MAX: usize = 16;

/// A message from the host process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostRequest {
    /// Requests an object; answered with [`Answer::Object`] or [`Answer::Refused`].
    Object {
        /// A number that is not in use.
        ticket: u64,
        /// URL of the origin, as given to the fetcher.
        origin: String,
        /// Path and query, escaped, with a leading slash.
        target: String,
        /// The request's selecting fields ([`crate::SELECTING`]), names in lower case.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        fields: Vec<(String, String)>,
    },
    /// Requests the version of which a client already received a part through an earlier fetcher,
    /// however old it is; answered with [`Answer::Object`] or [`Answer::Lost`].
    Again {
        /// A number that is not in use.
        ticket: u64,
        /// As in [`HostRequest::Object`].
        origin: String,
        /// As in [`HostRequest::Object`].
        target: String,
        /// As in [`Object`].
        directory: String,
    },
    /// Every client of an earlier fetcher has been named with [`HostRequest::Again`]: outdated
    /// versions without a reader are removed.
    Settled,
    /// Requests a segment; answered with [`Answer::Segment`] or [`Answer::Lost`].
    Segment {
        /// The ticket of an answered object.
        ticket: u64,
        /// Number of the segment, from 0.
        segment: u64,
        /// End of the client's range, exclusive, in segments; read-ahead ends there.
        end: u64,
    },
    /// Reports that a present segment could not be opened, or has a wrong length. Answered with
    /// [`Answer::Segment`] when it has been fetched again, or [`Answer::Lost`].
    Missing {
        /// The ticket of an answered object.
        ticket: u64,
        /// Number of the segment, from 0.
        segment: u64,
        /// As in [`HostRequest::Segment`].
        end: u64,
    },
    /// Returns a ticket.
    Done {
        /// The ticket to return.
        ticket: u64,
    },
}

/// A message from the fetcher.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The object is known; its segments may still be on their way.
    Object {
        /// The ticket answered.
        ticket: u64,
        /// The object's version.
        object: Object,
        /// The part of the cache in the answer.
        how: CacheStatus,
    },
    /// Links of an early hint before the response (RFC 8297).
    EarlyHints {
        /// The ticket answered.
        ticket: u64,
        /// Values of `Link`.
        links: Vec<String>,
    },
    /// The object is unavailable. The ticket ends.
    Refused {
        /// The ticket answered.
        ticket: u64,
        /// The response for the client.
        refusal: Refusal,
        /// The part of the cache in the answer.
        how: CacheStatus,
    },
    /// The segment is present.
    Segment {
        /// The ticket answered.
        ticket: u64,
        /// Number of the segment.
        segment: u64,
    },
    /// No further segment of this version is available. The ticket ends.
    Lost {
        /// The ticket answered.
        ticket: u64,
        /// Status for a client that has no response head yet: 502, 503 or 504, by the cause.
        status: u16,
    },
}

/// A version of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    /// Directory of the segments, below the cache directory; each segment is a file named by
    /// [`segment_name`].
    pub directory: String,
    /// Length of the object, in bytes.
    pub size_bytes: u64,
    /// Length of each segment but the last, in bytes.
    pub segment_bytes: u64,
    /// A number that identifies the version; stable across fetches if the origin sends a tag or
    /// date.
    pub tag: u64,
    /// Modification time, in seconds since the epoch.
    pub last_modified_s: Option<u64>,
    /// The origin's header fields for clients.
    pub fields: Fields,
    /// Its trailers for clients.
    #[serde(default, skip_serializing_if = "Fields::is_empty")]
    pub trailers: Fields,
    /// Age by RFC 9111 §4.2.3, in seconds.
    pub age_s: u64,
    /// Runs of present segments: the first one, and the end, exclusive. More may be present.
    pub present: Vec<(u64, u64)>,
}

/// The cache's part in an answer, in nginx's terms (`$upstream_cache_status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheStatus {
    /// Served from the cache.
    Hit,
    /// Not in the cache: the origin was asked, for this client or another one.
    Miss,
    /// Stale; the origin had a new version.
    Expired,
    /// Stale; the origin confirmed that it is unchanged.
    Revalidated,
    /// Stale, and served because the origin fails.
    Stale,
    /// Stale, and served while the origin is asked.
    Updating,
    /// Passed to this client alone.
    Bypass,
}

/// Why an object is unavailable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Status for the client: the origin's, or 502, 503 or 504.
    pub status: u16,
    /// Target of the origin's redirect.
    pub location: Option<String>,
    /// Further header fields of the origin for the client; none if the origin failed.
    #[serde(default)]
    pub fields: Fields,
    /// As in [`Object`].
    #[serde(default)]
    pub age_s: u64,
}

impl Refusal {
    /// Memory of its texts, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let location = self.location.as_ref().map_or(0, String::capacity);
        location + self.fields.memory_bytes()
    }
}

/// An order of the supervisor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Admits these origins in addition, at ports to which it may connect, and sets the cache's
    /// limits.
    Use {
        /// URLs of the origins.
        origins: Vec<String>,
        /// Most content, in bytes.
        bytes_max: u64,
        /// Most variants of a target.
        variants_max: usize,
        /// Most header fields of a response, in bytes.
        head_bytes_max: usize,
        /// Most header fields of a response.
        fields_max: usize,
    },
    /// Orders a report of the counters, as a sign of life.
    Tell,
    /// Orders the fetcher to end as soon as that interrupts no client. Requests that arrive
    /// meanwhile are for the next fetcher.
    Retire,
}

const _: () = assert!(
    2 * FieldLimits::BYTES_MAX + 2 * LOCATION_BYTES_MAX + 4096 < MESSAGE_BYTES_MAX,
    "also where JSON writes each byte as two, and with all else that is said of an object"
);

/// Returns the name of a segment's file.
pub fn segment_name(segment: u64) -> String {
    format!("{segment:08x}")
}
