//! Handles arriving datagrams.

use contract::Event;
use contract::limits::QUIC_RECEIVED_BYTES_MAX;
use netdev::{Frame, Port};
use wire::datagram::{self, DatagramHeader, UdpPacket};

use super::HELD_BYTES_MAX;
use super::batch::{Meta, Path};
use super::open::has_short_header;
use super::receiver::Accepted;
use crate::engine::{Clock, EVENTS_WAITING_MAX, Engine};
use crate::slab::Key;

impl<P: Port> Engine<P> {
    /// Handles a frame from the port that is not TCP: opens its datagrams, and hands the others up
    /// as frames.
    #[cold]
    #[inline(never)]
    pub(crate) fn on_datagrams(&mut self, frame: Frame<'_>, clock: Clock<'_>) {
        let Ok(Some(packet)) = datagram::parse(frame.bytes, frame.checksum_valid) else {
            self.counters.frames_dropped += 1;
            return;
        };
        let each = frame.segment_bytes.map_or(usize::MAX, |it| it.get().into());
        if packet.payload.len() <= each {
            if !self.take_datagram(&packet, packet.payload, clock()) {
                self.hand_up_datagram(frame.bytes);
            }
            return;
        }
        for payload in packet.payload.chunks(each) {
            if !self.take_datagram(&packet, payload, clock()) {
                let header = DatagramHeader {
                    source_mac: packet.source_mac,
                    destination_mac: packet.destination_mac,
                    source: packet.source,
                    destination: packet.destination,
                    ecn: packet.ecn,
                };
                if let Some(frame) = header.to_frame(payload) {
                    self.hand_up_datagram(&frame);
                }
            }
        }
    }

    /// The same for FRAME. False if the frame is not a datagram.
    #[cold]
    #[inline(never)]
    pub(crate) fn on_datagram_frame(&mut self, bytes: &[u8], clock: Clock<'_>) -> bool {
        let Ok(Some(packet)) = datagram::parse(bytes, true) else {
            return false;
        };
        if !self.take_datagram(&packet, packet.payload, clock()) {
            self.hand_up_datagram(bytes);
        }
        true
    }

    /// The host opens the datagrams that the worker cannot.
    fn hand_up_datagram(&mut self, frame: &[u8]) {
        // Earlier packets go up first.
        self.report_received();
        if self.hand_up(frame) {
            self.counters.quic_frames_handed_up += 1;
        }
    }

    /// True if the datagram needs no more: it is opened, a duplicate, or dropped for lack of room.
    fn take_datagram(&mut self, packet: &UdpPacket<'_>, payload: &[u8], now_us: u64) -> bool {
        let is_short = has_short_header(payload) && payload.len() <= QUIC_RECEIVED_BYTES_MAX;
        let found = is_short.then(|| self.receiving.names.find(&payload[1..]));
        let Some((id, key)) = found.flatten() else {
            return false;
        };
        let Some(receiver) = self
            .flows
            .get_mut(key)
            .and_then(|flow| flow.quic.as_deref_mut()?.receiver.as_deref_mut())
        else {
            return false;
        };
        let Some(unprotected) = receiver.unprotect(payload, id.as_bytes().len()) else {
            return false;
        };
        let number = unprotected.number;
        if receiver.has_seen(number) {
            self.counters.quic_packets_duplicate += 1;
            return true;
        }
        let mut scratch = std::mem::take(&mut self.receiving.scratch);
        scratch.clear();
        scratch.extend_from_slice(payload);
        let path = Path {
            generation: receiver.generation(),
            id,
            remote: packet.source,
            local: packet.destination.ip(),
        };
        let meta = Meta {
            arrived_us: now_us,
            first: unprotected.first,
            ecn: packet.ecn.mark(0),
        };
        let opened = receiver.open(&unprotected, &mut scratch);
        let is_opened = opened.is_some();
        if let Some(plaintext) = opened {
            self.accept_packet(key, path, number, meta, plaintext);
        }
        self.receiving.scratch = scratch;
        is_opened
    }

