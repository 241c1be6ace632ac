//! A host stack that writes nonsense, or dies, makes calls fail; none crashes, and none waits for
//! ever.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use socket_channel::{Event, SocketId};
use splitway::client::{
    AttachError, Client, EpollChange, EpollEvent, Options, Polled, ReceiveFlags, SendFlags,
};
use splitway::{Family, How};

use crate::support::{BLOCKING, FILE, Fake, NONBLOCKING, listener, pair, v4};

mod support;

/// Words of the header, of a record, and of its part that the host stack writes.
const HEADER_WORDS: usize = 64;
const RECORD_WORDS: usize = 64;
const HOST_WORDS: usize = 32;

/// Words of a record.
const STATE: usize = 0;
const RX_FIFO: usize = 8;
const TX_FIFO: usize = 9;

/// xorshift64*
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// Numbers of all sizes, and those next to what is there.
    fn word(&mut self, there: u64) -> u64 {
        match self.below(4) {
            0 => self.next(),
            1 => self.next() >> self.below(64),
            2 => there.wrapping_add(self.next() % 64),
            _ => there ^ 1 << self.below(64),
        }
    }
}

fn receive(client: &Client, fd: &OwnedFd) -> rustix::io::Result<usize> {
    let mut bytes = [0; 4096];
    let pieces = &mut [IoSliceMut::new(&mut bytes)];
    client.receive(fd.as_fd(), pieces, ReceiveFlags::default())
}

fn send(client: &Client, fd: &OwnedFd) -> rustix::io::Result<usize> {
    let pieces = &[IoSlice::new(&[7; 1000])];
    client.send(fd.as_fd(), pieces, SendFlags::default())
}

/// One call of some kind that does not wait for the peer; tells whether it succeeds.
fn call(client: &Client, random: &mut Random, fds: &mut Vec<OwnedFd>, set: &OwnedFd) -> bool {
    let fd = &fds[random.below(fds.len())];
    let other = &fds[random.below(fds.len())];
    match random.below(14) {
        0 => receive(client, fd).is_ok(),
        1 => send(client, fd).is_ok(),
        2 => client.shutdown(fd.as_fd(), How::Write).is_ok(),
        3 => client.local_address(fd.as_fd()).is_ok(),
        4 => client.peer_address(fd.as_fd()).is_ok(),
        5 => client.unread_bytes(fd.as_fd()).is_ok(),
        6 => client.unacknowledged_bytes(fd.as_fd()).is_ok(),
        7 => client.file_meta(fd.as_fd()).is_ok(),
        8 => {
            let offset = random.next() >> random.below(64);
            let queued = client.send_file(fd.as_fd(), other.as_fd(), offset, 1000);
            queued.is_ok()
        }
        9 => {
            let (level, name) = (libc::SOL_SOCKET, libc::SO_ERROR);
            client.option(fd.as_fd(), level, name).is_ok()
        }
        10 => {
            let mut polled = [Polled {
                fd: Some(fd.as_fd()),
                events: u16::MAX,
                found: 0,
            }];
            client.poll(&mut polled, Some(Duration::ZERO)).is_ok()
        }
        11 => {
            let mut events = [EpollEvent::default(); 8];
            let found = client.epoll_wait(set.as_fd(), &mut events, Some(Duration::ZERO));
            found.is_ok()
        }
        12 => client.connect(fd.as_fd(), v4(80)).is_ok(),
        _ => {
            let accepted = client.accept(fd.as_fd(), NONBLOCKING);
            let is_taken = accepted.is_ok();
            fds.extend(accepted.ok().map(|(fd, _)| fd).filter(|_| fds.len() < 200));
            is_taken
        }
    }
}

