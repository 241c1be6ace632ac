//! The ways out of a splice: its end, its return, and a NIC stack that is gone.

use contract::FlowId;
use contract::splicing::{
    SpliceEndReason, SpliceOutcome, SpliceProgress, SpliceRefusal, UnspliceKind,
};
use tcp::{CloseReason, Instant, RejoinNumbers};
use wire::tcp::{Flags, Header, Options, Timestamps};

use super::BOTH;
use crate::app::StreamId;
use crate::ground::Ground;
use crate::ground::workers::Deferred;
use crate::nics::nic_stacks::NicSet;
use crate::splicing::{SpliceEnd, SpliceError, SpliceEvent};
use crate::tables::connections::ConnectionHandle;
use crate::tables::splices::{Place, Side, Splice, Stage};
use crate::tables::tuple::Tuple;
use crate::tcp::TcpLayer;

/// Time for which a NIC worker that has refused a splice is offered no other, in microseconds.
const PAUSE_US: u64 = 1_000_000;

impl TcpLayer {
    /// Returns two streams to their application, with an event: they are in the table of
    /// connections again.
    pub(super) fn give_back(
        &mut self,
        ground: &mut Ground,
        place: Place,
        error: Option<SpliceError>,
    ) -> Option<Box<Splice>> {
        let bytes = self.splicing.splices.get(place)?.bytes();
        self.tell_of_splice(ground, place, SpliceEvent::Returned { error, bytes });
        self.let_go_of(ground, place)
    }

    /// The connections of a splice are in the table of connections again.
    fn let_go_of(&mut self, ground: &mut Ground, place: Place) -> Option<Box<Splice>> {
        self.clear_flows_of(ground, place);
        let splice = self.splicing.splices.remove(place)?;
        for leg in &splice.legs {
            let Some(entry) = self.connections.by_stream_mut(leg.stream) else {
                continue;
            };
            let handle = entry.handle();
            entry.told = !leg.is_let_go;
            entry.app_deadline_us = leg.app_deadline_us.filter(|_| entry.told);
            if leg.is_let_go {
                entry.tcp.close();
            }
            self.connections.put_back(&leg.tuple, handle);
            self.mark_dirty(handle);
        }
        Some(splice)
    }

    /// The application wants the two streams of a splice back. `Returned` follows, or `Ended`.
    pub(crate) fn unsplice(&mut self, ground: &mut Ground, now_us: u64, stream: StreamId) {
        let Some((place, _)) = self.splicing.splices.by_stream(stream) else {
            return;
        };
        let Some(splice) = self.splicing.splices.get_mut(place) else {
            return;
        };
        match splice.stage {
            Stage::Joining => self.give_up_joining(ground, now_us, place, SpliceError::Cancelled),
            Stage::Joined => {
                splice.stage = Stage::Returning;
                let (flow, worker) = (splice.flow(), splice.worker);
                self.clear_flows_of(ground, place);
                let kind = UnspliceKind::Return;
                ground.workers[worker].send_or_defer(Deferred::Unsplice { flow, kind });
            }
            Stage::Returning => {}
        }
    }

    /// Aborts or releases a stream of a splice. True if the stream is one: then both peers are
    /// reset.
    pub(crate) fn abort_spliced(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        stream: StreamId,
        is_let_go: bool,
    ) -> bool {
        let Some((place, side)) = self.splicing.splices.by_stream(stream) else {
            return false;
        };
        let Some(splice) = self.splicing.splices.get_mut(place) else {
            return false;
        };
        let (flow, worker) = (splice.flow(), splice.worker);
        if splice.stage == Stage::Joining {
            self.give_up_joining(ground, now_us, place, SpliceError::Cancelled);
            // As it was meant: of a stream like any other.
            return false;
        }
        splice.legs[side].is_let_go |= is_let_go;
        self.clear_flows_of(ground, place);
        if ground.workers[worker].is_there() {
            let kind = UnspliceKind::Abort;
            ground.workers[worker].send_or_defer(Deferred::Unsplice { flow, kind });
        } else {
            self.break_splice(ground, now_us, place, SpliceEnd::Aborted);
        }
        true
    }

