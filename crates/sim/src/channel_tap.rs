//! Sits between the host stack and a worker: every command and event passes here, is checked, and
//! may be lost or delayed.

use std::cell::RefCell;
use std::rc::Rc;

use contract::channel::NicChannel;
use contract::tls::Records;
use contract::{Command, Event};

use crate::event_drain::EventDrain;
use crate::fairness::FairnessCheck;
use crate::flow_affinity::FlowAffinityCheck;
use crate::nonce_check::{Life, NonceCheck};
use crate::random::Random;
use crate::scenario::Cramped;
use crate::trace::Trace;
use crate::violation::{Violation, violation};
use crate::wire_watch::WireWatch;

/// The far ends of a channel to the host and of one to a worker.
pub(crate) struct ChannelTap {
    pub(crate) host: NicChannel,
    pub(crate) worker: Rc<RefCell<EventDrain>>,
    /// Identity of the worker among all workers of the run.
    pub(crate) life: Life,
    /// Present if any client speaks QUIC.
    pub(crate) watch: Option<Rc<RefCell<WireWatch>>>,
    /// Hides from the worker the tags of records that other workers have sealed.
    pub(crate) forgets_tags: bool,
    pub(crate) loss_ppm: u32,
    pub(crate) cramped: Option<Cramped>,
    /// Time at which more commands may pass.
    pub(crate) opens_us: Option<u64>,
    /// Number of events that may still pass.
    pub(crate) events_max: u32,
    /// OPENs that have not been answered to the host.
    pub(crate) opens_unanswered: u32,
    /// The worker replaced another one and has sent nothing yet.
    pub(crate) replays: bool,
    pub(crate) random: Random,
    /// `None` in a crowd, where the check would take too long: it looks at every flow at each
    /// departure.
    pub(crate) fairness: Option<FairnessCheck>,
}

impl ChannelTap {
    /// Passes commands; returns how many it has taken from the host.
    pub(crate) fn commands(
        &mut self,
        now_us: u64,
        number: usize,
        affinity: &mut FlowAffinityCheck,
        nonces: &mut Option<NonceCheck>,
        trace: &mut Trace<'_>,
    ) -> Result<usize, Violation> {
        let worker = &mut self.worker.borrow_mut().channel;
        if self.opens_us.is_some_and(|at_us| now_us < at_us) {
            return Ok(0);
        }
        self.opens_us = None;
        let mut taken = 0;
        while worker.has_room() {
            if let Some(cramped) = self.cramped
                && taken == cramped.commands_max
            {
                self.opens_us = Some(now_us + cramped.every_us);
                break;
            }
            match self.host.receive() {
                Ok(Some(mut command)) => {
                    trace.command(now_us, number, &command);
                    taken += 1;
                    if self.forgets_tags
                        && let Command::Records(Records { tags, .. }) = &mut command
                    {
                        *tags = &[];
                    }
                    if let Some(nonces) = nonces {
                        nonces.on_command(self.life, &command)?;
                    }
                    if let Some(watch) = &self.watch {
                        watch.borrow_mut().on_command(&command);
                    }
                    if let Command::Send(send) = &command {
                        affinity.on_send(send, number)?;
                    }
                    match (&command, &mut self.fairness) {
                        (Command::Send(send), Some(fairness)) => fairness.on_send(send),
                        (Command::QuicSend(send), Some(fairness)) => fairness.on_quic_send(send),
                        (
                            Command::Acked {
                                flow, last: true, ..
                            },
                            Some(fairness),
                        ) => fairness.on_flow_over(*flow),
                        (
                            Command::Open { .. }
                            | Command::OpenPassed { .. }
                            | Command::List { .. },
                            _,
                        ) => {
                            self.opens_unanswered += 1;
                        }
                        _ => {}
                    }
                    if matches!(command, Command::Send(_)) && self.random.happens(self.loss_ppm) {
                        trace.note(now_us, || format!("nic{number} does not get it"));
                        continue;
                    }
                    if worker.send(&command).is_err() {
                        return violation("a ring that had room has none");
                    }
                }
                Ok(None) => break,
                Err(error) => return violation(format!("the host's ring: {error}")),
            }
        }
        worker.flush();
        Ok(taken)
    }

    /// Passes events to the host; returns how many.
    pub(crate) fn events(
        &mut self,
        now_us: u64,
        number: usize,
        affinity: &mut FlowAffinityCheck,
        nonces: &mut Option<NonceCheck>,
        trace: &mut Trace<'_>,
    ) -> Result<usize, Violation> {
        let mut passed = 0;
        while self.events_max > 0 && self.host.has_room() {
            let said = self.worker.borrow_mut().receive();
            match said {
                Ok(Some(event)) => {
                    self.events_max -= 1;
                    let answers_open = matches!(
                        event,
                        Event::Opened { .. } | Event::OpenFailed { .. } | Event::Listed { .. }
                    );
                    if answers_open {
                        self.opens_unanswered = self.opens_unanswered.saturating_sub(1);
                    }
                    trace.event(now_us, number, &event);
                    affinity.on_event(&event, number);
                    passed += 1;
                    if let Some(nonces) = nonces {
                        nonces.on_event(self.life, &event)?;
                    }
                    let is_echo = matches!(event, Event::Departed { .. });
                    self.replays &= !is_echo;
                    if is_echo && self.random.happens(self.loss_ppm) {
                        trace.note(now_us, || {
                            format!("the host does not get it from nic{number}")
                        });
                        continue;
                    }
                    if self.host.send(&event).is_err() {
                        violation("a ring that had room has none")?;
                    }
                }
                Ok(None) => break,
                Err(error) => violation(format!("the ring of worker {number}: {error}"))?,
            }
        }
        self.host.flush();
        Ok(passed)
    }

    /// Ends the worker. Passes on at least every event up to the worker's last tag: the host gives
    /// a successor the tags that it knows. Returns the number of events left to pass for that.
    pub(crate) fn end(&mut self) -> u32 {
        let mut feed = self.worker.borrow_mut();
        feed.end();
        let upto_last_tag = feed.events_upto_last_tag() as u32;
        self.events_max = self.events_max.max(upto_last_tag);
        upto_last_tag
    }
}
