//! Pipes by which the program copies between split sockets with splice(2), and connections that a
//! NIC stack joins instead.
//!
//! If the program has forwarded all bytes of a connection of the [rules](crate::settings) in both
//! directions, and no others, the connection is joined with the other one. From then on a NIC stack
//! moves the bytes. The program's calls continue and account for the bytes as before: splice(2)
//! from the socket returns the number of bytes moved, the pipe counts them as its content, and the
//! other socket accepts them.
//!
//! A pipe is identified by its inode, which both ends share. All state is in atomics, so that a
//! child of a fork inherits it intact.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use capi::client::Client;
use rustix::fs::fstat;
use rustix::io::Errno;

use crate::settings::settings;

/// Number of places for pipes.
const PIPES: usize = 4096;

/// Number of places in which a pipe may be.
const PROBES: usize = 16;

/// Bytes in each direction after which connections are joined: shorter exchanges end before.
const COPIED_BYTES_MIN: u64 = 64 << 10;

/// See the [module documentation](self).
#[derive(Debug)]
struct Pipe {
    /// Inode of the pipe; 0 if the place is free.
    inode: AtomicU64,
    /// Descriptor of the pipe's write end.
    end: AtomicI32,
    /// Socket that last filled the pipe, and its name.
    source: AtomicI32,
    source_id: AtomicU64,
    /// Bytes that count as the pipe's content, and that a NIC stack has moved.
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

/// Reports whether the program's connections may be joined.
pub(crate) fn are_watched() -> bool {
    settings().is_some_and(|told| !told.splice.is_empty())
}

fn inode(fd: RawFd) -> Option<u64> {
    // SAFETY: the number is the program's and not -1; the kernel reports a closed one.
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
    /// Reports whether the pipe of this inode is gone.
    fn is_gone(&self, inode: u64) -> bool {
        inode != self::inode(self.end.load(Ordering::Relaxed)).unwrap_or(0)
    }
}

/// Returns the place of a pipe, which may be taken from a pipe that is gone; `None` if all are in
/// use.
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

/// Takes up to `bytes_max` bytes that a NIC stack has moved from a socket, and counts them as the
/// pipe's content; returns their number. `None` if the socket's bytes are to be copied.
pub(crate) fn take_passed(
    client: &Client,
    from: BorrowedFd<'_>,
    pipe: RawFd,
    bytes_max: usize,
) -> Result<Option<usize>, Errno> {
    let Some(place) = inode(pipe).and_then(|inode| find_or_insert(inode, pipe)) else {
        // All places are in use: discount all moved bytes, and take the connections back.
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

/// Takes up to `bytes_max` bytes from a pipe's counted content; returns their number.
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

/// Notes that bytes of a socket were copied into a pipe.
pub(crate) fn on_filled(client: &Client, from: BorrowedFd<'_>, pipe: RawFd) {
    let source = from.as_raw_fd();
    if let (Some(inode), Ok(id)) = (inode(pipe), client.socket_name(from))
        && let Some(pipe) = find_or_insert(inode, pipe)
    {
        pipe.source_id.store(id, Ordering::Relaxed);
        pipe.source.store(source, Ordering::Release);
    }
}

/// Notes that bytes of a pipe were sent to a socket, and joins the source connection with it if the
/// conditions are met.
pub(crate) fn on_emptied(client: &Client, pipe: RawFd, to: BorrowedFd<'_>) {
    let Some(pipe) = inode(pipe).and_then(find) else {
        return;
    };
    let source = pipe.source.load(Ordering::Acquire);
    if source < 0 {
        return;
    }
    // SAFETY: the number is not -1; its identity is checked next.
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
    // If they are not joined, the program continues to copy.
    let _ = client.splice_copied(from, to, COPIED_BYTES_MIN, is_wanted);
}
