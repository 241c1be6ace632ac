//! The stacks on two machines: real relays' code and real sessions over a control link that loses,
//! repeats, reorders and damages frames.
//!
//! The host machine sends HELLOs until one is answered, relays until the session ends, backs off,
//! and starts again, as the supervisor does. The NIC machine accepts it; each session has a NIC
//! process of its own, which the caller starts and ends.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::{AddAssign, Range};

use contract::channel::{HostChannel, NicChannel};
use contract::ethernet::{Initiator, Leaving, PreSharedKey, Responder, Session, Terms};
use relay::exchange::NIC_PARTING_US_MAX;
use relay::{Exchange, Over};

use crate::link::Link;
use crate::random::Random;
use crate::scenario::BEGINNING_US;
use crate::scenario::{CALM_US, ControlPlan, Faults, LinkPlan};

const KEY: PreSharedKey = PreSharedKey::new([7; 32]);

/// An unanswered HELLO is repeated at this interval, at most `REPEATS_MAX` times; a new HELLO
/// follows.
const REPEAT_US: u64 = 100_000;
const REPEATS_MAX: u32 = 3;

/// Back-off of the host machine after a session that ended by itself.
const BACK_OFF_US: u64 = 50_000;

/// Shortest payload of an Ethernet frame; shorter ones are padded.
const PAYLOAD_BYTES_MIN: usize = 46;

/// Destination of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum To {
    Nic,
    Host,
}

/// A frame in flight, ordered by time of arrival.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Frame {
    at_us: u64,
    number: u64,
    to: To,
    bytes: Vec<u8>,
}

/// Events on control links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControlLinkCounters {
    /// Sessions started by the host machine.
    pub sessions: u64,
    /// Frames sent.
    pub frames: u64,
    /// Frames lost.
    pub frames_lost: u64,
    /// Frames that arrived with a bit flipped.
    pub frames_damaged: u64,
    /// Parcels retransmitted, in sessions that are over.
    pub parcels_repeated: u64,
    /// Parcels received more than once, in sessions that are over.
    pub parcels_duplicate: u64,
}

impl AddAssign for ControlLinkCounters {
    fn add_assign(&mut self, more: ControlLinkCounters) {
        self.sessions += more.sessions;
        self.frames += more.frames;
        self.frames_lost += more.frames_lost;
        self.frames_damaged += more.frames_damaged;
        self.parcels_repeated += more.parcels_repeated;
        self.parcels_duplicate += more.parcels_duplicate;
    }
}

/// The link and both relays.
pub(crate) struct ControlLink {
    plan: ControlPlan,
    to_nic: Link,
    to_host: Link,
    /// Frames in flight; the next to arrive is at the top.
    frames: BinaryHeap<Reverse<Frame>>,
    host: HostEnd,
    responder: Responder,
    nic: Option<(Exchange, Vec<HostChannel>)>,
    /// Time at which the relays next check the rings.
    wakes_us: Option<u64>,
    /// Back-off of the host machine after this session.
    back_off_us: u64,
    random: Random,
    pub(crate) counters: ControlLinkCounters,
}

enum HostEnd {
    Away {
        until_us: u64,
    },
    Knocking {
        initiator: Initiator,
        repeats: u32,
        again_us: u64,
    },
    Carrying {
        exchange: Box<Exchange>,
        channels: Vec<NicChannel>,
    },
}

/// Sessions that arrived frames have started.
#[derive(Default)]
pub(crate) struct Arrived {
    /// The host's HELLO was answered: the host begins an epoch.
    pub(crate) met: Option<Session>,
    /// The NIC machine has accepted a host.
    pub(crate) guest: Option<(Session, Terms)>,
}

