//! Bytes go from end to end, and calls report what the kernel's would.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use sha2::{Digest, Sha256};
use socket_channel::host_record::More;
use splitway::client::{Client, Modes, OptionValue, Options, ReceiveFlags, SendFlags};
use splitway::{Family, How};

use crate::support::{
    BLOCKING, Fake, NONBLOCKING, connected, finish, listener, pair, pattern, settle, v4,
};

mod support;

fn send_all(client: &Client, fd: BorrowedFd<'_>, bytes: &[u8]) -> usize {
    let flags = SendFlags::default();
    client.send(fd, &[IoSlice::new(bytes)], flags).unwrap()
}

fn receive(client: &Client, fd: &OwnedFd, len: usize) -> rustix::io::Result<Vec<u8>> {
    receive_with(client, fd, len, ReceiveFlags::default())
}

fn receive_with(
    client: &Client,
    fd: &OwnedFd,
    len: usize,
    flags: ReceiveFlags,
) -> rustix::io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let pieces = &mut [IoSliceMut::new(&mut bytes)];
    let received = client.receive(fd.as_fd(), pieces, flags)?;
    bytes.truncate(received);
    Ok(bytes)
}

/// The hash of all bytes until the end.
fn hash_to_end(client: &Client, fd: &OwnedFd) -> (usize, Vec<u8>) {
    let mut hash = Sha256::new();
    let mut total = 0;
    loop {
        let bytes = receive(client, fd, 10_007).unwrap();
        if bytes.is_empty() {
            return (total, hash.finalize().to_vec());
        }
        total += bytes.len();
        hash.update(&bytes);
    }
}

#[test]
fn every_byte_arrives_in_order_through_blocking_calls() {
    let fake = Fake::start();
    let client = fake.attach();
    let (opened, accepted) = pair(&client, 80);
    let bytes = pattern(1, 3_000_000);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(send_all(&client, opened.as_fd(), &bytes), bytes.len());
            finish(&client, &opened);
        });
        let (total, hash) = hash_to_end(&client, &accepted);
        assert_eq!(total, bytes.len());
        assert_eq!(hash, Sha256::digest(&bytes).to_vec());
    });
}

/// A connection is writable before it has a buffer, whose first write brings it; one that does not
/// block has room for all that it writes, as the kernel's has when it grows.
#[test]
fn a_large_write_that_does_not_block_goes_whole_into_a_buffer_that_grows() {
    let fake = Fake::start_with(64, 256 << 20);
    fake.world().is_short = true;
    fake.world().tx_max_bytes = 4 << 20;
    let client = fake.attach();
    let (opened, accepted) = pair(&client, 80);
    let bytes = pattern(8, 1_000_000);
    let dont_wait = SendFlags {
        dont_wait: true,
        ..SendFlags::default()
    };
    let room = client.send_room_bytes(opened.as_fd()).unwrap();
    assert!((1..bytes.len()).contains(&room), "{room}");
    let sent = client
        .send(opened.as_fd(), &[IoSlice::new(&bytes)], dont_wait)
        .unwrap();
    if fake.options().modes.has(Modes::BUFFERS_ON_DEMAND) {
        assert_eq!(sent, bytes.len(), "all at once");
    }
    // That the other side has finished by then cuts nothing.
    finish(&client, &accepted);
    let received = std::thread::scope(|scope| {
        scope.spawn(|| {
            let rest = [IoSlice::new(&bytes[sent..])];
            let rest = client.send(opened.as_fd(), &rest, SendFlags::default());
            assert_eq!(rest, Ok(bytes.len() - sent));
            finish(&client, &opened);
        });
        hash_to_end(&client, &accepted)
    });
    assert_eq!(received, (bytes.len(), Sha256::digest(&bytes).to_vec()));
}

/// Descriptors are made for sockets like the last, in batches.
#[test]
fn a_socket_blocks_or_does_not_whatever_those_before_it_did() {
    let fake = Fake::start();
    let client = fake.attach();
    for flags in [NONBLOCKING, BLOCKING, NONBLOCKING, NONBLOCKING, BLOCKING] {
        for _ in 0..20 {
            let socket = client.socket(Family::V4, flags).unwrap();
            let status = rustix::fs::fcntl_getfl(&socket).unwrap();
            let is_nonblocking = status.contains(rustix::fs::OFlags::NONBLOCK);
            assert_eq!(is_nonblocking, flags.nonblocking);
        }
    }
}

