//! What a client whose handshake is complete can cost an endpoint by frames that ask for nothing:
//! memory, work and answers are measured, and each is bounded (RFC 9000 §21).
#![forbid(unsafe_code)]

mod closes;
mod forger;
mod fragments;
mod frames;
mod keys;
mod paths;
mod scene;
#[allow(dead_code, reason = "the tests of the engine use the rest")]
#[path = "../support/mod.rs"]
mod support;
