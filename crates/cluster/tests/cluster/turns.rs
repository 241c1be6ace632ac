//! Applications have their turns one after another, whatever their numbers are.

use std::cell::Cell;

use cluster::message::{Body, Message};
use cluster::{Brought, Gate, Granted, Node};
use socket_channel::channel::{AppEnd, HostEnd, in_memory};
use socket_channel::{
    AppId, ChannelId, Command, Event, Family, HandleId, Layout, Limits, Segment, SocketId,
    SocketOption,
};
use sockets::{Attachment, Clock, First, Grant, Identity};

use crate::nodes::{Asked, KEY, MODES};

/// Of applications that have come late.
const APPS: [u32; 3] = [1000, 1001, 2000];

/// Turns before and while it is looked at.
const TURNS: usize = 12;

/// Of each: together more than a turn takes.
const REQUESTS: u32 = 30;

const SOCKET: SocketId = SocketId {
    index: 0,
    generation: 1,
};

fn segment() -> Segment {
    let limits = Limits {
        sockets_max: 64,
        segment_bytes: 4 << 20,
    };
    Segment::in_memory(Layout::of(limits).unwrap())
}

/// Who speaks first in each turn, if all have more to say than goes.
fn assert_each_is_first(firsts: &[u32]) {
    for app in APPS {
        let share = firsts.iter().filter(|first| **first == app).count();
        assert_eq!(share, TURNS / APPS.len(), "{firsts:?}");
    }
}

fn app_of(message: &[u8]) -> u32 {
    Message::decode(message).unwrap().app
}

/// An application of a node, which the stack node has attached.
fn attach(node: &mut Node, app: u32, grant: Grant) -> AppEnd {
    let (host, end) = in_memory();
    node.attach(Attachment {
        app: AppId(app),
        channel: ChannelId(app),
        pid: 0,
        uid: 1000,
        first: Some(First {
            grant,
            segment: segment(),
            identity: Identity {
                key: KEY,
                modes: MODES,
                segment_file: None,
            },
        }),
        end: host,
    });
    node.add_handles_without_descriptors(AppId(app), HandleId(0), 2000);
    let body = Body::Attached {
        errno: 0,
        modes: MODES,
    };
    node.on_message(&Message { app, body }.encode());
    end
}

thread_local! {
    static NOW_US: Cell<u64> = const { Cell::new(0) };
}

/// A clock of a machine on which reading it takes 100 µs.
fn slow_clock() -> u64 {
    NOW_US.replace(NOW_US.get() + 100)
}

#[test]
fn a_turn_of_an_application_is_bounded_in_time() {
    const COMMANDS: usize = 200;
    let grant = Grant {
        messages_per_turn: 256,
        turn_us_max: 200,
        ..Grant::default()
    };
    let commands = |clock: Clock| {
        let mut node = Node::without_descriptors().with_clock(clock);
        node.begin_session();
        let mut end = attach(&mut node, 1, grant.clone());
        for number in 0..COMMANDS {
            let command = Command::LookUp {
                request: number as u32 + 1,
                handle: HandleId(0),
            };
            end.send(&command).unwrap();
        }
        end.flush();
        let mut in_turns = Vec::new();
        while node.turn(0, &mut Vec::new) {
            let mut answers = 0;
            while let Some(Event::Answer { .. }) = end.receive().unwrap() {
                answers += 1;
            }
            end.flush();
            in_turns.push(answers);
        }
        assert_eq!(in_turns.iter().sum::<usize>(), COMMANDS);
        in_turns
    };
    assert_eq!(
        commands(None).len(),
        1,
        "without a clock, their number bounds them"
    );
    let in_turns = commands(Some(slow_clock));
    assert!(in_turns.iter().all(|taken| *taken <= 12), "{in_turns:?}");
}

