//! PREPARE: reads a range of a file into memory before packets that need it get numbers.
//!
//! A PREPARE is a job that plans its blocks as those of SENDs do, and waits its turn when memory is
//! short. It has a flow of its own: nothing waits for its reads, and it waits for no departure.
//! Once its blocks are read, the requesting flow pins them, as if it had sent them.

use contract::quic::Prepare;
use contract::{Event, RejectReason};
use netdev::Port;

use super::depart::retain;
use crate::engine::Engine;
use crate::files::Files;
use crate::flow::{Flow, Front, Piece};
use crate::job::{Job, JobKind, JobSegment};
use crate::slab::Key;

impl Job {
    fn accept_prepare(&mut self, prepare: &Prepare, files: &Files) -> Result<(), RejectReason> {
        self.reset(JobKind::Stream, prepare.id, prepare.flow, 0);
        let file = files.find(prepare.file).ok_or(RejectReason::UnknownFile)?;
        let segment = JobSegment::of_file(files, file, prepare.offset, prepare.len)?;
        self.segments.push(segment);
        self.payload_len = segment.len();
        self.superpacket_payload = segment.len();
        Ok(())
    }
}

impl<P: Port> Engine<P> {
    /// PREPARE.
    pub(crate) fn prepare(&mut self, prepare: &Prepare) {
        self.counters.prepares += 1;
        if let Err(reason) = self.try_prepare(prepare) {
            self.reject(reason, prepare.id.0);
        }
    }

    fn try_prepare(&mut self, prepare: &Prepare) -> Result<(), RejectReason> {
        let mut job = self.spare_job();
        let accepted = job.accept_prepare(prepare, &self.files);
        let asker = match accepted.and_then(|()| self.quic_flow(prepare.flow)) {
            Ok(asker) => asker,
            Err(reason) => {
                self.keep_spare_job(job);
                return Err(reason);
            }
        };
        let Some(flow) = self.flows.get_mut(asker).filter(|flow| !flow.failed) else {
            self.keep_spare_job(job);
            return Ok(());
        };
        flow.quic.get_or_insert_default();
        job.kind = JobKind::Prepare { asker };
        self.take_job(&mut job, 0, &|| 0);
        self.prepares += 1;
        let mut flow = Flow::new(prepare.flow);
        flow.jobs.push_back(job);
        let key = self.flows.insert(flow);
        self.want_to_plan(key);
        Ok(())
    }

    /// True if the answer to a PREPARE of this flow is still wanted.
    pub(crate) fn is_asking(&self, asker: Key) -> bool {
        self.flows.get(asker).is_some_and(|flow| !flow.failed)
    }

    /// A PREPARE is over: its blocks are in memory, cannot be read, or are no longer wanted.
    pub(crate) fn answer_prepare(&mut self, key: Key) {
        let Some(mut flow) = self.flows.remove(key) else {
            return;
        };
        let front = flow.front(&self.blocks);
        let Some(job) = flow.jobs.pop_front() else {
            return;
        };
        let asker = match job.kind {
            JobKind::Prepare { asker } if self.is_asking(asker) => self.flows.get_mut(asker),
            _ => None,
        };
        let quic = asker.and_then(|asker| asker.quic.as_deref_mut());
        let (prepare, id) = (job.id, job.flow);
        match (front, quic) {
            (Front::Ready, Some(quic)) => {
                retain(quic, flow.pieces.drain(..), &mut self.blocks);
                self.counters.prepares_ready += 1;
                self.emit(Event::Ready { prepare, flow: id });
            }
            (Front::Failed { origin, errno }, Some(_)) => {
                self.counters.reads_failed += 1;
                self.emit(Event::ReadFailed {
                    send: prepare,
                    flow: id,
                    file: origin.file,
                    offset: origin.offset,
                    errno,
                });
            }
            _ => {}
        }
        for piece in flow.pieces.drain(..) {
            if let Piece::Block { block, .. } = piece {
                self.blocks.release(block);
            }
        }
        self.prepares -= 1;
        self.retire(key, job);
    }
}
