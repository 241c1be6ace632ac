//! Name resolution for an origin: one lookup at a time, shared by all requests that wait.
//!
//! The C library's resolver blocks a thread for its whole timeout. Each origin uses at most one
//! such thread, never one of the disk threads, so that a stuck resolver delays nothing else.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use hyper_util::client::legacy::connect::dns::Name;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;
use tower_service::Service;

/// Lifetime of a result, for the requests that waited during the lookup or start just then.
const FRESH: Duration = Duration::from_secs(1);

type Lookup = fn(&str) -> io::Result<Vec<SocketAddr>>;

/// See the [module documentation](self).
#[derive(Clone, Debug)]
pub(crate) struct Resolver {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    lookup: Lookup,
    patience: Duration,
    /// Held by the request that runs the lookup.
    turn: Arc<Semaphore>,
    answer: Mutex<Option<(Instant, Vec<SocketAddr>)>>,
}

impl Resolver {
    /// A resolver with this timeout.
    pub(crate) fn new(patience: Duration) -> Resolver {
        Resolver::with(patience, |name| {
            (name, 0).to_socket_addrs().map(Iterator::collect)
        })
    }

    fn with(patience: Duration, lookup: Lookup) -> Resolver {
        Resolver {
            shared: Arc::new(Shared {
                lookup,
                patience,
                turn: Arc::new(Semaphore::new(1)),
                answer: Mutex::default(),
            }),
        }
    }
}

impl Shared {
    /// The last result, if it is fresh.
    fn known(&self) -> Option<Vec<SocketAddr>> {
        let answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, addresses) = answer.as_ref()?;
        (at.elapsed() < FRESH).then(|| addresses.clone())
    }

    async fn resolve(self: Arc<Self>, name: String) -> io::Result<Vec<SocketAddr>> {
        let turn = Arc::clone(&self.turn).acquire_owned().await;
        let turn = turn.map_err(io::Error::other)?;
        if let Some(addresses) = self.known() {
            return Ok(addresses);
        }
        let (answer, asked) = oneshot::channel();
        let ask = move || {
            // Held until the lookup ends, even if no request waits for it any more.
            let _turn = turn;
            let _ = answer.send(self.ask(&name));
        };
        thread::Builder::new().name("look-up".into()).spawn(ask)?;
        asked
            .await
            .unwrap_or_else(|error| Err(io::Error::other(error)))
    }

    /// Runs the lookup, and keeps its result for other requests.
    fn ask(&self, name: &str) -> io::Result<Vec<SocketAddr>> {
        let addresses = (self.lookup)(name)?;
        let mut answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        *answer = Some((Instant::now(), addresses.clone()));
        Ok(addresses)
    }
}

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let patience = shared.patience;
            match timeout(patience, shared.resolve(name.as_str().to_owned())).await {
                Ok(answer) => Ok(answer?.into_iter()),
                Err(_) => {
                    let why = format!("the name {name} was not resolved within {patience:?}");
                    Err(io::Error::new(io::ErrorKind::TimedOut, why))
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    static ASKED: AtomicUsize = AtomicUsize::new(0);
    static IS_ANSWERED: Mutex<bool> = Mutex::new(false);
    static MOVED: std::sync::Condvar = std::sync::Condvar::new();

    fn waiting(name: &str) -> io::Result<Vec<SocketAddr>> {
        ASKED.fetch_add(1, Ordering::Relaxed);
        let mut is_answered = IS_ANSWERED.lock().unwrap();
        while !*is_answered {
            is_answered = MOVED.wait(is_answered).unwrap();
        }
        (name, 0).to_socket_addrs().map(Iterator::collect)
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_resolver_that_does_not_answer_takes_one_thread_however_many_wait() {
        let resolver = Resolver::with(Duration::from_millis(50), waiting);
        let ask = || {
            let mut resolver = resolver.clone();
            tokio::spawn(async move { resolver.call("127.0.0.1".parse().unwrap()).await })
        };
        for _ in 0..2 {
            let asking: Vec<_> = (0..50).map(|_| ask()).collect();
            for asked in asking {
                let error = asked.await.unwrap().unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            }
            assert_eq!(ASKED.load(Ordering::Relaxed), 1);
        }
        *IS_ANSWERED.lock().unwrap() = true;
        MOVED.notify_all();
        // The late result serves the requests that come then.
        let mut addresses = ask().await.unwrap().unwrap();
        assert_eq!(addresses.next(), Some(([127, 0, 0, 1], 0).into()));
        assert_eq!(ASKED.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn resolvers_that_do_not_answer_leave_the_threads_of_the_disk_alone() {
        static GATE: Mutex<()> = Mutex::new(());
        let stuck: Lookup = |_| {
            drop(GATE.lock());
            Ok(Vec::new())
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(1)
            .build()
            .unwrap();
        let _shut = GATE.lock().unwrap();
        runtime.block_on(async {
            for _ in 0..3 {
                let mut resolver = Resolver::with(Duration::from_millis(10), stuck);
                let asked = resolver.call("127.0.0.1".parse().unwrap()).await;
                assert_eq!(asked.unwrap_err().kind(), io::ErrorKind::TimedOut);
            }
            let write = tokio::task::spawn_blocking(|| ());
            let written = timeout(Duration::from_secs(20), write).await;
            written.expect("a free thread").unwrap();
        });
    }
}
