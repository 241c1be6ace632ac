//! A split socket as calls see it: its descriptor, its record, and the notes that its processes
//! share.

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU32;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::{Errno, Result};
use rustix::process::Pid;
use socket_channel::fifo_area::FIFO_BYTES_USUAL;
use socket_channel::record::LOCKED_BY_HOST;
use socket_channel::{AppRecord, Command, Family, Flags, Lock, Look, SocketId};

use super::fork;
use super::known_flags;
use super::modes::Modes;
use super::process::{Process, errno};

/// Spins of a waiter for a lock before it checks whether the owner is alive.
const SPINS: u32 = 1000;

/// Bits by which the processes of an application share state of a socket.
pub(crate) mod note {
    /// Shut down for reading by this side.
    pub(crate) const SHUT_READ: u64 = 1;
    /// Shut down for writing by this side.
    pub(crate) const SHUT_WRITE: u64 = 2;
    /// `SO_REUSEADDR`.
    pub(crate) const REUSE_ADDR: u64 = 4;
    /// `SO_REUSEPORT`.
    pub(crate) const REUSE_PORT: u64 = 8;
    /// `IPV6_V6ONLY`.
    pub(crate) const V6_ONLY: u64 = 16;
    /// The domain is `AF_INET6`.
    pub(crate) const IS_V6: u64 = 32;
    /// `connect` has begun, and has not reported its outcome.
    pub(crate) const CONNECT_BEGUN: u64 = 64;
    /// `SO_LINGER` is on.
    pub(crate) const LINGER: u64 = 128;
    /// `SO_OOBINLINE`; urgent data is inline in any case.
    pub(crate) const OOB_INLINE: u64 = 256;
    /// `TCP_CORK` of a connection: its command may arrive after bytes.
    pub(crate) const CORKED: u64 = 512;
    /// The host stack has left the listener, and `accept` has reported that.
    pub(crate) const LEFT: u64 = 1024;
    /// A splice with the connection that the program copies to was requested or ruled out, and is
    /// not tried again.
    pub(crate) const SPLICE_TRIED: u64 = 2048;
}

/// Positions of the timeouts in the word: after the bits, 26 bits of milliseconds each.
const RECEIVE_TIMEOUT_AT: u32 = 12;
const SEND_TIMEOUT_AT: u32 = 38;
const TIMEOUT_MS_MAX: u64 = (1 << 26) - 1;

/// Parts of the word that a connection inherits from its listener.
const INHERITED: u64 = note::REUSE_ADDR
    | note::REUSE_PORT
    | note::V6_ONLY
    | note::IS_V6
    | note::LINGER
    | note::OOB_INLINE
    | TIMEOUT_MS_MAX << RECEIVE_TIMEOUT_AT
    | TIMEOUT_MS_MAX << SEND_TIMEOUT_AT;

/// Direction of a call that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Receive,
    Send,
}

impl Direction {
    fn timeout_at(self) -> u32 {
        match self {
            Direction::Receive => RECEIVE_TIMEOUT_AT,
            Direction::Send => SEND_TIMEOUT_AT,
        }
    }
}

/// See the [module documentation](self).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Socket<'a> {
    pub(crate) process: &'a Process,
    pub(crate) fd: BorrowedFd<'a>,
    pub(crate) id: SocketId,
    pub(crate) record: AppRecord<'a>,
}

