//! Sends that report when the peer has acknowledged what they sent.

use std::collections::BTreeSet;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;
use std::time::Duration;

use rustix::io::Errno;
use sha2::{Digest, Sha256};
use splitway::client::{
    Client, Completion, EpollChange, EpollEvent, Polled, ReceiveFlags, SENDS_MAX, SendFlags,
};
use splitway::{Family, How};

use crate::support::{BLOCKING, Fake, finish, listener, pair, pattern, receive_all, settle, v4};

mod support;

const ERR: u32 = libc::EPOLLERR as u32;
const OUT: u32 = libc::EPOLLOUT as u32;
const ET: u32 = libc::EPOLLET as u32;
const NOW: Option<Duration> = Some(Duration::ZERO);

fn send(client: &Client, fd: &OwnedFd, bytes: &[u8], cookie: u64) -> rustix::io::Result<usize> {
    let pieces = &[IoSlice::new(bytes)];
    client.send_zero_copy(fd.as_fd(), pieces, SendFlags::default(), cookie)
}

fn take(
    client: &Client,
    fd: &OwnedFd,
    max: usize,
    timeout: Option<Duration>,
) -> rustix::io::Result<Vec<(u64, rustix::io::Result<()>)>> {
    let none = Completion {
        cookie: 0,
        outcome: Ok(()),
    };
    let mut found = vec![none; max];
    let count = client.completions(fd.as_fd(), &mut found, timeout)?;
    let found = found[..count].iter();
    Ok(found.map(|it| (it.cookie, it.outcome)).collect())
}

/// A connection whose peer acknowledges what a test has it acknowledge; its index, and both ends.
fn unacknowledged(fake: &Fake, client: &Client, port: u16) -> (u32, OwnedFd, OwnedFd) {
    let (opened, accepted) = pair(client, port);
    let index = fake.world().connection_at(port);
    fake.world().holds_acks = true;
    (index, opened, accepted)
}

#[test]
fn a_completion_comes_with_the_acknowledgment_of_the_last_byte() {
    let fake = Fake::start();
    let client = fake.attach();
    let (index, opened, accepted) = unacknowledged(&fake, &client, 80);
    assert_eq!(send(&client, &accepted, b"0123456789", 7), Ok(10));
    assert_eq!(send(&client, &accepted, b"abcde", 8), Ok(5));
    let mut bytes = [0; 20];
    let pieces = &mut [IoSliceMut::new(&mut bytes)];
    let all = ReceiveFlags::default();
    settle(&client);
    assert_eq!(client.receive(opened.as_fd(), pieces, all), Ok(15));
    // The peer has read everything, and has not said so.
    assert_eq!(take(&client, &accepted, 4, NOW), Ok(vec![]));
    fake.world().acknowledge(index, 9);
    assert_eq!(take(&client, &accepted, 4, NOW), Ok(vec![]));
    fake.world().acknowledge(index, 10);
    assert_eq!(take(&client, &accepted, 4, NOW), Ok(vec![(7, Ok(()))]));
    assert_eq!(take(&client, &accepted, 4, NOW), Ok(vec![]));
    fake.world().acknowledge(index, 15);
    assert_eq!(take(&client, &accepted, 4, None), Ok(vec![(8, Ok(()))]));
    // None is outstanding, so there is nothing to wait for.
    assert_eq!(take(&client, &accepted, 4, None), Ok(vec![]));
    assert_eq!(take(&client, &accepted, 0, None), Err(Errno::INVAL));
}

#[test]
fn bytes_and_files_before_a_send_count_for_its_position() {
    let fake = Fake::start();
    let client = fake.attach();
    let (index, opened, accepted) = unacknowledged(&fake, &client, 80);
    let pieces = &[IoSlice::new(b"head")];
    let sent = client.send(accepted.as_fd(), pieces, SendFlags::default());
    assert_eq!(sent, Ok(4));
    let path = support::FILE.as_bytes();
    let file = client.open_file(path, BLOCKING).unwrap();
    let queued = client.send_file(accepted.as_fd(), file.as_fd(), 0, 1000);
    assert_eq!(queued, Ok(1000));
    assert_eq!(send(&client, &accepted, b"tail", 1), Ok(4));
    let mut bytes = vec![0; 1008];
    let pieces = &mut [IoSliceMut::new(&mut bytes)];
    let all = ReceiveFlags {
        wait_all: true,
        ..ReceiveFlags::default()
    };
    assert_eq!(client.receive(opened.as_fd(), pieces, all), Ok(1008));
    fake.world().acknowledge(index, 1007);
    assert_eq!(take(&client, &accepted, 4, NOW), Ok(vec![]));
    fake.world().acknowledge(index, 1008);
    assert_eq!(take(&client, &accepted, 4, NOW), Ok(vec![(1, Ok(()))]));
}

