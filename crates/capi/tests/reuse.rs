//! Descriptors of closed connections, which `accept` hands out again.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, FdFlags, fcntl_getfd, fcntl_setfd};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, sendmsg};
use splitway::client::{
    Client, DescriptorFlags, OptionValue, Options, Polled, ReceiveFlags, SendFlags, note_bare_fork,
    note_copies, reuse_descriptors,
};

use crate::support::children::{self, assert_done};
use crate::support::{BLOCKING, Fake, NONBLOCKING, connected, listener, pattern, receive_all};

mod support;

/// Numbers of descriptors, and notes of their copies, are of the whole process.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    reuse_descriptors();
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn send(client: &Client, fd: &OwnedFd, bytes: &[u8]) {
    let pieces = &[IoSlice::new(bytes)];
    let sent = client.send(fd.as_fd(), pieces, SendFlags::default());
    assert_eq!(sent, Ok(bytes.len()));
}

fn receive(client: &Client, fd: &OwnedFd) -> rustix::io::Result<Vec<u8>> {
    let mut bytes = vec![0; 100];
    let pieces = &mut [IoSliceMut::new(&mut bytes)];
    let len = client.receive(fd.as_fd(), pieces, ReceiveFlags::default())?;
    bytes.truncate(len);
    Ok(bytes)
}

/// A connection: the end that was opened, and the one that was accepted.
fn connection(
    client: &Client,
    listener: &OwnedFd,
    port: u16,
    flags: DescriptorFlags,
) -> (OwnedFd, OwnedFd) {
    let opened = connected(client, port);
    let (accepted, _) = client.accept(listener.as_fd(), flags).unwrap();
    (opened, accepted)
}

/// How many connections were ended by the command that keeps their descriptors.
fn reused(fake: &Fake) -> usize {
    let world = fake.world();
    let seen = world.seen.iter();
    seen.filter(|name| name.starts_with("Reuse")).count()
}

#[test]
fn the_descriptor_of_a_closed_connection_is_that_of_the_next() {
    let _turn = turn();
    let fake = Fake::start();
    let client = fake.attach();
    let listener = listener(&client, 80, BLOCKING);
    let mut number = None;
    for round in 0..200 {
        let (opened, accepted) = connection(&client, &listener, 80, NONBLOCKING);
        assert_eq!(
            accepted.as_raw_fd(),
            *number.get_or_insert(accepted.as_raw_fd())
        );
        let bytes = pattern(round, 5000);
        send(&client, &opened, &bytes);
        client
            .shutdown(opened.as_fd(), splitway::How::Write)
            .unwrap();
        let mut received = Vec::new();
        while received.len() < bytes.len() {
            match receive(&client, &accepted) {
                Ok(more) => received.extend(more),
                Err(errno) => assert_eq!(errno, Errno::AGAIN),
            }
        }
        assert_eq!(received, bytes);
        send(&client, &accepted, &received);
        client.close(accepted).unwrap();
        assert_eq!(receive_all(&client, &opened), bytes);
        client.close(opened).unwrap();
    }
    assert_eq!(reused(&fake), 200);
}

#[test]
fn a_descriptor_has_the_flags_of_its_own_connection() {
    let _turn = turn();
    let fake = Fake::start();
    let client = fake.attach();
    let listener = listener(&client, 80, BLOCKING);
    let mut number = None;
    for round in 0..16_u32 {
        let flags = DescriptorFlags {
            nonblocking: round & 1 != 0,
            close_on_exec: round & 2 != 0,
        };
        let (opened, accepted) = connection(&client, &listener, 80, flags);
        assert_eq!(
            accepted.as_raw_fd(),
            *number.get_or_insert(accepted.as_raw_fd())
        );
        let status = fcntl_getfl(&accepted).unwrap();
        assert_eq!(status.contains(OFlags::NONBLOCK), flags.nonblocking);
        let kept = fcntl_getfd(&accepted).unwrap();
        assert_eq!(kept.contains(FdFlags::CLOEXEC), flags.close_on_exec);
        if round & 4 != 0 {
            fcntl_setfl(&accepted, status ^ OFlags::NONBLOCK).unwrap();
            fcntl_setfd(&accepted, kept ^ FdFlags::CLOEXEC).unwrap();
            client.forget_flags(accepted.as_raw_fd());
        }
        client.close(accepted).unwrap();
        // Another program does not get it in between.
        let parked = fcntl_getfd(numbered(number.unwrap())).unwrap();
        assert!(parked.contains(FdFlags::CLOEXEC));
        client.close(opened).unwrap();
    }
}

