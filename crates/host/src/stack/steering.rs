//! Flows whose frames a packet filter gives to NIC workers: connections that were parted with,
//! those of splices, and those of QUIC whose packets a worker opens (`quic/receive`).
//!
//! A flow is listed in the steering map when its worker has said that it has it, and is the host's
//! again before its worker is to give it back, or does not have it any more:
//!
//! | | |
//! |---|---|
//! | listed | flows taken, of a worker whose port is steered |
//! | cleared | before UNSPLICE and PARTGONE; at its end; when it goes to another worker, or comes back |
//! | all of a worker | as soon as it is known to be away, or is to be replaced: its port gets nothing more |
//!
//! Frames that the host has received until then are handed on, by FRAME, as are those of flows that
//! the map has no room for. What a worker has no flow for, it hands up.

use contract::FlowId;
use netdev::steering::{Protocol, SteeringMap};

use super::workers::Life;
use super::{Stack, quic};
use crate::tables::splices::Place;
use crate::tables::tuple::Tuple;

impl Stack {
    /// Flows of workers go to those that can have them.
    pub(super) fn set_flow_targets(&mut self) {
        let Some(map) = &self.setup.map else {
            return;
        };
        for (worker, nic) in self.nics.iter().enumerate() {
            let ready = nic.setup.filter(|_| nic.life == Life::Serving);
            map.set_flow_target(worker, ready.and_then(|ready| ready.target));
        }
    }

    /// A worker has flows from now on. Always true: they may have ended here meanwhile, and so may
    /// the worker's time.
    #[cold]
    #[inline(never)]
    pub(super) fn on_flows_taken(&mut self, worker: usize, flows: &[FlowId]) -> bool {
        let ready = self.nics[worker].setup;
        if ready.is_none_or(|ready| ready.target.is_none()) {
            return true;
        }
        for flow in flows {
            if quic::names::is_connection(*flow) {
                self.steer_quic(worker, *flow);
            } else if let Some(record) = self.teardown.parted.by_flow(*flow) {
                if record.worker() == worker {
                    self.list_flow(worker, &record.tuple());
                }
            } else if let Some(tuples) = self.tuples_at(worker, *flow) {
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
    pub(super) fn list_flow_of(
        &mut self,
        protocol: Protocol,
        worker: usize,
        tuple: &Tuple,
    ) -> bool {
        let Some(map) = &self.setup.map else {
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

    /// Frames of this connection are the host's from now on.
    #[inline]
    pub(super) fn clear_flow(&self, tuple: &Tuple) {
        if let Some(map) = &self.setup.map {
            map.clear_flow(Protocol::Tcp, tuple.local, tuple.remote);
        }
    }

    /// The same of both connections of a splice.
    pub(super) fn clear_flows_of(&self, place: Place) {
        if let Some(splice) = self.splicing.splices.get(place) {
            for leg in &splice.legs {
                self.clear_flow(&leg.tuple);
            }
        }
    }

    /// Connections whose frames a packet filter gives to NIC workers.
    pub fn flows_steered(&self) -> usize {
        self.setup.map.as_ref().map_or(0, SteeringMap::flows)
    }
}