    /// A connection has ended here while it is part of a splice.
    #[cold]
    #[inline(never)]
    pub(crate) fn on_leg_closed(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        handle: ConnectionHandle,
    ) {
        let Some(entry) = self.connections.get(handle) else {
            return;
        };
        let Some((place, _)) = self.splicing.splices.by_stream(entry.stream) else {
            return;
        };
        let Some(splice) = self.splicing.splices.get(place) else {
            return;
        };
        let (flow, worker) = (splice.flow(), splice.worker);
        if splice.stage == Stage::Joining {
            return self.give_up_joining(ground, now_us, place, SpliceError::Ended);
        }
        let kind = UnspliceKind::Abort;
        self.clear_flows_of(ground, place);
        ground.workers[worker].send_or_defer(Deferred::Unsplice { flow, kind });
        self.break_splice(ground, now_us, place, SpliceEnd::Aborted);
    }

    /// A NIC worker does not join two connections. False if it was not asked to.
    #[cold]
    #[inline(never)]
    pub(crate) fn on_splice_refused(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        worker: usize,
        flow: FlowId,
        reason: SpliceRefusal,
    ) -> bool {
        let Some(place) = self.spliced_by(worker, flow) else {
            return self.may_be_late(ground);
        };
        ground.counters.splices_refused += 1;
        tracing::debug!(worker, ?reason, "a NIC worker refuses a splice");
        self.splicing.from_us = now_us + PAUSE_US;
        let is_again = (self.splicing.splices.get(place)).is_some_and(|splice| splice.is_again);
        if is_again {
            // The peers may have acknowledged bytes to each other that this side does not know.
            self.break_splice(ground, now_us, place, SpliceEnd::DataPlaneFailed);
            return true;
        }
        if let Some(splice) = self.give_back(ground, place, Some(SpliceError::Full)) {
            let now = Instant::from_us(now_us);
            for leg in &splice.legs {
                if let Some(entry) = self.connections.by_stream_mut(leg.stream) {
                    entry.tcp.move_again(now);
                }
            }
        }
        true
    }

    /// The connections of a splice of this name, if this worker has it.
    pub(crate) fn tuples_at(&self, worker: usize, flow: FlowId) -> Option<[Tuple; 2]> {
        let splice = self.splicing.splices.get(self.spliced_by(worker, flow)?)?;
        let is_joined = splice.stage == Stage::Joined;
        is_joined.then(|| splice.legs.each_ref().map(|leg| leg.tuple))
    }

    /// The splice of this name, if this worker has it.
    pub(super) fn spliced_by(&self, worker: usize, flow: FlowId) -> Option<Place> {
        let place = self.splicing.splices.by_flow(flow)?;
        let splice = self.splicing.splices.get(place)?;
        (splice.stage != Stage::Joining && splice.worker == worker).then_some(place)
    }

    /// A report may be of a splice that has ended here meanwhile.
    pub(super) fn may_be_late(&self, ground: &Ground) -> bool {
        ground.counters.splices_joined > 0
    }

    /// Bytes have passed.
    #[cold]
    #[inline(never)]
    pub(crate) fn on_splice_progress(
        &mut self,
        ground: &mut Ground,
        worker: usize,
        progress: &[SpliceProgress],
    ) -> bool {
        for it in progress {
            if let Some(place) = self.spliced_by(worker, it.flow) {
                self.on_passed(ground, place, it.passed_bytes);
                self.on_finished_legs(place, it);
                let splice = self.splicing.splices.get(place);
                if let Some(bytes) = splice.map(Splice::bytes) {
                    self.tell_of_splice(ground, place, SpliceEvent::Progress { bytes });
                }
            }
        }
        self.may_be_late(ground)
    }

    /// A NIC stack that takes the place of another has to know of a FIN that went through.
    fn on_finished_legs(&mut self, place: Place, progress: &SpliceProgress) {
        let Some(splice) = self.splicing.splices.get_mut(place) else {
            return;
        };
        for side in BOTH {
            let leg = &mut splice.legs[side];
            if let (true, Some(numbers)) = (progress.has_finished[side], leg.numbers) {
                let passed = progress.passed_bytes[side] as u32;
                leg.fin_end = Some(numbers.rcv_nxt.wrapping_add(passed).wrapping_add(1));
            }
        }
    }

