//! A program on split sockets has the NIC stack join its connections, between clients and backends
//! of the kernel (`programs/relay.c`).

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;
use testbed::backend::{Backend, Speech};
use testbed::namespace::isolated;
use testbed::process::{Process, signal};
use testbed::site::Site;
use testbed::wait;
use testbed::web::content;

use crate::links::{lose_one_in_a_hundred, send_single_packets};
use crate::programs::{Stack, at};
use crate::proxy::{echoed, patient, round_trip, tunnel};
use crate::stat::{all_host_counted, host_counted};
use crate::support::{Random, SOON, kill_nics_while, on_threads};

const RELAY_PORT: u16 = 8000;

/// Clients at a time.
const CLIENTS: usize = 20;

/// What each sends and has back, in bytes.
const BYTES: usize = 2_000_000;

struct Relay {
    stack: Stack,
    program: Process,
    log: PathBuf,
}

/// The end of a pair, as the program says it.
#[derive(Debug)]
struct Line {
    bytes: [u64; 2],
    joins: u64,
    error: u64,
}

impl Relay {
    /// A relay to an echo that takes pairs back whenever so many bytes have passed; 0: never.
    fn start(site: &Site, back_bytes: usize) -> Relay {
        let stack = Stack::serve(site);
        let program = stack.compile_from("tests/programs", "relay");
        let log = stack.folder.join("relay.log");
        let (port, back) = ("9001", back_bytes.to_string());
        let arguments = ["10.77.0.1", port, log.to_str().unwrap(), &back].map(AsRef::as_ref);
        let program = stack.start_with(&program, RELAY_PORT, &arguments);
        Relay {
            stack,
            program,
            log,
        }
    }

    /// The ends of all pairs with bytes, once there are so many.
    fn lines(&self, count: usize) -> Vec<Line> {
        let lines = || {
            let text = std::fs::read_to_string(&self.log).ok()?;
            let line = |line: &str| {
                let numbers: Vec<u64> = line.split(' ').map(|it| it.parse().unwrap()).collect();
                let [from, to, joins, error] = numbers[..] else {
                    panic!("{line}");
                };
                Line {
                    bytes: [from, to],
                    joins,
                    error,
                }
            };
            let lines: Vec<Line> = text.lines().map(line).collect();
            // Whether it listens was asked by a connection without any.
            let lines: Vec<Line> = lines.into_iter().filter(|it| it.bytes != [0; 2]).collect();
            (lines.len() >= count).then_some(lines)
        };
        wait::until(SOON, "the program has seen all ends", lines).unwrap()
    }

    /// Ends the program, of which nothing is left, and returns what the host process has counted.
    fn counted<const N: usize>(mut self, names: [&str; N]) -> [u64; N] {
        // It has no end of its own.
        self.program.stop(SOON).unwrap();
        self.stack.assert_nothing_left();
        let counted = all_host_counted(names);
        let ended = self.stack.splitway.end_with(Signal::TERM).unwrap();
        assert!(ended.success(), "{ended:?}");
        counted
    }
}

/// What client number `client` sends.
fn sent(client: usize) -> u64 {
    (BYTES + client) as u64
}

#[test]
fn a_program_has_its_connections_joined_and_every_byte_and_end_arrives() {
    isolated(|site| {
        let _backend = Backend::new(9001, Speech::Echo);
        let relay = Relay::start(&site, 0);
        on_threads(CLIENTS, |client| tunnel(at(RELAY_PORT), client, BYTES));
        let mut lines = relay.lines(CLIENTS);
        lines.sort_by_key(|line| line.bytes[0]);
        for (client, line) in lines.iter().enumerate() {
            assert_eq!(line.bytes, [sent(client); 2], "{lines:?}");
            assert_eq!(line.error, 0, "{line:?}");
        }
        let joined_once = lines.iter().filter(|line| line.joins == 1).count();
        assert!(joined_once >= CLIENTS / 2, "{lines:?}");
        let names = ["splices_joined", "spliced_bytes", "connections_broken"];
        let [joined, bytes, broken] = relay.counted(names);
        println!("{joined} joined, {bytes} bytes");
        assert!(joined >= joined_once as u64, "{joined}");
        assert!(bytes >= (CLIENTS * BYTES) as u64 / 2, "{bytes}");
        assert_eq!(broken, 0);
    });
}

