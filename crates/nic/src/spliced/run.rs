//! The worker's handling of splices: commands, frames, time and reports.

use contract::limits::SPLICE_PROGRESS_MAX;
use contract::splicing::{
    Splice as Command, SpliceEndReason, SpliceOutcome, SpliceRefusal, UnspliceKind,
};
use contract::{Event, FlowId};
use netdev::Port;
use wire::frame::{TcpPacket, TcpTemplate};
use wire::ip::Ecn;
use wire::tcp::{Flags, Header};

use super::output::Leaves;
use super::splice::{Side, Splice, Verdict};
use super::table::Entry;
use crate::addresses::Addresses;
use crate::engine::{Clock, EVENTS_WAITING_MAX, Engine};
use crate::packet::PacketHeader;
use crate::slab::Key;
use crate::timers::NEVER_US;

/// Due splices handled in one turn.
const DUE_MAX: usize = 64;

/// Interval between reports of a splice's progress, in microseconds.
const REPORT_US: u64 = 1_000_000;

/// Bytes after which a report is sent early: a fast splice passes more in a second than a successor
/// assumes.
const REPORT_BYTES: u64 = 256 << 20;

const _: () = assert!(
    2 * REPORT_BYTES <= super::splice::UNKNOWN_MAX as u64,
    "a report that is lost with its NIC process does not stop the splice"
);

/// How long a splice stays after a RST, in microseconds: packets on their way to the peer that has
/// gone are answered with RST, which passes.
const RESET_US: u64 = 1_000_000;

/// Time after UNSPLICE, in microseconds, in which the peers must acknowledge more of the passed
/// bytes.
const RETURN_US: u64 = 180_000_000;

/// Least interval between answers to SYNs of a splice, in microseconds (RFC 5961 §7).
const CHALLENGE_US: u64 = 500_000;

/// Time after which silent peers of a predecessor's splice are probed, in microseconds. It doubles
/// with each probe, up to [`ASK_US_MAX`].
const ASK_US: u64 = 1_000_000;
const ASK_US_MAX: u64 = 64_000_000;

const BOTH: [Side; 2] = [0, 1];

impl<P: Port> Engine<P> {
    /// Carries out SPLICE.
    pub(crate) fn splice(&mut self, command: &Command<'_>, clock: Clock<'_>) {
        self.counters.splices += 1;
        // The worker's state of a splice is newer than a repeated command.
        if self.spliced.table.by_flow(command.flow).is_some() {
            return;
        }
        if let Err(reason) = self.try_splice(command, clock()) {
            self.counters.splices_refused += 1;
            let flow = command.flow;
            self.emit(Event::SpliceRefused { flow, reason });
        }
    }

    fn try_splice(&mut self, command: &Command<'_>, now_us: u64) -> Result<(), SpliceRefusal> {
        let splice = Splice::new(command).ok_or(SpliceRefusal::BadHeader)?;
        let [first, second] = BOTH.map(|side| Addresses::of(splice.template(side)));
        let is_in_use = |addresses: &Addresses| {
            self.spliced.table.by_addresses(addresses).is_some()
                || self.parted.has_addresses(addresses)
        };
        if first == second || is_in_use(&first) || is_in_use(&second) {
            return Err(SpliceRefusal::AddressesInUse);
        }
        if self.spliced.table.is_full() {
            return Err(SpliceRefusal::Full);
        }
        let after = |ms: u32, from_us: u64| match ms {
            0 => NEVER_US,
            ms => from_us.saturating_add(u64::from(ms) * 1000),
        };
        let mut entry = Entry::new(command.flow, splice, now_us);
        entry.idle_us = after(command.idle_ms, 0);
        entry.overdue_us = after(command.life_ms, now_us);
        if command.is_again {
            entry.ask_us = now_us.saturating_add(ASK_US);
            entry.ask_after_us = 2 * ASK_US;
        }
        let key = self.spliced.table.insert(entry);
        self.take_flow(command.flow);
        if !command.is_again {
            // Each peer gets the current acknowledgment, and the window of the other.
            for side in BOTH {
                self.tell_peer(key, side, Splice::acknowledgment);
            }
        }
        Ok(())
    }

    /// Carries out SPLICEMSS.
    pub(crate) fn reduce_splice_mss(&mut self, flow: FlowId, leg: u8, mss: u16, seq: u32) {
        let key = self.spliced.table.by_flow(flow);
        let entry = key.and_then(|key| self.spliced.table.get_mut(key));
        if entry.is_some_and(|entry| entry.splice.reduce_mss(usize::from(leg), mss, seq)) {
            self.emit(Event::SpliceMssReduced { flow, leg, mss });
        } else {
            self.counters.splice_mss_ignored += 1;
        }
    }

