//! Forks that catch another thread of the parent in the middle of something: the child waits for
//! nothing of that.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{Resource, getrlimit, setrlimit};
use splitway::abi::{attach_from_environment, set_default_options};
use splitway::client::Numbers;

use crate::support::children::{self, assert_done, has_done};
use crate::support::{Fake, pair};

mod support;

/// Forks are of the whole process, so these tests take turns.
static TURN: Mutex<()> = Mutex::new(());

/// After this, a child that waits for what never comes is ended.
const PATIENCE_S: u32 = 20;

/// Stops a thread in an allocation, as often as it is asked to.
struct Stopping;

thread_local! {
    /// The next allocation of at least so many bytes stops this thread.
    static STOPS_AT: Cell<usize> = const { Cell::new(usize::MAX) };
}

static HAS_STOPPED: AtomicBool = AtomicBool::new(false);
static GOES_ON: AtomicBool = AtomicBool::new(false);

// SAFETY: it is the system's.
unsafe impl GlobalAlloc for Stopping {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let stops = STOPS_AT.try_with(|at| layout.size() >= at.get());
        if stops == Ok(true) {
            STOPS_AT.set(usize::MAX);
            HAS_STOPPED.store(true, Ordering::SeqCst);
            until(&GOES_ON);
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Stopping = Stopping;

fn until(is_so: &AtomicBool) {
    while !is_so.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
}

/// Runs `work` in a child of this moment, which is ended if it waits for ever.
fn in_child(work: impl FnOnce() -> bool) -> libc::pid_t {
    children::in_child(|| {
        children::end_after(PATIENCE_S);
        work()
    })
}

/// Whether `work` succeeds in a child that is made while another thread makes something of so many
/// bytes.
fn does_while_another_makes(bytes: usize, work: impl Fn() -> bool + Sync) -> bool {
    HAS_STOPPED.store(false, Ordering::SeqCst);
    GOES_ON.store(false, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let maker = scope.spawn(|| {
            STOPS_AT.set(bytes);
            work()
        });
        until(&HAS_STOPPED);
        let is_done = has_done(in_child(&work));
        GOES_ON.store(true, Ordering::SeqCst);
        maker.join().unwrap() && is_done
    })
}

#[test]
fn a_child_attaches_though_another_thread_of_its_parent_was_attaching() {
    let _turn = TURN.lock().unwrap();
    let fake = Fake::start();
    set_default_options(fake.options());
    let attaches = || attach_from_environment().is_ok();
    let world = fake.world();
    std::thread::scope(|scope| {
        let parent = scope.spawn(attaches);
        world.await_process();
        let child = in_child(attaches);
        drop(world);
        assert_done(child);
        assert!(parent.join().unwrap());
    });
}

#[test]
fn a_child_notes_a_number_though_another_thread_of_its_parent_was_making_its_page() {
    const BYTES: usize = 128;
    let _turn = TURN.lock().unwrap();
    let numbers = Numbers::new();
    let notes = || {
        numbers.insert(5000);
        numbers.has(5000)
    };
    assert!(does_while_another_makes(BYTES, notes));
    assert_eq!(numbers.all(), [5000]);
}

#[test]
fn a_child_notes_a_socket_though_another_thread_of_its_parent_was_making_its_page() {
    /// Descriptors of a page, and its bytes.
    const PAGE: libc::c_int = 1024;
    const BYTES: usize = 16 << 10;
    let _turn = TURN.lock().unwrap();
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    let fake = Fake::start();
    let client = fake.attach();
    let (_opened, accepted) = pair(&client, 80);
    // SAFETY: it takes numbers, and what it makes is ours.
    let duplicate = |fd: &OwnedFd| unsafe {
        let new = libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 2 * PAGE);
        assert!(new >= 0, "{}", std::io::Error::last_os_error());
        OwnedFd::from_raw_fd(new)
    };
    let notes = || {
        let noted = client.note_duplicate(accepted.as_fd(), duplicate(&accepted));
        noted.is_ok_and(|fd| client.is_split(fd.as_fd()))
    };
    assert!(does_while_another_makes(BYTES, notes));
}
