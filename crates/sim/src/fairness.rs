//! Turns: whoever is ready to send is not starved: nobody else leaves hundreds of times meanwhile.

use std::collections::HashMap;
use std::net::SocketAddr;

use contract::{FlowId, Send};

use crate::router;
use crate::violation::{Check, ensure};

/// A flow is its peer's address here: one that is reset and begun again at once takes a new place.
const PASSES_MAX: usize = 256;

/// What one worker owes to its flows.
#[derive(Debug, Default)]
pub(crate) struct FairnessCheck {
    /// Where each flow goes: packets do not tell which flow they are of.
    remotes: HashMap<FlowId, SocketAddr>,
    /// Flows that were ready when the last turn ended.
    waiting: Vec<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    remote: SocketAddr,
    /// Who has left since.
    passed: Vec<SocketAddr>,
}

impl FairnessCheck {
    /// The worker is about to get a SEND.
    pub(crate) fn on_send(&mut self, send: &Send<'_>) {
        if let Some(remote) = router::tcp_destination(send.header) {
            self.remotes.insert(send.flow, remote);
        }
    }

    /// The worker has had a turn, in which superpackets have left for `departed`, in this order, and after which
    /// the flows of `waiting` are ready to send.
    pub(crate) fn on_turn(
        &mut self,
        departed: &[SocketAddr],
        waiting: impl Iterator<Item = FlowId>,
    ) -> Check {
        for remote in departed {
            self.waiting.retain(|other| other.remote != *remote);
            for other in &mut self.waiting {
                let passed = other.passed.iter().filter(|other| *other == remote).count();
                ensure(passed < PASSES_MAX, || {
                    format!(
                        "{} is ready to send, and {remote} has left {} times meanwhile",
                        other.remote,
                        PASSES_MAX + 1
                    )
                })?;
                other.passed.push(*remote);
            }
        }
        // Who is not ready any more, because it is held or has failed, has lost its place.
        let mut before = std::mem::take(&mut self.waiting);
        let remotes = waiting.filter_map(|flow| self.remotes.get(&flow).copied());
        self.waiting = remotes
            .map(|remote| {
                let place = before.iter().position(|other| other.remote == remote);
                let new = Waiting {
                    remote,
                    passed: Vec::new(),
                };
                place.map_or(new, |place| before.swap_remove(place))
            })
            .collect();
        Ok(())
    }
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
    fn a_flow_that_is_ready_and_is_passed_too_often_is_noticed() {
        let (mut check, [a, _]) = check();
        let ready = || [FlowId(0), FlowId(1)].into_iter();
        for _ in 0..=PASSES_MAX {
            assert_eq!(check.on_turn(&[a], ready()), Ok(()));
        }
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
}
