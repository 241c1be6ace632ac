//! On the NIC stack's machine: accepts hosts that have the key, one at a time.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use contract::ethernet::handshake::{HandshakeError, Reason};
use contract::ethernet::{PreSharedKey, Responder, Session, Terms};
use netdev::packet::ControlPort;
use rustix::event::{PollFd, PollFlags, poll};

use crate::{Mac, frame_bytes, monotonic_us, seed};

/// A host that proved to have the key.
#[derive(Debug)]
pub struct AcceptedHost {
    /// Address of the host.
    pub mac: Mac,
    /// The new session with the host.
    pub session: Session,
    /// The agreed terms.
    pub terms: Terms,
}

/// The result of [`SessionAcceptor::look`].
#[derive(Debug)]
pub struct Found {
    /// Number of received frames.
    pub frames: usize,
    /// The next host that has the key.
    pub accepted: Option<AcceptedHost>,
}

/// Answers HELLOs.
#[derive(Debug)]
pub struct SessionAcceptor {
    responder: Responder,
    answer: Vec<u8>,
    complaints: Complaints,
}

/// Rate limit of log lines about refused hosts.
///
/// Any machine on the link can send HELLOs, from any address and with any versions; regardless of
/// their content, there is at most one line in [`COMPLAINT_US`].
#[derive(Debug, Default)]
struct Complaints {
    /// Time of the last line.
    said_us: Option<u64>,
    /// Host and error of the last line; `None` once a host has been accepted.
    said: Option<(Mac, HandshakeError)>,
}

/// Least time between two lines, in microseconds.
const COMPLAINT_US: u64 = 1_000_000;

impl SessionAcceptor {
    /// Accepts hosts with this key. `None` if the port's frames are too small.
    pub fn new(
        key: &PreSharedKey,
        port: &ControlPort,
        workers: u16,
        mtu: u32,
        source_mac: Option<Mac>,
    ) -> Option<SessionAcceptor> {
        let terms = Terms {
            workers,
            frame_bytes: frame_bytes(port)?,
            mtu,
            source_mac,
        };
        Some(SessionAcceptor {
            responder: Responder::new(key, terms),
            answer: Vec::new(),
            complaints: Complaints::default(),
        })
    }

    /// Waits for the next host that has the key; `None` when `stop` becomes readable.
    pub fn wait(
        &mut self,
        port: &mut ControlPort,
        stop: BorrowedFd<'_>,
    ) -> io::Result<Option<AcceptedHost>> {
        loop {
            let found = self.look(port)?;
            if found.accepted.is_some() {
                return Ok(found.accepted);
            }
            if found.frames == 0 {
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

    /// Handles received frames without blocking, for callers that wait for other events as well.
    ///
    /// # Errors
    /// If the kernel fails to deliver the frames.
    pub fn look(&mut self, port: &mut ControlPort) -> io::Result<Found> {
        let mut accepted = None;
        let mut answers = Vec::new();
        let frames = port.receive(64, &mut |from, frame| {
            if accepted.is_none() {
                accepted = self.on_frame(from, frame, None);
                if !self.answer.is_empty() {
                    answers.push((from, self.answer.clone()));
                }
            }
        })?;
        for (to, answer) in answers {
            // If the answer is lost, the host repeats its HELLO.
            let _ = port.send(to, &answer);
        }
        Ok(Found { frames, accepted })
    }

    /// Handles a frame of no session. The same host may begin another session at any time; while it
    /// is served, others are refused. The caller must send [`SessionAcceptor::answer`] back.
    pub fn on_frame(
        &mut self,
        from: Mac,
        frame: &mut [u8],
        served: Option<Mac>,
    ) -> Option<AcceptedHost> {
        self.answer.clear();
        if served.is_some_and(|served| served != from) {
            Responder::refuse(Reason::Busy, frame, &mut self.answer);
            return None;
        }
        let Ok(seed) = seed() else {
            return None;
        };
        let now_us = monotonic_us();
        match self
            .responder
            .on_frame(now_us, frame, seed, &mut self.answer)
        {
            Ok(Some((session, terms))) => {
                self.complaints.said = None;
                Some(AcceptedHost {
                    mac: from,
                    session,
                    terms,
                })
            }
            Ok(None) | Err(HandshakeError::Malformed) => None,
            Err(error) => {
                if self.complaints.is_due(now_us, from, error) {
                    tracing::warn!("refused a host stack at {}: {error}", Written(from));
                }
                None
            }
        }
    }

    /// The answer to the last frame's sender; empty if none.
    pub fn answer(&self) -> &[u8] {
        &self.answer
    }
}

impl Complaints {
    /// Whether a line is due. A refused host keeps trying; one line suffices.
    fn is_due(&mut self, now_us: u64, from: Mac, error: HandshakeError) -> bool {
        let is_early = |said_us| now_us.saturating_sub(said_us) < COMPLAINT_US;
        if self.said == Some((from, error)) || self.said_us.is_some_and(is_early) {
            return false;
        }
        self.said_us = Some(now_us);
        self.said = Some((from, error));
        true
    }
}

/// An address in its usual notation.
struct Written(Mac);

impl std::fmt::Display for Written {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: Mac = [2, 0, 0, 0, 0, 1];

    #[test]
    fn a_host_that_keeps_trying_is_complained_of_once() {
        let mut complaints = Complaints::default();
        let mut lines = 0;
        for tenth in 0..600 {
            let is_due = complaints.is_due(tenth * 100_000, HOST, HandshakeError::Key);
            lines += usize::from(is_due);
        }
        assert_eq!(lines, 1);
        complaints.said = None;
        assert!(complaints.is_due(60_000_000, HOST, HandshakeError::Key));
    }

    /// Ten thousand HELLOs in ten seconds, none like another.
    #[test]
    fn strangers_do_not_fill_the_log_whatever_they_say() {
        let mut complaints = Complaints::default();
        let mut lines = 0;
        for n in 0..10_000u16 {
            let [high, low] = n.to_be_bytes();
            let from = [2, 0, 0, 0, high, low];
            let error = HandshakeError::Version {
                transport: (high, low),
                contract: n,
            };
            let is_due = complaints.is_due(u64::from(n) * 1000, from, error);
            lines += usize::from(is_due);
        }
        assert_eq!(lines, 10);
    }
}
