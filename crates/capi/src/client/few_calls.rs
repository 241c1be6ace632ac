//! Processes that are about to give up system calls (`confinement.rs`).

use std::sync::atomic::{AtomicBool, Ordering};

/// This process, or one before it, has prepared to give up system calls.
static HAS_FEW_CALLS: AtomicBool = AtomicBool::new(false);

/// True once this process has prepared to give up system calls.
pub(crate) fn has_few_calls() -> bool {
    HAS_FEW_CALLS.load(Ordering::Relaxed)
}

/// Notes that this process has prepared.
pub(crate) fn note_few_calls() {
    HAS_FEW_CALLS.store(true, Ordering::Relaxed);
}
