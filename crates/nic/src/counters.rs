//! What a worker has done.

/// Counters of a worker, or of several added up. All count from the start of the session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// OPEN commands taken.
    pub opens: u64,
    /// LIST commands taken.
    pub lists: u64,
    /// CLOS commands taken.
    pub closes: u64,
    /// SEND commands taken.
    pub sends: u64,
    /// ACKD commands taken.
    pub ackds: u64,
    /// Commands answered with `Rejected`.
    pub rejected: u64,
    /// OPENs and LISTs that failed.
    pub open_failures: u64,
    /// SENDs that failed while reading.
    pub read_failures: u64,
    /// Packets on the wire, after cutting.
    pub packets: u64,
    /// Superpackets handed to the port.
    pub superpackets: u64,
    /// Bytes of file content handed to the port.
    pub file_bytes_sent: u64,
    /// Inline bytes handed to the port.
    pub inline_bytes_sent: u64,
    /// Reads started.
    pub reads: u64,
    /// Bytes read from files.
    pub bytes_read: u64,
    /// Blocks that a superpacket needed and found in memory, or on their way.
    pub block_hits: u64,
    /// Blocks that a superpacket needed and that had to be read for it.
    pub block_misses: u64,
    /// Of the hits: the block was being read already, for another flow or by read-ahead.
    pub reads_shared: u64,
    /// Cached blocks that have made way for others.
    pub blocks_evicted: u64,
    /// Pinned blocks that have made way for others: what was sent from them had not been
    /// acknowledged for long.
    pub pins_broken: u64,
    /// Times that a flow had to wait for blocks.
    pub block_waits: u64,
    /// Of the reads, those of blocks that no flow needed yet.
    pub blocks_ahead: u64,
    /// Blocks that were read ahead and then needed.
    pub blocks_ahead_used: u64,
    /// Blocks that were read ahead and have gone without having been needed.
    pub blocks_ahead_wasted: u64,
    /// Most blocks in use, being read or pinned at once.
    pub blocks_peak: u64,
    /// Most blocks pinned at once.
    pub blocks_pinned_peak: u64,
    /// KEY commands taken.
    pub keys: u64,
    /// RECORDS commands taken.
    pub runs: u64,
    /// Bytes of records handed to the port.
    pub sealed_bytes_sent: u64,
    /// Records sealed for the first time.
    pub records_sealed: u64,
    /// Records sealed once more, to be sent once more or because the rest of them had not been
    /// kept.
    pub records_sealed_again: u64,
    /// Records that went on from where a superpacket had ended, without being sealed again.
    pub records_from_tail: u64,
    /// Bytes of records made by sealing, again or for the first time.
    pub bytes_sealed: u64,
    /// SENDs that failed because a record would have been sealed otherwise than the first time.
    pub seal_mismatches: u64,
    /// Times that a superpacket waited for room in the event ring for its tags.
    pub ring_waits: u64,
    /// Superpackets that the link dropped.
    pub port_drops: u64,
    /// Superpackets that the port refused.
    pub port_failures: u64,
    /// Times that the port was busy.
    pub port_waits: u64,
    /// Times that the worker slept.
    pub sleeps: u64,
    /// SENDs taken that named an earliest departure.
    pub paced: u64,
    /// Of these, SENDs that asked to be held for longer than the contract allows.
    pub holds_shortened: u64,
    /// Time by which paced SENDs left later than their earliest departure, reading and queueing
    /// included, in microseconds: all together.
    pub paced_late_us: u64,
    /// The same: the latest of them.
    pub paced_late_us_max: u64,
    /// Paced SENDs that were later than [`Counters::LATE_US`].
    pub paced_late: u64,
}

impl Counters {
    /// How many rows there are.
    pub const ROWS: usize = 43;

    /// A paced SEND that leaves later than its time by more than this is late, in microseconds: a
    /// packet of 1500 bytes at 12 Mbit/s.
    pub const LATE_US: u64 = 1000;

