//! Commands: what each asks for, and what is wrong with it.
//!
//! The host is untrusted input. Whatever stands in a command, the answer is an event at worst.

use contract::{Command, Event, FileId, FlowId, RejectReason, Send};
use port::Port;

use crate::engine::{Clock, Engine};
use crate::flow::Flow;
use crate::slab::Key;

impl<P: Port> Engine<P> {
    /// Carries out a command, or starts to.
    pub(crate) fn command(&mut self, command: &Command<'_>, clock: Clock<'_>) {
        match command {
            Command::Open { file, path } => {
                self.counters.opens += 1;
                self.open(*file, path);
            }
            Command::Close { file } => {
                self.counters.closes += 1;
                self.close(*file);
            }
            Command::Send(send) => {
                self.counters.sends += 1;
                self.send(send, clock);
            }
            Command::Acked {
                flow,
                stream_offset,
                last,
            } => {
                self.counters.ackds += 1;
                self.acked(*flow, *stream_offset, *last);
            }
        }
    }

    pub(crate) fn reject(&mut self, reason: RejectReason, id: u64) {
        self.counters.rejected += 1;
        self.emit(Event::Rejected { reason, id });
    }

    fn open(&mut self, id: FileId, path: &[u8]) {
        if self.files.find(id).is_some() {
            self.reject(RejectReason::FileInUse, id.0.into());
        } else if self.files.len() >= self.limits.files_max {
            self.reject(RejectReason::TooManyFiles, id.0.into());
        } else {
            let token = self.files.insert(id);
            self.reader.open(token, path);
        }
    }

    fn close(&mut self, id: FileId) {
        let closed = self.files.close(id, &mut self.blocks, self.reader.as_mut());
        if !closed {
            self.reject(RejectReason::UnknownFile, id.0.into());
        }
    }

    fn send(&mut self, send: &Send<'_>, clock: Clock<'_>) {
        let known = self.flow_keys.get(&send.flow).copied();
        if let Some(flow) = known.and_then(|key| self.flows.get(key))
            && flow.failed
        {
            return;
        }
        if known.is_none() && self.flows.len() >= self.limits.flows_max {
            return self.reject(RejectReason::TooManyFlows, send.id.0);
        }
        let mut job = self.spare_job();
        if let Err(reason) = job.accept(send, |ipv6| self.port.superpacket_max(ipv6), &self.files) {
            self.keep_spare_job(job);
            return self.reject(reason, send.id.0);
        }
        if send.not_before_us > send.issued_us {
            let shortened = job.hold(send, clock());
            self.counters.paced += 1;
            self.counters.holds_shortened += u64::from(shortened);
        }
        for file in job.files() {
            self.files.acquire(file);
        }
        self.jobs += 1;
        let key = known.unwrap_or_else(|| {
            let key = self.flows.insert(Flow::new(send.flow));
            self.flow_keys.insert(send.flow, key);
            key
        });
        if let Some(flow) = self.flows.get_mut(key) {
            flow.jobs.push_back(job);
            flow.retention
                .acknowledge(send.acked_offset, &mut self.blocks);
        }
        self.want_to_plan(key);
    }

    fn acked(&mut self, id: FlowId, stream_offset: u64, last: bool) {
        // A flow that has nothing queued or retained is not known, which is all right.
        let Some(&key) = self.flow_keys.get(&id) else {
            return;
        };
        if last {
            self.empty(key);
            self.forget(key);
        } else if let Some(flow) = self.flows.get_mut(key) {
            flow.retention.acknowledge(stream_offset, &mut self.blocks);
            self.forget_if_idle(key);
        }
    }

    /// Forgets a flow of which nothing is left to remember.
    pub(crate) fn forget_if_idle(&mut self, key: Key) {
        if self.flows.get(key).is_some_and(Flow::is_idle) {
            self.forget(key);
        }
    }

    fn forget(&mut self, key: Key) {
        if let Some(flow) = self.flows.remove(key) {
            self.flow_keys.remove(&flow.id);
        }
    }
}
