//! Files of which programs have passed descriptors.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use rustix::io::Errno;
use socket_channel::{AppId, ChannelId, Command, Flags, HandleId, SocketId, channel};
use sockets::{Arrived, Broker, BrokerGone, Known};

use crate::files::{bytes_of, write_file};
use crate::program::Program;
use crate::world::World;

/// What a broker has heard.
#[derive(Debug, Default)]
struct Told {
    released: Vec<(AppId, u32)>,
    detached: Vec<AppId>,
    known: Vec<(AppId, u32)>,
}

/// A broker that notes what it hears.
#[derive(Debug)]
struct Notes {
    bell: OwnedFd,
    told: Arc<Mutex<Told>>,
}

impl Broker for Notes {
    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn receive(&mut self) -> Result<Option<Arrived>, BrokerGone> {
        Ok(None)
    }

    fn attached(&mut self, _: AppId, _: ChannelId) {}

    fn refused(&mut self, _: AppId, _: ChannelId, _: Errno) {}

    fn detached(&mut self, app: AppId) {
        self.told.lock().unwrap().detached.push(app);
    }

    fn is_behind(&self) -> bool {
        false
    }

    fn inform(&mut self, known: Known) {
        if let Known::File { app, file } = known {
            self.told.lock().unwrap().known.push((app, file));
        }
    }

    fn ended(&mut self, _: AppId, _: ChannelId) {}

    fn handles_closed(&mut self, _: AppId, _: u32) {}

    fn file_released(&mut self, app: AppId, file: u32) {
        self.told.lock().unwrap().released.push((app, file));
    }
}

fn world() -> (World, Arc<Mutex<Told>>) {
    let mut world = World::new();
    world.clients.echoes = false;
    let told = next_broker(&mut world);
    (world, told)
}

/// A broker takes the place of another.
fn next_broker(world: &mut World) -> Arc<Mutex<Told>> {
    let told = Arc::default();
    let broker = Notes {
        bell: channel::create_bell().unwrap(),
        told: Arc::clone(&told),
    };
    world.apps.others.set_broker(Box::new(broker)).unwrap();
    told
}

/// The number of a descriptor is the length of its file here.
fn open(world: &mut World, program: &mut Program, file: u32) -> (SocketId, HandleId) {
    let handle = program.handle();
    let opened = program.call(world, |request| Command::OpenPassed {
        request,
        handle,
        file,
    });
    (opened.unwrap().0.unwrap(), handle)
}

#[test]
fn a_descriptor_is_released_when_all_of_it_has_arrived() {
    let (mut world, told) = world();
    world.loss = 15;
    let mut program = Program::new(&mut world, 7);
    let (listener, _) = program.listener(&mut world, 8000);
    let (file, handle) = open(&mut world, &mut program, 400_000);
    world.run_until(|_| program.flags(file).has(Flags::FILE_OPEN));
    let meta = program.record(file).file_meta().unwrap().unwrap();
    assert_eq!(meta.size, 400_000);
    let stream = world.connect(8000);
    let (socket, _) = program.accept(&mut world, listener);
    write_file(&mut world, &mut program, socket, file, 0, 400_000);
    program.close(handle);
    let released = || told.lock().unwrap().released.clone();
    world.run_until(|world| {
        let all = world.heard(stream).received.len() == 400_000;
        assert!(all || released().is_empty(), "it may have to be sent again");
        all
    });
    assert!(world.heard(stream).received == bytes_of(400_000, 0, 400_000));
    // The connection has nothing else to send.
    world.run_until(|_| !released().is_empty());
    assert_eq!(released(), [(AppId(7), 400_000)]);
    // What is sent before it is closed is kept for what may follow, and released then.
    let (next, next_handle) = open(&mut world, &mut program, 10);
    for sent in [10, 20] {
        write_file(&mut world, &mut program, socket, next, 0, 10);
        world.run_until(|world| world.heard(stream).received.len() == 400_000 + sent);
    }
    world.run_for_us(1_000_000);
    assert_eq!(world.server.usage().files, 1);
    program.close(next_handle);
    world.run_until(|_| released().len() == 2);
    assert_eq!(world.server.usage().files, 0);
    program.shutdown(socket);
    world.run_until(|world| world.heard(stream).has_finished);
    program.exit(&mut world);
    world.run_until(|_| !told.lock().unwrap().detached.is_empty());
    assert_eq!(released(), [(AppId(7), 400_000), (AppId(7), 10)]);
    world.assert_nothing_left();
}