    /// Names and values, for people.
    pub fn rows(&self) -> [(&'static str, u64); Counters::ROWS] {
        [
            ("OPEN commands", self.opens),
            ("LIST commands", self.lists),
            ("CLOS commands", self.closes),
            ("SEND commands", self.sends),
            ("ACKD commands", self.ackds),
            ("commands rejected", self.rejected),
            ("opens failed", self.open_failures),
            ("reads failed", self.read_failures),
            ("packets", self.packets),
            ("superpackets", self.superpackets),
            ("file bytes sent", self.file_bytes_sent),
            ("inline bytes sent", self.inline_bytes_sent),
            ("reads", self.reads),
            ("bytes read", self.bytes_read),
            ("block hits", self.block_hits),
            ("block misses", self.block_misses),
            ("reads shared", self.reads_shared),
            ("blocks evicted", self.blocks_evicted),
            ("pins broken", self.pins_broken),
            ("waits for blocks", self.block_waits),
            ("blocks read ahead", self.blocks_ahead),
            ("blocks read ahead, used", self.blocks_ahead_used),
            ("blocks read ahead, wasted", self.blocks_ahead_wasted),
            ("blocks in use, peak", self.blocks_peak),
            ("blocks pinned, peak", self.blocks_pinned_peak),
            ("KEY commands", self.keys),
            ("RECORDS commands", self.runs),
            ("sealed bytes sent", self.sealed_bytes_sent),
            ("records sealed", self.records_sealed),
            ("records sealed again", self.records_sealed_again),
            ("records sent on from their tail", self.records_from_tail),
            ("bytes sealed", self.bytes_sealed),
            ("seal mismatches", self.seal_mismatches),
            ("waits for the event ring", self.ring_waits),
            ("superpackets dropped by the link", self.port_drops),
            ("superpackets refused by the port", self.port_failures),
            ("waits for the port", self.port_waits),
            ("sleeps", self.sleeps),
            ("paced SENDs", self.paced),
            ("paced SENDs held shorter than asked", self.holds_shortened),
            ("paced SENDs late, total us", self.paced_late_us),
            ("paced SENDs late, most us", self.paced_late_us_max),
            ("paced SENDs late by over 1 ms", self.paced_late),
        ]
    }

    /// Adds what another worker has done. Peaks add up too: workers share no memory.
    pub fn add(&mut self, other: &Counters) {
        let Counters {
            opens,
            lists,
            closes,
            sends,
            ackds,
            rejected,
            open_failures,
            read_failures,
            packets,
            superpackets,
            file_bytes_sent,
            inline_bytes_sent,
            reads,
            bytes_read,
            block_hits,
            block_misses,
            reads_shared,
            blocks_evicted,
            pins_broken,
            block_waits,
            blocks_ahead,
            blocks_ahead_used,
            blocks_ahead_wasted,
            blocks_peak,
            blocks_pinned_peak,
            keys,
            runs,
            sealed_bytes_sent,
            records_sealed,
            records_sealed_again,
            records_from_tail,
            bytes_sealed,
            seal_mismatches,
            ring_waits,
            port_drops,
            port_failures,
            port_waits,
            sleeps,
            paced,
            holds_shortened,
            paced_late_us,
            paced_late_us_max,
            paced_late,
        } = other;
        self.opens += opens;
        self.lists += lists;
        self.closes += closes;
        self.sends += sends;
        self.ackds += ackds;
        self.rejected += rejected;
        self.open_failures += open_failures;
        self.read_failures += read_failures;
        self.packets += packets;
        self.superpackets += superpackets;
        self.file_bytes_sent += file_bytes_sent;
        self.inline_bytes_sent += inline_bytes_sent;
        self.reads += reads;
        self.bytes_read += bytes_read;
        self.block_hits += block_hits;
        self.block_misses += block_misses;
        self.reads_shared += reads_shared;
        self.blocks_evicted += blocks_evicted;
        self.pins_broken += pins_broken;
        self.block_waits += block_waits;
        self.blocks_ahead += blocks_ahead;
        self.blocks_ahead_used += blocks_ahead_used;
        self.blocks_ahead_wasted += blocks_ahead_wasted;
        self.blocks_peak += blocks_peak;
        self.blocks_pinned_peak += blocks_pinned_peak;
        self.keys += keys;
        self.runs += runs;
        self.sealed_bytes_sent += sealed_bytes_sent;
        self.records_sealed += records_sealed;
        self.records_sealed_again += records_sealed_again;
        self.records_from_tail += records_from_tail;
        self.bytes_sealed += bytes_sealed;
        self.seal_mismatches += seal_mismatches;
        self.ring_waits += ring_waits;
        self.port_drops += port_drops;
        self.port_failures += port_failures;
        self.port_waits += port_waits;
        self.sleeps += sleeps;
        self.paced += paced;
        self.holds_shortened += holds_shortened;
        self.paced_late_us += paced_late_us;
        self.paced_late_us_max = self.paced_late_us_max.max(*paced_late_us_max);
        self.paced_late += paced_late;
    }

    /// A paced SEND begins to leave, so much after its earliest departure.
    pub(crate) fn on_paced_departure(&mut self, late_us: u64) {
        self.paced_late_us += late_us;
        self.paced_late_us_max = self.paced_late_us_max.max(late_us);
        self.paced_late += u64::from(late_us > Counters::LATE_US);
    }
}