/// Borrows a number that is open.
fn numbered(number: RawFd) -> std::os::fd::BorrowedFd<'static> {
    // SAFETY: the number is not -1, and the kernel checks whether it is open.
    unsafe { std::os::fd::BorrowedFd::borrow_raw(number) }
}

/// A call that may copy a descriptor.
type Copies<'a> = &'a dyn Fn(&OwnedFd);

#[test]
fn a_descriptor_that_may_have_a_copy_is_closed() {
    let _turn = turn();
    let fake = Fake::start();
    let client = fake.attach();
    let listener = listener(&client, 80, BLOCKING);
    let copies: [(&str, Copies<'_>); 5] = [
        ("dup", &|fd| {
            let copy = rustix::io::fcntl_dupfd_cloexec(fd, 0).unwrap();
            let copy = client.note_duplicate(fd.as_fd(), copy).unwrap();
            client.close(copy).unwrap();
        }),
        ("fork", &|_| {
            let child = {
                let _world = fake.world();
                children::in_child(|| true)
            };
            assert_done(child);
        }),
        ("bare fork", &|_| note_bare_fork(false)),
        ("spawn", &|_| note_copies()),
        ("passed on", &|fd| client.share(fd.as_raw_fd())),
    ];
    for (name, copy) in copies {
        let (opened, accepted) = connection(&client, &listener, 80, BLOCKING);
        copy(&accepted);
        send(&client, &accepted, b"whole");
        client.close(accepted).unwrap();
        assert_eq!(receive_all(&client, &opened), b"whole", "{name}");
        assert_eq!(reused(&fake), 0, "{name}");
        client.close(opened).unwrap();
    }
}

#[test]
fn a_number_that_now_leads_elsewhere_is_closed() {
    let _turn = turn();
    let fake = Fake::start();
    let client = fake.attach();
    let listener = listener(&client, 80, BLOCKING);
    let (_opened, mut accepted) = connection(&client, &listener, 80, BLOCKING);
    let (file, other) = UnixDatagram::pair().unwrap();
    // A call that the library does not see.
    rustix::io::dup2(&file, &mut accepted).unwrap();
    drop(file);
    client.close(accepted).unwrap();
    assert_eq!(
        other.send(b"x").unwrap_err().kind(),
        std::io::ErrorKind::ConnectionRefused
    );
    assert_eq!(reused(&fake), 0);
}

/// Whether a thread sleeps on a futex.
fn sleeps(thread: i32) -> bool {
    let call = std::fs::read_to_string(format!("/proc/self/task/{thread}/syscall")).unwrap();
    let number = call.split(' ').next().and_then(|it| it.parse().ok());
    number == Some(libc::SYS_futex)
}

#[test]
fn a_call_that_waits_keeps_the_connection_until_it_returns() {
    let _turn = turn();
    let fake = Fake::start();
    let client = fake.attach();
    let listener = listener(&client, 80, BLOCKING);
    let (opened, accepted) = connection(&client, &listener, 80, BLOCKING);
    let number = accepted.as_raw_fd();
    std::thread::scope(|scope| {
        let client = &client;
        let (begun, has_begun) = std::sync::mpsc::channel();
        let waits = scope.spawn(move || {
            let fd = numbered(number);
            begun.send(rustix::thread::gettid()).unwrap();
            let mut bytes = [0; 10];
            let pieces = &mut [IoSliceMut::new(&mut bytes)];
            client.receive(fd, pieces, ReceiveFlags::default())
        });
        let thread = has_begun.recv().unwrap();
        while !sleeps(thread.as_raw_nonzero().get()) {
            std::thread::yield_now();
        }
        client.close(accepted).unwrap();
        assert_eq!(reused(&fake), 0);
        send(client, &opened, b"it");
        assert_eq!(waits.join().unwrap(), Ok(2));
    });
    // Its last copy is closed.
    assert_eq!(receive(&client, &opened), Ok(vec![]));
}

#[test]
fn the_number_of_a_kept_descriptor_is_closed_for_the_program() {
    let _turn = turn();
    let fake = Fake::start();
    let client = fake.attach();
    let listener = listener(&client, 80, BLOCKING);
    let (_opened, accepted) = connection(&client, &listener, 80, BLOCKING);
    let number = accepted.as_raw_fd();
    client.close(accepted).unwrap();
    let fd = numbered(number);
    assert!(fcntl_getfd(fd).is_ok(), "it is kept");
    assert!(client.is_closed_number(number));
    let pieces = &[IoSlice::new(b"x")];
    assert_eq!(
        client.send(fd, pieces, SendFlags::default()),
        Err(Errno::BADF)
    );
    assert_eq!(client.peer_address(fd), Err(Errno::BADF));
    let copy = rustix::io::fcntl_dupfd_cloexec(fd, 0).unwrap();
    assert_eq!(client.note_duplicate(fd, copy).err(), Some(Errno::BADF));
    let mut polled = [Polled {
        fd: Some(fd),
        events: 1,
        found: 0,
    }];
    assert_eq!(client.poll(&mut polled, None), Ok(1));
    assert_eq!(polled[0].found, rustix::event::PollFlags::NVAL.bits());
    // The program may put another file there: the library lets go of the number.
    assert_eq!(client.let_go_of_number(number), Ok(true));
    assert!(!client.is_closed_number(number));
    let (_opened, accepted) = connection(&client, &listener, 80, BLOCKING);
    assert_ne!(accepted.as_raw_fd(), number);
}

#[test]
fn no_more_descriptors_are_kept_than_the_store_has() {
    const CONNECTIONS: usize = 200;
    let _turn = turn();
    let fake = Fake::start();
    let client = fake.attach();
    let listener = listener(&client, 80, BLOCKING);
    let pairs = (0..CONNECTIONS).map(|_| connection(&client, &listener, 80, BLOCKING));
    let (opened, accepted): (Vec<_>, Vec<_>) = pairs.unzip();
    let numbers: Vec<RawFd> = accepted.iter().map(AsRawFd::as_raw_fd).collect();
    for fd in accepted {
        client.close(fd).unwrap();
    }
    let kept = numbers.iter().filter(|fd| client.is_closed_number(**fd));
    let kept = kept.count();
    assert!((1..=64).contains(&kept), "{kept}");
    for fd in opened {
        assert_eq!(receive(&client, &fd), Ok(vec![]));
    }
    assert_eq!(reused(&fake), kept);
}

/// Another process of the application of `client`: one that has its key.
fn joined(fake: &Fake, client: &Client) -> Client {
    let options = Options {
        application: Some(client.application_key()),
        ..fake.options()
    };
    Client::attach(&options).unwrap()
}

/// A copy of a descriptor, as another process gets it.
fn copied(fd: &OwnedFd) -> OwnedFd {
    let (own, theirs) = UnixDatagram::pair().unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let passed = [fd.as_fd()];
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&passed)));
    let flags = rustix::net::SendFlags::empty();
    sendmsg(&own, &[IoSlice::new(b"x")], &mut ancillary, flags).unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = rustix::net::RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let pieces = &mut [IoSliceMut::new(&mut byte)];
    let flags = rustix::net::RecvFlags::CMSG_CLOEXEC;
    rustix::net::recvmsg(&theirs, pieces, &mut ancillary, flags).unwrap();
    let mut passed = ancillary.drain().filter_map(|message| match message {
        rustix::net::RecvAncillaryMessage::ScmRights(mut passed) => passed.next(),
        _ => None,
    });
    passed.next().unwrap()
}

