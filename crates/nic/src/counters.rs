//! Counters of a worker.

use netdev::SendError;

counters::counters! {
    /// Counters of a worker, or of several added up. All count from the start of the session.
    pub struct Counters {
        /// OPEN commands taken.
        opens: Counter,
        /// LIST commands taken.
        lists: Counter,
        /// CLOS commands taken.
        closes: Counter,
        /// SEND commands taken.
        sends: Counter,
        /// ACKD commands taken.
        ackds: Counter,
        /// Commands answered with `Rejected`.
        commands_rejected: Counter,
        /// OPENs and LISTs that failed.
        opens_failed: Counter,
        /// SENDs that failed while reading.
        reads_failed: Counter,
        /// Packets on the wire, after segmentation.
        packets: Counter,
        /// Superpackets handed to the port.
        superpackets: Counter,
        /// Bytes of file content handed to the port.
        file_sent_bytes: Counter,
        /// Inline bytes handed to the port.
        inline_sent_bytes: Counter,
        /// Reads started.
        reads: Counter,
        /// Bytes read from files.
        read_bytes: Counter,
        /// Blocks that a superpacket needed and found in memory, or being read.
        block_hits: Counter,
        /// Blocks that a superpacket needed and that were read for it.
        block_misses: Counter,
        /// Of the hits, blocks already being read, for another flow or by read-ahead.
        reads_shared: Counter,
        /// Cached blocks evicted to make room.
        blocks_evicted: Counter,
        /// Pinned blocks evicted to make room: data sent from them had long been unacknowledged.
        pins_broken: Counter,
        /// Times that a flow waited for blocks.
        block_waits: Counter,
        /// Of the reads, those of blocks that no flow needed yet.
        blocks_ahead: Counter,
        /// Blocks read ahead and then needed.
        blocks_ahead_used: Counter,
        /// Blocks read ahead and evicted unused.
        blocks_ahead_wasted: Counter,
        /// Most blocks in use, being read or pinned at once.
        blocks_used_max: Gauge,
        /// Most blocks pinned at once.
        blocks_pinned_max: Gauge,
        /// KEY commands taken.
        keys: Counter,
        /// RECORDS commands taken.
        record_runs: Counter,
        /// Bytes of TLS records handed to the port.
        sealed_sent_bytes: Counter,
        /// TLS records sealed for the first time.
        records_sealed: Counter,
        /// TLS records sealed again.
        records_sealed_again: Counter,
        /// TLS records continued without sealing them again.
        records_from_tail: Counter,
        /// Bytes of TLS records sealed, again or for the first time.
        sealed_bytes: Counter,
        /// SENDs that failed because a record would have been sealed differently.
        seal_mismatches: Counter,
        /// QKEY commands taken.
        quic_keys: Counter,
        /// QSEND commands taken.
        quic_sends: Counter,
        /// QSEND commands rejected.
        quic_sends_rejected: Counter,
        /// QUIC packets sealed.
        quic_packets_sealed: Counter,
        /// Datagrams handed to the port.
        datagrams: Counter,
        /// Bytes of datagrams handed to the port, without headers.
        datagram_bytes: Counter,
        /// QRXKEY commands taken.
        quic_receive_keys: Counter,
        /// QRXKEY commands refused for lack of room: the host opens the packets.
        quic_receive_keys_refused: Counter,
        /// Packets from QUIC peers opened.
        quic_packets_opened: Counter,
        /// Packets from QUIC peers opened and held until those before them arrived.
        quic_packets_held: Counter,
        /// Gaps in packet numbers given up, because the missing packets did not arrive in time.
        quic_gaps_timed_out: Counter,
        /// ACK frames removed before the host gets them, because a later one covers the same
        /// packets.
        quic_acks_coalesced: Counter,
        /// Duplicate packets, dropped.
        quic_packets_duplicate: Counter,
        /// Datagrams that the worker could not open, handed to the host as frames.
        quic_frames_handed_up: Counter,
        /// PREPARE commands taken.
        prepares: Counter,
        /// PREPARE commands answered with READY.
        prepares_ready: Counter,
        /// Of the reads, those of blocks that a PREPARE asked for.
        blocks_prepared: Counter,
        /// PART commands taken.
        parts: Counter,
        /// PART commands refused.
        parts_refused: Counter,
        /// Connections of PARTs that ended here.
        parted_ended: Counter,
        /// Packets sent for connections of PARTs.
        parted_packets: Counter,
        /// SPLICE commands taken.
        splices: Counter,
        /// SPLICE commands refused.
        splices_refused: Counter,
        /// Splices that ended here.
        splices_ended: Counter,
        /// Splices returned to the host.
        splices_returned: Counter,
        /// Packets sent for splices.
        spliced_packets: Counter,
        /// Bytes forwarded from one leg of a splice to the other, without retransmissions.
        spliced_bytes: Counter,
        /// Messages "packet too big" for splices that quote no data in flight, or bring no smaller
        /// MSS.
        splice_mss_ignored: Counter,
        /// Frames of splices that the other peer would not have accepted.
        spliced_frames_dropped: Counter,
        /// TCP connections ended by the worker because the host process had died.
        orphans_reset: Counter,
        /// QUIC connections ended for the same reason.
        orphans_closed: Counter,
        /// FRAME commands taken.
        frames_taken: Counter,
        /// FRAME commands with frames of no connection that the worker has.
        frames_unknown: Counter,
        /// Frames that arrived at the worker's own port, steered there by a packet filter.
        frames_received: Counter,
        /// Frames of no connection that the worker has, received at its own port and handed to the
        /// host.
        frames_handed_up: Counter,
        /// Frames dropped: damaged, or more than the host takes.
        frames_dropped: Counter,
        /// SYNs that reached the worker, to be answered in the host's place.
        syns_received: Counter,
        /// SYN,ACKs with cookies sent.
        syn_acks_sent: Counter,
        /// SYNs handed to the host, because the worker answers for no such listener.
        syns_handed_up: Counter,
        /// Times that a superpacket waited for room in the event ring.
        ring_waits: Counter,
        /// Superpackets that the link dropped.
        port_drops: Counter,
        /// Superpackets that the port refused.
        port_failures: Counter,
        /// Times that the port was busy.
        port_waits: Counter,
        /// Times that the worker slept.
        sleeps: Counter,
        /// SENDs taken that name an earliest departure.
        paced: Counter,
        /// Paced SENDs whose requested hold was too long.
        holds_shortened: Counter,
        /// Time by which paced SENDs left after their earliest departure, in microseconds.
        paced_late_us: Counter,
        /// Largest such delay, in microseconds.
        paced_late_max_us: Maximum,
        /// Paced SENDs more than a millisecond late.
        paced_late: Counter,
    }
}

impl Counters {
    /// A paced SEND that leaves later than its time by more than this is late, in microseconds: a
    /// packet of 1500 bytes at 12 Mbit/s.
    pub const LATE_US: u64 = 1000;

    /// Counts a paced SEND that begins to leave `late_us` after its earliest departure.
    pub(crate) fn on_paced_departure(&mut self, late_us: u64) {
        self.paced_late_us += late_us;
        self.paced_late_max_us = self.paced_late_max_us.max(late_us);
        self.paced_late += u64::from(late_us > Counters::LATE_US);
    }

    /// Counts a packet that the port did not send and that is not retried: it is lost, as packets
    /// may be on any path.
    pub(crate) fn on_not_sent(&mut self, error: &SendError) {
        match error {
            SendError::Dropped | SendError::WouldBlock => self.port_drops += 1,
            SendError::Failed(error) => {
                if self.port_failures == 0 {
                    tracing::warn!(%error, "the port refuses a packet; later refusals are only \
                        counted");
                }
                self.port_failures += 1;
            }
        }
    }
}