    /// Carries out UNSPLICE.
    pub(crate) fn unsplice(&mut self, flow: FlowId, kind: UnspliceKind, clock: Clock<'_>) {
        let Some(key) = self.spliced.table.by_flow(flow) else {
            return;
        };
        match kind {
            UnspliceKind::Abort => self.reset_both(key, SpliceEndReason::Aborted),
            UnspliceKind::Return => {
                let Some(entry) = self.spliced.table.get_mut(key) else {
                    return;
                };
                if entry.splice.is_returning() || !entry.splice.begin_return() {
                    return;
                }
                entry.until_us = clock().saturating_add(RETURN_US);
                self.spliced.table.arm(key);
                if !self.return_if_quiet(key) {
                    // Probes both peers for their positions.
                    for side in BOTH {
                        self.tell_peer(key, side, Splice::probe);
                    }
                }
            }
        }
    }

    /// Handles a frame of the peer of a leg.
    pub(crate) fn on_spliced_frame(
        &mut self,
        (key, side): (Key, Side),
        packet: &TcpPacket<'_>,
        clock: Clock<'_>,
    ) {
        let has_held_back = self.spliced.has_held_back();
        let Some(entry) = self.spliced.table.get_mut(key) else {
            return;
        };
        let now_us = clock();
        let acked = entry.splice.acked();
        let had_finished = entry.splice.has_finished();
        let passed = match entry.splice.on_segment(side, &packet.segment) {
            Verdict::Pass(passed) => passed,
            Verdict::Drop => {
                self.counters.spliced_frames_dropped += 1;
                // Its acknowledgment may have been the last one missing.
                self.return_if_quiet(key);
                return;
            }
            Verdict::Challenge => {
                self.counters.spliced_frames_dropped += 1;
                if now_us >= entry.challenge_us {
                    entry.challenge_us = now_us.saturating_add(CHALLENGE_US);
                    self.tell_peer(key, side, Splice::acknowledgment);
                }
                return;
            }
        };
        entry.passed_us = now_us;
        let is_finished = entry.splice.is_finished();
        let mut leaves = Leaves::AtOnce;
        // A repetition of a FIN does not overtake the FIN.
        let repeats_fin = has_held_back && passed.header.flags.contains(Flags::FIN);
        if entry.splice.has_finished() != had_finished && !is_finished {
            // A successor of this NIC stack has to know of a FIN.
            leaves = Leaves::BehindReports;
            let progress = entry.report();
            self.spliced.progress.push(progress);
        } else if is_finished || repeats_fin {
            leaves = Leaves::BehindReports;
        } else if passed.new_bytes > 0 {
            entry.unreported_bytes += passed.new_bytes;
            if entry.unreported_bytes >= REPORT_BYTES {
                let progress = entry.report();
                self.spliced.progress.push(progress);
            } else if entry.report_us == NEVER_US {
                entry.report_us = now_us.saturating_add(REPORT_US);
            }
        }
        if entry.splice.is_returning() {
            if entry.splice.acked() > acked {
                entry.until_us = now_us.saturating_add(RETURN_US);
            }
        } else {
            entry.until_us = match (entry.splice.reset_by(), entry.until_us) {
                (None, _) => NEVER_US,
                (Some(_), NEVER_US) => now_us.saturating_add(RESET_US),
                (Some(_), until_us) => until_us,
            };
        }
        self.counters.spliced_bytes += passed.new_bytes;
        let other = 1 - side;
        let template = marked(entry.splice.template(other), passed.ecn);
        let mss = entry.splice.mss(other, &passed.header);
        self.spliced.table.arm(key);
        self.pass_on(&template, &passed.header, passed.payload, mss, leaves);
        if is_finished {
            // Should a peer send its FIN again, the host answers, in TIME-WAIT.
            self.end_splice(key, SpliceEndReason::Finished);
        } else {
            self.return_if_quiet(key);
        }
    }

    /// Sends a packet of the worker's own to the peer of a leg.
    fn tell_peer(&mut self, key: Key, side: Side, header: impl Fn(&Splice, Side) -> Header) {
        let Some(entry) = self.spliced.table.get(key) else {
            return;
        };
        let header = header(&entry.splice, side);
        let mss = entry.splice.mss(side, &header);
        let template = marked(entry.splice.template(side), Ecn::NotEct);
        if let Some(header) = PacketHeader::of(&template, &header, 0, mss) {
            self.put_spliced(header, &[]);
        }
    }

