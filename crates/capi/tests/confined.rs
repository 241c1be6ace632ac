//! What sockets do in a process that has prepared itself for a filter of system calls, or may have
//! no more descriptors.

use std::fs;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Mutex;

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, setrlimit};
use splitway::Family;
use splitway::client::{Client, Confinement, DescriptorFlags, Polled, ReceiveFlags, SendFlags};

use crate::support::children::{assert_done, end_after, in_child};
use crate::support::{BLOCKING, Fake, NONBLOCKING, listener, pair, v4};

mod support;

/// Forks are of the whole process, so these tests take turns.
static TURN: Mutex<()> = Mutex::new(());

/// A socket that is known to block, or not to, and a duplicate of it.
fn known(client: &Client, flags: DescriptorFlags) -> [OwnedFd; 2] {
    let socket = client.socket(Family::V4, flags).unwrap();
    let duplicate = socket.try_clone().unwrap();
    let duplicate = client.note_duplicate(socket.as_fd(), duplicate).unwrap();
    client.prepare_for(Confinement::Calls).unwrap();
    [socket, duplicate]
}

#[test]
fn a_change_of_flags_by_a_duplicate_is_one_of_the_socket() {
    let _turn = TURN.lock().unwrap();
    let fake = Fake::start();
    let client = fake.attach();
    let _listener = listener(&client, 80, BLOCKING);
    let connected = |before, after| {
        let [socket, duplicate] = known(&client, before);
        fcntl_setfl(&duplicate, after).unwrap();
        client.forget_flags(duplicate.as_raw_fd());
        client.connect(socket.as_fd(), v4(80))
    };
    let to_nonblocking = connected(BLOCKING, OFlags::NONBLOCK);
    assert_eq!(to_nonblocking, Err(Errno::INPROGRESS));
    assert_eq!(connected(NONBLOCKING, OFlags::empty()), Ok(()));
}

/// More threads than a confined process has eventfds for.
const THREADS: usize = 8;

const PATIENCE_S: u32 = 60;

fn after_filter(client: &Client) {
    client.prepare_for(Confinement::Calls).unwrap();
}

fn without_descriptors(client: &Client) {
    client.modes().unwrap();
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    setrlimit(Resource::Nofile, none).unwrap();
}

/// Whether all threads of a process sleep, and there are at least so many; or it has ended.
fn sleeps(process: libc::pid_t, threads: usize) -> bool {
    let state = |path: String| {
        let stat = fs::read_to_string(path).unwrap_or_default();
        stat.rsplit_once(") ")
            .and_then(|(_, rest)| rest.chars().next())
    };
    let tasks = fs::read_dir(format!("/proc/{process}/task"));
    let tasks = tasks.into_iter().flatten().flatten();
    let states = tasks.map(|task| state(format!("{}/stat", task.path().display())));
    let states: Vec<_> = states.collect();
    let has_ended = state(format!("/proc/{process}/stat")) == Some('Z');
    has_ended || states.len() >= threads && states.iter().all(|it| *it == Some('S'))
}

/// Has threads of a child, which is `confined` first, wait for what there is after all of them
/// sleep: until the host stack goes on, and after `then`.
fn all_wait(
    fake: &Fake,
    client: &Client,
    confined: fn(&Client),
    work: impl Fn(usize) -> bool + Sync,
    then: impl FnOnce(),
) {
    let [(is_ready, ready), (go, goes)] = [(); 2].map(|()| rustix::pipe::pipe().unwrap());
    let world = fake.world();
    let child = in_child(|| {
        end_after(PATIENCE_S);
        confined(client);
        rustix::io::write(&ready, b"x").unwrap();
        rustix::io::read(&go, &mut [0; 1]).unwrap();
        std::thread::scope(|scope| {
            let work = &work;
            let threads = (0..THREADS).map(|place| scope.spawn(move || work(place)));
            let threads: Vec<_> = threads.collect();
            threads
                .into_iter()
                .all(|it| it.join().is_ok_and(|done| done))
        })
    });
    drop(world);
    drop(ready);
    assert_eq!(rustix::io::read(&is_ready, &mut [0; 1]), Ok(1));
    let world = fake.world();
    rustix::io::write(&goes, b"x").unwrap();
    while !sleeps(child, THREADS + 1) {
        std::thread::yield_now();
    }
    drop(world);
    then();
    assert_done(child);
}

fn all_wait_for_an_answer(confined: fn(&Client)) {
    let _turn = TURN.lock().unwrap();
    let fake = Fake::start();
    let client = fake.attach();
    let (_opened, accepted) = pair(&client, 80);
    let asks = |_| {
        let (level, name) = (libc::IPPROTO_TCP, libc::TCP_INFO);
        (0..50).all(|_| client.option(accepted.as_fd(), level, name).is_ok())
    };
    all_wait(&fake, &client, confined, asks, || ());
}

/// Of many connections, waits for a byte of each.
fn all_wait_for_a_byte(confined: fn(&Client), waits: impl Fn(&Client, &OwnedFd) -> bool + Sync) {
    let _turn = TURN.lock().unwrap();
    let fake = Fake::start();
    let client = fake.attach();
    let pairs = [(); THREADS].map(|()| pair(&client, 80));
    let waits = |place: usize| waits(&client, &pairs[place].1);
    all_wait(&fake, &client, confined, waits, || {
        for (opened, _) in &pairs {
            let pieces = &[IoSlice::new(b"x")];
            let sent = client.send(opened.as_fd(), pieces, SendFlags::default());
            assert_eq!(sent, Ok(1));
        }
    });
}

fn polls(client: &Client, fd: &OwnedFd) -> bool {
    let mut polled = [Polled {
        fd: Some(fd.as_fd()),
        events: libc::POLLIN as u16,
        found: 0,
    }];
    client.poll(&mut polled, None) == Ok(1)
}

fn receives(client: &Client, fd: &OwnedFd) -> bool {
    let mut byte = [0];
    let pieces = &mut [IoSliceMut::new(&mut byte)];
    let received = client.receive(fd.as_fd(), pieces, ReceiveFlags::default());
    (received, &byte) == (Ok(1), b"x")
}

#[test]
fn any_number_of_threads_waits_for_an_answer_after_a_filter() {
    all_wait_for_an_answer(after_filter);
}

#[test]
fn any_number_of_threads_polls_after_a_filter() {
    all_wait_for_a_byte(after_filter, polls);
}

#[test]
fn any_number_of_threads_waits_for_an_answer_where_no_descriptor_can_be_made() {
    all_wait_for_an_answer(without_descriptors);
}

#[test]
fn any_number_of_threads_polls_where_no_descriptor_can_be_made() {
    all_wait_for_a_byte(without_descriptors, polls);
}

#[test]
fn a_thread_receives_where_no_descriptor_can_be_made() {
    all_wait_for_a_byte(without_descriptors, receives);
}
