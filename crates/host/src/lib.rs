//! The host stack.

pub mod app;
pub mod timer;
