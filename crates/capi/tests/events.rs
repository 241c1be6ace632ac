//! epoll and poll for split sockets and descriptors of the kernel in one set.

use std::collections::HashSet;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Barrier;
use std::time::Duration;

use rustix::io::Errno;
use splitway::client::{Client, EpollChange, EpollEvent, Polled, ReceiveFlags, SendFlags};
use splitway::{Family, How};

use crate::support::{BLOCKING, Fake, NO_ANSWER, NONBLOCKING, listener, pair, pattern, settle, v4};

mod support;

const IN: u32 = libc::EPOLLIN as u32;
const OUT: u32 = libc::EPOLLOUT as u32;
const ET: u32 = libc::EPOLLET as u32;
const RDHUP: u32 = libc::EPOLLRDHUP as u32;
const ERR: u32 = libc::EPOLLERR as u32;
const HUP: u32 = libc::EPOLLHUP as u32;
const ONESHOT: u32 = libc::EPOLLONESHOT as u32;

const NOW: Option<Duration> = Some(Duration::ZERO);

fn add(client: &Client, set: &OwnedFd, fd: &OwnedFd, events: u32, data: u64) {
    let event = EpollEvent { events, data };
    let change = EpollChange::Add(event);
    client
        .epoll_change(set.as_fd(), fd.as_fd(), change)
        .unwrap();
}

fn wait(client: &Client, set: &OwnedFd, timeout: Option<Duration>) -> Vec<(u32, u64)> {
    let mut events = [EpollEvent::default(); 64];
    let found = client
        .epoll_wait(set.as_fd(), &mut events, timeout)
        .unwrap();
    let events = events[..found].iter();
    events.map(|event| (event.events, event.data)).collect()
}

fn send(client: &Client, fd: &OwnedFd, bytes: &[u8]) {
    let pieces = &[IoSlice::new(bytes)];
    let sent = client.send(fd.as_fd(), pieces, SendFlags::default());
    assert_eq!(sent, Ok(bytes.len()));
}

fn receive(client: &Client, fd: &OwnedFd) -> rustix::io::Result<usize> {
    let mut bytes = [0; 4096];
    let pieces = &mut [IoSliceMut::new(&mut bytes)];
    let flags = ReceiveFlags {
        dont_wait: true,
        ..ReceiveFlags::default()
    };
    client.receive(fd.as_fd(), pieces, flags)
}

#[test]
fn a_level_is_reported_as_long_as_it_lasts() {
    let fake = Fake::start();
    let client = fake.attach();
    let (opened, accepted) = pair(&client, 80);
    let set = client.epoll_create(true).unwrap();
    add(&client, &set, &accepted, IN, 7);
    assert_eq!(wait(&client, &set, NOW), []);
    send(&client, &opened, b"ab");
    assert_eq!(wait(&client, &set, None), [(IN, 7)]);
    assert_eq!(wait(&client, &set, None), [(IN, 7)]);
    assert_eq!(receive(&client, &accepted), Ok(2));
    assert_eq!(wait(&client, &set, NOW), []);
}

#[test]
fn the_end_of_the_peer_is_reported_when_all_bytes_before_it_can_be_read() {
    let fake = Fake::start();
    let client = fake.attach();
    let (opened, accepted) = pair(&client, 80);
    // More than a FIFO holds: the rest comes when there is room.
    let sent = pattern(3, 100_000);
    let set = client.epoll_create(true).unwrap();
    add(&client, &set, &accepted, IN | RDHUP, 7);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            send(&client, &opened, &sent);
            client.shutdown(opened.as_fd(), How::Write).unwrap();
        });
        let mut received = 0;
        while wait(&client, &set, None) == [(IN, 7)] {
            match receive(&client, &accepted) {
                Ok(len) => received += len,
                Err(errno) => assert_eq!(errno, Errno::AGAIN),
            }
        }
        // All reads but the last bring as much as they may.
        while let Ok(len @ 1..) = receive(&client, &accepted) {
            received += len;
            assert!(len == 4096 || received == sent.len(), "{received}");
        }
        assert_eq!(received, sent.len());
    });
}

