//! `SW_SETUP_OFFLOAD` and `SW_TEARDOWN_OFFLOAD`: what NIC stacks do for which sockets.

use host::OffloadPolicy;
use socket_channel::{Command, HandleId, SocketId, SocketOption};

use crate::program::Program;
use crate::world::World;

const EPERM: u32 = 1;
const EINVAL: u32 = 22;

fn set(
    program: &mut Program,
    world: &mut World,
    socket: SocketId,
    option: SocketOption,
    value: u64,
) -> Result<(), u32> {
    let set = program.call(world, |request| Command::SetOption {
        request,
        socket,
        option,
        value,
    });
    set.map(drop)
}

fn get(
    program: &mut Program,
    world: &mut World,
    socket: SocketId,
    option: SocketOption,
) -> Result<u64, u32> {
    let got = program.call(world, |request| Command::GetOption {
        request,
        socket,
        option,
    });
    got.map(|(_, value)| value)
}

fn world(policy: OffloadPolicy) -> World {
    let mut world = World::with(|config| {
        config.setup_offload = policy;
        config.teardown_offload = policy;
    });
    world.clients.echoes = false;
    world
}

/// The ports in the last SETUP.
fn set_up(world: &mut World) -> Vec<u16> {
    world.step();
    world.step();
    let last = world.nic.setups.last();
    let listeners = last.map(|setup| setup.listeners.iter().map(|it| it.port).collect());
    listeners.unwrap_or_default()
}

#[test]
fn the_configuration_says_what_may_be_asked_for_and_what_holds_unless_said() {
    let both = [SocketOption::SetupOffload, SocketOption::TeardownOffload];
    for (policy, on, unless_said) in [
        (OffloadPolicy::Off, Err(EPERM), 0),
        (OffloadPolicy::OnRequest, Ok(()), 0),
        (OffloadPolicy::On, Ok(()), 1),
    ] {
        let mut world = world(policy);
        let mut program = Program::new(&mut world, 1);
        let (socket, _) = program.listener(&mut world, 8000);
        for option in both {
            let (world, program) = (&mut world, &mut program);
            assert_eq!(get(program, world, socket, option), Ok(unless_said));
            assert_eq!(set(program, world, socket, option, 7), on, "{policy:?}");
            let expected = if on.is_ok() { 1 } else { unless_said };
            assert_eq!(get(program, world, socket, option), Ok(expected));
            set(program, world, socket, option, 0).unwrap();
            assert_eq!(get(program, world, socket, option), Ok(0), "{policy:?}");
        }
        program.exit(&mut world);
        world.assert_nothing_left();
    }
}

#[test]
fn workers_answer_the_syns_of_the_listeners_that_want_it() {
    let mut world = world(OffloadPolicy::OnRequest);
    let mut program = Program::new(&mut world, 1);
    let (first, _) = program.listener(&mut world, 8000);
    program.listener(&mut world, 8001);
    assert_eq!(set_up(&mut world), []);
    let option = SocketOption::SetupOffload;
    set(&mut program, &mut world, first, option, 1).unwrap();
    assert_eq!(set_up(&mut world), [8000]);
    // Before it listens as well.
    let handle = program.handle();
    let third = program.open(&mut world, handle);
    set(&mut program, &mut world, third, option, 1).unwrap();
    let address = "10.77.0.2:8002";
    let bound = program.bind(&mut world, third, address, Default::default());
    bound.unwrap();
    let listens = program.call(&mut world, |request| Command::Listen {
        request,
        socket: third,
        backlog: 5,
    });
    listens.unwrap();
    assert_eq!(set_up(&mut world), [8002, 8000]);
    set(&mut program, &mut world, first, option, 0).unwrap();
    assert_eq!(set_up(&mut world), [8002]);
    program.exit(&mut world);
    world.assert_nothing_left();
}

/// A program that has closed a connection whose client has closed before: how many ends the NIC
/// stack runs then. The listener and the connection have these values of the option.
fn parted(policy: OffloadPolicy, of_listener: Option<u64>, of_connection: Option<u64>) -> usize {
    let mut world = world(policy);
    let mut program = Program::new(&mut world, 1);
    let (listener, _) = program.listener(&mut world, 8000);
    let option = SocketOption::TeardownOffload;
    if let Some(value) = of_listener {
        set(&mut program, &mut world, listener, option, value).unwrap();
    }
    let stream = world.connect(8000);
    let (socket, handle): (SocketId, HandleId) = program.accept(&mut world, listener);
    if let Some(value) = of_connection {
        set(&mut program, &mut world, socket, option, value).unwrap();
    }
    world.client_sends(stream, b"bye", true);
    assert_eq!(program.read_to_end(&mut world, socket), b"bye");
    program.close(handle);
    let is_over = |world: &World| {
        let usage = world.server.usage();
        usage.connections == 0 || usage.parted == 1
    };
    world.run_until(|world| is_over(world));
    let parted = world.nic.parts.len();
    program.exit(&mut world);
    parted
}

#[test]
fn a_connection_has_its_end_run_if_it_or_its_listener_wants_that() {
    use OffloadPolicy::{Off, On, OnRequest};
    for (policy, of_listener, of_connection, expected) in [
        (Off, None, None, 0),
        (OnRequest, None, None, 0),
        (OnRequest, Some(1), None, 1),
        (OnRequest, None, Some(1), 1),
        (OnRequest, Some(1), Some(0), 0),
        (On, None, None, 1),
        (On, Some(0), None, 0),
        (On, None, Some(0), 0),
        (On, Some(0), Some(1), 1),
    ] {
        assert_eq!(
            parted(policy, of_listener, of_connection),
            expected,
            "{policy:?} {of_listener:?} {of_connection:?}"
        );
    }
}

/// Listeners whose SYNs workers answer, and whether the text of these is taken.
fn takes_text(world: &mut World) -> Vec<(u16, bool)> {
    world.step();
    world.step();
    let setup = world.nic.setups.last().expect("a SETUP");
    let listeners = setup.listeners.iter();
    listeners.map(|it| (it.port, it.fast_open)).collect()
}

/// Covers: RFC 7413 §4.2.2
#[test]
fn a_listener_takes_text_of_syns_if_it_wants_and_the_stack_does() {
    for fast_open in [true, false] {
        let mut world = World::with(|config| {
            config.setup_offload = OffloadPolicy::On;
            config.fast_open = fast_open;
        });
        world.clients.echoes = false;
        let mut program = Program::new(&mut world, 1);
        let (socket, _) = program.listener(&mut world, 8000);
        assert_eq!(takes_text(&mut world), [(8000, false)]);
        let option = SocketOption::FastOpenQueue;
        set(&mut program, &mut world, socket, option, 256).unwrap();
        assert_eq!(takes_text(&mut world), [(8000, fast_open)]);
        assert_eq!(get(&mut program, &mut world, socket, option), Ok(256));
        set(&mut program, &mut world, socket, option, 0).unwrap();
        assert_eq!(takes_text(&mut world), [(8000, false)]);
        let refused = set(&mut program, &mut world, socket, option, 1 << 31);
        assert_eq!(refused, Err(EINVAL));
        program.exit(&mut world);
        world.assert_nothing_left();
    }
}
