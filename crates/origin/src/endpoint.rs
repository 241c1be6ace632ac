//! The fetcher's end of the socket to the host process, and the loop around it all.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use tokio::net::{UnixDatagram, UnixStream};
use tokio::sync::mpsc;

use crate::fetcher::Fetcher;
use crate::message::{Answer, Ask, MESSAGE_BYTES_MAX};
use crate::store::{Limits, Store, VERSION_BYTES};
use crate::transfer::Event;
use crate::upstream::{OriginUrl, Timeouts, Trust, Upstream};

/// Messages of the host process that are taken in one go.
const BATCH: usize = 64;

/// Events of transfers that wait for the loop.
const EVENTS_MAX: usize = 64;

/// How long the end waits for what is being removed from the cache directory; the next start finds the rest.
const END_WAIT: Duration = Duration::from_secs(1);

/// What a fetcher is told.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where it may write.
    pub cache_dir: PathBuf,
    /// Most content there, but for segments that are being written, in bytes. Each object counts 8 KiB more.
    pub bytes_max: u64,
    /// Length of a segment, in bytes. What was cached with another one is dropped.
    pub segment_bytes: u64,
    /// By their numbers.
    pub origins: Vec<OriginUrl>,
    /// Whom origins that speak TLS are certified by.
    pub trust: Trust,
    /// How long origins may take.
    pub timeouts: Timeouts,
}

/// What has happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Objects that the host process has asked for.
    pub asked: u64,
    /// Of these, those that were there, fresh or stale.
    pub hits: u64,
    /// Of these, those that waited for a request that was under way.
    pub coalesced: u64,
    /// Answered from what was stale.
    pub stale: u64,
    /// For one client alone, since they may not be shared.
    pub passed: u64,
    /// Requests to origins, without those repeated after a failure.
    pub requests: u64,
    /// Of these, those that were answered 304.
    pub revalidated: u64,
    /// Of these, those that have failed or were broken off.
    pub failures: u64,
    /// Tickets whose version was not to be had to its end.
    pub lost: u64,
    /// Content that has come from origins, in bytes.
    pub fetched_bytes: u64,
    /// Content that has been removed, in bytes.
    pub evicted_bytes: u64,
    /// Content that is there now, in bytes.
    pub cached_bytes: u64,
}

impl Counters {
    /// All of them by name.
    pub fn rows(&self) -> [(&'static str, u64); 12] {
        [
            ("origin_asked", self.asked),
            ("origin_hits", self.hits),
            ("origin_coalesced", self.coalesced),
            ("origin_stale", self.stale),
            ("origin_passed", self.passed),
            ("origin_requests", self.requests),
            ("origin_revalidated", self.revalidated),
            ("origin_failures", self.failures),
            ("origin_lost", self.lost),
            ("origin_fetched_bytes", self.fetched_bytes),
            ("origin_evicted_bytes", self.evicted_bytes),
            ("origin_cached_bytes", self.cached_bytes),
        ]
    }
}

/// Why a fetcher has ended.
#[derive(Debug)]
pub enum FetcherError {
    /// The cache directory cannot be used.
    Cache(PathBuf, io::Error),
    /// It could not be set up.
    Setup(io::Error),
    /// The socket to the host process has failed.
    Socket(io::Error),
}

impl fmt::Display for FetcherError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FetcherError::Cache(path, error) => {
                write!(f, "cache directory {}: {error}", path.display())
            }
            FetcherError::Setup(error) => write!(f, "setting up the fetcher: {error}"),
            FetcherError::Socket(error) => {
                write!(f, "the socket to the host process: {error}")
            }
        }
    }
}

impl std::error::Error for FetcherError {}

/// Fetches for the host process at the other end of `host`, a Unix socket that keeps messages apart, until that hangs up
/// or `stop`, a Unix stream, becomes readable. `ready` is called when it is known that the cache directory can be written to;
/// while what is there is being read, which may take long, the host process is not heard yet.
pub fn run(
    config: &Config,
    host: OwnedFd,
    stop: OwnedFd,
    ready: impl FnOnce(),
) -> Result<Counters, FetcherError> {
    let failed = |error| FetcherError::Cache(config.cache_dir.clone(), error);
    Store::prepare(&config.cache_dir).map_err(failed)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(8)
        .build()
        .map_err(FetcherError::Setup)?;
    let counters = runtime.block_on(serve(config, host, stop, ready));
    // A look-up of a name may take long, and nobody waits for it any more.
    runtime.shutdown_background();
    counters
}