#[test]
fn an_edge_is_reported_once_for_each_change() {
    let fake = Fake::start();
    let client = fake.attach();
    let (opened, accepted) = pair(&client, 80);
    let set = client.epoll_create(true).unwrap();
    add(&client, &set, &accepted, IN | ET, 7);
    for round in 0..100 {
        send(&client, &opened, b"a");
        assert_eq!(wait(&client, &set, None), [(IN, 7)], "round {round}");
        settle(&client);
        assert_eq!(wait(&client, &set, NOW), [], "round {round}");
    }
    // What was never read is reported again when it is asked for again.
    let event = EpollEvent {
        events: IN | ET,
        data: 8,
    };
    let change = EpollChange::Modify(event);
    client
        .epoll_change(set.as_fd(), accepted.as_fd(), change)
        .unwrap();
    assert_eq!(wait(&client, &set, None), [(IN, 8)]);
}

#[test]
fn one_shot_is_silent_until_it_is_armed_again() {
    let fake = Fake::start();
    let client = fake.attach();
    let (opened, accepted) = pair(&client, 80);
    let set = client.epoll_create(true).unwrap();
    add(&client, &set, &accepted, IN | ONESHOT, 7);
    send(&client, &opened, b"a");
    assert_eq!(wait(&client, &set, None), [(IN, 7)]);
    send(&client, &opened, b"b");
    settle(&client);
    assert_eq!(wait(&client, &set, NOW), []);
    let change = EpollChange::Modify(EpollEvent {
        events: IN | ONESHOT,
        data: 9,
    });
    client
        .epoll_change(set.as_fd(), accepted.as_fd(), change)
        .unwrap();
    assert_eq!(wait(&client, &set, None), [(IN, 9)]);
}

#[test]
fn split_sockets_and_pipes_are_in_one_set() {
    let fake = Fake::start();
    let client = fake.attach();
    let (opened, accepted) = pair(&client, 80);
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let set = client.epoll_create(true).unwrap();
    add(&client, &set, &accepted, IN, 1);
    add(&client, &set, &reader, IN, 2);
    rustix::io::write(&writer, b"x").unwrap();
    assert_eq!(wait(&client, &set, None), [(IN, 2)]);
    rustix::io::read(&reader, &mut [0; 1]).unwrap();
    send(&client, &opened, b"y");
    assert_eq!(wait(&client, &set, None), [(IN, 1)]);
    rustix::io::write(&writer, b"x").unwrap();
    // Neither starves the other.
    let mut seen = HashSet::new();
    while seen.len() < 2 {
        seen.extend(wait(&client, &set, None).into_iter().map(|(_, data)| data));
    }
    client.close(reader).unwrap();
    for _ in 0..100 {
        assert_eq!(wait(&client, &set, None), [(IN, 1)]);
    }
}

#[test]
fn threads_that_look_at_a_set_and_at_one_around_it_miss_no_level() {
    const LOOKS: usize = 50_000;
    let fake = Fake::start();
    let client = fake.attach();
    let (fd, peer) = pair(&client, 80);
    let inner = client.epoll_create(true).unwrap();
    let outer = client.epoll_create(true).unwrap();
    add(&client, &inner, &fd, IN, 1);
    add(&client, &outer, &inner, IN, 2);
    send(&client, &peer, b"a level that lasts");
    wait(&client, &inner, None);
    let looks = |set, found| {
        for look in 0..LOOKS {
            assert_eq!(wait(&client, set, NOW), [found], "look {look}");
        }
    };
    let polls = || {
        for look in 0..LOOKS {
            let mut polled = [Polled {
                fd: Some(inner.as_fd()),
                events: IN as u16,
                found: 0,
            }];
            assert_eq!(client.poll(&mut polled, NOW), Ok(1), "look {look}");
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| looks(&inner, (IN, 1)));
        scope.spawn(|| looks(&inner, (IN, 1)));
        scope.spawn(|| looks(&outer, (IN, 2)));
        scope.spawn(polls);
    });
}