#[test]
fn a_reset_completes_sends_with_its_error() {
    let fake = Fake::start();
    let client = fake.attach();
    let (index, _opened, accepted) = unacknowledged(&fake, &client, 80);
    for cookie in 0..3 {
        assert_eq!(send(&client, &accepted, b"12345", cookie), Ok(5));
    }
    settle(&client);
    fake.world().acknowledge(index, 7);
    fake.world().fail(index, Errno::TIMEDOUT);
    let late = Err(Errno::TIMEDOUT);
    let found = take(&client, &accepted, 4, None).unwrap();
    assert_eq!(found, [(0, Ok(())), (1, late), (2, late)]);
    // The error itself is still to be reported.
    assert_eq!(send(&client, &accepted, b"x", 9), Err(Errno::TIMEDOUT));
    assert_eq!(send(&client, &accepted, b"x", 9), Err(Errno::PIPE));
    assert_eq!(take(&client, &accepted, 4, None), Ok(vec![]));
}

#[test]
fn a_connection_that_comes_after_completes_no_sends_of_the_one_before() {
    let fake = Fake::start();
    let client = fake.attach();
    let (opened, _accepted) = pair(&client, 80);
    let local = client.local_address(opened.as_fd()).unwrap();
    let index = fake.world().connection_at(local.port());
    fake.world().holds_acks = true;
    assert_eq!(send(&client, &opened, b"12345", 1), Ok(5));
    assert_eq!(send(&client, &opened, b"12345", 2), Ok(5));
    settle(&client);
    fake.world().acknowledge(index, 5);
    assert_eq!(take(&client, &opened, 1, None), Ok(vec![(1, Ok(()))]));
    client.disconnect(opened.as_fd()).unwrap();
    let listener = listener(&client, 81, BLOCKING);
    client.connect(opened.as_fd(), v4(81)).unwrap();
    assert_eq!(send(&client, &opened, &[0; 50], 3), Ok(50));
    settle(&client);
    fake.world().acknowledge(index, 49);
    let reset = Err(Errno::CONNRESET);
    assert_eq!(take(&client, &opened, 4, None), Ok(vec![(2, reset)]));
    fake.world().acknowledge(index, 50);
    assert_eq!(take(&client, &opened, 4, None), Ok(vec![(3, Ok(()))]));
    drop(listener);
}

#[test]
fn a_host_stack_that_dies_completes_sends_with_a_reset() {
    let mut fake = Fake::start();
    let client = fake.attach();
    let (_, _opened, accepted) = unacknowledged(&fake, &client, 80);
    assert_eq!(send(&client, &accepted, b"12345", 3), Ok(5));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| take(&client, &accepted, 4, None));
        fake.stop();
        let reset = Ok(vec![(3, Err(Errno::CONNRESET))]);
        assert_eq!(waiter.join().unwrap(), reset);
    });
}

#[test]
fn no_more_are_outstanding_than_may_be() {
    let fake = Fake::start();
    let client = fake.attach();
    let (index, _opened, accepted) = unacknowledged(&fake, &client, 80);
    for cookie in 0..SENDS_MAX as u64 {
        assert_eq!(send(&client, &accepted, b"x", cookie), Ok(1));
    }
    assert_eq!(send(&client, &accepted, b"x", 0), Err(Errno::NOBUFS));
    settle(&client);
    // That they are due is not enough: one has to be taken.
    fake.world().acknowledge(index, SENDS_MAX as u64);
    assert_eq!(send(&client, &accepted, b"x", 0), Err(Errno::NOBUFS));
    assert_eq!(take(&client, &accepted, 1, None), Ok(vec![(0, Ok(()))]));
    assert_eq!(send(&client, &accepted, b"x", 77), Ok(1));
    let rest = take(&client, &accepted, 2 * SENDS_MAX, None).unwrap();
    assert_eq!(rest.len(), SENDS_MAX - 1);
    assert!(rest.iter().map(|(cookie, _)| *cookie).is_sorted());
}

