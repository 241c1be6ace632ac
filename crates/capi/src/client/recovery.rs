//! Recovery of descriptors from another process of the application, in an `SCM_RIGHTS` message, or
//! from the previous image of this one, through `exec`.

use std::os::fd::BorrowedFd;

use rustix::io::{Errno, Result};
use socket_channel::{Command, HandleId, SocketId, handle_name};

use super::application::Client;
use super::handle_names::handle_name_of;
use super::opening;
use super::process::{Process, number};
use crate::sys;

/// Most lookups of a handle that has no socket yet: the process that assigns one sends its command
/// before it passes the descriptor on, and each lookup takes a turn of the host stack.
const LOOK_UPS_MAX: u32 = 100;

impl Client {
    /// Registers a descriptor that another process has passed, or that `exec` has left open. True
    /// for a split socket, or a file of the NIC stack, of this application. Forgets the number's
    /// former socket.
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
        // Names can be copied; only the broker creates handles.
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
