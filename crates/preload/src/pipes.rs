//! Pipes by which the program copies between split sockets with splice(2), and connections that a
//! NIC stack joins in its place.
//!
//! A connection of the [rules](crate::settings) whose bytes the program has sent on, all of them
//! and nothing else, in both directions, is joined with the other one. From then on a NIC stack
//! moves the bytes. The program goes on with its calls, and counts what passes as ever: splice(2)
//! says how many bytes have come, a pipe is said to hold so many, and the other socket takes them.
//!
//! A pipe is known by its inode, which both of its ends have. All state is in atomics, so that a
//! child of a fork inherits it whole.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use capi::client::Client;
use rustix::fs::fstat;
use rustix::io::Errno;

use crate::settings::settings;

/// Places for pipes.
const PIPES: usize = 4096;

/// A pipe is in one of so many places.
const PROBES: usize = 16;

/// Connections are joined when so many bytes have gone both ways: a short exchange is over before.
const COPIED_BYTES_MIN: u64 = 64 << 10;

/// See the [module documentation](self).
#[derive(Debug)]
struct Pipe {
    /// 0: it is free.
    inode: AtomicU64,
    /// The end that is written to.
    end: AtomicI32,
    /// The socket that it was last filled from, and its name there.
    source: AtomicI32,
    source_id: AtomicU64,
    /// Bytes that it is said to hold, and a NIC stack has moved.
    noted: AtomicU64,
}

static TABLE: [Pipe; PIPES] = [const {
    Pipe {
        inode: AtomicU64::new(0),
        end: AtomicI32::new(-1),
        source: AtomicI32::new(-1),
        source_id: AtomicU64::new(0),
        noted: AtomicU64::new(0),
    }
}; PIPES];

/// Whether connections of the program are joined at all.
pub(crate) fn are_watched() -> bool {
    settings().is_some_and(|told| !told.splice.is_empty())
}

fn inode(fd: RawFd) -> Option<u64> {
    // SAFETY: the number is the program's; the kernel says if it is not open.
    let fd = (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })?;
    fstat(fd)
        .ok()
        .map(|found| found.st_ino)
        .filter(|it| *it > 0)
}

fn places(inode: u64) -> impl Iterator<Item = &'static Pipe> {
    let first = (inode.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52) as usize;
    (0..PROBES).map(move |probe| &TABLE[(first + probe) % PIPES])
}

fn find(inode: u64) -> Option<&'static Pipe> {
    places(inode).find(|pipe| pipe.inode.load(Ordering::Acquire) == inode)
}

impl Pipe {
    /// The pipe of this inode is gone.
    fn is_gone(&self, inode: u64) -> bool {
        inode != self::inode(self.end.load(Ordering::Relaxed)).unwrap_or(0)
    }
}

/// The place of a pipe, which gets one if there is any: that of a pipe that is gone, or a free one.
fn find_or_insert(inode: u64, end: RawFd) -> Option<&'static Pipe> {
    if let Some(pipe) = find(inode) {
        pipe.end.store(end, Ordering::Relaxed);
        return Some(pipe);
    }
    for pipe in places(inode) {
        let is = pipe.inode.load(Ordering::Acquire);
        if is != 0 && !pipe.is_gone(is) {
            continue;
        }
        let place = &pipe.inode;
        if place
            .compare_exchange(is, inode, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
        {
            pipe.noted.store(0, Ordering::Relaxed);
            pipe.source.store(-1, Ordering::Relaxed);
            pipe.end.store(end, Ordering::Relaxed);
            return Some(pipe);
        }
    }
    None
}

/// Takes note of what a NIC stack has moved of a socket, so many bytes at most, and says that a
/// pipe holds them now; returns how many. `None` if the socket's bytes are to be copied.
pub(crate) fn take_passed(
    client: &Client,
    from: BorrowedFd<'_>,
    pipe: RawFd,
    bytes_max: usize,
) -> Result<Option<usize>, Errno> {
    let Some(place) = inode(pipe).and_then(|inode| find_or_insert(inode, pipe)) else {
        // There is no place for it: the program counts less, and gets its connections back.
        return match client.take_spliced(from, usize::MAX)? {
            None => Ok(None),
            Some(_) => client.give_back(from).map(|()| Some(0)),
        };
    };
    let taken = client.take_spliced(from, bytes_max)?;
    place
        .noted
        .fetch_add(taken.unwrap_or(0) as u64, Ordering::AcqRel);
    Ok(taken)
}

/// Bytes that a pipe is said to hold go, so many at most; returns how many.
pub(crate) fn take_noted(pipe: RawFd, bytes_max: usize) -> usize {
    let Some(pipe) = inode(pipe).and_then(find) else {
        return 0;
    };
    let mut taken = 0;
    let update = |noted: u64| {
        taken = noted.min(bytes_max as u64);
        (taken > 0).then(|| noted - taken)
    };
    let _ = (pipe.noted).fetch_update(Ordering::AcqRel, Ordering::Acquire, update);
    taken as usize
}

/// Bytes of a socket have gone into a pipe.
pub(crate) fn on_filled(client: &Client, from: BorrowedFd<'_>, pipe: RawFd) {
    let source = from.as_raw_fd();
    if let (Some(inode), Ok(id)) = (inode(pipe), client.socket_name(from))
        && let Some(pipe) = find_or_insert(inode, pipe)
    {
        pipe.source_id.store(id, Ordering::Relaxed);
        pipe.source.store(source, Ordering::Release);
    }
}

/// Bytes of a pipe have gone to a socket: the connection that they come from is joined with it, if
/// it is time.
pub(crate) fn on_emptied(client: &Client, pipe: RawFd, to: BorrowedFd<'_>) {
    let Some(pipe) = inode(pipe).and_then(find) else {
        return;
    };
    let source = pipe.source.load(Ordering::Acquire);
    if source < 0 {
        return;
    }
    // SAFETY: it is not -1; whether it is still the same socket is looked at.
    let from = unsafe { BorrowedFd::borrow_raw(source) };
    let is_same = client.socket_name(from) == Ok(pipe.source_id.load(Ordering::Relaxed));
    let Some(told) = settings().filter(|_| is_same) else {
        return;
    };
    let is_wanted = |addresses: [SocketAddr; 2]| {
        addresses
            .into_iter()
            .any(|address| told.splice.hold(address))
    };
    // It copies on if they are not joined.
    let _ = client.splice_copied(from, to, COPIED_BYTES_MIN, is_wanted);
}
