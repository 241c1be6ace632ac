//! A pair of Unix sockets: one end is the program's socket, the other the supervisor's.
//!
//! The supervisor's operations on its end determine the state of the program's end:
//!
//! | State of the split socket | The program's end | By |
//! |---|---|---|
//! | bound, listening, connecting | is not writable | it is full of bytes, which are no one's |
//! | a connection waits to be accepted | is readable | a byte for it, a *token* |
//! | connected | is writable | the bytes are taken out |
//! | refused, reset | has an error, and hangs up | the other end is closed with bytes unread |

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::{Errno, Result};
use rustix::net::sockopt::{set_socket_oobinline, set_socket_send_buffer_size};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};

/// Bytes that are put into an end at a time.
const CHUNK_BYTES: usize = 16 << 10;

/// `SO_SNDBUF` of both ends, which the kernel doubles: Linux's default, regardless of the machine's
/// setting, since each socket is filled with that much once.
const SEND_BUFFER_BYTES: usize = 104 << 10;

/// No call waits, and none raises a signal.
pub(crate) const AT_ONCE: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) own: OwnedFd,
    pub(crate) programs: OwnedFd,
    /// Identifies the program's end.
    pub(crate) inode: u64,
    /// Bytes that the program's end is full of.
    pub(crate) filling: usize,
}

impl Pair {
    /// Returns a pair whose ends are empty.
    pub(crate) fn new(nonblocking: bool) -> Result<Pair> {
        let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
        let (own, programs) = socketpair(family, kind, SocketFlags::CLOEXEC, None)?;
        rustix::fs::fcntl_setfl(&own, OFlags::RDWR | OFlags::NONBLOCK)?;
        for end in [&own, &programs] {
            set_socket_send_buffer_size(end, SEND_BUFFER_BYTES)?;
        }
        // Urgent data has its place among the other, as on split sockets.
        set_socket_oobinline(&own, true)?;
        if nonblocking {
            rustix::fs::fcntl_setfl(&programs, OFlags::RDWR | OFlags::NONBLOCK)?;
        }
        let inode = rustix::fs::fstat(&programs)?.st_ino;
        Ok(Pair {
            own,
            programs,
            inode,
            filling: 0,
        })
    }

    /// Returns a pair whose program's end is full.
    pub(crate) fn full(nonblocking: bool) -> Result<Pair> {
        let mut pair = Pair::new(nonblocking)?;
        loop {
            match send(&pair.programs, &[0; CHUNK_BYTES], AT_ONCE) {
                Ok(sent) => pair.filling += sent,
                Err(Errno::AGAIN) => return Ok(pair),
                Err(errno) => return Err(errno),
            }
        }
    }
}

/// Takes out the bytes that filled the other end, which becomes writable. Bytes that the program
/// writes meanwhile come behind them.
pub(crate) fn empty(own: BorrowedFd<'_>, mut filling: usize, scratch: &mut [u8]) -> Result<()> {
    while filling > 0 {
        let len = filling.min(scratch.len());
        let (_, received) = recv(own, &mut scratch[..len], RecvFlags::DONTWAIT)?;
        if received == 0 {
            return Err(Errno::PIPE);
        }
        filling -= received;
    }
    Ok(())
}

/// Makes the other end readable: a connection waits to be accepted. False if there is no room for
/// the token: the end is readable already.
pub(crate) fn put_token(own: BorrowedFd<'_>) -> bool {
    send(own, b"c", AT_ONCE) == Ok(1)
}

/// Takes tokens back, at the program's end.
pub(crate) fn take_tokens(programs: BorrowedFd<'_>, count: usize) {
    let mut tokens = vec![0; count];
    let _ = recv(programs, &mut tokens[..], RecvFlags::DONTWAIT);
}

/// True if the program has closed its end, or ended both directions.
pub(crate) fn has_hung_up(own: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(own, PollFlags::empty())];
    let polled = poll(&mut fds, Some(&Timespec::default()));
    polled == Ok(1) && fds[0].revents().contains(PollFlags::HUP)
}

/// Makes the program's end report ECONNRESET once `own` is closed, which happens later: the kernel
/// reports that error if the closed end has unread bytes.
pub(crate) fn prepare_reset(own: BorrowedFd<'_>, programs: impl FnOnce() -> Option<OwnedFd>) {
    let has_unread = rustix::io::ioctl_fionread(own).is_ok_and(|unread| unread > 0);
    if has_unread || has_hung_up(own) {
        return;
    }
    if let Some(programs) = programs() {
        // Where it was shut down for writing, the program reads the end of the stream instead.
        let _ = send(programs.as_fd(), b"r", AT_ONCE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(fd: &OwnedFd) -> PollFlags {
        let all = PollFlags::IN | PollFlags::OUT | PollFlags::RDHUP;
        let mut fds = [PollFd::new(fd, all)];
        poll(&mut fds, Some(&Timespec::default())).unwrap();
        fds[0].revents()
    }

    #[test]
    fn an_end_that_is_full_becomes_writable_and_its_bytes_stay_in_order() {
        let pair = Pair::full(true).unwrap();
        assert_eq!(events(&pair.programs), PollFlags::empty());
        let mut scratch = [1; 1000];
        let (first, rest) = (pair.filling / 3, pair.filling - pair.filling / 3);
        empty(pair.own.as_fd(), first, &mut scratch).unwrap();
        send(&pair.programs, b"it", AT_ONCE).unwrap();
        empty(pair.own.as_fd(), rest, &mut scratch).unwrap();
        assert_eq!(events(&pair.programs), PollFlags::OUT);
        let (_, received) = recv(&pair.own, &mut scratch[..], RecvFlags::DONTWAIT).unwrap();
        assert_eq!(&scratch[..received], b"it");
    }

    #[test]
    fn a_token_makes_an_end_readable_until_it_is_taken() {
        let pair = Pair::full(true).unwrap();
        assert!(put_token(pair.own.as_fd()) && put_token(pair.own.as_fd()));
        assert_eq!(events(&pair.programs), PollFlags::IN);
        take_tokens(pair.programs.as_fd(), 2);
        assert_eq!(events(&pair.programs), PollFlags::empty());
    }

    #[test]
    fn an_end_whose_other_is_closed_with_bytes_unread_is_reset() {
        for filled in [true, false] {
            let pair = Pair::full(true).unwrap();
            if !filled {
                empty(pair.own.as_fd(), pair.filling, &mut [0; 1000]).unwrap();
            }
            prepare_reset(pair.own.as_fd(), || pair.programs.try_clone().ok());
            drop(pair.own);
            let events = events(&pair.programs);
            assert!(events.contains(PollFlags::ERR | PollFlags::HUP | PollFlags::OUT));
            let read = recv(&pair.programs, &mut [0; 8][..], RecvFlags::DONTWAIT);
            assert_eq!(read.unwrap_err(), Errno::CONNRESET);
        }
    }
}
