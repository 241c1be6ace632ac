//! The fetcher's end of the socket to the host process, and the loop around it all.

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

/// Messages of the host process that are taken in one go.
const BATCH: usize = 64;

/// Events of transfers that wait for the loop.
const EVENTS_MAX: usize = 64;

/// Threads that wait for the disk.
const DISK_THREADS: usize = 8;

/// How long the end waits for what is being removed from the cache directory; the next start finds
/// the rest.
const END_WAIT: Duration = Duration::from_secs(1);

/// The configuration of a fetcher.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where it may write.
    pub cache_dir: PathBuf,
    /// Most content there, but for segments that are being written, in bytes. Each object counts 12
    /// KiB more.
    pub bytes_max: u64,
    /// Most variants of a target, 1 at least.
    pub variants_max: usize,
    /// Most header fields of an answer; one with more is refused.
    pub field_limits: FieldLimits,
    /// Length of a segment, in bytes. What was cached with another one is dropped.
    pub segment_bytes: u64,
    /// What may be asked. One that is named twice is the same.
    pub origins: Vec<OriginUrl>,
    /// Whom origins that speak TLS are certified by.
    pub trust: Trust,
    /// How long origins may take.
    pub timeouts: Timeouts,
    /// The run of the kernel that this is (`/proc/sys/kernel/random/boot_id`); empty if that is not
    /// known. In another one, content in the cache is compared with its checksums first.
    pub boot_id: String,
}

/// How long counters may wait until they are reported.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// The ends of sockets that are a fetcher's.
#[derive(Debug)]
pub struct Ends {
    /// Leads to the host process; a Unix socket that keeps messages apart.
    pub host: OwnedFd,
    /// The same, from where [`Order`]s come.
    pub orders: OwnedFd,
    /// A Unix stream that becomes readable when it is to end.
    pub stop: OwnedFd,
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

/// Fetches for the host process until that hangs up, a stop is ordered, or it has retired. `ready`
/// is called when it is known that the cache directory can be written to; while what is there is
/// being read, which may take long, the host process is not heard yet. `tell` is called once a
/// second, while there is something new to tell, and again if it could not be told.
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
    // A look-up of a name may take long, and its result is not needed any more.
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
        // What is still queued has no reader.
        () = async { while events.recv().await.is_some() {} } => {}
        () = tokio::time::sleep(END_WAIT) => {}
    }
    ended.map_err(FetcherError::Socket)?;
    Ok(fetcher.counters().total)
}

/// Any socket that keeps messages apart may be one of datagrams here.
fn messages(socket: OwnedFd) -> Result<UnixDatagram, FetcherError> {
    let socket = std::os::unix::net::UnixDatagram::from(socket);
    socket.set_nonblocking(true).map_err(FetcherError::Setup)?;
    UnixDatagram::from_std(socket).map_err(FetcherError::Setup)
}

/// Reads what the cache directory holds.
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

/// A fetcher's sockets, while it is at work.
struct Endpoint<'a> {
    config: &'a Config,
    host: UnixDatagram,
    /// `None`: the supervisor is gone.
    orders: Option<UnixDatagram>,
    stop: UnixStream,
    buffer: Vec<u8>,
    /// What is counted is to be told now.
    is_to_tell: bool,
}

impl Endpoint<'_> {
    /// Until the host process hangs up, or it is to end.
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
                    // What it asks for may be of an origin that has just been made known.
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

    /// False if the host process has hung up.
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

/// Waits for a socket that there is.
async fn readable(socket: Option<&UnixDatagram>) -> io::Result<()> {
    match socket {
        Some(socket) => socket.readable().await,
        None => std::future::pending().await,
    }
}

/// What an error of the socket means: that there is nothing now, that the other end is gone
/// (false), or a failure.
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