    fn on_passed(&mut self, ground: &mut Ground, place: Place, passed_bytes: [u64; 2]) {
        let Some(splice) = self.splicing.splices.get_mut(place) else {
            return;
        };
        for side in BOTH {
            let before = splice.passed_bytes[side];
            let passed = passed_bytes[side].max(before);
            splice.passed_bytes[side] = passed;
            ground.counters.spliced_bytes += passed - before;
        }
    }

    /// A splice has ended at a NIC worker.
    #[cold]
    #[inline(never)]
    pub(crate) fn on_splice_ended(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        worker: usize,
        outcome: &SpliceOutcome,
        reason: SpliceEndReason,
    ) -> bool {
        let Some(place) = self.spliced_by(worker, outcome.flow) else {
            return self.may_be_late(ground);
        };
        self.on_passed(ground, place, outcome.passed_bytes);
        let end = match reason {
            SpliceEndReason::Finished => SpliceEnd::Finished,
            SpliceEndReason::ResetByFirst => SpliceEnd::Reset { by_second: false },
            SpliceEndReason::ResetBySecond => SpliceEnd::Reset { by_second: true },
            SpliceEndReason::Idle => SpliceEnd::Idle,
            SpliceEndReason::Overdue => SpliceEnd::Overdue,
            SpliceEndReason::Aborted => SpliceEnd::Aborted,
            SpliceEndReason::NotReturned => SpliceEnd::DataPlaneFailed,
        };
        if end != SpliceEnd::Finished {
            self.break_splice(ground, now_us, place, end);
            return true;
        }
        ground.counters.splices_finished += 1;
        let now = Instant::from_us(now_us);
        if let Some(splice) = self.end_splice(ground, place, end) {
            for side in BOTH {
                if let Some(entry) = self.connections.by_stream_mut(splice.legs[side].stream) {
                    entry.tcp.finish_joined(now, &rejoin_numbers(outcome, side));
                }
            }
        }
        true
    }

    /// Reports the end of a splice to its application; its streams end next.
    fn end_splice(
        &mut self,
        ground: &mut Ground,
        place: Place,
        end: SpliceEnd,
    ) -> Option<Box<Splice>> {
        let bytes = self.splicing.splices.get(place)?.bytes();
        self.tell_of_splice(ground, place, SpliceEvent::Ended { end, bytes });
        self.let_go_of(ground, place)
    }

    /// A splice has ended otherwise than in order.
    fn break_splice(&mut self, ground: &mut Ground, now_us: u64, place: Place, end: SpliceEnd) {
        ground.counters.splices_broken += 1;
        let Some(splice) = self.end_splice(ground, place, end) else {
            return;
        };
        // The NIC worker resets the peers, if there is one.
        let is_alone =
            end == SpliceEnd::DataPlaneFailed || !ground.workers[splice.worker].is_there();
        for side in BOTH {
            let Some(entry) = self.connections.by_stream_mut(splice.legs[side].stream) else {
                continue;
            };
            let by = |second: bool| second == (side == 1);
            let reason = match end {
                SpliceEnd::Finished => CloseReason::Finished,
                SpliceEnd::Reset { by_second } if by(by_second) => CloseReason::Reset,
                SpliceEnd::Idle | SpliceEnd::Overdue => CloseReason::TimedOut,
                SpliceEnd::Reset { .. } | SpliceEnd::Aborted | SpliceEnd::DataPlaneFailed => {
                    CloseReason::Aborted
                }
            };
            entry.data_plane_failed |= end == SpliceEnd::DataPlaneFailed;
            entry.tcp.break_joined(reason);
            if is_alone {
                self.probe(ground, now_us, &splice, side);
            }
        }
    }

