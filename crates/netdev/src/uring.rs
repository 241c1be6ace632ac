//! Datagrams by io_uring: one system call for many, each a request of its own. For measurements,
//! beside [`packet`](crate::packet): the kernel takes the way of `sendmsg` with each.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::process;

use io_uring::squeue::Entry;
use io_uring::{IoUring, opcode, types};

/// Most requests in flight.
const DEPTH: u32 = 64;

/// An io_uring for sends.
pub struct SendRing {
    ring: IoUring,
}

impl SendRing {
    /// Fails where the kernel has no io_uring or forbids it (`ENOSYS`, `EPERM`).
    pub fn new() -> io::Result<Self> {
        IoUring::new(DEPTH).map(|ring| Self { ring })
    }

    /// Sends each datagram on a connected socket, and returns once all are sent. An error is that
    /// of the first unsent datagram; others may have been sent.
    pub fn send<'a>(
        &mut self,
        socket: BorrowedFd<'_>,
        mut datagrams: impl Iterator<Item = &'a [u8]>,
    ) -> io::Result<()> {
        loop {
            let count = self.send_some(socket, &mut datagrams)?;
            if count < DEPTH as usize {
                return Ok(());
            }
        }
    }

    /// Sends at most [`DEPTH`] datagrams; returns how many.
    fn send_some<'a>(
        &mut self,
        socket: BorrowedFd<'_>,
        datagrams: &mut impl Iterator<Item = &'a [u8]>,
    ) -> io::Result<usize> {
        let datagrams: Vec<&[u8]> = datagrams.by_ref().take(DEPTH as usize).collect();
        let fd = types::Fd(socket.as_raw_fd());
        let requests = datagrams.iter().zip(0..).map(|(datagram, place)| {
            // A datagram this long fails in the kernel.
            let len = u32::try_from(datagram.len()).unwrap_or(u32::MAX);
            let entry = opcode::Send::new(fd, datagram.as_ptr(), len).build();
            entry.user_data(place)
        });
        let requests: Vec<Entry> = requests.collect();
        // SAFETY: The kernel reads the datagrams and uses the descriptor until it completes the
        // requests. Both are borrowed for this call, which does not return earlier: `wait` returns
        // only with as many completions as requests.
        let pushed = unsafe { self.ring.submission().push_multiple(&requests) };
        // On failure the ring has none of the requests.
        pushed.map_err(io::Error::other)?;
        self.wait(requests.len());
        let mut outcome = Ok(requests.len());
        for completion in self.ring.completion() {
            let sent = completion.result();
            let datagram = datagrams.get(completion.user_data() as usize);
            let len = datagram.map(|datagram| datagram.len());
            if outcome.is_ok() && usize::try_from(sent).ok() != len {
                outcome = Err(match sent {
                    ..0 => io::Error::from_raw_os_error(-sent),
                    _ => io::Error::other("a datagram was cut"),
                });
            }
        }
        outcome
    }

    /// Submits all requests, and waits until the kernel has completed `count`.
    fn wait(&mut self, count: usize) {
        while self.ring.completion().len() < count {
            match self.ring.submit_and_wait(count) {
                Ok(_) => {}
                Err(error) if is_passing(&error) => {}
                // The kernel may still read datagrams borrowed only for this call.
                Err(_) => process::abort(),
            }
        }
    }
}

/// True for transient errors: a signal, or a momentary lack of memory.
fn is_passing(error: &io::Error) -> bool {
    let codes = [libc::EINTR, libc::EAGAIN, libc::EBUSY];
    error
        .raw_os_error()
        .is_some_and(|code| codes.contains(&code))
}