#[test]
fn no_call_crashes_whatever_the_host_stack_writes() {
    let seed = std::env::var("SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()) | 1);
    println!("SEED={seed}");
    let mut random = Random(seed);
    let fake = Fake::start_with(64, 8 << 20);
    let client = fake.attach();
    let set = client.epoll_create(true).unwrap();
    let mut fds = vec![listener(&client, 80, NONBLOCKING)];
    for port in 100..108 {
        let (opened, accepted) = pair(&client, port);
        fds.extend([opened, accepted]);
    }
    fds.push(client.open_file(FILE.as_bytes(), NONBLOCKING).unwrap());
    for (i, fd) in fds.iter().enumerate() {
        rustix::io::ioctl_fionbio(fd, true).unwrap();
        let edge = [0, libc::EPOLLET as u32][i % 2];
        let event = EpollEvent {
            events: 0x2fff & !(libc::EPOLLET as u32) | edge,
            data: i as u64,
        };
        client
            .epoll_change(set.as_fd(), fd.as_fd(), EpollChange::Add(event))
            .unwrap();
    }
    let segment = fake.world().segment().clone();
    let words = segment.words();
    let words_before = words.iter().map(|word| word.load(Ordering::Relaxed));
    let before: Vec<u64> = words_before.collect();
    let mut succeeded = 0;
    for _ in 0..100_000 {
        let record = HEADER_WORDS + random.below(24) * RECORD_WORDS;
        let at = random.below(HOST_WORDS);
        let word = &words[record + at];
        let there = word.load(Ordering::Relaxed);
        // Most of the time a socket keeps its name and its FIFOs, so that calls look further.
        let nonsense = match at {
            STATE => before[record] & !u64::from(u32::MAX) | (random.next() % 2048),
            RX_FIFO | TX_FIFO if random.below(4) > 0 => before[record + at],
            _ => random.word(there),
        };
        word.store(nonsense, Ordering::Relaxed);
        if random.below(64) == 0 {
            let socket = SocketId {
                index: random.next() as u32,
                generation: 1,
            };
            let number = random.next() as u32;
            let events = [
                Event::Ready { socket },
                Event::ScanAll,
                Event::Answer {
                    request: number >> 20,
                    errno: number,
                    socket: Some(socket),
                    value: 1,
                },
            ];
            fake.world().send_to_all(&events[random.below(3)]);
        }
        succeeded += u32::from(call(&client, &mut random, &mut fds, &set));
    }
    assert!(succeeded > 10_000, "{succeeded}");
}

#[test]
fn a_host_stack_that_dies_resets_everything_and_leaves_none_waiting() {
    let mut fake = Fake::start();
    let client = fake.attach();
    let (_opened, accepted) = pair(&client, 80);
    let (watched, _other) = pair(&client, 81);
    let listener = listener(&client, 82, BLOCKING);
    let set = client.epoll_create(true).unwrap();
    let event = EpollEvent {
        events: libc::EPOLLIN as u32,
        data: 5,
    };
    client
        .epoll_change(set.as_fd(), watched.as_fd(), EpollChange::Add(event))
        .unwrap();
    let is_up = AtomicBool::new(true);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| receive(&client, &accepted));
        let acceptor = scope.spawn(|| client.accept(listener.as_fd(), BLOCKING));
        let waiter = scope.spawn(|| {
            let mut events = [EpollEvent::default(); 8];
            let found = client.epoll_wait(set.as_fd(), &mut events, None).unwrap();
            events[..found].to_vec()
        });
        let asker = scope.spawn(|| {
            while is_up.load(Ordering::SeqCst) {
                let _ = client.socket(Family::V4, BLOCKING);
            }
            client.socket(Family::V4, BLOCKING).unwrap_err()
        });
        fake.stop();
        assert_eq!(reader.join().unwrap(), Err(Errno::CONNRESET));
        assert_eq!(acceptor.join().unwrap().unwrap_err(), Errno::CONNRESET);
        let events = waiter.join().unwrap();
        assert_eq!(events.len(), 1);
        let bits = (libc::EPOLLIN | libc::EPOLLERR | libc::EPOLLHUP) as u32;
        assert_eq!((events[0].events & bits, events[0].data), (bits, 5));
        is_up.store(false, Ordering::SeqCst);
        let asked = asker.join().unwrap();
        assert!([Errno::CONNRESET, Errno::PIPE].contains(&asked), "{asked}");
    });
    assert_eq!(send(&client, &watched), Err(Errno::CONNRESET));
    let mut polled = [Polled {
        fd: Some(accepted.as_fd()),
        events: libc::POLLIN as u16,
        found: 0,
    }];
    assert_eq!(client.poll(&mut polled, None), Ok(1));
}

