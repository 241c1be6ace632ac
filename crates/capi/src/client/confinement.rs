//! Processes that give up rights: by seccomp(2), chroot(2), setrlimit(2) and the like.
//!
//! A process attaches on its first use of the library, which takes a connection to the broker,
//! descriptors, memory and a thread. A process that is about to lose the right to any such resource
//! attaches at the last moment: in the call that gives the right up. So processes that do neither
//! pay nothing.

use rustix::io::Result;

use super::application::Client;
use super::few_calls::note_few_calls;
use super::known_flags;
use crate::sys;

/// A right that a process is about to give up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confinement {
    /// More descriptors, threads or memory than it has now.
    Resources,
    /// System calls.
    Calls,
}

impl Client {
    /// Prepares this process for giving up rights, so that its sockets work afterwards.
    ///
    /// # Errors
    /// Those of attaching a child, EMFILE, EAGAIN.
    pub fn prepare_for(&self, confinement: Confinement) -> Result<()> {
        let process = self.process()?;
        process.prepare_for_confinement()?;
        if confinement == Confinement::Calls {
            note_few_calls();
            // The first lookup of an inherited socket makes system calls, too.
            let sockets = self.numbers().into_iter();
            let sockets = sockets.filter(|fd| self.entry_of(*fd).is_some());
            let descriptors = sockets.filter_map(|fd| sys::borrow(fd).ok());
            descriptors.for_each(known_flags::note);
            process.link.confine();
        }
        Ok(())
    }
}