impl Socket<'_> {
    /// Looks at the record once; fails if the socket is unusable.
    pub(crate) fn look(&self) -> Result<Look> {
        self.process.link.check()?;
        self.record.look().map_err(errno)
    }

    /// Like [`Socket::look`], for calls on streams: ENOTSOCK for a file.
    pub(crate) fn look_at_stream(&self) -> Result<Look> {
        let look = self.look()?;
        if look.flags.has(Flags::FILE) {
            return Err(Errno::NOTSOCK);
        }
        Ok(look)
    }

    /// The bits of [`note`] that are set.
    pub(crate) fn notes(&self) -> u64 {
        self.record.app_flags().load(Ordering::Acquire)
    }

    pub(crate) fn has_note(&self, note: u64) -> bool {
        self.notes() & note != 0
    }

    pub(crate) fn family(&self) -> Family {
        if self.has_note(note::IS_V6) {
            Family::V6
        } else {
            Family::V4
        }
    }

    /// Copies the inherited options of a connection from its listener.
    pub(crate) fn inherit(&self, listener: &Socket<'_>) {
        let inherited = listener.notes() & INHERITED;
        if inherited != 0 {
            self.record
                .app_flags()
                .fetch_or(inherited, Ordering::AcqRel);
        }
        let rx_lowat = listener.record.wanted_rx_lowat();
        if rx_lowat != 0 {
            self.record.set_rx_lowat(rx_lowat);
        }
    }

    /// Sets or clears bits; returns whether any was set.
    pub(crate) fn set_note(&self, note: u64, on: bool) -> bool {
        let word = self.record.app_flags();
        let before = if on {
            word.fetch_or(note, Ordering::AcqRel)
        } else {
            word.fetch_and(!note, Ordering::AcqRel)
        };
        before & note != 0
    }

    /// Returns `SO_RCVTIMEO` or `SO_SNDTIMEO`; `None` is no limit.
    pub(crate) fn timeout(&self, direction: Direction) -> Option<Duration> {
        let ms = self.notes() >> direction.timeout_at() & TIMEOUT_MS_MAX;
        (ms > 0).then(|| Duration::from_millis(ms))
    }

    /// Sets a timeout, rounded up to milliseconds; 18 hours at most.
    pub(crate) fn set_timeout(&self, direction: Direction, timeout: Option<Duration>) {
        let ms = timeout.map_or(0, |timeout| {
            let us = timeout.as_micros().div_ceil(1000);
            u64::try_from(us).map_or(TIMEOUT_MS_MAX, |ms| ms.clamp(1, TIMEOUT_MS_MAX))
        });
        let at = direction.timeout_at();
        let word = self.record.app_flags();
        let change = |word: u64| Some(word & !(TIMEOUT_MS_MAX << at) | ms << at);
        let _ = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, change);
    }

    /// Reports whether the descriptor is non-blocking, by the kernel's flag: `fcntl` and `ioctl` of
    /// any process may have changed it.
    pub(crate) fn is_nonblocking(&self) -> Result<bool> {
        match known_flags::is_nonblocking(self.fd) {
            Some(is_nonblocking) => Ok(is_nonblocking),
            None => Ok(rustix::fs::fcntl_getfl(self.fd)?.contains(OFlags::NONBLOCK)),
        }
    }

    /// Returns the error that has not been reported, and counts it as reported.
    pub(crate) fn take_error(&self) -> Result<()> {
        match self.record.take_error() {
            0 => Ok(()),
            raw => Err(super::attach::errno_of(raw)),
        }
    }

    /// Returns the local address; zeros before the socket is bound.
    pub(crate) fn local(&self) -> SocketAddr {
        let unbound = || match self.family() {
            Family::V4 => (Ipv4Addr::UNSPECIFIED, 0).into(),
            Family::V6 => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let local = self.record.local();
        local.map_or_else(unbound, |local| self.as_named(local))
    }

    /// Returns an address as a program gets it: an IPv6 socket has mapped ones (RFC 4291 §2.5.5.2).
    pub(crate) fn as_named(&self, address: SocketAddr) -> SocketAddr {
        match address.ip() {
            IpAddr::V4(ip) if self.has_note(note::IS_V6) => {
                (ip.to_ipv6_mapped(), address.port()).into()
            }
            _ => address,
        }
    }

    /// Asks the host stack for a tx FIFO, or more room in it, and waits for the answer. The caller
    /// must not hold the lock. In a segment mapped in parts, at most the usual FIFO is requested:
    /// the excess would stay mapped.
    pub(crate) fn ask_for_room(&self, bytes: usize) -> Result<()> {
        let bytes = match self.record.is_in_parts() {
            true => bytes.min(FIFO_BYTES_USUAL),
            false => bytes,
        };
        let (socket, bytes) = (self.id, bytes as u64);
        let request = |request| Command::Room {
            request,
            socket,
            bytes,
        };
        match self.process.link.ask(request) {
            // The connection has ended; its record has the reason.
            Err(Errno::BADF | Errno::NOTCONN) => Ok(()),
            asked => asked.map(drop),
        }
    }

    /// Announces more room in the rx FIFO to the host stack.
    pub(crate) fn tell_of_room(&self) -> Result<()> {
        self.tell(&Command::Kick { socket: self.id })
    }

    /// Announces bytes in the tx FIFO to the host stack, unless it is about to look. Without
    /// AsyncSend, waits until it has looked.
    pub(crate) fn tell_of_bytes(&self) -> Result<()> {
        let must_kick = self.record.must_kick();
        if self.waits() || !self.process.modes.has(Modes::ASYNC_SEND) {
            return self.await_look();
        }
        if must_kick {
            self.process.link.send(&Command::Kick { socket: self.id })?;
        }
        Ok(())
    }

    /// Sends a command that is not answered; with Split-TCP, waits until it is processed.
    pub(crate) fn tell(&self, command: &Command<'_>) -> Result<()> {
        self.process.link.send(command)?;
        if self.waits() {
            self.await_look()?;
        }
        Ok(())
    }

    /// Reports whether every call waits for the host stack (Split-TCP).
    pub(crate) fn waits(&self) -> bool {
        self.process.modes.has(Modes::SPLIT_TCP)
    }

    /// Waits until the host stack has processed all commands and looked at the socket.
    fn await_look(&self) -> Result<()> {
        let (link, socket) = (&self.process.link, self.id);
        // If the socket has ended meanwhile, its record shows that.
        let _ = link.ask(|request| Command::Look { request, socket });
        link.check()
    }

    /// Runs `work` with a lock of the socket, which all its processes share. EAGAIN in a signal
    /// handler that interrupts `work` in the same thread.
    pub(crate) fn with_lock<T>(&self, lock: Lock, work: impl FnOnce() -> T) -> Result<T> {
        let thread = this_thread();
        let mut spins = 0;
        while let Err(owner) = self.record.try_lock(lock, thread) {
            if owner == thread.get() {
                return Err(Errno::AGAIN);
            }
            spins += 1;
            if spins % SPINS == 0 {
                let may_be_dead = owner != LOCKED_BY_HOST && !is_alive(owner);
                let taken = may_be_dead && self.record.take_over(lock, owner, thread);
                if taken {
                    break;
                }
                self.look()?;
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
        let done = work();
        self.record.unlock(lock, thread);
        Ok(done)
    }
}

/// Reports whether a thread exists. A thread of another user counts as alive.
fn is_alive(thread: u32) -> bool {
    let thread = i32::try_from(thread).ok().and_then(Pid::from_raw);
    thread.is_some_and(|thread| rustix::process::test_kill_process(thread) != Err(Errno::SRCH))
}

/// Returns the ID of this thread, requested once in each process.
fn this_thread() -> NonZeroU32 {
    thread_local! {
        static NUMBER: Cell<Option<(u32, NonZeroU32)>> = const { Cell::new(None) };
    }
    let generation = fork::generation();
    if let Some((known_in, number)) = NUMBER.get()
        && known_in == generation
    {
        return number;
    }
    let number = rustix::thread::gettid().as_raw_nonzero();
    let number = number.try_into().unwrap_or(NonZeroU32::MIN);
    NUMBER.set(Some((generation, number)));
    number
}
