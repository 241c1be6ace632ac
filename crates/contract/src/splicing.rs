//! Splices: two connections of the host stack that the NIC stack joins.
//!
//! Packets that arrive on one leg leave on the other, translated: addresses, ports, sequence
//! numbers, timestamps, window scale. From SPLICE on the two peers acknowledge each other's data;
//! no TCP of ours is between them. SPLICE therefore comes when both legs are quiet: all bytes
//! received on one were sent on the other and acknowledged. The constants of the translation are
//! the numbers of that moment; a NIC stack learns everything else from the frames that pass.
//!
//! ```text
//!  SPLICE ──▶ answered with splice refused: the host goes on copying
//!         └─▶ FRAME, FRAME, … ──▶ splice progress … ──▶ splice ended
//!         └─▶ flows taken: from now on a packet filter may give frames to the worker's own port
//!  SPLICEMSS ──▶ answered with splice mss reduced: packets to a peer fit its path
//!  UNSPLICE ──▶ answered with unspliced: the host goes on copying, from these numbers
//!           └─▶ or with splice ended, if it ends before
//! ```
//!
//! The legs of a splice are numbered: bytes of leg 0 are those that its peer sends.
//!
//! A NIC stack's knowledge of a splice is soft state. A replacement gets SPLICE again, with the
//! numbers of the join, and learns the rest from frames.

use crate::ids::FlowId;
use crate::limits::{HEADER_BYTES_MAX, PART_WINDOW_BYTES_MAX, WINDOW_SHIFT_MAX};

/// The timestamps of a leg that uses them (RFC 7323 §3), at the join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpliceTimestamps {
    /// The last TSval sent to the peer.
    pub value: u32,
    /// TS.Recent.
    pub recent: u32,
}

/// One of the two connections, at the join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpliceLeg<'a> {
    /// RCV.NXT.
    pub rcv_nxt: u32,
    /// SND.NXT, which is SND.UNA.
    pub snd_nxt: u32,
    /// SND.WND, in bytes.
    pub snd_window_bytes: u32,
    /// RCV.WND, in bytes: the peer may have sent this much, which the other peer does not accept.
    pub rcv_window_bytes: u32,
    /// Snd.Wind.Shift.
    pub snd_shift: u8,
    /// Rcv.Wind.Shift.
    pub rcv_shift: u8,
    /// Largest payload of a packet to this peer, in bytes: options that all packets have are
    /// counted, SACK blocks are not. Not zero.
    pub mss: u16,
    /// The peer takes SACK blocks (RFC 2018).
    pub sack: bool,
    /// ECN was negotiated (RFC 3168).
    pub ecn: bool,
    /// Sequence number behind the FIN of the peer, if one has been seen since the join.
    pub fin_end: Option<u32>,
    /// If the connection uses them. Both legs do, or none.
    pub timestamps: Option<SpliceTimestamps>,
    /// Ethernet, IP and TCP header of packets to the peer, without options; at most
    /// [`HEADER_BYTES_MAX`]. Of the TCP header only the ports count.
    pub header: &'a [u8],
}

/// SPLICE: join two connections. Answered with `SpliceRefused`, or at its end with `SpliceEnded` or
/// `Unspliced`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Splice<'a> {
    /// The host's name for the splice: the flow of leg 0.
    pub flow: FlowId,
    /// The two connections.
    pub legs: [SpliceLeg<'a>; 2],
    /// Another NIC stack has had the splice since the join, or this one: if it still has the
    /// splice, its own state counts.
    pub is_again: bool,
    /// Bytes of each leg that have passed since the join, as far as the host knows.
    pub passed_bytes: [u64; 2],
    /// Time without passing bytes after which the splice ends, in milliseconds; 0 for never.
    pub idle_ms: u32,
    /// Time after which the splice ends, in milliseconds; 0 for never.
    pub life_ms: u32,
}

/// Request of UNSPLICE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum UnspliceKind {
    /// Returns the two connections to the host. A splice of which a peer has closed its direction
    /// stays until its end.
    Return = 1,
    /// Both peers are reset.
    Abort = 2,
}

/// Why a NIC stack does not take a splice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SpliceRefusal {
    /// It has as many splices as it can.
    Full = 60,
    /// A packet header is not Ethernet, IPv4 or IPv6, and TCP.
    BadHeader = 61,
    /// Another connection has these addresses and ports.
    AddressesInUse = 62,
}

/// How a splice has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SpliceEndReason {
    /// Both peers have closed, and acknowledged each other's FIN.
    Finished = 1,
    /// The peer of leg 0 has sent RST.
    ResetByFirst = 2,
    /// The peer of leg 1 has sent RST.
    ResetBySecond = 3,
    /// No byte has passed for too long. Both peers were reset.
    Idle = 4,
    /// It has been there for too long. Both peers were reset.
    Overdue = 5,
    /// After UNSPLICE, the peers did not acknowledge the passed bytes in time, and were reset.
    NotReturned = 6,
    /// The host requested it. Both peers were reset.
    Aborted = 7,
}

/// State of one of the two connections when the NIC stack has finished with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpliceNumbers {
    /// SND.NXT.
    pub snd_nxt: u32,
    /// RCV.NXT.
    pub rcv_nxt: u32,
    /// SND.WND, in bytes.
    pub snd_window_bytes: u32,
    /// RCV.WND, in bytes, as the peer knows it.
    pub rcv_window_bytes: u32,
    /// The last TSval sent to the peer; zero without timestamps.
    pub ts_value: u32,
    /// TS.Recent; zero without timestamps.
    pub ts_recent: u32,
}

/// Progress of a splice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpliceProgress {
    /// The flow in its SPLICE.
    pub flow: FlowId,
    /// Bytes of each leg, since the join.
    pub passed_bytes: [u64; 2],
    /// True if the leg's FIN has passed behind these bytes.
    pub has_finished: [bool; 2],
}

/// Final state of a splice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpliceOutcome {
    /// The flow in its SPLICE.
    pub flow: FlowId,
    /// Bytes of each leg, since the join.
    pub passed_bytes: [u64; 2],
    /// State of each leg.
    pub legs: [SpliceNumbers; 2],
}

impl Splice<'_> {
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        for leg in &self.legs {
            if leg.header.len() > HEADER_BYTES_MAX {
                return Err("a header has at most HEADER_BYTES_MAX bytes");
            }
            if leg.mss == 0 {
                return Err("mss is not zero");
            }
            if leg.rcv_shift > WINDOW_SHIFT_MAX || leg.snd_shift > WINDOW_SHIFT_MAX {
                return Err("windows are scaled by at most WINDOW_SHIFT_MAX bits");
            }
            let windows = [leg.snd_window_bytes, leg.rcv_window_bytes];
            if windows.iter().any(|bytes| *bytes > PART_WINDOW_BYTES_MAX) {
                return Err("a window has at most PART_WINDOW_BYTES_MAX bytes");
            }
        }
        let [first, second] = &self.legs;
        if first.timestamps.is_some() != second.timestamps.is_some() {
            return Err("both legs have timestamps, or none");
        }
        if self.passed_bytes.iter().any(|bytes| *bytes >= 1 << 62) {
            return Err("fewer than 2^62 bytes have passed");
        }
        Ok(())
    }
}
