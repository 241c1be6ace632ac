//! Counters of other processes' applications: of all together, and of each.

counters::counters! {
    /// Counts since the start of a shard.
    pub struct Counters {
        /// Processes attached now.
        processes: Gauge,
        /// Processes attached since the start.
        processes_attached: Counter,
        /// Processes that came to a new broker after theirs died.
        processes_reattached: Counter,
        /// Sockets of applications, including those of connections that wait only for their peer.
        sockets: Gauge,
        /// Commands taken from applications.
        commands: Counter,
        /// Events sent to applications: answers and hints.
        events: Counter,
        /// Hints dropped for lack of room: the process checks all of its sockets instead.
        hints_lost: Counter,
        /// Connections to applications that peers opened.
        connections_accepted: Counter,
        /// Connections to applications' listeners reset for lack of a socket or memory.
        connections_refused: Counter,
        /// Times that an application's sockets were all taken, so that SYNs to it went unanswered.
        places_exhausted: Counter,
        /// Times that a source had its share of an application's sockets, so that its SYNs went
        /// unanswered.
        sources_exhausted: Counter,
        /// Addresses not bound because the application has bound its maximum.
        bindings_refused: Counter,
        /// Connections that applications began to open.
        connections_opened: Counter,
        /// Bytes taken from applications to send.
        sent_bytes: Counter,
        /// Bytes of files queued by applications, which never see them.
        file_bytes: Counter,
        /// Bytes handed to applications.
        received_bytes: Counter,
        /// Pairs of connections that applications asked to join in a NIC stack.
        splices_begun: Counter,
        /// Pairs of connections that a NIC stack joined.
        splices_joined: Counter,
        /// Pairs not joined, or separated again by an error.
        splices_given_up: Counter,
        /// Bytes forwarded between joined connections.
        spliced_bytes: Counter,
        /// Connections closed by applications that kept the descriptor for another one.
        handles_reused: Counter,
        /// Commands refused: not allowed, or invalid.
        commands_refused: Counter,
        /// Turns of which an application has used up its share, so that its other commands waited.
        turns_used_up: Counter,
        /// Turns used up by all applications together, so that some waited for the next.
        turns_full: Counter,
        /// Sockets reset because their records were invalid.
        sockets_nonsense: Counter,
        /// Channels closed because their rings were corrupt.
        channels_corrupt: Counter,
    }
}

/// Bytes moved by one application.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    /// [`Counters::sent_bytes`].
    pub(crate) sent_bytes: u64,
    /// [`Counters::file_bytes`].
    pub(crate) file_bytes: u64,
    /// [`Counters::received_bytes`].
    pub(crate) received_bytes: u64,
}

impl Traffic {
    /// Adds the bytes counted between two snapshots.
    pub(crate) fn add(&mut self, before: &Counters, after: &Counters) {
        self.sent_bytes += after.sent_bytes - before.sent_bytes;
        self.file_bytes += after.file_bytes - before.file_bytes;
        self.received_bytes += after.received_bytes - before.received_bytes;
    }
}
