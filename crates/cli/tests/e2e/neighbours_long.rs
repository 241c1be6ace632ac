//! A client of one program, while another program on the same machine does its worst: the client
//! gets every response, as soon as beside a program that only computes, and `splitway stat` names
//! the program that is bounded.
//!
//! The programs that attack run when a core is idle (`SCHED_IDLE`), and the client, which stands
//! for another machine, as soon as it can (`SCHED_RR`): what is measured is the stack's time, and
//! not that of few cores.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use capi::client::{Client, DescriptorFlags, Options};
use socket_channel::channel::AppEnd;
use socket_channel::{Family, SocketId};
use testbed::http::be_patient;
use testbed::namespace::isolated_long;
use testbed::process::run;
use testbed::site::Site;
use testbed::wait;

use crate::concurrency::allow_many_sockets;
use crate::programs::{Stack, at};
use crate::sockets_stat::{Program, applications};

const ECHO_PORT: u16 = 9000;

/// How long the client measures, alone and beside each attack.
const SPAN: Duration = Duration::from_secs(8);

/// Of connection, request and response, unless they take as long beside a thread that computes.
const P99_MAX: Duration = Duration::from_millis(5);

const ATTACKED_WITHIN: Duration = Duration::from_secs(60);

/// An attack that goes on until it is over, and what it has done so far.
#[derive(Default)]
struct Attack {
    is_over: AtomicBool,
    done: AtomicU64,
}

impl Attack {
    fn goes_on(&self) -> bool {
        !self.is_over.load(Ordering::Relaxed)
    }

    fn count(&self, done: u64) {
        self.done.fetch_add(done, Ordering::Relaxed);
    }
}

/// Ends an attack, also when a test fails.
struct Ends<'a>(&'a Attack);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

/// Sets when this thread runs, by options of chrt(1).
fn schedule(policy: &str, priority: &str) {
    let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
    run(Command::new("chrt").args([policy, "--pid", priority, &thread])).unwrap();
}

/// A connection for each of 1000 bytes that come back, for so long: how long each took, sorted.
fn round_trips(server: SocketAddr, span: Duration) -> Vec<Duration> {
    let sent: Vec<u8> = (0..1000).map(|i| (i * 7) as u8).collect();
    let begun = Instant::now();
    let mut took = Vec::new();
    while begun.elapsed() < span {
        let start = Instant::now();
        let mut stream = TcpStream::connect(server).unwrap();
        be_patient(&stream).unwrap();
        stream.write_all(&sent).unwrap();
        let mut received = vec![0; sent.len()];
        stream.read_exact(&mut received).unwrap();
        took.push(start.elapsed());
        assert!(received == sent, "every byte");
    }
    took.sort();
    took
}

fn percentiles(took: &[Duration]) -> [Duration; 2] {
    [50, 99].map(|percent| took[took.len() * percent / 100])
}

/// Measures a client of a program beside an attack, which begins to count when it is under way.
fn measure(stack: &Stack, attack: impl Fn(&Path, &Attack) + Sync) -> (Vec<Duration>, u64) {
    let state = Attack::default();
    let path = stack.folder.join("sockets");
    let took = std::thread::scope(|scope| {
        scope.spawn(|| {
            schedule("--idle", "0");
            attack(&path, &state);
        });
        let _end = Ends(&state);
        let begun = || (state.done.load(Ordering::Relaxed) > 0).then_some(());
        wait::until(ATTACKED_WITHIN, "the attack", begun).unwrap();
        round_trips(at(ECHO_PORT), SPAN)
    });
    (took, state.done.into_inner())
}

