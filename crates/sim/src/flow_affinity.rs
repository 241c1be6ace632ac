//! Which worker sends for a flow: the same one from its first SEND to its last, unless there are
//! several NIC stacks.

use std::collections::BTreeMap;

use contract::FlowId;

use crate::violation::{Check, violation};

/// The worker of each flow that there has been.
#[derive(Debug)]
pub(crate) struct FlowAffinityCheck {
    workers: BTreeMap<FlowId, usize>,
    may_move: bool,
}

impl FlowAffinityCheck {
    pub(crate) fn new(may_move: bool) -> FlowAffinityCheck {
        FlowAffinityCheck {
            workers: BTreeMap::new(),
            may_move,
        }
    }

    /// A SEND of a flow goes to a worker.
    pub(crate) fn on_send(&mut self, flow: FlowId, worker: usize) -> Check {
        match self.workers.insert(flow, worker) {
            Some(home) if home != worker && !self.may_move => {
                violation(format!("{flow:?} moves from worker {home} to {worker}"))
            }
            _ => Ok(()),
        }
    }

    /// How many flows a worker has had.
    pub(crate) fn flows_of(&self, worker: usize) -> usize {
        let affinity = self.workers.values();
        affinity.filter(|&&home| home == worker).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_that_moves_is_noticed() {
        let mut affinity = FlowAffinityCheck::new(false);
        for (flow, worker) in [(1, 0), (2, 1), (3, 1), (1, 0)] {
            assert_eq!(affinity.on_send(FlowId(flow), worker), Ok(()));
        }
        assert_eq!([affinity.flows_of(0), affinity.flows_of(1)], [1, 2]);
        assert!(affinity.on_send(FlowId(1), 1).is_err());
    }
}
