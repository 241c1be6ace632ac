//! TLS records: NIC workers get them before a SEND names them, and report their tags.
//!
//! No record number may seal two plaintexts under one key. A worker ensures that as long as it
//! lives, and reports the tag of each record before any of it leaves. If it ends, the host reads
//! its last events, and gives the tags to the worker that sends the records again: the same bytes
//! leave, or none. If an event may be missing, or the old worker may still be sending, the host
//! resets connections with records that may have left and whose tags are unknown. A NIC stack on
//! another machine reports its end last; that confirms that no event was lost.

use std::ops::Range;

use contract::channel::ReceiveError;
use contract::limits::EVENT_RING_BYTES;
use contract::tls::{ContentType, Key, Records, Tag};
use contract::{Command, Event, FileId, FlowId, RejectReason, Segment};
use tls::{Definition, Piece, Run};

use crate::app::StreamId;
use crate::ground::Ground;
use crate::ground::workers::{Deferred, Heard, Life};
use crate::tables::connections::ConnectionHandle;
use crate::tcp::TcpLayer;
use crate::tls_layer::TlsLayer;

impl TcpLayer {
    /// Defines the connection's next records, and reports them to the NIC worker. False if not all
    /// fit now.
    pub(crate) fn define_records(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        handle: ConnectionHandle,
    ) -> bool {
        let Some(entry) = self.connections.get_mut(handle) else {
            return true;
        };
        let Some(tls) = entry.tls.as_mut() else {
            return true;
        };
        tls.define(&mut entry.tcp, now_us);
        ground.counters.tls_key_updates += tls.take_key_updates();
        if tls.has_news() {
            self.mark_dirty(handle);
        }
        self.tell_records(ground, handle)
    }

    /// Gives the NIC worker everything that it needs to seal the defined records. False if that is
    /// not possible for all records now.
    fn tell_records(&mut self, ground: &mut Ground, handle: ConnectionHandle) -> bool {
        let Some(entry) = self.connections.get_mut(handle) else {
            return true;
        };
        let flow = entry.flow();
        let Some(tls) = entry.tls.as_mut() else {
            return true;
        };
        // A reopened file may be another one.
        if entry.nic.holds > 0 {
            return false;
        }
        let nic = &mut ground.workers[entry.nic.worker];
        let TlsLayer {
            connection, known, ..
        } = &mut **tls;
        while let Some(definition) = connection.missing(known) {
            // Keys go with the last record under them, so acknowledgments make room for another
            // key.
            let stream_offset = entry.tcp.acknowledged_bytes();
            let is_key = matches!(definition, Definition::Key(_));
            if is_key && entry.nic.is_open && stream_offset > entry.ackd_offset {
                entry.ackd_offset = stream_offset;
                ground.counters.ackds += 1;
                nic.send_or_defer(Deferred::Acked {
                    flow,
                    stream_offset,
                    last: false,
                });
            }
            if !nic.has_room() {
                return false;
            }
            let sent = match definition {
                Definition::Key(key) => nic.channel.send(&Command::Key(Key {
                    flow,
                    epoch: key.epoch,
                    suite: key.suite,
                    key: key.key(),
                    iv: *key.iv(),
                })),
                Definition::Run(run) => nic.channel.send(&Command::Records(records(flow, run))),
            };
            debug_assert!(sent.is_ok(), "there was room");
            // From the first key on, the NIC stack keeps state for the flow.
            entry.nic.is_open = true;
            known.add(definition);
        }
        true
    }

    /// Forgets records that the peer has acknowledged, and keys and files that nothing else needs.
    pub(crate) fn release_acknowledged(&mut self, ground: &mut Ground, handle: ConnectionHandle) {
        let Some(entry) = self.connections.get_mut(handle) else {
            return;
        };
        let flow = entry.flow();
        let Some(tls) = entry.tls.as_mut() else {
            return;
        };
        let nic = &mut ground.workers[entry.nic.worker];
        let TlsLayer {
            connection, known, ..
        } = &mut **tls;
        connection.acknowledge(entry.tcp.acknowledged_bytes(), |epoch| {
            if known.remove_key(epoch) {
                nic.send_or_defer(Deferred::KeyGone { flow, epoch });
            }
        });
        while let Some(entry) = self.connections.get_mut(handle)
            && let Some(tls) = entry.tls.as_mut()
            && let Some(object) = tls.connection.poll_released()
        {
            if let Some(close) = ground.files.extent_released(FileId(object)) {
                ground.send_close(close);
            }
        }
    }

