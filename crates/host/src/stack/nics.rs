//! Reports of the NIC workers. The host does not trust them: it counts an unknown id, and an event
//! affects at most the connection that it names.

use std::mem::ManuallyDrop;

use contract::channel::{HostChannel, ReceiveError};
use contract::{Event, FlowId, SendId};
use netdev::Frame;
use tcp::Instant;

use super::Stack;
use crate::app::StreamId;
use crate::ground::workers::{Heard, Life};
use crate::nics::nic_stacks::NicRefusal;
use crate::tables::connections::{handle_of_send, transmission_of_send};
use crate::tcp::turns::queue_dirty;

/// A NIC stack has written invalid indices into a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelCorrupt {
    /// The worker whose channel it is.
    pub worker: usize,
}

impl Stack {
    /// NIC stack `nic` has joined or returned with these workers, and has no state.
    ///
    /// Returns an error if it had another number of workers before; then it is not used.
    ///
    /// # Panics
    /// If there is no such NIC stack, or it has no workers.
    pub fn on_nic_come(
        &mut self,
        now_us: u64,
        nic: usize,
        channels: Vec<HostChannel>,
    ) -> Result<(), NicRefusal> {
        let (ground, mut layers) = self.split();
        ground.on_nic_come(&mut layers, now_us, nic, channels)
    }

    /// NIC stack `nic` is gone. The host still reads its events that no other repeats, as in
    /// [`Stack::on_nic_restarted`]. Connections continue through others that have what they need,
    /// or wait for it to come back.
    ///
    /// # Panics
    /// If there is no such NIC stack.
    pub fn on_nic_lost(&mut self, now_us: u64, nic: usize) {
        let (ground, mut layers) = self.split();
        ground.on_nic_lost(&mut layers, now_us, nic);
    }

    /// A new worker, without state, has replaced an old one and listens on `channel`. The host
    /// still reads the events of the old one that no other repeats: tags of records, and the fate
    /// of splices and of connections parted with.
    ///
    /// Open files are opened again, under the same ids, and their connections wait for the answer.
    /// A file that is not the same version ends its connection: no response mixes two versions.
    /// SENDs that had not departed, as far as the host knows, are issued again; if one had, and
    /// only its echo is missing, the peer gets these bytes twice, which TCP allows for. None of
    /// this counts as loss. The new worker gets unacknowledged keys and records, with the known
    /// tags.
    ///
    /// # Panics
    /// If there is no such worker.
    pub fn on_nic_restarted(&mut self, now_us: u64, worker: usize, channel: HostChannel) {
        let (ground, mut layers) = self.split();
        ground.on_nic_restarted(&mut layers, now_us, worker, channel);
    }

    /// Notes that the NIC stack is on another machine. Its last events can be lost with the
    /// session, so only the event for it proves its end.
    ///
    /// # Panics
    /// If there is no such NIC stack.
    pub fn set_nic_elsewhere(&mut self, nic: usize) {
        self.ground.nic_stacks.set_elsewhere(nic);
    }

    /// NIC stack `nic` was asked to end, and its successor has started but is not in use yet. The
    /// host issues no more SENDs to `nic`, which would execute none.
    ///
    /// # Panics
    /// If there is no such NIC stack.
    pub fn on_nic_ending(&mut self, nic: usize) {
        for worker in self.ground.nic_stacks.workers(nic) {
            self.ground.workers[worker].life = Life::Ending;
            self.ground.workers[worker].setup = None;
        }
        self.tcp.steer(&mut self.ground);
    }

    /// NIC stack `nic` has ended: it sends nothing more, and all its events are in its rings. To be
    /// called before [`Stack::on_nic_lost`] or [`Stack::on_nic_come`]. Without proof of the end, do
    /// not call it: then connections that have sent records with unknown tags are reset, unless
    /// [`Event::Ended`] was the last event. On another machine, the end is unknown.
    ///
    /// # Panics
    /// If there is no such NIC stack.
    pub fn on_nic_ended(&mut self, now_us: u64, nic: usize) {
        self.tcp.on_nic_ended(&mut self.ground, now_us, nic);
    }

