//! Connections that the host parts with: a NIC stack runs their end ([`contract::parting`]).
//!
//! | A connection is parted with | |
//! |---|---|
//! | when | all data is acknowledged, nothing is unread, and FIN is due, lost or acknowledged |
//! | if | the application has closed the connection, or the peer has: there is no more to read |
//! | unless | its application, or the stack's configuration, does not want it; this side has opened it (the host's tables choose its port again), both ends are here, its NIC worker is away, has work that waits for room, or has just refused one, or the table is full |
//!
//! Other connections continue here, as without teardown offload. A frame of a connection that is
//! elsewhere goes there; if the NIC stack is away, it is dropped, and TCP repairs the loss.
//!
//! A connection returns when its NIC stack refuses it, or stays away too long: it continues where
//! it was parted with, as a connection whose application is gone. A replacement NIC stack gets it
//! instead, and so does one that is there when the other is lost.

use std::time::Duration;

use contract::limits::FRAME_BYTES_MAX;
use contract::parting::{
    Part, PartEnd, PartEndReason, PartLimits, PartRefusal, PartStage, PartTimestamps,
};
use contract::{Command, FlowId};
use tcp::{Connection, Instant, Stage};
use wire::frame::{TcpPacket, TcpTemplate, cut};
use wire::tcp::Header;

use crate::ground::Ground;
use crate::ground::workers::{Deferred, OwnedPart};
use crate::link::neighbor::Resolution;
use crate::nics::nic_stacks::NicSet;
use crate::tables::connections::ConnectionHandle;
use crate::tables::parted::{Parted, Record};
use crate::tables::tuple::Tuple;
use crate::tcp::TcpLayer;
use crate::tcp::turns::count_stats;

/// How long a worker that has refused a connection is offered no other, in microseconds.
const PAUSE_US: u64 = 1_000_000;

/// The state of parting.
#[derive(Debug)]
pub(crate) struct Teardown {
    pub(crate) parted: Parted,
    /// Connections whose end a NIC stack may run, once nothing else is left.
    pub(crate) candidates: usize,
}

impl Teardown {
    pub(crate) fn new(secret: &[u8; 16]) -> Teardown {
        Teardown {
            parted: Parted::new(secret),
            candidates: 0,
        }
    }
}

impl TcpLayer {
    /// The application has closed a connection, or shut it down.
    pub(crate) fn on_closing(&mut self, ground: &mut Ground, handle: ConnectionHandle) {
        let permitted = ground.config.teardown_offload;
        if !permitted.is_permitted() {
            return;
        }
        if let Some(entry) = self.connections.get_mut(handle)
            && permitted.applies(entry.wants_teardown)
            && !entry.is_active
            && !entry.route.is_looped()
            && !std::mem::replace(&mut entry.may_part, true)
        {
            self.teardown.candidates += 1;
        }
    }

    /// Sets whether the application wants a NIC stack to run the end of a connection, from the next
    /// close or shutdown on.
    pub(crate) fn set_teardown(&mut self, handle: ConnectionHandle, is_wanted: bool) {
        if let Some(entry) = self.connections.get_mut(handle) {
            entry.wants_teardown = Some(is_wanted);
        }
        if !is_wanted {
            self.forget_candidate(handle);
        }
    }

    /// Removes a connection from the candidates.
    pub(crate) fn forget_candidate(&mut self, handle: ConnectionHandle) {
        if let Some(entry) = self.connections.get_mut(handle)
            && std::mem::take(&mut entry.may_part)
        {
            self.teardown.candidates -= 1;
        }
    }

    /// Parts with a connection if only its end is left: a NIC worker has it then.
    #[cold]
    #[inline(never)]
    pub(crate) fn part_with(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        handle: ConnectionHandle,
    ) -> bool {
        let Some(record) = self.remainder_of(ground, now_us, handle) else {
            return false;
        };
        let part = self.part_command(ground, now_us, &record);
        let worker = record.worker();
        if ground.workers[worker]
            .channel
            .send(&part.command())
            .is_err()
        {
            return false;
        }
        ground.counters.parts += 1;
        self.teardown.parted.insert(record);
        if let Some(entry) = self.connections.get_mut(handle) {
            entry.dirty = false;
            count_stats(&mut ground.counters, entry);
        }
        true
    }

