//! What must not happen.

use std::fmt;

/// An invariant that did not hold, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(pub String);

pub(crate) type Check = Result<(), Violation>;

/// Something is wrong.
pub(crate) fn violation<T>(what: impl Into<String>) -> Result<T, Violation> {
    Err(Violation(what.into()))
}

/// Something must hold; else the message says what does not.
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
