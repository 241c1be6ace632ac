//! Children of a fork go on with the sockets that they inherit, and signals do to calls what they
//! do to those of the kernel.

use std::io::{IoSlice, IoSliceMut};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::thread::JoinHandleExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use splitway::Family;
use splitway::client::{
    Client, Completion, EpollChange, EpollEvent, Modes, OptionValue, ReceiveFlags, SendFlags,
    process_generation,
};

use crate::support::children::{self, assert_done};
use crate::support::{
    BLOCKING, FILE, Fake, NONBLOCKING, connected, listener, pair, pattern, receive_all, v4,
};

mod support;

/// Forks and signals are of the whole process, so these tests take turns.
static TURN: Mutex<()> = Mutex::new(());

fn receive(client: &Client, fd: &OwnedFd, len: usize) -> rustix::io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let pieces = &mut [IoSliceMut::new(&mut bytes)];
    let received = client.receive(fd.as_fd(), pieces, ReceiveFlags::default())?;
    bytes.truncate(received);
    Ok(bytes)
}

fn send(client: &Client, fd: &OwnedFd, bytes: &[u8]) {
    let pieces = &[IoSlice::new(bytes)];
    let sent = client.send(fd.as_fd(), pieces, SendFlags::default());
    assert_eq!(sent, Ok(bytes.len()));
}

/// Runs `work` in a child; its panic or its `false` is a failure.
fn in_child(fake: &Fake, work: impl FnOnce() -> bool) -> libc::pid_t {
    // The host stack is in this process, and must not be passing descriptors on just now: the child
    // would have copies, which keep the handles of others from hanging up.
    let _world = fake.world();
    children::in_child(work)
}

#[test]
fn a_child_goes_on_with_a_connection() {
    let _turn = TURN.lock().unwrap();
    let fake = Fake::start();
    let client = fake.attach();
    let (opened, accepted) = pair(&client, 80);
    let bytes = pattern(5, 300_000);
    let child = in_child(&fake, || {
        send(&client, &accepted, &bytes);
        true
    });
    // The parent goes on meanwhile, and its copy is not what keeps the connection open.
    client.close(accepted).unwrap();
    assert_eq!(receive_all(&client, &opened), bytes);
    assert_done(child);
}

/// A child made by the system call itself, which runs `work`.
fn in_bare_child(work: impl FnOnce() -> bool) -> libc::pid_t {
    let arguments: [libc::c_long; 5] = [libc::SIGCHLD.into(), 0, 0, 0, 0];
    let [a, b, c, d, e] = arguments;
    // SAFETY: the child has a copy of this stack, and ends in here.
    unsafe {
        let child = libc::syscall(libc::SYS_clone, a, b, c, d, e) as libc::pid_t;
        if child == 0 {
            children::end_with(work);
        }
        assert!(child > 0);
        child
    }
}

#[test]
fn a_child_of_the_bare_system_call_goes_on_with_a_connection_and_so_does_its_parent() {
    let _turn = TURN.lock().unwrap();
    let fake = Fake::start();
    let client = fake.attach();
    let (opened, accepted) = pair(&client, 80);
    let world = fake.world();
    let own = process_generation();
    let child = in_bare_child(|| {
        send(&client, &accepted, b"from the child");
        let grandchild = in_bare_child(|| {
            send(&client, &accepted, b", and its own");
            process_generation() > own + 1
        });
        assert_done(grandchild);
        process_generation() > own
    });
    drop(world);
    assert_done(child);
    assert_eq!(process_generation(), own);
    send(&client, &accepted, b", from the parent");
    client.close(accepted).unwrap();
    let received = receive_all(&client, &opened);
    assert_eq!(received, b"from the child, and its own, from the parent");
}

/// The kernel copies descriptors before memory: meanwhile, another thread may have closed a socket,
/// or opened one.
#[test]
fn a_child_looks_whether_it_has_the_sockets_that_its_memory_names() {
    let _turn = TURN.lock().unwrap();
    let fake = Fake::start();
    let client = fake.attach();
    let (opened, accepted) = pair(&client, 80);
    let (other, other_accepted) = pair(&client, 81);
    let child = in_child(&fake, || {
        // As it is when it was opened after descriptors were copied.
        let gone = accepted.as_raw_fd();
        rustix::io::dup2(rustix::stdio::stderr(), &mut borrowed(gone)).unwrap();
        assert!(!client.is_split(accepted.as_fd()));
        // And as it is when its number was another socket's.
        rustix::io::dup2(&other, &mut borrowed(other_accepted.as_raw_fd())).unwrap();
        assert!(client.is_split(other_accepted.as_fd()));
        send(&client, &other_accepted, b"x");
        true
    });
    assert_done(child);
    send(&client, &accepted, b"first");
    assert_eq!(receive(&client, &opened, 10).unwrap(), b"first");
    assert_eq!(receive(&client, &other_accepted, 10).unwrap(), b"x");
}

