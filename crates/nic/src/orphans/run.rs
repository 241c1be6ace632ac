//! The worker's end of connections when the host process has died.

use contract::Command;
use contract::channel::NicChannel;
use netdev::{Offload, Port, SendError};

use super::ends::{Orphan, OrphanPacket};
use crate::engine::{Clock, Engine};
use crate::packet;
use crate::slab::Key;

impl<P: Port> Engine<P> {
    /// Prepares the end of all connections after the host process has died. Of the commands in the
    /// ring, only those that end flows are executed. Returns the number of connections.
    #[cold]
    #[inline(never)]
    pub(crate) fn orphan_all(&mut self, channel: &mut NicChannel, clock: Clock<'_>) -> usize {
        while let Ok(Some(command)) = channel.receive() {
            let is_end = match &command {
                Command::Acked { last, .. } => *last,
                Command::PartGone { .. } => true,
                _ => false,
            };
            if is_end {
                self.command(&command, clock);
            }
        }
        let flows = self.flow_keys.values().copied().map(Orphan::Flow);
        let idle = self.orphans.idle.keys().copied().map(Orphan::Idle);
        let parted = self.parted.keys().map(Orphan::Parted);
        let spliced = self.spliced.keys().map(Orphan::Spliced);
        let all = flows.chain(idle).chain(parted).chain(spliced).collect();
        self.orphans.waiting = all;
        self.orphans.waiting.len()
    }

    /// Ends at most `count_max` connections, or repeats as many packets, until the port is busy.
    /// True if some are left.
    #[cold]
    #[inline(never)]
    pub(crate) fn end_orphans(&mut self, count_max: usize, clock: Clock<'_>) -> bool {
        for _ in 0..count_max {
            if !self.send_orphan_packets() {
                return true;
            }
            match self.orphans.waiting.pop_front() {
                Some(orphan) => self.end_orphan(orphan, clock),
                None => match self.orphans.repeats.pop_front() {
                    Some(packet) => self.orphans.packets.push_back(packet),
                    None => return false,
                },
            }
        }
        let orphans = &self.orphans;
        let is_any_left = !orphans.waiting.is_empty() || !orphans.repeats.is_empty();
        !self.send_orphan_packets() || is_any_left
    }

    fn end_orphan(&mut self, orphan: Orphan, clock: Clock<'_>) {
        match orphan {
            Orphan::Flow(key) => self.end_flow(key),
            Orphan::Idle(flow) => {
                if let Some(idle) = self.orphans.take(flow) {
                    self.counters.orphans_reset += 1;
                    let resets = idle.departed.resets(idle.acked_offset);
                    self.orphans.push(resets);
                }
            }
            Orphan::Parted(key) => {
                let packets = self.end_parted(key, clock());
                self.counters.orphans_reset += u64::from(!packets.is_empty());
                self.orphans.push(packets);
            }
            Orphan::Spliced(key) => {
                let packets = self.spliced.resets(key);
                self.counters.orphans_reset += 2;
                self.orphans.push(packets);
            }
        }
    }

    /// Queues the last packets of connections once more.
    #[cold]
    #[inline(never)]
    pub(crate) fn repeat_orphans(&mut self) {
        self.orphans.repeat();
    }

    #[cold]
    #[inline(never)]
    fn end_flow(&mut self, key: Key) {
        let Some(flow) = self.flows.get_mut(key) else {
            return;
        };
        if let Some(departed) = flow.departed() {
            self.counters.orphans_reset += 1;
            let resets = departed.resets(flow.acked_offset);
            self.orphans.push(resets);
        }
        if let Some((last, packet)) = flow.quic.as_deref_mut().and_then(|quic| quic.close())
            && let Some((header, udp_offset, ipv6)) = last.header(packet.len())
        {
            self.counters.orphans_closed += 1;
            self.orphans.packets.push_back(OrphanPacket::Datagram {
                header,
                offload: Offload::Udp {
                    udp_offset: udp_offset as u16,
                    payload_bytes: packet.len() as u16,
                    ipv6,
                },
                payload: packet,
            });
        }
    }

    /// Sends packets until the port is busy. False if it is.
    #[cold]
    #[inline(never)]
    fn send_orphan_packets(&mut self) -> bool {
        while let Some(packet) = self.orphans.packets.front() {
            let sent = packet.send(&mut self.port);
            if let Err(SendError::WouldBlock) = sent {
                return false;
            }
            packet::has_left(&sent, &mut self.counters);
            if let Some(packet) = self.orphans.packets.pop_front() {
                self.orphans.on_sent(packet);
            }
        }
        true
    }
}
