//! An idle splitway leaves the machine alone.

use std::net::TcpStream;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use testbed::http::{Connection, download};
use testbed::namespace::isolated;
use testbed::procfs::memory;
use testbed::site::KnownFile;
use testbed::splitway::Splitway;
use testbed::{Context, wait};

use crate::concurrency::allow_many_sockets;
use crate::programs::{Stack, at, echo};
use crate::run::{end, program_of, splitway_run_on, start_at};
use crate::support::{FAMILIES, WAKES_PER_SECOND_MAX, assert_idle, on_threads, process, serve};

/// How long memory may take to come back once a load is over.
const GIVEN_BACK_WITHIN: Duration = Duration::from_secs(60);

#[test]
fn without_traffic_both_processes_together_wake_five_times_a_second_at_most() {
    isolated(|site| {
        let file = site.file("file", 5_000_000).unwrap();
        let splitway = serve(&site);
        // It has had work before, and its clients are still connected.
        let clients = FAMILIES.map(|server| {
            let mut connection = Connection::open(server).unwrap();
            connection.get(&file).unwrap();
            connection
        });
        let own = [splitway.host(), splitway.nic()];
        assert_idle(&own, WAKES_PER_SECOND_MAX, Duration::from_secs(10));
        drop(clients);
    });
}

/// A server that echoes, and waits for connections in the kernel's way: all of them at a time.
const WAITS: &str = "import selectors, socket, sys\n\
    waiting = selectors.DefaultSelector()\n\
    server = socket.create_server(('0.0.0.0', int(sys.argv[1])))\n\
    waiting.register(server, selectors.EVENT_READ)\n\
    while True:\n \
    for key, _ in waiting.select():\n  \
    if key.fileobj is server: waiting.register(server.accept()[0], selectors.EVENT_READ)\n  \
    elif data := key.fileobj.recv(65536): key.fileobj.sendall(data)\n  \
    else: waiting.unregister(key.fileobj), key.fileobj.close()\n";

#[test]
fn ten_unmodified_programs_that_wait_wake_five_times_a_second_at_most() {
    isolated(|site| {
        let stack = Stack::serve(&site);
        let script = stack.folder.join("waits.py");
        std::fs::write(&script, WAITS).unwrap();
        let ports = 8001..8011;
        let mut programs: Vec<_> = ports
            .clone()
            .map(|port| {
                let mut command = splitway_run_on(&stack, &["--", "python3"]);
                start_at(command.arg(&script).arg(port.to_string()), port)
            })
            .collect();
        // They have had work before, and their clients are still connected.
        let file = KnownFile::whole("echo", 100_000);
        let clients: Vec<_> = ports
            .map(|port| {
                echo(at(port), &file).unwrap();
                TcpStream::connect(at(port)).unwrap()
            })
            .collect();
        let broker = process(&stack.splitway, "splitway-broker").unwrap();
        let mut all = vec![stack.splitway.host(), stack.splitway.nic(), broker];
        for program in &programs {
            all.extend([program.pid(), program_of(program)]);
        }
        assert_idle(&all, WAKES_PER_SECOND_MAX, Duration::from_secs(10));
        drop(clients);
        for program in &mut programs {
            end(program, Signal::TERM);
        }
        stack.assert_nothing_left();
    });
}

/// Resident memory of the host and the NIC process, in bytes.
fn resident(splitway: &Splitway) -> [u64; 2] {
    let of = |pid: Pid| memory(pid).unwrap().resident_bytes;
    [of(splitway.host()), of(splitway.nic())]
}

/// Clients that hold a response half read, and some that stay when the others go.
#[test]
fn the_memory_of_a_crowd_comes_back_within_a_minute() {
    const CONNECTIONS: usize = 8000;
    const THREADS: usize = 8;
    isolated(|site| {
        allow_many_sockets();
        let files: Vec<_> = (0..20)
            .map(|i| site.file(&format!("{i}"), 500_000 + i).unwrap())
            .collect();
        let splitway = serve(&site);
        // All files are in the cache, and either family has been used.
        for (index, file) in files.iter().enumerate() {
            download(FAMILIES[index % 2], file).unwrap();
        }
        let before = resident(&splitway);

        let (connected, measured) = (Barrier::new(THREADS + 1), Barrier::new(THREADS + 1));
        let staying = Barrier::new(THREADS + 1);
        std::thread::scope(|scope| {
            let clients = scope.spawn(|| {
                on_threads(THREADS, |thread| {
                    let mut streams = Vec::new();
                    let opened = (0..CONNECTIONS / THREADS).try_for_each(|number| {
                        let file = &files[(thread + number) % files.len()];
                        let stream = TcpStream::connect(FAMILIES[number % 2])
                            .context(|| "connecting".into())?;
                        let mut connection = Connection::on(stream)?;
                        connection.send_get(file.name())?;
                        connection.read_file_head(file)?;
                        if number % 2 == 0 {
                            connection.read_file_part(file, 0..file.size())?;
                        }
                        // Without its buffer, of which there would be thousands.
                        streams.push(connection.stream().try_clone());
                        Ok(())
                    });
                    connected.wait();
                    measured.wait();
                    streams.truncate(2);
                    staying.wait();
                    opened
                });
            });
            connected.wait();
            let crowded = resident(&splitway);
            assert!(
                crowded[0] > before[0] + (24 << 20),
                "the crowd has taken {crowded:?}"
            );
            measured.wait();
            let begun = Instant::now();
            let back = wait::until(GIVEN_BACK_WITHIN, "memory that comes back", || {
                let now = resident(&splitway);
                // Besides bounded pools of buffers for the next requests.
                let kept_max =
                    |at: usize| ((crowded[at].saturating_sub(before[at])) / 4).max(8 << 20);
                let is_back = |at: usize| now[at] <= before[at] + kept_max(at);
                (is_back(0) && is_back(1)).then_some(now)
            });
            let now = resident(&splitway);
            println!(
                "resident bytes of host and NIC process: {before:?}, {crowded:?} with all, {now:?} \
                 after {:?}",
                begun.elapsed()
            );
            staying.wait();
            clients.join().unwrap();
            back.unwrap();
        });
    });
}
