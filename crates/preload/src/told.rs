//! What `splitway run` has said, as the constructor has read it.

use std::sync::OnceLock;

use crate::environment::Kept;
use crate::rules::Rules;

/// What `splitway run` has said.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) listen: Rules,
    pub(crate) connect: Rules,
    pub(crate) kept: Kept,
}

static TOLD: OnceLock<Told> = OnceLock::new();

/// Keeps it, once.
pub(crate) fn tell(told: Told) {
    let _ = TOLD.set(told);
}

/// What `splitway run` has said; `None` before the constructor has run.
pub(crate) fn told() -> Option<&'static Told> {
    TOLD.get()
}
