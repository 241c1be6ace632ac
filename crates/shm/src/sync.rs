//! Atomics for shared memory: the standard library's, or loom's when its model checker runs.

#[cfg(not(loom))]
pub use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering, fence},
};

#[cfg(loom)]
pub use loom::sync::{
    Arc,
    atomic::{AtomicU64, Ordering, fence},
};
