//! The worker's handling of arriving frames.

use contract::limits::{FLOWS_TAKEN_MAX, FRAME_BYTES_MAX};
use contract::{Event, FlowId};
use netdev::{Frame, Port};
use wire::frame::{self, TcpPacket};

use crate::addresses::Addresses;
use crate::engine::{Clock, EVENTS_WAITING_MAX, Engine};
use crate::setup;

/// Frames taken from the port in one turn: few beside the packets that depart in one.
const FRAMES_MAX: usize = 64;

/// Most frames of no connection handed up in a second.
const FRAMES_UP_MAX: u32 = 1_000;

impl<P: Port> Engine<P> {
    /// True if frames are taken from the port: not while packets of splices wait for it, since each
    /// frame could add another waiting packet.
    pub(crate) fn receives(&self) -> bool {
        self.port.target().is_some() && !self.spliced.waits_for_port()
    }

    /// Takes frames from the port. True if there were any.
    pub(crate) fn receive(&mut self, clock: Clock<'_>) -> bool {
        if !self.receives() {
            return false;
        }
        let mut buffer = std::mem::take(&mut self.arrivals.buffer);
        let mut worked = false;
        for _ in 0..FRAMES_MAX {
            match self.port.receive_into(&mut buffer) {
                Ok(Some(frame)) => self.on_arrival(frame, clock),
                Ok(None) => break,
                Err(_) => {
                    self.counters.port_failures += 1;
                    break;
                }
            }
            worked = true;
            if self.spliced.waits_for_port() {
                break;
            }
        }
        self.arrivals.buffer = buffer;
        worked
    }

    fn on_arrival(&mut self, frame: Frame<'_>, clock: Clock<'_>) {
        self.counters.frames_received += 1;
        let bytes = frame.bytes;
        let Some(packet) = frame::parse_segment(bytes, frame.checksum_valid) else {
            return self.on_datagrams(frame, clock);
        };
        if !self.dispatch(&packet, bytes, clock) && self.hand_up_some(bytes, clock()) {
            self.counters.frames_handed_up += 1;
        }
    }

    /// Carries out FRAME. A frame of no connection that is no SYN to be answered is dropped: the
    /// connection has ended meanwhile, and the host, which gets the report, answers later frames.
    pub(crate) fn frame(&mut self, bytes: &[u8], clock: Clock<'_>) {
        self.counters.frames_taken += 1;
        let checksum_valid = true;
        let belongs = match frame::parse_segment(bytes, checksum_valid) {
            Some(packet) => self.dispatch(&packet, bytes, clock),
            None => self.on_datagram_frame(bytes, clock),
        };
        self.counters.frames_unknown += u64::from(!belongs);
    }

    /// Gives a segment to its connection, or answers a SYN. False if neither applies.
    fn dispatch(&mut self, packet: &TcpPacket<'_>, bytes: &[u8], clock: Clock<'_>) -> bool {
        let addresses = Addresses::of_arriving(packet);
        if let Some(leg) = self.spliced.leg_of(&addresses) {
            self.on_spliced_frame(leg, packet, clock);
        } else if let Some(key) = self.parted.key_of(&addresses) {
            self.on_parted_frame(key, packet, bytes, clock());
        } else {
            return setup::is_syn(packet) && self.on_syn(packet, bytes, clock());
        }
        true
    }

    /// Records that the worker has a flow: its frames may come to the port, if there is one.
    pub(crate) fn take_flow(&mut self, flow: FlowId) {
        if self.port.target().is_some() {
            self.arrivals.taken.push(flow);
        }
    }

    /// Reports the worker's new flows to the host, as far as it takes events. True if any was
    /// reported.
    pub(crate) fn report_taken(&mut self) -> bool {
        let mut worked = false;
        while self.arrivals.has_taken() && self.events.len() < EVENTS_WAITING_MAX {
            let count = self.arrivals.taken.len().min(FLOWS_TAKEN_MAX);
            let flows = self.arrivals.taken.drain(..count).collect();
            self.emit(Event::FlowsTaken { flows });
            worked = true;
        }
        worked
    }

    /// Hands a frame to the host, unless there were too many lately. True if so.
    pub(crate) fn hand_up_some(&mut self, bytes: &[u8], now_us: u64) -> bool {
        if !self.arrivals.handed_up.allows(now_us, FRAMES_UP_MAX) {
            self.counters.frames_dropped += 1;
            return false;
        }
        self.hand_up(bytes)
    }

    /// Hands a frame to the host. True unless the host has no room.
    pub(crate) fn hand_up(&mut self, bytes: &[u8]) -> bool {
        // Reports about connections must precede the frame.
        self.report_taken();
        self.report_ends();
        self.report_splices();
        let is_first = !self.has_reports();
        let bytes: Option<Box<[u8]>> = match bytes.len() <= FRAME_BYTES_MAX {
            true => Some(bytes.into()),
            false => frame::cut(bytes, FRAME_BYTES_MAX).map(Into::into),
        };
        match bytes {
            Some(bytes) if is_first && self.events.len() < EVENTS_WAITING_MAX => {
                self.emit(Event::Frame { bytes });
                true
            }
            _ => {
                self.counters.frames_dropped += 1;
                false
            }
        }
    }

    /// True if reports about connections are pending.
    pub(crate) fn has_reports(&self) -> bool {
        self.arrivals.has_taken() || self.parted.has_ends() || self.spliced.has_reports()
    }

    /// True if such reports, or packets of QUIC, are pending.
    pub(crate) fn has_reports_or_packets(&self) -> bool {
        self.has_reports() || self.receiving.has_ready()
    }
}
