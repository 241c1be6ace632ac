//! The worker's handling of SYNs and SETUP.

use contract::limits::FRAME_BYTES_MAX;
use contract::{Event, Setup};
use netdev::Port;
use netdev::steering::Target;
use wire::frame::TcpPacket;

use super::SynAnswers;
use crate::engine::Engine;
use crate::packet::{self, PacketHeader};

impl<P: Port> Engine<P> {
    /// Carries out SETUP.
    pub(crate) fn setup(&mut self, setup: &Setup<'_>) {
        let has_listeners = setup.listeners.iter().next().is_some();
        self.syn_answers = has_listeners.then(|| Box::new(SynAnswers::new(setup)));
        let steering = self.port.target().map_or(0, Target::get);
        self.emit(Event::SetupReady {
            epoch: setup.epoch,
            steering,
        });
    }

    /// Answers a SYN, or hands it up. False if the worker answers no SYNs.
    pub(crate) fn on_syn(&mut self, packet: &TcpPacket<'_>, bytes: &[u8], now_us: u64) -> bool {
        let Some(answers) = &mut self.syn_answers else {
            return false;
        };
        self.counters.syns_received += 1;
        if bytes.len() <= FRAME_BYTES_MAX && answers.brings_text(packet, now_us) {
            self.counters.syns_handed_up += u64::from(self.hand_up(bytes));
            return true;
        }
        match answers.answer(packet, now_us) {
            Some((template, header)) => match PacketHeader::new(&template, &header) {
                Some(packet) => {
                    let sent = packet.send(&mut self.port, &[]);
                    let has_left = packet::has_left(&sent, &mut self.counters);
                    self.counters.syn_acks_sent += u64::from(has_left);
                }
                None => self.counters.frames_dropped += 1,
            },
            None if self.hand_up_some(bytes, now_us) => self.counters.syns_handed_up += 1,
            None => {}
        }
        true
    }
}
