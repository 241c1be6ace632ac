//! What was done for applications in other processes: for all of them, and for each.

counters::counters! {
    /// Counts since the start of a shard.
    pub struct Counters {
        /// Processes attached now.
        processes: Gauge,
        /// Processes attached since the start.
        processes_attached: Counter,
        /// Processes that have come to another broker after the death of theirs.
        processes_reattached: Counter,
        /// Sockets of applications, also of connections that nothing but their peer is waited for.
        sockets: Gauge,
        /// Commands taken from applications.
        commands: Counter,
        /// Events sent to applications: answers and hints.
        events: Counter,
        /// Hints that found no room: the process looks at all of its sockets instead.
        hints_lost: Counter,
        /// Connections of applications that peers have opened.
        connections_accepted: Counter,
        /// Connections of listeners of applications reset for want of a socket or memory.
        connections_refused: Counter,
        /// Addresses not bound because the application has bound as many as it may.
        bindings_refused: Counter,
        /// Connections that applications have begun to open.
        connections_opened: Counter,
        /// Bytes taken from applications to be sent.
        sent_bytes: Counter,
        /// Bytes of files that applications have queued, which they never see.
        file_bytes: Counter,
        /// Bytes handed to applications.
        received_bytes: Counter,
        /// Pairs of connections that applications have asked to be joined in a NIC stack.
        splices_begun: Counter,
        /// Those that a NIC stack has joined.
        splices_joined: Counter,
        /// Those that were not joined, for whatever reason.
        splices_given_up: Counter,
        /// Bytes that have passed between joined connections.
        spliced_bytes: Counter,
        /// Commands refused: what was asked for is not allowed, or makes no sense.
        commands_refused: Counter,
        /// Sockets reset because their records made no sense.
        sockets_nonsense: Counter,
        /// Channels ended because their rings made no sense.
        channels_corrupt: Counter,
    }
}

/// Bytes that one application has moved.
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
    /// Adds what was counted between two moments.
    pub(crate) fn add(&mut self, before: &Counters, after: &Counters) {
        self.sent_bytes += after.sent_bytes - before.sent_bytes;
        self.file_bytes += after.file_bytes - before.file_bytes;
        self.received_bytes += after.received_bytes - before.received_bytes;
    }
}
