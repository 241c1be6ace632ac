//! The sending side: what is to be sent, what is in flight, and when the next segment leaves.

pub(crate) mod bulk_output;
pub(crate) mod cork;
pub(crate) mod data;
pub(crate) mod output;
pub(crate) mod pacing;
pub(crate) mod persist;
pub(crate) mod scoreboard;
pub(crate) mod send_queue;
pub(crate) mod sndbuf;
pub(crate) mod undeparted;