#[test]
fn a_thousand_connections_keep_their_bytes_apart() {
    let fake = Fake::start_with(4096, 512 << 20);
    let client = fake.attach();
    let listener = listener(&client, 80, BLOCKING);
    let opened: Vec<OwnedFd> = (0..1000).map(|_| connected(&client, 80)).collect();
    let accepted: Vec<OwnedFd> = (0..1000)
        .map(|_| client.accept(listener.as_fd(), BLOCKING).unwrap().0)
        .collect();
    for (i, fd) in opened.iter().enumerate() {
        let bytes = pattern(i as u64, 2000 + i);
        assert_eq!(send_all(&client, fd.as_fd(), &bytes), bytes.len());
        finish(&client, fd);
    }
    // Accepted in the order in which they were opened.
    for (i, fd) in accepted.iter().enumerate() {
        let (total, hash) = hash_to_end(&client, fd);
        let bytes = pattern(i as u64, 2000 + i);
        assert_eq!(total, bytes.len(), "connection {i}");
        assert_eq!(hash, Sha256::digest(&bytes).to_vec(), "connection {i}");
    }
}

#[test]
fn descriptors_give_their_sockets_back() {
    let fake = Fake::start();
    let client = fake.attach();
    for round in 0..300u16 {
        let (opened, accepted) = pair(&client, 1000 + round);
        send_all(&client, opened.as_fd(), b"x");
        assert_eq!(receive(&client, &accepted, 10).unwrap(), b"x");
        client.close(opened).unwrap();
        assert_eq!(receive(&client, &accepted, 10).unwrap(), b"");
        client.close(accepted).unwrap();
    }
    while fake.world().sockets() > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn a_listener_refuses_once_it_is_closed_though_the_broker_has_a_copy_yet() {
    let fake = Fake::start();
    fake.world().is_late_to_close = true;
    let client = fake.attach();
    for _ in 0..100 {
        let fd = listener(&client, 7, BLOCKING);
        client.close(fd).unwrap();
        let other = client.socket(Family::V4, BLOCKING).unwrap();
        let refused = client.connect(other.as_fd(), v4(7));
        assert_eq!(refused, Err(Errno::CONNREFUSED));
        client.close(other).unwrap();
    }
}

#[test]
fn a_port_is_free_once_its_listener_is_closed_though_the_broker_has_a_copy_yet() {
    let fake = Fake::start();
    fake.world().is_late_to_close = true;
    let client = fake.attach();
    let before = fake.world().handles_left;
    for _ in 0..200 {
        let fd = listener(&client, 7, BLOCKING);
        client.close(fd).unwrap();
    }
    // Batches of 16, 32 and 64 follow, and one more handle makes the broker close each.
    let given = before - fake.world().handles_left;
    assert_eq!(given, 16 + 32 + 64 + 64 + 64 + 6);
    let fd = listener(&client, 7, BLOCKING);
    let other = client.socket(Family::V4, BLOCKING).unwrap();
    for _ in 0..2 {
        assert_eq!(client.bind(other.as_fd(), v4(7)), Err(Errno::ADDRINUSE));
    }
    drop(fd);
}

#[test]
fn two_threads_block_in_receive_and_each_gets_its_own() {
    let fake = Fake::start();
    let client = fake.attach();
    let (first, other_first) = pair(&client, 80);
    let (second, other_second) = pair(&client, 81);
    std::thread::scope(|scope| {
        let a = scope.spawn(|| receive(&client, &other_first, 100).unwrap());
        let b = scope.spawn(|| receive(&client, &other_second, 100).unwrap());
        send_all(&client, second.as_fd(), b"second");
        assert_eq!(b.join().unwrap(), b"second");
        assert!(!a.is_finished());
        send_all(&client, first.as_fd(), b"first");
        assert_eq!(a.join().unwrap(), b"first");
    });
}

#[test]
fn threads_that_play_ping_pong_never_miss_a_wake_up() {
    let fake = Fake::start();
    let client = fake.attach();
    std::thread::scope(|scope| {
        for port in 80..84 {
            let (opened, accepted) = pair(&client, port);
            let client = &client;
            let play = move |fd: OwnedFd, starts: bool| {
                for round in 0..2000u32 {
                    if starts {
                        send_all(client, fd.as_fd(), &round.to_le_bytes());
                    }
                    let all = ReceiveFlags {
                        wait_all: true,
                        ..ReceiveFlags::default()
                    };
                    let got = receive_with(client, &fd, 4, all).unwrap();
                    assert_eq!(got, round.to_le_bytes());
                    if !starts {
                        send_all(client, fd.as_fd(), &got);
                    }
                }
            };
            scope.spawn(move || play(opened, true));
            scope.spawn(move || play(accepted, false));
        }
    });
}

#[test]
fn flags_of_receive_peek_discard_and_wait_for_all() {
    let fake = Fake::start();
    let client = fake.attach();
    let (opened, accepted) = pair(&client, 80);
    send_all(&client, opened.as_fd(), b"abcdefgh");
    let peek = ReceiveFlags {
        peek: true,
        ..ReceiveFlags::default()
    };
    let (mut a, mut b) = ([0; 3], [0; 3]);
    let pieces = &mut [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)];
    assert_eq!(client.receive(accepted.as_fd(), pieces, peek), Ok(6));
    assert_eq!((&a, &b), (b"abc", b"def"));
    let discard = ReceiveFlags {
        discard: true,
        ..ReceiveFlags::default()
    };
    let discarded = receive_with(&client, &accepted, 2, discard).unwrap();
    assert_eq!(discarded, [0, 0]);
    let pieces = &mut [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)];
    let plain = ReceiveFlags::default();
    assert_eq!(client.receive(accepted.as_fd(), pieces, plain), Ok(6));
    assert_eq!((&a, &b), (b"cde", b"fgh"));
    let wait_all = ReceiveFlags {
        wait_all: true,
        ..plain
    };
    std::thread::scope(|scope| {
        let all = scope.spawn(|| receive_with(&client, &accepted, 4, wait_all).unwrap());
        send_all(&client, opened.as_fd(), b"1");
        send_all(&client, opened.as_fd(), b"234");
        assert_eq!(all.join().unwrap(), b"1234");
    });
}

