//! Both nodes, and the link between them.

use std::collections::VecDeque;
use std::mem;

use cluster::{Brought, Gate, Granted, Node, Reply, Stack};
use contract::ethernet::{Initiator, PreSharedKey, Responder, Session, Terms};
use socket_channel::attach::Key;
use socket_channel::channel::in_memory;
use socket_channel::{AppId, ChannelId, HandleId, Layout, Limits, Segment};
use sockets::{Attachment, First, Grant, Identity};

use crate::program::Program;
use crate::world::World;

pub(crate) const MODES: u32 = 30;
pub(crate) const KEY: Key = Key::new([7; Key::BYTES]);

/// Of what an application shares.
const LIMITS: Limits = Limits {
    sockets_max: 1024,
    segment_bytes: 32 << 20,
};

/// Handles of a program.
const HANDLES: u32 = 500;

/// What the gate asks of the broker: the test answers in its place.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    asked: Vec<Ask>,
    brought: VecDeque<Brought>,
}

impl Asked {
    pub(crate) fn bring(&mut self, brought: Brought) {
        self.brought.push_back(brought);
    }
}

#[derive(Debug)]
enum Ask {
    Attach(u32),
    Handles(u32),
    Detach(u32),
}

impl Stack for Asked {
    fn attach(&mut self, app: u32, _modes: u32) {
        self.asked.push(Ask::Attach(app));
    }
    fn more_handles(&mut self, app: u32) {
        self.asked.push(Ask::Handles(app));
    }
    fn detach(&mut self, app: u32) {
        self.asked.push(Ask::Detach(app));
    }
    fn receive(&mut self) -> Option<Brought> {
        self.brought.pop_front()
    }
}

/// What happens to frames, one in so many; 0: to none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) loss: u64,
    pub(crate) repeat: u64,
    pub(crate) hold: u64,
}

#[derive(Debug, Default)]
struct Link {
    faults: Faults,
    is_cut: bool,
    /// Frames to the application node stay on their way.
    is_held: bool,
    seed: u64,
    frames: [VecDeque<Vec<u8>>; 2],
    held: [Vec<Vec<u8>>; 2],
}

impl Link {
    fn one_in(&mut self, of: u64) -> bool {
        // xorshift64*
        self.seed ^= self.seed >> 12;
        self.seed ^= self.seed << 25;
        self.seed ^= self.seed >> 27;
        of != 0 && (self.seed.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33).is_multiple_of(of)
    }

    fn send(&mut self, to: usize, frame: &[u8]) {
        let faults = self.faults;
        if self.is_cut || self.one_in(faults.loss) {
            return;
        }
        if self.one_in(faults.hold) {
            return self.held[to].push(frame.to_vec());
        }
        self.frames[to].push_back(frame.to_vec());
        if self.one_in(faults.repeat) {
            self.frames[to].push_back(frame.to_vec());
        }
        let held = mem::take(&mut self.held[to]);
        self.frames[to].extend(held);
    }
}

pub(crate) struct Nodes {
    pub(crate) world: World,
    pub(crate) node: Node,
    pub(crate) gate: Gate<Asked>,
    sessions: Option<(Session, Session)>,
    link: Link,
    next_app: u32,
    /// Applications on the stack node, by what the application node calls them.
    served: Vec<(u32, AppId, u32)>,
    next_served: u32,
    pub(crate) refuses: Option<u32>,
    /// The broker of the stack node has no handles.
    pub(crate) is_short: bool,
    pub(crate) grant: Grant,
    /// Of what programs share with the application node.
    pub(crate) node_limits: Limits,
    pub(crate) replies: Vec<Reply>,
    pub(crate) seed: u64,
}

fn sessions(now_us: u64) -> (Session, Session) {
    let (key, seed) = (PreSharedKey::new([9; 32]), [3; 32]);
    let terms = Terms {
        workers: 1,
        frame_bytes: 1500,
        mtu: 1500,
        source_mac: None,
    };
    let mut responder = Responder::new(&key, terms);
    let mut initiator = Initiator::new(&key, 1500, now_us, seed);
    let (mut frame, mut answer) = (Vec::new(), Vec::new());
    initiator.hello(&mut frame);
    let met = responder.on_frame(now_us, &mut frame, seed, &mut answer);
    assert!(matches!(met, Ok(None)));
    let (mut node, _) = initiator.on_frame(now_us, &mut answer).unwrap();
    assert!(node.transmit(now_us, &mut frame));
    let met = responder.on_frame(now_us, &mut frame, seed, &mut answer);
    (node, met.unwrap().unwrap().0)
}