impl ControlLink {
    pub(crate) fn new(plan: &ControlPlan, workers: usize, mut random: Random) -> ControlLink {
        let terms = Terms {
            workers: workers as u16,
            frame_bytes: plan.link.mtu as u16,
            mtu: 1500,
            source_mac: None,
        };
        ControlLink {
            to_nic: Link::new(plan.link.clone(), random.fork()),
            to_host: Link::new(plan.link.clone(), random.fork()),
            plan: plan.clone(),
            frames: BinaryHeap::new(),
            host: HostEnd::Away {
                until_us: BEGINNING_US,
            },
            responder: Responder::new(&KEY, terms),
            nic: None,
            wakes_us: None,
            back_off_us: BACK_OFF_US,
            random,
            counters: ControlLinkCounters::default(),
        }
    }

    /// Returns the time of the next arrival or timer.
    pub(crate) fn next_us(&self) -> Option<u64> {
        let arrival = self.frames.peek().map(|Reverse(frame)| frame.at_us);
        let host_us = match &self.host {
            HostEnd::Away { until_us } => *until_us,
            HostEnd::Knocking { again_us, .. } => *again_us,
            HostEnd::Carrying { exchange, .. } => exchange.next_timeout_us(),
        };
        let nic_us = self.nic.as_ref().map(|(nic, _)| nic.next_timeout_us());
        let times = [arrival, Some(host_us), nic_us, self.wakes_us];
        times.into_iter().flatten().min()
    }

    /// Schedules a check of the rings at `at_us`.
    pub(crate) fn wake(&mut self, at_us: u64) {
        self.wakes_us = Some(self.wakes_us.map_or(at_us, |wakes_us| wakes_us.min(at_us)));
    }

    /// Reports whether a session is up and every parcel in it is delivered.
    pub(crate) fn is_settled(&self) -> bool {
        let host_is_quiet = match &self.host {
            HostEnd::Carrying { exchange, .. } => exchange.is_quiet(),
            _ => false,
        };
        let nic_is_quiet = self.nic.as_ref().is_some_and(|(nic, _)| nic.is_quiet());
        host_is_quiet && nic_is_quiet && self.wakes_us.is_none()
    }

    /// Starts the end of the session: the NIC process is gone, its events are still in the rings,
    /// and the host machine backs off for `back_off_us`.
    pub(crate) fn part(&mut self, now_us: u64, back_off_us: u64) {
        self.back_off_us = back_off_us;
        if let Some((nic, _)) = &mut self.nic {
            nic.part(now_us + NIC_PARTING_US_MAX);
        }
        self.wake(now_us);
    }

    /// Delivers the frames that are due, and repeats HELLO if its time has come.
    pub(crate) fn arrive(&mut self, now_us: u64) -> Arrived {
        self.wakes_us = self.wakes_us.filter(|at_us| *at_us > now_us);
        let mut arrived = Arrived::default();
        while self
            .frames
            .peek()
            .is_some_and(|Reverse(frame)| frame.at_us <= now_us)
            && let Some(Reverse(Frame { to, mut bytes, .. })) = self.frames.pop()
        {
            match to {
                To::Nic => {
                    let guest = self.nic_hears(now_us, &mut bytes);
                    arrived.guest = guest.or(arrived.guest);
                }
                To::Host => {
                    let met = self.host_hears(now_us, &mut bytes);
                    arrived.met = met.or(arrived.met);
                }
            }
        }
        self.knock(now_us);
        arrived
    }

    fn nic_hears(&mut self, now_us: u64, frame: &mut [u8]) -> Option<(Session, Terms)> {
        if let Some((nic, _)) = &mut self.nic
            && nic.on_frame(now_us, frame).is_ok()
        {
            return None;
        }
        let mut answer = Vec::new();
        let seed = self.seed();
        let heard = self.responder.on_frame(now_us, frame, seed, &mut answer);
        if !answer.is_empty() {
            self.post(now_us, To::Host, answer);
        }
        // Damaged frames are refused.
        heard.unwrap_or(None)
    }

