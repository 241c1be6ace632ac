//! What was done for applications in other processes.

counters::counters! {
    /// Counts since the start of a shard.
    pub struct Counters {
        /// Processes attached now.
        processes: Gauge,
        /// Processes attached since the start.
        processes_attached: Counter,
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
        /// Connections that applications have begun to open.
        connections_opened: Counter,
        /// Bytes taken from applications to be sent.
        sent_bytes: Counter,
        /// Bytes of files that applications have queued, which they never see.
        file_bytes: Counter,
        /// Bytes handed to applications.
        received_bytes: Counter,
        /// Commands refused: what was asked for is not allowed, or makes no sense.
        commands_refused: Counter,
        /// Sockets reset because their records made no sense.
        sockets_nonsense: Counter,
        /// Channels ended because their rings made no sense.
        channels_corrupt: Counter,
    }
}