/// Its death changes no record, and so is an edge of its own.
#[test]
fn a_host_stack_that_dies_is_reported_by_edges() {
    let mut fake = Fake::start();
    let client = fake.attach();
    let (watched, _other) = pair(&client, 80);
    let set = client.epoll_create(true).unwrap();
    let event = EpollEvent {
        events: (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLET) as u32,
        data: 5,
    };
    client
        .epoll_change(set.as_fd(), watched.as_fd(), EpollChange::Add(event))
        .unwrap();
    let mut events = [EpollEvent::default(); 8];
    let mut wait = |timeout| client.epoll_wait(set.as_fd(), &mut events, Some(timeout));
    let soon = Duration::from_secs(20);
    assert_eq!(wait(soon), Ok(1), "it is writable");
    assert_eq!(wait(Duration::ZERO), Ok(0));
    fake.stop();
    assert_eq!(wait(soon), Ok(1));
    assert_eq!(wait(Duration::ZERO), Ok(0));
    let hang_up = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
    assert_eq!(events[0].events & hang_up, hang_up);
}

/// A server that goes on for the sake of its other sockets does not spin.
#[test]
fn a_listener_says_once_that_its_host_stack_has_died() {
    let mut fake = Fake::start();
    let client = fake.attach();
    let listener = listener(&client, 80, NONBLOCKING);
    let set = client.epoll_create(true).unwrap();
    let event = EpollEvent {
        events: libc::EPOLLIN as u32,
        data: 5,
    };
    client
        .epoll_change(set.as_fd(), listener.as_fd(), EpollChange::Add(event))
        .unwrap();
    fake.stop();
    let mut events = [EpollEvent::default(); 8];
    let mut polled = [Polled {
        fd: Some(listener.as_fd()),
        events: libc::POLLIN as u16,
        found: 0,
    }];
    for has_said in [false, true] {
        let ready = usize::from(!has_said);
        let timeout = Some(Duration::from_millis(10)).filter(|_| has_said);
        assert_eq!(client.poll(&mut polled, timeout), Ok(ready));
        let found = client.epoll_wait(set.as_fd(), &mut events, timeout);
        assert_eq!(found, Ok(ready));
        let refused = client.accept(listener.as_fd(), NONBLOCKING).unwrap_err();
        assert_eq!(refused, Errno::CONNRESET);
    }
}

#[test]
fn limits_of_the_broker_and_of_the_process_are_reported() {
    let fake = Fake::start_with(16, 4 << 20);
    let client = fake.attach();
    let mut sockets = Vec::new();
    let full = loop {
        match client.socket(Family::V4, BLOCKING) {
            Ok(fd) => sockets.push(fd),
            Err(errno) => break errno,
        }
    };
    assert_eq!((full, sockets.len()), (Errno::NOBUFS, 16));
    for fd in sockets {
        client.close(fd).unwrap();
    }
    while fake.world().sockets() > 0 {
        std::thread::yield_now();
    }
    fake.world().handles_left = 0;
    let mut sockets = Vec::new();
    let full = loop {
        match client.socket(Family::V4, BLOCKING) {
            Ok(fd) => sockets.push(fd),
            Err(errno) => break errno,
        }
        if let Some(fd) = sockets.pop() {
            client.close(fd).unwrap();
        }
        while fake.world().sockets() > 0 {
            std::thread::yield_now();
        }
    };
    assert_eq!(full, Errno::MFILE);
}

#[test]
fn a_broker_that_is_not_there_or_not_ours_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("none.sock");
    let options = Options {
        path: path.clone(),
        ..Options::default()
    };
    let error = Client::attach(&options).unwrap_err();
    assert_eq!(error.errno(), Errno::NOENT);
    assert!(error.to_string().contains("none.sock"), "{error}");
    // One of another kind refuses the connection as such.
    let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let error = Client::attach(&options).unwrap_err();
    assert!(matches!(error, AttachError::Connect { .. }), "{error}");
    assert_eq!(error.errno(), Errno::PROTOTYPE);
}

#[test]
fn all_of_this_holds_in_each_mode() {
    support::rerun_in_each_mode("all_of_this_holds_in_each_mode");
}