#[test]
fn what_sends_nothing_has_no_completion() {
    let fake = Fake::start();
    let client = fake.attach();
    let (opened, accepted) = pair(&client, 80);
    assert_eq!(send(&client, &accepted, b"", 1), Ok(0));
    let fd = client.socket(Family::V4, BLOCKING).unwrap();
    assert_eq!(send(&client, &fd, b"x", 1), Err(Errno::PIPE));
    assert_eq!(take(&client, &fd, 1, None), Ok(vec![]));
    assert_eq!(take(&client, &accepted, 1, None), Ok(vec![]));
    client.shutdown(accepted.as_fd(), How::Write).unwrap();
    assert_eq!(send(&client, &accepted, b"x", 1), Err(Errno::PIPE));
    assert_eq!(take(&client, &accepted, 1, None), Ok(vec![]));
    let (pipe, _other) = rustix::pipe::pipe().unwrap();
    assert_eq!(send(&client, &pipe, b"x", 1), Err(Errno::NOTSOCK));
    assert_eq!(take(&client, &pipe, 1, NOW), Err(Errno::NOTSOCK));
    drop(opened);
}

#[test]
fn a_duplicate_has_the_completions_until_the_last_is_closed() {
    let fake = Fake::start();
    let client = fake.attach();
    let (index, _opened, accepted) = unacknowledged(&fake, &client, 80);
    let copy = rustix::io::fcntl_dupfd_cloexec(&accepted, 0).unwrap();
    let copy = client.note_duplicate(accepted.as_fd(), copy).unwrap();
    assert_eq!(send(&client, &accepted, b"abc", 5), Ok(3));
    settle(&client);
    client.close(accepted).unwrap();
    fake.world().acknowledge(index, 3);
    assert_eq!(take(&client, &copy, 1, None), Ok(vec![(5, Ok(()))]));
    assert_eq!(send(&client, &copy, b"abc", 6), Ok(3));
    client.close(copy).unwrap();
    fake.world().holds_acks = false;
    // Another socket in the same place has nothing of it.
    for port in 100..200 {
        let (opened, accepted) = pair(&client, port);
        assert_eq!(take(&client, &accepted, 1, None), Ok(vec![]));
        assert_eq!(take(&client, &opened, 1, None), Ok(vec![]));
        client.close(opened).unwrap();
        client.close(accepted).unwrap();
    }
}

#[test]
fn a_set_and_poll_report_completions_as_errors() {
    let fake = Fake::start();
    let client = fake.attach();
    let (index, _opened, accepted) = unacknowledged(&fake, &client, 80);
    let sets = [ET, 0].map(|trigger| {
        let set = client.epoll_create(true).unwrap();
        let event = EpollEvent {
            events: trigger,
            data: 1,
        };
        let change = EpollChange::Add(event);
        client
            .epoll_change(set.as_fd(), accepted.as_fd(), change)
            .unwrap();
        set
    });
    let wait = |set: &OwnedFd, timeout| {
        let mut events = [EpollEvent::default(); 4];
        let found = client.epoll_wait(set.as_fd(), &mut events, timeout);
        let found = events[..found.unwrap()].iter();
        found.map(|it| it.events).collect::<Vec<_>>()
    };
    let [edge, level] = &sets;
    for round in 1..=100 {
        assert_eq!(send(&client, &accepted, b"x", round), Ok(1));
        settle(&client);
        assert_eq!((wait(edge, NOW), wait(level, NOW)), (vec![], vec![]));
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| wait(edge, None));
            fake.world().acknowledge(index, round);
            assert_eq!(waiter.join().unwrap(), [ERR]);
        });
        assert_eq!(wait(edge, NOW), vec![], "an edge comes once");
        assert_eq!((wait(level, NOW), wait(level, NOW)), (vec![ERR], vec![ERR]));
        let mut polled = [Polled {
            fd: Some(accepted.as_fd()),
            events: OUT as u16,
            found: 0,
        }];
        assert_eq!(client.poll(&mut polled, None), Ok(1));
        assert_eq!(u32::from(polled[0].found), OUT | ERR);
        assert_eq!(take(&client, &accepted, 4, NOW), Ok(vec![(round, Ok(()))]));
        assert_eq!(wait(level, NOW), vec![]);
    }
}