#[test]
fn a_set_within_a_set_wakes_it() {
    let fake = Fake::start();
    let client = fake.attach();
    let (opened, accepted) = pair(&client, 80);
    let inner = client.epoll_create(true).unwrap();
    let outer = client.epoll_create(true).unwrap();
    add(&client, &inner, &accepted, IN, 1);
    add(&client, &outer, &inner, IN, 2);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            // A ring of the bell may wake it too early, which is no error.
            loop {
                let outside = wait(&client, &outer, None);
                assert_eq!(outside, [(IN, 2)]);
                let inside = wait(&client, &inner, NOW);
                if !inside.is_empty() {
                    return inside;
                }
            }
        });
        send(&client, &opened, b"x");
        assert_eq!(waiter.join().unwrap(), [(IN, 1)]);
    });
    // A level within lasts without.
    assert_eq!(wait(&client, &outer, None), [(IN, 2)]);
    assert_eq!(receive(&client, &accepted), Ok(1));
}

#[test]
fn threads_in_sets_of_their_own_are_all_woken() {
    const THREADS: u16 = 4;
    let fake = Fake::start();
    let client = fake.attach();
    std::thread::scope(|scope| {
        for port in 80..80 + THREADS {
            let (opened, accepted) = pair(&client, port);
            let client = &client;
            scope.spawn(move || {
                let set = client.epoll_create(true).unwrap();
                add(client, &set, &accepted, IN | ET, 1);
                for _ in 0..1000 {
                    assert_eq!(wait(client, &set, None), [(IN, 1)]);
                    while receive(client, &accepted).is_ok_and(|len| len > 0) {}
                    send(client, &accepted, b"-");
                }
            });
            scope.spawn(move || {
                let set = client.epoll_create(true).unwrap();
                add(client, &set, &opened, IN, 2);
                for _ in 0..1000 {
                    send(client, &opened, b"+");
                    assert_eq!(wait(client, &set, None), [(IN, 2)]);
                    assert_eq!(receive(client, &opened), Ok(1));
                }
            });
        }
    });
}

#[test]
fn a_change_of_a_set_wakes_the_thread_that_waits_in_it() {
    let fake = Fake::start();
    let client = fake.attach();
    for round in 0..100 {
        let (opened, accepted) = pair(&client, 100 + round);
        send(&client, &opened, b"x");
        let set = client.epoll_create(true).unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| wait(&client, &set, None));
            add(&client, &set, &accepted, IN, 1);
            assert_eq!(waiter.join().unwrap(), [(IN, 1)]);
            assert_eq!(receive(&client, &accepted), Ok(1));
            let waiter = scope.spawn(|| wait(&client, &set, None));
            let change = EpollChange::Modify(EpollEvent {
                events: OUT,
                data: 2,
            });
            client
                .epoll_change(set.as_fd(), accepted.as_fd(), change)
                .unwrap();
            assert_eq!(waiter.join().unwrap(), [(OUT, 2)]);
        });
    }
}

#[test]
fn a_duplicate_of_a_set_is_the_set_until_the_last_is_closed() {
    let fake = Fake::start();
    let client = fake.attach();
    let (opened, accepted) = pair(&client, 80);
    let set = client.epoll_create(true).unwrap();
    add(&client, &set, &accepted, IN, 1);
    let copy = client
        .note_duplicate(set.as_fd(), rustix::io::dup(&set).unwrap())
        .unwrap();
    client.close(set).unwrap();
    send(&client, &opened, b"x");
    assert_eq!(wait(&client, &copy, None), [(IN, 1)]);
    client.close(copy).unwrap();
}

