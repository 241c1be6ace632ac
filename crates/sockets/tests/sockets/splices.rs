//! Connections of an application that a NIC stack joins: what goes first, what the records say, and
//! what is left when they are not joined.

use contract::splicing::{SpliceEndReason, SpliceProgress, SpliceRefusal, UnspliceKind};
use contract::{Event, FlowId};
use host::app::StreamId;
use socket_channel::{Command, Flags, HandleId, SocketId, SpliceStage, SpliceState, Unusable};

use crate::program::{Program, text};
use crate::world::World;

const EBADF: u32 = 9;
const EBUSY: u32 = 16;
const EINVAL: u32 = 22;
const EOPNOTSUPP: u32 = 95;
const ECONNABORTED: u16 = 103;
const ECONNRESET: u16 = 104;
const ENOBUFS: u16 = 105;
const ENOTCONN: u32 = 107;
const ETIMEDOUT: u16 = 110;
const ECANCELED: u16 = 125;

/// A connection: the client's end, and the program's.
#[derive(Clone, Copy)]
struct Leg {
    stream: StreamId,
    socket: SocketId,
    handle: HandleId,
}

/// A program with two connections of clients that echo nothing.
fn two_connections() -> (World, Program, [Leg; 2]) {
    let mut world = World::new();
    world.clients.echoes = false;
    let mut program = Program::new(&mut world, 1);
    let (listener, _) = program.listener(&mut world, 8000);
    let legs = [0, 1].map(|_| {
        let stream = world.connect(8000);
        let (socket, handle) = program.accept(&mut world, listener);
        Leg {
            stream,
            socket,
            handle,
        }
    });
    (world, program, legs)
}

fn splice(program: &mut Program, world: &mut World, legs: [SocketId; 2]) -> Result<(), u32> {
    let [first, second] = legs;
    let asked = program.call(world, |request| Command::Splice {
        request,
        first,
        second,
        idle_ms: 0,
        life_ms: 0,
    });
    asked.map(drop)
}

fn unsplice(program: &mut Program, world: &mut World, socket: SocketId) -> Result<(), u32> {
    let asked = program.call(world, |request| Command::Unsplice { request, socket });
    asked.map(drop)
}

fn state(program: &Program, leg: Leg) -> SpliceState {
    program.record(leg.socket).splice().unwrap()
}

/// Bytes that the program has not read, in the FIFO or held.
fn unread(program: &Program, leg: Leg) -> u64 {
    let record = program.record(leg.socket);
    record.rx_waiting_bytes() + record.held()
}

fn is_at(program: &Program, legs: [Leg; 2], stage: SpliceStage, errno: u16) -> bool {
    legs.iter().all(|leg| {
        let state = state(program, *leg);
        (state.stage, state.errno) == (stage, errno)
    })
}

/// Two connections that the NIC stack has.
fn joined() -> (World, Program, [Leg; 2]) {
    let (mut world, mut program, legs) = two_connections();
    splice(&mut program, &mut world, legs.map(|leg| leg.socket)).unwrap();
    world.run_until(|_| is_at(&program, legs, SpliceStage::Joined, 0));
    (world, program, legs)
}

fn tell(world: &mut World, event: &Event) {
    world.nic.channel.send(event).expect("room for an event");
    world.nic.channel.flush();
    world.step();
    world.step();
}

fn flow(world: &World) -> FlowId {
    world.nic.splices.last().expect("a SPLICE").flow
}

/// The NIC stack says that a splice has ended so, with so many bytes passed.
fn ended(world: &mut World, passed_bytes: [u64; 2], reason: SpliceEndReason) {
    let flow = flow(world);
    world.end_splice(flow, passed_bytes, reason);
    world.step();
    world.step();
}

fn client_has(world: &World, leg: Leg, expected: &[u8]) -> bool {
    world.heard(leg.stream).received == expected
}

