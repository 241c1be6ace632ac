//! The fetcher's end of the socket to the host process, and its event loop.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{UnixDatagram, UnixStream};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::counters::{Counted, Totals};
use crate::fetcher::Fetcher;
use crate::fields::FieldLimits;
use crate::message::{Answer, HostRequest, MESSAGE_BYTES_MAX, Order};
use crate::store::{Limits, Store, VERSION_BYTES};
use crate::transfer::Event;
use crate::upstream::{OriginUrl, Timeouts, Trust, Upstream};

/// Messages of the host process read in one batch.
const BATCH: usize = 64;

/// Transfer events queued for the loop.
const EVENTS_MAX: usize = 64;

/// Threads for disk operations.
const DISK_THREADS: usize = 8;

/// How long the exit waits for pending removals from the cache directory; the next start removes
/// the rest.
const END_WAIT: Duration = Duration::from_secs(1);

/// The configuration of a fetcher.
#[derive(Clone, Debug)]
pub struct Config {
    /// The cache directory.
    pub cache_dir: PathBuf,
    /// Most content in the cache directory, without segments being written, in bytes. Each object
    /// counts 12 KiB more.
    pub bytes_max: u64,
    /// Most variants of a target, 1 at least.
    pub variants_max: usize,
    /// Most header fields of a response; one with more is refused.
    pub field_limits: FieldLimits,
    /// Length of a segment, in bytes. Content cached with another length is dropped.
    pub segment_bytes: u64,
    /// Origins that may be requested; duplicates have no effect.
    pub origins: Vec<OriginUrl>,
    /// Trusted certificates of origins with TLS.
    pub trust: Trust,
    /// Time limits for origins.
    pub timeouts: Timeouts,
    /// Boot ID of the running kernel (`/proc/sys/kernel/random/boot_id`); empty if unknown. After a
    /// reboot, cached content is first verified against its checksums.
    pub boot_id: String,
}

/// Interval between reports of counters.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// The fetcher's ends of its sockets.
#[derive(Debug)]
pub struct Ends {
    /// Socket to the host process; a Unix socket that preserves message boundaries.
    pub host: OwnedFd,
    /// Socket to the supervisor, for [`Order`]s; preserves message boundaries, too.
    pub orders: OwnedFd,
    /// A Unix stream that becomes readable when the fetcher must end.
    pub stop: OwnedFd,
}

