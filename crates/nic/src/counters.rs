//! What a worker has done.

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
        /// Packets on the wire, after cutting.
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
        /// Blocks that a superpacket needed and found in memory, or on their way.
        block_hits: Counter,
        /// Blocks that a superpacket needed and that had to be read for it.
        block_misses: Counter,
        /// Of the hits: the block was being read already, for another flow or by read-ahead.
        reads_shared: Counter,
        /// Cached blocks that have made way for others.
        blocks_evicted: Counter,
        /// Pinned blocks that have made way for others: what was sent from them had not been
        /// acknowledged for long.
        pins_broken: Counter,
        /// Times that a flow had to wait for blocks.
        block_waits: Counter,
        /// Of the reads, those of blocks that no flow needed yet.
        blocks_ahead: Counter,
        /// Blocks that were read ahead and then needed.
        blocks_ahead_used: Counter,
        /// Blocks that were read ahead and have gone without having been needed.
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
        /// TLS records sealed once more.
        records_sealed_again: Counter,
        /// TLS records that went on without being sealed again.
        records_from_tail: Counter,
        /// Bytes of TLS records made by sealing, again or for the first time.
        sealed_bytes: Counter,
        /// SENDs that failed because a record would have been sealed otherwise.
        seal_mismatches: Counter,
        /// QKEY commands taken.
        quic_keys: Counter,
        /// QSEND commands taken.
        quic_sends: Counter,
        /// Of these, such that were rejected.
        quic_sends_rejected: Counter,
        /// Packets of QUIC connections sealed.
        quic_packets_sealed: Counter,
        /// Datagrams handed to the port.
        datagrams: Counter,
        /// Bytes of datagrams handed to the port, headers not counted.
        datagram_bytes: Counter,
        /// QRXKEY commands taken.
        quic_receive_keys: Counter,
        /// Of these, such that there was no room for: the host opens what arrives.
        quic_receive_keys_refused: Counter,
        /// Packets of peers of QUIC connections opened.
        quic_packets_opened: Counter,
        /// Of these, packets that were held until those before them had come.
        quic_packets_held: Counter,
        /// Gaps in packet numbers that were given up, since what was missing did not come in time.
        quic_gaps_timed_out: Counter,
        /// ACK frames that were left out of what the host gets, since a later one says the same.
        quic_acks_coalesced: Counter,
        /// Packets that have come again, and were dropped.
        quic_packets_duplicate: Counter,
        /// Datagrams that the worker could not open, handed to the host as frames.
        quic_frames_handed_up: Counter,
        /// PREPARE commands taken.
        prepares: Counter,
        /// Of these, such that were answered by READY.
        prepares_ready: Counter,
        /// Of the reads, those of blocks that a PREPARE has asked for.
        blocks_prepared: Counter,
        /// PART commands taken.
        parts: Counter,
        /// Of these, such that were refused.
        parts_refused: Counter,
        /// Connections of PARTs that have ended here.
        parted_ended: Counter,
        /// Packets sent for them.
        parted_packets: Counter,
        /// SPLICE commands taken.
        splices: Counter,
        /// Of these, such that were refused.
        splices_refused: Counter,
        /// Splices that have ended here.
        splices_ended: Counter,
        /// Splices that went back to the host.
        splices_returned: Counter,
        /// Packets sent for splices.
        spliced_packets: Counter,
        /// Bytes that have passed from one leg of a splice to the other, repetitions not counted.
        spliced_bytes: Counter,
        /// Frames of splices that the other peer would not have taken.
        spliced_frames_dropped: Counter,
        /// FRAME commands taken.
        frames_taken: Counter,
        /// Of these, frames that belong to none of them.
        frames_unknown: Counter,
        /// Frames that have arrived at the worker's own port, where a packet filter steers them.
        frames_received: Counter,
        /// Of these, frames of no connection that the worker has, handed to the host.
        frames_handed_up: Counter,
        /// Frames that are damaged, or for the host, and too many for it.
        frames_dropped: Counter,
        /// SYNs that have reached the worker, to be answered in the host's place.
        syns_received: Counter,
        /// SYN,ACKs with cookies sent.
        syn_acks_sent: Counter,
        /// SYNs handed to the host, which are for no listener that the worker answers for.
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
        /// SENDs taken that named an earliest departure.
        paced: Counter,
        /// Of these, SENDs that asked to be held for too long.
        holds_shortened: Counter,
        /// Time by which paced SENDs left later than their earliest departure, in microseconds.
        paced_late_us: Counter,
        /// The latest of them, in microseconds.
        paced_late_max_us: Maximum,
        /// Paced SENDs that were later than a millisecond.
        paced_late: Counter,
    }
}

impl Counters {
    /// A paced SEND that leaves later than its time by more than this is late, in microseconds: a
    /// packet of 1500 bytes at 12 Mbit/s.
    pub const LATE_US: u64 = 1000;

    /// A paced SEND begins to leave, so much after its earliest departure.
    pub(crate) fn on_paced_departure(&mut self, late_us: u64) {
        self.paced_late_us += late_us;
        self.paced_late_max_us = self.paced_late_max_us.max(late_us);
        self.paced_late += u64::from(late_us > Counters::LATE_US);
    }

    /// The port has not sent a packet, and is not to be asked again: it is lost on the way, as
    /// packets may be.
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