#[test]
fn a_socket_that_does_not_block_says_so() {
    let fake = Fake::start();
    let client = fake.attach();
    let listener = listener(&client, 80, NONBLOCKING);
    let none = client.accept(listener.as_fd(), NONBLOCKING).unwrap_err();
    assert_eq!(none, Errno::AGAIN);
    let opened = connected(&client, 80);
    let (accepted, peer) = client.accept(listener.as_fd(), NONBLOCKING).unwrap();
    assert_eq!(peer, client.local_address(opened.as_fd()).unwrap());
    assert_eq!(receive(&client, &accepted, 10), Err(Errno::AGAIN));
    let bytes = pattern(3, 1 << 20);
    let mut sent = 0;
    loop {
        let pieces = &[IoSlice::new(&bytes[sent..])];
        match client.send(accepted.as_fd(), pieces, SendFlags::default()) {
            Ok(len) => sent += len,
            Err(errno) => {
                assert_eq!(errno, Errno::AGAIN);
                break;
            }
        }
    }
    assert!(sent > 0 && sent < bytes.len());
    finish(&client, &accepted);
    let (total, hash) = hash_to_end(&client, &opened);
    assert_eq!(total, sent);
    assert_eq!(hash, Sha256::digest(&bytes[..sent]).to_vec());
    let dont_wait = ReceiveFlags {
        dont_wait: true,
        ..ReceiveFlags::default()
    };
    let (opened, _accepted) = pair(&client, 81);
    let none = receive_with(&client, &opened, 1, dont_wait);
    assert_eq!(none, Err(Errno::AGAIN));
}

