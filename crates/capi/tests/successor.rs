//! The broker dies: a program that is attached goes on, and gets more descriptors from the next
//! one.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};
use socket_channel::attach::HANDLES_MAX;
use splitway::Family;
use splitway::client::{AttachError, Client, ReceiveFlags, SendFlags};

use crate::support::{
    BLOCKING, FILE, Fake, NONBLOCKING, Welcome, connected, listener, pair, pattern, v4,
};

mod support;

/// More than a program has in store.
const MANY: usize = 100;

const _: () = assert!(MANY > HANDLES_MAX as usize);

fn send(client: &Client, fd: &OwnedFd, bytes: &[u8]) {
    let pieces = &[IoSlice::new(bytes)];
    let sent = client.send(fd.as_fd(), pieces, SendFlags::default());
    assert_eq!(sent, Ok(bytes.len()));
}

fn receive(client: &Client, fd: &OwnedFd, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let pieces = &mut [IoSliceMut::new(&mut bytes)];
    let flags = ReceiveFlags {
        wait_all: true,
        ..ReceiveFlags::default()
    };
    assert_eq!(client.receive(fd.as_fd(), pieces, flags), Ok(len));
    bytes
}

/// Sends bytes of its own through a connection, and compares what arrives.
fn exchange(client: &Client, (from, to): &(OwnedFd, OwnedFd), seed: usize) {
    let bytes = pattern(seed as u64, 1000);
    send(client, from, &bytes);
    assert!(receive(client, to, bytes.len()) == bytes, "every byte");
}

/// Opens a connection to a listener, and accepts it.
fn open(client: &Client, listener: &OwnedFd) -> (OwnedFd, OwnedFd) {
    let opened = connected(client, 80);
    let (accepted, _) = client.accept(listener.as_fd(), BLOCKING).unwrap();
    (opened, accepted)
}

/// New sockets, until the store is used up.
fn use_up(client: &Client) -> Errno {
    let mut sockets = Vec::new();
    loop {
        match client.socket(Family::V4, BLOCKING) {
            Ok(socket) => sockets.push(socket),
            Err(errno) => return errno,
        }
        assert!(sockets.len() < 1 + HANDLES_MAX as usize);
    }
}

#[test]
fn more_sockets_than_the_store_holds_open_after_each_of_several_deaths() {
    let fake = Fake::start_with(4096, 256 << 20);
    let client = fake.attach();
    let listener = listener(&client, 80, BLOCKING);
    let mut connections = Vec::new();
    for death in 0..4 {
        for number in 0..MANY {
            connections.push(open(&client, &listener));
            exchange(&client, connections.last().unwrap(), number);
        }
        let file = client.open_file(FILE.as_bytes(), BLOCKING).unwrap();
        client.close(file).unwrap();
        fake.world().kill_broker();
        for (number, connection) in connections.iter().enumerate() {
            exchange(&client, connection, number + death);
        }
    }
    assert_eq!(fake.world().reattached, 3);
    // A handle that was given twice would have closed the socket of another.
    for (opened, accepted) in connections {
        client.close(opened).unwrap();
        client.close(accepted).unwrap();
    }
}

#[test]
fn brokers_that_die_before_they_answer_are_followed_to_the_one_that_does() {
    let fake = Fake::start();
    let client = fake.attach();
    let listener = listener(&client, 80, BLOCKING);
    fake.world().kill_broker();
    fake.world().welcome = Welcome::Die(5);
    let connections: Vec<_> = (0..MANY).map(|_| open(&client, &listener)).collect();
    for (number, connection) in connections.iter().enumerate() {
        exchange(&client, connection, number);
    }
    let world = fake.world();
    assert_eq!((world.welcome, world.reattached), (Welcome::Serve, 1));
}

#[test]
fn threads_that_need_a_descriptor_share_one_way_to_the_next_broker() {
    const THREADS: usize = 8;
    let fake = Fake::start();
    let client = fake.attach();
    for death in 0..3 {
        fake.world().kill_broker();
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    let open = |_| client.socket(Family::V4, BLOCKING).unwrap();
                    let sockets: Vec<_> = (0..MANY).map(open).collect();
                    for socket in sockets {
                        client.close(socket).unwrap();
                    }
                });
            }
        });
        assert_eq!(fake.world().reattached, death + 1);
    }
}

