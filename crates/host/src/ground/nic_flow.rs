//! A connection's flow at its NIC worker, of TCP and QUIC alike.

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct NicFlow {
    /// The worker that sends for the connection. It changes if the connection must go to another
    /// NIC stack, or if another worker has less load.
    pub(crate) worker: usize,
    /// The worker keeps state for it: a SEND was issued, or it has a key.
    pub(crate) is_open: bool,
    /// SENDs issued and not departed.
    pub(crate) sends_outstanding: u64,
    /// Files that a restarted or new worker must open again, plus one while the connection waits
    /// for its SENDs to depart before it moves. Nothing is sent until this is zero.
    pub(crate) holds: u32,
    /// It moves to another worker as soon as nothing holds it back: a file is open there, its own
    /// NIC stack is gone, or the load is rebalanced.
    pub(crate) is_to_move: bool,
    /// The worker of its NIC stack that it moves to, once its files are open there.
    pub(crate) moves_to: Option<usize>,
    /// They are open: it waits for its SENDs to depart.
    is_departing: bool,
}

impl NicFlow {
    /// The flow of a new connection.
    pub(crate) fn at(worker: usize) -> NicFlow {
        NicFlow {
            worker,
            is_open: false,
            sends_outstanding: 0,
            holds: 0,
            is_to_move: false,
            moves_to: None,
            is_departing: false,
        }
    }

    /// Holds SENDs because the connection is about to move, or resumes. True if that is a change.
    pub(crate) fn hold_to_move(&mut self, is_departing: bool) -> bool {
        if std::mem::replace(&mut self.is_departing, is_departing) == is_departing {
            return false;
        }
        match is_departing {
            true => self.holds += 1,
            false => self.release(),
        }
        true
    }

    /// True if a worker has to open files again.
    pub(crate) fn awaits_files(&self) -> bool {
        self.holds > u32::from(self.is_departing)
    }

    /// A file is open again.
    pub(crate) fn release(&mut self) {
        self.holds = self.holds.saturating_sub(1);
    }
}
