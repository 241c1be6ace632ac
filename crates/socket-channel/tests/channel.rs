//! Channels between two threads, over memory files and bells. Waiting is always for something; the
//! timeout only turns a lost wake-up into a failure.
#![forbid(unsafe_code)]

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::thread;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use socket_channel::channel::{
    self, AppEnd, EVENT_RING_BYTES, HostEnd, ReceiveError, create_bell, create_file,
};
use socket_channel::message::PATH_BYTES_MAX;
use socket_channel::{Command, Event, HandleId, SocketId};

const ROUNDS: u32 = 20_000;

fn shared() -> (HostEnd, AppEnd) {
    let file = create_file().unwrap();
    let bells = [create_bell().unwrap(), create_bell().unwrap()];
    let [host_bell, app_bell] = bells.each_ref();
    let copy = |bell: &OwnedFd| bell.try_clone().unwrap();
    let host = HostEnd::from_files(&file, copy(host_bell), copy(app_bell)).unwrap();
    let app = AppEnd::from_files(&file, copy(app_bell), copy(host_bell)).unwrap();
    (host, app)
}

fn sleep_until_woken(bell: Option<BorrowedFd<'_>>) {
    assert!(rings_within(bell, 20), "the wake-up was lost");
}

fn rings_within(bell: Option<BorrowedFd<'_>>, seconds: i64) -> bool {
    let timeout = Timespec {
        tv_sec: seconds,
        tv_nsec: 0,
    };
    let mut descriptors = [PollFd::from_borrowed_fd(bell.unwrap(), PollFlags::IN)];
    poll(&mut descriptors, Some(&timeout)).unwrap() == 1
}

fn socket(index: u32) -> SocketId {
    SocketId {
        index,
        generation: 1,
    }
}

fn answer(request: u32) -> Event {
    Event::Answer {
        request,
        errno: 0,
        socket: Some(socket(request)),
        value: 0,
    }
}

/// Answers each GetInfo until all have come. Sleeps whenever there is nothing to do.
fn serve(mut host: HostEnd) {
    let mut answered = 0;
    while answered < ROUNDS {
        while host.has_room() {
            match host.receive().unwrap() {
                Some(Command::GetInfo { request, .. }) => {
                    host.send(&answer(request)).unwrap();
                    answered += 1;
                }
                Some(other) => panic!("{other:?}"),
                None => break,
            }
        }
        host.flush();
        if answered < ROUNDS && host.prepare_sleep() {
            sleep_until_woken(host.wake_fd());
            host.finish_sleep();
        }
    }
}

#[test]
fn each_request_is_answered_though_both_ends_sleep_and_rings_fill() {
    let (host, mut app) = shared();
    let host = thread::spawn(move || serve(host));
    let (mut asked, mut heard) = (0, 0);
    while heard < ROUNDS {
        while asked < ROUNDS && app.has_room() {
            let command = Command::GetInfo {
                request: asked,
                socket: socket(1),
            };
            app.send(&command).unwrap();
            asked += 1;
        }
        app.flush();
        while let Some(event) = app.receive().unwrap() {
            assert_eq!(event, answer(heard));
            heard += 1;
        }
        if heard < ROUNDS && app.prepare_sleep() {
            sleep_until_woken(app.wake_fd());
            app.finish_sleep();
        }
    }
    host.join().unwrap();
}

#[test]
fn a_bell_that_is_not_drained_stays_up_for_other_sleepers() {
    let (mut host, mut app) = shared();
    assert!(app.prepare_sleep());
    host.send(&Event::ScanAll).unwrap();
    host.flush();
    assert!(rings_within(app.wake_fd(), 20));
    app.disarm();
    assert!(rings_within(app.wake_fd(), 0));
    app.finish_sleep();
    assert!(!rings_within(app.wake_fd(), 0));
    assert_eq!(app.receive(), Ok(Some(Event::ScanAll)));
}

