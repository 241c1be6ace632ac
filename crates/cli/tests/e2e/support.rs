//! What the tests here share.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use testbed::http::Connection;
use testbed::process::{run, signal, tool};
use testbed::procfs::{self, children};
use testbed::site::{KnownFile, Site};
use testbed::splitway::{HTTP_V4, HTTP_V6, Splitway};
use testbed::wait;

/// How long an event may take to come that is on its way.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// The longest that a response may take while a NIC process is replaced.
pub(crate) const RESPONSE_MAX: Duration = Duration::from_secs(1);

/// The server's address in each family.
pub(crate) const FAMILIES: [SocketAddr; 2] = [HTTP_V4, HTTP_V6];

/// The program under test.
pub(crate) fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_splitway"))
}

/// `splitway serve` on a site.
pub(crate) fn serve(site: &Site) -> Splitway {
    serve_with(site, &[])
}

/// The same with further arguments.
pub(crate) fn serve_with(site: &Site, arguments: &[&str]) -> Splitway {
    Splitway::serve(program(), site.root(), arguments).unwrap()
}

/// `splitway ctl`, of the server with this control socket or of the only one: whether it succeeded,
/// and what it said.
pub(crate) fn ctl(command: &str, socket: Option<&Path>) -> (bool, String) {
    let mut line = Command::new(program());
    line.arg("ctl").args(command.split(' '));
    if let Some(socket) = socket {
        line.arg("--socket").arg(socket);
    }
    let output = line.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&said).into_owned(),
    )
}

/// A connection with a small receive window, on which a client has asked for a file and read the
/// header of the answer.
pub(crate) fn started(server: SocketAddr, file: &KnownFile) -> Connection {
    let mut connection = Connection::open(server).unwrap();
    connection.send_get(file.name()).unwrap();
    connection.read_file_head(file).unwrap();
    connection
}

/// A process of a server, by the name that it has for `ps`.
pub(crate) fn process(splitway: &Splitway, name: &str) -> Option<Pid> {
    let mut children = children(splitway.supervisor()).unwrap().into_iter();
    children.find(|pid| {
        let found = fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero()));
        found.is_ok_and(|found| found.trim() == name)
    })
}

/// Kills the NIC process, and waits for the start of its successor: a death that nothing has
/// followed makes the end of `splitway` a failure.
pub(crate) fn kill_nic(splitway: &Splitway) {
    let nic = wait::until(SOON, "a NIC process", || process(splitway, "splitway-nic")).unwrap();
    signal(nic, Signal::KILL).unwrap();
    wait::until(SOON, "another NIC process", || {
        process(splitway, "splitway-nic").filter(|next| *next != nic)
    })
    .unwrap();
}

/// Runs clients, and kills a NIC process each time that they have done another share of `all`.
pub(crate) fn kill_nics_amid(
    splitway: &Splitway,
    deaths: usize,
    (done, all): (&AtomicUsize, usize),
    clients: impl FnOnce() + Send,
) {
    std::thread::scope(|scope| {
        let clients = scope.spawn(clients);
        for death in 1..=deaths {
            let enough = all * death / (deaths + 1);
            wait::until(SOON, "progress of the clients", || {
                let is_time = done.load(Ordering::Relaxed) >= enough;
                (is_time || clients.is_finished()).then_some(())
            })
            .unwrap();
            kill_nic(splitway);
        }
        clients.join().unwrap();
    });
}

/// Runs clients, and kills a NIC process now and then, five at most.
pub(crate) fn kill_nics_while(splitway: &Splitway, clients: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let clients = scope.spawn(clients);
        for _ in 0..5 {
            // Not a wait for something: the time between two deaths.
            std::thread::park_timeout(Duration::from_millis(700));
            if clients.is_finished() {
                break;
            }
            kill_nic(splitway);
        }
        clients.join().unwrap();
    });
}

/// Most wake-ups of idle processes.
pub(crate) const WAKES_PER_SECOND_MAX: f64 = 5.0;

/// A thread that never sleeps uses more of a core than this; idle ones use some thousandths. What a
/// wake-up costs depends on the machine: from microseconds to milliseconds on virtual ones.
const IDLE_SHARE_MAX: f64 = 0.1;

/// How often processes together have gone to sleep in so much time, and the time on a CPU that they
/// have used in it, in nanoseconds.
fn sleeps_in(processes: &[Pid], span: Duration) -> (u64, u64) {
    let used_ns = || -> u64 {
        let used_ns = |pid: &Pid| procfs::cpu_ns(*pid).unwrap();
        processes.iter().map(used_ns).sum()
    };
    let sleeps = || -> BTreeMap<i32, u64> {
        let of = |pid: &Pid| procfs::sleeps(*pid).unwrap();
        processes.iter().flat_map(of).collect()
    };
    let (before_ns, before) = (used_ns(), sleeps());
    // Not a wait for something: the span that is measured.
    std::thread::sleep(span);
    let (used_ns, after) = (used_ns() - before_ns, sleeps());
    let since = |(thread, sleeps): (&i32, &u64)| sleeps - before.get(thread).unwrap_or(&0);
    (after.iter().map(since).sum(), used_ns)
}

