//! Counters of the host stack.

counters::counters! {
    /// Counts since the start of a shard.
    pub struct Counters {
        /// Frames received.
        frames_received: Counter,
        /// Frames that did not parse or whose checksum was wrong.
        frames_malformed: Counter,
        /// Link changes followed: hardware address, MTU, segmentation limits, down and up.
        link_changes: Counter,
        /// ARP packets and neighbour advertisements from other machines that claim one of our
        /// addresses.
        address_conflicts: Counter,
        /// IP fragments dropped: the stack does not reassemble.
        fragments_dropped: Counter,
        /// SYNs that ask for a connection, whether or not they got one.
        syns_received: Counter,
        /// TCP segments received for our addresses.
        segments_received: Counter,
        /// TCP segments dropped because no wire may carry their addresses: the source is one of
        /// ours, or either is a loopback address.
        martians_dropped: Counter,
        /// TCP segments between our own connections. They never reach a wire.
        loopback_segments: Counter,
        /// Payload bytes of segments between our own connections.
        loopback_bytes: Counter,
        /// RSTs and SYN,ACKs to our own connections dropped because too many segments wait.
        loopback_drops: Counter,
        /// Packets sent by the host itself: ACKs, handshakes, headers without file bytes, ARP,
        /// ICMP.
        packets_sent: Counter,
        /// Packets that the host's port dropped.
        packets_dropped: Counter,
        /// Real bytes sent, or handed down inline: response headers and the like.
        real_bytes: Counter,
        /// Virtual bytes handed down as file ranges or TLS records; the host never sees them.
        virtual_bytes: Counter,
        /// SEND commands.
        sends: Counter,
        /// SEND commands and host packets that retransmit bytes. A SEND may be many packets: the
        /// share of retransmissions is `retransmitted_bytes` of `real_bytes` and `virtual_bytes`.
        retransmissions: Counter,
        /// Bytes of TCP streams retransmitted. `real_bytes` and `virtual_bytes` include them.
        retransmitted_bytes: Counter,
        /// OPEN commands.
        opens: Counter,
        /// LIST commands.
        lists: Counter,
        /// CLOS commands.
        closes: Counter,
        /// ACKD commands.
        ackds: Counter,
        /// Events from the NIC stack.
        events: Counter,
        /// Invalid events: unknown ids, answers without a request, records that do not decode.
        events_invalid: Counter,
        /// NIC stacks that replaced another.
        nic_restarts: Counter,
        /// NIC stacks lost.
        nic_losses: Counter,
        /// NIC stacks that stalled: a worker gave no heartbeat.
        nic_silences: Counter,
        /// Connections moved to another NIC stack: theirs was gone, or lacks the file.
        connections_moved: Counter,
        /// Connections moved to another worker of their NIC stack, because of load.
        connections_rebalanced: Counter,
        /// Connections that could not move: the worker failed to open a file of theirs, or opened
        /// another version.
        migrations_failed: Counter,
        /// NIC workers put in use because of load.
        nic_workers_added: Counter,
        /// NIC workers that the load no longer needs.
        nic_workers_removed: Counter,
        /// SENDs that failed while reading.
        reads_failed: Counter,
        /// Connections accepted.
        connections_accepted: Counter,
        /// SYNs and handshake ACKs dropped because the listener's queue is full.
        listen_overflows: Counter,
        /// Connections that this side began to open.
        connections_opened: Counter,
        /// Connections that this side could not open because no local port was left.
        ports_exhausted: Counter,
        /// SYNs and handshake ACKs dropped because the connection table is full.
        connections_refused: Counter,
        /// Connections reset because too many have sent nothing yet: the oldest of the source with
        /// the most.
        backlog_evictions: Counter,
        /// Idle connections reset because the table is full: the longest idle of the source with
        /// the most.
        idle_evictions: Counter,
        /// Connections reset because files or descriptors run short: those of the source with the
        /// most.
        file_evictions: Counter,
        /// Connections reset because all together hold too much memory: the largest of the source
        /// that holds most.
        memory_evictions: Counter,
        /// Handshakes evicted because too many are under way; their SYN,ACK had been retransmitted.
        half_open_evicted: Counter,
        /// SYNs dropped, or handshake ACKs refused, because the source is at its connection limit.
        sources_refused: Counter,
        /// Attempts to connect by clients that may not: SYNs and datagrams dropped, connections
        /// reset because a trusted proxy has named such a client, and requests refused for it.
        clients_denied: Counter,
        /// Connections of trusted proxies reset because they do not begin with a header of the
        /// PROXY protocol, or because it did not arrive in time.
        proxy_headers_invalid: Counter,
        /// Handshakes given up because our SYN,ACK was not acknowledged.
        half_open_expired: Counter,
        /// SYNs answered with a SYN cookie.
        syn_cookies_sent: Counter,
        /// Connections opened by a SYN cookie.
        syn_cookies_accepted: Counter,
        /// ACKs of no connection without a valid SYN cookie, while cookies were in use.
        syn_cookies_invalid: Counter,
        /// Segments dropped because the ACK with their SYN cookie has not arrived: the peer
        /// retransmits both.
        syn_cookies_early: Counter,
        /// TCP Fast Open cookies sent.
        fast_open_cookies_sent: Counter,
        /// SYNs whose data was accepted: their Fast Open cookie was valid.
        fast_opens: Counter,
        /// Connections that ended after all that the application had sent was acknowledged, with no
        /// request in hand; the end may be a RST.
        connections_finished: Counter,
        /// Connections that ended before that, by RST or timeout, or by a failure.
        connections_broken: Counter,
        /// TLS handshakes completed.
        tls_handshakes: Counter,
        /// TLS handshakes that resumed a session.
        tls_handshakes_resumed: Counter,
        /// Connections ended by a TLS error, in the handshake or later. A client that closes its
        /// side before the end of the handshake, without an alert, does not count.
        tls_failed: Counter,
        /// Sending keys replaced, because we or the peer asked for it.
        tls_key_updates: Counter,
        /// Connections reset because a record, sealed once more, would differ: its file has
        /// changed.
        tls_seal_mismatches: Counter,
        /// Connections reset because a NIC stack may have sent records without reporting their
        /// tags.
        tls_records_unproven: Counter,
        /// TLS keys and records that a NIC stack rejected; their connections are reset.
        tls_records_rejected: Counter,
        /// SETUP commands.
        setups: Counter,
        /// SYNs forwarded to NIC workers, which answer them.
        syns_handed_on: Counter,
        /// Connections whose SYN a NIC worker answered.
        connections_set_up: Counter,
        /// Connections whose teardown went to a NIC stack.
        parts: Counter,
        /// Teardowns that the NIC stack refused.
        parts_refused: Counter,
        /// Teardowns handed to the successor of a NIC stack.
        parts_repeated: Counter,
        /// Connections whose teardown the host took back: the NIC stack refused it, or was lost.
        parted_taken_back: Counter,
        /// Connections that a NIC stack closed gracefully.
        parted_finished: Counter,
        /// Connections that ended there by RST or timeout: their responses were delivered before.
        parted_broken: Counter,
        /// Connections forgotten because no NIC stack reported their end for half an hour.
        parted_overdue: Counter,
        /// Pairs of connections to be joined.
        splices_begun: Counter,
        /// Pairs of connections handed to a NIC stack.
        splices_joined: Counter,
        /// Pairs not joined, because they did not become quiet in time, or ended.
        splices_given_up: Counter,
        /// Pairs that a NIC stack refused.
        splices_refused: Counter,
        /// Splices handed to the successor of a NIC stack.
        splices_repeated: Counter,
        /// Splices whose connections returned to their application.
        splices_returned: Counter,
        /// Splices that closed gracefully.
        splices_finished: Counter,
        /// Splices that ended by RST, a limit, or the loss of their NIC stack.
        splices_broken: Counter,
        /// Bytes that NIC stacks forwarded between the connections of splices.
        spliced_bytes: Counter,
        /// Frames held while their connections became quiet.
        splice_frames_held: Counter,
        /// Frames forwarded to the NIC stack that runs the teardown or splice of their connection.
        frames_handed_on: Counter,
        /// Flows that packet filters steer to a NIC worker, past the host: teardowns, splices, QUIC
        /// receiving.
        flows_steered: Counter,
        /// Flows that found the steering map full: the host forwards their frames.
        flows_not_steered: Counter,
        /// Frames not forwarded: the NIC stack is away or out of room, or a splice that it is about
        /// to join holds as many as it may.
        frames_not_handed_on: Counter,
        /// UDP datagrams received for our addresses.
        datagrams_received: Counter,
        /// UDP datagrams that the host split from frames of several: sent by clients on the same
        /// machine, or merged by GRO.
        datagrams_split: Counter,
        /// Datagrams longer than the link permits: several that the kernel merged without reporting
        /// where they end (Linux before 6.2).
        datagrams_merged: Counter,
        /// QUIC datagrams dropped because too many handshakes wait.
        quic_arrivals_dropped: Counter,
        /// Retry packets sent, for clients to validate their address.
        quic_retries_sent: Counter,
        /// Idle QUIC connections closed to make room for others, by `quic.connections_max`.
        quic_idle_evictions: Counter,
        /// QUIC connections refused: their port had as many as it may, and none was idle.
        quic_connections_refused: Counter,
        /// QUIC connections accepted: handshake completed, or early data accepted.
        quic_connections_accepted: Counter,
        /// Accepted QUIC connections that resumed a session.
        quic_resumed: Counter,
        /// Accepted QUIC connections whose early data was accepted.
        quic_early: Counter,
        /// Accepted QUIC connections that have ended.
        quic_connections_closed: Counter,
        /// QUIC connections that ended before their handshake completed.
        quic_handshakes_failed: Counter,
        /// Streams that peers opened on QUIC connections.
        quic_streams_accepted: Counter,
        /// QUIC datagrams that the host sealed and sent itself: of handshakes, or of no connection.
        quic_datagrams_sent: Counter,
        /// QKEY commands.
        quic_keys: Counter,
        /// QSEND commands.
        quic_sends: Counter,
        /// Packets in QSEND commands.
        quic_packets: Counter,
        /// QRXKEY commands.
        quic_receive_keys: Counter,
        /// Times that a QUIC connection moved receiving to its NIC worker.
        quic_receive_begun: Counter,
        /// Times that receiving returned to the host, by a reload.
        quic_receive_returned: Counter,
        /// Datagrams of QUIC connections that the host forwarded to the NIC workers that open them.
        quic_datagrams_handed_on: Counter,
        /// Client packets that NIC workers opened.
        quic_packets_opened: Counter,
        /// Packets opened by NIC workers that the connection did not accept.
        quic_packets_refused: Counter,
        /// PREPARE commands.
        quic_prepares: Counter,
        /// QUIC commands that a NIC stack rejected; their connections are closed.
        quic_rejected: Counter,
        /// Connections aborted because too many wait only for their peers, their FIN sent.
        orphans_aborted: Counter,
        /// Congestion window reductions because a peer echoed a CE mark (ECN).
        ecn_reductions: Counter,
        /// Reductions of a connection's MTU by a credible ICMP "packet too big".
        mtus_reduced: Counter,
        /// RSTs sent in reply to segments of no connection.
        resets_sent: Counter,
        /// RSTs not sent in reply to segments of no connection, because of the rate limit.
        resets_suppressed: Counter,
        /// Datagrams to ports without a listener.
        port_unreachables: Counter,
        /// ICMP replies, to echo requests and datagrams, not sent because of the rate limit.
        echo_replies_suppressed: Counter,
        /// Segments without the negotiated timestamps: dropped, unless they begin at RCV.NXT.
        timestamps_missing: Counter,
        /// SENDs reissued because they never departed.
        sends_repeated: Counter,
        /// Retransmission timeouts.
        timeouts: Counter,
        /// Retransmission timeouts that acknowledgments proved spurious.
        spurious_timeouts: Counter,
        /// RTT samples used for the RTO.
        round_trips: Counter,
        /// Sum of the RTT samples used for the RTO, in microseconds.
        round_trips_us: Counter,
        /// RTT samples taken from timestamps.
        timestamp_round_trips: Counter,
        /// Sum of the RTT samples taken from timestamps, in microseconds.
        timestamp_round_trips_us: Counter,
        /// Times that the shard slept until woken.
        sleeps: Counter,
        /// Times that the shard paused to batch work.
        pauses: Counter,
    }
}
