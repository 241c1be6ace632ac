//! One end of a pair of rings, one out and one in, with the wake-ups of the two sides.
//!
//! Each end is woken by an event descriptor of its own, for messages as for room. An end works in
//! rounds: it receives, sends, flushes once, and sleeps after a few rounds that bring nothing.

use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fs::OFlags;

use crate::ring::{Consumer, Corrupt, Producer};

/// See the [module documentation](self).
#[derive(Debug)]
pub struct End {
    /// Ring that this end writes.
    pub out: Producer,
    /// Ring that the peer writes.
    pub incoming: Consumer,
    bells: Option<Bells>,
    /// The peer has passed its alarm and has not been woken.
    wake_is_due: bool,
}

impl End {
    /// Makes an end of two rings. Without bells, no side wakes the other: both are polled.
    pub fn new(out: Producer, incoming: Consumer, bells: Option<Bells>) -> Self {
        End {
            out,
            incoming,
            bells,
            wake_is_due: false,
        }
    }

    /// Publishes the messages written. A peer that sleeps is woken by the next [`End::flush`].
    pub fn publish(&mut self) {
        self.wake_is_due |= self.out.publish();
    }

    /// Publishes the messages written, and wakes the peer if it sleeps.
    #[inline]
    pub fn flush(&mut self) {
        if self.out.publish() | mem::take(&mut self.wake_is_due) {
            self.wake_peer();
        }
    }

    /// Publishes the messages written, and wakes the peer, even if its alarm does not require it.
    pub fn hurry(&mut self) {
        let _ = self.out.publish();
        self.wake_is_due = false;
        self.wake_peer();
    }

    /// Returns the next message, if there is one; gives room back in batches.
    #[inline]
    pub fn receive(&mut self) -> Result<Option<&[u8]>, Corrupt> {
        if self.out.is_corrupt() {
            return Err(Corrupt);
        }
        if self.incoming.release_is_due() {
            self.release();
        }
        self.incoming.read()
    }

    /// Before sleep: flushes and asks to be woken, for messages if `for_messages`, and for room if
    /// there was none when asked. False if either has come meanwhile: do not sleep.
    pub fn prepare_sleep(&mut self, for_messages: bool) -> bool {
        self.flush();
        self.release();
        let nothing_to_do = (!for_messages || self.incoming.arm()) && self.out.arm();
        if !nothing_to_do {
            self.disarm();
        }
        nothing_to_do
    }

    /// After sleep: asks not to be woken, and drains the own bell.
    pub fn finish_sleep(&mut self) {
        self.disarm();
        if let Some(bells) = &self.bells {
            bells.drain();
        }
    }

    /// After sleep, for a bell that several sleepers watch by its edges: it stays as it is.
    pub fn disarm(&mut self) {
        self.incoming.disarm();
        self.out.disarm();
    }

    /// Returns the bells of both ends, if there are any.
    pub fn bells(&self) -> Option<&Bells> {
        self.bells.as_ref()
    }

    /// Returns a descriptor that is readable when the peer has woken this end. `None` if there are
    /// no bells.
    pub fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.bells.as_ref().map(|bells| bells.own.as_fd())
    }

    /// Wakes the peer, even if its alarm does not require it.
    pub fn wake_peer(&self) {
        if let Some(bells) = &self.bells {
            bells.ring_peer();
        }
    }

    fn release(&mut self) {
        if self.incoming.release() {
            self.wake_peer();
        }
    }
}

/// The event descriptors of an end.
///
/// They do not block. That is a property of the open file, which the peer shares and could change,
/// to hang this side: a stack that wants to do so can stop serving as well.
#[derive(Debug)]
pub struct Bells {
    /// Wakes this end.
    pub own: OwnedFd,
    /// Wakes the peer.
    pub peer: OwnedFd,
}

impl Bells {
    /// Takes bells that a peer has passed, and makes them non-blocking: reading and writing them
    /// must not hang this side.
    pub fn never_blocking(own: OwnedFd, peer: OwnedFd) -> rustix::io::Result<Self> {
        for bell in [&own, &peer] {
            let flags = rustix::fs::fcntl_getfl(bell)?;
            rustix::fs::fcntl_setfl(bell, flags | OFlags::NONBLOCK)?;
        }
        Ok(Bells { own, peer })
    }

    /// A failure leaves nothing to do: if the counter is full the peer is being woken already, and
    /// a peer that passed a descriptor of another kind does not want to be.
    fn ring_peer(&self) {
        let _ = rustix::io::write(&self.peer, &1u64.to_ne_bytes());
    }

    /// Fails if the doorbell was not rung.
    fn drain(&self) {
        let _ = rustix::io::read(&self.own, &mut [0u8; 8]);
    }
}

/// Makes a bell for a peer that is not trusted. Returns the descriptor that rings the bell, and the
/// one for the peer.
///
/// Any holder of an event descriptor can make it block, or fill it. So the peer gets an epoll set
/// that watches the bell: readable at each ring for processes that watch the set by its edges
/// (`EPOLLET`, epoll(7)), and without anything to write to. The set watches as long as the bell is
/// open.
pub fn new_guarded_bell() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let bell = new_bell()?;
    let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(&set, &bell, epoll::EventData::new_u64(0), edge)?;
    Ok((bell, set))
}

/// Makes an event descriptor that does not block.
pub fn new_bell() -> rustix::io::Result<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}
