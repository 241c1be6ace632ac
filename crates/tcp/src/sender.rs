//! The sending side: data to be sent, data in flight, and the departure of the next segment.

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
