//! Connections that the host stack parts with: the NIC stack runs their end.
//!
//! A connection that its application has closed, without unread data, and whose data the peer has
//! acknowledged, has only its end before it: FIN, the answer to the peer's, TIME-WAIT. With PART
//! the host stack hands that over and frees the connection. It keeps only the state to forward the
//! connection's frames, with FRAME, and to part with it once more: a NIC stack's knowledge of the
//! connection is soft state like all else.
//!
//! ```text
//!  PART ──▶ answered with part refused: the connection is the host's again
//!       └─▶ FRAME, FRAME, … ──▶ part ended: nothing is left of it on either side
//!  PARTGONE: the host takes it back, or forgets it; nothing answers
//! ```
//!
//! PART may be repeated: a NIC stack that has the flow continues with its own state. A replacement
//! gets PARTs that may be older than packets that the peer has seen since. It sends FIN once more
//! then, and learns the peer's sequence numbers from the answer.

use crate::ids::FlowId;
use crate::limits::{HEADER_BYTES_MAX, PART_WINDOW_BYTES_MAX, WINDOW_SHIFT_MAX};

/// Where a connection is when the host stack parts with it (RFC 9293 §3.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PartStage {
    /// Our FIN is due; the peer has not closed.
    FinWait1 = 1,
    /// Our FIN is acknowledged; the peer has not closed.
    FinWait2 = 2,
    /// Our FIN is due; the peer has closed after us.
    Closing = 3,
    /// Our FIN is due; the peer has closed before us.
    LastAck = 4,
}

/// The timestamps option of a connection that uses it (RFC 7323 §3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartTimestamps {
    /// TSval at [`Part::issued_us`]; it counts milliseconds.
    pub value: u32,
    /// TS.Recent.
    pub recent: u32,
}

/// Decisions of the host stack for all its connections, or for this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartLimits {
    /// RTO before a round trip was measured, in milliseconds.
    pub rto_initial_ms: u32,
    /// Least distance of the RTO from the smoothed round-trip time, in milliseconds.
    pub rto_min_ms: u32,
    /// Bound of the RTO, in milliseconds.
    pub rto_max_ms: u32,
    /// Time after the first timeout until giving up, in milliseconds; 0 for never.
    pub user_timeout_ms: u32,
    /// Length of TIME-WAIT, in milliseconds.
    pub time_wait_ms: u32,
    /// Silence of the peer in FIN-WAIT-2 until giving up, in milliseconds; 0 for never.
    pub fin_wait_2_ms: u32,
    /// Most answers to unacceptable segments ...
    pub challenge_acks_max: u16,
    /// ... per interval of this length, in milliseconds (RFC 5961 §7).
    pub challenge_acks_interval_ms: u32,
    /// Retransmissions of FIN until giving up.
    pub fin_retries: u8,
}

/// PART: the NIC stack runs the end of a connection. Answered with `PartRefused`, or at its end
/// with `PartEnded`; before that with `FlowsTaken`, by a worker that has a port of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<'a> {
    /// The host's name for the connection. Its SENDs have departed, and an ACKD with `last` ends
    /// the flow of this name; the parted connection is separate from that flow.
    pub flow: FlowId,
    /// When the host issued the command: microseconds of its monotonic clock.
    pub issued_us: u64,
    /// State of the connection.
    pub stage: PartStage,
    /// The peer waits for an acknowledgment.
    pub owes_ack: bool,
    /// Sequence number of our FIN, sent or not.
    pub fin_seq: u32,
    /// RCV.NXT.
    pub rcv_nxt: u32,
    /// RCV.WND, in bytes.
    pub rcv_window_bytes: u32,
    /// Rcv.Wind.Shift.
    pub rcv_shift: u8,
    /// SND.WND, in bytes.
    pub snd_window_bytes: u32,
    /// The largest window that the peer has offered, in bytes (RFC 5961 §5.2).
    pub snd_window_bytes_max: u32,
    /// Snd.Wind.Shift.
    pub snd_shift: u8,
    /// Payload of the largest packet of the link, options not counted. Not zero.
    pub mss: u16,
    /// The connection's timestamps, if it uses them.
    pub timestamps: Option<PartTimestamps>,
    /// Smoothed round-trip time and its variation, in microseconds; zero before any measurement.
    pub srtt_us: u32,
    /// See `srtt_us`.
    pub rttvar_us: u32,
    /// How often the RTO has been doubled.
    pub backoff: u8,
    /// Further decisions of the host.
    pub limits: PartLimits,
    /// Ethernet, IP and TCP header of its packets, without options; at most
    /// [`HEADER_BYTES_MAX`]. Of the TCP header only the ports count.
    pub header: &'a [u8],
}

/// Why a NIC stack does not take a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PartRefusal {
    /// It has as many connections as it can.
    Full = 50,
    /// The packet header is not Ethernet, IPv4 or IPv6, and TCP.
    BadHeader = 51,
    /// Another flow has these addresses and ports.
    AddressesInUse = 52,
}

/// How a connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PartEndReason {
    /// In order: both sides have closed, and TIME-WAIT is over where there is one.
    Finished = 1,
    /// The peer has reset it.
    Reset = 2,
    /// The peer did not answer.
    TimedOut = 3,
    /// The peer has sent data that no application reads, and was reset.
    Aborted = 4,
    /// It was in TIME-WAIT, and a SYN takes its place, which follows as `Frame` (RFC 6191).
    Replaced = 5,
}

/// The end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartEnd {
    /// The flow in its PART.
    pub flow: FlowId,
    /// How it ended.
    pub reason: PartEndReason,
}

impl Part<'_> {
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        if self.header.len() > HEADER_BYTES_MAX {
            return Err("a header has at most HEADER_BYTES_MAX bytes");
        }
        if self.mss == 0 {
            return Err("mss is not zero");
        }
        if self.rcv_shift > WINDOW_SHIFT_MAX || self.snd_shift > WINDOW_SHIFT_MAX {
            return Err("windows are scaled by at most WINDOW_SHIFT_MAX bits");
        }
        let windows = [
            self.rcv_window_bytes,
            self.snd_window_bytes,
            self.snd_window_bytes_max,
        ];
        if windows.iter().any(|bytes| *bytes > PART_WINDOW_BYTES_MAX) {
            return Err("a window has at most PART_WINDOW_BYTES_MAX bytes");
        }
        Ok(())
    }
}
