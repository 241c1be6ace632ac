//! TCP without I/O (RFC 9293).
//!
//! Start at [`Connection`]: its documentation teaches its use. It may touch its own state and its
//! arguments; sockets, threads, and the clock of the operating system are the caller's. The same
//! code runs on either end of a connection, over real ports and in a simulation.
//!
//! What sets it apart from other stacks is the split: the stream that is sent consists of *real*
//! bytes and of *virtual* ones, ranges of objects that only the NIC stack can read. A transmission
//! is *issued* here and *departs* later, when the NIC stack has read it; RTO and round-trip time
//! count from the departure (IO-TCP §3.5).
//!
//! | A reader who looks for | finds it in |
//! |---|---|
//! | a side of TCP as a whole | `handshake/`, `sender/`, `receiver/`, `recovery/`, `congestion/` |
//! | the public interface | `connection` |
//! | ... its settings, its events | `config`, `event` |
//! | ... its per-connection changes: socket options | `options` |
//! | processing of a segment, clause by clause | `input` |
//! | ... the common segments, in one step | `fast_path` |
//! | output and its timing | `output`, `data` |
//! | ... the common case, in one step | `bulk_output` |
//! | ... data held back for more: TCP_CORK, MSG_MORE | `cork` |
//! | states | `state` |
//! | counters; the snapshot of a connection | `stats`; `info` |
//! | extents, their bound, data in flight | `send_queue`, `sndbuf`, `scoreboard` |
//! | lost SENDs and echoes, restarted NIC stacks | `undeparted` |
//! | loss and recovery as a whole; their state | `recovery`; `recovery::state` |
//! | ... with SACK: loss by time, at the tail; how much to send | `rack`, `tlp`, `prr` |
//! | ... limit on scans of the records in flight | `detection_budget` |
//! | ... without SACK: duplicates, NewReno | `fast_retransmit` |
//! | ... spurious loss: F-RTO, Eifel, D-SACK | `frto`, `undo` |
//! | selective acknowledgments, both ways | `sack` |
//! | congestion control | `congestion`, `cubic` with `hystart`, `bbr`, `newreno`; their names: `algorithm` |
//! | ... for transports that number packets, as QUIC does | `packets` |
//! | pacing: its state, its releases; delivery rate | `pacing`, `pacing::release`; `rate` |
//! | explicit congestion notification | `ecn` |
//! | RTO, round-trip time, window probes | `rto`, `rtt`, `min_rtt`, `persist` |
//! | silent peers | `keepalive`, `retry_limit` |
//! | received text, windows, acknowledgments | `rcv`, `rcv_autotune`, `reassembly`, `ack`, `quickack` |
//! | path MTU, ICMP errors | `pmtu`, `icmp` |
//! | timestamps and PAWS | `timestamps` |
//! | attacks: initial sequence numbers, challenge ACKs | `isn`, `challenge` |
//! | before the handshake is complete: SYN queue, SYN cookies, Fast Open | `half_open`, `syn_cookie`, `fast_open` |
//! | a connection at its end, continued elsewhere | `remainder` |
//! | a connection whose segments another stack joins with those of another | `join` |
//! | after the end, and outside of connections | `time_wait`, `reset` |
//! | sequence numbers, time, timers | `seq`, `time`, `timer` |
//! | tests: chance by a seed, a model of a bottleneck | `random`, `bottleneck` |
//!
//! [`Connection`] has an example; `examples/loopback.rs` is a download between two connections over
//! a lossy link.
//!
//! # Where it departs from the letter
//!
//! | Clause | Implementation and reason |
//! |---|---|
//! | RFC 9293 §3.10.1, LISTEN | belongs to the host; [`Connection::accept`] takes the SYN |
//! | RFC 9293 §3.10.4, CLOSE in SYN-SENT | FIN follows the handshake, so that queued data is delivered |
//! | RFC 9293 §3.10.5, ABORT: RST at SND.NXT | RST at the end of departed data, and at SND.UNA if different: SND.NXT includes data that has not left, and a peer accepts RST only at RCV.NXT (RFC 5961 §3.2) |
//! | RFC 9293 §3.10.5, ABORT in CLOSING and LAST-ACK: no RST | RST, if the peer may lack data, or FIN has not left: it would wait |
//! | RFC 9293 §3.10.7.4, first, in SYN-RECEIVED | a repeated SYN is answered with SYN,ACK: a bare ACK does not help a peer that has lost ours |
//! | RFC 9293 §3.10.7.4, window update | a newer SEG.ACK also counts as newer: a retransmission may carry it |
//! | RFC 9293 §3.8.5, urgent data | is text like any other (RFC 6093) |
//! | RFC 9293 §3.8.6.1, probes of one byte | are empty and below the window: they cost no read and do not break alignment |
//! | RFC 9293 §3.6.1, MSL of 2 minutes | 30 s, like everybody ([`Config::time_wait`]) |
//! | RFC 6298 §2.4, RTO of at least 1 s | [`Config::rto_min`] above the smoothed round-trip time |
//! | RFC 5681 §3.1 (4), half of FlightSize | half of the window, if that was used up (RFC 9438 §4.6): when one acknowledgment answers dozens of segments, less is in flight than was sent; a window that was not used counts by what is in flight |
//! | RFC 5681 §3.1, one segment if a SYN was lost | only if more than one had to be retransmitted (RFC 6928 §2): a single one may have been impatience |
//! | RFC 3465 §2.3, L = 2 in slow start; RFC 9406 §4.3, L = 8 without pacing | no limit, except after a timeout: receivers that merge packets acknowledge dozens at once, and would starve slow start |
//! | RFC 9406 §4.2, the delay alone | a train of acknowledgments also makes slow start conservative: where a round has just not filled the path, the next one fills the queue as well, and the delay tells too late |
//! | RFC 6582 §3.2 step 3, window after recovery | may exceed what is in flight by an initial window, not by one segment: that much is no burst, and a receiver that merges packets leaves little in flight |
//! | RFC 7661 §4.4, rate-limited flows | a window that is not used neither grows nor shrinks; after an idle RTO, RFC 5681 §4.1 |
//! | RFC 7323 §3.2, drop segments without timestamps | taken at RCV.NXT, and acknowledged before it: a path that strips the option would stall the connection |
//! | RFC 8985 §6.2 step 5, detection with each ACK | with thousands of records, postponed by 1 ms at most: a peer could make each ACK cost 20 µs |
//! | RFC 5961 §7, one counter for the machine | one for each connection: a shared one can be read by outsiders |
//! | RFC 1191 §3, MTUs down to 68 bytes | "too big" below 552 bytes is not believed: no link is so small, and it would multiply packets |
//! | RFC 1191 §6.3, RFC 8201 §5.2, an MTU for each destination | one for each connection: nothing that ICMP says about one reaches another |
//! | RFC 9293 §3.9.2.2, RFC 1122 §4.2.3.9, hard ICMP errors abort | only in SYN-SENT, and only for our SYN, but then soft errors as well (RFC 5461 §4.1, RFC 5927 §5). What is half-open takes little room and expires soon, and an attacker who has seen a SYN,ACK shall not be able to end it |
//! | RFC 6633 §3, source quench | is not even parsed |
//! | RFC 4821 §7.7, two timeouts | three, before a size is suspected: a path that fails does so for longer |
//! | RFC 2018 §8, forgetting SACKs after a timeout | only if the peer shows that it has dropped what it had (RFC 6675 §5.1) |
//! | RFC 6675 §4, DupThresh holes | bytes count, not holes: where small segments are lost, RACK's timer decides |
//! | RFC 8985 §6.2 step 4, three segments | more than two full segments' bytes |
//! | RFC 8985 §7.2, one segment in flight | less than two full segments: a receiver may delay its acknowledgment of these, too |
//! | RFC 8985 §7.2, no probes in recovery | one, in fast recovery, after the same silence: else a lost retransmission with nothing behind it costs a timeout |
//! | RFC 3708 §3, one D-SACK for each retransmission | as many bytes in D-SACKs as were sent again |
//! | RFC 4015 §3.2, the window after a spurious timeout | the algorithm's own ([`CongestionAlgorithm`]): what it was before |
//! | RFC 3168 §6.1.2, a marked window of one segment | the window is not reduced below its least; nothing waits for the retransmission timer |