#[test]
fn what_is_unread_and_what_is_unsent_goes_first_and_then_the_nic_stack_has_both() {
    let (mut world, mut program, legs) = two_connections();
    let [first, second] = legs;
    let from_client = text(30_000, 1);
    world.client_sends(first.stream, &from_client, false);
    world.run_until(|_| unread(&program, first) == 30_000);
    let own = text(50_000, 2);
    let written = program.record(second.socket).write(&own).unwrap();
    assert_eq!(written, own.len());

    splice(&mut program, &mut world, legs.map(|leg| leg.socket)).unwrap();
    for leg in legs {
        let record = program.record(leg.socket);
        assert!(record.flags().unwrap().has(Flags::SPLICED));
        assert_eq!(record.read(&mut [0; 10]), Err(Unusable::Spliced));
        assert_eq!(record.write(b"x"), Err(Unusable::Spliced));
        let readiness = record.look().unwrap().readiness();
        assert!(!readiness.readable && !readiness.writable && !readiness.hangup);
    }
    world.run_until(|_| is_at(&program, legs, SpliceStage::Joined, 0));
    assert_eq!(world.nic.splices.len(), 1);
    let expected = [own, from_client].concat();
    assert!(client_has(&world, second, &expected));
    assert_eq!(world.heard(first.stream).received, b"");

    // News, until they are taken.
    for leg in legs {
        let record = program.record(leg.socket);
        assert!(record.look().unwrap().readiness().priority);
        assert_eq!(record.take_splice().unwrap().stage, SpliceStage::Joined);
        assert!(!record.look().unwrap().readiness().priority);
    }
    let progress = [SpliceProgress {
        flow: flow(&world),
        passed_bytes: [5, 700],
        has_finished: [false; 2],
    }];
    let progress = Box::from(progress);
    tell(&mut world, &Event::SpliceProgress { progress });
    let bytes = legs.map(|leg| {
        let state = state(&program, leg);
        (state.in_bytes, state.out_bytes)
    });
    assert_eq!(bytes, [(30_005, 700), (700, 30_005)]);
    let look = program.record(first.socket).look().unwrap();
    assert!(!look.readiness().priority, "bytes are no news");
    ended(&mut world, [5, 700], SpliceEndReason::Aborted);
    program.exit(&mut world);
    world.assert_nothing_left();
}

#[test]
fn a_record_says_how_a_splice_has_ended_and_with_how_many_bytes() {
    let reset = (ECONNRESET, ECONNABORTED);
    for (reason, errnos) in [
        (SpliceEndReason::Finished, (0, 0)),
        (SpliceEndReason::ResetByFirst, reset),
        (SpliceEndReason::ResetBySecond, (reset.1, reset.0)),
        (SpliceEndReason::Idle, (ETIMEDOUT, ETIMEDOUT)),
        (SpliceEndReason::Aborted, (ECONNABORTED, ECONNABORTED)),
    ] {
        let (mut world, mut program, legs) = joined();
        ended(&mut world, [11, 22], reason);
        world.run_until(|_| {
            let is_over = |leg: &Leg| program.flags(leg.socket).has(Flags::CLOSED);
            legs.iter().all(is_over)
        });
        for (leg, errno) in legs.into_iter().zip([errnos.0, errnos.1]) {
            let state = state(&program, leg);
            assert_eq!((state.stage, state.errno), (SpliceStage::Ended, errno));
            let record = program.record(leg.socket);
            let flags = record.flags().unwrap();
            assert!(!flags.has(Flags::SPLICED), "{reason:?}");
            assert_eq!(flags.has(Flags::FAILED), errno != 0, "{reason:?}");
            assert_eq!(record.take_error(), errno.into(), "{reason:?}");
            let readiness = record.look().unwrap().readiness();
            assert!(readiness.readable && readiness.hangup && readiness.priority);
            assert_eq!(record.read(&mut [0; 10]), Ok(0));
        }
        let state = state(&program, legs[0]);
        assert_eq!((state.in_bytes, state.out_bytes), (11, 22), "{reason:?}");
        program.hear();
        program.exit(&mut world);
        world.assert_nothing_left();
    }
}