/// Why a fetcher ended.
#[derive(Debug)]
pub enum FetcherError {
    /// The cache directory is unusable.
    Cache(PathBuf, io::Error),
    /// The runtime or a socket could not be set up.
    Setup(io::Error),
    /// The socket to the host process failed.
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

/// Fetches for the host process until that hangs up, a stop is ordered, or the fetcher has retired.
/// Calls `ready` once the cache directory is known to be writable; scanning it may take long, and
/// no request is read until then. Calls `tell` once a second while counters have changed, and again
/// if it returned false.
pub fn run(
    config: &Config,
    ends: Ends,
    ready: impl FnOnce(),
    tell: impl FnMut(&Counted<'_>) -> bool,
) -> Result<Totals, FetcherError> {
    let failed = |error| FetcherError::Cache(config.cache_dir.clone(), error);
    Store::prepare(&config.cache_dir).map_err(failed)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(DISK_THREADS)
        .build()
        .map_err(FetcherError::Setup)?;
    let counters = runtime.block_on(serve(config, ends, ready, tell));
    // A name lookup may take long, and its result is not needed any more.
    runtime.shutdown_background();
    counters
}

async fn serve(
    config: &Config,
    ends: Ends,
    ready: impl FnOnce(),
    tell: impl FnMut(&Counted<'_>) -> bool,
) -> Result<Totals, FetcherError> {
    let (host, orders) = (messages(ends.host)?, messages(ends.orders)?);
    let stop = std::os::unix::net::UnixStream::from(ends.stop);
    stop.set_nonblocking(true).map_err(FetcherError::Setup)?;
    let stop = UnixStream::from_std(stop).map_err(FetcherError::Setup)?;
    ready();
    let store = tokio::select! {
        store = open(config) => store?,
        _ = stop.readable() => return Ok(Totals::default()),
    };
    let upstreams = config.origins.iter();
    let upstreams = upstreams.map(|url| Upstream::new(url.clone(), &config.trust, config.timeouts));
    let (sender, mut events) = mpsc::channel(EVENTS_MAX);
    let limits = (config.variants_max, config.field_limits);
    let mut fetcher = Fetcher::new(upstreams, store, limits, sender);
    let mut endpoint = Endpoint {
        is_to_tell: false,
        config,
        host,
        orders: Some(orders),
        stop,
        buffer: vec![0; MESSAGE_BYTES_MAX],
    };
    let ended = endpoint.listen(&mut events, &mut fetcher, tell).await;
    tokio::select! {
        () = fetcher.settle() => {}
        // The events still queued have no reader.
        () = async { while events.recv().await.is_some() {} } => {}
        () = tokio::time::sleep(END_WAIT) => {}
    }
    ended.map_err(FetcherError::Socket)?;
    Ok(fetcher.counters().total)
}

/// Wraps a message socket; any socket type that preserves message boundaries works as a datagram
/// socket here.
fn messages(socket: OwnedFd) -> Result<UnixDatagram, FetcherError> {
    let socket = std::os::unix::net::UnixDatagram::from(socket);
    socket.set_nonblocking(true).map_err(FetcherError::Setup)?;
    UnixDatagram::from_std(socket).map_err(FetcherError::Setup)
}

/// Opens the cache directory, on another thread.
async fn open(config: &Config) -> Result<Store, FetcherError> {
    let origins: Vec<_> = config
        .origins
        .iter()
        .map(|url| Arc::clone(url.text()))
        .collect();
    let limits = Limits {
        bytes_max: config.bytes_max,
        segment_bytes: config.segment_bytes,
        version_bytes: VERSION_BYTES,
    };
    let root = config.cache_dir.clone();
    let boot_id = config.boot_id.clone();
    let open = tokio::task::spawn_blocking(move || Store::open(&root, limits, &origins, &boot_id));
    let store = open
        .await
        .unwrap_or_else(|error| Err(io::Error::other(error)));
    store.map_err(|error| FetcherError::Cache(config.cache_dir.clone(), error))
}

/// The sockets of a running fetcher.
struct Endpoint<'a> {
    config: &'a Config,
    host: UnixDatagram,
    /// `None` once the supervisor is gone.
    orders: Option<UnixDatagram>,
    stop: UnixStream,
    buffer: Vec<u8>,
    /// A report of counters was ordered.
    is_to_tell: bool,
}

impl Endpoint<'_> {
    /// Runs until the host process hangs up, a stop is ordered, or the fetcher has retired.
    async fn listen(
        &mut self,
        events: &mut mpsc::Receiver<Event>,
        fetcher: &mut Fetcher,
        mut tell: impl FnMut(&Counted<'_>) -> bool,
    ) -> io::Result<()> {
        let mut told_at = Instant::now();
        loop {
            let has_answers = !fetcher.answers.is_empty();
            let has_news = fetcher.are_counters_new();
            tokio::select! {
                _ = self.stop.readable() => return Ok(()),
                Some(event) = events.recv() => fetcher.on_event(event),
                ready = readable(self.orders.as_ref()) => {
                    ready?;
                    self.take_orders(fetcher)?;
                }
                ready = self.host.readable() => {
                    ready?;
                    // A request may be for an origin that an order has just admitted.
                    self.take_orders(fetcher)?;
                    if !self.take_in(fetcher)? {
                        return Ok(());
                    }
                }
                ready = self.host.writable(), if has_answers => {
                    ready?;
                    hand_out(&self.host, fetcher)?;
                }
                () = tokio::time::sleep_until(told_at + TELL_EVERY), if has_news => {
                    told_at = Instant::now();
                    let is_known = tell(&fetcher.counters());
                    fetcher.on_told(is_known);
                }
            }
            if std::mem::take(&mut self.is_to_tell) {
                told_at = Instant::now();
                let is_known = tell(&fetcher.counters());
                fetcher.on_told(is_known);
            }
            if fetcher.may_end() {
                tell(&fetcher.counters());
                return Ok(());
            }
        }
    }

    fn take_orders(&mut self, fetcher: &mut Fetcher) -> io::Result<()> {
        while let Some(orders) = &self.orders {
            let message = match orders.try_recv(&mut self.buffer) {
                Ok(0) => {
                    self.orders = None;
                    break;
                }
                Ok(bytes) => &self.buffer[..bytes],
                Err(error) => {
                    if !what_is_left(error)? {
                        self.orders = None;
                    }
                    break;
                }
            };
            match serde_json::from_slice::<Order>(message) {
                Ok(order) => self.on_order(order, fetcher),
                Err(error) => tracing::error!("invalid order: {error}"),
            }
        }
        Ok(())
    }

    fn on_order(&mut self, order: Order, fetcher: &mut Fetcher) {
        match order {
            Order::Use {
                origins,
                bytes_max,
                variants_max,
                head_bytes_max,
                fields_max,
            } => {
                for origin in origins {
                    match origin.parse::<OriginUrl>() {
                        Ok(url) => {
                            let Config {
                                trust, timeouts, ..
                            } = self.config;
                            fetcher.admit(&url, || Upstream::new(url.clone(), trust, *timeouts));
                        }
                        Err(error) => tracing::error!("{error}"),
                    }
                }
                fetcher.resize(bytes_max);
                fetcher.set_variants_max(variants_max);
                fetcher.set_field_limits(FieldLimits {
                    bytes_max: head_bytes_max,
                    count_max: fields_max,
                });
            }
            Order::Tell => self.is_to_tell = true,
            Order::Retire => fetcher.retire(),
        }
    }

    /// Reads requests; returns false if the host process hung up.
    fn take_in(&mut self, fetcher: &mut Fetcher) -> io::Result<bool> {
        for _ in 0..BATCH {
            let message = match self.host.try_recv(&mut self.buffer) {
                Ok(0) => return Ok(false),
                Ok(bytes) => &self.buffer[..bytes],
                Err(error) => return what_is_left(error),
            };
            match serde_json::from_slice::<HostRequest>(message) {
                Ok(ask) => fetcher.on_ask(ask),
                Err(error) => tracing::error!("invalid request of the host process: {error}"),
            }
        }
        Ok(true)
    }
}

/// Waits until the socket is readable; forever without one.
async fn readable(socket: Option<&UnixDatagram>) -> io::Result<()> {
    match socket {
        Some(socket) => socket.readable().await,
        None => std::future::pending().await,
    }
}

/// Classifies an error of the socket: no message now (true), peer closed (false), or a failure.
fn what_is_left(error: io::Error) -> io::Result<bool> {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(true),
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Ok(false),
        _ => Err(error),
    }
}

/// Sends answers until the socket is full. A closed peer is detected elsewhere.
fn hand_out(host: &UnixDatagram, fetcher: &mut Fetcher) -> io::Result<()> {
    while let Some(answer) = fetcher.answers.front() {
        let bytes = serde_json::to_vec(answer)?;
        if let (Answer::Object { ticket, .. }, true) = (answer, bytes.len() > MESSAGE_BYTES_MAX) {
            let ticket = *ticket;
            tracing::warn!("an answer has more header fields than clients can get");
            fetcher.answers.pop_front();
            fetcher.on_ask(HostRequest::Done { ticket });
            let status = 502;
            fetcher.answers.push_front(Answer::Lost { ticket, status });
            continue;
        }
        match host.try_send(&bytes) {
            Ok(_) => drop(fetcher.answers.pop_front()),
            Err(error) => return what_is_left(error).map(drop),
        }
    }
    Ok(())
}
