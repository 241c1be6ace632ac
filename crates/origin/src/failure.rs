//! What a client is told when the origin fails, and what the log says of it.

use std::error::Error;
use std::fmt;

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
    /// What came is of another version than what is here: nothing of it may be mixed.
    OtherVersion(String),
    /// The cache directory does not take it: 503.
    Cache(String),
    /// Nobody wants it any more.
    Stopped,
}

impl Failure {
    pub(crate) fn broken(error: &dyn Error) -> Self {
        Failure::Broken(reason(error))
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

    pub(crate) fn refusal(&self) -> Refusal {
        let status = match self {
            Failure::Broken(_)
            | Failure::Cut(_)
            | Failure::LeftAlone
            | Failure::OtherVersion(_) => 502,
            Failure::Late(_) => 504,
            Failure::Cache(_) | Failure::Stopped => 503,
            Failure::Status(status @ (429 | 503 | 504)) => *status,
            Failure::Status(_) => 502,
        };
        Refusal {
            status,
            location: None,
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
            Failure::Cache(why) => f.write_str(why),
            Failure::Stopped => f.write_str("nobody wants it any more"),
        }
    }
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