#[test]
fn a_program_goes_on_copying_after_a_refusal() {
    let (mut world, mut program, legs) = two_connections();
    let [first, second] = legs;
    splice(&mut program, &mut world, legs.map(|leg| leg.socket)).unwrap();
    world.run_until(|_| is_at(&program, legs, SpliceStage::Joined, 0));
    let event = Event::SpliceRefused {
        flow: flow(&world),
        reason: SpliceRefusal::Full,
    };
    tell(&mut world, &event);
    assert!(is_at(&program, legs, SpliceStage::Returned, ENOBUFS));
    let bytes = text(100_000, 3);
    world.client_sends(first.stream, &bytes, true);
    let read = program.read_to_end(&mut world, first.socket);
    assert!(read == bytes);
    program.write_all(&mut world, second.socket, &read);
    world.run_until(|world| client_has(world, second, &bytes));
    // It is not offered another for a second, and says so at once.
    let again = splice(&mut program, &mut world, legs.map(|leg| leg.socket));
    assert_eq!(again, Err(ENOTCONN), "the first client has ended");
    program.exit(&mut world);
    world.assert_nothing_left();
}

#[test]
fn a_peer_that_takes_nothing_ends_the_attempt_and_costs_no_byte() {
    let (mut world, mut program, legs) = two_connections();
    let [first, second] = legs;
    world.clients.is_stalled = true;
    let from_client = text(60_000, 4);
    world.client_sends(first.stream, &from_client, false);
    world.run_until(|_| unread(&program, first) == 60_000);
    // What neither TCP nor the FIFO has room for.
    let own = text(4_000_000, 5);
    let mut written = 0;
    loop {
        let before = written;
        world.run_for_us(200_000);
        written += program.write(second.socket, &own[written..]);
        if written == before {
            break;
        }
    }
    assert!(written < own.len());
    splice(&mut program, &mut world, legs.map(|leg| leg.socket)).unwrap();
    assert_eq!(state(&program, first).stage, SpliceStage::Joining);
    let begun_us = world.now_us;
    world.run_until(|_| is_at(&program, legs, SpliceStage::Returned, ETIMEDOUT));
    assert!((2_900_000..3_200_000).contains(&(world.now_us - begun_us)));
    assert_eq!(world.nic.splices.len(), 0);

    // What was moved is there, and the rest can be read.
    let moved = state(&program, first).in_bytes as usize;
    let mut rest = Vec::new();
    world.run_until(|_| {
        rest.extend(program.read(first.socket));
        moved + rest.len() == from_client.len()
    });
    assert!(from_client.ends_with(&rest));
    world.resume_clients();
    let expected = [&own[..written], &from_client[..moved]].concat();
    world.run_until(|world| client_has(world, second, &expected));
    program.exit(&mut world);
    world.assert_nothing_left();
}

#[test]
fn a_socket_that_is_closed_while_it_is_joined_resets_both_peers() {
    for side in [0, 1] {
        let (mut world, mut program, legs) = joined();
        let (closed, other) = (legs[side], legs[1 - side]);
        program.close(closed.handle);
        world.run_until(|world| !world.nic.unsplices.is_empty());
        assert_eq!(world.nic.unsplices, [(flow(&world), UnspliceKind::Abort)]);
        ended(&mut world, [1, 2], SpliceEndReason::Aborted);
        world.run_until(|_| program.flags(other.socket).has(Flags::FAILED));
        let state = state(&program, other);
        assert_eq!(state.stage, SpliceStage::Ended, "{side}");
        assert_eq!(state.errno, ECONNABORTED, "{side}");
        let record = program.record(other.socket);
        assert_eq!(record.take_error(), ECONNABORTED.into());
        program.exit(&mut world);
        world.assert_nothing_left();
    }
}

