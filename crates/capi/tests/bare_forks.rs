//! A child that is made without handlers, while another thread of its parent forks with them.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use splitway::client::{ReceiveFlags, SendFlags};

use crate::support::children::{self, assert_done};
use crate::support::{Fake, pair};

mod support;

/// A child made by the system call itself, which runs `work`.
fn bare_child(work: impl FnOnce() -> bool) -> libc::pid_t {
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

/// The next fork waits, behind the library's handler, until the flag is cleared.
static FORK_WAITS: AtomicBool = AtomicBool::new(false);
static FORK_HAS_BEGUN: AtomicBool = AtomicBool::new(false);

extern "C" fn wait_before_fork() {
    while FORK_WAITS.load(Ordering::SeqCst) {
        FORK_HAS_BEGUN.store(true, Ordering::SeqCst);
        std::thread::yield_now();
    }
}

#[test]
fn a_child_of_the_bare_system_call_does_not_wait_for_a_thread_that_forks() {
    // SAFETY: the function lives as long as the program. Handlers run in the reverse order of
    // their registration: those of the library come first.
    let status = unsafe { libc::pthread_atfork(Some(wait_before_fork), None, None) };
    assert_eq!(status, 0);
    let fake = Fake::start();
    let client = fake.attach();
    let (opened, accepted) = pair(&client, 80);
    FORK_HAS_BEGUN.store(false, Ordering::SeqCst);
    FORK_WAITS.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let forks = scope.spawn(|| children::in_child(|| true));
        while !FORK_HAS_BEGUN.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        let world = fake.world();
        let child = bare_child(|| {
            children::end_after(20);
            let pieces = &[IoSlice::new(b"x")];
            client.send(accepted.as_fd(), pieces, SendFlags::default()) == Ok(1)
        });
        drop(world);
        let is_done = children::has_done(child);
        FORK_WAITS.store(false, Ordering::SeqCst);
        assert_done(forks.join().unwrap());
        assert!(is_done, "it waits");
    });
    let mut byte = [0];
    let pieces = &mut [IoSliceMut::new(&mut byte)];
    let received = client.receive(opened.as_fd(), pieces, ReceiveFlags::default());
    assert_eq!((received, byte), (Ok(1), *b"x"));
}
