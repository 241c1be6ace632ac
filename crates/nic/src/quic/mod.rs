//! Packets of QUIC connections, filled in and sealed ([`contract::quic`]).
//!
//! | File | What it holds |
//! |---|---|
//! | `keys` | the keys of a flow, by generation |
//! | `packet` | one packet is sealed, and its header protected |
//! | `job` | a QSEND that was accepted |
//! | `sealer` | the flows: which keys, and which packet numbers may still be sealed |
//!
//! A [`Sealer`] is given keys and QSENDs, and makes datagrams. It does not send them, nor read
//! files: the worker, whose port does not send UDP, refuses QKEY and QSEND.

mod job;
mod keys;
mod packet;
mod sealer;

pub use job::Job;
pub use sealer::{ReadFailure, Sealer};