#[test]
fn each_application_of_a_node_is_first_in_turn() {
    let mut node = Node::without_descriptors();
    node.begin_session();
    let mut ends = Vec::new();
    for app in APPS {
        ends.push((app, attach(&mut node, app, Grant::default())));
    }
    while node.next_message().is_some() {}
    let mut next = 0;
    let mut firsts = Vec::new();
    for _ in 0..TURNS {
        for (app, end) in &mut ends {
            for number in next..next + 100 {
                let command = Command::Open {
                    request: number + 1,
                    handle: HandleId(number),
                    family: Family::V4,
                };
                let _ = end.send(&command);
            }
            end.flush();
            let body = Body::Taken { count: 512 };
            node.on_message(&Message { app: *app, body }.encode());
        }
        next += 100;
        node.turn(1, &mut Vec::new);
        firsts.push(app_of(&node.next_message().unwrap()));
        while node.next_message().is_some() {}
    }
    assert_each_is_first(&firsts);
}

/// The host stack answers all that it is asked.
fn answer(host: &mut HostEnd) {
    let mut requests = Vec::new();
    while let Some(command) = host.receive().unwrap() {
        if let Command::SetOption { request, .. } = command {
            requests.push(request);
        }
    }
    for request in requests {
        let event = Event::Answer {
            request,
            errno: 0,
            socket: None,
            value: 0,
        };
        host.send(&event).unwrap();
    }
    host.flush();
}

#[test]
fn each_application_of_a_gate_is_first_in_turn() {
    let mut gate = Gate::new(Asked::default());
    let mut hosts = Vec::new();
    for app in APPS {
        let body = Body::Attach { modes: MODES };
        gate.on_message(&Message { app, body }.encode());
        let (host, end) = in_memory();
        let granted = Box::new(Granted {
            segment: segment(),
            end,
            channel: ChannelId(app),
            modes: MODES,
        });
        gate.stack_mut().bring(Brought::Attached { app, granted });
        hosts.push((app, host));
    }
    gate.turn(1);
    while gate.next_message().is_some() {}
    let socket = SOCKET;
    let mut next = 1;
    let mut firsts = Vec::new();
    for _ in 0..TURNS {
        for (app, host) in &mut hosts {
            for request in next..next + REQUESTS {
                let command = Command::SetOption {
                    request,
                    socket,
                    option: SocketOption::NoDelay,
                    value: 1,
                };
                let mut bytes = Vec::new();
                command.encode(&mut bytes);
                let body = Body::Command(&bytes);
                gate.on_message(&Message { app: *app, body }.encode());
            }
            gate.flush();
            answer(host);
        }
        next += REQUESTS;
        gate.turn(1);
        firsts.push(app_of(&gate.next_message().unwrap()));
        while gate.next_message().is_some() {}
    }
    assert_each_is_first(&firsts);
}

/// The other node may wait for just that.
#[test]
fn a_gate_does_not_sleep_before_it_has_told_what_was_taken() {
    let mut gate = Gate::new(Asked::default());
    let (app, body) = (1, Body::Attach { modes: MODES });
    gate.on_message(&Message { app, body }.encode());
    let (_host, end) = in_memory();
    let granted = Box::new(Granted {
        segment: segment(),
        end,
        channel: ChannelId(1),
        modes: MODES,
    });
    gate.stack_mut().bring(Brought::Attached { app, granted });
    gate.turn(1);
    while gate.next_message().is_some() {}
    let command = Command::SetOption {
        request: 1,
        socket: SOCKET,
        option: SocketOption::NoDelay,
        value: 1,
    };
    let mut bytes = Vec::new();
    command.encode(&mut bytes);
    let body = Body::Command(&bytes);
    gate.on_message(&Message { app, body }.encode());
    gate.flush();
    assert!(!gate.prepare_sleep());
    gate.finish_sleep();
    gate.turn(1);
    let body = Body::Taken { count: 1 };
    let taken = Message { app, body }.encode();
    assert_eq!(gate.next_message(), Some(taken));
    assert!(gate.prepare_sleep());
}
