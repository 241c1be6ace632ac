//! QRXKEY, QCID and QRXKEYGONE.

use contract::quic::{QuicConnectionId, QuicReceiveKey};
use contract::{FlowId, RejectReason};
use netdev::Port;

use super::Receiver;
use crate::engine::Engine;
use crate::sealed::KEY_BYTES;
use crate::slab::Key;

impl<P: Port> Engine<P> {
    /// Executes QRXKEY. Without room for the key, it has no effect: the host opens all packets.
    pub(crate) fn quic_receive_key(&mut self, key: &QuicReceiveKey<'_>) {
        self.counters.quic_receive_keys += 1;
        match self.install_receive_key(key) {
            Ok(true) => {}
            Ok(false) => self.counters.quic_receive_keys_refused += 1,
            Err(reason) => self.reject(reason, key.flow.0),
        }
    }

    /// False if there is no room for a key.
    fn install_receive_key(&mut self, key: &QuicReceiveKey<'_>) -> Result<bool, RejectReason> {
        let known = self.flow_keys.get(&key.flow).copied();
        let Some(at) = known.or_else(|| self.quic_flow(key.flow).ok()) else {
            return Ok(false);
        };
        let is_first = self.receiver(at).is_none();
        if !is_first {
            // Packets opened with the last key go up under its generation.
            self.release_received(at);
            if let Some(receiver) = self.receiver(at) {
                receiver.set_key(key).ok_or(RejectReason::Malformed)?;
            }
            return Ok(true);
        }
        if self.sealed_bytes + KEY_BYTES > self.limits.records_bytes {
            return Ok(false);
        }
        let receiver = Receiver::new(key, self.receiving.reorder);
        let receiver = receiver.ok_or(RejectReason::Malformed)?;
        if let Some(flow) = self.flows.get_mut(at) {
            let quic = flow.quic.get_or_insert_default();
            quic.receiver = Some(Box::new(receiver));
            self.sealed_bytes += KEY_BYTES;
            self.take_flow(key.flow);
        }
        Ok(true)
    }

    pub(super) fn receiver(&mut self, key: Key) -> Option<&mut Receiver> {
        let quic = self.flows.get_mut(key)?.quic.as_deref_mut()?;
        quic.receiver.as_deref_mut()
    }

    /// Executes QCID.
    pub(crate) fn quic_connection_id(&mut self, flow: FlowId, id: QuicConnectionId) {
        let Some(&key) = self.flow_keys.get(&flow) else {
            return;
        };
        if self.receiver(key).is_none() || !self.receiving.names.insert(id, key) {
            return;
        }
        let receiver = self.receiver(key);
        if let Some(old) = receiver.and_then(|receiver| receiver.add_id(id)) {
            self.receiving.names.remove(&old);
        }
    }

    /// Executes QRXKEYGONE; no effect if the key is gone.
    pub(crate) fn quic_receive_key_gone(&mut self, flow: FlowId) {
        if let Some(&key) = self.flow_keys.get(&flow) {
            self.release_received(key);
            self.stop_receiving(key);
        }
    }

    /// Removes the receive state of a flow: its key, its connection IDs, and packets not yet handed
    /// up.
    pub(in crate::quic) fn stop_receiving(&mut self, key: Key) {
        let Some(flow) = self.flows.get_mut(key) else {
            return;
        };
        let Some(quic) = flow.quic.as_deref_mut() else {
            return;
        };
        let Some(receiver) = quic.receiver.take() else {
            return;
        };
        let flow = flow.id;
        let receiving = &mut self.receiving;
        receiving.timers.remove(key, receiver.due_us);
        receiving.bytes -= receiver.bytes();
        receiving.ready.retain(|ready| *ready != key);
        for id in receiver.ids() {
            receiving.names.remove(id);
        }
        self.sealed_bytes -= KEY_BYTES;
        self.arrivals.give_up(flow);
    }
}