#[test]
fn a_copy_that_nobody_noted_never_leads_to_a_later_connection() {
    let _turn = turn();
    let fake = Fake::start();
    let client = fake.attach();
    let listener = listener(&client, 80, BLOCKING);
    let (first, accepted) = connection(&client, &listener, 80, BLOCKING);
    let number = accepted.as_raw_fd();
    let copy = copied(&accepted);
    client.close(accepted).unwrap();
    assert_eq!(receive(&client, &first), Ok(vec![]));
    let other = joined(&fake, &client);
    assert_eq!(other.recover(copy.as_fd()), Err(Errno::BADF));
    let (second, accepted) = connection(&client, &listener, 80, BLOCKING);
    assert_eq!(accepted.as_raw_fd(), number);
    assert_eq!(other.recover(copy.as_fd()), Err(Errno::BADF));
    assert!(!other.is_split(copy.as_fd()));
    send(&client, &accepted, b"x");
    assert_eq!(receive(&client, &second), Ok(b"x".to_vec()));
}

#[test]
fn a_reused_descriptor_is_passed_on_like_any_other() {
    let _turn = turn();
    let fake = Fake::start();
    let client = fake.attach();
    let listener = listener(&client, 80, BLOCKING);
    let (_opened, accepted) = connection(&client, &listener, 80, BLOCKING);
    client.close(accepted).unwrap();
    let (opened, accepted) = connection(&client, &listener, 80, BLOCKING);
    client.share(accepted.as_raw_fd());
    let copy = copied(&accepted);
    client.close(accepted).unwrap();
    assert_eq!(reused(&fake), 1);
    let other = joined(&fake, &client);
    assert_eq!(other.recover(copy.as_fd()), Ok(true));
    send(&other, &copy, b"by another");
    assert_eq!(receive(&client, &opened), Ok(b"by another".to_vec()));
    other.close(copy).unwrap();
    assert_eq!(receive(&client, &opened), Ok(vec![]));
}

