//! Brokers that follow each other: what the next one learns, and how processes that do not come to
//! it end.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use host::app::Application;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use socket_channel::attach::HANDLES_MAX;
use socket_channel::channel::{self, AppEnd, in_memory};
use socket_channel::message::BindFlags;
use socket_channel::{AppId, ChannelId, Command, HandleId};
use sockets::{Arrived, Attachment, Broker, BrokerGone, Known, NewHandles, Sockets};

use crate::modes;
use crate::program::{HANDLES, KEY, Program};
use crate::world::World;

const EAGAIN: u32 = 11;

/// What a broker has heard of the host stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heard {
    Application {
        app: AppId,
        uid: u32,
        next_handle: HandleId,
    },
    Process {
        app: AppId,
        channel: ChannelId,
        pid: u32,
        uid: u32,
    },
    File {
        app: AppId,
        file: u32,
    },
    All,
    Attached(AppId, ChannelId),
    Refused(AppId, ChannelId, Errno),
    Ended(AppId, ChannelId),
    Detached(AppId),
}

#[derive(Debug, Default)]
struct Shared {
    brings: VecDeque<Arrived>,
    heard: Vec<Heard>,
    is_behind: bool,
    /// Open handles of the application that was named last.
    handles: u32,
    handles_closed: u32,
}

/// A broker that brings what it is given, and notes what it hears; clones are the same one.
#[derive(Clone, Debug)]
pub(crate) struct PlayedBroker {
    /// Always writable, and never readable.
    bell: Arc<OwnedFd>,
    shared: Arc<Mutex<Shared>>,
}

impl PlayedBroker {
    pub(crate) fn new() -> PlayedBroker {
        PlayedBroker {
            bell: Arc::new(channel::create_bell().unwrap()),
            shared: Arc::default(),
        }
    }

    pub(crate) fn bring(&self, arrived: Arrived) {
        self.shared.lock().unwrap().brings.push_back(arrived);
    }

    /// Takes the place of the one before.
    pub(crate) fn start(&self, world: &mut World) {
        let broker = Box::new(self.clone());
        world.apps.others.set_broker(broker).unwrap();
    }

    fn heard(&self) -> Vec<Heard> {
        std::mem::take(&mut self.shared.lock().unwrap().heard)
    }

    fn note(&self, heard: Heard) {
        self.shared.lock().unwrap().heard.push(heard);
    }

    /// Rings the bell, so that the shard listens, and lets it.
    fn tell(&self, world: &mut World, arrived: Arrived) {
        self.bring(arrived);
        rustix::io::write(&self.bell, &1u64.to_ne_bytes()).unwrap();
        world.on_wake();
        world.run_for_us(1_000);
    }
}

impl Broker for PlayedBroker {
    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn receive(&mut self) -> Result<Option<Arrived>, BrokerGone> {
        Ok(self.shared.lock().unwrap().brings.pop_front())
    }

    fn is_behind(&self) -> bool {
        self.shared.lock().unwrap().is_behind
    }

    fn inform(&mut self, known: Known) {
        self.note(match known {
            Known::Application {
                app,
                uid,
                next_handle,
                handles,
                identity,
            } => {
                self.shared.lock().unwrap().handles = handles;
                assert_eq!((identity.key, identity.modes), (KEY, modes::modes()));
                Heard::Application {
                    app,
                    uid,
                    next_handle,
                }
            }
            Known::Process {
                app,
                channel,
                pid,
                uid,
            } => Heard::Process {
                app,
                channel,
                pid,
                uid,
            },
            Known::File { app, file } => Heard::File { app, file },
            Known::All => Heard::All,
        });
    }

    fn handles_closed(&mut self, app: AppId, count: u32) {
        let mut shared = self.shared.lock().unwrap();
        assert!(app != AppId(0) && count >= HANDLES_MAX);
        shared.handles_closed += count;
    }

    fn attached(&mut self, app: AppId, channel: ChannelId) {
        self.note(Heard::Attached(app, channel));
    }

    fn refused(&mut self, app: AppId, channel: ChannelId, errno: Errno) {
        self.note(Heard::Refused(app, channel, errno));
    }

    fn ended(&mut self, app: AppId, channel: ChannelId) {
        self.note(Heard::Ended(app, channel));
    }

    fn detached(&mut self, app: AppId) {
        self.note(Heard::Detached(app));
    }

    fn file_released(&mut self, _: AppId, _: u32) {}
}

fn world() -> World {
    let mut world = World::new();
    world.apps.others = Sockets::new().unwrap();
    world
}

const CHILD: ChannelId = ChannelId(7);

