//! The receiving side: text, windows and acknowledgments.

pub(crate) mod ack;
pub(crate) mod fast_path;
pub(crate) mod quickack;
pub(crate) mod rcv;
pub(crate) mod rcv_autotune;
pub(crate) mod reassembly;
