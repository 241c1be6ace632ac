//! Messages for people about a process whose calls fail for a reason that no errno expresses: one
//! of each kind, if the program's starter has asked for them.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;

use super::fork;

/// An action that fails in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A child that has inherited split sockets cannot be attached.
    NotAttached(Errno),
    /// The memory of a socket cannot be mapped.
    NoMemory,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::NotAttached(errno) => write!(
                f,
                "this process cannot use the split sockets that it has inherited: {errno}; if it \
                 has given up rights before its first call on one, see \"Troubleshooting\" in \
                 docs/run.md"
            ),
            Notice::NoMemory => f.write_str(
                "the memory of a split socket does not fit into the address space that this \
                 process may have; raise RLIMIT_AS (`ulimit -v`)",
            ),
        }
    }
}

/// Receiver of notices.
static RECEIVER: OnceLock<fn(Notice)> = OnceLock::new();

/// For each kind, the generation of the process that has sent its notice.
static GIVEN: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];

/// Sets the receiver of notices, once.
pub fn receive_notices(receiver: fn(Notice)) {
    let _ = RECEIVER.set(receiver);
}

/// Sends a notice, if it is the first of its kind in this process.
pub(crate) fn once(notice: Notice) {
    let kind = match notice {
        Notice::NotAttached(_) => 0,
        Notice::NoMemory => 1,
    };
    let process = fork::generation();
    if GIVEN[kind].swap(process, Ordering::Relaxed) != process
        && let Some(receiver) = RECEIVER.get()
    {
        receiver(notice);
    }
}
