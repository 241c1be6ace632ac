//! Violations of invariants.

use std::fmt;

/// A violated invariant, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(pub String);

pub(crate) type Check = Result<(), Violation>;

/// Returns a violation.
pub(crate) fn violation<T>(what: impl Into<String>) -> Result<T, Violation> {
    Err(Violation(what.into()))
}

/// Checks a condition; if it does not hold, `what` describes the violation.
pub(crate) fn ensure(holds: bool, what: impl FnOnce() -> String) -> Check {
    if holds {
        Ok(())
    } else {
        Err(Violation(what()))
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Violation {}
