//! Connections that a NIC stack joins: which calls they take meanwhile, and what their state says.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use splitway::client::{
    Client, EpollChange, EpollEvent, OptionValue, Polled, ReceiveFlags, SendFlags, SpliceLimits,
    SpliceStatus,
};
use splitway::{Family, How, SpliceStage};

use crate::support::{BLOCKING, Fake, pair, pattern};

mod support;

const IN: u16 = libc::POLLIN as u16;
const OUT: u16 = libc::POLLOUT as u16;
const PRI: u16 = libc::POLLPRI as u16;
const NOW: Option<Duration> = Some(Duration::ZERO);

/// A relay between two connections: the far ends, and those that are joined.
struct Relay {
    far: [OwnedFd; 2],
    near: [OwnedFd; 2],
}

fn relay(client: &Client) -> Relay {
    let (far_client, near_client) = pair(client, 7001);
    let (near_backend, far_backend) = pair(client, 7002);
    Relay {
        far: [far_client, far_backend],
        near: [near_client, near_backend],
    }
}

fn splice(client: &Client, pair: [&OwnedFd; 2]) -> rustix::io::Result<()> {
    let [first, second] = pair.map(AsFd::as_fd);
    client.splice(first, second, SpliceLimits::default())
}

fn send(client: &Client, fd: &OwnedFd, bytes: &[u8]) -> rustix::io::Result<usize> {
    client.send(fd.as_fd(), &[IoSlice::new(bytes)], SendFlags::default())
}

fn receive(client: &Client, fd: &OwnedFd, len: usize) -> rustix::io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let flags = ReceiveFlags {
        wait_all: true,
        ..ReceiveFlags::default()
    };
    let mut pieces = [IoSliceMut::new(&mut bytes)];
    let received = client.receive(fd.as_fd(), &mut pieces, flags)?;
    bytes.truncate(received);
    Ok(bytes)
}

/// What poll(2) says of a socket.
fn polled(client: &Client, fd: &OwnedFd, timeout: Option<Duration>) -> u16 {
    let mut polled = [Polled {
        fd: Some(fd.as_fd()),
        events: IN | OUT | PRI,
        found: 0,
    }];
    client.poll(&mut polled, timeout).unwrap();
    polled[0].found
}

#[test]
fn a_joined_socket_takes_no_call_that_moves_bytes_and_tells_what_has_passed() {
    let fake = Fake::start();
    let client = fake.attach();
    let Relay { far, near } = relay(&client);
    let unread = pattern(1, 5_000);
    send(&client, &far[0], &unread).unwrap();
    while client.unread_bytes(near[0].as_fd()).unwrap() < unread.len() as u64 {
        std::thread::yield_now();
    }
    splice(&client, near.each_ref()).unwrap();
    assert!(receive(&client, &far[1], unread.len()).unwrap() == unread);

    for fd in &near {
        let busy = Some(Errno::BUSY);
        assert_eq!(send(&client, fd, b"x").err(), busy);
        assert_eq!(receive(&client, fd, 1).err(), busy, "it does not wait");
        let peek = ReceiveFlags {
            peek: true,
            dont_wait: true,
            ..ReceiveFlags::default()
        };
        let mut byte = [0];
        let mut pieces = [IoSliceMut::new(&mut byte)];
        assert_eq!(client.receive(fd.as_fd(), &mut pieces, peek).err(), busy);
        for how in [How::Read, How::Write, How::Both] {
            assert_eq!(client.shutdown(fd.as_fd(), how).err(), busy);
        }
        let zero_copy =
            client.send_zero_copy(fd.as_fd(), &[IoSlice::new(b"x")], SendFlags::default(), 1);
        assert_eq!(zero_copy.err(), busy);
        let (level, name) = (libc::IPPROTO_TCP, libc::TCP_NODELAY);
        client
            .set_option(fd.as_fd(), level, name, &OptionValue::Number(1))
            .unwrap();
        assert!(client.peer_address(fd.as_fd()).is_ok());
    }
    // Neither to be read nor to be written, but there are news, once.
    assert_eq!(polled(&client, &near[0], NOW), PRI);
    let status = client.splice_status(near[0].as_fd()).unwrap();
    let expected = SpliceStatus {
        stage: SpliceStage::Joined,
        outcome: Ok(()),
        in_bytes: 5_000,
        out_bytes: 0,
    };
    assert_eq!(status, expected);
    assert_eq!(polled(&client, &near[0], NOW), 0);
    assert_eq!(polled(&client, &near[1], NOW), PRI, "of each");

    // Both ways without the program.
    send(&client, &far[0], b"there").unwrap();
    assert_eq!(receive(&client, &far[1], 5).unwrap(), b"there");
    send(&client, &far[1], b"back").unwrap();
    assert_eq!(receive(&client, &far[0], 4).unwrap(), b"back");

    client.unsplice(near[1].as_fd()).unwrap();
    assert_eq!(polled(&client, &near[0], NOW), PRI | OUT);
    let status = client.splice_status(near[0].as_fd()).unwrap();
    assert_eq!(status.stage, SpliceStage::Returned);
    send(&client, &far[0], b"here").unwrap();
    assert_eq!(receive(&client, &near[0], 4).unwrap(), b"here");
    send(&client, &near[0], b"and").unwrap();
    assert_eq!(receive(&client, &far[0], 3).unwrap(), b"and");
}

