//! Checks turns: while a flow is ready to send, no other flow sends twice.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

use contract::quic::QuicSend;
use contract::{FlowId, Send};

use crate::router;
use crate::violation::{Check, violation};

/// Fairness state of one worker.
#[derive(Debug, Default)]
pub(crate) struct FairnessCheck {
    /// Destination of each flow: packets do not carry the flow's number.
    remotes: HashMap<FlowId, SocketAddr>,
    /// Flows whose peers have changed address: their packets may go to either address.
    moved: HashSet<FlowId>,
    /// Flows that were ready when the last turn ended.
    waiting: Vec<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    flow: FlowId,
    remote: SocketAddr,
    /// Destinations served since the flow became ready.
    passed: Vec<SocketAddr>,
    /// The destination that was served twice.
    overtaken_by: Option<SocketAddr>,
}

impl FairnessCheck {
    /// Records the destination of a SEND that is about to reach the worker.
    pub(crate) fn on_send(&mut self, send: &Send<'_>) {
        if let Some(remote) = router::tcp_destination(send.header) {
            self.remotes.insert(send.flow, remote);
        }
    }

    /// Records the destination of a QSEND that is about to reach the worker.
    pub(crate) fn on_quic_send(&mut self, send: &QuicSend<'_>) {
        if let Some(remote) = router::udp_destination(send.header)
            && !self.moved.contains(&send.flow)
            && self
                .remotes
                .insert(send.flow, remote)
                .is_some_and(|before| before != remote)
        {
            self.on_flow_over(send.flow);
            self.moved.insert(send.flow);
        }
    }

    /// Drops a flow that is about to end at the worker: it may lose its place at any time, and its
    /// peer may begin another flow.
    pub(crate) fn on_flow_over(&mut self, flow: FlowId) {
        self.remotes.remove(&flow);
        self.waiting.retain(|other| other.flow != flow);
    }

    /// Checks a turn of the worker. `departed` lists the destinations of its superpackets in order;
    /// the flows of `waiting` are ready to send after the turn.
    pub(crate) fn on_turn(
        &mut self,
        departed: &[SocketAddr],
        waiting: impl Iterator<Item = FlowId>,
    ) -> Check {
        for remote in departed {
            let (left, waiting) = std::mem::take(&mut self.waiting)
                .into_iter()
                .partition(|other| other.remote == *remote);
            self.waiting = waiting;
            check_order(&left)?;
            for other in &mut self.waiting {
                if other.passed.contains(remote) {
                    other.overtaken_by = Some(*remote);
                }
                other.passed.push(*remote);
            }
        }
        // A flow that is no longer ready, because its next SEND is paced or failed, has lost its
        // place at an unknown point of the turn.
        let mut before = std::mem::take(&mut self.waiting);
        let known = waiting.filter_map(|flow| Some((flow, *self.remotes.get(&flow)?)));
        self.waiting = known
            .map(|(flow, remote)| {
                let place = before.iter().position(|other| other.flow == flow);
                let new = Waiting {
                    flow,
                    remote,
                    passed: Vec::new(),
                    overtaken_by: None,
                };
                place.map_or(new, |place| before.swap_remove(place))
            })
            .collect();
        check_order(&self.waiting)
    }
}

/// Checks that none of these flows, all of them ready throughout, was overtaken.
fn check_order(flows: &[Waiting]) -> Check {
    flows.iter().try_for_each(|flow| match flow.overtaken_by {
        Some(remote) => violation(format!(
            "{} is ready to send, and {remote} has left twice meanwhile",
            flow.remote
        )),
        None => Ok(()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check() -> (FairnessCheck, [SocketAddr; 2]) {
        let remotes = [1, 2].map(|host| SocketAddr::from(([10, 0, 0, host], 4000)));
        let mut check = FairnessCheck::default();
        for (flow, remote) in remotes.into_iter().enumerate() {
            check.remotes.insert(FlowId(flow as u64), remote);
        }
        (check, remotes)
    }

    #[test]
    fn flows_that_take_turns_are_fair() {
        let (mut check, [a, b]) = check();
        let ready = || [FlowId(0), FlowId(1)].into_iter();
        for _ in 0..3 {
            assert_eq!(check.on_turn(&[a, b], ready()), Ok(()));
        }
        assert_eq!(check.on_turn(&[a], ready()), Ok(()));
        assert_eq!(check.on_turn(&[b, a], ready()), Ok(()));
    }

    #[test]
    fn a_flow_that_is_ready_and_is_passed_twice_is_noticed() {
        let (mut check, [a, _]) = check();
        let ready = || [FlowId(0), FlowId(1)].into_iter();
        assert_eq!(check.on_turn(&[a], ready()), Ok(()));
        assert_eq!(check.on_turn(&[a], ready()), Ok(()));
        assert!(check.on_turn(&[a], ready()).is_err());
    }

    #[test]
    fn a_flow_that_was_not_ready_meanwhile_has_missed_nothing() {
        let (mut check, [a, _]) = check();
        let ready = || [FlowId(0), FlowId(1)].into_iter();
        assert_eq!(check.on_turn(&[a], ready()), Ok(()));
        assert_eq!(check.on_turn(&[a], [FlowId(0)].into_iter()), Ok(()));
        assert_eq!(check.on_turn(&[a], ready()), Ok(()));
        assert_eq!(check.on_turn(&[a], ready()), Ok(()));
    }

    #[test]
    fn a_flow_that_fails_when_it_is_its_turn_has_missed_nothing() {
        let (mut check, [a, b]) = check();
        let ready = || [FlowId(0), FlowId(1)].into_iter();
        assert_eq!(check.on_turn(&[], ready()), Ok(()));
        assert_eq!(check.on_turn(&[a, a, a], [FlowId(0)].into_iter()), Ok(()));
        // A flow that leaves late has not failed.
        assert_eq!(check.on_turn(&[], ready()), Ok(()));
        assert!(check.on_turn(&[a, a, b], ready()).is_err());
    }

    #[test]
    fn a_flow_that_is_over_waits_for_nothing() {
        let (mut check, [a, _]) = check();
        let ready = [FlowId(0), FlowId(1)].into_iter();
        assert_eq!(check.on_turn(&[], ready), Ok(()));
        check.on_flow_over(FlowId(1));
        assert_eq!(check.on_turn(&[a, a], [FlowId(0)].into_iter()), Ok(()));
    }
}
