//! Resolves names of backends in the network namespace in which the user started Splitway: the host
//! process cannot reach a resolver.
//!
//! Threads look up several names at a time, since the system's resolver may be slow. A start or a
//! reload waits at most a few seconds for all lookups together: names without an answer by then are
//! unresolved, and looked up again from time to time.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use failure::Failure;
use rustix::event::{EventfdFlags, eventfd};

use crate::supervisor::initial_netns::InitialNetns;
use config::{Answer, BackendAddress, Config, Forwarding};

/// Most lookups at a time.
const THREADS_MAX: usize = 16;

/// Longest time for all lookups of a start or a reload: the supervisor, which must answer the
/// service manager's watchdog, does nothing else meanwhile.
const TIME_MAX: Duration = Duration::from_secs(3);

type LookUp = dyn Fn(&BackendAddress) -> Answer + Send + Sync;

/// See the [module documentation](self).
pub(crate) struct Resolver {
    asked: Asked,
    time_max: Duration,
    /// When unresolved names are looked up again.
    next: Option<Instant>,
    lookup: Option<Lookup>,
}

/// The resolver of the system, and the network namespace for it.
#[derive(Clone)]
struct Asked {
    netns: Arc<InitialNetns>,
    look_up: Arc<LookUp>,
}

/// Lookups under way.
#[derive(Debug)]
struct Lookup {
    /// Readable once all answers have arrived.
    done: Arc<OwnedFd>,
    answers: Receiver<Vec<(BackendAddress, Answer)>>,
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolver")
            .field("next", &self.next)
            .field("lookup", &self.lookup)
            .finish_non_exhaustive()
    }
}

impl Resolver {
    /// Resolves in the current network namespace of this process.
    pub(crate) fn here() -> Result<Self, Failure> {
        Self::with(TIME_MAX, Arc::new(look_up))
    }

    fn with(time_max: Duration, look_up: Arc<LookUp>) -> Result<Self, Failure> {
        let netns = Arc::new(InitialNetns::here()?);
        Ok(Self {
            asked: Asked { netns, look_up },
            time_max,
            next: None,
            lookup: None,
        })
    }

    /// Returns the backends of a proxy with their addresses; names not resolved in time keep their
    /// addresses of `before`.
    pub(crate) fn read(&self, config: &Config, before: Option<&Forwarding>) -> Forwarding {
        Forwarding::read(&config.proxy, before, |names| {
            let until = Instant::now() + self.time_max;
            let answers = self.asked.look_up_all(names);
            let left = || until.saturating_duration_since(Instant::now());
            std::iter::from_fn(|| answers.recv_timeout(left()).ok()).collect()
        })
    }

    /// Looks up the unresolved names of `forwarding` again when it is time, and returns the answers
    /// once they have arrived.
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
                let (done, asked) = (Arc::new(done), self.asked.clone());
                let (to, answers) = channel();
                let is_done = Arc::clone(&done);
                start_thread(move || {
                    let answers = asked.look_up_all(&names).into_iter().collect();
                    // Fails if the supervisor has dropped the receiver.
                    let _ = to.send(answers);
                    let _ = rustix::io::write(&*is_done, &1u64.to_ne_bytes());
                })?;
                Ok(Lookup { done, answers })
            });
        match started {
            Ok(lookup) => self.lookup = Some(lookup),
            Err(error) => tracing::warn!(%error, "names of backends are not looked up again"),
        }
    }

    /// Returns a descriptor that is readable once the answers have arrived.
    pub(crate) fn watch(&self) -> Option<BorrowedFd<'_>> {
        self.lookup.as_ref().map(|lookup| lookup.done.as_fd())
    }

    /// Returns when to call [`Resolver::on_time`] at the latest.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.next.filter(|_| self.lookup.is_none())
    }

    /// Retries after a while, when answers could not be used.
    pub(crate) fn postpone(&mut self, now: Instant) {
        self.next = Some(now + POSTPONED_BY);
    }
}

/// Delay of answers that arrive during a reload.
const POSTPONED_BY: Duration = Duration::from_secs(1);

impl Asked {
    /// Looks up names in threads. Dropping the receiver ends them, each after its current lookup.
    fn look_up_all(&self, names: &[BackendAddress]) -> Receiver<(BackendAddress, Answer)> {
        let (to, answers) = channel();
        let waiting: VecDeque<BackendAddress> = names.iter().cloned().collect();
        let waiting = Arc::new(Mutex::new(waiting));
        for _ in 0..names.len().min(THREADS_MAX) {
            let (asked, waiting, to) = (self.clone(), Arc::clone(&waiting), to.clone());
            let next = move || {
                let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
                waiting.pop_front()
            };
            let started = start_thread(move || {
                while let Some(name) = next() {
                    let answer = asked.look_up(&name);
                    if to.send((name, answer)).is_err() {
                        return;
                    }
                }
            });
            if let Err(error) = started {
                tracing::warn!(%error, "names of backends are looked up by fewer threads");
                break;
            }
        }
        answers
    }

    fn look_up(&self, name: &BackendAddress) -> Answer {
        let answer = self.netns.run_in(|| Ok((self.look_up)(name)));
        answer.unwrap_or_else(|failure| Err(failure.to_string()))
    }
}

fn start_thread(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = thread::Builder::new().name("resolver".to_owned());
    thread.spawn(work).map(drop)
}

/// Asks the system's resolver. Removes duplicate addresses.
fn look_up(backend: &BackendAddress) -> Answer {
    let place = (backend.host(), backend.port());
    let found = place.to_socket_addrs().map_err(|error| error.to_string())?;
    let mut found: Vec<SocketAddr> = found.collect();
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    /// Returns the configuration of a proxy with `count` named backends.
    fn with_names(count: usize) -> Config {
        let backend = |number| format!("[[proxy.pool.backend]]\naddress = 'b{number}.test:80'\n");
        let backends: String = (0..count).map(backend).collect();
        let text = format!("[[proxy.pool]]\nname = 'web'\n{backends}");
        toml::from_str(&text).unwrap()
    }

    #[test]
    fn a_silent_resolver_delays_no_start_and_no_reload() {
        let (held, gate) = channel::<()>();
        let gate = Mutex::new(gate);
        let silent = move |_: &BackendAddress| {
            let gate = gate.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = gate.recv();
            Err("the end of the test".to_owned())
        };
        let resolver = Resolver::with(Duration::from_millis(10), Arc::new(silent)).unwrap();
        let forwarding = resolver.read(&with_names(20), None);
        assert_eq!(forwarding.unresolved().len(), 20);
        let warnings = forwarding.warnings();
        assert!(
            warnings[0].contains("the resolver does not answer"),
            "{warnings:?}"
        );
        drop(held);
    }

    #[test]
    fn names_are_looked_up_at_the_same_time() {
        let all = Barrier::new(THREADS_MAX);
        let together = move |name: &BackendAddress| {
            all.wait();
            Ok(vec![SocketAddr::from(([192, 0, 2, 1], name.port()))])
        };
        let resolver = Resolver::with(Duration::from_secs(60), Arc::new(together)).unwrap();
        let forwarding = resolver.read(&with_names(2 * THREADS_MAX), None);
        assert_eq!(forwarding.unresolved(), []);
    }
}