    /// A NIC worker has sealed records for the first time. False if the report is inconsistent.
    pub(crate) fn on_sealed(
        &mut self,
        ground: &mut Ground,
        worker: usize,
        flow: FlowId,
        epoch: u16,
        number: u64,
        tags: &[Tag],
    ) -> bool {
        let Some(entry) = self.connections.by_stream_mut(StreamId(flow.0)) else {
            // The connection may have ended while the event was in transit.
            return true;
        };
        let handle = entry.handle();
        if entry.nic.worker != worker {
            // The connection has moved, after the peer had acknowledged everything.
            return ground.may_have_moved();
        }
        let local = entry.tuple.local;
        let Some(tls) = entry.tls.as_mut() else {
            // TLS has ended, unless the connection never spoke it.
            return self.is_for_tls(local.port());
        };
        match tls.connection.on_sealed(epoch, number, tags) {
            Ok(()) => true,
            Err(_) => {
                self.fail(ground, worker, handle);
                false
            }
        }
    }

    /// A record would be another one if sealed again.
    pub(crate) fn on_seal_mismatch(
        &mut self,
        ground: &mut Ground,
        worker: usize,
        flow: FlowId,
        epoch: u16,
        number: u64,
    ) -> bool {
        let Some(entry) = self.connections.by_stream(StreamId(flow.0)) else {
            return true;
        };
        let handle = entry.handle();
        if entry.tls.is_none() {
            return self.is_for_tls(entry.tuple.local.port());
        }
        tracing::warn!(
            peer = %entry.tuple.remote,
            epoch,
            number,
            "a file has changed since a record of it was sent: the response is aborted"
        );
        ground.counters.tls_seal_mismatches += 1;
        self.fail(ground, worker, handle)
    }

    /// A NIC stack rejects keys or records of a flow; `None` if it rejects something else.
    pub(crate) fn on_records_rejected(
        &mut self,
        ground: &mut Ground,
        worker: usize,
        reason: RejectReason,
        id: u64,
    ) -> Option<bool> {
        match reason {
            RejectReason::UnknownKey
            | RejectReason::KeyConflict
            | RejectReason::TooManyKeys
            | RejectReason::RecordsConflict
            | RejectReason::TooManyRecords
            | RejectReason::RecordsOutOfFile => {}
            RejectReason::NumberReused
            | RejectReason::NoUdp
            | RejectReason::Malformed
            | RejectReason::UnknownFile
            | RejectReason::FileInUse
            | RejectReason::TooManyFiles
            | RejectReason::RangePastEnd
            | RejectReason::BadHeader
            | RejectReason::TooManyFlows
            | RejectReason::UnknownRecords => return None,
        }
        ground.counters.tls_records_rejected += 1;
        let rejected = ground.counters.tls_records_rejected;
        // A peer with many connections can cause one rejection for each: they must not fill the
        // log.
        if rejected.is_power_of_two() {
            tracing::warn!(
                worker,
                ?reason,
                id,
                rejected,
                "the NIC stack does not take a connection's records: it is reset"
            )
        } else {
            tracing::debug!(worker, ?reason, id, "records rejected")
        }
        let Some(entry) = self.connections.by_stream(StreamId(id)) else {
            return Some(!self.tls_listeners.is_empty());
        };
        let handle = entry.handle();
        match entry.tls {
            Some(_) => Some(self.fail(ground, worker, handle)),
            None => Some(self.is_for_tls(entry.tuple.local.port())),
        }
    }

    /// NIC stack `nic` has ended: it sends nothing more, and all its events are in its rings. To be
    /// called before [`Stack::on_nic_lost`] or [`Stack::on_nic_come`]. Without proof of the end, do
    /// not call it: then connections that have sent records with unknown tags are reset, unless
    /// [`Event::Ended`] was the last event. On another machine, the end is unknown.
    ///
    /// # Panics
    /// If there is no such NIC stack.
    pub(crate) fn on_nic_ended(&mut self, ground: &mut Ground, now_us: u64, nic: usize) {
        if ground.nic_stacks.is_elsewhere(nic) {
            return;
        }
        for worker in ground.nic_stacks.workers(nic) {
            if self.hear_last_events(ground, now_us, worker) {
                ground.workers[worker].life = Life::Ended;
            }
        }
    }

    /// True if connections would be reset if NIC stack `nic` were replaced without proof of its
    /// end.
    pub(crate) fn has_unproven(&self, ground: &Ground, nic: usize) -> bool {
        let workers = ground.nic_stacks.workers(nic);
        !self.tls_listeners.is_empty()
            && self.connections.iter().any(|entry| {
                let tls = entry.tls.as_deref();
                workers.contains(&entry.nic.worker) && tls.is_some_and(TlsLayer::is_unproven)
            })
    }