/// Compares a client of a program beside an attack with the same beside a thread that computes.
fn beside(site: &Site, name: &str, attack: impl Fn(&Path, &Attack) + Sync) {
    allow_many_sockets();
    // With all ports in TIME-WAIT, the client's kernel takes milliseconds to find one.
    fs::write("/proc/sys/net/ipv4/tcp_max_tw_buckets", "1000").unwrap();
    let stack = Stack::serve(site);
    let program = stack.compile("echo");
    let echo = stack.start_with(&program, ECHO_PORT, &[]);
    round_trips(at(ECHO_PORT), Duration::from_secs(1));
    schedule("--rr", "1");
    let (quiet, _) = measure(&stack, |_, attack| {
        while attack.goes_on() {
            attack.count(1);
        }
    });
    let (attacked, done) = measure(&stack, attack);
    let count = attacked.len();
    let [quiet, attacked] = [percentiles(&quiet), percentiles(&attacked)];
    println!(
        "{name}, {done} times: {count} responses, p50 and p99 {attacked:?}; beside a thread that \
         computes: {quiet:?}"
    );
    let p99_max = P99_MAX.max(quiet[1] * 3 / 2);
    assert!(attacked[1] < p99_max, "{name}: {attacked:?}, {quiet:?}");
    drop(echo);
    stack.assert_nothing_left();
}

/// `splitway stat` says that this process uses up its share of turns.
fn assert_named() {
    let (own, rows) = (std::process::id(), applications());
    let bounded = rows.iter().find(|row| row["pid"] == own);
    let turns = bounded.map(|row| row["turns_used_up"].as_u64().unwrap());
    assert!(turns > Some(0), "{rows:?}");
}

/// Compares a client beside so many processes of one application that fill their rings, of which as
/// many end as begin.
fn beside_full_rings(site: &Site, processes: usize) {
    let name = format!("full rings of {processes} processes");
    beside(site, &name, |path, attack| {
        fill_rings(path, attack, processes)
    });
}

fn fill_rings(path: &Path, attack: &Attack, processes: usize) {
    let first = Program::attach(path);
    let another = || {
        let program = first.another();
        let [_, channel, host_bell, app_bell] = program.descriptors;
        AppEnd::from_files(channel, app_bell, host_bell).map(|end| (end, program.broker))
    };
    let mut ends: Vec<_> = (0..processes).map(|_| another().unwrap()).collect();
    let socket = SocketId {
        index: 3,
        generation: 1,
    };
    for place in (0..processes).cycle() {
        if !attack.goes_on() {
            return assert_named();
        }
        let (end, _) = &mut ends[place];
        let mut sent = 0;
        while end.send(&socket_channel::Command::Kick { socket }).is_ok() {
            sent += 1;
        }
        end.flush();
        attack.count(sent);
        if place == 0 {
            ends[processes - 1] = another().unwrap();
        }
    }
}

#[test]
#[ignore = "measures for half a minute"]
fn one_process_with_a_full_ring_delays_no_other_program() {
    isolated_long(|site| beside_full_rings(&site, 1));
}

#[test]
#[ignore = "measures for half a minute"]
fn sixty_four_processes_with_full_rings_delay_no_other_program() {
    isolated_long(|site| beside_full_rings(&site, 64));
}

#[test]
#[ignore = "measures for half a minute"]
fn two_hundred_and_fifty_processes_with_full_rings_delay_no_other_program() {
    isolated_long(|site| beside_full_rings(&site, 250));
}

fn client(path: &Path) -> Client {
    let options = Options {
        path: path.to_owned(),
        ..Options::default()
    };
    Client::attach(&options).unwrap()
}

const FLAGS: DescriptorFlags = DescriptorFlags {
    nonblocking: false,
    close_on_exec: true,
};

#[test]
#[ignore = "measures for half a minute"]
fn a_program_that_takes_and_closes_sockets_delays_no_other() {
    isolated_long(|site| {
        beside(&site, "sockets", |path, attack| {
            let client = client(path);
            while attack.goes_on() {
                let taken: Vec<_> = (0..64)
                    .filter_map(|_| client.socket(Family::V4, FLAGS).ok())
                    .collect();
                attack.count(taken.len() as u64);
                for fd in taken {
                    client.close(fd).unwrap();
                }
            }
        })
    });
}

#[test]
#[ignore = "measures for half a minute"]
fn a_program_that_attaches_again_and_again_delays_no_other() {
    isolated_long(|site| {
        beside(&site, "attaching", |path, attack| {
            while attack.goes_on() {
                drop(client(path));
                attack.count(1);
            }
        })
    });
}
