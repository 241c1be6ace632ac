//! Descriptors without copies, which may be reused when they are closed (`reuse.rs`).

use std::sync::atomic::{AtomicBool, Ordering};

use super::few_calls::has_few_calls;
use super::fork;

static IS_ON: AtomicBool = AtomicBool::new(false);

/// Lets descriptors be reused. Only for a caller that notes all copies of descriptors.
pub fn reuse_descriptors() {
    IS_ON.store(true, Ordering::Relaxed);
}

/// Stops reusing descriptors: a thread or process now has descriptors of its own, and this one's
/// memory.
pub fn stop_reusing_descriptors() {
    IS_ON.store(false, Ordering::Relaxed);
    fork::note_copies();
}

/// A moment in the life of a process: descriptors opened later have no copies as long as it is
/// [current](Unshared::is_current).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unshared {
    generation: u32,
    copies: u32,
}

impl Unshared {
    pub(crate) fn now() -> Unshared {
        Unshared {
            generation: fork::generation() & GENERATION_MAX,
            copies: fork::copies(),
        }
    }

    fn is_current(self) -> bool {
        self == Unshared::now()
    }
}

/// Flags of a descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flags {
    pub(crate) is_nonblocking: bool,
    pub(crate) closes_on_exec: bool,
}

/// How a descriptor may be reused when it is closed, as a word: from the low end, the copies and
/// the generation of [`Unshared`], and flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reuse(pub(crate) u64);

const GENERATION_AT: u32 = 32;
const GENERATION_MAX: u32 = (1 << 26) - 1;
const HAS_SENT_OPTIONS: u64 = 1 << 58;
const IS_ALLOWED: u64 = 1 << 59;
const IS_NONBLOCKING: u64 = 1 << 60;
const CLOSES_ON_EXEC: u64 = 1 << 61;
const HAS_UNKNOWN_FLAGS: u64 = 1 << 62;
const IS_PRIVATE: u64 = 1 << 63;

impl Reuse {
    /// It may not be reused, and other processes may look it up.
    pub(crate) const NONE: Reuse = Reuse(0);

    /// The descriptor was opened with these flags, not before `unshared`. Other processes cannot
    /// look it up if it is private.
    pub(crate) fn new(unshared: Unshared, flags: Flags, is_private: bool) -> Reuse {
        let set = |is_set, flag| if is_set { flag } else { 0 };
        let flags = set(IS_ON.load(Ordering::Relaxed), IS_ALLOWED)
            | set(flags.is_nonblocking, IS_NONBLOCKING)
            | set(flags.closes_on_exec, CLOSES_ON_EXEC)
            | set(is_private, IS_PRIVATE);
        let generation = u64::from(unshared.generation) << GENERATION_AT;
        Reuse(flags | generation | u64::from(unshared.copies))
    }

    fn has(self, flag: u64) -> bool {
        self.0 & flag != 0
    }

    fn unshared(self) -> Unshared {
        Unshared {
            generation: (self.0 >> GENERATION_AT) as u32 & GENERATION_MAX,
            copies: self.0 as u32,
        }
    }

    /// Reports whether the descriptor has no copy, and this process may make the calls.
    pub(crate) fn is_allowed(self) -> bool {
        self.has(IS_ALLOWED) && self.unshared().is_current() && !has_few_calls()
    }

    /// Reports whether other processes cannot look the descriptor up.
    pub(crate) fn is_private(self) -> bool {
        self.has(IS_PRIVATE)
    }

    /// The program has changed `O_NONBLOCK` or `FD_CLOEXEC`.
    pub(crate) fn with_unknown_flags(self) -> Reuse {
        Reuse(self.0 | HAS_UNKNOWN_FLAGS)
    }

    /// Returns the flags that the descriptor has, unless the program has changed them.
    pub(crate) fn flags(self) -> Option<Flags> {
        let flags = Flags {
            is_nonblocking: self.has(IS_NONBLOCKING),
            closes_on_exec: self.has(CLOSES_ON_EXEC),
        };
        (!self.has(HAS_UNKNOWN_FLAGS)).then_some(flags)
    }

    /// An option was set without an answer: the socket's record may lag behind.
    pub(crate) fn with_sent_options(self) -> Reuse {
        Reuse(self.0 | HAS_SENT_OPTIONS)
    }

    /// All options are in the socket's record.
    pub(crate) fn with_settled_options(self) -> Reuse {
        Reuse(self.0 & !HAS_SENT_OPTIONS)
    }

    /// Reports whether the socket's record may lag behind an option.
    pub(crate) fn has_sent_options(self) -> bool {
        self.has(HAS_SENT_OPTIONS)
    }

    pub(crate) fn forbidden(self) -> Reuse {
        Reuse(self.0 & !IS_ALLOWED)
    }

    pub(crate) fn public(self) -> Reuse {
        Reuse(self.0 & !IS_PRIVATE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_is_reused_until_it_may_have_a_copy() {
        let flags = Flags {
            is_nonblocking: true,
            closes_on_exec: false,
        };
        let new = |is_private| Reuse::new(Unshared::now(), flags, is_private);
        assert!(!new(false).is_allowed(), "not every caller notes copies");
        reuse_descriptors();
        let reuse = new(true);
        assert!(reuse.is_allowed() && reuse.is_private());
        let known = reuse.flags().unwrap();
        assert!(known.is_nonblocking && !known.closes_on_exec);
        assert!(reuse.with_unknown_flags().flags().is_none());
        assert!(!reuse.forbidden().is_allowed() && reuse.forbidden().is_private());
        assert!(reuse.public().is_allowed() && !reuse.public().is_private());
        assert!(reuse.with_unknown_flags().is_allowed());
        assert!(!Reuse::NONE.is_allowed() && !Reuse::NONE.is_private());
        fork::note_copies();
        assert!(!reuse.is_allowed() && new(false).is_allowed());
    }
}
