//! Commands: their validation and execution.
//!
//! The host is untrusted input. The worst effect of any command is an event.

use contract::{Command, Event, FileId, FlowId, RejectReason, Send};
use netdev::Port;
use rustix::io::Errno;

use crate::engine::{Clock, Engine};
use crate::flow::Flow;
use crate::job::Job;
use crate::shrink;
use crate::slab::Key;

/// Directories waiting to be listed, or being listed: more are refused, since each answer takes
/// memory.
const LISTS_MAX: usize = 256;

impl<P: Port> Engine<P> {
    /// Carries out a command, or starts to.
    pub(crate) fn command(&mut self, command: &Command<'_>, clock: Clock<'_>) {
        match command {
            Command::Open { file, growth, path } => {
                self.counters.opens += 1;
                if self.may_name(*file) {
                    let token = self.files.insert(*file);
                    self.reader.open(token, path, *growth);
                }
            }
            Command::OpenPassed { file, passed } => {
                self.counters.opens += 1;
                if self.may_name(*file) {
                    let token = self.files.insert(*file);
                    self.reader.open_passed(token, *passed);
                }
            }
            Command::List { file, from, path } => {
                self.counters.lists += 1;
                self.list(*file, path, *from);
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
            Command::Key(key) => {
                self.counters.keys += 1;
                if let Err(reason) = self.install_key(key) {
                    self.reject(reason, key.flow.0);
                }
            }
            Command::KeyGone { flow, epoch } => {
                if let Err(reason) = self.let_key_go(*flow, *epoch) {
                    self.reject(reason, flow.0);
                }
            }
            Command::Records(records) => {
                self.counters.record_runs += 1;
                if let Err(reason) = self.define_records(records) {
                    self.reject(reason, records.flow.0);
                }
            }
            Command::Frame { bytes } => self.frame(bytes, clock),
            Command::Part(part) => self.part(part, clock),
            Command::PartGone { flow } => self.part_gone(*flow),
            Command::Splice(splice) => self.splice(splice, clock),
            Command::SpliceMss {
                flow,
                leg,
                mss,
                seq,
            } => self.reduce_splice_mss(*flow, *leg, *mss, *seq),
            Command::Unsplice { flow, kind } => self.unsplice(*flow, *kind, clock),
            Command::Setup(setup) => self.setup(setup),
            Command::QuicKey(key) => self.quic_key(key),
            Command::QuicKeyGone { flow, generation } => self.quic_key_gone(*flow, *generation),
            Command::QuicSend(send) => self.quic_send(send, clock),
            Command::Prepare(prepare) => self.prepare(prepare),
            Command::QuicRelease {
                flow,
                file,
                offset,
                len,
            } => self.quic_release(*flow, *file, *offset, *len),
            Command::QuicReceiveKey(key) => self.quic_receive_key(key),
            Command::QuicConnectionId { flow, id } => self.quic_connection_id(*flow, *id),
            Command::QuicReceiveKeyGone { flow } => self.quic_receive_key_gone(*flow),
        }
    }

    pub(crate) fn reject(&mut self, reason: RejectReason, id: u64) {
        self.counters.commands_rejected += 1;
        self.emit(Event::Rejected { reason, id });
    }

    /// True if a file may get this id; otherwise the command is rejected.
    fn may_name(&mut self, id: FileId) -> bool {
        let reason = if self.files.find(id).is_some() {
            RejectReason::FileInUse
        } else if self.files.len() >= self.limits.files_max {
            RejectReason::TooManyFiles
        } else {
            return true;
        };
        self.reject(reason, id.0.into());
        false
    }

    fn list(&mut self, id: FileId, path: &[u8], from: u64) {
        if !self.may_name(id) {
            return;
        }
        if self.lists >= LISTS_MAX {
            self.counters.opens_failed += 1;
            let errno = Errno::BUSY.raw_os_error() as u16;
            self.emit(Event::OpenFailed { file: id, errno });
        } else {
            self.lists += 1;
            let token = self.files.insert(id);
            self.reader.list(token, path, from);
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
        if known.is_none() && self.flow_keys.len() >= self.limits.flows_max {
            return self.reject(RejectReason::TooManyFlows, send.id.0);
        }
        let mut job = self.spare_job();
        let sealed = known
            .and_then(|key| self.flows.get(key))
            .and_then(|flow| flow.sealed.as_deref());
        let superpacket_max = |ipv6| self.port.superpacket_max(ipv6);
        if let Err(reason) = job.accept(send, superpacket_max, &self.files, sealed) {
            self.keep_spare_job(job);
            return self.reject(reason, send.id.0);
        }
        self.take_job(&mut job, send.not_before_us, clock);
        let key = known.unwrap_or_else(|| {
            let mut flow = Flow::new(send.flow);
            if let Some(idle) = self.orphans.take(send.flow) {
                flow.acked_offset = idle.acked_offset;
                flow.departed = Some(idle.departed);
            }
            let key = self.flows.insert(flow);
            self.flow_keys.insert(send.flow, key);
            key
        });
        if let Some(flow) = self.flows.get_mut(key) {
            if let Some(stream) = &mut flow.sealed {
                for (start, len) in job.sealed() {
                    stream.acquire(start, len);
                }
            }
            flow.jobs.push_back(job);
        }
        self.acknowledge(key, send.acked_offset);
        self.want_to_plan(key);
    }

    /// Counts an accepted job: it holds its files, and waits for its time if it is paced.
    pub(crate) fn take_job(&mut self, job: &mut Job, not_before_us: u64, clock: Clock<'_>) {
        if not_before_us > job.issued_us {
            let shortened = job.hold(not_before_us, clock());
            self.counters.paced += 1;
            self.counters.holds_shortened += u64::from(shortened);
        }
        for file in job.files() {
            self.files.acquire(file);
        }
        self.jobs += 1;
    }

    fn acked(&mut self, id: FlowId, stream_offset: u64, last: bool) {
        // A flow with nothing queued or retained is idle, or unknown.
        let Some(&key) = self.flow_keys.get(&id) else {
            if last {
                self.orphans.take(id);
            } else {
                self.orphans.acknowledge(id, stream_offset);
            }
            return;
        };
        if last {
            self.empty(key);
            self.forget(key);
        } else {
            self.acknowledge(key, stream_offset);
            self.forget_if_idle(key);
        }
    }

    /// Records that all bytes of a flow before `stream_offset` have been acknowledged.
    fn acknowledge(&mut self, key: Key, stream_offset: u64) {
        let Some(flow) = self.flows.get_mut(key) else {
            return;
        };
        flow.retention.acknowledge(stream_offset, &mut self.blocks);
        flow.acked_offset = flow.acked_offset.max(stream_offset);
        if let Some(stream) = &mut flow.sealed {
            stream.acknowledge(stream_offset);
            self.drop_acknowledged(key);
        }
    }

    /// Forgets a flow if it is idle, and sets its stream positions aside.
    pub(crate) fn forget_if_idle(&mut self, key: Key) {
        if self.flows.get(key).is_some_and(Flow::is_idle)
            && let Some(flow) = self.forget(key)
        {
            self.orphans.set_aside(flow, self.limits.flows_max);
        }
    }

    fn forget(&mut self, key: Key) -> Option<Flow> {
        let flow = self.flows.remove(key)?;
        shrink::remove(&mut self.flow_keys, &flow.id);
        Some(flow)
    }
}
