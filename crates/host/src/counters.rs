//! What the host stack has done so far.

counters::counters! {
    /// Counts since the start of a shard.
    pub struct Counters {
        /// Frames received.
        frames_received: Counter,
        /// Frames that did not parse or whose checksum was wrong.
        frames_malformed: Counter,
        /// Changes of the link followed: hardware address, MTU, segmentation limits, down and up.
        link_changes: Counter,
        /// ARP packets and neighbour advertisements of other machines that claim an own address.
        address_conflicts: Counter,
        /// IP fragments dropped: they are not put together.
        fragments_dropped: Counter,
        /// SYNs that ask for a connection, whether or not they got one.
        syns_received: Counter,
        /// TCP segments received for own addresses.
        segments_received: Counter,
        /// TCP segments from a wire whose addresses no wire may carry, dropped: the source is an
        /// own address, or either is a loopback address.
        martians_dropped: Counter,
        /// TCP segments from own connections to own connections. They are on no wire.
        loopback_segments: Counter,
        /// Payload of these, in bytes.
        loopback_bytes: Counter,
        /// RSTs, and SYN,ACKs, to own connections dropped because too many segments wait.
        loopback_drops: Counter,
        /// Packets sent by the host itself: ACKs, handshakes, headers without file bytes, ARP,
        /// ICMP.
        packets_sent: Counter,
        /// Packets that the host's port dropped.
        packets_dropped: Counter,
        /// Real bytes sent or handed down inline: response headers and the like.
        real_bytes: Counter,
        /// Virtual bytes handed down as file ranges, or as records of TLS; the host never sees
        /// them.
        virtual_bytes: Counter,
        /// SEND commands.
        sends: Counter,
        /// SEND commands and own packets that repeat bytes.
        retransmissions: Counter,
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
        /// Events that make no sense: unknown ids, answers without a question, records that do not
        /// decode.
        events_invalid: Counter,
        /// NIC stacks that took the place of another.
        nic_restarts: Counter,
        /// NIC stacks that have gone.
        nic_losses: Counter,
        /// NIC stacks that stood still: a worker had no heartbeat.
        nic_silences: Counter,
        /// Connections that went on through another NIC stack: theirs was gone, or has not the
        /// file.
        connections_moved: Counter,
        /// Connections that went on through another worker of their NIC stack, because of the load.
        connections_rebalanced: Counter,
        /// Connections that were to, and stayed: the worker could not open a file of theirs, or not
        /// the version that they send.
        migrations_failed: Counter,
        /// NIC workers put in use because of the load.
        nic_workers_added: Counter,
        /// NIC workers that the load needs no more.
        nic_workers_removed: Counter,
        /// SENDs that failed while reading.
        reads_failed: Counter,
        /// Connections accepted.
        connections_accepted: Counter,
        /// SYNs and ACKs of handshakes dropped because the listener's queue is full.
        listen_overflows: Counter,
        /// Connections that this side has begun to open.
        connections_opened: Counter,
        /// SYNs, and ACKs of handshakes, dropped because the table is full.
        connections_refused: Counter,
        /// Connections reset because too many have sent nothing yet: the oldest of the source with
        /// most.
        backlog_evictions: Counter,
        /// Idle connections reset because the table is full: the longest idle of the source with
        /// most.
        idle_evictions: Counter,
        /// Connections reset because files or descriptors run short: those of the source with most.
        file_evictions: Counter,
        /// Connections reset because all together hold too much memory: those that hold most.
        memory_evictions: Counter,
        /// Handshakes dropped, whose SYN,ACK was repeated, because too many are under way.
        half_open_evicted: Counter,
        /// SYNs dropped, or ACKs of handshakes refused, because the source has as many connections
        /// as it may have.
        sources_refused: Counter,
        /// Handshakes given up because our SYN,ACK was not acknowledged.
        half_open_expired: Counter,
        /// SYNs answered with a cookie.
        syn_cookies_sent: Counter,
        /// Connections opened by a cookie.
        syn_cookies_accepted: Counter,
        /// ACKs of no connection that were not good cookies either, while there were cookies about.
        syn_cookies_invalid: Counter,
        /// Segments dropped that follow an ACK with a cookie which has not arrived: the peer sends
        /// both again.
        syn_cookies_early: Counter,
        /// Cookies of Fast Open sent.
        fast_open_cookies_sent: Counter,
        /// SYNs of which the text was taken: their cookie was good.
        fast_opens: Counter,
        /// Connections that ended in order.
        connections_finished: Counter,
        /// Connections that ended by RST, time-out or failure.
        connections_broken: Counter,
        /// Handshakes of TLS that were completed.
        tls_handshakes: Counter,
        /// Of these, such that have resumed an earlier session.
        tls_handshakes_resumed: Counter,
        /// Connections that TLS has ended, before the handshake's end or later.
        tls_failed: Counter,
        /// Keys under which we send that have taken the place of another, because we or the peer
        /// wanted it.
        tls_key_updates: Counter,
        /// Connections reset because a record, sealed once more, would have been another one: its
        /// file has changed.
        tls_seal_mismatches: Counter,
        /// Connections reset because a NIC stack may have sent records whose tags it has not
        /// reported.
        tls_records_unproven: Counter,
        /// Keys and records of TLS that a NIC stack did not take; their connections are reset.
        tls_records_rejected: Counter,
        /// SETUP commands.
        setups: Counter,
        /// SYNs handed on to NIC workers, which answer them.
        syns_handed_on: Counter,
        /// Connections whose SYN a NIC worker has answered.
        connections_set_up: Counter,
        /// Connections whose end a NIC stack was given.
        parts: Counter,
        /// Of these, connections that it did not take.
        parts_refused: Counter,
        /// Ends of connections given to a NIC stack that took the place of another.
        parts_repeated: Counter,
        /// Connections whose end was taken back: their NIC stack did not take them, or was lost.
        parted_taken_back: Counter,
        /// Connections that have ended in order at a NIC stack.
        parted_finished: Counter,
        /// Connections that have ended there by RST or time-out.
        parted_broken: Counter,
        /// Connections forgotten because no NIC stack has said their end for half an hour.
        parted_overdue: Counter,
        /// Pairs of connections that were to be joined.
        splices_begun: Counter,
        /// Of these, pairs that a NIC stack was given.
        splices_joined: Counter,
        /// Pairs that were not, because they did not become quiet in time, or ended.
        splices_given_up: Counter,
        /// Pairs that a NIC stack did not take.
        splices_refused: Counter,
        /// Splices given to a NIC stack that took the place of another.
        splices_repeated: Counter,
        /// Splices whose connections went back to their application.
        splices_returned: Counter,
        /// Splices that have ended in order.
        splices_finished: Counter,
        /// Splices that have ended by RST, a limit, or the loss of their NIC stack.
        splices_broken: Counter,
        /// Bytes that NIC stacks have passed from one connection to the other.
        spliced_bytes: Counter,
        /// Frames held while their connections became quiet.
        splice_frames_held: Counter,
        /// Frames handed on to the NIC stack that runs the end of their connection, or has joined
        /// it with another.
        frames_handed_on: Counter,
        /// Connections whose frames went to a NIC worker from then on, without the host: parted
        /// with, or of a splice.
        flows_steered: Counter,
        /// The same, of which the steering map had no room: their frames are handed on.
        flows_not_steered: Counter,
        /// Frames that were not, because it is away or has no room.
        frames_not_handed_on: Counter,
        /// UDP datagrams received for own addresses.
        datagrams_received: Counter,
        /// Of these, such that have come several in a frame, and that the host has split: those
        /// of clients on the same machine, or merged by GRO.
        datagrams_split: Counter,
        /// Datagrams longer than the link permits: several, which the kernel has merged and does
        /// not say where they end (Linux before 6.2).
        datagrams_merged: Counter,
        /// Datagrams for QUIC dropped because too many handshakes wait.
        quic_arrivals_dropped: Counter,
        /// Retry packets sent: clients had to show their address first.
        quic_retries_sent: Counter,
        /// QUIC connections accepted: their handshake was completed, or early data was accepted.
        quic_connections_accepted: Counter,
        /// Of these, such that have resumed an earlier session.
        quic_resumed: Counter,
        /// Of these, such whose early data was accepted.
        quic_early: Counter,
        /// QUIC connections that have ended, of those accepted.
        quic_connections_closed: Counter,
        /// QUIC connections that have ended before their handshake's end.
        quic_handshakes_failed: Counter,
        /// Streams that peers have opened on QUIC connections.
        quic_streams_accepted: Counter,
        /// Datagrams of QUIC that the host has sealed and sent itself: of handshakes, or of no
        /// connection.
        quic_datagrams_sent: Counter,
        /// QKEY commands.
        quic_keys: Counter,
        /// QSEND commands.
        quic_sends: Counter,
        /// Packets in them.
        quic_packets: Counter,
        /// QRXKEY commands.
        quic_receive_keys: Counter,
        /// Times that QUIC connections went to their NIC workers, which open what clients send.
        quic_receive_begun: Counter,
        /// Times that they returned to the host, by a reload.
        quic_receive_returned: Counter,
        /// Datagrams of QUIC connections that the host has handed on to the NIC workers that open
        /// them.
        quic_datagrams_handed_on: Counter,
        /// Packets of clients that NIC workers have opened.
        quic_packets_opened: Counter,
        /// Of these, packets that the connection did not take.
        quic_packets_refused: Counter,
        /// PREPARE commands.
        quic_prepares: Counter,
        /// Commands of QUIC that a NIC stack did not take; their connections are closed.
        quic_rejected: Counter,
        /// Connections aborted because too many were waiting for their peers alone, their FIN sent.
        orphans_aborted: Counter,
        /// Windows reduced because a peer has echoed marks of a router (ECN).
        ecn_reductions: Counter,
        /// Connections told by ICMP that their packets are too big, and believing it.
        mtus_reduced: Counter,
        /// RSTs sent to segments of no connection.
        resets_sent: Counter,
        /// RSTs not sent to segments of no connection, because of the limit on them.
        resets_suppressed: Counter,
        /// Datagrams to ports that nothing listens on.
        port_unreachables: Counter,
        /// ICMP answers not sent, to echo requests and datagrams, because of the limit on them.
        echo_replies_suppressed: Counter,
        /// Segments without the timestamps that their connection has agreed on: dropped, unless
        /// they begin at RCV.NXT.
        timestamps_missing: Counter,
        /// SENDs issued again because they never departed.
        sends_repeated: Counter,
        /// Retransmission timeouts.
        timeouts: Counter,
        /// Of these, timeouts that acknowledgments have shown to be spurious.
        spurious_timeouts: Counter,
        /// Round-trip times that RTOs were computed from.
        round_trips: Counter,
        /// All of them together, in microseconds.
        round_trips_us: Counter,
        /// Round-trip times as timestamps tell them.
        timestamp_round_trips: Counter,
        /// All of them together, in microseconds.
        timestamp_round_trips_us: Counter,
        /// Times that the shard went to sleep until woken.
        sleeps: Counter,
        /// Times that the shard let work gather.
        pauses: Counter,
    }
}
