//! Signals as descriptors to poll.

use std::io::{IsTerminal, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use failure::Failure;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1};

use crate::ipc::fd_passing::has_hung_up;

/// A set of signals: readable once any has arrived.
#[derive(Debug)]
pub struct Signals {
    receiver: UnixStream,
}

impl Signals {
    /// Catches signals that end the process: Ctrl-C, `kill`, or the end of the terminal.
    pub fn catch_ends() -> Result<Self, Failure> {
        Self::catch(&[SIGINT, SIGTERM, SIGHUP])
    }

    /// Catches the same signals except SIGHUP, which [`HangUp`] catches.
    pub fn catch_ends_but_hang_up() -> Result<Self, Failure> {
        Self::catch(&[SIGINT, SIGTERM])
    }

    /// Catches SIGUSR1: reopen the logs.
    pub fn catch_reopen() -> Result<Self, Failure> {
        Self::catch(&[SIGUSR1])
    }

    /// Catches SIGQUIT: drain, then end.
    pub fn catch_quit() -> Result<Self, Failure> {
        Self::catch(&[SIGQUIT])
    }

    /// Replaces the default action of `signals`.
    fn catch(signals: &[i32]) -> Result<Self, Failure> {
        let catch = || -> std::io::Result<UnixStream> {
            let (receiver, sender) = UnixStream::pair()?;
            receiver.set_nonblocking(true)?;
            for signal in signals {
                signal_hook::low_level::pipe::register(*signal, sender.try_clone()?)?;
            }
            Ok(receiver)
        };
        let receiver =
            catch().map_err(|error| Failure::broken("setting up signal handling", error))?;
        Ok(Self { receiver })
    }

    /// Returns whether a signal has arrived since the last call.
    pub fn take(&mut self) -> bool {
        let mut bytes = [0; 16];
        let mut any = false;
        while matches!(self.receiver.read(&mut bytes), Ok(count) if count > 0) {
            any = true;
        }
        any
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.receiver.as_fd()
    }
}

/// SIGHUP, with two meanings: reload, or end of the terminal.
#[derive(Debug)]
pub struct HangUp {
    signals: Signals,
    /// The terminal that the process was started at, if any.
    terminal: Option<OwnedFd>,
}

/// Meaning of a SIGHUP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// Reload the files.
    Reload,
    /// The terminal is gone: end as its other processes do.
    End,
}

impl HangUp {
    /// Replaces the default action of SIGHUP.
    pub fn catch() -> Result<Self, Failure> {
        Ok(Self {
            signals: Signals::catch(&[SIGHUP])?,
            terminal: terminal(),
        })
    }

    /// Returns the meaning of a SIGHUP, if one has arrived since the last call.
    pub fn take(&mut self) -> Option<Hint> {
        self.signals.take().then(|| match &self.terminal {
            Some(terminal) if has_hung_up(terminal) => Hint::End,
            _ => Hint::Reload,
        })
    }
}

impl AsFd for HangUp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signals.as_fd()
    }
}

/// Returns a standard stream that is a terminal.
fn terminal() -> Option<OwnedFd> {
    fn terminal(stream: impl IsTerminal + AsFd) -> Option<OwnedFd> {
        let stream = stream.is_terminal().then_some(stream)?;
        stream.as_fd().try_clone_to_owned().ok()
    }
    terminal(std::io::stdin())
        .or_else(|| terminal(std::io::stdout()))
        .or_else(|| terminal(std::io::stderr()))
}

#[cfg(test)]
mod tests {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

    use super::*;

    #[test]
    fn a_terminal_is_gone_when_its_other_end_is() {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY;
        let terminal = rustix::fs::open(&name, flags, rustix::fs::Mode::empty()).unwrap();
        assert!(!has_hung_up(&terminal));
        drop(master);
        assert!(has_hung_up(&terminal));
    }
}