    /// Sends a peer an old segment: it answers with the sequence number that it expects, and gets
    /// RST with that number. If the segment is lost, the peer gets RST when it next sends
    /// something.
    fn probe(&mut self, ground: &mut Ground, now_us: u64, splice: &Splice, side: Side) {
        let leg = &splice.legs[side];
        let Some(numbers) = leg.numbers else {
            return;
        };
        let timestamps = numbers
            .timestamps
            .map(|(value, echo_reply)| Timestamps { value, echo_reply });
        let header = Header {
            seq: numbers.snd_nxt.wrapping_sub(1),
            ack: numbers.rcv_nxt,
            flags: Flags::ACK,
            options: Options {
                timestamps,
                ..Options::default()
            },
            ..Header::default()
        };
        self.send_bare(ground, now_us, leg.tuple, &header);
    }

    /// A NIC worker has given two connections back.
    #[cold]
    #[inline(never)]
    pub(crate) fn on_unspliced(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        worker: usize,
        outcome: &SpliceOutcome,
    ) -> bool {
        let Some(place) = self.spliced_by(worker, outcome.flow) else {
            return self.may_be_late(ground);
        };
        ground.counters.splices_returned += 1;
        self.on_passed(ground, place, outcome.passed_bytes);
        let now = Instant::from_us(now_us);
        for side in BOTH {
            let Some(splice) = self.splicing.splices.get(place) else {
                break;
            };
            let stream = splice.legs[side].stream;
            if let Some(entry) = self.connections.by_stream_mut(stream) {
                entry.tcp.rejoin(now, &rejoin_numbers(outcome, side));
            }
        }
        self.give_back(ground, place, None);
        true
    }

    /// A worker has been replaced by one that knows nothing.
    pub(crate) fn splice_again_with(&mut self, ground: &mut Ground, worker: usize) {
        for place in self.splicing.splices.of_workers(|of| of == worker) {
            self.splice_again(ground, place);
        }
    }

    fn splice_again(&mut self, ground: &mut Ground, place: Place) {
        self.clear_flows_of(ground, place);
        let Some(splice) = self.splicing.splices.get(place) else {
            return;
        };
        let (flow, worker) = (splice.flow(), splice.worker);
        let is_returning = splice.stage == Stage::Returning;
        let Some(command) = self.splice_command(ground, splice, true) else {
            return;
        };
        if let Some(splice) = self.splicing.splices.get_mut(place) {
            splice.is_again = true;
        }
        ground.counters.splices_repeated += 1;
        let nic = &mut ground.workers[worker];
        nic.send_or_defer(Deferred::Splice(command));
        if is_returning {
            let kind = UnspliceKind::Return;
            nic.send_or_defer(Deferred::Unsplice { flow, kind });
        }
    }

    /// The workers of NIC stacks that are away have splices: others that are there get them.
    pub(crate) fn splice_elsewhere(&mut self, ground: &mut Ground) {
        if !self.has_splices() {
            return;
        }
        let away = |worker: usize| !ground.workers[worker].is_there();
        for place in self.splicing.splices.of_workers(away) {
            let there = ground.nic_stacks.workers_to_choose(NicSet::default());
            let Some(worker) = ground.least_busy(there) else {
                return;
            };
            if let Some(splice) = self.splicing.splices.get_mut(place) {
                splice.worker = worker;
            }
            self.splice_again(ground, place);
        }
    }

    /// A NIC stack is not awaited any more: its splices end.
    pub(crate) fn break_splices_of(&mut self, ground: &mut Ground, now_us: u64, nic: usize) {
        let workers = ground.nic_stacks.workers(nic);
        for place in self.splicing.splices.of_workers(|of| workers.contains(&of)) {
            self.break_splice(ground, now_us, place, SpliceEnd::DataPlaneFailed);
        }
    }
}

fn rejoin_numbers(outcome: &SpliceOutcome, side: Side) -> RejoinNumbers {
    let leg = &outcome.legs[side];
    RejoinNumbers {
        snd_nxt: leg.snd_nxt,
        rcv_nxt: leg.rcv_nxt,
        snd_window_bytes: leg.snd_window_bytes,
        rcv_window_bytes: leg.rcv_window_bytes,
        ts_value: leg.ts_value,
        ts_recent: leg.ts_recent,
    }
}