/// A number to put another descriptor at: it is not closed by this.
fn borrowed(fd: RawFd) -> ManuallyDrop<OwnedFd> {
    // SAFETY: it is open, and its owner is another.
    ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[test]
fn each_process_gets_the_completions_of_its_own_sends() {
    let _turn = TURN.lock().unwrap();
    let fake = Fake::start();
    let client = fake.attach();
    let (opened, accepted) = pair(&client, 80);
    let send = |cookie| {
        let (fd, pieces) = (accepted.as_fd(), &[IoSlice::new(b"abc")]);
        client.send_zero_copy(fd, pieces, SendFlags::default(), cookie)
    };
    let take = || {
        let none = Completion {
            cookie: 0,
            outcome: Err(Errno::AGAIN),
        };
        let mut found = [none; 4];
        let count = client.completions(accepted.as_fd(), &mut found, None);
        let found = found.into_iter().take(count.unwrap());
        found.map(|it| (it.cookie, it.outcome)).collect::<Vec<_>>()
    };
    assert_eq!(send(1), Ok(3));
    let child = in_child(&fake, || {
        take().is_empty() && send(2) == Ok(3) && take() == [(2, Ok(()))] && take().is_empty()
    });
    assert_done(child);
    assert_eq!(take(), [(1, Ok(()))]);
    assert_eq!(take(), []);
    assert_eq!(receive(&client, &opened, 10).unwrap(), b"abcabc");
}

#[test]
fn a_child_has_a_copy_of_its_parents_sets() {
    const IN: u32 = libc::EPOLLIN as u32;
    let _turn = TURN.lock().unwrap();
    let fake = Fake::start();
    let client = fake.attach();
    let (opened, accepted) = pair(&client, 80);
    let (inner, outer) = (client.epoll_create(true), client.epoll_create(true));
    let (inner, outer) = (inner.unwrap(), outer.unwrap());
    let (reads, writes) = rustix::pipe::pipe().unwrap();
    let add = |set: &OwnedFd, fd: &OwnedFd, data| {
        let change = EpollChange::Add(EpollEvent { events: IN, data });
        client.epoll_change(set.as_fd(), fd.as_fd(), change)
    };
    add(&inner, &accepted, 1).unwrap();
    add(&inner, &reads, 2).unwrap();
    add(&outer, &inner, 3).unwrap();
    let ready = |set: &OwnedFd, timeout| {
        let mut events = [EpollEvent::default(); 4];
        let count = client.epoll_wait(set.as_fd(), &mut events, timeout);
        let found = &events[..count.unwrap()];
        found.iter().map(|it| it.data).collect::<Vec<_>>()
    };
    let now = Some(Duration::ZERO);
    let child = in_child(&fake, || {
        assert_eq!(ready(&outer, None), [3]);
        assert_eq!(ready(&inner, now), [1]);
        assert_eq!(receive(&client, &accepted, 10).unwrap(), b"abc");
        assert!(ready(&inner, now).is_empty());
        // Members of the kernel's set, and what is changed here.
        rustix::io::write(&writes, b"x").unwrap();
        assert_eq!(ready(&outer, None), [3]);
        assert_eq!(ready(&inner, now), [2]);
        assert_eq!(add(&inner, &accepted, 4), Err(Errno::EXIST));
        for fd in [accepted.as_fd(), reads.as_fd()] {
            let gone = client.epoll_change(inner.as_fd(), fd, EpollChange::Delete);
            gone.unwrap();
        }
        ready(&outer, now).is_empty()
    });
    send(&client, &opened, b"abc");
    assert_done(child);
    // Those of the parent are as they were, and are woken as before.
    assert_eq!(ready(&outer, now), [3]);
    assert_eq!(ready(&inner, now), [2]);
    rustix::io::read(&reads, &mut [0; 1]).unwrap();
    assert!(ready(&outer, now).is_empty());
    std::thread::scope(|scope| {
        let sleeps = scope.spawn(|| ready(&outer, None));
        send(&client, &opened, b"d");
        assert_eq!(sleeps.join().unwrap(), [3]);
    });
    assert_eq!(ready(&inner, now), [1]);
}

#[test]
fn a_number_that_a_child_has_closed_is_no_set_of_its_parents_any_more() {
    let _turn = TURN.lock().unwrap();
    let fake = Fake::start();
    let client = fake.attach();
    let (_opened, accepted) = pair(&client, 80);
    let set = client.epoll_create(true).unwrap();
    let event = EpollEvent {
        events: libc::EPOLLIN as u32,
        data: 1,
    };
    let added = client.epoll_change(set.as_fd(), accepted.as_fd(), EpollChange::Add(event));
    added.unwrap();
    let number = std::os::fd::AsRawFd::as_raw_fd(&set);
    let set = ManuallyDrop::new(set);
    let child = in_child(&fake, || {
        assert!(client.is_epoll_number(number));
        client.close(ManuallyDrop::into_inner(set)).unwrap();
        assert!(!client.is_epoll_number(number));
        // Another set, of the kernel's alone, has the number now.
        let others = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::empty());
        let others = others.unwrap();
        // SAFETY: both are open, or may be: no other thread is in the child.
        unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&others), number) };
        // A call that attaches.
        client.modes().unwrap();
        !client.is_epoll_number(number)
    });
    assert_done(child);
}