#[test]
fn a_socket_that_is_closed_before_leaves_the_other_to_the_program() {
    for side in [0, 1] {
        let (mut world, mut program, legs) = two_connections();
        let (closed, other) = (legs[side], legs[1 - side]);
        // What is under way keeps them from becoming quiet.
        world.clients.is_stalled = true;
        let own = text(60_000, 6);
        program.write_all(&mut world, closed.socket, &own);
        splice(&mut program, &mut world, legs.map(|leg| leg.socket)).unwrap();
        program.close(closed.handle);
        world.run_until(|_| {
            let state = state(&program, other);
            (state.stage, state.errno) == (SpliceStage::Returned, ECANCELED)
        });
        world.resume_clients();
        world.run_until(|world| world.heard(closed.stream).has_finished);
        assert!(client_has(&world, closed, &own));
        let bytes = text(10_000, 7);
        world.client_sends(other.stream, &bytes, true);
        assert!(program.read_to_end(&mut world, other.socket) == bytes);
        program.write_all(&mut world, other.socket, &bytes);
        world.run_until(|world| client_has(world, other, &bytes));
        assert_eq!(world.nic.splices.len(), 0);
        program.exit(&mut world);
        world.client_sends(closed.stream, b"", true);
        world.assert_nothing_left();
    }
}

#[test]
fn a_splice_that_is_cancelled_is_the_programs_again() {
    let (mut world, mut program, legs) = two_connections();
    world.clients.is_stalled = true;
    let own = text(60_000, 8);
    program.write_all(&mut world, legs[1].socket, &own);
    let none = unsplice(&mut program, &mut world, legs[0].socket);
    assert_eq!(none, Err(EINVAL));
    splice(&mut program, &mut world, legs.map(|leg| leg.socket)).unwrap();
    unsplice(&mut program, &mut world, legs[1].socket).unwrap();
    world.run_until(|_| is_at(&program, legs, SpliceStage::Returned, ECANCELED));
    world.resume_clients();
    world.run_until(|world| client_has(world, legs[1], &own));
    // Another one is joined.
    splice(&mut program, &mut world, legs.map(|leg| leg.socket)).unwrap();
    world.run_until(|_| is_at(&program, legs, SpliceStage::Joined, 0));
    unsplice(&mut program, &mut world, legs[0].socket).unwrap();
    world.run_until(|world| !world.nic.unsplices.is_empty());
    assert_eq!(world.nic.unsplices, [(flow(&world), UnspliceKind::Return)]);
    ended(&mut world, [0, 0], SpliceEndReason::NotReturned);
    program.exit(&mut world);
    world.assert_nothing_left();
}

#[test]
fn what_cannot_be_joined_is_refused_at_once() {
    let (mut world, mut program, legs) = two_connections();
    let [first, second] = legs.map(|leg| leg.socket);
    let refused = |program: &mut Program, world: &mut World, pair| {
        let before = world.sockets().counters().splices_begun;
        let answer = splice(program, world, pair);
        assert_eq!(world.sockets().counters().splices_begun, before);
        answer
    };
    let same = refused(&mut program, &mut world, [first, first]);
    assert_eq!(same, Err(EINVAL));
    let handle = program.handle();
    let new = program.open(&mut world, handle);
    let unconnected = refused(&mut program, &mut world, [first, new]);
    assert_eq!(unconnected, Err(ENOTCONN));
    // No application names the sockets of another.
    let mut other = Program::new(&mut world, 2);
    let others = refused(&mut other, &mut world, [first, second]);
    assert_eq!(others, Err(EBADF));
    // Both ends of a connection are here.
    let (listener, _) = program.listener(&mut world, 8001);
    program.connect(&mut world, new, "10.77.0.2:8001").unwrap();
    let (looped, _) = program.accept(&mut world, listener);
    let looped = refused(&mut program, &mut world, [first, looped]);
    assert_eq!(looped, Err(EOPNOTSUPP));

    splice(&mut program, &mut world, [first, second]).unwrap();
    let again = refused(&mut program, &mut world, [second, first]);
    assert_eq!(again, Err(EBUSY));
    world.run_until(|_| is_at(&program, legs, SpliceStage::Joined, 0));
    let again = refused(&mut program, &mut world, [second, first]);
    assert_eq!(again, Err(EBUSY));
    ended(&mut world, [0, 0], SpliceEndReason::Aborted);
    other.exit(&mut world);
    program.exit(&mut world);
    world.assert_nothing_left();
}
