//! Descriptors that come from another process of the application, or from another image of this
//! one: by `exec`, or in an `SCM_RIGHTS` message.

use std::os::fd::BorrowedFd;

use rustix::io::{Errno, Result};
use socket_channel::{Command, HandleId, SocketId, handle_name};

use super::application::Client;
use super::handle_names::handle_name_of;
use super::opening;
use super::process::{Process, number};
use crate::sys;

/// How often the host stack is asked for a handle that has no socket yet: the process that gives it
/// one has sent its command before it passed the descriptor on, and each question takes a turn.
const LOOK_UPS_MAX: u32 = 100;

impl Client {
    /// Makes a descriptor that another process has passed, or that `exec` has left open, what it
    /// was there: true for a split socket, or a file of the NIC stack, of this application. What
    /// had its number before is forgotten.
    ///
    /// # Errors
    /// ECONNRESET if the host stack is gone, EBADF if it has ended the socket, EMFILE.
    pub fn recover(&self, fd: BorrowedFd<'_>) -> Result<bool> {
        self.forget(fd);
        let Some(name) = handle_name_of(fd) else {
            return Ok(false);
        };
        let process = self.process()?;
        let key = &process.handles.membership().key;
        let handle = name.abstract_name();
        let Some(handle) = handle.and_then(|name| handle_name::decode(key, name)) else {
            return Ok(false);
        };
        // Names can be copied; the broker alone makes handles.
        if sys::peer_user(fd)? != process.broker_user {
            return Ok(false);
        }
        let id = look_up(process, handle)?;
        self.note_found(number(fd), handle, id)?;
        Ok(true)
    }
}

fn look_up(process: &Process, handle: HandleId) -> Result<SocketId> {
    let mut left = LOOK_UPS_MAX;
    loop {
        let answer = process
            .link
            .ask(|request| Command::LookUp { request, handle });
        match answer {
            Err(Errno::AGAIN) if left > 0 => left -= 1,
            Err(Errno::AGAIN) => return Err(Errno::BADF),
            answer => return opening::named(answer?),
        }
    }
}
