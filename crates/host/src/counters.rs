//! What the host stack has done so far.

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident),+ $(,)?) => {
        /// Counts since the start of a shard.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters { $($(#[doc = $doc])* pub $name: u64),+ }

        impl Counters {
            /// Names and what they count, in the order of declaration.
            pub const MEANINGS: &[(&str, &str)] = &[$((stringify!($name), concat!($($doc),*))),+];

            /// Names and values, in the order of declaration.
            pub fn rows(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name)),+]
            }
        }
    };
}

counters! {
    /// Frames received.
    frames_received,
    /// Frames that did not parse or whose checksum was wrong.
    frames_malformed,
    /// Changes of the link followed: hardware address, MTU, segmentation limits, down and up.
    link_changes,
    /// ARP packets and neighbour advertisements of other machines that claim an own address.
    address_conflicts,
    /// IP fragments dropped: they are not put together.
    fragments_dropped,
    /// TCP segments received for own addresses.
    segments_received,
    /// Packets sent by the host itself: ACKs, handshakes, headers without file bytes, ARP, ICMP.
    packets_sent,
    /// Packets that the host's port dropped.
    packets_dropped,
    /// Real bytes sent or handed down inline: response headers and the like.
    real_bytes,
    /// Virtual bytes handed down as file ranges, or as records of TLS; the host never sees them.
    virtual_bytes,
    /// SEND commands.
    sends,
    /// SEND commands and own packets that repeat bytes.
    retransmissions,
    /// OPEN commands.
    opens,
    /// LIST commands.
    lists,
    /// CLOS commands.
    closes,
    /// ACKD commands.
    ackds,
    /// Events from the NIC stack.
    events,
    /// Events that make no sense: unknown ids, answers without a question, records that do not
    /// decode.
    events_invalid,
    /// NIC stacks that took the place of another.
    nic_restarts,
    /// NIC stacks that have gone.
    nic_losses,
    /// NIC stacks that stood still: a worker had no heartbeat.
    nic_silences,
    /// Connections that went on through another NIC stack: theirs was gone, or has not the file.
    connections_moved,
    /// SENDs that failed while reading.
    reads_failed,
    /// Connections accepted.
    connections_accepted,
    /// SYNs, and ACKs of handshakes, dropped because the table is full.
    connections_refused,
    /// Connections reset because too many have sent nothing yet: the oldest of the source with
    /// most.
    backlog_evictions,
    /// Idle connections reset because the table is full: the longest idle of the source with most.
    idle_evictions,
    /// Connections reset because files or descriptors run short: those of the source with most.
    file_evictions,
    /// Connections reset because all together hold too much memory: those that hold most.
    memory_evictions,
    /// Handshakes dropped, whose SYN,ACK was repeated, because too many are under way.
    half_open_evicted,
    /// SYNs dropped, or ACKs of handshakes refused, because the source has as many connections as
    /// it may have.
    sources_refused,
    /// Handshakes given up because our SYN,ACK was not acknowledged.
    half_open_expired,
    /// SYNs answered with a cookie.
    syn_cookies_sent,
    /// Connections opened by a cookie.
    syn_cookies_accepted,
    /// ACKs of no connection that were not good cookies either, while there were cookies about.
    syn_cookies_invalid,
    /// Connections that ended in order.
    connections_finished,
    /// Connections that ended by RST, time-out or failure.
    connections_broken,
    /// Handshakes of TLS that were completed.
    tls_handshakes,
    /// Of these, such that have resumed an earlier session.
    tls_handshakes_resumed,
    /// Connections that TLS has ended, before the handshake's end or later.
    tls_failed,
    /// Keys under which we send that have taken the place of another, because we or the peer wanted
    /// it.
    tls_key_updates,
    /// Connections reset because a record, sealed once more, would have been another one: its file
    /// has changed.
    tls_seal_mismatches,
    /// Connections reset because a NIC stack may have sent records whose tags it has not reported.
    tls_records_unproven,
    /// Keys and records of TLS that a NIC stack did not take; their connections are reset.
    tls_records_rejected,
    /// Connections aborted because too many were waiting for their peers alone, their FIN sent.
    orphans_aborted,
    /// Windows reduced because a peer has echoed marks of a router (ECN).
    ecn_reductions,
    /// Connections told by ICMP that their packets are too big, and believing it.
    mtus_reduced,
    /// RSTs sent to segments of no connection.
    resets_sent,
    /// RSTs not sent to segments of no connection, because of the limit on them.
    resets_suppressed,
    /// Echo requests not answered, because of the limit on replies.
    echo_replies_suppressed,
    /// Segments without the timestamps that their connection has agreed on: dropped, unless they
    /// begin at RCV.NXT.
    timestamps_missing,
    /// SENDs issued again because they never departed.
    sends_repeated,
    /// Retransmission timeouts.
    timeouts,
    /// Of these, timeouts that acknowledgments have shown to be spurious.
    spurious_timeouts,
    /// Round-trip times that RTOs were computed from.
    round_trips,
    /// All of them together, in microseconds.
    round_trips_us,
    /// Round-trip times as timestamps tell them.
    timestamp_round_trips,
    /// All of them together, in microseconds.
    timestamp_round_trips_us,
    /// Times that the shard went to sleep until woken.
    sleeps,
    /// Times that the shard let work gather.
    pauses,
}
