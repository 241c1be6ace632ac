//! Bounds that both sides rely on. A record beyond them does not decode.

/// Version of the contract. Both sides must speak the same one.
pub const VERSION: u16 = 21;

/// Longest path in an OPEN or LIST, in bytes; Linux's `PATH_MAX` without the final zero.
pub const PATH_BYTES_MAX: usize = 4095;

/// Longest name in a directory, in bytes; Linux's `NAME_MAX`.
pub const NAME_BYTES_MAX: usize = 255;

/// Most bytes of entries in an answer to LIST: an event ring of 4 KiB has room for two answers.
pub const LISTED_ENTRIES_BYTES_MAX: usize = 1968;

/// Longest packet header in a SEND: Ethernet (14), IPv6 (40), TCP with all options (60), and room.
pub const HEADER_BYTES_MAX: usize = 128;

/// Most segments in a SEND or in RECORDS.
pub const SEGMENTS_MAX: usize = 32;

/// Most inline bytes in a SEND or in RECORDS, over all its segments.
pub const INLINE_BYTES_MAX: usize = 4096;

/// Most payload bytes in a SEND. The NIC stack cuts them into superpackets.
pub const SEND_BYTES_MAX: usize = 1 << 20;

/// Longest time that a SEND is held for its [`crate::Send::not_before_us`], in microseconds: one
/// that asks for more departs when this is over. No rate at which a connection is alive needs more
/// between two SENDs.
pub const HOLD_US_MAX: u64 = 2_000_000;

/// Longest plaintext of a TLS record, in bytes (RFC 8446 §5.1).
pub const RECORD_PLAINTEXT_BYTES_MAX: usize = 1 << 14;

/// Longest end of a record, in bytes, behind a range that begins it, for which a NIC stack seals
/// the range without copying it. Host stacks cut records accordingly.
pub const RECORD_TAIL_BYTES_MAX: usize = 64;

/// Most records that one RECORDS defines.
pub const RECORDS_MAX: usize = 64;

/// Most records of a flow that are defined and not acknowledged.
pub const FLOW_RECORDS_MAX: usize = 1 << 14;

/// Most keys of a flow at a time.
pub const KEYS_MAX: usize = 4;

/// Most tags in a sealed event.
pub const SEALED_TAGS_MAX: usize = 16;

/// Longest frame that one stack hands to the other, from the Ethernet header on, in bytes: the
/// maximum of a link with an MTU of 1500 bytes, and room. Longer frames, as GRO makes them, are
/// truncated; the rest counts as lost.
pub const FRAME_BYTES_MAX: usize = 1536;

/// Most ends in a part ended event.
pub const PART_ENDS_MAX: usize = 32;

/// Most flows in a flows taken event.
pub const FLOWS_TAKEN_MAX: usize = 64;

/// Most listeners in SETUP.
pub const SETUP_LISTENERS_MAX: usize = 256;

/// Longest time that SYNs are answered without another SETUP, in microseconds.
pub const SETUP_VALID_US_MAX: u64 = 3_600_000_000;

/// Most bits by which windows are scaled (RFC 7323 §2.3).
pub const WINDOW_SHIFT_MAX: u8 = 14;

/// Most splices in a splice progress event.
pub const SPLICE_PROGRESS_MAX: usize = 32;

/// Largest window of a connection that is parted with or spliced, in bytes.
pub const PART_WINDOW_BYTES_MAX: u32 = 0xffff << WINDOW_SHIFT_MAX;

/// Most packets of a QSEND.
pub const QUIC_PACKETS_MAX: usize = 44;

/// Most segments of a QSEND, of all its packets.
pub const QUIC_SEGMENTS_MAX: usize = 192;

/// Most bytes of packets in a QSEND: prefixes, headers and inline segments.
pub const QUIC_INLINE_BYTES_MAX: usize = 4096;

/// Longest short header of a packet, in bytes: a connection ID of 20, a number of 4 (RFC 9000
/// §17.3.1).
pub const QUIC_HEADER_BYTES_MAX: usize = 25;

/// Longest datagram of a QSEND, in bytes: one without any range of a file fits in as well.
pub const QUIC_DATAGRAM_BYTES_MAX: usize = 4096;

/// Most bytes of all datagrams of a QSEND: they leave as one UDP packet that the port cuts, whose
/// length, with the headers of IPv6 and UDP, has 16 bits.
pub const QUIC_SEND_BYTES_MAX: usize = 65_535 - 40 - 8;

/// Most bytes of a PREPARE.
pub const PREPARE_BYTES_MAX: usize = 1 << 20;

/// Longest connection ID, in bytes (RFC 9000 §17.2).
pub const QUIC_CONNECTION_ID_BYTES_MAX: usize = 20;

/// Most packets of a QRX.
pub const QUIC_RECEIVED_PACKETS_MAX: usize = 24;

/// Most bytes of plaintext in a QRX, of all its packets: that of the longest packet which arrives
/// in a frame of [`FRAME_BYTES_MAX`] fits.
pub const QUIC_RECEIVED_BYTES_MAX: usize = 1536;

/// Longest time that packets are held behind a gap, in microseconds.
pub const QUIC_HOLD_US_MAX: u32 = 1_000_000;

/// Longest encoded command or event, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 8192;

/// Most workers of a NIC stack: three descriptors each must fit into one `SCM_RIGHTS` message,
/// which takes 253.
pub const WORKERS_MAX: usize = 64;

/// How long each side waits for the other's hello, in seconds.
pub const HELLO_SECONDS_MAX: u64 = 5;

/// Capacity of a command ring, in bytes.
pub const COMMAND_RING_BYTES: usize = 1 << 20;

/// Capacity of an event ring, in bytes.
pub const EVENT_RING_BYTES: usize = 256 << 10;

/// Heartbeats in a row that a worker misses before it counts as stalled. Few, since each wakes
/// every process of an idle server.
pub const HEARTBEATS_MISSED_MAX: u32 = 2;

/// Heartbeats that a worker may miss before its first: it gets its memory then.
pub use shm::ring::HEARTBEATS_STARTING_MAX;

const _: () = assert!(
    HEARTBEATS_STARTING_MAX == 12 * HEARTBEATS_MISSED_MAX,
    "a worker gets a minute to start at the default of five seconds"
);

/// Default time without an answer after which a worker counts as stalled, in seconds:
/// [`HEARTBEATS_MISSED_MAX`] heartbeats.
pub const HEARTBEAT_SECONDS: u64 = 5;

/// Interval of a busy worker's load reports, in microseconds: Linux's scheduler averages the
/// utilisation of a core over a time of this order (PELT halves the weight of time 32 ms ago, and
/// drops it after 345 ms).
pub const LOAD_PERIOD_US: u64 = 250_000;
