//! Files of the NIC stack: open, fstat, write, close, as IO-TCP has them.

use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use sha2::{Digest, Sha256};
use socket_channel::host_record::More;
use splitway::client::{Client, EpollChange, EpollEvent, SendFlags};

use crate::support::{BLOCKING, FILE, FILE_SLOW, Fake, LOOPED, finish, pair, receive_all};

mod support;

const IN: u32 = libc::EPOLLIN as u32;
const ERR: u32 = libc::EPOLLERR as u32;

fn events_of(client: &Client, fd: &OwnedFd, timeout: Option<Duration>) -> u32 {
    let set = client.epoll_create(true).unwrap();
    let event = EpollEvent {
        events: IN,
        data: 1,
    };
    let change = EpollChange::Add(event);
    client
        .epoll_change(set.as_fd(), fd.as_fd(), change)
        .unwrap();
    let mut events = [EpollEvent::default(); 4];
    let found = client
        .epoll_wait(set.as_fd(), &mut events, timeout)
        .unwrap();
    client.close(set).unwrap();
    events[..found]
        .iter()
        .fold(0, |all, event| all | event.events)
}

#[test]
fn a_file_goes_out_between_bytes_in_order() {
    let fake = Fake::start();
    let client = fake.attach();
    let (opened, accepted) = pair(&client, 80);
    let file = client.open_file(FILE.as_bytes(), BLOCKING).unwrap();
    assert_eq!(events_of(&client, &file, None), IN);
    let meta = client.file_meta(file.as_fd()).unwrap();
    let content = fake.world().content();
    assert_eq!(meta.size, content.len() as u64);
    assert_eq!((meta.inode, meta.device), (42, 7));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let send = |bytes: &[u8]| {
                let pieces = &[IoSlice::new(bytes)];
                let sent = client.send(accepted.as_fd(), pieces, SendFlags::default());
                assert_eq!(sent, Ok(bytes.len()));
            };
            send(b"head");
            let mut offset = 1000;
            while offset < meta.size {
                let rest = usize::MAX;
                let queued = client.send_file(accepted.as_fd(), file.as_fd(), offset, rest);
                let queued = queued.unwrap();
                assert!(queued > 0);
                offset += queued as u64;
            }
            let end = client.send_file(accepted.as_fd(), file.as_fd(), meta.size, 10);
            assert_eq!(end, Ok(0));
            send(b"tail");
            // Ranges that are queued go, whatever becomes of the descriptor.
            client.close(file).unwrap();
            finish(&client, &accepted);
        });
        let received = receive_all(&client, &opened);
        let expected = [b"head", &content[1000..], b"tail"].concat();
        assert_eq!(received.len(), expected.len());
        assert_eq!(Sha256::digest(received), Sha256::digest(expected));
    });
}

#[test]
fn no_range_goes_to_a_peer_on_the_same_stack_but_bytes_do() {
    let fake = Fake::start();
    let client = fake.attach();
    let (opened, accepted) = pair(&client, LOOPED);
    for path in [FILE, FILE_SLOW] {
        let file = client.open_file(path.as_bytes(), BLOCKING).unwrap();
        for fd in [&opened, &accepted] {
            let refused = client.send_file(fd.as_fd(), file.as_fd(), 0, 10);
            assert_eq!(refused, Err(Errno::OPNOTSUPP));
        }
    }
    let pieces = &[IoSlice::new(b"bytes")];
    let sent = client.send(accepted.as_fd(), pieces, SendFlags::default());
    assert_eq!(sent, Ok(5));
    finish(&client, &accepted);
    assert_eq!(receive_all(&client, &opened), b"bytes");
}

#[test]
fn no_more_is_queued_than_there_is_credit_for() {
    let fake = Fake::start();
    let client = fake.attach();
    let (opened, accepted) = pair(&client, 80);
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NONBLOCK;
    rustix::fs::fcntl_setfl(&accepted, flags).unwrap();
    let file = client.open_file(FILE.as_bytes(), BLOCKING).unwrap();
    let content = fake.world().content();
    let mut offset = 0;
    loop {
        let rest = content.len() - offset;
        match client.send_file(accepted.as_fd(), file.as_fd(), offset as u64, rest) {
            Ok(queued) => offset += queued,
            Err(errno) => {
                assert_eq!(errno, Errno::AGAIN);
                break;
            }
        }
    }
    // What the peer's FIFO has taken is given back as credit.
    assert!(offset < content.len());
    finish(&client, &accepted);
    let received = receive_all(&client, &opened);
    assert_eq!(received.len(), offset);
    assert_eq!(Sha256::digest(received), Sha256::digest(&content[..offset]));
}