#[test]
fn who_takes_as_many_as_there_is_room_for_hears_of_the_next() {
    let fake = Fake::start();
    let client = fake.attach();
    let (index, _opened, accepted) = unacknowledged(&fake, &client, 80);
    let set = client.epoll_create(true).unwrap();
    let wanted = EpollEvent {
        events: ERR | ET,
        data: 5,
    };
    client
        .epoll_change(set.as_fd(), accepted.as_fd(), EpollChange::Add(wanted))
        .unwrap();
    let report = |timeout| {
        let mut events = [EpollEvent::default(); 4];
        client.epoll_wait(set.as_fd(), &mut events, timeout)
    };
    for cookie in 0..3 {
        assert_eq!(send(&client, &accepted, b"byte", cookie), Ok(4));
    }
    settle(&client);
    for cookie in 0..3 {
        fake.world().acknowledge(index, 4 * (cookie + 1));
        assert_eq!(report(Some(Duration::from_secs(10))), Ok(1), "{cookie}");
        // The array is full with it.
        assert_eq!(take(&client, &accepted, 1, NOW), Ok(vec![(cookie, Ok(()))]));
    }
    assert_eq!(report(NOW), Ok(0));
}

#[test]
fn every_byte_arrives_and_every_send_completes_in_order() {
    let fake = Fake::start();
    let client = fake.attach();
    let (opened, accepted) = pair(&client, 80);
    let bytes = pattern(5, 3_000_000);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut completed = Vec::new();
            let pieces: Vec<&[u8]> = bytes.chunks(7001).collect();
            for (cookie, piece) in pieces.iter().enumerate() {
                assert_eq!(
                    send(&client, &accepted, piece, cookie as u64),
                    Ok(piece.len())
                );
                completed.extend(take(&client, &accepted, 8, NOW).unwrap());
            }
            finish(&client, &accepted);
            while completed.len() < pieces.len() {
                let found = take(&client, &accepted, 8, None).unwrap();
                assert!(!found.is_empty(), "each send completes");
                completed.extend(found);
            }
            let expected = (0..pieces.len() as u64).map(|cookie| (cookie, Ok(())));
            assert!(completed.into_iter().eq(expected));
        });
        let received = receive_all(&client, &opened);
        assert_eq!(received.len(), bytes.len());
        assert_eq!(Sha256::digest(received), Sha256::digest(&bytes));
    });
}

#[test]
fn threads_send_and_take_on_one_socket_and_none_is_lost() {
    const EACH: u64 = 2000;
    const ALL: u64 = 2 * EACH;
    let fake = Fake::start();
    let client = fake.attach();
    let (opened, accepted) = pair(&client, 80);
    let (client, accepted) = (&client, &accepted);
    let taken = &Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let received = receive_all(client, &opened);
            assert_eq!(received.len() as u64, ALL * 100);
        });
        let senders: Vec<_> = (0..2)
            .map(|sender| {
                scope.spawn(move || {
                    for i in 0..EACH {
                        let cookie = sender * EACH + i;
                        while send(client, accepted, &[7; 100], cookie) == Err(Errno::NOBUFS) {
                            std::thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        for _ in 0..2 {
            scope.spawn(move || {
                while (taken.lock().unwrap().len() as u64) < ALL {
                    let found = take(client, accepted, 16, None).unwrap();
                    taken.lock().unwrap().extend(found);
                    std::thread::yield_now();
                }
            });
        }
        senders.into_iter().for_each(|it| it.join().unwrap());
        finish(client, accepted);
    });
    let taken = taken.lock().unwrap();
    let cookies: BTreeSet<u64> = taken.iter().map(|(cookie, _)| *cookie).collect();
    assert_eq!((taken.len() as u64, cookies.len() as u64), (ALL, ALL));
    assert!(taken.iter().all(|(_, outcome)| outcome.is_ok()));
}
