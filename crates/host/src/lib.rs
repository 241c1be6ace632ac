//! The host stack.

pub mod app;