#[test]
fn a_host_without_room_for_events_sleeps_until_there_is_some() {
    let (mut host, mut app) = shared();
    let mut sent = 0;
    while host.has_room() {
        host.send(&Event::Ready { socket: socket(1) }).unwrap();
        sent += 1;
    }
    assert!(sent > EVENT_RING_BYTES / 32);
    let close = Command::Close {
        handle: HandleId(1),
    };
    app.send(&close).unwrap();
    app.flush();
    assert!(host.prepare_sleep(), "a command alone does not wake it");
    while app.receive().unwrap().is_some() {}
    assert!(app.prepare_sleep());
    assert!(rings_within(host.wake_fd(), 20));
    host.finish_sleep();
    assert!(host.has_room());
    assert_eq!(host.receive(), Ok(Some(close)));
}

#[test]
fn the_longest_command_goes_through() {
    let (mut host, mut app) = shared();
    let path = vec![b'x'; PATH_BYTES_MAX];
    let open = Command::OpenFile {
        request: 1,
        handle: HandleId(2),
        path: &path,
    };
    for _ in 0..40 {
        app.send(&open).unwrap();
        app.flush();
        assert_eq!(host.receive(), Ok(Some(open)));
        assert_eq!(host.receive(), Ok(None));
    }
}

/// The word of the file at which a ring of this place has its first message.
fn write_word(file: &OwnedFd, word: usize, value: u64) {
    let at = (word * size_of::<u64>()) as u64;
    rustix::io::pwrite(file, &value.to_ne_bytes(), at).unwrap();
}

#[test]
fn a_message_that_does_not_decode_is_skipped_and_a_corrupt_ring_is_an_error() {
    let file = create_file().unwrap();
    let (own, peer) = (create_bell().unwrap(), create_bell().unwrap());
    let mut host = HostEnd::from_files(&file, own, peer).unwrap();
    // A message of eight bytes that is none, as `shm::ring` lays it out: then the tail.
    write_word(&file, 32, 8);
    write_word(&file, 33, u64::from_le_bytes([99, 0, 0, 0, 0, 0, 0, 0]));
    write_word(&file, 0, 2);
    assert_eq!(host.receive(), Err(ReceiveError::Malformed));
    assert_eq!(host.receive(), Ok(None));
    write_word(&file, 0, 1);
    assert_eq!(host.receive(), Err(ReceiveError::Corrupt));
}

#[test]
fn a_file_that_is_no_channel_is_refused() {
    let file = shm::memory::create_file(c"short", 8).unwrap();
    let (own, peer) = (create_bell().unwrap(), create_bell().unwrap());
    let error = HostEnd::from_files(&file, own, peer).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
}

#[test]
fn in_memory_ends_have_no_bells() {
    let (host, app) = channel::in_memory();
    assert!(host.wake_fd().is_none() && app.wake_fd().is_none());
}

#[test]
fn an_application_can_watch_its_bell_by_its_edges_and_do_nothing_else_with_it() {
    let (bell, watch) = channel::create_app_bell().unwrap();
    let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(&set, &watch, epoll::EventData::new_u64(1), edge).unwrap();
    let rings = || {
        let mut events = Vec::with_capacity(4);
        let buffer = rustix::buffer::spare_capacity(&mut events);
        epoll::wait(&set, buffer, Some(&Timespec::default())).unwrap()
    };
    assert_eq!(rings(), 0);
    for _ in 0..3 {
        rustix::io::write(&bell, &1u64.to_ne_bytes()).unwrap();
        assert_eq!((rings(), rings()), (1, 0));
    }
    rustix::fs::fcntl_setfl(&watch, rustix::fs::OFlags::empty()).unwrap();
    assert!(rustix::io::write(&watch, &u64::MAX.to_ne_bytes()).is_err());
    assert!(rustix::io::read(&watch, &mut [0; 8]).is_err());
    let flags = rustix::fs::fcntl_getfl(&bell).unwrap();
    assert!(flags.contains(rustix::fs::OFlags::NONBLOCK));
}