    fn host_hears(&mut self, now_us: u64, frame: &mut [u8]) -> Option<Session> {
        match &mut self.host {
            HostEnd::Away { .. } => None,
            HostEnd::Knocking { initiator, .. } => {
                let (session, _) = initiator.on_frame(now_us, frame).ok()?;
                Some(session)
            }
            HostEnd::Carrying { exchange, .. } => {
                let _ = exchange.on_frame(now_us, frame);
                None
            }
        }
    }

    fn knock(&mut self, now_us: u64) {
        match &mut self.host {
            HostEnd::Away { until_us } if *until_us <= now_us => self.knock_again(now_us),
            HostEnd::Knocking {
                initiator,
                repeats,
                again_us,
            } if *again_us <= now_us => {
                if *repeats == REPEATS_MAX {
                    return self.knock_again(now_us);
                }
                *repeats += 1;
                *again_us = now_us + REPEAT_US;
                let mut hello = Vec::new();
                initiator.hello(&mut hello);
                self.post(now_us, To::Nic, hello);
            }
            _ => {}
        }
    }

    fn knock_again(&mut self, now_us: u64) {
        let seed = self.seed();
        let initiator = Initiator::new(&KEY, self.plan.link.mtu as u16, now_us, seed);
        let mut hello = Vec::new();
        initiator.hello(&mut hello);
        self.host = HostEnd::Knocking {
            initiator,
            repeats: 1,
            again_us: now_us + REPEAT_US,
        };
        self.post(now_us, To::Nic, hello);
    }

    /// Starts the host machine's relay between these rings and the session.
    pub(crate) fn begin_host(&mut self, session: Session, channels: Vec<NicChannel>) {
        self.counters.sessions += 1;
        self.back_off_us = BACK_OFF_US;
        self.host = HostEnd::Carrying {
            exchange: Box::new(Exchange::for_host(session)),
            channels,
        };
    }

    /// Starts the NIC machine's relay, for the session's own NIC process.
    pub(crate) fn begin_nic(
        &mut self,
        now_us: u64,
        session: Session,
        source_mac: Option<[u8; 6]>,
        channels: Vec<HostChannel>,
    ) {
        let exchange = Exchange::for_nic(session, source_mac);
        if let Some((mut old, _)) = self.nic.replace((exchange, channels)) {
            self.take_leave(now_us, To::Host, &mut old, Some(Leaving::Superseded));
        }
    }

    /// Runs a turn of the host's relay.
    pub(crate) fn host_turn(&mut self, now_us: u64) -> HostTurn {
        let HostEnd::Carrying { exchange, channels } = &mut self.host else {
            return HostTurn::default();
        };
        let mut frames = Vec::new();
        let turn = exchange.turn(now_us, channels, &mut |frame| frames.push(frame.to_vec()));
        for frame in frames {
            self.post(now_us, To::Nic, frame);
        }
        match turn {
            Ok(worked) => HostTurn {
                worked,
                is_over: false,
            },
            Err(over) => {
                let away = HostEnd::Away {
                    until_us: now_us + self.back_off_us,
                };
                if let HostEnd::Carrying { mut exchange, .. } =
                    std::mem::replace(&mut self.host, away)
                {
                    self.take_leave(now_us, To::Nic, &mut exchange, leaving(over));
                }
                HostTurn {
                    worked: true,
                    is_over: true,
                }
            }
        }
    }

    /// Runs a turn of the NIC machine's relay; true if it did anything, an error if the session is
    /// over.
    pub(crate) fn nic_turn(&mut self, now_us: u64) -> Result<bool, Over> {
        let Some((exchange, channels)) = &mut self.nic else {
            return Ok(false);
        };
        let mut frames = Vec::new();
        let turn = exchange.turn(now_us, channels, &mut |frame| frames.push(frame.to_vec()));
        for frame in frames {
            self.post(now_us, To::Host, frame);
        }
        if let (Err(over), Some((mut exchange, _))) = (turn, self.nic.take_if(|_| turn.is_err())) {
            self.take_leave(now_us, To::Host, &mut exchange, leaving(over));
        }
        turn
    }