#[test]
fn the_next_broker_hears_of_the_files_that_may_be_sent_yet() {
    let (mut world, _) = world();
    world.clients.is_stalled = true;
    let mut program = Program::new(&mut world, 7);
    let (listener, _) = program.listener(&mut world, 8000);
    world.connect(8000);
    let (socket, _) = program.accept(&mut world, listener);
    // One that is being sent, one that is open, one that is closed.
    let (sent, sent_handle) = open(&mut world, &mut program, 150_000);
    write_file(&mut world, &mut program, socket, sent, 0, 150_000);
    program.close(sent_handle);
    open(&mut world, &mut program, 10);
    let (over, over_handle) = open(&mut world, &mut program, 20);
    world.run_until(|_| program.flags(over).has(Flags::FILE_OPEN));
    program.close(over_handle);
    world.run_for_us(100_000);
    let mut known = next_broker(&mut world).lock().unwrap().known.clone();
    known.sort_by_key(|(_, file)| *file);
    assert_eq!(known, [(AppId(7), 10), (AppId(7), 150_000)]);
    world.clients.is_stalled = false;
    world.resume_clients();
    program.exit(&mut world);
    world.assert_nothing_left();
    assert!(next_broker(&mut world).lock().unwrap().known.is_empty());
}

#[test]
fn an_application_is_not_over_while_its_files_are_sent() {
    let (mut world, told) = world();
    world.clients.is_stalled = true;
    let mut program = Program::new(&mut world, 7);
    let (listener, _) = program.listener(&mut world, 8000);
    let (file, _) = open(&mut world, &mut program, 150_000);
    world.run_until(|_| program.flags(file).has(Flags::FILE_OPEN));
    let stream = world.connect(8000);
    let (socket, _) = program.accept(&mut world, listener);
    write_file(&mut world, &mut program, socket, file, 0, 150_000);
    program.exit(&mut world);
    world.run_for_us(500_000);
    {
        let told = told.lock().unwrap();
        assert!(told.released.is_empty() && told.detached.is_empty());
    }
    world.resume_clients();
    world.run_until(|_| !told.lock().unwrap().detached.is_empty());
    assert!(world.heard(stream).received == bytes_of(150_000, 0, 150_000));
    assert_eq!(told.lock().unwrap().released, [(AppId(7), 150_000)]);
    world.assert_nothing_left();
}

#[test]
fn a_descriptor_that_is_opened_twice_is_released_once() {
    let (mut world, told) = world();
    let mut program = Program::new(&mut world, 7);
    let (_, first) = open(&mut world, &mut program, 5);
    let (file, second) = open(&mut world, &mut program, 5);
    world.run_until(|_| program.flags(file).has(Flags::FILE_OPEN));
    program.close(first);
    world.run_for_us(10_000);
    assert!(told.lock().unwrap().released.is_empty());
    program.close(second);
    world.run_until(|_| !told.lock().unwrap().released.is_empty());
    // A handle that is none: what was passed is of no use.
    let refused = program.call(&mut world, |request| Command::OpenPassed {
        request,
        handle: HandleId(u32::MAX),
        file: 6,
    });
    assert_eq!(refused, Err(Errno::BADF.raw_os_error().unsigned_abs()));
    world.run_until(|_| told.lock().unwrap().released.len() == 2);
    let released = told.lock().unwrap().released.clone();
    assert_eq!(released, [(AppId(7), 5), (AppId(7), 6)]);
    program.exit(&mut world);
    world.run_until(|_| !told.lock().unwrap().detached.is_empty());
    world.assert_nothing_left();
}
