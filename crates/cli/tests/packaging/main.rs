//! What a package holds besides the program.
#![forbid(unsafe_code)]

mod manual;
#[path = "../support/mod.rs"]
// What only the other tests use of it.
#[allow(dead_code)]
mod support;