impl Nodes {
    /// With a session over a link without faults.
    pub(crate) fn new(seed: u64) -> Nodes {
        println!("seed {seed}");
        let mut nodes = Nodes {
            world: World::new(),
            node: Node::without_descriptors(),
            gate: Gate::new(Asked::default()),
            sessions: None,
            link: Link {
                seed: seed | 1,
                ..Link::default()
            },
            next_app: 1,
            served: Vec::new(),
            next_served: 100,
            refuses: None,
            is_short: false,
            grant: Grant::default(),
            node_limits: LIMITS,
            replies: Vec::new(),
            seed,
        };
        nodes.begin_session();
        nodes
    }

    pub(crate) fn with_faults(seed: u64, faults: Faults) -> Nodes {
        let mut nodes = Nodes::new(seed);
        nodes.link.faults = faults;
        nodes
    }

    pub(crate) fn begin_session(&mut self) {
        self.link.is_cut = false;
        self.sessions = Some(sessions(self.world.now_us));
        self.node.begin_session();
    }

    /// The cable is pulled.
    pub(crate) fn cut(&mut self) {
        self.link.is_cut = true;
    }

    /// Frames to the application node take longer, or have arrived.
    pub(crate) fn hold_frames_to_node(&mut self, holds: bool) {
        self.link.is_held = holds;
    }

    pub(crate) fn has_session(&self) -> bool {
        self.sessions.is_some()
    }

    /// A program that attaches; the reply comes later.
    pub(crate) fn attach(&mut self) -> Program {
        self.attach_with(MODES)
    }

    /// The same, in these modes.
    pub(crate) fn attach_with(&mut self, modes: u32) -> Program {
        self.attach_as(1000, modes)
    }

    /// The same, of this user.
    pub(crate) fn attach_as(&mut self, uid: u32, modes: u32) -> Program {
        let segment = Segment::in_memory(Layout::of(self.node_limits).unwrap());
        let (host, end) = in_memory();
        let (app, channel) = (AppId(self.next_app), ChannelId(self.next_app * 10));
        self.next_app += 1;
        self.node.attach(Attachment {
            app,
            channel,
            pid: 0,
            uid,
            first: Some(First {
                grant: Grant::default(),
                segment: segment.clone(),
                identity: Identity {
                    key: KEY,
                    modes,
                    segment_file: None,
                },
            }),
            end: host,
        });
        self.node
            .add_handles_without_descriptors(app, HandleId(0), HANDLES);
        Program::new(app, channel, segment, end)
    }

    /// A program that is attached.
    #[track_caller]
    pub(crate) fn program(&mut self) -> Program {
        self.program_of(1000)
    }

    /// The same, of this user.
    #[track_caller]
    pub(crate) fn program_of(&mut self, uid: u32) -> Program {
        let program = self.attach_as(uid, MODES);
        let (app, channel) = (program.app, program.channel);
        let attached = Reply::Attached { app, channel };
        self.run_until(|nodes| nodes.replies.contains(&attached));
        program
    }

    /// A program ends without a word: the kernel closes its descriptors.
    pub(crate) fn kill(&mut self, program: Program) {
        for number in 0..HANDLES {
            self.node.hang_up(program.app, HandleId(number));
        }
        self.node.end_process(program.app, program.channel);
    }

    pub(crate) fn step(&mut self) {
        self.world.step();
        let now_us = self.world.now_us;
        self.answer_gate();
        let node = &mut self.node;
        let gate = &mut self.gate;
        let Some((a, b)) = &mut self.sessions else {
            node.turn(now_us, &mut Vec::new);
            gate.turn(now_us);
            return;
        };
        for (to, session) in [(1, &mut *a), (0, &mut *b)] {
            let mut frames = Vec::from(mem::take(&mut self.link.frames[1 - to]));
            if to == 1 && self.link.is_held {
                self.link.frames[0] = mem::take(&mut frames).into();
            }
            for frame in &mut frames {
                let _ = session.on_frame(now_us, frame);
            }
            while let Some((_, record)) = session.record() {
                if to == 1 {
                    node.on_message(record);
                } else if gate.has_room() {
                    gate.on_message(record);
                } else {
                    break;
                }
                session.consume();
            }
            while session.has_room() {
                let message = if to == 1 {
                    let message = node.next_message();
                    message.or_else(|| {
                        node.turn(now_us, &mut Vec::new);
                        node.next_message()
                    })
                } else {
                    let message = gate.next_message();
                    message.or_else(|| {
                        gate.turn(now_us);
                        gate.next_message()
                    })
                };
                let Some(message) = message else {
                    break;
                };
                session.send(0, &message).unwrap();
            }
            session.on_time(now_us);
            let mut frame = Vec::new();
            while session.transmit(now_us, &mut frame) {
                self.link.send(to, &frame);
            }
        }
        if a.end().is_some() && b.end().is_some() {
            self.sessions = None;
            self.node.end_session();
            self.gate.end_session();
        }
        self.replies.extend(self.node.take_replies());
    }

