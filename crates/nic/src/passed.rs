//! Descriptors that other processes have passed to this one, for files that need not lie below the
//! root.
//!
//! A process that passes a descriptor may have the same open file description, and change its
//! status flags at any time. So nothing here changes them (`F_SETFL`), each is read through itself
//! and never through that of another process, and reads are aligned as `O_DIRECT` needs it.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use contract::PassedId;

use crate::root::RootDir;

/// The place where passed descriptors arrive.
pub trait PassedFiles: fmt::Debug + Send + Sync {
    /// Returns the descriptor of this number; `None` if it has not arrived, or was taken back. Does
    /// not wait.
    fn descriptor(&self, passed: PassedId) -> Option<Arc<OwnedFd>>;
}

/// The sources of files for a NIC stack.
#[derive(Debug)]
pub struct Sources {
    /// Files by path.
    pub root: RootDir,
    /// Files by descriptor, if other processes pass any to the NIC stack.
    pub passed: Option<Arc<dyn PassedFiles>>,
}

impl From<RootDir> for Sources {
    /// Files by path alone.
    fn from(root: RootDir) -> Sources {
        Sources { root, passed: None }
    }
}