#[test]
fn workers_share_a_listener_and_serve_each_its_connections() {
    const WORKERS: usize = 3;
    const CONNECTIONS: usize = 60;
    let _turn = TURN.lock().unwrap();
    let fake = Fake::start();
    let client = fake.attach();
    let listener = listener(&client, 80, BLOCKING);
    let workers: Vec<_> = (0..WORKERS)
        .map(|_| {
            in_child(&fake, || {
                // Each echoes what comes, and ends when that says so.
                loop {
                    let (fd, _) = client.accept(listener.as_fd(), BLOCKING).unwrap();
                    let bytes = receive(&client, &fd, 100).unwrap();
                    if bytes == b"end" {
                        return true;
                    }
                    send(&client, &fd, &bytes);
                    client.close(fd).unwrap();
                }
            })
        })
        .collect();
    for i in 0..CONNECTIONS {
        let fd = client.socket(Family::V4, BLOCKING).unwrap();
        client.connect(fd.as_fd(), v4(80)).unwrap();
        let bytes = pattern(i as u64, 50);
        send(&client, &fd, &bytes);
        assert_eq!(receive_all(&client, &fd), bytes);
        client.close(fd).unwrap();
    }
    for _ in &workers {
        let fd = client.socket(Family::V4, BLOCKING).unwrap();
        client.connect(fd.as_fd(), v4(80)).unwrap();
        send(&client, &fd, b"end");
        receive_all(&client, &fd);
        client.close(fd).unwrap();
    }
    // Which worker took which end is not known, so all are waited for at the end.
    for _ in 0..WORKERS {
        let mut status = 0;
        // SAFETY: `status` is valid.
        let waited = unsafe { libc::waitpid(-1, &raw mut status, 0) };
        assert!(waited > 0);
        assert_eq!(status, 0);
    }
}

#[test]
fn a_worker_waits_for_an_inherited_listener_in_a_set_of_its_own() {
    let _turn = TURN.lock().unwrap();
    let fake = Fake::start();
    let client = fake.attach();
    let listener = listener(&client, 80, BLOCKING);
    let child = in_child(&fake, || {
        let set = client.epoll_create(true).unwrap();
        let event = EpollEvent {
            events: libc::EPOLLIN as u32,
            data: 1,
        };
        let change = EpollChange::Add(event);
        client
            .epoll_change(set.as_fd(), listener.as_fd(), change)
            .unwrap();
        let mut events = [EpollEvent::default(); 4];
        let found = client.epoll_wait(set.as_fd(), &mut events, None).unwrap();
        let (fd, _) = client.accept(listener.as_fd(), BLOCKING).unwrap();
        send(&client, &fd, b"from the child");
        found == 1
    });
    let fd = client.socket(Family::V4, BLOCKING).unwrap();
    client.connect(fd.as_fd(), v4(80)).unwrap();
    assert_eq!(receive_all(&client, &fd), b"from the child");
    assert_done(child);
}

