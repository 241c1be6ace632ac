//! Flows whose frames a packet filter gives to NIC workers: connections parted with, connections of
//! splices, and QUIC connections whose packets a worker opens (`quic/receive`).
//!
//! The steering map lists a flow once its worker has reported that it has it. The flow returns to
//! the host before the worker has to give it back, or once the worker no longer has it:
//!
//! | | |
//! |---|---|
//! | listed | flows taken, if the worker's port is steered |
//! | cleared | before UNSPLICE and PARTGONE; at its end; when it moves to another worker, or returns |
//! | all of a worker | as soon as the worker is known to be away, or is to be replaced: its port gets nothing more |
//!
//! The host hands on, by FRAME, frames that it has received until then, and those of flows without
//! room in the map. A worker hands up frames without a flow.

use contract::FlowId;
use netdev::steering::Protocol;

use super::workers::Life;
use crate::ground::Ground;
use crate::ground::Layers;
use crate::quic;
use crate::tables::tuple::Tuple;

impl Ground {
    /// Steers flows to the workers that can have them.
    pub(crate) fn set_flow_targets(&mut self) {
        let Some(map) = &self.steering else {
            return;
        };
        for (worker, nic) in self.workers.iter().enumerate() {
            let ready = nic.setup.filter(|_| nic.life == Life::Serving);
            map.set_flow_target(worker, ready.and_then(|ready| ready.target));
        }
    }

    /// A worker has taken flows. Always true: they may have ended here meanwhile, and the worker
    /// may be gone.
    #[cold]
    #[inline(never)]
    pub(crate) fn on_flows_taken(
        &mut self,
        layers: &mut Layers<'_>,
        worker: usize,
        flows: &[FlowId],
    ) -> bool {
        let ready = self.workers[worker].setup;
        if ready.is_none_or(|ready| ready.target.is_none()) {
            return true;
        }
        for flow in flows {
            if quic::names::is_connection(*flow) {
                layers.quic.steer(self, worker, *flow);
            } else if let Some(record) = layers.tcp.teardown.parted.by_flow(*flow) {
                if record.worker() == worker {
                    self.list_flow(worker, &record.tuple());
                }
            } else if let Some(tuples) = layers.tcp.tuples_at(worker, *flow) {
                for tuple in &tuples {
                    self.list_flow(worker, tuple);
                }
            }
        }
        true
    }

    fn list_flow(&mut self, worker: usize, tuple: &Tuple) {
        self.list_flow_of(Protocol::Tcp, worker, tuple);
    }

    /// Lists a flow; true if there is room for it.
    pub(crate) fn list_flow_of(
        &mut self,
        protocol: Protocol,
        worker: usize,
        tuple: &Tuple,
    ) -> bool {
        let Some(map) = &self.steering else {
            return false;
        };
        let is_listed = map.list_flow(protocol, tuple.local, tuple.remote, worker);
        if is_listed {
            self.counters.flows_steered += 1;
        } else {
            self.counters.flows_not_steered += 1;
        }
        is_listed
    }

    /// Returns the frames of this connection to the host.
    #[inline]
    pub(crate) fn clear_flow(&self, tuple: &Tuple) {
        if let Some(map) = &self.steering {
            map.clear_flow(Protocol::Tcp, tuple.local, tuple.remote);
        }
    }
}