    fn take_leave(
        &mut self,
        now_us: u64,
        to: To,
        exchange: &mut Exchange,
        leaving: Option<Leaving>,
    ) {
        let session = exchange.counters();
        self.counters.parcels_repeated += session.parcels_repeated;
        self.counters.parcels_duplicate += session.parcels_duplicate;
        let mut frames = Vec::new();
        exchange.leave(now_us, leaving, &mut |frame| frames.push(frame.to_vec()));
        for frame in frames {
            self.post(now_us, to, frame);
        }
    }

    fn post(&mut self, now_us: u64, to: To, mut frame: Vec<u8>) {
        frame.resize(frame.len().max(PAYLOAD_BYTES_MIN), 0);
        self.counters.frames += 1;
        let elapsed_us = now_us - BEGINNING_US;
        if elapsed_us < CALM_US && self.random.happens(self.plan.damage_ppm) {
            let bit = self.random.within(0..frame.len() as u64 * 8) as usize;
            frame[bit / 8] ^= 1 << (bit % 8);
            self.counters.frames_damaged += 1;
        }
        let link = match to {
            To::Nic => &mut self.to_nic,
            To::Host => &mut self.to_host,
        };
        let Ok(arrivals) = link.pass(elapsed_us, frame) else {
            self.counters.frames_lost += 1;
            return;
        };
        for arrival in arrivals {
            self.frames.push(Reverse(Frame {
                at_us: BEGINNING_US + arrival.at_us,
                number: self.counters.frames,
                to,
                bytes: arrival.frame,
            }));
        }
    }

    fn seed(&mut self) -> [u8; 32] {
        let mut seed = [0; 32];
        for word in seed.as_chunks_mut::<8>().0 {
            *word = self.random.next().to_le_bytes();
        }
        seed
    }
}

/// Result of a turn of the host's relay.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HostTurn {
    /// The relay has moved anything.
    pub(crate) worked: bool,
    /// The session is over: to the host, the NIC stack is gone.
    pub(crate) is_over: bool,
}

/// Returns the reason for the end that is sent to the other side.
fn leaving(over: Over) -> Option<Leaving> {
    match over {
        Over::Session(_) => None,
        Over::StackCorrupt | Over::Parted => Some(Leaving::ProcessGone),
    }
}

impl ControlPlan {
    /// Reports whether the link may lose a session, and with it the last events of NIC stacks.
    pub(crate) fn falls_silent(&self) -> bool {
        !self.link.faults.black_holes.is_empty()
    }

    /// Draws a link that loses, repeats and delays one frame in a hundred each, and sometimes
    /// passes nothing for a while.
    pub(crate) fn draw(random: &mut Random) -> ControlPlan {
        let share_ppm = random.pick(&[10_000, 10_000, 10_000, 50_000]);
        let hole = |random: &mut Random| -> Range<u64> {
            let begins_us = random.across(1_000..CALM_US);
            begins_us..begins_us + random.across(10_000..6_000_000)
        };
        let black_holes = if random.one_in(4) {
            vec![hole(random)]
        } else {
            Vec::new()
        };
        ControlPlan {
            link: LinkPlan {
                bytes_per_second: random.pick(&[12_500_000, 125_000_000, 1_250_000_000]),
                delay_us: random.pick(&[5, 50, 1_000]),
                queue_bytes_max: 8 << 20,
                mark_bytes: None,
                mtu: random.pick(&[1500, 1500, 9000]),
                tells_too_big: false,
                faults: Faults {
                    loss_ppm: share_ppm,
                    duplicate_ppm: share_ppm,
                    reorder_ppm: share_ppm,
                    reorder_us: 1..random.pick(&[100, 5_000]),
                    black_holes,
                    ..Faults::default()
                },
            },
            damage_ppm: random.pick(&[0, 1_000]),
        }
    }
}
