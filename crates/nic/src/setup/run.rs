//! What a worker does with SYNs that it answers.

use contract::{Event, Setup};
use netdev::steering::Target;
use netdev::{Frame, Port};
use wire::frame::{TcpPacket, parse_segment};

use super::{SynAnswers, Verdict, is_syn};
use crate::engine::{Clock, EVENTS_WAITING_MAX, Engine};
use crate::packet;

/// SYNs taken from the port in one turn: little beside what departs in one.
const SYNS_MAX: usize = 64;

impl<P: Port> Engine<P> {
    /// SETUP.
    pub(crate) fn setup(&mut self, setup: &Setup<'_>) {
        let has_listeners = setup.listeners.iter().next().is_some();
        self.syn_answers = has_listeners.then(|| Box::new(SynAnswers::new(setup)));
        let steering = self.port.target().map_or(0, Target::get);
        self.emit(Event::SetupReady {
            epoch: setup.epoch,
            steering,
        });
    }

    /// Answers SYNs that have reached the port. True if there were any.
    pub(crate) fn receive_syns(&mut self, clock: Clock<'_>) -> bool {
        let Engine {
            port, syn_answers, ..
        } = self;
        let Some(answers) = syn_answers else {
            return false;
        };
        let now_us = clock();
        let mut verdicts = Vec::new();
        let received = port.receive(SYNS_MAX, &mut |frame: Frame<'_>| {
            let packet = parse_segment(frame.bytes, frame.checksum_valid);
            let verdict = packet.filter(is_syn).map_or(Verdict::Drop, |packet| {
                answers.verdict(&packet, frame.bytes, now_us)
            });
            verdicts.push(verdict);
        });
        if received.is_err() {
            self.counters.port_failures += 1;
        }
        self.counters.syns_received += verdicts.len() as u64;
        let worked = !verdicts.is_empty();
        for verdict in verdicts {
            self.carry_out(verdict);
        }
        worked
    }

    /// A SYN that the host has handed on; false if none is answered here.
    pub(crate) fn on_syn(&mut self, packet: &TcpPacket<'_>, bytes: &[u8], now_us: u64) -> bool {
        let Some(answers) = &mut self.syn_answers else {
            return false;
        };
        let verdict = answers.verdict(packet, bytes, now_us);
        self.counters.syns_received += 1;
        self.carry_out(verdict);
        true
    }

    fn carry_out(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Answer(packet) => {
                let sent = packet.send(&mut self.port, &[]);
                let has_left = packet::has_left(&sent, &mut self.counters);
                self.counters.syn_acks_sent += u64::from(has_left);
            }
            Verdict::HandUp(bytes) if self.events.len() < EVENTS_WAITING_MAX => {
                self.counters.syns_handed_up += 1;
                self.emit(Event::Frame { bytes });
            }
            Verdict::HandUp(_) | Verdict::Drop => self.counters.frames_dropped += 1,
        }
    }
}