    /// The record of a connection that can be parted with now.
    fn remainder_of(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        handle: ConnectionHandle,
    ) -> Option<Record> {
        let entry = self.connections.get_mut(handle)?;
        if !entry.may_part {
            return None;
        }
        let remainder = entry.tcp.remainder()?;
        let peer_has_closed = matches!(remainder.stage, Stage::Closing | Stage::LastAck);
        // The application may still get events if it has not closed, and TLS has its own end.
        let is_wanted = entry.told && (!peer_has_closed || entry.tls.is_some());
        if is_wanted || entry.nic.holds > 0 || entry.data_plane_failed || !entry.is_drained() {
            return None;
        }
        let (worker, flow, tuple) = (entry.nic.worker, entry.flow(), entry.tuple);
        let traffic_class = entry.traffic_class;
        let Resolution::Known(mac) = ground.neighbors.resolve_route(now_us, &mut entry.route)
        else {
            return None;
        };
        let nic = &mut ground.workers[worker];
        if now_us < nic.parts_from_us || !nic.has_room() || self.teardown.parted.contains(&tuple) {
            return None;
        }
        self.forget_overdue(ground, now_us);
        if self.teardown.parted.len() >= ground.config.parted_max {
            return None;
        }
        let mut record = Record::new(now_us, flow, &tuple, mac, worker, remainder);
        record.traffic_class = traffic_class;
        Some(record)
    }

    /// Forgets connections whose end no NIC stack has reported for far too long.
    fn forget_overdue(&mut self, ground: &mut Ground, now_us: u64) {
        while let Some(record) = self.teardown.parted.take_overdue(now_us) {
            ground.counters.parted_overdue += 1;
            ground.clear_flow(&record.tuple());
            self.free_local_port(&record.tuple());
            ground.workers[record.worker()].send_or_defer(Deferred::PartGone { flow: record.flow });
        }
    }

    fn part_command(&self, ground: &Ground, now_us: u64, record: &Record) -> OwnedPart {
        let tuple = record.tuple();
        let config = self.family_config(&tuple);
        let ms = |duration: Duration| {
            let whole = duration.as_secs().saturating_mul(1000);
            let ms = whole.saturating_add(u64::from(duration.subsec_millis()));
            u32::try_from(ms).unwrap_or(u32::MAX)
        };
        // Zero means none.
        let some_ms = |duration: Option<Duration>| duration.map_or(0, |it| ms(it).max(1));
        let remainder = &record.remainder;
        let now_ms = (now_us / 1000) as u32;
        let mut header = [0; contract::limits::HEADER_BYTES_MAX];
        let template = TcpTemplate {
            traffic_class: record.traffic_class,
            ..TcpTemplate::new(ground.link.mac, record.mac, tuple.local, tuple.remote)
        };
        let header_bytes = template.write(&Header::default(), &mut header).unwrap_or(0);
        let part = Part {
            flow: record.flow,
            issued_us: now_us,
            stage: match remainder.stage {
                Stage::FinWait1 => PartStage::FinWait1,
                Stage::FinWait2 => PartStage::FinWait2,
                Stage::Closing => PartStage::Closing,
                Stage::LastAck => PartStage::LastAck,
            },
            owes_ack: remainder.owes_ack,
            fin_seq: remainder.fin_seq,
            rcv_nxt: remainder.rcv_nxt,
            rcv_window_bytes: remainder.rcv_window_bytes,
            rcv_shift: remainder.rcv_shift,
            snd_window_bytes: remainder.snd_window_bytes,
            snd_window_bytes_max: remainder.snd_window_bytes_max,
            snd_shift: remainder.snd_shift,
            mss: config.mss.max(1),
            timestamps: remainder.timestamps.map(|(offset, recent)| PartTimestamps {
                value: offset.wrapping_add(now_ms),
                recent,
            }),
            srtt_us: remainder.srtt_us,
            rttvar_us: remainder.rttvar_us,
            backoff: remainder.backoff,
            limits: PartLimits {
                rto_initial_ms: ms(config.rto_initial),
                rto_min_ms: ms(config.rto_min),
                rto_max_ms: ms(config.rto_max),
                user_timeout_ms: remainder.user_timeout_ms,
                time_wait_ms: ms(config.time_wait),
                fin_wait_2_ms: some_ms(config.fin_wait_2),
                challenge_acks_max: config.challenge_acks_max,
                challenge_acks_interval_ms: ms(config.challenge_acks_interval),
                fin_retries: config.fin_retries.min(config.retries),
            },
            header: &[],
        };
        OwnedPart {
            part,
            header,
            header_bytes,
        }
    }

    /// Hands a frame on, if it belongs to a connection parted with. True if so.
    pub(crate) fn hand_on(
        &mut self,
        ground: &mut Ground,
        packet: &TcpPacket<'_>,
        bytes: &[u8],
    ) -> bool {
        if ground.is_handed_up {
            return false;
        }
        let Some(record) = self.teardown.parted.by_tuple(&Tuple::of(packet)) else {
            return false;
        };
        let nic = &mut ground.workers[record.worker()];
        let shortened;
        let bytes = if bytes.len() <= FRAME_BYTES_MAX {
            Some(bytes)
        } else {
            shortened = cut(bytes, FRAME_BYTES_MAX);
            shortened.as_deref()
        };
        let is_sent = bytes.is_some_and(|bytes| {
            nic.has_room() && nic.channel.send(&Command::Frame { bytes }).is_ok()
        });
        match is_sent {
            true => ground.counters.frames_handed_on += 1,
            false => ground.counters.frames_not_handed_on += 1,
        }
        true
    }

