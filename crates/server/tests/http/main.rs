//! The server against a scripted stream interface with files in memory and a virtual clock.

mod conditions;
mod keep_alive;
mod lab;
mod pipelining;
mod ranges;
mod refusals;
mod responses;
mod rules;
mod sites;
mod slow;
mod splits;
mod variants;