    /// The broker of the stack node.
    fn answer_gate(&mut self) {
        for ask in mem::take(&mut self.gate.stack_mut().asked) {
            match ask {
                Ask::Attach(app) => {
                    let brought = self.serve(app);
                    self.gate.stack_mut().brought.push_back(brought);
                }
                Ask::Handles(app) if self.is_short => {
                    let handles = Vec::new();
                    self.gate
                        .stack_mut()
                        .bring(Brought::Handles { app, handles });
                }
                Ask::Handles(app) => {
                    let found = self.served.iter_mut().find(|(of, ..)| *of == app);
                    let Some((_, served, next)) = found else {
                        continue;
                    };
                    let sockets = &mut self.world.apps.others;
                    sockets.add_handles_without_descriptors(*served, HandleId(*next), 64);
                    let handles = (*next..*next + 64).map(|it| (HandleId(it), None)).collect();
                    *next += 64;
                    let brought = Brought::Handles { app, handles };
                    self.gate.stack_mut().brought.push_back(brought);
                }
                Ask::Detach(app) => {
                    let place = self.served.iter().position(|(of, ..)| *of == app);
                    let Some(place) = place else {
                        continue;
                    };
                    let (_, served, next) = self.served.swap_remove(place);
                    // Its commands come before.
                    self.world.run_for_us(1_000);
                    for number in 0..next {
                        self.world.hang_up(served, HandleId(number));
                    }
                    self.world.end_process(served, ChannelId(served.0));
                }
            }
        }
    }

    fn serve(&mut self, app: u32) -> Brought {
        if let Some(errno) = self.refuses {
            return Brought::Refused { app, errno };
        }
        let served = AppId(self.next_served);
        let channel = ChannelId(self.next_served);
        self.next_served += 1;
        let segment = Segment::in_memory(Layout::of(LIMITS).unwrap());
        let (host, end) = in_memory();
        let attached = self.world.apps.others.attach(Attachment {
            app: served,
            channel,
            pid: 0,
            uid: 1000,
            first: Some(First {
                grant: self.grant.clone(),
                segment: segment.clone(),
                identity: Identity {
                    key: KEY,
                    modes: MODES,
                    segment_file: None,
                },
            }),
            end: host,
        });
        attached.unwrap();
        self.served.push((app, served, 0));
        Brought::Attached {
            app,
            granted: Box::new(Granted {
                segment,
                end,
                channel,
                modes: MODES,
            }),
        }
    }

    /// The host stack serves all applications no more.
    pub(crate) fn end_host(&mut self) {
        for (app, ..) in self.served.clone() {
            let brought = Brought::Gone { app };
            self.gate.stack_mut().brought.push_back(brought);
        }
    }

    /// Steps until `done`, for at most so long as no test takes.
    #[track_caller]
    pub(crate) fn run_until(&mut self, mut done: impl FnMut(&mut Nodes) -> bool) {
        for _ in 0..1_200_000 {
            if done(self) {
                return;
            }
            self.step();
        }
        panic!(
            "seed {}: {:#?} {:#?}",
            self.seed,
            self.world.sockets().applications().collect::<Vec<_>>(),
            self.node
        );
    }

    /// Nothing is left of any program on either node, nor of any connection but in TIME-WAIT.
    #[track_caller]
    pub(crate) fn assert_nothing_left(&mut self) {
        self.run_until(|nodes| nodes.node.applications() == 0);
        self.run_until(|nodes| nodes.gate.applications() == 0 && !nodes.gate.is_leaving());
        self.run_until(|nodes| nodes.world.server.usage().connections == 0);
        self.run_until(|nodes| nodes.world.sockets().applications().count() == 0);
        let sockets = self.world.sockets().counters().sockets;
        assert_eq!(sockets, 0, "seed {}", self.seed);
        assert_eq!(self.node.sockets() + self.gate.sockets(), 0);
        assert_eq!(self.world.server.usage().files, 0);
    }
}