/// A child of a program, which has changed its user; and its end of the channel.
fn child_of(program: &Program) -> (Box<Attachment>, AppEnd) {
    let (end, own) = in_memory();
    let child = Attachment {
        app: program.app,
        channel: CHILD,
        pid: 77,
        uid: 33,
        first: None,
        end,
    };
    (Box::new(child), own)
}

/// Brings handles for a process; returns the ends that it would have.
fn give(
    broker: &PlayedBroker,
    world: &mut World,
    (app, channel): (AppId, ChannelId),
    first: u32,
) -> Vec<OwnedFd> {
    let (descriptors, own): (Vec<OwnedFd>, Vec<OwnedFd>) = (0..3).map(|_| pair()).unzip();
    let first = HandleId(first);
    broker.tell(
        world,
        Arrived::Handles(NewHandles {
            app,
            channel,
            first,
            descriptors,
        }),
    );
    own
}

fn pair() -> (OwnedFd, OwnedFd) {
    let (theirs, own) = std::os::unix::net::UnixStream::pair().unwrap();
    (theirs.into(), own.into())
}

fn application(program: &Program, next_handle: u32) -> Heard {
    Heard::Application {
        app: program.app,
        uid: 1000,
        next_handle: HandleId(next_handle),
    }
}

fn process(program: &Program) -> Heard {
    Heard::Process {
        app: program.app,
        channel: program.channel,
        pid: program.app.0 + 1000,
        uid: 1000,
    }
}

#[test]
fn a_handle_that_a_broker_has_just_made_is_known_to_who_asks_for_it_first() {
    let mut world = world();
    let broker = PlayedBroker::new();
    broker.start(&mut world);
    let mut program = Program::new(&mut world, 1);
    let handle = HandleId(HANDLES);
    let (theirs, _own) = pair();
    broker.bring(Arrived::Handles(NewHandles {
        app: program.app,
        channel: program.channel,
        first: handle,
        descriptors: vec![theirs],
    }));
    let look_up = |program: &mut Program, world: &mut World| {
        let found = program.call(world, |request| Command::LookUp { request, handle });
        found.map(|(socket, _)| socket)
    };
    // The process that has it has not yet given it a socket.
    assert_eq!(look_up(&mut program, &mut world), Err(EAGAIN));
    let socket = program.open(&mut world, handle);
    assert_eq!(look_up(&mut program, &mut world), Ok(Some(socket)));
}

#[test]
fn a_broker_learns_what_the_one_before_has_attached_and_told() {
    let mut world = world();
    let before = PlayedBroker::new();
    before.start(&mut world);
    assert_eq!(before.heard(), [Heard::All]);
    let (one, two) = (Program::new(&mut world, 1), Program::new(&mut world, 2));
    let (child, _end) = child_of(&one);
    before.tell(&mut world, Arrived::Process(child));
    assert_eq!(before.heard(), [Heard::Attached(one.app, CHILD)]);
    // What it has said last is not lost with it, but for processes that nothing would answer.
    let _handles = give(&before, &mut world, (one.app, CHILD), HANDLES);
    let (late, _late_end) = child_of(&two);
    let (theirs, _own) = pair();
    before.bring(Arrived::Process(late));
    before.bring(Arrived::Handles(NewHandles {
        app: two.app,
        channel: two.channel,
        first: HandleId(u32::MAX - 1),
        descriptors: vec![theirs],
    }));
    before.bring(Arrived::Gone {
        app: one.app,
        channel: one.channel,
    });
    let broker = PlayedBroker::new();
    broker.start(&mut world);
    let child = Heard::Process {
        app: one.app,
        channel: CHILD,
        pid: 77,
        uid: 33,
    };
    assert_eq!(
        broker.heard(),
        [
            application(&one, HANDLES + 3),
            process(&one),
            child,
            application(&two, u32::MAX),
            process(&two),
            Heard::All,
        ]
    );
    assert_eq!(broker.shared.lock().unwrap().handles, HANDLES + 1);
    world.run_for_us(1_000);
    assert_eq!(broker.heard(), [Heard::Ended(one.app, one.channel)]);
    assert_eq!(world.sockets().processes(), 2);
}

#[test]
fn a_process_that_comes_again_ends_when_its_broker_says_so() {
    let mut world = world();
    let program = Program::new(&mut world, 1);
    let broker = PlayedBroker::new();
    broker.start(&mut world);
    broker.heard();
    let (app, channel) = (program.app, program.channel);
    let again = |channel| Arrived::Again { app, channel };
    broker.tell(&mut world, again(channel));
    broker.tell(&mut world, again(ChannelId(channel.0 + 1)));
    let unknown = AppId(9);
    broker.tell(
        &mut world,
        Arrived::Again {
            app: unknown,
            channel,
        },
    );
    assert_eq!(
        broker.heard(),
        [
            Heard::Attached(app, channel),
            Heard::Refused(app, ChannelId(channel.0 + 1), Errno::SHUTDOWN),
            Heard::Refused(unknown, channel, Errno::SHUTDOWN),
        ]
    );
    assert_eq!(world.sockets().counters().processes_reattached, 1);
    for number in 0..HANDLES {
        world.hang_up(app, HandleId(number));
    }
    world.run_for_us(1_000);
    assert_eq!(world.sockets().processes(), 1, "its broker would know");
    broker.tell(&mut world, Arrived::Gone { app, channel });
    assert_eq!(broker.heard(), [Heard::Detached(app)]);
    world.assert_nothing_left();
}

