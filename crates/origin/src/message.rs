//! What the host process and the fetcher say to each other, and the orders of the fetcher's
//! supervisor: a packet each, as JSON.
//!
//! Either side takes the other for untrusted: a packet that cannot be read, or speaks of a ticket
//! that there is not, is dropped. A *ticket* is one client's wish for one object. The host process
//! chooses its number, and returns it with [`HostRequest::Done`].

use serde::{Deserialize, Serialize};

use crate::fields::{FieldLimits, Fields};

/// Longest packet, in bytes. A target has 8 KiB at most before its bytes are escaped.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// Longest `Location` that is passed on, in bytes: more than any client follows.
pub(crate) const LOCATION_BYTES_MAX: usize = 8 << 10;

/// Most runs of segments that an [`Object`] names.
pub const RUNS_MAX: usize = 16;

/// From the host process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostRequest {
    /// [`Answer::Object`] or [`Answer::Refused`] follows.
    Object {
        /// A number that is not in use.
        ticket: u64,
        /// Its URL, as the fetcher was given it.
        origin: String,
        /// Path and query, escaped, with a slash at the start.
        target: String,
        /// Those fields of the request that may select a variant ([`crate::SELECTING`]), names in
        /// small letters.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        fields: Vec<(String, String)>,
    },
    /// A client has got a part of this version already, from a fetcher before: [`Answer::Object`]
    /// follows with this version and no other, however old it is, or [`Answer::Lost`].
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
    /// All clients of the time before have been named: what is left of versions that no other
    /// client may have goes.
    Settled,
    /// [`Answer::Segment`] follows, or [`Answer::Lost`].
    Segment {
        /// Of an object that was answered.
        ticket: u64,
        /// From 0.
        segment: u64,
        /// The one behind the last that this client is going to need: what is fetched ahead ends
        /// there.
        end: u64,
    },
    /// A segment that was said to be there could not be opened, or is not as long as it should be.
    /// [`Answer::Segment`] follows when it is there again, or [`Answer::Lost`].
    Missing {
        /// Of an object that was answered.
        ticket: u64,
        /// From 0.
        segment: u64,
        /// As in [`HostRequest::Segment`].
        end: u64,
    },
    /// The ticket is not needed any more.
    Done {
        /// Which.
        ticket: u64,
    },
}

/// From the fetcher.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The object is known; its segments may still be on their way.
    Object {
        /// Whose.
        ticket: u64,
        /// What is known of it.
        object: Object,
        /// How it has come.
        how: CacheStatus,
    },
    /// There is none to be had. The ticket is over.
    Refused {
        /// Whose.
        ticket: u64,
        /// What the client is to be told.
        refusal: Refusal,
        /// How that has come.
        how: CacheStatus,
    },
    /// The segment is there.
    Segment {
        /// Whose.
        ticket: u64,
        /// Which.
        segment: u64,
    },
    /// No further segment of this version is to be had. The ticket is over.
    Lost {
        /// Whose.
        ticket: u64,
        /// The status for a client that has no head yet: 502, or 503 or 504 if that is why.
        status: u16,
    },
}

/// A version of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    /// Where its segments lie, below the cache directory: each in a file whose name is
    /// [`segment_name`].
    pub directory: String,
    /// All of it.
    pub size_bytes: u64,
    /// Each segment but the last.
    pub segment_bytes: u64,
    /// Another number for each version, and the same whenever this one is fetched, if the origin
    /// has a tag for it.
    pub tag: u64,
    /// Seconds since the epoch.
    pub last_modified_s: Option<u64>,
    /// Those of the origin's that clients get.
    pub fields: Fields,
    /// RFC 9111 §4.2.3, in seconds.
    pub age_s: u64,
    /// Segments that are there, as runs: the first one, and the one behind the last. There may be
    /// more.
    pub present: Vec<(u64, u64)>,
}

/// What the cache had to do with an answer, in nginx's words (`$upstream_cache_status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheStatus {
    /// It was there.
    Hit,
    /// It was not there: the origin was asked, for this client or for another one.
    Miss,
    /// The origin was asked since it was stale, and had another one.
    Expired,
    /// It was stale; the origin was asked, and said that it is still good.
    Revalidated,
    /// It is stale, and stands in for an origin that fails.
    Stale,
    /// It is stale, and given while the origin is being asked.
    Updating,
    /// It is for one client alone.
    Bypass,
}

/// Why there is nothing to be had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The status for the client: what the origin has said, or 502, 503 or 504.
    pub status: u16,
    /// Where the origin sends the client.
    pub location: Option<String>,
    /// Further fields of the origin's for the client; none if the origin has failed.
    #[serde(default)]
    pub fields: Fields,
    /// As in [`Object`].
    #[serde(default)]
    pub age_s: u64,
}

impl Refusal {
    /// Memory for its texts, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let location = self.location.as_ref().map_or(0, String::capacity);
        location + self.fields.memory_bytes()
    }
}

/// From the supervisor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// These origins may be asked as well, at ports that it may connect to, and the cache holds so
    /// much from now on.
    Use {
        /// Their URLs.
        origins: Vec<String>,
        /// Most content, in bytes.
        bytes_max: u64,
        /// Most variants of a target from now on.
        variants_max: usize,
        /// Most header fields of an answer from now on, in bytes.
        head_bytes_max: usize,
        /// The same as a count.
        fields_max: usize,
    },
    /// It is to tell what is counted, as a sign of life.
    Tell,
    /// It is to end as soon as that interrupts no client. What is asked meanwhile is for the next
    /// one.
    Retire,
}

const _: () = assert!(
    2 * FieldLimits::BYTES_MAX + 2 * LOCATION_BYTES_MAX + 4096 < MESSAGE_BYTES_MAX,
    "also where JSON writes each byte as two, and with all else that is said of an object"
);

/// The name of a segment's file.
pub fn segment_name(segment: u64) -> String {
    format!("{segment:08x}")
}