/// Two threads add the first split sockets to a set of the kernel's at the same time.
#[test]
fn a_set_that_two_threads_extend_has_the_members_of_both() {
    let fake = Fake::start_with(4096, 256 << 20);
    let client = fake.attach();
    for round in 0..200 {
        let set = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
        // Each pair has had a listener of its own, whose port may be in use for a moment.
        let port = 1000 + 2 * round;
        let (sender, receiver) = pair(&client, port);
        let (other_sender, other_receiver) = pair(&client, port + 1);
        let begin = Barrier::new(2);
        std::thread::scope(|scope| {
            for (fd, data) in [(&receiver, 1), (&other_receiver, 2)] {
                let (client, set, begin) = (&client, &set, &begin);
                scope.spawn(move || {
                    begin.wait();
                    client.epoll_extend(set.as_fd(), &[]).unwrap();
                    add(client, set, fd, IN, data);
                });
            }
        });
        send(&client, &sender, b"x");
        send(&client, &other_sender, b"y");
        settle(&client);
        let mut found = wait(&client, &set, NOW);
        found.sort_unstable();
        assert_eq!(found, [(IN, 1), (IN, 2)], "in round {round}");
        for fd in [sender, receiver, other_sender, other_receiver, set] {
            client.close(fd).unwrap();
        }
    }
}

#[test]
fn connecting_is_reported_as_writable_and_refusal_as_an_error() {
    let fake = Fake::start();
    let client = fake.attach();
    let set = client.epoll_create(true).unwrap();
    let fd = client.socket(Family::V4, NONBLOCKING).unwrap();
    add(&client, &set, &fd, OUT | IN, 1);
    // Before it connects it hangs up, as in tcp_poll.
    assert_eq!(wait(&client, &set, None), [(OUT | HUP, 1)]);
    let begun = client.connect(fd.as_fd(), v4(NO_ANSWER));
    assert_eq!(begun, Err(Errno::INPROGRESS));
    let again = client.connect(fd.as_fd(), v4(NO_ANSWER));
    assert_eq!(again, Err(Errno::ALREADY));
    assert_eq!(wait(&client, &set, NOW), []);
    let refused = client.socket(Family::V4, BLOCKING).unwrap();
    let connected = client.connect(refused.as_fd(), v4(4444));
    assert_eq!(connected, Err(Errno::CONNREFUSED));
    let refused = client.socket(Family::V4, NONBLOCKING).unwrap();
    match client.connect(refused.as_fd(), v4(4444)) {
        Err(Errno::INPROGRESS) => {
            add(&client, &set, &refused, OUT, 2);
            let found = wait(&client, &set, None);
            assert!(
                found
                    .iter()
                    .all(|(events, data)| *data == 2 && events & ERR != 0)
            );
        }
        outcome => assert_eq!(outcome, Err(Errno::CONNREFUSED)),
    }
    let _listener = listener(&client, 80, BLOCKING);
    let fd = client.socket(Family::V4, BLOCKING).unwrap();
    client.connect(fd.as_fd(), v4(80)).unwrap();
    assert_eq!(client.connect(fd.as_fd(), v4(80)), Err(Errno::ISCONN));
    add(&client, &set, &fd, OUT, 3);
    assert!(wait(&client, &set, NOW).contains(&(OUT, 3)));
}

#[test]
fn ends_of_streams_are_reported_with_their_bits() {
    let fake = Fake::start();
    let client = fake.attach();
    let (opened, accepted) = pair(&client, 80);
    let set = client.epoll_create(true).unwrap();
    add(&client, &set, &accepted, IN | RDHUP, 1);
    client.shutdown(opened.as_fd(), How::Write).unwrap();
    assert_eq!(wait(&client, &set, None), [(IN | RDHUP, 1)]);
    client.shutdown(accepted.as_fd(), How::Write).unwrap();
    settle(&client);
    assert_eq!(wait(&client, &set, None), [(IN | RDHUP | HUP, 1)]);
    let (opened, accepted) = pair(&client, 81);
    add(&client, &set, &opened, 0, 2);
    let index = fake.world().connection_at(81);
    add(&client, &set, &accepted, 0, 3);
    fake.world().fail(index, Errno::CONNRESET);
    let found = loop {
        let found = wait(&client, &set, None);
        if found.iter().any(|(_, data)| *data == 3) {
            break found;
        }
    };
    assert!(found.contains(&(ERR | HUP, 3)), "{found:?}");
}

