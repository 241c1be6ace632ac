//! Failures of an origin: the client's response, and the reason for the log.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::Path;

use crate::fields::Fields;
use crate::message::Refusal;

/// Why a request or transfer failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The origin is unreachable, disconnects, or sends a malformed response: 502.
    Broken(String),
    /// The body ends early, or its length differs from the announced one: 502.
    Cut(String),
    /// The origin does not respond in time: 504.
    Late(String),
    /// The origin's circuit is open after too many failures: 502.
    LeftAlone,
    /// The origin responds with this status: 502, 503 or 504.
    Status(u16),
    /// The response is unusable for any client: 502.
    Useless(String),
    /// The response has more header fields than are kept: 502.
    TooManyFields(String),
    /// The response is of another version than the cached one; the two must not be mixed.
    OtherVersion(String),
    /// The object is larger than the cache may hold: 503.
    TooLarge(String),
    /// Objects that are read or fetched leave no room in the cache: 503.
    NoRoom(String),
    /// Writing to the cache directory failed: 503.
    Cache(String),
    /// No client waits for the response any more.
    Stopped,
}

impl Failure {
    pub(crate) fn broken(error: &dyn Error) -> Self {
        Failure::Broken(reason(error))
    }

    /// A write to the cache directory failed.
    pub(crate) fn unwritten(directory: &Path, error: &io::Error) -> Self {
        let directory = directory.display();
        Failure::Cache(format!(
            "the cache directory cannot be written to: {directory}: {error}"
        ))
    }

    /// Whether another attempt may help.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(
            self,
            Failure::Broken(_)
                | Failure::Cut(_)
                | Failure::Late(_)
                | Failure::LeftAlone
                | Failure::Status(_)
        )
    }

    /// Whether the target failed while the origin works.
    pub(crate) fn is_of_target(&self) -> bool {
        matches!(
            self,
            Failure::Status(_)
                | Failure::Useless(_)
                | Failure::TooManyFields(_)
                | Failure::TooLarge(_)
        )
    }

    /// Whether the origin denied the request: stale content stands in for no such error (RFC 5861
    /// §4).
    pub(crate) fn is_denial(&self) -> bool {
        matches!(self, Failure::Status(status) if is_denial(*status))
    }

    pub(crate) fn refusal(&self) -> Refusal {
        let status = match self {
            Failure::Broken(_)
            | Failure::Cut(_)
            | Failure::LeftAlone
            | Failure::Useless(_)
            | Failure::TooManyFields(_)
            | Failure::OtherVersion(_) => 502,
            Failure::Late(_) => 504,
            Failure::TooLarge(_) | Failure::NoRoom(_) | Failure::Cache(_) | Failure::Stopped => 503,
            Failure::Status(status @ (429 | 503 | 504)) => *status,
            Failure::Status(_) => 502,
        };
        Refusal {
            status,
            location: None,
            fields: Fields::default(),
            age_s: 0,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Broken(why) | Failure::Cut(why) | Failure::Late(why) => f.write_str(why),
            Failure::LeftAlone => {
                f.write_str("it has failed too often, and is left alone for a while")
            }
            Failure::Status(status) => write!(f, "it answers {status}"),
            Failure::OtherVersion(why) => write!(f, "the object has changed: {why}"),
            Failure::Useless(why)
            | Failure::TooManyFields(why)
            | Failure::TooLarge(why)
            | Failure::NoRoom(why)
            | Failure::Cache(why) => f.write_str(why),
            Failure::Stopped => f.write_str("no client needs it any more"),
        }
    }
}

/// Whether the origin denied this request. A denial neither proves that the stored response has
/// gone nor allows its use (RFC 9111 §4.3.3). Excluded are statuses about the time or rate of
/// requests.
pub(crate) fn is_denial(status: u16) -> bool {
    matches!(status, 400..=499) && ![404, 408, 410, 425, 429, 451].contains(&status)
}

/// An error's message, with those of its sources.
fn reason(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text
}
