//! Reports of the NIC workers. The host does not trust them: it counts an unknown id, and an event
//! affects at most the connection that it names.

use std::mem::ManuallyDrop;

use contract::channel::{HostChannel, ReceiveError};
use contract::{Event, FileId, FileMeta, FlowId, RejectReason, SendId};
use netdev::Frame;
use rustix::io::Errno;
use tcp::Instant;

use super::Stack;
use crate::app::StreamId;
use crate::ground::Layers;
use crate::ground::workers::{Heard, Life, WorkerLink};
use crate::nics::nic_source::NicRefusal;
use crate::nics::nic_stacks::NicSet;
use crate::tables::connections::{handle_of_send, transmission_of_send};
use crate::tables::files::{Reopened, Reopening};
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
        if let Some(refusal) = self.ground.nic_refusal(nic, channels.len()) {
            return Err(refusal);
        }
        let workers = self.ground.nic_stacks.workers(nic);
        if workers.is_empty() {
            assert!(!channels.is_empty(), "a NIC stack has workers");
            self.ground.introduce_nic(nic, channels);
            for worker in self.ground.nic_stacks.workers(nic) {
                self.tcp.send_setup(&mut self.ground, now_us, worker);
            }
        } else {
            self.ground.counters.nic_restarts += 1;
            self.ground.nic_stacks.has_come(nic);
            for (worker, channel) in workers.zip(channels) {
                self.on_nic_restarted(now_us, worker, channel);
            }
        }
        for handle in self.tcp.connections.handles() {
            if let Some(entry) = self.tcp.connections.get_mut(handle)
                && !self.ground.workers[entry.worker].is_there()
            {
                entry.refused_by.remove(nic);
                self.tcp.reroute(&mut self.ground, handle);
            }
        }
        self.quic.on_nic_come(&mut self.ground);
        self.tcp.part_with_elsewhere(&mut self.ground, now_us);
        self.tcp.splice_elsewhere(&mut self.ground);
        for file in self.ground.files.waiting() {
            self.ground
                .ask(&mut Layers::of(&mut self.tcp, &mut self.quic), file);
        }
        Ok(())
    }

    /// NIC stack `nic` is gone. The host still reads its events that no other repeats, as in
    /// [`Stack::on_nic_restarted`]. Connections continue through others that have what they need,
    /// or wait for it to come back.
    ///
    /// # Panics
    /// If there is no such NIC stack.
    pub fn on_nic_lost(&mut self, now_us: u64, nic: usize) {
        if !self.ground.nic_stacks.is_there(nic) {
            return;
        }
        self.ground.counters.nic_losses += 1;
        self.ground.nic_stacks.has_gone(nic, now_us);
        let workers = self.ground.nic_stacks.workers(nic);
        self.tcp
            .leave_workers(&mut self.ground, now_us, workers.clone());
        for worker in workers.clone() {
            self.ground.workers[worker].lose();
        }
        self.tcp.steer(&mut self.ground);
        for worker in workers.clone() {
            self.ground
                .stop_migrations_of(&mut Layers::of(&mut self.tcp, &mut self.quic), worker);
            self.ground.division.forget_load(worker);
        }
        self.ground.files.lose(nic, &workers);
        for handle in self.tcp.connections.handles() {
            if let Some(entry) = self.tcp.connections.get_mut(handle)
                && workers.contains(&entry.worker)
            {
                self.ground.sends_outstanding -= std::mem::take(&mut entry.sends_outstanding);
                entry.holds = 0;
                entry.refused_by = NicSet::default();
                entry.tcp.on_all_undeparted_lost();
                self.tcp.reroute(&mut self.ground, handle);
            }
        }
        self.quic.on_nic_lost(&mut self.ground, &workers);
        self.tcp.part_with_elsewhere(&mut self.ground, now_us);
        self.tcp.splice_elsewhere(&mut self.ground);
        for file in self.ground.files.waiting() {
            self.ground
                .ask(&mut Layers::of(&mut self.tcp, &mut self.quic), file);
        }
    }

    /// Fails requests for a file that only a NIC stack which has been away for too long can have.
    pub(crate) fn give_up_nics(&mut self, now_us: u64) {
        while let Some(nic) = self.ground.nic_stacks.give_up(now_us) {
            self.tcp.take_back_from(&mut self.ground, now_us, nic);
            self.tcp.break_splices_of(&mut self.ground, now_us, nic);
            for file in self.ground.files.waiting() {
                self.ground
                    .ask(&mut Layers::of(&mut self.tcp, &mut self.quic), file);
            }
        }
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
        let nic = self.ground.nic_stacks.of(worker);
        self.tcp
            .leave_workers(&mut self.ground, now_us, worker..worker + 1);
        self.ground
            .stop_migrations_of(&mut Layers::of(&mut self.tcp, &mut self.quic), worker);
        self.ground.division.forget_load(worker);
        // Commands that waited for room in the old ring are replayed from the tables, or mean
        // nothing to the new worker.
        self.ground.workers[worker] = WorkerLink::new(channel);
        for handle in self.tcp.connections.handles() {
            if let Some(entry) = self.tcp.connections.get_mut(handle)
                && entry.worker == worker
            {
                self.ground.sends_outstanding -= std::mem::take(&mut entry.sends_outstanding);
                entry.holds = 0;
                entry.tcp.on_all_undeparted_lost();
                self.tcp.mark_dirty(handle);
            }
        }
        self.quic.on_worker_restarted(&mut self.ground, worker);
        for Reopening {
            file,
            path,
            lookup,
            waits,
        } in self.ground.files.reopen(nic, worker)
        {
            if let Some(entry) = waits.and_then(|stream| self.tcp.connections.by_stream_mut(stream))
            {
                entry.holds += 1;
            } else if let Some(stream) = waits {
                self.quic.hold_sends(stream);
            }
            self.ground.send_open(worker, file, &path, lookup);
        }
        self.tcp.steer(&mut self.ground);
        self.tcp.send_setup(&mut self.ground, now_us, worker);
        self.tcp.part_again_with(&mut self.ground, now_us, worker);
        self.tcp.splice_again_with(&mut self.ground, worker);
        self.retry_waiting_room();
    }

    /// Handles the answer to a repeated OPEN; false if this OPEN was not repeated. `meta` is `None`
    /// if it has failed.
    pub(crate) fn on_reopened(
        &mut self,
        worker: usize,
        file: FileId,
        meta: Option<FileMeta>,
    ) -> bool {
        let nic = self.ground.nic_stacks.of(worker);
        let Some((stream, outcome)) = self.ground.files.reopened(nic, worker, file, meta) else {
            return false;
        };
        if let Reopened::LetGo(Some(close)) | Reopened::Changed(Some(close)) = outcome {
            self.ground.send_close(close);
        }
        if self
            .quic
            .on_reopened(&mut self.ground, stream, file, outcome)
        {
            return true;
        }
        let Some(entry) = self.tcp.connections.by_stream_mut(stream) else {
            return true;
        };
        let handle = entry.handle();
        if let Reopened::Changed(_) = outcome {
            entry.refused_by.insert(nic);
        }
        entry.holds = entry.holds.saturating_sub(1);
        if entry.holds == 0 {
            // The refused file's data may have been acknowledged since.
            let lacks_a_file =
                entry.refused_by.contains(nic) && self.tcp.lacks_a_file(&self.ground, handle);
            if lacks_a_file {
                self.tcp.reroute(&mut self.ground, handle);
            } else if let Some(entry) = self.tcp.connections.get_mut(handle) {
                entry.refused_by = NicSet::default();
            }
        }
        self.tcp.mark_dirty(handle);
        true
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

    /// Finishes work that many departures share.
    #[inline(never)]
    fn on_rare_event(&mut self, now_us: u64, worker: usize, event: &Event) {
        let valid = match *event {
            Event::Departed { .. } => unreachable!("it is dealt with"),
            Event::Opened { file, meta } if self.on_reopened(worker, file, Some(meta)) => true,
            Event::OpenFailed { file, .. } if self.on_reopened(worker, file, None) => true,
            Event::Opened { file, meta }
                if self.ground.on_twin_opened(
                    &mut Layers::of(&mut self.tcp, &mut self.quic),
                    worker,
                    file,
                    Some(&meta),
                ) =>
            {
                true
            }
            Event::OpenFailed { file, .. }
                if self.ground.on_twin_opened(
                    &mut Layers::of(&mut self.tcp, &mut self.quic),
                    worker,
                    file,
                    None,
                ) =>
            {
                true
            }
            Event::Opened { file, meta } => self.ground.on_opened(
                &mut Layers::of(&mut self.tcp, &mut self.quic),
                worker,
                file,
                meta,
            ),
            Event::OpenFailed { file, errno } => self.ground.on_open_failed(
                &mut Layers::of(&mut self.tcp, &mut self.quic),
                now_us,
                worker,
                file,
                errno,
            ),
            Event::Listed { file, ref part } => self.ground.on_listed(
                &mut Layers::of(&mut self.tcp, &mut self.quic),
                worker,
                file,
                part,
            ),
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
                if let Some(valid) =
                    self.quic
                        .on_read_failed(&mut self.ground, worker, send, flow, file)
                {
                    return self.check_event(worker, event, valid);
                }
                match self.tcp.connections.handle_of(StreamId(flow.0)) {
                    Some(handle) => self.tcp.fail(&mut self.ground, worker, handle),
                    // The connection may have ended while the event was in transit.
                    None => true,
                }
            }
            Event::Sealed {
                flow,
                epoch,
                number,
                ref tags,
            } => self
                .tcp
                .on_sealed(&mut self.ground, worker, flow, epoch, number, tags),
            Event::SealMismatch {
                flow,
                epoch,
                number,
                ..
            } => self
                .tcp
                .on_seal_mismatch(&mut self.ground, worker, flow, epoch, number),
            Event::Rejected { reason, id } => self.on_rejected(now_us, worker, reason, id),
            Event::Frame { ref bytes } => {
                self.on_handed_up(now_us, bytes);
                true
            }
            Event::PartRefused { flow, reason } => {
                self.tcp
                    .on_part_refused(&mut self.ground, now_us, worker, flow, reason)
            }
            Event::FlowsTaken { ref flows } => self.ground.on_flows_taken(
                &mut Layers::of(&mut self.tcp, &mut self.quic),
                worker,
                flows,
            ),
            Event::PartEnded { ref ends } => {
                self.tcp
                    .on_part_ended(&mut self.ground, now_us, worker, ends)
            }
            Event::SetupReady { epoch, steering } => {
                self.tcp
                    .on_setup_ready(&mut self.ground, worker, epoch, steering)
            }
            Event::SpliceRefused { .. }
            | Event::SpliceMssReduced { .. }
            | Event::SpliceProgress { .. }
            | Event::SpliceEnded { .. }
            | Event::Unspliced { .. } => {
                self.tcp
                    .on_splice_event(&mut self.ground, now_us, worker, event)
            }
            Event::Ready { .. } | Event::QuicReceived(_) => {
                self.quic
                    .on_worker_event(&mut self.ground, now_us, worker, event)
            }
            Event::Ended => {
                self.ground.workers[worker].heard.on_last();
                true
            }
            Event::Load {
                busy_us,
                elapsed_us,
            } => {
                self.ground.on_load(now_us, worker, busy_us, elapsed_us);
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
            return self
                .quic
                .on_departed(&mut self.ground, times, worker, send, flow);
        };
        let handle = entry.handle();
        if entry.worker != worker {
            // The connection may have moved, after the peer had acknowledged everything; this is
            // the echo of some of it.
            return self.ground.may_have_moved();
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
        if let Some(valid) = self
            .quic
            .on_rejected(&mut self.ground, now_us, worker, reason, id)
        {
            return valid;
        }
        if let Some(valid) = self
            .tcp
            .on_records_rejected(&mut self.ground, worker, reason, id)
        {
            return valid;
        }
        tracing::warn!(worker, ?reason, id, "the NIC stack rejected a command");
        if let Some(handle) = handle_of_send(id) {
            // Its connection may be gone, and another one in its place.
            let entry = self.tcp.connections.get(handle);
            let asked = entry.is_some_and(|entry| entry.sends_outstanding > 0);
            return asked && self.tcp.fail(&mut self.ground, worker, handle);
        }
        // Not a SEND: if it was an OPEN, the OPEN has failed.
        let errno = match reason {
            RejectReason::TooManyFiles => Errno::MFILE,
            _ => Errno::INVAL,
        };
        let errno = errno.raw_os_error() as u16;
        u32::try_from(id).map(FileId).is_ok_and(|file| {
            self.on_reopened(worker, file, None)
                || self.ground.on_twin_opened(
                    &mut Layers::of(&mut self.tcp, &mut self.quic),
                    worker,
                    file,
                    None,
                )
                || self.ground.on_open_failed(
                    &mut Layers::of(&mut self.tcp, &mut self.quic),
                    now_us,
                    worker,
                    file,
                    errno,
                )
        })
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
}