#[test]
fn a_process_that_never_comes_again_ends_with_its_last_handle_and_its_parent_goes_on() {
    let mut world = world();
    let before = PlayedBroker::new();
    before.start(&mut world);
    let mut program = Program::new(&mut world, 1);
    let app = program.app;
    let (child, _end) = child_of(&program);
    before.tell(&mut world, Arrived::Process(child));
    let own = give(&before, &mut world, (app, CHILD), HANDLES);
    let broker = PlayedBroker::new();
    broker.start(&mut world);
    broker.heard();
    program.listener(&mut world, 8000);
    let mut own = own.into_iter();
    let last = own.next();
    drop(own);
    world.on_wake();
    world.run_for_us(1_000);
    assert_eq!(world.sockets().processes(), 2);
    drop(last);
    world.on_wake();
    world.run_for_us(1_000);
    assert_eq!(broker.heard(), [Heard::Ended(app, CHILD)]);
    assert_eq!(world.sockets().processes(), 1);
    // The parent ends likewise.
    for number in 0..HANDLES {
        world.hang_up(app, HandleId(number));
    }
    world.run_for_us(1_000);
    let channel = program.channel;
    assert_eq!(
        broker.heard(),
        [Heard::Ended(app, channel), Heard::Detached(app)]
    );
    world.assert_nothing_left();
    assert_eq!(world.sockets().processes(), 0);
}

#[test]
fn a_thousand_descriptors_that_hang_up_together_are_noticed_at_once_and_let_go_in_turns() {
    let mut world = world();
    let program = Program::new(&mut world, 1);
    let broker = PlayedBroker::new();
    broker.start(&mut world);
    let place = (program.app, program.channel);
    let batches = (0..400).map(|batch| HANDLES + batch * 3);
    let own: Vec<_> = batches
        .map(|first| give(&broker, &mut world, place, first))
        .collect();
    let handles = |world: &World| world.sockets().applications().next().unwrap().handles;
    assert_eq!(handles(&world), HANDLES as usize + 1200);
    drop(own);
    // One that never sleeps is woken seldom.
    world.on_wake();
    while handles(&world) > HANDLES as usize {
        let before = handles(&world);
        world.step();
        let closed = before - handles(&world);
        assert!((1..=256).contains(&closed), "{closed} in a turn");
    }
    // Some wait for more.
    let reported = broker.shared.lock().unwrap().handles_closed;
    assert!(
        (1200 - HANDLES_MAX..=1200).contains(&reported),
        "{reported}"
    );
}

#[test]
fn descriptors_whose_hang_up_is_seen_amid_a_command_are_let_go() {
    let mut world = world();
    let mut program = Program::new(&mut world, 1);
    let broker = PlayedBroker::new();
    broker.start(&mut world);
    let own = give(&broker, &mut world, (program.app, program.channel), HANDLES);
    program.listener(&mut world, 8000);
    drop(own);
    // The shard looks whether who has the address was closed, and does not wake up again.
    let handle = program.handle();
    let socket = program.open(&mut world, handle);
    let bound = program.bind(&mut world, socket, "0.0.0.0:8000", BindFlags::NONE);
    bound.unwrap_err();
    world.run_for_us(1_000);
    let left = world.sockets().applications().next().unwrap().handles;
    assert_eq!(left, HANDLES as usize);
}

#[test]
fn the_shard_wakes_up_for_room_while_messages_wait_for_it_and_no_longer() {
    let mut world = world();
    let broker = PlayedBroker::new();
    broker.shared.lock().unwrap().is_behind = true;
    broker.start(&mut world);
    let is_awake = |world: &World| {
        let fds = world.sockets().wake_fds();
        let mut fds = [PollFd::from_borrowed_fd(fds[0], PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())) == Ok(1)
    };
    assert!(is_awake(&world));
    broker.shared.lock().unwrap().is_behind = false;
    world.run_for_us(1_000);
    assert!(!is_awake(&world));
    broker.shared.lock().unwrap().is_behind = true;
    world.run_for_us(1_000);
    assert!(is_awake(&world));
}
