//! What a package holds besides the program.
#![forbid(unsafe_code)]

mod container;
mod deb;
mod installed;
mod manual;
mod pod;
mod rotation;
#[path = "../support/mod.rs"]
// What only the other tests use of it.
#[allow(dead_code)]
mod support;
mod units;
