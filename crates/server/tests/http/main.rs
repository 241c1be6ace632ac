//! The server against a scripted stream interface with files in memory and a virtual clock.

mod conditions;
mod keep_alive;
mod lab;
mod pipelining;
mod ranges;
mod refusals;
mod responses;
mod slow;
mod splits;