#[test]
fn threads_that_wait_for_bytes_hear_that_others_move_them() {
    let fake = Fake::start();
    let client = fake.attach();
    let Relay { far, near } = relay(&client);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| receive(&client, &near[0], 10));
        let some = scope.spawn(|| receive(&client, &near[1], 10));
        send(&client, &far[1], b"some").unwrap();
        // Both wait: one has nothing, and one not all.
        let is_read = || client.unread_bytes(near[1].as_fd()).unwrap() == 0;
        while !is_read() {
            std::thread::yield_now();
        }
        splice(&client, near.each_ref()).unwrap();
        assert_eq!(reader.join().unwrap().err(), Some(Errno::BUSY));
        let some = some.join().unwrap();
        // What it had is not lost, whichever call was first.
        match some {
            Ok(bytes) => assert_eq!(bytes, b"some"),
            Err(errno) => {
                assert_eq!(errno, Errno::BUSY);
                assert_eq!(receive(&client, &far[0], 4).unwrap(), b"some");
            }
        }
    });
}

#[test]
fn edges_tell_of_each_stage_once() {
    let fake = Fake::start();
    let client = fake.attach();
    // The far ends stay open.
    let Relay { near, far: _far } = relay(&client);
    let set = client.epoll_create(true).unwrap();
    let event = EpollEvent {
        events: (libc::EPOLLPRI | libc::EPOLLET) as u32,
        data: 7,
    };
    let add = EpollChange::Add(event);
    client
        .epoll_change(set.as_fd(), near[0].as_fd(), add)
        .unwrap();
    let mut found = [event; 2];
    let mut wait = |timeout| {
        let count = client.epoll_wait(set.as_fd(), &mut found, timeout);
        count.unwrap()
    };
    assert_eq!(wait(NOW), 0);
    splice(&client, near.each_ref()).unwrap();
    assert_eq!(wait(None), 1);
    assert_eq!(wait(NOW), 0);
    client.unsplice(near[0].as_fd()).unwrap();
    assert_eq!(wait(None), 1);
    assert_eq!(wait(NOW), 0);
}

#[test]
fn what_cannot_be_joined_is_refused_and_is_as_before() {
    let fake = Fake::start();
    let client = fake.attach();
    let Relay { far, near } = relay(&client);
    let alone = client.socket(Family::V4, BLOCKING).unwrap();
    let of = |first, second| splice(&client, [first, second]).err();
    assert_eq!(of(&near[0], &near[0]), Some(Errno::INVAL));
    assert_eq!(of(&near[0], &alone), Some(Errno::NOTCONN));
    let (kernels, _) = rustix::pipe::pipe().unwrap();
    assert_eq!(of(&near[0], &kernels), Some(Errno::NOTSOCK));
    let unspliced = client.unsplice(near[0].as_fd());
    assert_eq!(unspliced.err(), Some(Errno::INVAL));
    client.shutdown(near[1].as_fd(), How::Read).unwrap();
    assert_eq!(of(&near[0], &near[1]), Some(Errno::NOTCONN));
    let status = client.splice_status(near[0].as_fd()).unwrap();
    assert_eq!(status.stage, SpliceStage::None);
    send(&client, &far[0], b"here").unwrap();
    assert_eq!(receive(&client, &near[0], 4).unwrap(), b"here");
}

/// A relay that has copied so many bytes, and has more that is unread.
fn copied(client: &Client, copied: usize, unread: usize) -> Relay {
    let relay = relay(client);
    let (far, near) = (&relay.far, &relay.near);
    send(client, &far[0], &pattern(1, copied)).unwrap();
    let bytes = receive(client, &near[0], copied).unwrap();
    send(client, &near[1], &bytes).unwrap();
    assert!(receive(client, &far[1], copied).unwrap() == bytes);
    send(client, &far[0], &pattern(2, unread)).unwrap();
    while client.unread_bytes(near[0].as_fd()).unwrap() < unread as u64 {
        std::thread::yield_now();
    }
    relay
}