/// A process may also take a descriptor without this one's help (pidfd_getfd(2)).
#[test]
fn a_descriptor_that_another_process_has_looked_up_is_closed() {
    let _turn = turn();
    let fake = Fake::start();
    let client = fake.attach();
    let listener = listener(&client, 80, BLOCKING);
    let (opened, accepted) = connection(&client, &listener, 80, BLOCKING);
    let copy = copied(&accepted);
    let other = joined(&fake, &client);
    assert_eq!(other.recover(copy.as_fd()), Ok(true));
    client.close(accepted).unwrap();
    assert_eq!(reused(&fake), 0);
    send(&other, &copy, b"still there");
    assert_eq!(receive(&client, &opened), Ok(b"still there".to_vec()));
}

/// A child made by the system call itself, which the parent does not notice: it has the memory and
/// the descriptors, and finds that its connection has ended.
#[test]
fn a_child_that_its_parent_does_not_notice_gets_no_later_connection() {
    let _turn = turn();
    let fake = Fake::start();
    let client = fake.attach();
    let listener = listener(&client, 80, BLOCKING);
    let (_first, accepted) = connection(&client, &listener, 80, BLOCKING);
    let number = accepted.as_raw_fd();
    let (go, goes) = UnixDatagram::pair().unwrap();
    goes.set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let arguments: [libc::c_long; 5] = [libc::SIGCHLD.into(), 0, 0, 0, 0];
    let [a, b, c, d, e] = arguments;
    let world = fake.world();
    // SAFETY: the child has a copy of this stack, and ends in here.
    let child = unsafe { libc::syscall(libc::SYS_clone, a, b, c, d, e) as libc::pid_t };
    if child == 0 {
        children::end_with(|| {
            goes.recv(&mut [0]).unwrap();
            let pieces = &[IoSlice::new(b"to another's peer")];
            let fd = numbered(number);
            let sent = client.send(fd, pieces, SendFlags::default());
            let closed = client.close(copied_number(number));
            sent == Err(Errno::CONNRESET) && closed == Ok(())
        });
    }
    drop(world);
    client.close(accepted).unwrap();
    let (second, accepted) = connection(&client, &listener, 80, BLOCKING);
    assert_eq!(accepted.as_raw_fd(), number);
    go.send(b"x").unwrap();
    assert_done(child);
    send(&client, &accepted, b"only this");
    client.close(accepted).unwrap();
    assert_eq!(receive_all(&client, &second), b"only this");
    assert_eq!(reused(&fake), 2);
}