    /// Handles up to `budget` reports of each NIC worker; returns how many. An error means that a
    /// channel is unusable.
    pub fn on_channels(&mut self, now_us: u64, budget: usize) -> Result<usize, ChannelCorrupt> {
        let mut taken = 0;
        for worker in 0..self.ground.workers.len() {
            if !self.ground.workers[worker].is_there() {
                continue;
            }
            for _ in 0..budget {
                let nic = &mut self.ground.workers[worker];
                // A departure has nothing to drop, so the compiler need not check.
                let received = ManuallyDrop::new(nic.channel.receive());
                if let Ok(Some(Event::Departed {
                    send,
                    flow,
                    departed_us,
                })) = *received
                {
                    self.ground.counters.events_invalid += u64::from(nic.heard.on_event());
                    if !self.on_departed(now_us, worker, send, flow, departed_us) {
                        self.on_invalid_event(
                            worker,
                            &Event::Departed {
                                send,
                                flow,
                                departed_us,
                            },
                        );
                    }
                    taken += 1;
                    continue;
                }
                match ManuallyDrop::into_inner(received) {
                    Ok(Some(event)) => {
                        self.ground.counters.events_invalid += u64::from(nic.heard.on_event());
                        self.on_rare_event(now_us, worker, &event);
                    }
                    Ok(None) => break,
                    Err(ReceiveError::Malformed { .. }) => {
                        self.ground.counters.events_invalid += 1;
                        nic.heard = Heard::Garbled;
                    }
                    Err(ReceiveError::Corrupt) => return Err(ChannelCorrupt { worker }),
                }
                taken += 1;
            }
        }
        self.ground.counters.events += taken as u64;
        if taken > 0 {
            self.retry_waiting_room();
        }
        Ok(taken)
    }

    /// Handles an event that is no departure.
    #[inline(never)]
    fn on_rare_event(&mut self, now_us: u64, worker: usize, event: &Event) {
        if let Event::Frame { bytes } = event {
            return self.on_handed_up(now_us, bytes);
        }
        let (ground, mut layers) = self.split();
        if !ground.on_rare_event(&mut layers, now_us, worker, event) {
            self.on_invalid_event(worker, event);
        }
    }

    fn on_departed(
        &mut self,
        now_us: u64,
        worker: usize,
        send: SendId,
        flow: FlowId,
        departed_us: u64,
    ) -> bool {
        let Some(entry) = self.tcp.connections.by_stream_mut(StreamId(flow.0)) else {
            // The connection may have ended while the event was in transit.
            let departed_us = departed_us.min(now_us);
            let times = (now_us, departed_us);
            return self
                .quic
                .on_departed(&mut self.ground, times, worker, send, flow);
        };
        let handle = entry.handle();
        if entry.nic.worker != worker {
            // The connection may have moved, after the peer had acknowledged everything; this is
            // the echo of some of it.
            return self.ground.may_have_moved();
        }
        if handle_of_send(send.0) != Some(handle) {
            return false;
        }
        self.ground.sends_departed += 1;
        if self.ground.config.departs_at_issue && entry.nic.sends_outstanding > 0 {
            entry.nic.sends_outstanding -= 1;
            self.ground.sends_outstanding -= 1;
        }
        let transmission = transmission_of_send(send, entry.last_transmission);
        // The other side's clock must not lie in the future.
        entry
            .tcp
            .on_departed(transmission, Instant::from_us(departed_us.min(now_us)));
        queue_dirty(&mut self.tcp.dirty, entry);
        true
    }

    #[cold]
    fn on_invalid_event(&mut self, worker: usize, event: &Event) {
        self.ground.counters.events_invalid += 1;
        tracing::debug!(worker, ?event, "an event that makes no sense");
    }

    /// Handles a frame that a NIC worker has handed up.
    pub(crate) fn on_handed_up(&mut self, now_us: u64, bytes: &[u8]) {
        self.ground.is_handed_up = true;
        self.on_frame(
            now_us,
            Frame {
                bytes,
                checksum_valid: true,
                segment_bytes: None,
            },
        );
        self.ground.is_handed_up = false;
    }
}
