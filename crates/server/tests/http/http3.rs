//! HTTP/3, by a client that was written from the RFCs and shares no code with the server.

mod bounds;
pub(crate) mod client;
mod connections;
mod messages;
mod priorities;
mod random;
mod requests;
mod streams;