#[test]
fn a_child_that_dies_ends_its_connections_and_no_others() {
    let _turn = TURN.lock().unwrap();
    let fake = Fake::start();
    let client = fake.attach();
    let listener = listener(&client, 80, BLOCKING);
    let child = in_child(&fake, || {
        let (fd, _) = client.accept(listener.as_fd(), BLOCKING).unwrap();
        send(&client, &fd, b"going");
        // SAFETY: it ends this process without a word to the host stack.
        unsafe { libc::raise(libc::SIGKILL) };
        false
    });
    let fd = client.socket(Family::V4, BLOCKING).unwrap();
    client.connect(fd.as_fd(), v4(80)).unwrap();
    assert_eq!(receive_all(&client, &fd), b"going");
    let mut status = 0;
    // SAFETY: `status` is valid, and the child is ours.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert!(libc::WIFSIGNALED(status));
    let other = client.socket(Family::V4, BLOCKING).unwrap();
    client.connect(other.as_fd(), v4(80)).unwrap();
    let (accepted, _) = client.accept(listener.as_fd(), BLOCKING).unwrap();
    send(&client, &other, b"on");
    assert_eq!(receive(&client, &accepted, 10).unwrap(), b"on");
}

/// More sockets than a process has descriptors in store, which are closed again.
fn open_many(client: &Client) {
    let open = |_| client.socket(Family::V4, BLOCKING).unwrap();
    let sockets: Vec<OwnedFd> = (0..100).map(open).collect();
    for socket in sockets {
        client.close(socket).unwrap();
    }
}

#[test]
fn children_of_a_dead_broker_find_the_next_one_by_its_path() {
    let _turn = TURN.lock().unwrap();
    let fake = Fake::start();
    let client = fake.attach();
    let (opened, accepted) = pair(&client, 80);
    let serve_in_child = || {
        let child = in_child(&fake, || {
            send(&client, &accepted, b"child");
            open_many(&client);
            true
        });
        assert_eq!(receive(&client, &opened, 5).unwrap(), b"child");
        assert_done(child);
        let world = fake.world();
        (world.joined, world.reattached)
    };
    fake.world().kill_broker();
    assert_eq!(serve_in_child(), (1, 0), "the parent has not noticed yet");
    open_many(&client);
    assert_eq!(serve_in_child(), (1, 1), "over the parent's new connection");
    fake.world().kill_broker();
    assert_eq!(serve_in_child(), (2, 1));
    // Without the path there is no way.
    fake.world().kill_broker();
    std::fs::remove_file(fake.path()).unwrap();
    let child = in_child(&fake, || {
        receive(&client, &accepted, 1) == Err(Errno::CONNRESET)
    });
    assert_done(child);
    send(&client, &opened, b"on");
    assert_eq!(receive(&client, &accepted, 10).unwrap(), b"on");
}

#[test]
fn a_process_that_forks_for_each_connection_throws_few_descriptors_away() {
    const FORKS: u32 = 20;
    let _turn = TURN.lock().unwrap();
    let fake = Fake::start();
    let client = fake.attach();
    open_many(&client);
    let before = fake.world().handles_left;
    for _ in 0..FORKS {
        assert_done(in_child(&fake, || true));
        client.socket(Family::V4, BLOCKING).unwrap();
    }
    let asked_for = before - fake.world().handles_left;
    assert_eq!(asked_for, FORKS * 8, "a small batch for each");
}

#[test]
fn a_child_that_drops_what_it_inherits_leaves_its_parent_alone() {
    let _turn = TURN.lock().unwrap();
    let fake = Fake::start();
    let mut client = ManuallyDrop::new(fake.attach());
    let (opened, accepted) = pair(&client, 80);
    // A call that blocks starts the library's thread.
    let timeout = OptionValue::Timeout(Some(Duration::from_millis(1)));
    let (level, name) = (libc::SOL_SOCKET, libc::SO_RCVTIMEO);
    let set = |timeout| {
        client
            .set_option(accepted.as_fd(), level, name, timeout)
            .unwrap();
    };
    set(&timeout);
    assert_eq!(receive(&client, &accepted, 1), Err(Errno::AGAIN));
    set(&OptionValue::Timeout(None));
    let child = in_child(&fake, || {
        // SAFETY: the child does not use it again.
        unsafe { ManuallyDrop::drop(&mut client) };
        true
    });
    assert_done(child);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| receive(&client, &accepted, 10).unwrap());
        send(&client, &opened, b"alive");
        assert_eq!(reader.join().unwrap(), b"alive");
    });
    drop(ManuallyDrop::into_inner(client));
}

