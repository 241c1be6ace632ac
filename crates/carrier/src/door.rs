//! On the NIC stack's machine: hosts knock, and those who have the key are let in, one at a time.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use contract::ethernet::handshake::{HandshakeError, Reason};
use contract::ethernet::{PreSharedKey, Responder, Session, Terms};
use port::packet::ControlPort;
use rustix::event::{PollFd, PollFlags, poll};

use crate::{Mac, frame_bytes, monotonic_us, seed};

/// A host that may come in.
#[derive(Debug)]
pub struct Guest {
    /// Where it is.
    pub mac: Mac,
    /// What was begun with it.
    pub session: Session,
    /// What both have agreed on.
    pub terms: Terms,
}

/// Answers HELLOs.
#[derive(Debug)]
pub struct Door {
    responder: Responder,
    answer: Vec<u8>,
    /// Whom the log has complained of last.
    refused: Option<(Mac, HandshakeError)>,
}

impl Door {
    /// A door that opens to this key. `None` if the port's frames are too small.
    pub fn new(
        key: &PreSharedKey,
        port: &ControlPort,
        workers: u16,
        mtu: u32,
        source_mac: Option<Mac>,
    ) -> Option<Door> {
        let terms = Terms {
            workers,
            frame_bytes: frame_bytes(port)?,
            mtu,
            source_mac,
        };
        Some(Door {
            responder: Responder::new(key, terms),
            answer: Vec::new(),
            refused: None,
        })
    }

    /// Waits for the next guest; `None` when `stop` becomes readable.
    pub fn wait(
        &mut self,
        port: &mut ControlPort,
        stop: BorrowedFd<'_>,
    ) -> io::Result<Option<Guest>> {
        loop {
            let mut guest = None;
            let mut answers = Vec::new();
            let taken = port.receive(64, &mut |from, frame| {
                if guest.is_none() {
                    guest = self.on_frame(from, frame, None);
                    if !self.answer.is_empty() {
                        answers.push((from, self.answer.clone()));
                    }
                }
            })?;
            for (to, answer) in answers {
                // Lost, it will be asked for again.
                let _ = port.send(to, &answer);
            }
            if guest.is_some() {
                return Ok(guest);
            }
            if taken == 0 {
                let fd = port.as_fd();
                let mut fds = [
                    PollFd::new(&stop, PollFlags::IN),
                    PollFd::new(&fd, PollFlags::IN),
                ];
                match poll(&mut fds, None) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(errno) => return Err(errno.into()),
                }
                if !fds[0].revents().is_empty() {
                    return Ok(None);
                }
            }
        }
    }

    /// A frame has come that belongs to no session. The same host may begin another session at any time; while
    /// it is served, others may not. [`Door::answer`] is to be sent back.
    pub fn on_frame(&mut self, from: Mac, frame: &mut [u8], served: Option<Mac>) -> Option<Guest> {
        self.answer.clear();
        if served.is_some_and(|served| served != from) {
            Responder::refuse(Reason::Busy, frame, &mut self.answer);
            return None;
        }
        let Ok(seed) = seed() else {
            return None;
        };
        match self
            .responder
            .on_frame(monotonic_us(), frame, seed, &mut self.answer)
        {
            Ok(Some((session, terms))) => {
                self.refused = None;
                Some(Guest {
                    mac: from,
                    session,
                    terms,
                })
            }
            Ok(None) | Err(HandshakeError::Malformed) => None,
            Err(error) => {
                // It keeps trying; once is enough to say so.
                if self.refused != Some((from, error)) {
                    self.refused = Some((from, error));
                    tracing::warn!("refused a host stack at {}: {error}", Written(from));
                }
                None
            }
        }
    }

    /// What is to be sent back to where the last frame came from; empty if nothing.
    pub fn answer(&self) -> &[u8] {
        &self.answer
    }
}

/// An address as people write it.
struct Written(Mac);

impl std::fmt::Display for Written {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}
