//! What a client gets when the origin fails, and what the log says of it.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::Path;

use crate::fields::Fields;
use crate::message::Refusal;

/// Why nothing has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// It cannot be reached, breaks off, or makes no sense: 502.
    Broken(String),
    /// It breaks off in the middle of a body, or that is shorter or longer than it said: 502.
    Cut(String),
    /// It does not answer in time: 504.
    Late(String),
    /// It has failed too often, and is left alone for a while: 502.
    LeftAlone,
    /// It says itself that it cannot: 502, 503 or 504.
    Status(u16),
    /// Its answer is none that a client could use: 502.
    Useless(String),
    /// It has more header fields than are kept: 502.
    TooManyFields(String),
    /// What came is of another version than what is here: nothing of it may be mixed.
    OtherVersion(String),
    /// There is more of it than the cache may hold: 503.
    TooLarge(String),
    /// What others read or fetch leaves no room for it in the cache: 503.
    NoRoom(String),
    /// The cache directory does not take it: 503.
    Cache(String),
    /// No client wants it any more.
    Stopped,
}

impl Failure {
    pub(crate) fn broken(error: &dyn Error) -> Self {
        Failure::Broken(reason(error))
    }

    /// Nothing can be written there.
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

    /// The origin is well; it is this target that cannot be had.
    pub(crate) fn is_of_target(&self) -> bool {
        matches!(
            self,
            Failure::Status(_)
                | Failure::Useless(_)
                | Failure::TooManyFields(_)
                | Failure::TooLarge(_)
        )
    }

    /// No error that what is stale may stand in for (RFC 5861 §4).
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

/// The origin denies it to this request. That says nothing of what is there: neither that it has
/// gone, nor that it may be used (RFC 9111 §4.3.3). Nor is it about when, or how often, the origin
/// was asked.
pub(crate) fn is_denial(status: u16) -> bool {
    matches!(status, 400..=499) && ![404, 408, 410, 425, 429, 451].contains(&status)
}

/// An error with all that has led to it.
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
