//! Processes that keep the descriptors of closed connections for others.

use socket_channel::channel::{AppEnd, in_memory};
use socket_channel::{ChannelId, Command, Event, HandleId, SocketId};
use sockets::Attachment;

use crate::program::{Program, text};
use crate::world::World;

const EBADF: u32 = 9;

/// Another process of a program's application.
struct Other(AppEnd);

impl Other {
    fn of(world: &mut World, program: &Program) -> Other {
        let (end, own) = in_memory();
        let other = Attachment {
            app: program.app,
            channel: ChannelId(program.channel.0 + 1000),
            pid: 0,
            uid: 0,
            first: None,
            end,
        };
        world.apps.others.attach(other).unwrap();
        Other(own)
    }

    fn call(&mut self, world: &mut World, command: &Command<'_>) -> Result<Option<SocketId>, u32> {
        self.0.send(command).unwrap();
        self.0.flush();
        let mut found = None;
        world.run_until(|_| {
            while let Some(event) = self.0.receive().unwrap() {
                if let Event::Answer { errno, socket, .. } = event {
                    found = Some(if errno == 0 { Ok(socket) } else { Err(errno) });
                }
            }
            self.0.flush();
            found.is_some()
        });
        found.unwrap()
    }

    fn looks_up(&mut self, world: &mut World, handle: HandleId) -> Result<Option<SocketId>, u32> {
        self.call(world, &Command::LookUp { request: 7, handle })
    }
}

#[test]
fn a_handle_has_one_connection_after_another() {
    let mut world = World::new();
    let mut program = Program::new(&mut world, 1);
    let (listener, _) = program.listener(&mut world, 8000);
    let handle = program.handle();
    for round in 0..50 {
        let stream = world.connect(8000);
        let socket = program.accept_for(&mut world, listener, handle);
        let bytes = text(3000, round);
        program.write_all(&mut world, socket, &bytes);
        program.send(&Command::Reuse { handle });
        world.run_until(|world| world.heard(stream).has_finished);
        assert!(world.heard(stream).received == bytes, "every byte");
        world.client_sends(stream, b"", true);
    }
    let counters = world.sockets().counters();
    assert_eq!(
        (counters.handles_reused, counters.commands_refused),
        (50, 0)
    );
    program.exit(&mut world);
    world.assert_nothing_left();
}

#[test]
fn only_its_process_looks_up_a_reused_handle_until_it_is_shared() {
    let mut world = World::new();
    let mut program = Program::new(&mut world, 1);
    let mut other = Other::of(&mut world, &program);
    let (listener, _) = program.listener(&mut world, 8000);
    let handle = program.handle();
    world.connect(8000);
    let first = program.accept_for(&mut world, listener, handle);
    assert_eq!(other.looks_up(&mut world, handle), Ok(Some(first)));
    program.send(&Command::Reuse { handle });
    world.connect(8000);
    let second = program.accept_for(&mut world, listener, handle);
    assert_ne!(first, second);
    assert_eq!(other.looks_up(&mut world, handle), Err(EBADF));
    let own = program.call(&mut world, |request| Command::LookUp { request, handle });
    assert_eq!(own.unwrap().0, Some(second));
    // Who has a copy from before names the wrong socket.
    let share = |socket| Command::Share {
        request: 7,
        socket,
        handle,
    };
    assert_eq!(other.call(&mut world, &share(first)), Err(EBADF));
    assert_eq!(other.looks_up(&mut world, handle), Err(EBADF));
    // A child has the descriptor, and knows its socket.
    assert!(other.call(&mut world, &share(second)).is_ok());
    assert_eq!(other.looks_up(&mut world, handle), Ok(Some(second)));
}

#[test]
fn a_handle_of_another_process_or_without_a_socket_is_not_reused() {
    let mut world = World::new();
    let mut program = Program::new(&mut world, 1);
    let mut other = Other::of(&mut world, &program);
    let (listener, _) = program.listener(&mut world, 8000);
    let handle = program.handle();
    let stream = world.connect(8000);
    let socket = program.accept_for(&mut world, listener, handle);
    let unused = program.handle();
    program.send(&Command::Reuse { handle: unused });
    other.0.send(&Command::Reuse { handle }).unwrap();
    assert_eq!(other.looks_up(&mut world, handle), Ok(Some(socket)));
    let counters = world.sockets().counters();
    assert_eq!((counters.handles_reused, counters.commands_refused), (0, 2));
    program.write_all(&mut world, socket, b"still there");
    world.run_until(|world| world.heard(stream).received == b"still there");
}
