//! Keeps a fetcher at work: starts it, and starts another when it has ended. What is cached is served meanwhile as far as
//! the host process knows where it lies; what else is asked for waits.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use nix::sched::{CloneFlags, setns};

use crate::backoff::Backoff;
use crate::child::Child;
use crate::error::Failure;
use crate::family::{Family, Happening, Role};
use crate::messages::Message;
use crate::origin_options::OriginPlan;
use crate::program::Program;
use crate::{handover, socket};

/// The network namespace in which the user has started Splitway: origins are reached from there.
#[derive(Debug)]
pub(crate) struct Outside(File);

impl Outside {
    /// The one that this process is in now.
    pub(crate) fn here() -> Result<Self, Failure> {
        File::open("/proc/thread-self/ns/net")
            .map(Self)
            .map_err(|error| Failure::broken("looking for the own network namespace", error))
    }

    /// Does something there.
    fn visit<T>(&self, act: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
        let inside = Self::here()?;
        let same = |errno| Failure::broken("entering a network namespace for the fetcher", errno);
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

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct FetchKeeper {
    plan: OriginPlan,
    log: String,
    program: Program,
    outside: Outside,
    /// Leads to the host process.
    host: OwnedFd,
    backoff: Backoff,
    /// When another one is started.
    next: Option<Instant>,
}

impl FetchKeeper {
    /// Starts the first one.
    pub(crate) fn start(
        family: &mut Family,
        plan: OriginPlan,
        outside: Outside,
        host: &OwnedFd,
        log: &str,
    ) -> Result<Self, Failure> {
        let host = host
            .try_clone()
            .map_err(|error| Failure::broken("making a socket for the host process", error))?;
        let mut keeper = Self {
            plan,
            log: log.to_owned(),
            program: Program::own()?,
            outside,
            host,
            backoff: Backoff::default(),
            next: None,
        };
        keeper.spawn(family)?;
        Ok(keeper)
    }

    fn spawn(&mut self, family: &mut Family) -> Result<(), Failure> {
        let (to_fetcher, fetcher) = socket::pair()
            .map_err(|errno| Failure::broken("making a socket for the fetcher", errno))?;
        let image = self.program.image();
        let arguments = self.plan.fetch_arguments(&self.log);
        let child = self
            .outside
            .visit(|| Child::spawn("fetcher", &image, arguments, fetcher))?;
        family.adopt(Role::Fetcher, child);
        handover::pass(&self.host, handover::FETCHER, Some(&to_fetcher))
            .map_err(|errno| Failure::broken("handing the fetcher to the host process", errno))
    }

    /// What it is to do, for people.
    pub(crate) fn describe(&self) -> String {
        self.plan.describe()
    }

    /// When [`FetchKeeper::on`] is to be called though nothing happens.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.next
    }

    /// Something has happened, or time has passed.
    pub(crate) fn on(&mut self, family: &mut Family, happening: &Happening) {
        let now = Instant::now();
        match happening {
            Happening::Said(Role::Fetcher, Message::FetcherReady) => {
                self.backoff.on_success(now);
            }
            Happening::Ended(Role::Fetcher) => {
                let fate = family.fate(Role::Fetcher).unwrap_or_else(|| {
                    Failure::broken("fetcher", "ended although nobody asked it to")
                });
                family.dismiss(Role::Fetcher);
                self.fail(now, &fate);
            }
            _ => {}
        }
        if self.next.is_some_and(|at| at <= now) {
            self.next = None;
            if let Err(failure) = self.spawn(family) {
                family.dismiss(Role::Fetcher);
                self.fail(now, &failure);
            }
        }
    }

    fn fail(&mut self, now: Instant, failure: &Failure) {
        let wait = self.backoff.on_failure(now);
        tracing::error!(
            "{failure}; what is to come from an origin waits, another fetcher is started in {wait:?}"
        );
        self.next = Some(now + wait);
    }
}
