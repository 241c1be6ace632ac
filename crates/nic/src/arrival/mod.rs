//! Frames that arrive at a worker: by FRAME, or at its own port, where a packet filter gives it
//! SYNs and the frames of its flows.
//!
//! Either way a frame goes to the connection that has its addresses and ports, is a SYN to be
//! answered, or holds datagrams, which `quic/receive` opens. A frame at the port for no connection
//! is handed to the host: its connection has ended, or was returned, which is reported to the host
//! first, and the host answers it like any late frame. That costs no timeout of a peer, where a
//! dropped frame would. The number of such TCP frames per second is bounded, and a long frame is
//! cut as if the rest had been lost.

mod run;

use contract::FlowId;

use crate::per_second::PerSecond;

/// State of a worker for arriving frames.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    /// The last frame taken from the port.
    buffer: Vec<u8>,
    /// Flows of the worker that have not been reported to the host yet.
    taken: Vec<FlowId>,
    handed_up: PerSecond,
}

impl Arrivals {
    /// True if reports to the host are pending.
    pub(crate) fn has_taken(&self) -> bool {
        !self.taken.is_empty()
    }

    /// Records that the worker no longer has a flow: a packet filter must not begin to steer its
    /// frames here.
    pub(crate) fn give_up(&mut self, flow: FlowId) {
        self.taken.retain(|taken| *taken != flow);
    }
}
