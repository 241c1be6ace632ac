//! Checks flow affinity: one worker sends for a flow from its first SEND to its last, unless there
//! are several NIC stacks or the number of workers in use follows the load. Then a flow moves to
//! another worker of its NIC stack only when the old worker has no SEND left that could depart
//! late.

use std::collections::BTreeMap;

use contract::{Event, FlowId, Send, SendId};

use crate::violation::{Check, violation};

/// The worker of each flow of the run.
#[derive(Debug)]
pub(crate) struct FlowAffinityCheck {
    flows: BTreeMap<FlowId, Flow>,
    may_move: bool,
    /// Outstanding SENDs are known, because the transport between the stacks loses nothing.
    knows_sends: bool,
}

#[derive(Debug)]
struct Flow {
    worker: usize,
    /// Outstanding SENDs of the worker, each with its end in the stream.
    sends: BTreeMap<SendId, u64>,
}

impl FlowAffinityCheck {
    pub(crate) fn new(may_move: bool, knows_sends: bool) -> FlowAffinityCheck {
        FlowAffinityCheck {
            flows: BTreeMap::new(),
            may_move,
            knows_sends,
        }
    }

    /// Checks a SEND to a worker.
    pub(crate) fn on_send(&mut self, send: &Send<'_>, worker: usize) -> Check {
        let flow = self.flows.entry(send.flow).or_insert_with(|| Flow {
            worker,
            sends: BTreeMap::new(),
        });
        if flow.worker != worker {
            let Flow {
                worker: home,
                ref sends,
            } = *flow;
            if !self.may_move {
                return violation(format!("{:?} moves from {home} to {worker}", send.flow));
            }
            let mut late = sends.iter().filter(|(_, end)| **end > send.acked_offset);
            if let Some((late, _)) = late.next().filter(|_| self.knows_sends) {
                return violation(format!("{:?} overtakes {late:?} of worker {home}", send.id));
            }
            flow.sends.clear();
            flow.worker = worker;
        }
        let bytes: u64 = send
            .segments
            .iter()
            .map(|segment| u64::from(segment.len()))
            .sum();
        flow.sends.insert(send.id, send.stream_offset + bytes);
        Ok(())
    }

    /// Removes the SEND that a worker's event completes.
    pub(crate) fn on_event(&mut self, event: &Event, worker: usize) {
        if let Event::Departed { send, flow, .. }
        | Event::ReadFailed { send, flow, .. }
        | Event::SealMismatch { send, flow, .. } = event
            && let Some(found) = self.flows.get_mut(flow)
            && found.worker == worker
        {
            found.sends.remove(send);
        }
    }

    /// Forgets the SENDs of a worker that has ended.
    pub(crate) fn on_end(&mut self, worker: usize) {
        for flow in self.flows.values_mut() {
            if flow.worker == worker {
                flow.sends.clear();
            }
        }
    }

    /// Returns the number of flows whose worker this is.
    pub(crate) fn flows_of(&self, worker: usize) -> usize {
        let flows = self.flows.values();
        flows.filter(|flow| flow.worker == worker).count()
    }
}

#[cfg(test)]
mod tests {
    use contract::{Segment, Segments};

    use super::*;

    fn send(affinity: &mut FlowAffinityCheck, flow: u64, id: u64, worker: usize) -> Check {
        affinity.on_send(
            &Send {
                id: SendId(id),
                flow: FlowId(flow),
                stream_offset: id * 10,
                acked_offset: 0,
                issued_us: 0,
                not_before_us: 0,
                tsval_fraction_us: 0,
                follow_bytes: 0,
                mss: 1000,
                header: &[],
                segments: Segments::from([Segment::Inline(b"0123456789")]),
            },
            worker,
        )
    }

    #[test]
    fn a_flow_that_moves_is_noticed() {
        let mut affinity = FlowAffinityCheck::new(false, true);
        for (flow, worker) in [(1, 0), (2, 1), (3, 1), (1, 0)] {
            assert_eq!(send(&mut affinity, flow, 1, worker), Ok(()));
        }
        assert_eq!([affinity.flows_of(0), affinity.flows_of(1)], [1, 2]);
        assert!(send(&mut affinity, 1, 2, 1).is_err());
    }

    #[test]
    fn a_send_that_overtakes_another_is_noticed() {
        for departs in [true, false] {
            let mut affinity = FlowAffinityCheck::new(true, true);
            send(&mut affinity, 1, 1, 0).unwrap();
            send(&mut affinity, 1, 2, 0).unwrap();
            let departed = |id| Event::Departed {
                send: SendId(id),
                flow: FlowId(1),
                departed_us: 0,
            };
            affinity.on_event(&departed(2), 0);
            if departs {
                affinity.on_event(&departed(1), 0);
            }
            assert_eq!(send(&mut affinity, 1, 3, 1).is_ok(), departs);
        }
    }
}
