//! Looks up names of backends, in the network namespace in which the user has started Splitway: the
//! host process can ask no resolver. Names without an address are looked up again from time to
//! time, in a thread, since the system's resolver may take long to answer.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use failure::Failure;
use rustix::event::{EventfdFlags, eventfd};

use crate::supervisor::initial_netns::InitialNetns;
use config::{Answer, BackendAddress, Config, Forwarding};

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct Resolver {
    netns: Arc<InitialNetns>,
    /// When unresolved names are looked up again.
    next: Option<Instant>,
    lookup: Option<Lookup>,
}

/// Names that are being looked up.
#[derive(Debug)]
struct Lookup {
    /// Readable when the answers are there.
    done: Arc<OwnedFd>,
    answers: Receiver<Vec<(BackendAddress, Answer)>>,
}

impl Resolver {
    /// One that asks from the namespace in which this process is now.
    pub(crate) fn here() -> Result<Self, Failure> {
        Ok(Self {
            netns: Arc::new(InitialNetns::here()?),
            next: None,
            lookup: None,
        })
    }

    /// What a proxy forwards, with the addresses of its backends: those from `before` of names that
    /// cannot be resolved.
    pub(crate) fn read(&self, config: &Config, before: Option<&Forwarding>) -> Forwarding {
        Forwarding::read(&config.proxy, before, |backend| {
            let found = self.netns.run_in(|| Ok(look_up(backend)));
            found.unwrap_or_else(|failure| Err(io::Error::other(failure.to_string())))
        })
    }

    /// Looks up the names of `forwarding` again that were not resolved, when it is time, and
    /// returns the answers when they are there.
    pub(crate) fn on_time(
        &mut self,
        now: Instant,
        forwarding: &Forwarding,
    ) -> Option<Vec<(BackendAddress, Answer)>> {
        let interval = forwarding.resolve_interval();
        if let Some(lookup) = &self.lookup {
            let answers = lookup.answers.try_recv().ok()?;
            self.lookup = None;
            self.next = Some(now + interval);
            return Some(answers);
        }
        let unresolved = forwarding.unresolved();
        if unresolved.is_empty() {
            self.next = None;
        } else if *self.next.get_or_insert(now + interval) <= now {
            self.next = Some(now + interval);
            self.begin(unresolved);
        }
        None
    }

    fn begin(&mut self, names: Vec<BackendAddress>) {
        let started = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(io::Error::from)
            .and_then(|done| {
                let (done, netns) = (Arc::new(done), Arc::clone(&self.netns));
                let (to, answers) = channel();
                let is_done = Arc::clone(&done);
                let look_up_all = move || {
                    let answers = netns.run_in(|| Ok(look_up_all(&names)));
                    let answers = answers.unwrap_or_else(|failure| {
                        let why = failure.to_string();
                        let names = names.iter().cloned();
                        names.map(|name| (name, Err(why.clone()))).collect()
                    });
                    // It fails where the supervisor has ended.
                    let _ = to.send(answers);
                    let _ = rustix::io::write(&*is_done, &1u64.to_ne_bytes());
                };
                thread::Builder::new()
                    .name("resolver".to_owned())
                    .spawn(look_up_all)?;
                Ok(Lookup { done, answers })
            });
        match started {
            Ok(lookup) => self.lookup = Some(lookup),
            Err(error) => tracing::warn!(%error, "names of backends are not looked up again"),
        }
    }

    /// Readable when answers are there.
    pub(crate) fn watch(&self) -> Option<BorrowedFd<'_>> {
        self.lookup.as_ref().map(|lookup| lookup.done.as_fd())
    }

    /// When to call [`Resolver::on_time`] at the latest.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.next.filter(|_| self.lookup.is_none())
    }

    /// Tries again after a while, when answers could not be used.
    pub(crate) fn postpone(&mut self, now: Instant) {
        self.next = Some(now + POSTPONED_BY);
    }
}

/// How long answers that come during a reload wait.
const POSTPONED_BY: Duration = Duration::from_secs(1);

fn look_up_all(names: &[BackendAddress]) -> Vec<(BackendAddress, Answer)> {
    let answers = names.iter().map(|name| {
        let answer = look_up(name).map_err(|error| error.to_string());
        (name.clone(), answer)
    });
    answers.collect()
}

/// Asks the system's resolver. Each address counts once.
fn look_up(backend: &BackendAddress) -> io::Result<Vec<SocketAddr>> {
    let place = (backend.host(), backend.port());
    let mut found: Vec<SocketAddr> = place.to_socket_addrs()?.collect();
    found.sort_unstable();
    found.dedup();
    Ok(found)
}
