//! Departure: superpackets leave through the port, the flows taking turns.

use std::io::IoSlice;

use contract::Event;
use contract::channel::NicChannel;
use netdev::{Port, SendError, Superpacket};

use crate::engine::{Clock, Engine};
use crate::flow::{Front, Origin, Piece};
use crate::job::{Job, JobKind};
use crate::need::PIECES_MAX;
use crate::sealed::{KEY_BYTES, SealMismatch, Sealer};
use crate::segment;
use crate::slab::Key;

/// Most slices of a superpacket: its pieces, and for each stretch of records one, or three if it
/// begins and ends in the midst of one.
const SLICES_MAX: usize = 2 * PIECES_MAX;

/// Superpackets that depart in one turn, if they are small.
const DEPARTURES_MAX: usize = 32;

/// Bytes after which a turn's departures end: commands, paced SENDs and the host, which gets the
/// departures, wait meanwhile. Some hundred microseconds of copying, or of AES-GCM.
const TURN_BYTES: u64 = 1 << 20;

impl<P: Port> Engine<P> {
    /// Queues a flow to send, if its first superpacket can depart or has failed. Answers a PREPARE
    /// then.
    pub(crate) fn want_to_send(&mut self, key: Key) {
        if let Some(flow) = self.flows.get_mut(key)
            && !flow.wants_to_send
            && flow.held.is_none()
            && matches!(
                flow.front(&self.blocks),
                Front::Ready | Front::Failed { .. }
            )
        {
            if self.prepares > 0
                && let Some(JobKind::Prepare { .. }) = flow.kind()
            {
                return self.answer_prepare(key);
            }
            flow.wants_to_send = true;
            self.senders.push_back(key);
        }
    }

    /// Sends one superpacket of each flow in turn, until the port is busy, or the event ring of
    /// `channel`, which must hold the tags of sealed packets, is full. True if any was sent, or the
    /// next turn may send some.
    pub(crate) fn depart(&mut self, clock: Clock<'_>, channel: &mut NicChannel) -> bool {
        let mut worked = false;
        self.port_busy = false;
        self.ring_busy = false;
        let before = self.bytes_handled();
        for _ in 0..DEPARTURES_MAX {
            if self.bytes_handled() - before >= TURN_BYTES {
                break;
            }
            let Some(key) = self.senders.pop_front() else {
                break;
            };
            let Some(flow) = self.flows.get_mut(key) else {
                continue;
            };
            flow.wants_to_send = false;
            let sealed = flow.planned.front().is_some_and(|planned| planned.sealed);
            match flow.front(&self.blocks) {
                Front::Empty | Front::Waiting => continue,
                Front::Failed { origin, errno } => self.fail(key, origin, errno),
                Front::Ready if self.hold_front(key, clock) => continue,
                Front::Ready => {
                    if sealed && let Err(SealMismatch { epoch, number }) = self.seal_front(key) {
                        self.fail_sealing(key, epoch, number);
                        worked = true;
                        continue;
                    }
                    self.ring_busy = sealed && !self.report_front(key, channel);
                    self.counters.ring_waits += u64::from(self.ring_busy);
                    if self.ring_busy || !self.send_front(key, clock) {
                        self.port_busy = !self.ring_busy;
                        self.counters.port_waits += u64::from(self.port_busy);
                        if let Some(flow) = self.flows.get_mut(key) {
                            flow.wants_to_send = true;
                        }
                        self.senders.push_front(key);
                        return worked;
                    }
                    self.want_to_send(key);
                    self.want_to_plan(key);
                    self.forget_if_idle(key);
                }
            }
            worked = true;
        }
        // Behind many flows that are gone, or have to wait, one may be ready.
        worked || !self.senders.is_empty()
    }

    /// Returns the bytes sealed, plus the bytes of file content sent unsealed.
    fn bytes_handled(&self) -> u64 {
        self.counters.sealed_bytes + self.counters.file_sent_bytes
    }

    /// Puts a flow on the wheel if its first superpacket must not leave yet. True if so.
    fn hold_front(&mut self, key: Key, clock: Clock<'_>) -> bool {
        let Some(flow) = self.flows.get_mut(key) else {
            return false;
        };
        let Some(job) = flow.jobs.front_mut().filter(|job| job.not_before_us > 0) else {
            return false;
        };
        let now_us = clock();
        if now_us < job.not_before_us {
            flow.held = Some(self.wheel.insert(job.not_before_us, now_us, key));
            return true;
        }
        self.counters.on_paced_departure(now_us - job.not_before_us);
        // The other superpackets of the SEND follow at once.
        job.not_before_us = 0;
        false
    }