#[test]
fn a_timeout_ends_a_call_that_blocks() {
    let fake = Fake::start();
    let client = fake.attach();
    let (opened, _accepted) = pair(&client, 80);
    let timeout = OptionValue::Timeout(Some(Duration::from_millis(20)));
    let (level, name) = (libc::SOL_SOCKET, libc::SO_RCVTIMEO);
    client
        .set_option(opened.as_fd(), level, name, &timeout)
        .unwrap();
    assert_eq!(client.option(opened.as_fd(), level, name).unwrap(), timeout);
    assert_eq!(receive(&client, &opened, 1), Err(Errno::AGAIN));
    let name = libc::SO_SNDTIMEO;
    client
        .set_option(opened.as_fd(), level, name, &timeout)
        .unwrap();
    // What fits is sent, and counts more than the timeout.
    let bytes = vec![7; 1 << 20];
    let sent = send_all(&client, opened.as_fd(), &bytes);
    assert!(sent > 0 && sent < bytes.len());
    let again = client.send(
        opened.as_fd(),
        &[IoSlice::new(&bytes)],
        SendFlags::default(),
    );
    assert_eq!(again, Err(Errno::AGAIN));
}

#[test]
fn the_end_of_a_stream_comes_behind_its_bytes() {
    let fake = Fake::start();
    let client = fake.attach();
    let (opened, accepted) = pair(&client, 80);
    send_all(&client, opened.as_fd(), b"last words");
    client.close(opened).unwrap();
    assert_eq!(receive(&client, &accepted, 100).unwrap(), b"last words");
    assert_eq!(receive(&client, &accepted, 100).unwrap(), b"");
    assert_eq!(receive(&client, &accepted, 100).unwrap(), b"");
}

#[test]
fn a_reset_is_reported_once_and_then_the_pipe_is_broken() {
    let fake = Fake::start();
    let client = fake.attach();
    let (opened, accepted) = pair(&client, 80);
    send_all(&client, opened.as_fd(), b"unread");
    client.close(accepted).unwrap();
    assert_eq!(receive(&client, &opened, 1), Err(Errno::CONNRESET));
    assert_eq!(receive(&client, &opened, 1).unwrap(), b"");
    let sent = client.send(opened.as_fd(), &[IoSlice::new(b"x")], SendFlags::default());
    assert_eq!(sent, Err(Errno::PIPE));
    let (opened, accepted) = pair(&client, 81);
    let index = fake.world().connection_at(81);
    fake.world().fail(index, Errno::TIMEDOUT);
    let error = (libc::SOL_SOCKET, libc::SO_ERROR);
    let read = || client.option(accepted.as_fd(), error.0, error.1).unwrap();
    assert_eq!(read(), OptionValue::Number(libc::ETIMEDOUT));
    assert_eq!(read(), OptionValue::Number(0));
    drop(opened);
}

#[test]
fn an_error_behind_bytes_is_that_of_the_next_call() {
    let fake = Fake::start();
    let client = fake.attach();
    let (opened, accepted) = pair(&client, 80);
    let all = ReceiveFlags {
        wait_all: true,
        ..ReceiveFlags::default()
    };
    let mut bytes = [0; 10];
    let mut receive_ten = || {
        let pieces = &mut [IoSliceMut::new(&mut bytes)];
        client.receive(accepted.as_fd(), pieces, all)
    };
    send_all(&client, opened.as_fd(), b"abc");
    // A reset discards the bytes that have not arrived.
    settle(&client);
    std::thread::scope(|scope| {
        let reader = scope.spawn(&mut receive_ten);
        let index = fake.world().connection_at(80);
        fake.world().fail(index, Errno::CONNRESET);
        assert_eq!(reader.join().unwrap(), Ok(3));
    });
    assert_eq!(receive_ten(), Err(Errno::CONNRESET));
    assert_eq!(receive_ten(), Ok(0));
}

/// Has `work` send more than there is room for, so that a reset cuts it off.
fn cut_off(work: impl Fn(&Client, BorrowedFd<'_>) -> rustix::io::Result<usize> + Sync) {
    let fake = Fake::start();
    let client = fake.attach();
    let (opened, accepted) = pair(&client, 80);
    let send = || {
        let pieces = &[IoSlice::new(b"x")];
        client.send(accepted.as_fd(), pieces, SendFlags::default())
    };
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| work(&client, accepted.as_fd()));
        assert_eq!(receive(&client, &opened, 1).unwrap().len(), 1);
        let index = fake.world().connection_at(80);
        fake.world().fail(index, Errno::TIMEDOUT);
        let sent = sender.join().unwrap().unwrap();
        assert!((1..CUT_OFF_BYTES).contains(&sent), "{sent}");
    });
    assert_eq!(send(), Err(Errno::TIMEDOUT));
    assert_eq!(send(), Err(Errno::PIPE));
}