fn splice_copied(client: &Client, pair: &[OwnedFd; 2], bytes_min: u64) -> bool {
    let [first, second] = pair.each_ref().map(AsFd::as_fd);
    let joined = client.splice_copied(first, second, bytes_min, |_| true);
    joined.unwrap()
}

#[test]
fn what_passes_is_readable_until_a_program_that_copies_takes_note_of_it() {
    let fake = Fake::start();
    let client = fake.attach();
    let Relay { far, near } = copied(&client, 5_000, 3_000);
    let take = |at: usize, bytes| client.take_spliced(near[at].as_fd(), bytes).unwrap();
    assert_eq!(take(0, 10), None, "it is joined with none");
    assert!(splice_copied(&client, &near, 5_000));
    assert!(!splice_copied(&client, &near, 5_000), "once");
    assert!(receive(&client, &far[1], 3_000).unwrap() == pattern(2, 3_000));

    // Of what was unread.
    assert_eq!(polled(&client, &near[0], NOW), IN | OUT | PRI);
    assert_eq!((take(0, 1_000), take(1, 1_000)), (Some(1_000), Some(0)));
    assert_eq!(polled(&client, &near[0], NOW), IN | OUT | PRI);
    assert_eq!((take(0, 9_000), take(0, 9_000)), (Some(2_000), Some(0)));
    assert_eq!(polled(&client, &near[0], NOW), OUT | PRI);
}

#[test]
fn calls_of_a_program_that_copies_find_nothing_or_have_its_connections_back() {
    let fake = Fake::start();
    let client = fake.attach();
    let Relay { far, near } = copied(&client, 5_000, 3_000);
    assert!(splice_copied(&client, &near, 5_000));
    let at_once = ReceiveFlags {
        dont_wait: true,
        ..ReceiveFlags::default()
    };
    let mut byte = [0];
    let mut pieces = [IoSliceMut::new(&mut byte)];
    let received = client.receive(near[0].as_fd(), &mut pieces, at_once);
    assert_eq!(received.err(), Some(Errno::AGAIN));
    // What has passed is passed over.
    assert_eq!(polled(&client, &near[0], NOW), OUT | PRI);
    send(&client, &near[0], b"a word of its own").unwrap();
    assert_eq!(receive(&client, &far[0], 17).unwrap(), b"a word of its own");
    assert_eq!(client.take_spliced(near[0].as_fd(), 10).unwrap(), None);
    send(&client, &far[0], b"here").unwrap();
    assert_eq!(receive(&client, &near[0], 4).unwrap(), b"here");
    assert!(!splice_copied(&client, &near, 0), "never again");
}

#[test]
fn connections_between_which_a_program_does_not_just_copy_are_not_joined() {
    let fake = Fake::start();
    let client = fake.attach();
    let Relay { far, near } = copied(&client, 5_000, 0);
    assert!(!splice_copied(&client, &near, 5_001), "too few bytes");
    send(&client, &near[1], b"its own").unwrap();
    assert!(!splice_copied(&client, &near, 0), "one has got more");
    send(&client, &far[0], b"hidden!").unwrap();
    assert_eq!(receive(&client, &near[0], 7).unwrap(), b"hidden!");
    let [first, second] = near.each_ref().map(AsFd::as_fd);
    let addresses = near.each_ref().map(|fd| client.local_address(fd.as_fd()));
    let wanted = |found: [_; 2]| {
        assert_eq!(found.map(Ok), addresses);
        false
    };
    let joined = client.splice_copied(first, second, 5_000, wanted);
    assert_eq!(joined, Ok(false), "no rule names them");
    assert!(!splice_copied(&client, &near, 0), "nor is that asked again");
    let status = client.splice_status(first).unwrap();
    assert_eq!(status.stage, SpliceStage::None);
}

#[test]
fn a_copy_that_waits_for_bytes_hears_that_others_move_them() {
    let fake = Fake::start();
    let client = fake.attach();
    let Relay { far, near } = copied(&client, 5_000, 0);
    let no_bytes = |_: &[u8]| panic!("none come");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| client.receive_into(near[1].as_fd(), 10, false, no_bytes));
        assert!(splice_copied(&client, &near, 5_000));
        assert_eq!(waiting.join().unwrap(), Ok(None));
    });
    // What is not taken stays.
    client.unsplice(near[0].as_fd()).unwrap();
    send(&client, &far[0], b"some bytes").unwrap();
    let mut seen = Vec::new();
    let mut take = |bytes: &[u8]| {
        seen.extend_from_slice(bytes);
        bytes.len().min(4)
    };
    let taken = client.receive_into(near[0].as_fd(), 100, false, &mut take);
    assert_eq!(taken, Ok(Some(4)));
    assert_eq!(seen, b"some bytes");
    assert_eq!(receive(&client, &near[0], 6).unwrap(), b" bytes");
}