#[test]
fn calls_that_need_no_descriptor_do_not_wait_for_a_broker() {
    let fake = Fake::start();
    let client = fake.attach();
    let listener = listener(&client, 80, NONBLOCKING);
    let connection = pair(&client, 81);
    fake.world().kill_broker();
    fake.world().welcome = Welcome::Ignore;
    std::thread::scope(|scope| {
        let needs_one = scope.spawn(|| {
            let mut sockets = Vec::new();
            while sockets.len() < MANY {
                sockets.push(client.socket(Family::V4, BLOCKING).unwrap());
            }
        });
        // Until it waits for the broker.
        while fake.world().ignored == 0 {
            std::thread::yield_now();
        }
        for number in 0..100 {
            exchange(&client, &connection, number);
            let accepted = client.accept(listener.as_fd(), NONBLOCKING);
            assert_eq!(accepted.unwrap_err(), Errno::AGAIN);
        }
        assert!(!needs_one.is_finished());
        fake.world().welcome = Welcome::Serve;
        fake.world().kill_broker();
        needs_one.join().unwrap();
    });
}

#[test]
fn a_program_that_is_refused_keeps_its_connections() {
    let fake = Fake::start();
    let client = fake.attach();
    let listener = listener(&client, 80, BLOCKING);
    let connection = open(&client, &listener);
    for errno in [Errno::ACCESS, Errno::BUSY, Errno::USERS] {
        fake.world().kill_broker();
        fake.world().welcome = Welcome::Refuse(errno);
        assert_eq!(use_up(&client), errno);
        exchange(&client, &connection, 1);
    }
    fake.world().welcome = Welcome::Serve;
    client.socket(Family::V4, BLOCKING).unwrap();
}

#[test]
fn a_program_whose_channel_was_ended_fails_instead_of_waiting_for_answers() {
    let fake = Fake::start();
    let client = fake.attach();
    let socket = client.socket(Family::V4, BLOCKING).unwrap();
    fake.world().kill_broker();
    fake.world().welcome = Welcome::Refuse(Errno::SHUTDOWN);
    assert_eq!(use_up(&client), Errno::SHUTDOWN);
    let bound = client.bind(socket.as_fd(), v4(80));
    assert_eq!(bound, Err(Errno::CONNRESET));
}

#[test]
fn without_a_server_at_the_path_new_sockets_fail_and_others_go_on() {
    let fake = Fake::start();
    let client = fake.attach();
    let listener = listener(&client, 80, BLOCKING);
    let connection = open(&client, &listener);
    fake.world().listener = None;
    fake.world().kill_broker();
    assert_eq!(use_up(&client), Errno::CONNRESET);
    exchange(&client, &connection, 1);
    std::fs::remove_file(fake.path()).unwrap();
    assert_eq!(use_up(&client), Errno::CONNRESET);
    exchange(&client, &connection, 2);
}

#[test]
fn a_host_stack_that_is_gone_is_not_waited_for() {
    let mut fake = Fake::start();
    let client = fake.attach();
    let path = fake.path();
    fake.stop();
    // Another server takes its place.
    std::fs::remove_file(&path).unwrap();
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let other = socket_with(family, kind, flags, None).unwrap();
    bind(&other, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    listen(&other, 64).unwrap();
    assert_eq!(use_up(&client), Errno::CONNRESET);
    let come = accept_with(&other, SocketFlags::CLOEXEC);
    assert_eq!(
        come.unwrap_err(),
        Errno::AGAIN,
        "it does not know the program"
    );
}

#[test]
fn a_first_attachment_outlives_brokers_that_die() {
    let fake = Fake::start();
    std::thread::scope(|scope| {
        let killer = scope.spawn(|| {
            for _ in 0..50 {
                fake.world().kill_broker();
                std::thread::yield_now();
            }
        });
        let clients: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| Client::attach(&fake.options())))
            .collect();
        killer.join().unwrap();
        for client in clients {
            let client: Result<Client, AttachError> = client.join().unwrap();
            client.unwrap().socket(Family::V4, BLOCKING).unwrap();
        }
    });
}