const CUT_OFF_BYTES: usize = 4 << 20;

#[test]
fn a_send_that_a_reset_cuts_off_leaves_it_to_the_next_call() {
    let bytes = vec![0; CUT_OFF_BYTES];
    let pieces = &[IoSlice::new(&bytes)];
    cut_off(|client, fd| client.send(fd, pieces, SendFlags::default()));
    // A file that is open for writing as well is read in the library.
    let file = tempfile::tempfile().unwrap();
    file.set_len(CUT_OFF_BYTES as u64).unwrap();
    cut_off(|client, fd| client.send_open_file(fd, file.as_fd(), 0, CUT_OFF_BYTES));
}

#[test]
fn a_thread_that_blocks_hears_of_a_reset_and_of_a_shutdown_here() {
    let fake = Fake::start();
    let client = fake.attach();
    let (opened, accepted) = pair(&client, 80);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| receive(&client, &accepted, 1));
        let index = fake.world().connection_at(80);
        fake.world().fail(index, Errno::CONNRESET);
        assert_eq!(reader.join().unwrap(), Err(Errno::CONNRESET));
        let reader = scope.spawn(|| receive(&client, &opened, 1));
        client.shutdown(opened.as_fd(), How::Both).unwrap();
        assert_eq!(reader.join().unwrap().unwrap(), b"");
    });
    let sent = client.send(opened.as_fd(), &[IoSlice::new(b"x")], SendFlags::default());
    assert_eq!(sent, Err(Errno::PIPE));
}

#[test]
fn sockets_without_a_connection_answer_as_tcp_does() {
    let fake = Fake::start();
    let client = fake.attach();
    let fd = client.socket(Family::V4, BLOCKING).unwrap();
    assert_eq!(receive(&client, &fd, 1), Err(Errno::NOTCONN));
    let sent = client.send(fd.as_fd(), &[IoSlice::new(b"x")], SendFlags::default());
    assert_eq!(sent, Err(Errno::PIPE));
    assert_eq!(client.peer_address(fd.as_fd()), Err(Errno::NOTCONN));
    assert_eq!(client.shutdown(fd.as_fd(), How::Both), Err(Errno::NOTCONN));
    let none = client.accept(fd.as_fd(), BLOCKING).unwrap_err();
    assert_eq!(none, Errno::INVAL);
    let (pipe, _other) = rustix::pipe::pipe().unwrap();
    assert_eq!(receive(&client, &pipe, 1), Err(Errno::NOTSOCK));
    assert_eq!(client.bind(fd.as_fd(), v4(1)), Err(Errno::ACCESS));
    client.bind(fd.as_fd(), v4(0)).unwrap();
    assert!(client.local_address(fd.as_fd()).unwrap().port() > 0);
    assert_eq!(client.bind(fd.as_fd(), v4(99)), Err(Errno::INVAL));
    let v6 = ([0u16; 8], 80).into();
    assert_eq!(client.connect(fd.as_fd(), v6), Err(Errno::AFNOSUPPORT));
    let other = client.socket(Family::V4, BLOCKING).unwrap();
    let taken = client.local_address(fd.as_fd()).unwrap();
    assert_eq!(client.bind(other.as_fd(), taken), Err(Errno::ADDRINUSE));
}

#[test]
fn every_call_works_when_each_waits_for_its_answer() {
    let fake = Fake::start();
    let options = Options {
        modes: Modes::SPLIT_TCP,
        ..fake.options()
    };
    let client = Client::attach(&options).unwrap();
    assert_eq!(client.modes(), Ok(Modes::SPLIT_TCP));
    let (opened, accepted) = pair(&client, 80);
    send_all(&client, opened.as_fd(), b"slow");
    // The answer came, so the bytes are there without waiting.
    assert_eq!(client.unread_bytes(accepted.as_fd()), Ok(4));
    assert_eq!(client.unacknowledged_bytes(opened.as_fd()), Ok(0));
    assert!(fake.world().seen.iter().any(|name| name == "Look"));
}