async fn serve(
    config: &Config,
    host: OwnedFd,
    stop: OwnedFd,
    ready: impl FnOnce(),
) -> Result<Counters, FetcherError> {
    // Any socket that keeps messages apart may be one of datagrams here.
    let host = std::os::unix::net::UnixDatagram::from(host);
    host.set_nonblocking(true).map_err(FetcherError::Setup)?;
    let host = UnixDatagram::from_std(host).map_err(FetcherError::Setup)?;
    let stop = std::os::unix::net::UnixStream::from(stop);
    stop.set_nonblocking(true).map_err(FetcherError::Setup)?;
    let stop = UnixStream::from_std(stop).map_err(FetcherError::Setup)?;
    ready();
    let store = tokio::select! {
        store = open(config) => store?,
        _ = stop.readable() => return Ok(Counters::default()),
    };
    let upstreams = config.origins.iter();
    let upstreams = upstreams.map(|url| Upstream::new(url.clone(), &config.trust, config.timeouts));
    let (sender, mut events) = mpsc::channel(EVENTS_MAX);
    let mut fetcher = Fetcher::new(upstreams.collect(), store, sender);
    let ended = listen(&host, &stop, &mut events, &mut fetcher).await;
    let _ = tokio::time::timeout(END_WAIT, fetcher.settle()).await;
    ended.map_err(FetcherError::Socket)?;
    Ok(fetcher.counters())
}

/// Reads what the cache directory holds.
async fn open(config: &Config) -> Result<Store, FetcherError> {
    let origins: Vec<String> = config.origins.iter().map(ToString::to_string).collect();
    let limits = Limits {
        bytes_max: config.bytes_max,
        segment_bytes: config.segment_bytes,
        version_bytes: VERSION_BYTES,
    };
    let root = config.cache_dir.clone();
    let open = tokio::task::spawn_blocking(move || Store::open(&root, limits, &origins));
    let store = open
        .await
        .unwrap_or_else(|error| Err(io::Error::other(error)));
    store.map_err(|error| FetcherError::Cache(config.cache_dir.clone(), error))
}

/// Until the host process hangs up, or it is to end.
async fn listen(
    host: &UnixDatagram,
    stop: &UnixStream,
    events: &mut mpsc::Receiver<Event>,
    fetcher: &mut Fetcher,
) -> io::Result<()> {
    let mut buffer = vec![0; MESSAGE_BYTES_MAX];
    loop {
        let has_answers = !fetcher.answers.is_empty();
        tokio::select! {
            _ = stop.readable() => return Ok(()),
            Some(event) = events.recv() => fetcher.on_event(event),
            ready = host.readable() => {
                ready?;
                if !take_in(host, &mut buffer, fetcher)? {
                    return Ok(());
                }
            }
            ready = host.writable(), if has_answers => {
                ready?;
                hand_out(host, fetcher)?;
            }
        }
    }
}

/// False if the host process has hung up.
fn take_in(host: &UnixDatagram, buffer: &mut [u8], fetcher: &mut Fetcher) -> io::Result<bool> {
    for _ in 0..BATCH {
        let message = match host.try_recv(buffer) {
            Ok(0) => return Ok(false),
            Ok(bytes) => &buffer[..bytes],
            Err(error) => return what_is_left(error),
        };
        match serde_json::from_slice::<Ask>(message) {
            Ok(ask) => fetcher.on_ask(ask),
            Err(error) => tracing::error!("the host process asks what makes no sense: {error}"),
        }
    }
    Ok(true)
}

/// What an error of the socket means: that there is nothing now, that the other end is gone (false), or a failure.
fn what_is_left(error: io::Error) -> io::Result<bool> {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(true),
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Ok(false),
        _ => Err(error),
    }
}

/// Says as much as the socket takes. Whether the other end is gone is heard otherwise.
fn hand_out(host: &UnixDatagram, fetcher: &mut Fetcher) -> io::Result<()> {
    while let Some(answer) = fetcher.answers.front() {
        let bytes = serde_json::to_vec(answer)?;
        if let (Answer::Object { ticket, .. }, true) = (answer, bytes.len() > MESSAGE_BYTES_MAX) {
            let ticket = *ticket;
            tracing::warn!("an answer has more header fields than clients can be told of");
            fetcher.answers.pop_front();
            fetcher.on_ask(Ask::Done { ticket });
            fetcher.answers.push_front(Answer::Lost { ticket });
            continue;
        }
        match host.try_send(&bytes) {
            Ok(_) => drop(fetcher.answers.pop_front()),
            Err(error) => return what_is_left(error).map(drop),
        }
    }
    Ok(())
}
