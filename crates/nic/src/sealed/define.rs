//! Execution of KEY, KEYGONE and RECORDS.

use contract::limits::FLOW_RECORDS_MAX;
use contract::tls::{Key as TlsKey, Records};
use contract::{FlowId, RejectReason, Segment};
use netdev::Port;

use super::runs::{Run, Source};
use super::{KEY_BYTES, SealedStream};
use crate::engine::Engine;
use crate::files::FileState;
use crate::flow::Flow;
use crate::slab::Key;

impl<P: Port> Engine<P> {
    pub(crate) fn install_key(&mut self, key: &TlsKey<'_>) -> Result<(), RejectReason> {
        let known = self.flow_keys.get(&key.flow).copied();
        if known.is_none() && self.flow_keys.len() >= self.limits.flows_max {
            return Err(RejectReason::TooManyFlows);
        }
        let memory_bytes = self.sealed_bytes + KEY_BYTES;
        if memory_bytes > self.limits.records_bytes {
            return Err(RejectReason::TooManyKeys);
        }
        let flow = known.unwrap_or_else(|| {
            let flow = self.flows.insert(Flow::new(key.flow));
            self.flow_keys.insert(key.flow, flow);
            flow
        });
        match self.flows.get_mut(flow) {
            Some(flow) if !flow.failed => {
                let stream = flow.sealed.get_or_insert_default();
                stream.keys.install(key)?;
                self.sealed_bytes = memory_bytes;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn let_key_go(&mut self, flow: FlowId, epoch: u16) -> Result<(), RejectReason> {
        let known = self.flow_keys.get(&flow).copied();
        let Some(flow) = known.and_then(|key| self.flows.get_mut(key)) else {
            return Err(RejectReason::UnknownKey);
        };
        if flow.failed {
            return Ok(());
        }
        let stream = flow.sealed.as_deref_mut();
        let stream = stream.ok_or(RejectReason::UnknownKey)?;
        let keys = stream.keys();
        if !stream.keys.let_go(epoch) {
            return Err(RejectReason::UnknownKey);
        }
        self.sealed_bytes -= (keys - stream.keys()) * KEY_BYTES;
        Ok(())
    }

    pub(crate) fn define_records(&mut self, records: &Records<'_>) -> Result<(), RejectReason> {
        let known = self.flow_keys.get(&records.flow).copied();
        let flow = known.and_then(|key| self.flows.get_mut(key));
        let stream = match flow {
            Some(flow) if flow.failed => return Ok(()),
            Some(flow) => flow.sealed.as_deref_mut(),
            None => None,
        };
        let stream = stream.ok_or(RejectReason::UnknownKey)?;
        let key = stream
            .keys
            .get(records.epoch)
            .ok_or(RejectReason::UnknownKey)?;
        let (suite, next_number) = (key.suite, key.next_number);

        let mut inline_len = 0;
        let mut sources = Vec::with_capacity(records.segments.len());
        for segment in &records.segments {
            sources.push(match *segment {
                Segment::Inline(bytes) => {
                    let start = inline_len;
                    inline_len += bytes.len();
                    Source::Inline {
                        start,
                        len: bytes.len(),
                    }
                }
                Segment::File {
                    file: id,
                    offset,
                    len,
                } => {
                    let file = self.files.find(id).ok_or(RejectReason::RecordsOutOfFile)?;
                    if let Some(FileState::Open { size, .. }) =
                        self.files.get(file).map(|f| f.state)
                        && offset.saturating_add(len.into()) > size
                    {
                        return Err(RejectReason::RecordsOutOfFile);
                    }
                    let len = len as usize;
                    Source::File {
                        id,
                        file,
                        offset,
                        len,
                    }
                }
                Segment::Sealed { .. } => return Err(RejectReason::Malformed),
            });
        }
        let run = Run::new(records, suite, sources.into());
        if let Some(same) = stream.same(&run) {
            return same.merge(&run).map_err(|_| RejectReason::RecordsConflict);
        }
        if stream.keys.usable(records.epoch).is_none() {
            return Err(RejectReason::UnknownKey);
        }
        if records.stream_offset < stream.defined_end || records.number < next_number {
            return Err(RejectReason::RecordsConflict);
        }
        let memory_bytes = self.sealed_bytes + run.memory_bytes();
        if stream.records + run.count() > FLOW_RECORDS_MAX
            || memory_bytes > self.limits.records_bytes
        {
            return Err(RejectReason::TooManyRecords);
        }
        self.sealed_bytes = memory_bytes;
        for source in &run.sources {
            if let Source::File { file, .. } = source {
                self.files.acquire(*file);
            }
        }
        stream.push(run);
        Ok(())
    }

    /// Drops the runs of a flow that are no longer needed.
    pub(crate) fn drop_acknowledged(&mut self, key: Key) {
        while let Some(flow) = self.flows.get_mut(key)
            && let Some(stream) = &mut flow.sealed
        {
            let keys = stream.keys();
            let Some(run) = stream.take_acknowledged() else {
                return;
            };
            self.sealed_bytes -= (keys - stream.keys()) * KEY_BYTES;
            self.drop_run(&run);
        }
    }

    /// Removes the keys of a flow and drops its runs, which no SEND needs any more.
    pub(crate) fn empty_sealed(&mut self, key: Key) {
        let flow = self.flows.get_mut(key);
        let Some(stream) = flow.and_then(|flow| flow.sealed.as_deref_mut()) else {
            return;
        };
        self.sealer.forget(key, stream);
        self.sealed_bytes -= stream.keys() * KEY_BYTES;
        for run in stream.clear() {
            self.drop_run(&run);
        }
    }

    fn drop_run(&mut self, run: &Run) {
        self.sealed_bytes -= run.memory_bytes();
        for source in &run.sources {
            if let Source::File { file, .. } = source {
                self.files
                    .release(*file, &mut self.blocks, self.reader.as_mut());
            }
        }
    }
}

impl SealedStream {
    /// Returns the run with the same definition, if it is still held.
    fn same(&mut self, run: &Run) -> Option<&mut Run> {
        let index = self.index_at(run.stream_offset)?;
        self.runs.get_mut(index).filter(|known| known.is_same(run))
    }

    fn push(&mut self, run: Run) {
        self.records += run.count();
        self.defined_end = run.stream_end();
        let next_number = run.number + run.count() as u64;
        self.keys.acquire(run.epoch, next_number);
        self.runs.push_back(run);
    }
}