    /// Takes the flows whose time has come off the wheel. True if there were any.
    pub(crate) fn release_held(&mut self, clock: Clock<'_>) -> bool {
        if self.wheel.next_us().is_none() {
            return false;
        }
        let mut due = std::mem::take(&mut self.due);
        self.wheel.expire(clock(), &mut due);
        let worked = !due.is_empty();
        for key in due.drain(..) {
            if let Some(flow) = self.flows.get_mut(key) {
                flow.held = None;
            }
            self.want_to_send(key);
        }
        self.due = due;
        worked
    }

    /// Seals the records of a flow's first superpacket. If that fails, none of its bytes leave.
    fn seal_front(&mut self, key: Key) -> Result<(), SealMismatch> {
        let Some(flow) = self.flows.get_mut(key) else {
            return Ok(());
        };
        self.sealer
            .make(key, flow, &self.blocks, &mut self.counters)
    }

    /// Reports the tags of a flow's first superpacket to the host. False if the event ring has no
    /// room.
    fn report_front(&mut self, key: Key, channel: &mut NicChannel) -> bool {
        let flow = self.flows.get_mut(key);
        flow.is_none_or(|flow| Sealer::report(flow, channel))
    }

    /// Sends the first superpacket of a flow, which is ready. False if the port is busy.
    fn send_front(&mut self, key: Key, clock: Clock<'_>) -> bool {
        let Some(flow) = self.flows.get_mut(key) else {
            return true;
        };
        let (Some(planned), Some(job)) = (flow.planned.front().copied(), flow.jobs.front()) else {
            return true;
        };
        if job.kind == JobKind::Datagrams {
            return self.send_datagrams(key, clock);
        }
        let place = planned.place;
        let (mut file_bytes, mut sealed_bytes) = (0, 0);
        for piece in flow.pieces.range(..planned.pieces) {
            match *piece {
                Piece::Block { len, .. } => file_bytes += len as u64,
                Piece::Sealed { len, .. } => sealed_bytes += len as u64,
                Piece::Inline { .. }
                | Piece::PlainInline { .. }
                | Piece::PlainBlock { .. }
                | Piece::Missing { .. } => {}
            }
        }
        // Only one of the two arrays is filled.
        let mut plain: [IoSlice<'_>; PIECES_MAX];
        let mut with_sealed: [IoSlice<'_>; SLICES_MAX];
        let payload = if planned.sealed {
            with_sealed = [IoSlice::new(&[]); SLICES_MAX];
            let count = self
                .sealer
                .payload(&job.inline, &self.blocks, &mut with_sealed);
            &with_sealed[..count]
        } else {
            plain = [IoSlice::new(&[]); PIECES_MAX];
            let pieces = flow.pieces.range(..planned.pieces);
            let pieces = pieces.filter_map(|piece| match *piece {
                Piece::Inline { start, len } => Some(&job.inline[start..start + len]),
                Piece::Block {
                    block, start, len, ..
                } => Some(&self.blocks.bytes(block)[start..start + len]),
                _ => None,
            });
            let mut count = 0;
            for (slice, bytes) in plain.iter_mut().zip(pieces) {
                *slice = IoSlice::new(bytes);
                count += 1;
            }
            &plain[..count]
        };

        let stamped_us = if self.correct_timestamps {
            clock()
        } else {
            job.issued_us
        };
        let outcome = match segment::header(job, place, stamped_us) {
            Some(header) => self.port.send(&Superpacket {
                header: header.bytes(),
                payload,
                offload: header.offload,
            }),
            // `Job::accept` has ruled this out; handle it as a packet dropped by the link.
            None => Err(SendError::Dropped),
        };
        match outcome {
            Err(SendError::WouldBlock) => return false,
            Ok(()) => {
                self.counters.superpackets += 1;
                self.counters.packets += place.len.div_ceil(usize::from(job.mss)).max(1) as u64;
                self.counters.file_sent_bytes += file_bytes;
                self.counters.sealed_sent_bytes += sealed_bytes;
                self.counters.inline_sent_bytes += place.len as u64 - file_bytes - sealed_bytes;
            }
            Err(error) => self.counters.on_not_sent(&error),
        }

        self.departed(key, clock);
        true
    }

    /// Records the departure of a flow's first superpacket: retains its blocks, and reports its
    /// SEND if that is complete.
    fn departed(&mut self, key: Key, clock: Clock<'_>) {
        let Some(flow) = self.flows.get_mut(key) else {
            return;
        };
        let (Some(planned), Some(job)) = (flow.planned.pop_front(), flow.jobs.front()) else {
            return;
        };
        if planned.sealed {
            self.sealer.on_departed();
        }
        let mut stream_end = job.stream_offset.wrapping_add(planned.place.start as u64);
        for piece in flow.pieces.drain(..planned.pieces) {
            match piece {
                Piece::Inline { len, .. } => stream_end = stream_end.wrapping_add(len as u64),
                Piece::Block { block, len, .. } => {
                    stream_end = stream_end.wrapping_add(len as u64);
                    if let Some(reference) = self.blocks.to_pin(block) {
                        flow.retention.keep(stream_end, reference, &mut self.blocks);
                    }
                    self.blocks.release(block);
                }
                Piece::Sealed { len, .. } => stream_end = stream_end.wrapping_add(len as u64),
                // A record is sealed whole, so all of its plaintext is needed until its end is
                // acknowledged.
                Piece::PlainBlock {
                    block, record_end, ..
                } => {
                    if let Some(reference) = self.blocks.to_pin(block) {
                        flow.retention.keep(record_end, reference, &mut self.blocks);
                    }
                    self.blocks.release(block);
                }
                Piece::PlainInline { .. } | Piece::Missing { .. } => {}
            }
        }
        if planned.place.last {
            self.report_departure(key, clock);
        }
    }

    /// Reports that the first job of a flow has departed completely.
    #[inline]
    pub(crate) fn report_departure(&mut self, key: Key, clock: Clock<'_>) {
        if let Some(flow) = self.flows.get_mut(key)
            && let Some(job) = flow.jobs.pop_front()
        {
            flow.cutting -= 1;
            flow.on_job_departed(&job);
            self.emit(Event::Departed {
                send: job.id,
                flow: job.flow,
                departed_us: clock(),
            });
            self.retire(key, job);
        }
    }

    /// Reports that the first SEND of a flow failed to read, and drops all SENDs queued behind it.
    fn fail(&mut self, key: Key, origin: Origin, errno: u16) {
        let Some(flow) = self.flows.get_mut(key) else {
            return;
        };
        flow.failed = true;
        if let Some(job) = flow.jobs.front() {
            let event = Event::ReadFailed {
                send: job.id,
                flow: job.flow,
                file: origin.file,
                offset: origin.offset,
                errno,
            };
            self.counters.reads_failed += 1;
            self.emit(event);
        }
        self.empty(key);
    }

    /// Reports that the first SEND of a flow cannot go on, because one of its records would be
    /// sealed differently from before.
    fn fail_sealing(&mut self, key: Key, epoch: u16, number: u64) {
        let Some(flow) = self.flows.get_mut(key) else {
            return;
        };
        flow.failed = true;
        if let Some(job) = flow.jobs.front() {
            let event = Event::SealMismatch {
                send: job.id,
                flow: job.flow,
                epoch,
                number,
            };
            self.counters.seal_mismatches += 1;
            self.emit(event);
        }
        self.empty(key);
    }

    /// Drops all that is queued or retained for a flow, and its keys. Reads under way complete for
    /// the cache.
    pub(crate) fn empty(&mut self, key: Key) {
        let Some(flow) = self.flows.get_mut(key) else {
            return;
        };
        if let Some(handle) = flow.held.take() {
            self.wheel.remove(handle);
        }
        flow.planned.clear();
        flow.cutting = 0;
        for piece in flow.pieces.drain(..) {
            if let Piece::Block { block, .. } | Piece::PlainBlock { block, .. } = piece {
                self.blocks.release(block);
            }
        }
        flow.retention.clear(&mut self.blocks);
        for job in std::mem::take(&mut flow.jobs) {
            self.retire(key, job);
        }
        self.empty_sealed(key);
        self.empty_quic(key);
    }

    /// Ends a job of this flow: releases its files, keys and sealed ranges.
    pub(crate) fn retire(&mut self, key: Key, job: Box<Job>) {
        if let Some(flow) = self.flows.get_mut(key)
            && let Some(quic) = &mut flow.quic
        {
            let keys = quic.keys();
            quic.retire(&job.packets);
            self.sealed_bytes -= (keys - quic.keys()) * KEY_BYTES;
        }
        if let Some(flow) = self.flows.get_mut(key)
            && let Some(stream) = &mut flow.sealed
        {
            for (start, len) in job.sealed() {
                stream.release(start, len);
            }
            self.drop_acknowledged(key);
        }
        for file in job.files() {
            self.files
                .release(file, &mut self.blocks, self.reader.as_mut());
        }
        self.jobs -= 1;
        self.keep_spare_job(job);
    }
}
