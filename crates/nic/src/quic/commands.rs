//! QKEY, QKEYGONE, QSEND and QRELEASE.

use contract::quic::{QuicKey, QuicSend};
use contract::{FileId, FlowId, RejectReason};
use netdev::Port;

use crate::engine::{Clock, Engine};
use crate::flow::Flow;
use crate::need::PACKET_BLOCKS_MAX;
use crate::sealed::KEY_BYTES;
use crate::slab::Key;

impl<P: Port> Engine<P> {
    /// Executes QKEY.
    pub(crate) fn quic_key(&mut self, key: &QuicKey<'_>) {
        self.counters.quic_keys += 1;
        if let Err(reason) = self.install_quic_key(key) {
            self.reject(reason, key.flow.0);
        }
    }

    fn install_quic_key(&mut self, key: &QuicKey<'_>) -> Result<(), RejectReason> {
        let memory_bytes = self.sealed_bytes + KEY_BYTES;
        if memory_bytes > self.limits.records_bytes {
            return Err(RejectReason::TooManyKeys);
        }
        let flow = self.quic_flow(key.flow)?;
        match self.flows.get_mut(flow) {
            Some(flow) if !flow.failed => {
                flow.quic.get_or_insert_default().install(key)?;
                self.sealed_bytes = memory_bytes;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The flow with this id, created if absent.
    pub(super) fn quic_flow(&mut self, id: FlowId) -> Result<Key, RejectReason> {
        if let Some(&known) = self.flow_keys.get(&id) {
            return Ok(known);
        }
        if self.flow_keys.len() >= self.limits.flows_max {
            return Err(RejectReason::TooManyFlows);
        }
        let mut flow = Flow::new(id);
        flow.quic = Some(Box::default());
        let key = self.flows.insert(flow);
        self.flow_keys.insert(id, key);
        Ok(key)
    }

    /// Executes QKEYGONE.
    pub(crate) fn quic_key_gone(&mut self, flow: FlowId, generation: u32) {
        let known = self.flow_keys.get(&flow).copied();
        let flow = known.and_then(|key| self.flows.get_mut(key));
        if let Some(quic) = flow.and_then(|flow| flow.quic.as_deref_mut()) {
            let keys = quic.keys();
            quic.let_go(generation);
            self.sealed_bytes -= (keys - quic.keys()) * KEY_BYTES;
        }
    }

    /// Executes QSEND.
    pub(crate) fn quic_send(&mut self, send: &QuicSend<'_>, clock: Clock<'_>) {
        self.counters.quic_sends += 1;
        if let Err(reason) = self.try_quic_send(send, clock) {
            self.counters.quic_sends_rejected += 1;
            self.reject(reason, send.id.0);
        }
    }

    fn try_quic_send(&mut self, send: &QuicSend<'_>, clock: Clock<'_>) -> Result<(), RejectReason> {
        let known = self.flow_keys.get(&send.flow).copied();
        let key = known.ok_or(RejectReason::UnknownKey)?;
        let flow = self.flows.get(key).ok_or(RejectReason::UnknownKey)?;
        if flow.failed {
            return Ok(());
        }
        let quic = flow.quic.as_deref().ok_or(RejectReason::UnknownKey)?;
        quic.check(&send.packets)?;

        let mut job = self.spare_job();
        let superpacket_max = |ipv6| self.port.superpacket_max(ipv6);
        let blocks_max = self.blocks.len().min(PACKET_BLOCKS_MAX);
        if let Err(reason) = job.accept_datagrams(send, superpacket_max, blocks_max, &self.files) {
            self.keep_spare_job(job);
            return Err(reason);
        }
        self.take_job(&mut job, send.not_before_us, clock);
        if let Some(flow) = self.flows.get_mut(key) {
            if let Some(quic) = &mut flow.quic {
                quic.accept(&job.packets);
            }
            flow.jobs.push_back(job);
        }
        self.want_to_plan(key);
        Ok(())
    }

    /// Executes QRELEASE.
    pub(crate) fn quic_release(&mut self, flow: FlowId, file: FileId, offset: u64, len: u64) {
        let known = self.flow_keys.get(&flow).copied();
        let flow = known.and_then(|key| self.flows.get_mut(key));
        if let Some(quic) = flow.and_then(|flow| flow.quic.as_deref_mut()) {
            quic.retained.release(file, offset, len, &mut self.blocks);
        }
    }

    /// Removes the keys of a flow, and unpins its retained blocks.
    pub(crate) fn empty_quic(&mut self, key: Key) {
        self.stop_receiving(key);
        let flow = self.flows.get_mut(key);
        if let Some(quic) = flow.and_then(|flow| flow.quic.as_deref_mut()) {
            self.sealed_bytes -= quic.keys() * KEY_BYTES;
            quic.clear(&mut self.blocks);
        }
    }
}
