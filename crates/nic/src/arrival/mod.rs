//! What arrives at a worker: by FRAME, or at its own port, where a packet filter gives it SYNs and
//! the frames of its flows.
//!
//! Either way a frame goes to the connection that has its addresses and ports, is a SYN to be
//! answered, or holds datagrams, which `quic/receive` opens. What arrives at the port for no
//! connection is the host's, and goes up: its connection has ended, or was returned, which the host
//! hears before, and it answers as it does whatever comes late. That costs no timeout of a peer,
//! where a frame that is dropped would. It is bounded, in frames of TCP per second, and a long
//! frame is cut as if the rest had been lost.

mod run;

use contract::FlowId;

use crate::per_second::PerSecond;

/// What a worker knows of frames that arrive.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    /// The last frame that was taken from the port.
    buffer: Vec<u8>,
    /// Flows that the worker has now, and the host is not told yet.
    taken: Vec<FlowId>,
    handed_up: PerSecond,
}

impl Arrivals {
    /// True if the host has still to be told something.
    pub(crate) fn has_taken(&self) -> bool {
        !self.taken.is_empty()
    }

    /// The worker no longer has a flow: a packet filter must not begin to give it its frames.
    pub(crate) fn give_up(&mut self, flow: FlowId) {
        self.taken.retain(|taken| *taken != flow);
    }
}
