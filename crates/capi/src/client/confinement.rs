//! Processes that give up rights: by seccomp(2), chroot(2), setrlimit(2) and the like.
//!
//! A process attaches when it first needs to, which takes a connection to the broker, descriptors,
//! memory and a thread. One that may have none of these later attaches at the last moment before:
//! in the call that gives the right up. So processes that do neither pay nothing.

use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Result;

use super::application::Client;
use super::known_flags;
use crate::sys;

/// What a process is about to give up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confinement {
    /// More descriptors, threads or memory than it has.
    Resources,
    /// System calls.
    Calls,
}

/// A process has prepared to give up system calls. Its children have as well.
static HAS_FEW_CALLS: AtomicBool = AtomicBool::new(false);

/// True once this process has prepared to give up system calls.
pub(crate) fn has_few_calls() -> bool {
    HAS_FEW_CALLS.load(Ordering::Relaxed)
}

impl Client {
    /// Has this process, which is about to give up rights, go on with its sockets afterwards.
    ///
    /// # Errors
    /// Those of a child that cannot be attached, EMFILE, EAGAIN.
    pub fn prepare_for(&self, confinement: Confinement) -> Result<()> {
        let process = self.process()?;
        process.prepare_for_confinement()?;
        if confinement == Confinement::Calls {
            HAS_FEW_CALLS.store(true, Ordering::Relaxed);
            // The first look at what a child has inherited makes calls as well.
            let sockets = self.numbers().into_iter();
            let sockets = sockets.filter(|fd| self.entry_of(*fd).is_some());
            let descriptors = sockets.filter_map(|fd| sys::borrow(fd).ok());
            descriptors.for_each(known_flags::note);
            process.link.confine();
        }
        Ok(())
    }
}