#![forbid(unsafe_code)]

mod challenge;
mod config;
mod congestion;
mod connection;
mod ecn;
mod event;
mod handshake;
mod icmp;
mod info;
mod input;
mod join;
mod keepalive;
mod options;
mod pmtu;
mod random;
mod receiver;
mod recovery;
mod remainder;
mod reset;
mod retry_limit;
mod sender;
mod seq;
mod state;
mod stats;
mod time;
mod time_wait;
mod timer;
mod timestamps;

pub use config::{Config, EcnPolicy, Limits};
pub use congestion::algorithm::{CongestionAlgorithm, UnknownAlgorithm};
pub use congestion::packets::PacketCongestion;
pub use connection::Connection;
pub use event::{CloseReason, ConnectionEvent};
pub use handshake::fast_open::FastOpenCookies;
pub use handshake::half_open::{HalfOpen, HalfOpenReaction};
pub use handshake::isn::{IsnGenerator, TsOffsets, derive_key};
pub use handshake::syn_cookie::{SynCookie, SynCookies};
pub use info::{CaState, Info};
pub use join::{JoinNumbers, RejoinNumbers};
pub use keepalive::Keepalive;
pub use remainder::{Remainder, Stage};
pub use reset::reset_for;
pub use sender::output::Transmit;
pub use sender::send_queue::Piece;
pub use state::State;
pub use stats::{Samples, Stats};
pub use time::Instant;
pub use time_wait::TimeWait;