    /// Accepts an authentic packet that is no duplicate.
    fn accept_packet(&mut self, key: Key, path: Path, number: u64, meta: Meta, plaintext: &[u8]) {
        self.counters.quic_packets_opened += 1;
        let receiver = self.receiver(key);
        if receiver.is_some_and(|receiver| receiver.is_elsewhere(&path)) {
            self.release_received(key);
        }
        let is_full = self.receiving.bytes + plaintext.len() > HELD_BYTES_MAX;
        let takes_events = self.events.len() < EVENTS_WAITING_MAX;
        let Some(receiver) = self.receiver(key) else {
            return;
        };
        if is_full && !takes_events {
            // Dropped, like frames on a link whose receiver is full.
            self.counters.frames_dropped += 1;
            return;
        }
        if receiver.is_elsewhere(&path) {
            receiver.set_path(path);
        }
        let (bytes, due_us) = (receiver.bytes(), receiver.due_us);
        let accepted = receiver.accept(number, meta, plaintext, !is_full);
        let (bytes_now, due_now_us) = (receiver.bytes(), receiver.due_us);
        let becomes_ready = receiver.becomes_ready();
        self.counters.quic_packets_held += u64::from(accepted == Accepted::Held);
        let receiving = &mut self.receiving;
        receiving.bytes = receiving.bytes + bytes_now - bytes;
        receiving.timers.change(key, due_us, due_now_us);
        if becomes_ready {
            receiving.ready.push(key);
        }
    }

    /// Gives up gaps that have timed out. True if there were any.
    #[inline]
    pub(crate) fn on_received_time(&mut self, clock: Clock<'_>) -> bool {
        match self.receiving.next_us() {
            Some(due_us) if due_us <= clock() => self.give_up_gaps(clock()),
            _ => false,
        }
    }

    #[cold]
    #[inline(never)]
    fn give_up_gaps(&mut self, now_us: u64) -> bool {
        let mut worked = false;
        while let Some(key) = self.receiving.timers.take_due(now_us) {
            worked = true;
            let Some(receiver) = self.receiver(key) else {
                continue;
            };
            let gaps = receiver.give_up(now_us);
            let due_us = receiver.due_us;
            let becomes_ready = receiver.becomes_ready();
            self.counters.quic_gaps_timed_out += gaps;
            let receiving = &mut self.receiving;
            receiving
                .timers
                .change(key, crate::timers::NEVER_US, due_us);
            if becomes_ready {
                receiving.ready.push(key);
            }
        }
        worked
    }

    /// Hands ready packets to the host, as far as it takes events. True if any went up.
    #[inline]
    pub(crate) fn report_received(&mut self) -> bool {
        self.receiving.has_ready() && self.report_ready()
    }

    #[cold]
    #[inline(never)]
    fn report_ready(&mut self) -> bool {
        let mut worked = false;
        while self.events.len() < EVENTS_WAITING_MAX
            && let Some(key) = self.receiving.ready.pop()
        {
            self.hand_up_batch(key);
            worked = true;
        }
        worked
    }

    /// Releases all packets of a flow to the host.
    pub(super) fn release_received(&mut self, key: Key) {
        let Some(receiver) = self.receiver(key) else {
            return;
        };
        let due_us = receiver.due_us;
        receiver.release();
        let is_ready = std::mem::take(&mut receiver.is_ready);
        self.receiving.timers.remove(key, due_us);
        if is_ready {
            self.receiving.ready.retain(|ready| *ready != key);
        }
        self.hand_up_batch(key);
    }

    fn hand_up_batch(&mut self, key: Key) {
        let Some(flow) = self.flows.get_mut(key) else {
            return;
        };
        let quic = flow.quic.as_deref_mut();
        let Some(receiver) = quic.and_then(|quic| quic.receiver.as_deref_mut()) else {
            return;
        };
        receiver.is_ready = false;
        let bytes = receiver.bytes();
        let events = &mut self.events;
        let coalesced = receiver.take_batch(flow.id, |received| {
            events.push_back(Event::QuicReceived(Box::new(received)));
        });
        self.receiving.bytes -= bytes - receiver.bytes();
        self.counters.quic_acks_coalesced += coalesced;
    }
}
