//! What the host process and the fetcher say to each other, a packet each, as JSON.
//!
//! Either side takes the other for untrusted: a packet that cannot be read, or speaks of a ticket that there is not, is
//! dropped. A *ticket* is one client's wish for one object. The host process chooses its number, and returns it with
//! [`Ask::Done`].

use serde::{Deserialize, Serialize};

/// Longest packet, in bytes. A target has 8 KiB at most before its bytes are escaped.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// Most runs of segments that an [`Object`] names.
pub const RUNS_MAX: usize = 16;

/// From the host process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// [`Answer::Object`] or [`Answer::Refused`] follows.
    Object {
        /// A number that is not in use.
        ticket: u64,
        /// Which origin, in the order in which the fetcher was given them.
        origin: u16,
        /// Path and query, escaped, with a slash at the start.
        target: String,
    },
    /// [`Answer::Segment`] follows, or [`Answer::Lost`]. Fetched are this one and those behind it.
    Segment {
        /// Of an object that was answered.
        ticket: u64,
        /// From 0.
        segment: u64,
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
    },
    /// There is none to be had. The ticket is over.
    Refused {
        /// Whose.
        ticket: u64,
        /// What the client is to be told.
        refusal: Refusal,
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
    },
}

/// A version of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    /// Where its segments lie, below the cache directory: each in a file whose name is [`segment_name`].
    pub directory: String,
    /// All of it.
    pub size_bytes: u64,
    /// Each segment but the last.
    pub segment_bytes: u64,
    /// Another number for each version, and the same whenever this one is fetched, if the origin has a tag for it.
    pub tag: u64,
    /// Seconds since the epoch.
    pub last_modified_s: Option<u64>,
    /// Fields about the content: `Content-Type` and the like.
    pub content: Vec<(String, String)>,
    /// Fields about caching: `Cache-Control`, `Expires`, `Vary`.
    pub caching: Vec<(String, String)>,
    /// RFC 9111 §4.2.3, in seconds.
    pub age_s: u64,
    /// Segments that are there, as runs: the first one, and the one behind the last. There may be more.
    pub present: Vec<(u64, u64)>,
}

/// Why there is nothing to be had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The status for the client: what the origin has said, or 502, 503 or 504.
    pub status: u16,
    /// Where the origin sends the client.
    pub location: Option<String>,
}

/// The name of a segment's file.
pub fn segment_name(segment: u64) -> String {
    format!("{segment:08x}")
}