#[test]
fn a_program_takes_its_connections_back_and_joins_them_again_while_packets_are_lost() {
    isolated(|site| {
        let _backend = Backend::new(9001, Speech::Echo);
        let relay = Relay::start(&site, 200_000);
        send_single_packets(&relay.stack.splitway);
        lose_one_in_a_hundred(&mut Random::seeded());
        let has_returned = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                wait::until(SOON, "a pair comes back", || {
                    (host_counted("splices_returned") > 0).then_some(())
                })
                .unwrap();
                has_returned.store(true, Ordering::Relaxed);
            });
            on_threads(CLIENTS, |client| {
                let stream = patient(at(RELAY_PORT))?;
                round_trip(&stream, &content(BYTES / 2, client as u64))?;
                // A pair of which a side has closed would not come back.
                wait::until(2 * SOON, "a pair comes back", || {
                    has_returned.load(Ordering::Relaxed).then_some(())
                })?;
                echoed(&stream, &content(BYTES / 2 + client, client as u64))
            });
        });
        let lines = relay.lines(CLIENTS);
        let total: u64 = lines.iter().map(|line| line.bytes[0]).sum();
        assert_eq!(total, (0..CLIENTS).map(sent).sum::<u64>(), "{lines:?}");
        assert!(lines.iter().all(|line| line.error == 0), "{lines:?}");
        let names = ["splices_joined", "splices_returned", "connections_broken"];
        let [joined, returned, broken] = relay.counted(names);
        println!("{joined} joined, {returned} returned");
        assert!(returned > 0, "{lines:?}");
        assert_eq!(broken, 0);
    });
}

#[test]
fn splices_of_a_program_go_on_through_nic_processes_that_are_killed() {
    isolated(|site| {
        let _backend = Backend::new(9001, Speech::Echo);
        let relay = Relay::start(&site, 0);
        kill_nics_while(&relay.stack.splitway, || {
            on_threads(CLIENTS, |client| tunnel(at(RELAY_PORT), client, 5 * BYTES));
        });
        let names = ["splices_joined", "splices_repeated", "connections_broken"];
        let [joined, repeated, broken] = relay.counted(names);
        println!("{joined} joined, {repeated} repeated");
        assert!(joined > 0);
        assert_eq!(broken, 0);
    });
}

/// The program dies while bytes are under way: both peers hear of it, and nothing is left.
#[test]
fn a_program_that_is_killed_resets_the_peers_of_its_splices() {
    isolated(|site| {
        let _backend = Backend::new(9001, Speech::Echo);
        let relay = Relay::start(&site, 0);
        let killed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let clients = scope.spawn(|| {
                on_threads(CLIENTS, |client| {
                    let ended = tunnel(at(RELAY_PORT), client, 500 * BYTES);
                    assert!(
                        ended.is_err() && killed.load(Ordering::Relaxed),
                        "{ended:?}"
                    );
                    Ok(())
                });
            });
            wait::until(SOON, "bytes pass", || {
                (host_counted("splices_joined") >= CLIENTS as u64 / 2).then_some(())
            })
            .unwrap();
            killed.store(true, Ordering::Relaxed);
            signal(relay.program.pid(), Signal::KILL).unwrap();
            clients.join().unwrap();
        });
        let [joined, broken] = relay.counted(["splices_joined", "splices_broken"]);
        println!("{joined} joined, {broken} broken");
        assert!(broken > 0);
    });
}