#[test]
fn a_listener_is_readable_while_connections_wait() {
    let fake = Fake::start();
    let client = fake.attach();
    let listener = listener(&client, 80, NONBLOCKING);
    let set = client.epoll_create(true).unwrap();
    add(&client, &set, &listener, IN, 1);
    assert_eq!(wait(&client, &set, NOW), []);
    let opened: Vec<OwnedFd> = (0..3).map(|_| support::connected(&client, 80)).collect();
    for _ in 0..3 {
        assert_eq!(wait(&client, &set, None), [(IN, 1)]);
        client.accept(listener.as_fd(), NONBLOCKING).unwrap();
    }
    assert_eq!(wait(&client, &set, NOW), []);
    drop(opened);
}

#[test]
fn sets_are_changed_as_the_kernel_changes_them() {
    let fake = Fake::start();
    let client = fake.attach();
    let (opened, accepted) = pair(&client, 80);
    let set = client.epoll_create(true).unwrap();
    let event = EpollEvent {
        events: IN,
        data: 1,
    };
    let change = |change| client.epoll_change(set.as_fd(), accepted.as_fd(), change);
    assert_eq!(change(EpollChange::Delete), Err(Errno::NOENT));
    assert_eq!(change(EpollChange::Modify(event)), Err(Errno::NOENT));
    assert_eq!(change(EpollChange::Add(event)), Ok(()));
    assert_eq!(change(EpollChange::Add(event)), Err(Errno::EXIST));
    assert_eq!(change(EpollChange::Delete), Ok(()));
    send(&client, &opened, b"x");
    settle(&client);
    assert_eq!(wait(&client, &set, NOW), []);
    assert_eq!(change(EpollChange::Add(event)), Ok(()));
    assert_eq!(wait(&client, &set, None), [(IN, 1)]);
    // Closing takes it out of all sets.
    client.close(accepted).unwrap();
    assert_eq!(wait(&client, &set, NOW), []);
    let itself = client.epoll_change(set.as_fd(), set.as_fd(), EpollChange::Add(event));
    assert_eq!(itself, Err(Errno::INVAL));
}

#[test]
fn lost_hints_are_made_up_for_by_a_scan() {
    let fake = Fake::start();
    let client = fake.attach();
    let (_opened, accepted) = pair(&client, 80);
    let set = client.epoll_create(true).unwrap();
    add(&client, &set, &accepted, IN, 1);
    fake.world().scan_all();
    settle(&client);
    assert_eq!(wait(&client, &set, NOW), []);
}

#[test]
fn a_wait_ends_at_its_timeout_and_not_before() {
    let fake = Fake::start();
    let client = fake.attach();
    let (_opened, accepted) = pair(&client, 80);
    let set = client.epoll_create(true).unwrap();
    add(&client, &set, &accepted, IN, 1);
    let timeout = Duration::from_millis(15);
    let before = std::time::Instant::now();
    assert_eq!(wait(&client, &set, Some(timeout)), []);
    assert!(before.elapsed() >= timeout);
    let mut polled = [Polled {
        fd: Some(accepted.as_fd()),
        events: libc::POLLIN as u16,
        found: 1,
    }];
    let before = std::time::Instant::now();
    assert_eq!(client.poll(&mut polled, Some(timeout)), Ok(0));
    assert!(before.elapsed() >= timeout);
    assert_eq!(polled[0].found, 0);
}

