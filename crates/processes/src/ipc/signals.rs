//! Signals that ask the process for something, as descriptors to poll.

use std::io::{IsTerminal, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use failure::Failure;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1};

use crate::ipc::fd_passing::has_hung_up;

/// Some signals: readable once one of them has come.
#[derive(Debug)]
pub struct Signals {
    receiver: UnixStream,
}

impl Signals {
    /// Those that ask for an end: Ctrl-C, `kill`, or the end of the terminal.
    pub fn catch_ends() -> Result<Self, Failure> {
        Self::catch(&[SIGINT, SIGTERM, SIGHUP])
    }

    /// The same without SIGHUP, which [`HangUp`] catches.
    pub fn catch_ends_but_hang_up() -> Result<Self, Failure> {
        Self::catch(&[SIGINT, SIGTERM])
    }

    /// SIGUSR1: logs are to be opened again.
    pub fn catch_reopen() -> Result<Self, Failure> {
        Self::catch(&[SIGUSR1])
    }

    /// SIGQUIT: take leave of everybody, and end then.
    pub fn catch_quit() -> Result<Self, Failure> {
        Self::catch(&[SIGQUIT])
    }

    /// From here on the signals do not end the process by themselves.
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

    /// True if one has come since the last call.
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

/// SIGHUP, which means two things: read your configuration again, or that the terminal is gone.
#[derive(Debug)]
pub struct HangUp {
    signals: Signals,
    /// One that the process was started at.
    terminal: Option<OwnedFd>,
}

/// What SIGHUP asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// SIGHUP asks for files to be read again.
    Reload,
    /// The terminal is gone, and what was started there is to go, too.
    End,
}

impl HangUp {
    /// From here on SIGHUP does not end the process by itself.
    pub fn catch() -> Result<Self, Failure> {
        Ok(Self {
            signals: Signals::catch(&[SIGHUP])?,
            terminal: terminal(),
        })
    }

    /// What SIGHUP asks for, if it has come since the last call.
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

/// A standard stream that is a terminal.
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
