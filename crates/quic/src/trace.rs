//! The trace of a connection, packet by packet. Connections are traced only on request.
//!
//! | File | Contents |
//! |---|---|
//! | this | the events, and the trace of one connection |
//! | `frames` | the frames of a plaintext |
//! | `ledger` | packets in flight, and which of them are lost |

mod frames;
mod ledger;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tcp::Instant;

pub use self::frames::TracedFrame;
use self::ledger::Ledger;
pub(crate) use self::ledger::Losses;
use crate::types::{CloseReason, Handle};

/// An event of a traced connection.
#[derive(Clone, Debug, PartialEq)]
pub struct Traced {
    /// The connection.
    pub connection: Handle,
    /// When it happened.
    pub at: Instant,
    /// What happened.
    pub event: TraceEvent,
}

/// Events of a connection, by their names in draft-ietf-quic-qlog-quic-events.
#[derive(Clone, Debug, PartialEq)]
pub enum TraceEvent {
    /// The trace begins.
    Started {
        /// The peer.
        remote: SocketAddr,
        /// The address at which it reaches this side.
        local_ip: Option<IpAddr>,
        /// The connection ID that the client chose for its first packet; `None` if the connection
        /// is older than its trace.
        original_id: Option<Vec<u8>>,
    },
    /// Transport parameters (RFC 9000 §18): ids and values, without the stateless reset token.
    Parameters {
        /// They are from this side.
        is_local: bool,
        /// In the order as sent.
        parameters: Vec<(u64, Vec<u8>)>,
    },
    /// A packet got its number and is about to be sent.
    Sent(TracedPacket),
    /// A packet was opened.
    Received(TracedPacket),
    /// A packet is declared lost by the time threshold (RFC 9002 §6.1.2).
    Lost {
        /// The kind of packet.
        packet_type: PacketType,
        /// Its number.
        number: u64,
        /// It was an MTU probe, whose loss is no sign of congestion.
        is_mtu_probe: bool,
    },
    /// Recovery metrics have changed.
    Metrics(Metrics),
    /// The state of congestion control has changed.
    Congestion(CongestionState),
    /// Both sides use new 1-RTT keys from here on.
    KeyUpdated {
        /// Counts updates: the first is 1.
        generation: u32,
    },
    /// The connection is over.
    Closed(CloseReason),
}

/// The kind of a packet. Each has its own packet number space, except that 0-RTT packets share that
/// of 1-RTT packets (RFC 9000 §12.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketType {
    /// Initial
    Initial,
    /// Handshake
    Handshake,
    /// 1-RTT
    OneRtt,
    /// 0-RTT, which only clients send
    ZeroRtt,
}

/// A packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedPacket {
    /// Its kind.
    pub packet_type: PacketType,
    /// Its number, in full.
    pub number: u64,
    /// Its length with header and tag, in bytes.
    pub bytes: usize,
    /// Its frames, up to an unknown one. Empty if a NIC stack opened the packet and removed its ACK
    /// frame, which `bytes` does not count either: a later packet acknowledges the same.
    pub frames: Vec<TracedFrame>,
}

/// The state of congestion control (RFC 9002 §7.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CongestionState {
    /// The window is below `ssthresh`, or there is none.
    SlowStart,
    /// The window has reached `ssthresh`.
    Avoidance,
    /// The connection recovers from a loss.
    Recovery,
}

/// Recovery metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metrics {
    /// Smoothed round-trip time.
    pub smoothed_rtt: Duration,
    /// The shortest round-trip time.
    pub min_rtt: Duration,
    /// The congestion window, in bytes.
    pub congestion_window: u64,
    /// Slow-start threshold, in bytes; `None` before the first congestion event.
    pub ssthresh: Option<u64>,
    /// Bytes in flight, if the trace knows all packets in flight.
    pub bytes_in_flight: Option<u64>,
    /// Bytes per second, if packets are paced.
    pub pacing_rate: Option<u64>,
}

/// The trace of one connection, shared by its keys and its endpoint.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    events: Vec<TraceEvent>,
    ledger: Ledger,
    /// The key of the last packet sent.
    generation: u32,
    has_remote_parameters: bool,
    metrics: Option<Metrics>,
    congestion: Option<CongestionState>,
}

impl Trace {
    /// A trace of an existing connection: `generation` is its key's, and it has assigned all 1-RTT
    /// packet numbers below `next_number`.
    pub(crate) fn amid(generation: u32, next_number: u64) -> Self {
        Self {
            generation,
            ledger: Ledger::amid(next_number),
            ..Self::default()
        }
    }

    pub(crate) fn push(&mut self, event: TraceEvent) {
        self.events.push(event);
    }

    /// A packet is about to be sent, with its length including header and tag.
    pub(crate) fn on_sent(
        &mut self,
        (packet_type, number): (PacketType, u64),
        bytes: usize,
        plaintext: &[u8],
    ) {
        let frames = frames::parse(plaintext);
        self.ledger.on_sent(packet_type, number, bytes, &frames);
        self.push(TraceEvent::Sent(TracedPacket {
            packet_type,
            number,
            bytes,
            frames,
        }));
    }

    /// Later packets are sealed with this key.
    pub(crate) fn on_key(&mut self, generation: u32) {
        if generation != self.generation {
            self.generation = generation;
            self.push(TraceEvent::KeyUpdated { generation });
        }
    }

    /// A packet was opened, with its length including header and tag.
    pub(crate) fn on_received(
        &mut self,
        (packet_type, number): (PacketType, u64),
        bytes: usize,
        plaintext: &[u8],
    ) {
        let frames = frames::parse(plaintext);
        self.ledger.on_received(packet_type, &frames);
        self.push(TraceEvent::Received(TracedPacket {
            packet_type,
            number,
            bytes,
            frames,
        }));
    }

    /// Transport parameters, in encoded form.
    pub(crate) fn on_parameters(&mut self, is_local: bool, encoded: &[u8]) {
        if !is_local && std::mem::replace(&mut self.has_remote_parameters, true) {
            return;
        }
        let parameters = frames::parameters(encoded);
        self.push(TraceEvent::Parameters {
            is_local,
            parameters,
        });
    }

    /// Notes the current losses, recovery metrics and congestion state.
    pub(crate) fn on_state(
        &mut self,
        now: Instant,
        losses: Losses,
        mut metrics: Metrics,
        congestion: CongestionState,
    ) {
        let lost = self.ledger.on_losses(now, losses, metrics.smoothed_rtt);
        for (packet_type, number, is_mtu_probe) in lost {
            self.push(TraceEvent::Lost {
                packet_type,
                number,
                is_mtu_probe,
            });
        }
        metrics.bytes_in_flight = self.ledger.bytes_in_flight();
        if self.metrics != Some(metrics) {
            self.metrics = Some(metrics);
            self.push(TraceEvent::Metrics(metrics));
        }
        if self.congestion != Some(congestion) {
            self.congestion = Some(congestion);
            self.push(TraceEvent::Congestion(congestion));
        }
    }

    /// Excludes losses from before the trace.
    pub(crate) fn set_losses(&mut self, losses: Losses) {
        self.ledger.set_losses(losses);
    }

    pub(crate) fn take(&mut self) -> Vec<TraceEvent> {
        std::mem::take(&mut self.events)
    }
}
