//! Measurement of splitway against its peers.
#![forbid(unsafe_code)]

fn main() {}