    /// Returns a splice to the host, if all passed bytes are acknowledged. True if so.
    fn return_if_quiet(&mut self, key: Key) -> bool {
        let table = &mut self.spliced.table;
        let may_return = table.get(key).is_some_and(|it| it.splice.may_return());
        if may_return && let Some(entry) = table.remove(key) {
            self.counters.splices_returned += 1;
            let outcome = outcome(&entry);
            self.spliced.over.push_back(Event::Unspliced { outcome });
        }
        may_return
    }

    fn reset_both(&mut self, key: Key, reason: SpliceEndReason) {
        for header in self.spliced.resets(key) {
            self.put_spliced(header, &[]);
        }
        self.end_splice(key, reason);
    }

    fn end_splice(&mut self, key: Key, reason: SpliceEndReason) {
        if let Some(entry) = self.spliced.table.remove(key) {
            self.counters.splices_ended += 1;
            let outcome = outcome(&entry);
            let event = Event::SpliceEnded { outcome, reason };
            self.spliced.over.push_back(event);
        }
    }

    /// Handles due splices. True if there were any.
    pub(crate) fn on_spliced_time(&mut self, clock: Clock<'_>) -> bool {
        if self.spliced.next_us().is_none() {
            return false;
        }
        let now_us = clock();
        let mut worked = false;
        for _ in 0..DUE_MAX {
            let Some(key) = self.spliced.table.take_due(now_us) else {
                break;
            };
            worked = true;
            self.on_splice_due(key, now_us);
        }
        worked
    }

    fn on_splice_due(&mut self, key: Key, now_us: u64) {
        let Some(entry) = self.spliced.table.get_mut(key) else {
            return;
        };
        if now_us >= entry.report_us {
            let progress = entry.report();
            self.spliced.progress.push(progress);
        }
        if now_us >= entry.until_us {
            return match entry.splice.reset_by() {
                None => self.reset_both(key, SpliceEndReason::NotReturned),
                Some(by) if entry.splice.has_finished_before(by) => {
                    self.end_splice(key, SpliceEndReason::Finished);
                }
                Some(0) => self.end_splice(key, SpliceEndReason::ResetByFirst),
                Some(_) => self.end_splice(key, SpliceEndReason::ResetBySecond),
            };
        }
        if now_us >= entry.ask_us {
            let silent = BOTH.map(|side| entry.splice.is_silent(side));
            entry.ask_us = match silent {
                [false, false] => NEVER_US,
                _ => now_us.saturating_add(entry.ask_after_us),
            };
            entry.ask_after_us = (entry.ask_after_us * 2).min(ASK_US_MAX);
            for side in BOTH.into_iter().filter(|side| silent[*side]) {
                self.tell_peer(key, side, Splice::probe);
            }
        }
        let Some(entry) = self.spliced.table.get(key) else {
            return;
        };
        if now_us >= entry.overdue_us {
            return self.reset_both(key, SpliceEndReason::Overdue);
        }
        if now_us >= entry.passed_us.saturating_add(entry.idle_us) {
            return self.reset_both(key, SpliceEndReason::Idle);
        }
        self.spliced.table.arm(key);
    }

    /// Reports progress, ends and returns to the host, as far as it takes events. True if any was
    /// reported.
    pub(crate) fn report_splices(&mut self) -> bool {
        let mut worked = false;
        while self.spliced.has_reports() && self.events.len() < EVENTS_WAITING_MAX {
            worked = true;
            let count = self.spliced.progress.len().min(SPLICE_PROGRESS_MAX);
            if count > 0 {
                let progress = self.spliced.progress.drain(..count).collect();
                self.emit(Event::SpliceProgress { progress });
            } else if let Some(event) = self.spliced.over.pop_front() {
                self.emit(event);
            }
        }
        worked
    }
}

fn marked(template: &TcpTemplate, ecn: Ecn) -> TcpTemplate {
    TcpTemplate {
        traffic_class: ecn.mark(template.traffic_class),
        ..*template
    }
}

fn outcome(entry: &Entry) -> Box<SpliceOutcome> {
    Box::new(SpliceOutcome {
        flow: entry.flow,
        passed_bytes: entry.splice.passed_bytes(),
        legs: BOTH.map(|side| entry.splice.numbers(side)),
    })
}