    /// Reads a worker's ring to its end, for events that no other worker repeats: tags, and the
    /// fate of splices and of connections parted with. False if an event is malformed, or an
    /// earlier one was.
    fn hear_last_events(&mut self, ground: &mut Ground, now_us: u64, worker: usize) -> bool {
        for _ in 0..EVENT_RING_BYTES {
            let nic = &mut ground.workers[worker];
            if !nic.is_there() {
                break;
            }
            match nic.channel.receive() {
                Ok(Some(event)) => {
                    nic.heard.on_event();
                    match event {
                        Event::Sealed {
                            flow,
                            epoch,
                            number,
                            tags,
                        } => {
                            self.on_sealed(ground, worker, flow, epoch, number, &tags);
                        }
                        Event::Ended => nic.heard.on_last(),
                        Event::SpliceProgress { progress } => {
                            self.on_splice_progress(ground, worker, &progress);
                        }
                        Event::SpliceEnded { outcome, reason } => {
                            self.on_splice_ended(ground, now_us, worker, &outcome, reason);
                        }
                        Event::Unspliced { outcome } => {
                            self.on_unspliced(ground, now_us, worker, &outcome);
                        }
                        Event::PartEnded { ends } => {
                            self.on_part_ended(ground, now_us, worker, &ends);
                        }
                        _ => {}
                    }
                }
                Ok(None) => return nic.heard != Heard::Garbled,
                Err(ReceiveError::Malformed { .. }) => nic.heard = Heard::Garbled,
                Err(ReceiveError::Corrupt) => return false,
            }
        }
        false
    }

    /// Stops using workers. Records sealed again must equal theirs, so this resets connections with
    /// records that they may have sent and whose tags are unknown.
    pub(crate) fn leave_workers(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        workers: Range<usize>,
    ) {
        for worker in workers.clone() {
            if ground.workers[worker].life != Life::Ended {
                let makes_sense = self.hear_last_events(ground, now_us, worker);
                // Only a relay sends it. A NIC stack on this machine proves its end by hanging up.
                let is_elsewhere = ground.nic_stacks.is_elsewhere(ground.nic_stacks.of(worker));
                let nic = &mut ground.workers[worker];
                if makes_sense && nic.heard == Heard::Last && is_elsewhere {
                    nic.life = Life::Ended;
                }
            }
        }
        if self.tls_listeners.is_empty() {
            return;
        }
        for handle in self.connections.handles() {
            if let Some(entry) = self.connections.get(handle)
                && workers.contains(&entry.nic.worker)
            {
                let has_ended = ground.workers[entry.nic.worker].life == Life::Ended;
                self.leave_records(ground, handle, has_ended);
            }
        }
    }

    /// Stops using a connection's worker, or stops using it for the connection. `is_proven`: no
    /// record whose tag is unknown has left.
    pub(crate) fn leave_records(
        &mut self,
        ground: &mut Ground,
        handle: ConnectionHandle,
        is_proven: bool,
    ) {
        self.release_acknowledged(ground, handle);
        let Some(entry) = self.connections.get_mut(handle) else {
            return;
        };
        let worker = entry.nic.worker;
        let Some(tls) = entry.tls.as_mut() else {
            return;
        };
        let is_lost = !is_proven && tls.is_unproven();
        tls.on_worker_left();
        if is_lost {
            ground.counters.tls_records_unproven += 1;
            tracing::warn!(
                peer = %entry.tuple.remote,
                "a lost NIC stack may have sent records without reporting them: the connection \
                 is reset"
            );
            self.fail(ground, worker, handle);
        }
    }
}

/// A run as records of the contract.
fn records(flow: FlowId, run: &Run) -> Records<'_> {
    let segments = run.pieces.iter().map(|piece| match piece {
        Piece::Real(bytes) => Segment::Inline(bytes),
        Piece::Virtual {
            object,
            offset,
            len,
            ..
        } => Segment::File {
            file: FileId(*object),
            offset: *offset,
            len: *len as u32,
        },
    });
    Records {
        flow,
        epoch: run.epoch,
        number: run.number,
        stream_offset: run.stream_offset,
        content_type: match run.content_type {
            tls::ContentType::Alert => ContentType::Alert,
            tls::ContentType::Handshake => ContentType::Handshake,
            // We never seal a ChangeCipherSpec.
            tls::ContentType::ApplicationData | tls::ContentType::ChangeCipherSpec => {
                ContentType::ApplicationData
            }
        },
        record_plaintext_bytes: run.record_plaintext_bytes,
        follow_bytes: u32::try_from(run.follow_bytes).unwrap_or(u32::MAX),
        segments: segments.collect(),
        tags: &run.tags,
    }
}