#[test]
fn the_end_of_a_range_ends_what_more_has_begun() {
    let fake = Fake::start();
    let client = fake.attach();
    let (opened, accepted) = pair(&client, 80);
    let file = client.open_file(FILE.as_bytes(), BLOCKING).unwrap();
    assert_eq!(events_of(&client, &file, None), IN);
    let more = SendFlags {
        more: true,
        ..SendFlags::default()
    };
    let pieces = &[IoSlice::new(b"head")];
    let seen = || {
        // What was sent before is carried out before it is answered.
        let (level, name) = (libc::IPPROTO_TCP, libc::TCP_INFO);
        client.option(accepted.as_fd(), level, name).unwrap();
        let world = fake.world();
        [More::Something, More::Marks].map(|more| world.sockets_with(more))
    };
    assert_eq!(client.send(accepted.as_fd(), pieces, more), Ok(4));
    assert_eq!(seen(), [1, 0]);
    let queued = client.send_file(accepted.as_fd(), file.as_fd(), 0, 100);
    assert_eq!(queued, Ok(100));
    assert_eq!(seen(), [0, 1]);
    finish(&client, &accepted);
    assert_eq!(receive_all(&client, &opened).len(), 104);
}

#[test]
fn a_file_may_be_named_before_it_is_open() {
    let fake = Fake::start();
    let client = fake.attach();
    let (opened, accepted) = pair(&client, 80);
    let file = client.open_file(FILE_SLOW.as_bytes(), BLOCKING).unwrap();
    assert_eq!(client.file_meta(file.as_fd()), Err(Errno::AGAIN));
    assert_eq!(events_of(&client, &file, Some(Duration::ZERO)), 0);
    let queued = client.send_file(accepted.as_fd(), file.as_fd(), 5, 100);
    assert_eq!(queued, Ok(100));
    finish(&client, &accepted);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| events_of(&client, &file, None));
        fake.world().open_slow_files();
        assert_eq!(waiter.join().unwrap(), IN);
    });
    let content = fake.world().content();
    assert_eq!(receive_all(&client, &opened), content[5..105]);
}

#[test]
fn a_file_that_is_not_there_says_so_each_time() {
    let fake = Fake::start();
    let client = fake.attach();
    let (_opened, accepted) = pair(&client, 80);
    let file = client.open_file(b"/none", BLOCKING).unwrap();
    let events = events_of(&client, &file, None);
    assert_eq!(events & (IN | ERR), IN | ERR);
    for _ in 0..2 {
        assert_eq!(client.file_meta(file.as_fd()), Err(Errno::NOENT));
        let queued = client.send_file(accepted.as_fd(), file.as_fd(), 0, 10);
        assert_eq!(queued, Err(Errno::NOENT));
    }
}

#[test]
fn files_and_sockets_are_not_taken_for_each_other() {
    let fake = Fake::start();
    let client = fake.attach();
    let (opened, accepted) = pair(&client, 80);
    let file = client.open_file(FILE.as_bytes(), BLOCKING).unwrap();
    assert_eq!(client.file_meta(opened.as_fd()), Err(Errno::BADF));
    let queued = client.send_file(accepted.as_fd(), opened.as_fd(), 0, 10);
    assert_eq!(queued, Err(Errno::BADF));
    let queued = client.send_file(file.as_fd(), file.as_fd(), 0, 10);
    assert_eq!(queued, Err(Errno::NOTSOCK));
    let sent = client.send(file.as_fd(), &[IoSlice::new(b"x")], SendFlags::default());
    assert_eq!(sent, Err(Errno::NOTSOCK));
    let long = vec![b'a'; 5000];
    let opened = client.open_file(&long, BLOCKING).unwrap_err();
    assert_eq!(opened, Errno::NAMETOOLONG);
    let opened = client.open_file(b"", BLOCKING).unwrap_err();
    assert_eq!(opened, Errno::NOENT);
}

#[test]
fn all_of_this_holds_in_each_mode() {
    support::rerun_in_each_mode("all_of_this_holds_in_each_mode");
}
