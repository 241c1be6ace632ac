//! HTTP/2, by a client that was written from the RFCs and shares no code with the server.

mod bounds;
pub(crate) mod client;
mod connections;
mod flow_control;
mod messages;
mod priorities;
mod random;
