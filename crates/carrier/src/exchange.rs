//! What a carrier does between two sleeps: records from the rings into the session, and back. No clock, no socket:
//! the same code carries in the simulator.

use contract::channel::Corrupt;
use contract::ethernet::session::{Counters, Dropped};
use contract::ethernet::{End, Leaving, Session, translate};

use crate::Mac;
use crate::ring::Ring;

/// Records taken from a worker's ring in a turn.
const RECORDS_MAX: usize = 128;

/// Taking leave, for so long at most it carries on what its stack has said before it ended, in microseconds.
const PARTING_US_MAX: u64 = 200_000;

/// Nothing acknowledges that a side has left, so it says so several times.
const FAREWELLS: usize = 3;

/// Why there is nothing more to carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// The session has ended.
    Session(End),
    /// The stack on this machine has broken its ring.
    StackCorrupt,
    /// All is said that the stack on this machine had to say before it ended, or it has taken too long.
    Parted,
}

/// What differs from machine to machine.
#[derive(Debug)]
enum Side {
    Host,
    Nic { source_mac: Option<Mac> },
}

/// A session, and what passes between it and the rings of a machine.
///
/// When frames have come, each goes through [`Exchange::on_frame`]; then, and when the rings or
/// [`Exchange::next_timeout_us`] say so, [`Exchange::turn`]. When that says that it is over, [`Exchange::leave`].
#[derive(Debug)]
pub struct Exchange {
    session: Session,
    side: Side,
    /// Since when the stack on this machine is gone.
    parting_us: Option<u64>,
    frame: Vec<u8>,
}

impl Exchange {
    /// On the host's machine.
    pub fn for_host(session: Session) -> Exchange {
        Exchange::new(session, Side::Host)
    }

    /// On the NIC stack's machine. Records are translated: times, and the address that packets come from if there is
    /// a `source_mac`.
    pub fn for_nic(session: Session, source_mac: Option<Mac>) -> Exchange {
        Exchange::new(session, Side::Nic { source_mac })
    }

    fn new(session: Session, side: Side) -> Exchange {
        Exchange {
            session,
            side,
            parting_us: None,
            frame: Vec::new(),
        }
    }

    /// What has happened in the session.
    pub fn counters(&self) -> Counters {
        self.session.counters()
    }

    /// True if all that was sent has been acknowledged.
    pub fn is_quiet(&self) -> bool {
        self.session.is_quiet()
    }

    /// True if a record can be taken from a ring. If not, records stay there until an acknowledgment comes.
    pub fn takes_records(&self) -> bool {
        self.session.has_room()
    }

    /// When the next turn is due, at the latest.
    pub fn next_timeout_us(&self) -> u64 {
        let parted_us = self.parting_us.map(|since_us| since_us + PARTING_US_MAX);
        let session_us = self.session.next_timeout_us();
        parted_us.map_or(session_us, |at_us| at_us.min(session_us))
    }

    /// A frame has come from the other machine.
    pub fn on_frame(&mut self, now_us: u64, frame: &mut [u8]) -> Result<(), Dropped> {
        self.session.on_frame(now_us, frame)
    }

    /// The stack on this machine is gone: only what it has said before is still to be carried.
    pub fn part(&mut self, now_us: u64) {
        self.parting_us.get_or_insert(now_us);
    }

    /// A round of work; true if there was any. Frames leave through `send`.
    pub fn turn<R: Ring>(
        &mut self,
        now_us: u64,
        channels: &mut [R],
        send: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, Over> {
        let mut worked = self.deliver(channels);
        let collected = self.collect(channels);
        self.session.on_time(now_us);
        while self.session.transmit(now_us, &mut self.frame) {
            send(&self.frame);
        }
        channels.iter_mut().for_each(R::flush);
        let ended = match (collected, self.session.end()) {
            (Err(Corrupt), _) => Some(Over::StackCorrupt),
            (Ok(_), Some(end)) => Some(Over::Session(end)),
            (Ok(collected), None) => {
                worked |= collected;
                None
            }
        };
        let Some(since_us) = self.parting_us else {
            return ended.map_or(Ok(worked), Err);
        };
        // The stack went first, and that is what is to be said.
        let has_said_all = !worked && self.session.is_quiet();
        if ended.is_some() || has_said_all || now_us.saturating_sub(since_us) > PARTING_US_MAX {
            return Err(Over::Parted);
        }
        Ok(worked)
    }

    /// It is over, and the other side is told, if it does not know.
    pub fn leave(&mut self, now_us: u64, why: Option<Leaving>, send: &mut dyn FnMut(&[u8])) {
        if let Some(why) = why {
            self.session.leave(why);
        }
        if self.session.transmit(now_us, &mut self.frame) {
            for _ in 0..FAREWELLS {
                send(&self.frame);
            }
        }
    }

    /// Records from the session into the rings.
    fn deliver<R: Ring>(&mut self, channels: &mut [R]) -> bool {
        // Without the time on the other machine, nothing can be translated.
        let Some(ahead_us) = self.session.peer_clock_ahead_us() else {
            return false;
        };
        let mut worked = false;
        while let Some((worker, record)) = self.session.record() {
            let channel = channels.get_mut(usize::from(worker));
            let Some(channel) = channel.filter(|_| record.len() <= R::RECORD_BYTES_MAX) else {
                // Who has the key and says this is of another release; the stacks would not understand it.
                tracing::warn!(worker, bytes = record.len(), "a record for nobody here");
                self.session.consume();
                continue;
            };
            if !channel.has_room() {
                break;
            }
            if let Side::Nic { source_mac } = self.side {
                translate::to_nic(record, -ahead_us, source_mac);
            }
            let sent = channel.send_record(record);
            debug_assert!(sent.is_ok(), "there was room");
            self.session.consume();
            worked = true;
        }
        worked
    }

    /// Records from the rings into the session.
    fn collect<R: Ring>(&mut self, channels: &mut [R]) -> Result<bool, Corrupt> {
        let ahead_us = match self.side {
            Side::Host => None,
            Side::Nic { .. } => match self.session.peer_clock_ahead_us() {
                None => return Ok(false),
                known => known,
            },
        };
        let mut worked = false;
        for (worker, channel) in (0u16..).zip(channels) {
            for _ in 0..RECORDS_MAX {
                if !self.session.has_room() {
                    return Ok(worked);
                }
                let Some(record) = channel.receive_record()? else {
                    break;
                };
                worked = true;
                if record.is_empty() {
                    continue;
                }
                let sent = match ahead_us {
                    None => self.session.send(worker, record),
                    Some(ahead_us) => {
                        self.frame.clear();
                        self.frame.extend_from_slice(record);
                        translate::to_host(&mut self.frame, -ahead_us);
                        self.session.send(worker, &self.frame)
                    }
                };
                debug_assert!(sent.is_ok(), "there was room");
            }
        }
        Ok(worked)
    }
}