#[test]
fn bytes_go_without_any_system_call_but_the_bell() {
    let _turn = TURN.lock().unwrap();
    let fake = Fake::start();
    let client = fake.attach_with(Modes::default());
    let child = in_child(&fake, || {
        // No call blocks, so the library has no thread that would outlive this one.
        let listener = listener(&client, 80, NONBLOCKING);
        let opened = connected(&client, 80);
        let accepted = loop {
            match client.accept(listener.as_fd(), NONBLOCKING) {
                Ok((accepted, _)) => break accepted,
                Err(errno) => assert_eq!(errno, Errno::AGAIN),
            }
        };
        let file = client.open_file(FILE.as_bytes(), BLOCKING).unwrap();
        send(&client, &accepted, b"first");
        send(&client, &opened, b"more");
        while client.unread_bytes(accepted.as_fd()) != Ok(4) {
            std::thread::yield_now();
        }
        assert_eq!(std::fs::read_dir("/proc/self/task").unwrap().count(), 1);
        let mut bytes = [0; 10];
        // SAFETY: from here on the kernel kills this thread for any call but read, write and exit
        // (seccomp(2), strict mode); its exit is one.
        unsafe {
            let strict = libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT);
            let pieces = &mut [IoSliceMut::new(&mut bytes)];
            let received = client.receive(accepted.as_fd(), pieces, ReceiveFlags::default());
            let pieces = &[IoSlice::new(b"answer")];
            let sent = client.send(accepted.as_fd(), pieces, SendFlags::default());
            let queued = client.send_file(accepted.as_fd(), file.as_fd(), 0, 1000);
            let is_right = (strict, received, sent, queued) == (0, Ok(4), Ok(6), Ok(1000));
            libc::syscall(libc::SYS_exit, libc::c_long::from(!is_right));
        }
        unreachable!("the thread has ended")
    });
    assert_done(child);
}

static HANDLED: AtomicU32 = AtomicU32::new(0);

extern "C" fn handle(_signal: libc::c_int) {
    HANDLED.fetch_add(1, Ordering::SeqCst);
}

fn set_handler(flags: libc::c_int) {
    // SAFETY: zeroes are a valid action, and the handler touches an atomic only.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handle as extern "C" fn(libc::c_int) as usize;
        action.sa_flags = flags;
        assert_eq!(
            libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()),
            0
        );
    }
}

/// Sends the signal to a thread again and again until it is over.
fn interrupt_until<T>(thread: &std::thread::JoinHandle<T>, is_over: impl Fn() -> bool) {
    while !is_over() {
        // SAFETY: the thread was not joined.
        unsafe { libc::pthread_kill(thread.as_pthread_t(), libc::SIGUSR1) };
        std::thread::yield_now();
    }
}

/// A thread that blocks in receive; the client lives as long as the process.
fn receiver(
    client: &'static Client,
    fd: OwnedFd,
) -> std::thread::JoinHandle<rustix::io::Result<Vec<u8>>> {
    std::thread::spawn(move || receive(client, &fd, 10))
}

#[test]
fn a_signal_interrupts_a_call_unless_its_handler_restarts_it() {
    let _turn = TURN.lock().unwrap();
    let fake = Fake::start();
    let client: &'static Client = Box::leak(Box::new(fake.attach()));
    set_handler(0);
    let (_opened, accepted) = pair(client, 80);
    let thread = receiver(client, accepted);
    interrupt_until(&thread, || thread.is_finished());
    assert_eq!(thread.join().unwrap(), Err(Errno::INTR));

    set_handler(libc::SA_RESTART);
    let (opened, accepted) = pair(client, 81);
    let thread = receiver(client, accepted);
    let before = HANDLED.load(Ordering::SeqCst);
    interrupt_until(&thread, || HANDLED.load(Ordering::SeqCst) > before + 100);
    assert!(!thread.is_finished());
    send(client, &opened, b"kept on");
    assert_eq!(thread.join().unwrap().unwrap(), b"kept on");

    // With a timeout, no handler restarts it.
    let (_opened, accepted) = pair(client, 82);
    let timeout = OptionValue::Timeout(Some(Duration::from_secs(3600)));
    let (level, name) = (libc::SOL_SOCKET, libc::SO_RCVTIMEO);
    client
        .set_option(accepted.as_fd(), level, name, &timeout)
        .unwrap();
    let thread = receiver(client, accepted);
    interrupt_until(&thread, || thread.is_finished());
    assert_eq!(thread.join().unwrap(), Err(Errno::INTR));
}

#[test]
fn all_of_this_holds_in_each_mode() {
    support::rerun_in_each_mode("all_of_this_holds_in_each_mode");
}