    /// A NIC worker refuses a connection; false if it was not offered to it.
    pub(crate) fn on_part_refused(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        worker: usize,
        flow: FlowId,
        reason: PartRefusal,
    ) -> bool {
        let record = self.teardown.parted.by_flow(flow);
        if record.is_none_or(|record| record.worker() != worker) {
            // It may have moved to another worker meanwhile.
            return record.is_some() || ground.may_have_moved();
        }
        ground.counters.parts_refused += 1;
        tracing::debug!(worker, ?reason, "a NIC worker refuses a connection");
        ground.workers[worker].parts_from_us = now_us + PAUSE_US;
        self.take_back(ground, now_us, flow);
        true
    }

    /// Connections have ended at a NIC worker.
    pub(crate) fn on_part_ended(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        worker: usize,
        ends: &[PartEnd],
    ) -> bool {
        for end in ends {
            let parted = &mut self.teardown.parted;
            let Some(record) = parted.remove_if(end.flow, |record| record.worker() == worker)
            else {
                // It was taken back or forgotten meanwhile, or has moved to another worker.
                continue;
            };
            ground.clear_flow(&record.tuple());
            self.free_local_port(&record.tuple());
            match end.reason {
                PartEndReason::Finished | PartEndReason::Replaced => {
                    ground.counters.parted_finished += 1;
                }
                PartEndReason::Reset | PartEndReason::TimedOut | PartEndReason::Aborted => {
                    ground.counters.parted_broken += 1;
                }
            }
            if end.reason == PartEndReason::Replaced {
                // The SYN that follows must begin beyond this TIME-WAIT.
                let tuple = record.tuple();
                let config = self.tcp_config(ground, &tuple, None);
                let now = Instant::from_us(now_us);
                let time_wait = record.remainder.time_wait(&config, now);
                self.time_waits.insert(&tuple, time_wait);
            }
        }
        true
    }

    fn free_local_port(&mut self, tuple: &Tuple) {
        self.ephemeral_ports.on_freed(tuple.local, tuple.remote);
    }

    /// Continues a connection here that was parted with.
    fn take_back(&mut self, ground: &mut Ground, now_us: u64, flow: FlowId) {
        let Some(record) = self.teardown.parted.remove(flow) else {
            return;
        };
        let tuple = record.tuple();
        ground.clear_flow(&tuple);
        if self.connections.find(&tuple).is_some() {
            return;
        }
        ground.counters.parted_taken_back += 1;
        let config = self.tcp_config(ground, &tuple, None);
        let now = Instant::from_us(now_us);
        let (local_port, remote_port) = (tuple.local.port(), tuple.remote.port());
        let connection =
            Connection::resume(&config, local_port, remote_port, &record.remainder, now);
        let handle = self.insert(ground, connection, tuple);
        ground.sources.add(tuple.remote.ip());
        if let Some(entry) = self.connections.get_mut(handle) {
            entry.heard = true;
        }
        self.mark_dirty(handle);
    }

    /// A worker without state has replaced another.
    pub(crate) fn part_again_with(&mut self, ground: &mut Ground, now_us: u64, worker: usize) {
        ground.workers[worker].parts_from_us = 0;
        for flow in self.teardown.parted.of_workers(|of| of == worker) {
            if let Some(record) = self.teardown.parted.by_flow(flow) {
                ground.clear_flow(&record.tuple());
                let part = self.part_command(ground, now_us, record);
                ground.counters.parts_repeated += 1;
                ground.workers[worker].send_or_defer(Deferred::Part(Box::new(part)));
            }
        }
    }

    /// Gives connections at NIC stacks that are away to workers that are there.
    pub(crate) fn part_with_elsewhere(&mut self, ground: &mut Ground, now_us: u64) {
        if self.teardown.parted.len() == 0 {
            return;
        }
        let away = |worker: usize| !ground.workers[worker].is_there();
        let flows = self.teardown.parted.of_workers(away);
        for flow in flows {
            let there = ground.nic_stacks.workers_to_choose(NicSet::default());
            let Some(worker) = ground.least_busy(there) else {
                return;
            };
            self.teardown.parted.change_worker(flow, worker);
            if let Some(record) = self.teardown.parted.by_flow(flow) {
                ground.clear_flow(&record.tuple());
                let part = self.part_command(ground, now_us, record);
                ground.counters.parts_repeated += 1;
                ground.workers[worker].send_or_defer(Deferred::Part(Box::new(part)));
            }
        }
    }

    /// Takes connections back: NIC stack `nic` is awaited no more.
    pub(crate) fn take_back_from(&mut self, ground: &mut Ground, now_us: u64, nic: usize) {
        let workers = ground.nic_stacks.workers(nic);
        for flow in self.teardown.parted.of_workers(|of| workers.contains(&of)) {
            self.take_back(ground, now_us, flow);
        }
    }
}
