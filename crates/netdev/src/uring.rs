//! Datagrams by io_uring: one system call for many, each a request of its own. For measurements,
//! beside [`packet`](crate::packet): the kernel takes the way of `sendmsg` with each.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::process;

use io_uring::squeue::Entry;
use io_uring::{IoUring, opcode, types};

/// Requests under way at once, at most.
const DEPTH: u32 = 64;

/// A ring of requests to send.
pub struct SendRing {
    ring: IoUring,
}

impl SendRing {
    /// Fails where the kernel has no io_uring or forbids it (`ENOSYS`, `EPERM`).
    pub fn new() -> io::Result<Self> {
        IoUring::new(DEPTH).map(|ring| Self { ring })
    }

    /// Sends each datagram on a socket that is connected, and returns once all are sent. After an
    /// error, which is that of the first that was not sent, some may have been.
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

    /// The same of no more than [`DEPTH`]; returns how many there were.
    fn send_some<'a>(
        &mut self,
        socket: BorrowedFd<'_>,
        datagrams: &mut impl Iterator<Item = &'a [u8]>,
    ) -> io::Result<usize> {
        let datagrams: Vec<&[u8]> = datagrams.by_ref().take(DEPTH as usize).collect();
        let fd = types::Fd(socket.as_raw_fd());
        let requests = datagrams.iter().zip(0..).map(|(datagram, place)| {
            // No datagram is as long: the kernel says so.
            let len = u32::try_from(datagram.len()).unwrap_or(u32::MAX);
            let entry = opcode::Send::new(fd, datagram.as_ptr(), len).build();
            entry.user_data(place)
        });
        let requests: Vec<Entry> = requests.collect();
        // SAFETY: The kernel reads the datagrams and uses the descriptor until it completes the
        // requests. Both are borrowed for this call, which does not return before: `wait` ends with
        // as many completions as there are requests, or not at all.
        let pushed = unsafe { self.ring.submission().push_multiple(&requests) };
        // None is in the ring then.
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

    /// Has the kernel take all requests, and waits until it has completed so many.
    fn wait(&mut self, count: usize) {
        while self.ring.completion().len() < count {
            match self.ring.submit_and_wait(count) {
                Ok(_) => {}
                Err(error) if is_passing(&error) => {}
                // The kernel may still read what is borrowed for the call alone.
                Err(_) => process::abort(),
            }
        }
    }
}

/// A signal, or too little memory at the moment.
fn is_passing(error: &io::Error) -> bool {
    let codes = [libc::EINTR, libc::EAGAIN, libc::EBUSY];
    error
        .raw_os_error()
        .is_some_and(|code| codes.contains(&code))
}