#[test]
fn poll_finds_split_sockets_and_pipes() {
    let fake = Fake::start();
    let client = fake.attach();
    let (opened, accepted) = pair(&client, 80);
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let ready = |timeout| {
        let events = libc::POLLIN as u16;
        let fds = [Some(accepted.as_fd()), Some(reader.as_fd()), None];
        let mut polled = fds.map(|fd| Polled {
            fd,
            events,
            found: 0,
        });
        let count = client.poll(&mut polled, timeout).unwrap();
        (count, polled.map(|polled| u32::from(polled.found)))
    };
    assert_eq!(ready(NOW), (0, [0, 0, 0]));
    std::thread::scope(|scope| {
        let poller = scope.spawn(|| ready(None));
        send(&client, &opened, b"x");
        assert_eq!(poller.join().unwrap(), (1, [IN, 0, 0]));
    });
    rustix::io::write(&writer, b"x").unwrap();
    assert_eq!(ready(None), (2, [IN, IN, 0]));
    assert_eq!(receive(&client, &accepted), Ok(1));
    std::thread::scope(|scope| {
        rustix::io::read(&reader, &mut [0; 1]).unwrap();
        let poller = scope.spawn(|| ready(None));
        rustix::io::write(&writer, b"x").unwrap();
        assert_eq!(poller.join().unwrap(), (1, [0, IN, 0]));
    });
}

#[test]
fn a_server_of_one_thread_serves_many_connections_by_edges() {
    const CONNECTIONS: u64 = 200;
    let fake = Fake::start_with(4096, 256 << 20);
    let client = fake.attach();
    let listener = listener(&client, 80, NONBLOCKING);
    std::thread::scope(|scope| {
        scope.spawn(|| serve(&client, &listener, CONNECTIONS));
        let set = client.epoll_create(true).unwrap();
        let opened: Vec<OwnedFd> = (0..CONNECTIONS)
            .map(|_| support::connected(&client, 80))
            .collect();
        for (i, fd) in opened.iter().enumerate() {
            send(&client, fd, &pattern(i as u64, 3000));
            add(&client, &set, fd, IN, i as u64);
        }
        let mut echoed = vec![Vec::<u8>::new(); opened.len()];
        while echoed.iter().any(|bytes| bytes.len() < 3000) {
            for (_, i) in wait(&client, &set, None) {
                let i = i as usize;
                let mut bytes = [0; 1000];
                let pieces = &mut [IoSliceMut::new(&mut bytes)];
                let flags = ReceiveFlags::default();
                let len = client.receive(opened[i].as_fd(), pieces, flags).unwrap();
                echoed[i].extend(&bytes[..len]);
            }
        }
        for (i, bytes) in echoed.iter().enumerate() {
            assert_eq!(bytes, &pattern(i as u64, 3000));
        }
        for fd in opened {
            client.close(fd).unwrap();
        }
    });
}

/// An echo server that ends when so many connections have come and gone.
fn serve(client: &Client, listener: &OwnedFd, connections: u64) {
    let set = client.epoll_create(true).unwrap();
    add(client, &set, listener, IN | ET, u64::MAX);
    let mut accepted: Vec<Option<OwnedFd>> = Vec::new();
    let mut gone = 0;
    while gone < connections {
        for (_, place) in wait(client, &set, None) {
            if place == u64::MAX {
                while let Ok((fd, _)) = client.accept(listener.as_fd(), NONBLOCKING) {
                    add(client, &set, &fd, IN | ET, accepted.len() as u64);
                    accepted.push(Some(fd));
                }
                continue;
            }
            let place = place as usize;
            let Some(fd) = &accepted[place] else {
                continue;
            };
            let mut bytes = [0; 700];
            let is_over = loop {
                let pieces = &mut [IoSliceMut::new(&mut bytes)];
                match client.receive(fd.as_fd(), pieces, ReceiveFlags::default()) {
                    Ok(0) => break true,
                    Ok(len) => send(client, fd, &bytes[..len]),
                    Err(Errno::AGAIN) => break false,
                    Err(errno) => panic!("{errno}"),
                }
            };
            if is_over {
                client.close(accepted[place].take().unwrap()).unwrap();
                gone += 1;
            }
        }
    }
}

#[test]
fn all_of_this_holds_in_each_mode() {
    support::rerun_in_each_mode("all_of_this_holds_in_each_mode");
}
