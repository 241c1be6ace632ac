//! Many connections at once.

use std::sync::Barrier;

use rustix::process::{Pid, Resource, getrlimit, setrlimit};
use testbed::http::Connection;
use testbed::namespace::{isolated, isolated_long};
use testbed::procfs::memory;
use testbed::splitway::HTTP_V4;

use crate::support::{FAMILIES, nft, on_threads, serve, serve_with};

/// What both processes may use together with a thousand connections, in bytes.
const MEMORY_BYTES_MAX: u64 = 300_000_000;

fn memory_of(processes: [Pid; 2]) -> u64 {
    let memory = processes.map(|pid| memory(pid).unwrap());
    memory.iter().map(|memory| memory.proportional_bytes).sum()
}

/// What the host process may use with ten thousand idle connections, in bytes, besides its program
/// and the rings in which packets arrive; and how much they may add to what it has without.
const IDLE_MEMORY_BYTES_MAX: u64 = 42_000_000;
const IDLE_CONNECTIONS_BYTES_MAX: u64 = 40_000_000;

/// A thousand sockets and more: as many as this process may have.
pub(crate) fn allow_many_sockets() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
}

#[test]
fn sixty_four_connections_get_a_file_each_again_and_again() {
    isolated(|site| {
        let files: Vec<_> = (0..64)
            .map(|i| site.file(&format!("{i}"), 500_000 + i).unwrap())
            .collect();
        let _splitway = serve(&site);
        on_threads(64, |index| {
            let mut connection = Connection::open(FAMILIES[index % 2])?;
            for round in 0..5 {
                connection.get(&files[(index + round) % files.len()])?;
            }
            Ok(())
        });
    });
}

#[test]
fn two_workers_share_the_work() {
    isolated(|site| {
        let files: Vec<_> = (0..8)
            .map(|i| site.file(&format!("{i}"), 1_000_000 + i).unwrap())
            .collect();
        let _splitway = serve_with(&site, &["--workers", "2", "--workers-min", "2"]);
        on_threads(64, |index| {
            let mut connection = Connection::open(FAMILIES[index % 2])?;
            for round in 0..3 {
                connection.get(&files[(index + round) % files.len()])?;
            }
            Ok(())
        });
    });
}

#[test]
fn everybody_may_want_the_same_file_at_once() {
    isolated(|site| {
        let file = site.file("popular", 3_000_000).unwrap();
        let _splitway = serve(&site);
        on_threads(64, |index| {
            Connection::open(FAMILIES[index % 2])?.get(&file).map(drop)
        });
    });
}

#[test]
fn a_thousand_connections_at_once_within_the_memory_promised() {
    isolated(|site| {
        const CONNECTIONS: usize = 1000;
        allow_many_sockets();
        let files: Vec<_> = (0..20)
            .map(|i| site.file(&format!("{i}"), 500_000 + i).unwrap())
            .collect();
        let splitway = serve(&site);
        let processes = [splitway.host(), splitway.nic()];
        let (connected, served, measured) = (
            Barrier::new(CONNECTIONS),
            Barrier::new(CONNECTIONS + 1),
            Barrier::new(CONNECTIONS + 1),
        );
        std::thread::scope(|scope| {
            let measuring = scope.spawn(|| {
                served.wait();
                let bytes = memory_of(processes);
                measured.wait();
                bytes
            });
            on_threads(CONNECTIONS, |index| {
                let file = &files[index % files.len()];
                // Every thread must come to every barrier, also one that has failed.
                let connection = Connection::open(FAMILIES[index % 2]);
                connected.wait();
                let in_transfer = connection.and_then(|mut connection| {
                    connection.send_get(file.name())?;
                    connection.read_file_head(file)?;
                    Ok(connection)
                });
                served.wait();
                measured.wait();
                let mut connection = in_transfer?;
                connection.read_file_part(file, 0..file.size())?;
                connection.get(file).map(drop)
            });
            let bytes = measuring.join().unwrap();
            println!("{CONNECTIONS} connections: {} MB", bytes / 1_000_000);
            assert!(bytes < MEMORY_BYTES_MAX, "{bytes} bytes");
        });
    });
}

#[test]
fn ten_thousand_idle_connections_within_the_memory_promised() {
    isolated(|site| {
        const THREADS: usize = 8;
        allow_many_sockets();
        let sockets = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        assert!(
            sockets > 10_100,
            "this process may have {sockets}: see `ulimit -Hn`"
        );
        let file = site.file("small", 2000).unwrap();
        let splitway = serve(&site);
        let host = splitway.host();
        let connected = Barrier::new(THREADS + 1);
        let measured = Barrier::new(THREADS + 1);
        // Pages of the program are read when they are first used.
        let without_files = || {
            let memory = memory(host).unwrap();
            memory.resident_bytes - memory.of_files_bytes
        };
        let before = without_files();
        std::thread::scope(|scope| {
            let measuring = scope.spawn(|| {
                connected.wait();
                let bytes = without_files();
                measured.wait();
                bytes
            });
            on_threads(THREADS, |index| {
                // Every thread must come to every barrier, also one that has failed.
                let opened: testbed::Result<Vec<_>> = (0..10_000 / THREADS)
                    .map(|_| {
                        let mut connection = Connection::open(FAMILIES[index % 2])?;
                        connection.get(&file)?;
                        Ok(connection)
                    })
                    .collect();
                connected.wait();
                measured.wait();
                // They are still there.
                opened?
                    .iter_mut()
                    .try_for_each(|connection| connection.get(&file).map(drop))
            });
            let bytes = measuring.join().unwrap();
            let added = bytes - before;
            println!("10,000 idle connections: {added} bytes more than {before}; {bytes} bytes");
            assert!(added < IDLE_CONNECTIONS_BYTES_MAX, "{added} bytes more");
            assert!(bytes < IDLE_MEMORY_BYTES_MAX, "{bytes} bytes");
        });
    });
}

#[test]
#[ignore = "takes minutes"]
fn a_thousand_lossy_connections_get_a_megabyte_each() {
    isolated_long(|site| {
        allow_many_sockets();
        let files: Vec<_> = (0..20)
            .map(|i| site.file(&format!("{i}"), 1_000_000 + i).unwrap())
            .collect();
        let splitway = serve(&site);
        for hook in ["input", "output"] {
            nft(&format!(
                "add table inet loss_{hook}; \
                 add chain inet loss_{hook} packets {{ type filter hook {hook} priority 0; }}; \
                 add rule inet loss_{hook} packets meta l4proto tcp numgen random mod 100 < 1 drop"
            ));
        }
        on_threads(1000, |index| {
            Connection::open(HTTP_V4)?
                .get(&files[index % files.len()])
                .map(drop)
        });
        assert!(memory_of([splitway.host(), splitway.nic()]) < MEMORY_BYTES_MAX);
    });
}
