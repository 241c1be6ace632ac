//! Reports of the NIC workers. The host does not trust them: it counts an unknown id, and an event
//! affects at most the connection that it names.

use std::mem::ManuallyDrop;

use contract::channel::ReceiveError;
use contract::{Event, FileId, FlowId, RejectReason, SendId};
use rustix::io::Errno;
use tcp::Instant;

use super::Stack;
use super::queue_dirty;
use crate::app::StreamId;
use crate::ground::workers::Heard;
use crate::tables::connections::{ConnectionHandle, handle_of_send, transmission_of_send};

/// A NIC stack has written invalid indices into a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelCorrupt {
    /// The worker whose channel it is.
    pub worker: usize,
}

impl Stack {
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

    /// Finishes work that many departures share.
    #[inline(never)]
    fn on_rare_event(&mut self, now_us: u64, worker: usize, event: &Event) {
        let valid = match *event {
            Event::Departed { .. } => unreachable!("it is dealt with"),
            Event::Opened { file, meta } if self.on_reopened(worker, file, Some(meta)) => true,
            Event::OpenFailed { file, .. } if self.on_reopened(worker, file, None) => true,
            Event::Opened { file, meta } if self.on_twin_opened(worker, file, Some(&meta)) => true,
            Event::OpenFailed { file, .. } if self.on_twin_opened(worker, file, None) => true,
            Event::Opened { file, meta } => self.on_opened(worker, file, meta),
            Event::OpenFailed { file, errno } => self.on_open_failed(now_us, worker, file, errno),
            Event::Listed { file, ref part } => self.on_listed(worker, file, part),
            Event::ReadFailed {
                send,
                flow,
                file,
                offset,
                errno,
            } => {
                self.ground.counters.reads_failed += 1;
                let path = self
                    .ground
                    .files
                    .by_id(file)
                    .map_or_else(Default::default, |file| String::from_utf8_lossy(&file.path));
                tracing::warn!(path = %path, offset, errno, "reading failed: the response is \
                    aborted");
                if let Some(valid) = self.on_quic_read_failed(worker, send, flow, file) {
                    return self.check_event(worker, event, valid);
                }
                match self.tcp.connections.handle_of(StreamId(flow.0)) {
                    Some(handle) => self.fail(worker, handle),
                    // The connection may have ended while the event was in transit.
                    None => true,
                }
            }
            Event::Sealed {
                flow,
                epoch,
                number,
                ref tags,
            } => self.on_sealed(worker, flow, epoch, number, tags),
            Event::SealMismatch {
                flow,
                epoch,
                number,
                ..
            } => self.on_seal_mismatch(worker, flow, epoch, number),
            Event::Rejected { reason, id } => self.on_rejected(now_us, worker, reason, id),
            Event::Frame { ref bytes } => {
                self.on_handed_up(now_us, bytes);
                true
            }
            Event::PartRefused { flow, reason } => {
                self.on_part_refused(now_us, worker, flow, reason)
            }
            Event::FlowsTaken { ref flows } => self.on_flows_taken(worker, flows),
            Event::PartEnded { ref ends } => self.on_part_ended(now_us, worker, ends),
            Event::SetupReady { epoch, steering } => self.on_setup_ready(worker, epoch, steering),
            Event::SpliceRefused { .. }
            | Event::SpliceMssReduced { .. }
            | Event::SpliceProgress { .. }
            | Event::SpliceEnded { .. }
            | Event::Unspliced { .. } => self.on_splice_event(now_us, worker, event),
            Event::Ready { .. } | Event::QuicReceived(_) => self.on_quic(now_us, worker, event),
            Event::Ended => {
                self.ground.workers[worker].heard.on_last();
                true
            }
            Event::Load {
                busy_us,
                elapsed_us,
            } => {
                self.on_load(now_us, worker, busy_us, elapsed_us);
                true
            }
        };
        self.check_event(worker, event, valid);
    }

    fn check_event(&mut self, worker: usize, event: &Event, is_valid: bool) {
        if !is_valid {
            self.on_invalid_event(worker, event);
        }
    }

    #[cold]
    fn on_invalid_event(&mut self, worker: usize, event: &Event) {
        self.ground.counters.events_invalid += 1;
        tracing::debug!(worker, ?event, "an event that makes no sense");
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
            return self.quic.is_none() || self.on_quic_departed(times, worker, send, flow);
        };
        let handle = entry.handle();
        if entry.worker != worker {
            // The connection may have moved, after the peer had acknowledged everything; this is
            // the echo of some of it.
            return self.may_have_moved();
        }
        if handle_of_send(send.0) != Some(handle) {
            return false;
        }
        self.ground.sends_departed += 1;
        if self.ground.config.departs_at_issue && entry.sends_outstanding > 0 {
            entry.sends_outstanding -= 1;
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

    /// A NIC stack did not execute a command: everything that depends on it fails.
    fn on_rejected(&mut self, now_us: u64, worker: usize, reason: RejectReason, id: u64) -> bool {
        if let Some(valid) = self.on_quic_rejected(now_us, worker, reason, id) {
            return valid;
        }
        if let Some(valid) = self.on_records_rejected(worker, reason, id) {
            return valid;
        }
        tracing::warn!(worker, ?reason, id, "the NIC stack rejected a command");
        if let Some(handle) = handle_of_send(id) {
            // Its connection may be gone, and another one in its place.
            let entry = self.tcp.connections.get(handle);
            let asked = entry.is_some_and(|entry| entry.sends_outstanding > 0);
            return asked && self.fail(worker, handle);
        }
        // Not a SEND: if it was an OPEN, the OPEN has failed.
        let errno = match reason {
            RejectReason::TooManyFiles => Errno::MFILE,
            _ => Errno::INVAL,
        };
        let errno = errno.raw_os_error() as u16;
        u32::try_from(id).map(FileId).is_ok_and(|file| {
            self.on_reopened(worker, file, None)
                || self.on_twin_opened(worker, file, None)
                || self.on_open_failed(now_us, worker, file, errno)
        })
    }

    /// True if a worker may still report on connections that others send for.
    #[cold]
    pub(crate) fn may_have_moved(&self) -> bool {
        self.ground.nic_stacks.len() > 1 || self.ground.counters.connections_rebalanced > 0
    }

    /// Aborts a connection because the data plane could not do its part.
    pub(crate) fn fail(&mut self, worker: usize, handle: ConnectionHandle) -> bool {
        let may_have_moved = self.may_have_moved();
        let Some(entry) = self.tcp.connections.get_mut(handle) else {
            return false;
        };
        if entry.worker != worker {
            return may_have_moved;
        }
        entry.data_plane_failed = true;
        entry.tcp.abort();
        self.mark_dirty(handle);
        true
    }
}
