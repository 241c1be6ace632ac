//! The clients of [`super`]: threads that open one connection after the other.

use std::fs;
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::scope;
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;
use testbed::http::Connection;
use testbed::site::{KnownFile, Site};
use testbed::splitway::{HTTP_V4, HTTP_V6};
use testbed::{Context, Failure, Result};

/// Files of short connections, and the size of those of aborted ones.
const FILES: u64 = 16;
const FILE_BYTES: u64 = 4000;
const LARGE_BYTES: u64 = 2 << 20;

/// Bytes of the body after which a client aborts.
const ABORT_BYTES: u64 = 20_000;

/// The server closes one in this many connections, as for clients of HTTP/1.0, and keeps it in
/// TIME-WAIT.
const CLOSED_BY_SERVER: u64 = 10;

/// Most complaints kept.
const COMPLAINTS_MAX: usize = 5;

/// Result of the clients.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Connections whose every byte was right, aborted ones included.
    pub(super) served: u64,
    pub(super) failed: u64,
    /// Reasons of some failures.
    pub(super) complaints: Vec<String>,
}

impl Tally {
    pub(super) fn add(&mut self, other: Tally) {
        self.served += other.served;
        self.failed += other.failed;
        self.complaints.extend(other.complaints);
        self.complaints.truncate(COMPLAINTS_MAX);
    }
}

/// Progress of the clients.
pub(super) struct Progress<'a> {
    opened: &'a AtomicU64,
    total: u64,
}

impl Progress<'_> {
    /// Waits until the least of these shares of all connections is reached; returns the share
    /// reached.
    pub(super) fn wait_for_next(&self, shares: impl Iterator<Item = f64>) -> f64 {
        let next = shares.fold(1.0, f64::min);
        loop {
            let share = match self.total {
                0 => 1.0,
                total => self.opened.load(Ordering::Relaxed).min(total) as f64 / total as f64,
            };
            if share >= next {
                return share;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The clients, and their files.
pub(super) struct Clients {
    threads: usize,
    files: Vec<KnownFile>,
    large: KnownFile,
}

/// Permits reuse of client ports after a second: there are fewer than connections in a minute. Only
/// this namespace is changed.
pub(super) fn make_ports_suffice() -> Result<()> {
    for (name, value) in [("tcp_tw_reuse", "1"), ("ip_local_port_range", "1024 65535")] {
        let path = format!("/proc/sys/net/ipv4/{name}");
        fs::write(&path, value).context(|| format!("writing {path}"))?;
    }
    Ok(())
}

impl Clients {
    pub(super) fn prepare(site: &Site, threads: usize) -> Result<Clients> {
        let files = (0..FILES).map(|number| site.file(&format!("short-{number}"), FILE_BYTES));
        Ok(Clients {
            threads,
            files: files.collect::<Result<_>>()?,
            large: site.file("large", LARGE_BYTES)?,
        })
    }

    /// Opens `connections` connections, and aborts `aborts` further ones, while `meanwhile` runs.
    pub(super) fn run(
        &self,
        connections: u64,
        aborts: u64,
        meanwhile: impl FnOnce(&Progress<'_>) -> Result<()>,
    ) -> Result<Tally> {
        let total = connections + aborts;
        let opened = AtomicU64::new(0);
        let has_failed = AtomicBool::new(false);
        let tally = Mutex::new(Tally::default());
        let client = || {
            let mut own = Tally::default();
            loop {
                let index = opened.fetch_add(1, Ordering::Relaxed);
                if index >= total || has_failed.load(Ordering::Relaxed) {
                    break;
                }
                let outcome = if is_abort(index, total, aborts) {
                    self.abort(index)
                } else {
                    self.ask(index)
                };
                match outcome {
                    Ok(()) => own.served += 1,
                    Err(failure) => {
                        own.failed += 1;
                        own.complaints.push(failure.to_string());
                        own.complaints.truncate(COMPLAINTS_MAX);
                    }
                }
            }
            tally.lock().expect("no client panics").add(own);
        };
        let done = scope(|scope| {
            for _ in 0..self.threads {
                scope.spawn(client);
            }
            let done = meanwhile(&Progress {
                opened: &opened,
                total,
            });
            has_failed.store(done.is_err(), Ordering::Relaxed);
            done
        });
        let tally = tally.into_inner().expect("no client panics");
        done.map_err(|failure| {
            let complaints = tally.complaints.join("; ");
            Failure::new(format!("{failure}; clients: {complaints}"))
        })?;
        Ok(tally)
    }

    /// Requests a file on a connection of its own.
    fn ask(&self, index: u64) -> Result<()> {
        let file = &self.files[(index % FILES) as usize];
        let mut connection = open(index)?;
        if !index.is_multiple_of(CLOSED_BY_SERVER) {
            return connection.get(file).map(drop);
        }
        let name = file.name();
        let request = format!("GET /{name} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
        connection.send(request.as_bytes())?;
        connection.read_file(file)?;
        connection.read_end()
    }

    /// Resets a connection amid a response.
    fn abort(&self, index: u64) -> Result<()> {
        let mut connection = open(index)?;
        connection.send_get(self.large.name())?;
        connection.read_file_head(&self.large)?;
        connection.read_file_part(&self.large, 0..ABORT_BYTES)?;
        set_socket_linger(connection.stream(), Some(Duration::ZERO))
            .context(|| "setting options of a socket".into())
    }
}

fn open(index: u64) -> Result<Connection<TcpStream>> {
    // By blocks, so that each kind of connection uses both IP versions.
    let server = if (index / 64).is_multiple_of(2) {
        HTTP_V4
    } else {
        HTTP_V6
    };
    Connection::open(server)
}

/// Returns true if the connection with this number is one of the aborted, which are spread evenly.
fn is_abort(index: u64, total: u64, aborts: u64) -> bool {
    let before = |index: u64| u128::from(index) * u128::from(aborts) / u128::from(total);
    before(index + 1) > before(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aborts_are_spread_evenly_and_as_many_as_are_wanted() {
        for (total, aborts) in [(101, 1), (1000, 10), (7, 7), (5, 0)] {
            let found: Vec<u64> = (0..total)
                .filter(|index| is_abort(*index, total, aborts))
                .collect();
            assert_eq!(found.len() as u64, aborts);
            let widest = found.windows(2).map(|pair| pair[1] - pair[0]).max();
            assert!(widest.is_none_or(|widest| widest <= total.div_ceil(aborts)));
        }
    }
}