#[test]
fn threads_share_a_socket_for_writing_and_no_byte_is_lost() {
    const PIECE: usize = 100;
    let fake = Fake::start();
    let client = fake.attach();
    let (opened, accepted) = pair(&client, 80);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4u8)
            .map(|letter| {
                let (client, opened) = (&client, &opened);
                scope.spawn(move || {
                    for _ in 0..200 {
                        assert_eq!(send_all(client, opened.as_fd(), &[letter; PIECE]), PIECE);
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            let mut bytes = Vec::new();
            while bytes.len() < 4 * 200 * PIECE {
                bytes.extend(receive(&client, &accepted, 4096).unwrap());
            }
            let mut counts = [0; 4];
            bytes
                .iter()
                .for_each(|letter| counts[usize::from(*letter)] += 1);
            assert_eq!(counts, [200 * PIECE; 4]);
            done.store(true, Ordering::SeqCst);
        });
        writers.into_iter().for_each(|it| it.join().unwrap());
    });
    assert!(done.load(Ordering::SeqCst));
}

#[test]
fn closing_lingers_until_the_peer_has_all_if_asked_to() {
    let fake = Fake::start();
    // A call that waits until the peer has taken all leaves nothing to linger for.
    let client = fake.attach_with(Modes::default());
    let (opened, accepted) = pair(&client, 80);
    let linger = OptionValue::Linger {
        on: true,
        seconds: 3600,
    };
    let (level, name) = (libc::SOL_SOCKET, libc::SO_LINGER);
    client
        .set_option(opened.as_fd(), level, name, &linger)
        .unwrap();
    assert_eq!(client.option(opened.as_fd(), level, name), Ok(linger));
    // More than the peer's FIFO takes, so that not all is acknowledged.
    let bytes = pattern(8, 100_000);
    send_all(&client, opened.as_fd(), &bytes);
    assert!(client.unacknowledged_bytes(opened.as_fd()).unwrap() > 0);
    std::thread::scope(|scope| {
        let closing = scope.spawn(|| client.close(opened));
        // It has closed nothing yet: the connection can still be seen.
        assert!(!closing.is_finished());
        let (total, hash) = hash_to_end(&client, &accepted);
        assert_eq!(total, bytes.len());
        assert_eq!(hash, Sha256::digest(&bytes).to_vec());
        assert_eq!(closing.join().unwrap(), Ok(()));
    });
}

#[test]
fn a_timeout_ends_connecting_which_goes_on() {
    let fake = Fake::start();
    let client = fake.attach();
    let fd = client.socket(Family::V4, BLOCKING).unwrap();
    let timeout = OptionValue::Timeout(Some(Duration::from_millis(20)));
    let (level, name) = (libc::SOL_SOCKET, libc::SO_SNDTIMEO);
    client
        .set_option(fd.as_fd(), level, name, &timeout)
        .unwrap();
    let to = v4(support::NO_ANSWER);
    assert_eq!(client.connect(fd.as_fd(), to), Err(Errno::INPROGRESS));
    assert_eq!(client.connect(fd.as_fd(), to), Err(Errno::ALREADY));
}

#[test]
fn more_to_come_is_known_until_it_has_come() {
    let fake = Fake::start();
    let client = fake.attach();
    let (opened, accepted) = pair(&client, 80);
    let seen = || {
        // What was sent before is carried out before it is answered.
        let (level, name) = (libc::IPPROTO_TCP, libc::TCP_INFO);
        client.option(opened.as_fd(), level, name).unwrap();
        fake.world().sockets_with(More::Something)
    };
    let more = SendFlags {
        more: true,
        ..SendFlags::default()
    };
    let pieces = &[IoSlice::new(b"head ")];
    for _ in 0..2 {
        assert_eq!(client.send(opened.as_fd(), pieces, more), Ok(5));
        assert_eq!(seen(), 1);
    }
    send_all(&client, opened.as_fd(), b"body");
    assert_eq!(seen(), 0);
    finish(&client, &opened);
    let (total, _) = hash_to_end(&client, &accepted);
    assert_eq!(total, 14);
}

#[test]
fn all_of_this_holds_in_each_mode() {
    support::rerun_in_each_mode("all_of_this_holds_in_each_mode");
}
