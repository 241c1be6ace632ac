//! Failures as operators read them: the attempt, the reason and the remedy.
//!
//! ```
//! use failure::Failure;
//!
//! let failure = Failure::input("root ./nowhere", "no such directory")
//!     .remedy("Name a directory that exists.");
//! assert_eq!(
//!     failure.to_string(),
//!     "root ./nowhere: no such directory\n  Name a directory that exists."
//! );
//! assert_eq!(failure.exit_code(), 2);
//! ```

#![forbid(unsafe_code)]

use std::fmt;

use serde::{Deserialize, Serialize};

/// A failure that ends the program. It also crosses from a child to its supervisor, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    exit_code: u8,
    what: String,
    why: String,
    remedy: Option<String>,
}

impl Failure {
    /// The request cannot be fulfilled as it stands, and the person can change that: exit code 2.
    pub fn input(what: impl fmt::Display, why: impl fmt::Display) -> Self {
        Self::new(2, what, why)
    }

    /// Something broke although the request was fine: exit code 1.
    pub fn broken(what: impl fmt::Display, why: impl fmt::Display) -> Self {
        Self::new(1, what, why)
    }

    fn new(exit_code: u8, what: impl fmt::Display, why: impl fmt::Display) -> Self {
        Self {
            exit_code,
            what: what.to_string(),
            why: why.to_string(),
            remedy: None,
        }
    }

    /// Adds what to do about it: one sentence or line per `\n`.
    pub fn remedy(mut self, remedy: impl fmt::Display) -> Self {
        self.remedy = Some(remedy.to_string());
        self
    }

    /// The same, with another failure below it.
    pub fn and(self, other: Self) -> Self {
        let lines = self
            .remedy
            .as_deref()
            .map_or(String::new(), |lines| format!("{lines}\n"));
        self.remedy(format!("{lines}{other}"))
    }

    /// It failed for the same reason, though perhaps in another process.
    pub fn is_like(&self, other: &Self) -> bool {
        (&self.why, &self.remedy) == (&other.why, &other.remedy)
    }

    /// The exit code of a program that ends with it.
    pub fn exit_code(&self) -> u8 {
        self.exit_code
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.why)?;
        for line in self.remedy.iter().flat_map(|remedy| remedy.lines()) {
            write!(f, "\n  {line}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_reads_as_what_why_and_what_to_do() {
        let failure =
            Failure::input("root ./nowhere", "no such directory").remedy("give one\nthat exists");
        assert_eq!(
            failure.to_string(),
            "root ./nowhere: no such directory\n  give one\n  that exists"
        );
        assert_eq!(failure.exit_code(), 2);
        assert_eq!(Failure::broken("a", "b").exit_code(), 1);
    }

    #[test]
    fn failures_for_the_same_reason_are_alike_in_any_process() {
        let failure = |process: &str, why: &str| Failure::broken(process, why).remedy("restart it");
        let first = failure("process 1", "killed");
        assert!(first.is_like(&failure("process 2", "killed")));
        assert!(!first.is_like(&failure("process 1", "silent")));
        assert!(!first.is_like(&Failure::broken("process 1", "killed")));
    }
}
