//! The network namespace in which the user has started Splitway.

use std::fs::File;
use std::os::fd::AsFd;

use failure::Failure;
use nix::sched::{CloneFlags, setns};

/// The network namespace in which the user has started Splitway: origins are reached from
/// there, and monitoring reaches Splitway.
#[derive(Debug)]
pub(crate) struct InitialNetns(File);

impl InitialNetns {
    /// The one that this process is in now.
    pub(crate) fn here() -> Result<Self, Failure> {
        File::open("/proc/thread-self/ns/net")
            .map(Self)
            .map_err(|error| {
                Failure::broken("looking up the network namespace of this process", error)
            })
    }

    /// Does something there.
    pub(crate) fn run_in<T>(&self, act: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
        let inside = Self::here()?;
        let same = |errno| Failure::broken("entering a network namespace", errno);
        let is_here = self.number().is_some() && self.number() == inside.number();
        if is_here {
            return act();
        }
        setns(self.0.as_fd(), CloneFlags::CLONE_NEWNET).map_err(same)?;
        let done = act();
        setns(inside.0.as_fd(), CloneFlags::CLONE_NEWNET).map_err(same)?;
        done
    }

    fn number(&self) -> Option<(u64, u64)> {
        let stat = rustix::fs::fstat(&self.0).ok()?;
        Some((stat.st_dev, stat.st_ino))
    }
}
