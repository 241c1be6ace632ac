//! How much of a turn an application takes, whatever it sends and however it ends.

use socket_channel::channel::{AppEnd, in_memory};
use socket_channel::{ChannelId, Command, Family, HandleId, Side, SocketId};
use sockets::{Attachment, Grant};

use crate::program::Program;
use crate::world::World;

const MESSAGES_PER_TURN: u32 = 8;

fn narrow() -> Grant {
    Grant {
        messages_per_turn: MESSAGES_PER_TURN,
        ..Grant::default()
    }
}

/// Sends a command until the ring is full; how often.
fn fill(end: &mut AppEnd, command: &Command<'_>) -> u64 {
    let mut sent = 0;
    while end.send(command).is_ok() {
        sent += 1;
    }
    end.flush();
    sent
}

fn commands(world: &World) -> u64 {
    world.sockets().counters().commands
}

fn listeners(world: &World) -> u32 {
    world.sockets().applications().map(|it| it.listeners).sum()
}

/// Another process of an application.
fn another_process(world: &mut World, program: &Program, number: u32) -> AppEnd {
    let (host, end) = in_memory();
    let attached = world.apps.others.attach(Attachment {
        app: program.app,
        channel: ChannelId(program.channel.0 + number),
        pid: 2_000 + number,
        uid: 1000,
        first: None,
        end: host,
    });
    attached.unwrap();
    end
}

/// Steps until no socket listens, while `meanwhile` happens; the commands that were taken.
fn commands_until_closed(world: &mut World, limit: u64, mut meanwhile: impl FnMut()) -> u64 {
    let first = commands(world);
    while listeners(world) > 0 {
        let before = commands(world);
        world.step();
        meanwhile();
        let taken = commands(world) - before;
        assert!(taken <= MESSAGES_PER_TURN.into(), "{taken} in a turn");
        assert!(before - first < limit, "{}", before - first);
    }
    commands(world) - first
}

#[test]
fn a_hang_up_waits_for_the_commands_before_it_within_the_budget_of_turns() {
    let mut world = World::new();
    let mut program = Program::with_grant(&mut world, 1, narrow());
    let (socket, handle) = program.listener(&mut world, 8000);
    let sent = fill(&mut program.end, &Command::Kick { socket });
    let before = commands(&world);
    world.hang_up(program.app, handle);
    let at_once = commands(&world) - before;
    assert_eq!((at_once, listeners(&world)), (MESSAGES_PER_TURN.into(), 1));
    let later = commands_until_closed(&mut world, sent, || {});
    assert_eq!(at_once + later, sent);
    assert!(world.sockets().counters().turns_used_up >= sent / u64::from(MESSAGES_PER_TURN));
    program.exit(&mut world);
    world.assert_nothing_left();
}

#[test]
fn commands_after_a_hang_up_do_not_delay_it() {
    let mut world = World::new();
    let mut program = Program::with_grant(&mut world, 1, narrow());
    let (socket, handle) = program.listener(&mut world, 8000);
    let sent = fill(&mut program.end, &Command::Kick { socket });
    world.hang_up(program.app, handle);
    let limit = sent + u64::from(MESSAGES_PER_TURN);
    commands_until_closed(&mut world, limit, || {
        fill(&mut program.end, &Command::Kick { socket });
    });
    world.run_until(|world| {
        let before = commands(world);
        world.step();
        commands(world) == before
    });
    program.exit(&mut world);
    world.assert_nothing_left();
}

#[test]
fn a_process_that_reads_no_answers_delays_no_end_for_good() {
    let mut world = World::new();
    let mut program = Program::with_grant(&mut world, 1, narrow());
    let (socket, handle) = program.listener(&mut world, 8000);
    let ask = Command::GetAddress {
        request: 1,
        socket,
        side: Side::Local,
    };
    // The ring of answers fills, and then that of commands.
    let mut idle = 0;
    while idle < 100 {
        idle = if fill(&mut program.end, &ask) > 0 {
            0
        } else {
            idle + 1
        };
        world.step();
    }
    world.hang_up(program.app, handle);
    world.run_until(|world| {
        fill(&mut program.end, &ask);
        listeners(world) == 0
    });
    program.hear();
    program.exit(&mut world);
    world.assert_nothing_left();
}

#[test]
fn a_process_with_a_full_ring_delays_no_other_of_its_application() {
    let mut world = World::new();
    let grant = Grant {
        messages_per_turn: 64,
        ..Grant::default()
    };
    let mut program = Program::with_grant(&mut world, 1, grant);
    let (socket, _) = program.listener(&mut world, 8000);
    let mut others: Vec<AppEnd> = (1..=3)
        .map(|number| another_process(&mut world, &program, number))
        .collect();
    for end in &mut others {
        fill(end, &Command::Kick { socket });
    }
    let opens = |handle: HandleId| Command::Open {
        request: 7,
        handle,
        family: Family::V4,
    };
    for _ in 0..20 {
        let handle = program.handle();
        program.send(&opens(handle));
        world.step();
        let answered = program.end.receive().unwrap();
        assert!(answered.is_some(), "after one turn");
        for end in &mut others {
            fill(end, &Command::Kick { socket });
        }
    }
    for number in 1..=3 {
        world.end_process(program.app, ChannelId(program.channel.0 + number));
    }
    program.exit(&mut world);
    world.run_for_us(100_000);
    world.assert_nothing_left();
}

#[test]
fn an_application_with_full_rings_and_hang_ups_delays_no_other() {
    let mut world = World::new();
    let mut hostile = Program::with_grant(&mut world, 1, narrow());
    let mut other = Program::new(&mut world, 2);
    let (socket, _) = hostile.listener(&mut world, 8000);
    let mut ends: Vec<AppEnd> = (1..=50)
        .map(|number| another_process(&mut world, &hostile, number))
        .collect();
    let kick = |socket: SocketId| Command::Kick { socket };
    for _ in 0..100 {
        for end in &mut ends {
            fill(end, &kick(socket));
        }
        let closed = hostile.handle();
        world.hang_up(hostile.app, closed);
        let before = commands(&world);
        let handle = other.handle();
        other.send(&Command::Open {
            request: 7,
            handle,
            family: Family::V4,
        });
        world.step();
        assert!(other.end.receive().unwrap().is_some(), "after one turn");
        let taken = commands(&world) - before;
        assert!(taken <= u64::from(MESSAGES_PER_TURN) + 1, "{taken}");
    }
    other.exit(&mut world);
    drop(ends);
    for number in 1..=50 {
        world.end_process(hostile.app, ChannelId(hostile.channel.0 + number));
    }
    hostile.exit(&mut world);
    world.run_for_us(10_000_000);
    world.assert_nothing_left();
}
