//! TCP without I/O (RFC 9293).
//!
//! Start at [`Connection`]: its documentation teaches its use. This room may touch its own state and its
//! arguments; sockets, threads, and the clock of the operating system are the caller's. The same code runs
//! on either end of a connection, over real ports and in a simulation.
//!
//! What sets it apart from other stacks is the split: the stream that is sent consists of *real* bytes and
//! of *virtual* ones, ranges of objects that only the NIC stack can read. A transmission is *issued* here and
//! *departs* later, when the NIC stack has read it; RTO and round-trip time count from the departure
//! (IO-TCP §3.5).
//!
//! | A reader who looks for | finds it in |
//! |---|---|
//! | the public interface | `connection` |
//! | what a segment does, clause by clause | `input` |
//! | what is sent, and when | `output` |
//! | states | `state` |
//! | extents, transmissions in flight | `send_queue`, `sent` |
//! | loss, congestion | `recovery`, `congestion`, `newreno` |
//! | RTO, round-trip time, window probes | `rto`, `rtt`, `persist` |
//! | received text, windows, acknowledgments | `rcv`, `reassembly`, `ack` |
//! | timestamps and PAWS | `timestamps` |
//! | attacks: initial sequence numbers, challenge ACKs | `isn`, `challenge` |
//! | after the end, and outside of connections | `time_wait`, `reset` |

#![forbid(unsafe_code)]

mod ack;
mod challenge;
mod config;
mod congestion;
mod connection;
mod event;
mod input;
mod isn;
mod newreno;
mod output;
mod persist;
mod rcv;
mod reassembly;
mod recovery;
mod reset;
mod rto;
mod rtt;
mod send_queue;
mod sent;
mod seq;
mod state;
mod time;
mod time_wait;
mod timer;
mod timestamps;

pub use config::{Config, CongestionAlgorithm, Limits};
pub use connection::Connection;
pub use event::{CloseReason, ConnectionEvent};
pub use isn::IsnGenerator;
pub use output::Transmit;
pub use reset::reset_for;
pub use send_queue::Piece;
pub use state::State;
pub use time::Instant;
pub use time_wait::TimeWait;