/// Asserts that processes together are idle for so much time, once they have done what there was to
/// do: they wake at most so often, and none spins.
pub(crate) fn assert_idle(processes: &[Pid], wakes_per_second_max: f64, span: Duration) {
    let second = Duration::from_secs(1);
    wait::until(SOON, "a quiet second", || {
        let (sleeps, _) = sleeps_in(processes, second);
        (sleeps as f64 <= wakes_per_second_max).then_some(())
    })
    .unwrap();
    let start = Instant::now();
    let (sleeps, used_ns) = sleeps_in(processes, span);
    let elapsed = start.elapsed();
    let wakes_per_second = sleeps as f64 / elapsed.as_secs_f64();
    let share = used_ns as f64 / elapsed.as_nanos() as f64;
    println!(
        "idle: {wakes_per_second:.2} wake-ups/s, {:.3} % of a core",
        share * 100.0
    );
    assert!(
        wakes_per_second <= wakes_per_second_max,
        "{wakes_per_second:.2} wake-ups/s"
    );
    assert!(share < IDLE_SHARE_MAX, "{:.3} % of a core", share * 100.0);
}

/// The fetcher of a server.
pub(crate) fn fetcher(splitway: &Splitway) -> Option<Pid> {
    process(splitway, "splitway-fetch")
}

/// The observer process of a server.
pub(crate) fn observer(splitway: &Splitway) -> Option<Pid> {
    process(splitway, "splitway-observ")
}

/// Runs a line of words without quotes; its output.
pub(crate) fn sh(line: &str) -> String {
    run(&mut tool(line)).unwrap()
}

/// Runs `nft` on a script.
pub(crate) fn nft(script: &str) {
    run(tool("nft").arg(script)).unwrap();
}

/// A counter of the kernel's TCP in this namespace, such as `TcpExt TCPToZeroWindowAdv`.
pub(crate) fn tcp_counter(group: &str, name: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/net/netstat").unwrap();
    let rows: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix(group)?.strip_prefix(": "))
        .collect();
    let [names, values] = rows[..] else {
        panic!("{group} in {text}")
    };
    let mut pairs = names.split(' ').zip(values.split(' '));
    pairs
        .find(|(found, _)| *found == name)
        .unwrap_or_else(|| panic!("no {name}"))
        .1
        .parse()
        .unwrap()
}

/// Frames that the kernel's end of the link has received.
pub(crate) fn frames_received() -> u64 {
    let text = fs::read_to_string("/proc/self/net/dev").unwrap();
    let line = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("splitway0:"))
        .expect("a link");
    // Bytes, then packets.
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Does something on many threads at once; fails if any fails. The stacks are small: there may be a
/// thousand.
pub(crate) fn on_threads(count: usize, work: impl Fn(usize) -> testbed::Result<()> + Sync) {
    let failures: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count)
            .map(|index| {
                let work = &work;
                let builder = std::thread::Builder::new().stack_size(256 << 10);
                builder.spawn_scoped(scope, move || work(index)).unwrap()
            })
            .collect();
        threads
            .into_iter()
            .enumerate()
            .filter_map(|(index, thread)| match thread.join() {
                Ok(result) => result.err().map(|failure| format!("{index}: {failure}")),
                Err(_) => Some(format!("{index}: panicked")),
            })
            .collect()
    });
    let shown = &failures[..failures.len().min(5)];
    assert!(
        failures.is_empty(),
        "{} of {count} failed, such as {}",
        failures.len(),
        shown.join("; ")
    );
}

/// Clients that ask for a file over and over while something happens to the server: how long the
/// slowest response took. Each has got one response before that begins, and gets one after it.
pub(crate) fn slowest_response(
    clients: usize,
    servers: &[SocketAddr],
    file: &KnownFile,
    happens: impl FnOnce(),
) -> Duration {
    let over = AtomicBool::new(false);
    let (begun, slowest) = (AtomicUsize::new(0), Mutex::new(Duration::ZERO));
    std::thread::scope(|scope| {
        let all = scope.spawn(|| {
            on_threads(clients, |index| {
                let mut connection = Connection::open(servers[index % servers.len()])?;
                connection.get(file)?;
                begun.fetch_add(1, Ordering::Relaxed);
                loop {
                    let is_last = over.load(Ordering::Relaxed);
                    let start = Instant::now();
                    connection.get(file)?;
                    let mut slowest = slowest.lock().unwrap();
                    *slowest = slowest.max(start.elapsed());
                    if is_last {
                        return Ok(());
                    }
                }
            });
        });
        wait::until(SOON, "responses", || {
            (begun.load(Ordering::Relaxed) == clients || all.is_finished()).then_some(())
        })
        .unwrap();
        happens();
        over.store(true, Ordering::Relaxed);
        all.join().unwrap();
    });
    slowest.into_inner().unwrap()
}

/// What a test does at random, from a seed that it prints: `SPLITWAY_TEST_SEED` replays it.
pub(crate) struct Random(u64);

impl Random {
    /// With a seed that the test fixes.
    pub(crate) fn of(seed: u64) -> Random {
        // Xorshift has no way out of zero.
        Random(seed.max(1))
    }

    pub(crate) fn seeded() -> Random {
        let given = std::env::var("SPLITWAY_TEST_SEED")
            .ok()
            .and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(|| {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            u64::from(now.unwrap_or_default().subsec_nanos())
        });
        println!("SPLITWAY_TEST_SEED={seed}");
        // Xorshift has no way out of zero.
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}