/// The child's own descriptor of this number.
fn copied_number(number: RawFd) -> OwnedFd {
    // SAFETY: the child owns its copy, and its other owner never runs there.
    unsafe { std::os::fd::FromRawFd::from_raw_fd(number) }
}

#[test]
fn the_descriptors_are_given_up_when_there_are_no_others() {
    let _turn = turn();
    let fake = Fake::start();
    let client = fake.attach();
    let listener = listener(&client, 80, BLOCKING);
    let (_opened, accepted) = connection(&client, &listener, 80, BLOCKING);
    let number = accepted.as_raw_fd();
    client.close(accepted).unwrap();
    assert!(client.is_closed_number(number));
    fake.world().handles_left = 0;
    let mut sockets = Vec::new();
    let errno = loop {
        match client.socket(splitway::Family::V4, BLOCKING) {
            Ok(socket) => sockets.push(socket),
            Err(errno) => break errno,
        }
    };
    assert_eq!(errno, Errno::MFILE);
    assert!(!client.is_closed_number(number));
    fake.world().handles_left = 1;
    assert!(client.socket(splitway::Family::V4, BLOCKING).is_ok());
}

/// A server sets several options of each connection. They have an order with all other calls.
#[test]
fn options_of_an_unshared_connection_are_set_without_an_answer() {
    const LEVEL: i32 = libc::IPPROTO_TCP;
    let _turn = turn();
    let fake = Fake::start();
    let client = fake.attach();
    let listener = listener(&client, 80, BLOCKING);
    let (_opened, accepted) = connection(&client, &listener, 80, BLOCKING);
    let fd = accepted.as_fd();
    let set = |name, value| client.set_option(fd, LEVEL, name, &OptionValue::Number(value));
    let get = |name| client.option(fd, LEVEL, name);
    for (name, value) in [
        (libc::TCP_NODELAY, 1),
        (libc::TCP_KEEPIDLE, 300),
        (libc::TCP_KEEPINTVL, 100),
        (libc::TCP_KEEPCNT, 3),
        (libc::TCP_NODELAY, 0),
        (libc::TCP_KEEPIDLE, 7),
    ] {
        assert_eq!(set(name, value), Ok(()));
        assert_eq!(get(name), Ok(OptionValue::Number(value)));
    }
    assert_eq!(set(libc::TCP_KEEPCNT, 0), Err(Errno::INVAL));
    assert_eq!(set(libc::TCP_KEEPIDLE, 300), Ok(()));
    // Another process finds it.
    client.share(accepted.as_raw_fd());
    let copy = copied(&accepted);
    let other = joined(&fake, &client);
    assert_eq!(other.recover(copy.as_fd()), Ok(true));
    let theirs = other.option(copy.as_fd(), LEVEL, libc::TCP_KEEPIDLE);
    assert_eq!(theirs, Ok(OptionValue::Number(300)));
    assert_eq!(set(libc::TCP_KEEPIDLE, 8), Ok(()));
    let theirs = other.option(copy.as_fd(), LEVEL, libc::TCP_KEEPIDLE);
    assert_eq!(theirs, Ok(OptionValue::Number(8)));
}
