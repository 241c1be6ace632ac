//! Clients of HTTP/2, with prior knowledge.

mod bounds;
mod client;
mod messages;
mod random;
