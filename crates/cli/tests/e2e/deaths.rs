//! Downloads that go on while processes that they need are killed.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use testbed::http::Connection;
use testbed::procfs::descriptors;
use testbed::site::{KnownFile, Site};
use testbed::splitway::Splitway;
use testbed::wait;

use crate::support::{Random, SOON, kill_nic, nft, on_threads};

/// Connections that go on through all of it.
pub(crate) const DOWNLOADS: usize = 200;

/// Longest that a NIC process is left alone, in milliseconds. Most live for long enough that the
/// next one comes at once.
const LIFE_MS_MAX: u64 = 1500;

/// One packet in a hundred between this namespace and others is lost, in either direction.
pub(crate) fn lose_packets() {
    for hook in ["input", "output"] {
        nft(&format!(
            "add table inet loss_{hook}; \
             add chain inet loss_{hook} packets {{ type filter hook {hook} priority 0; }}; \
             add rule inet loss_{hook} packets meta l4proto {{ tcp, udp }} \
             numgen random mod 100 < 1 drop"
        ));
    }
}

/// Ends the loss.
pub(crate) fn keep_packets() {
    nft("delete table inet loss_input; delete table inet loss_output");
}

/// What is downloaded: some files of some size.
pub(crate) fn files(site: &Site) -> Vec<KnownFile> {
    (0..20)
        .map(|i| site.file(&format!("{i}"), 300_000 + i).unwrap())
        .collect()
}

/// A counter of the host process, from a server that was started with `--report-json` and has
/// ended.
pub(crate) fn host_counter(splitway: &mut Splitway, name: &str) -> u64 {
    counter(splitway, "host", name)
}

/// The same of either process: `host` or `nic`.
pub(crate) fn counter(splitway: &mut Splitway, process: &str, name: &str) -> u64 {
    let line = splitway.line(|line| line.starts_with("{\"host\"")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&line).unwrap();
    report[process][name].as_u64().unwrap()
}

/// Ends a server that was started with `--report-json`, and returns what its host process has
/// counted.
pub(crate) fn counted<const N: usize>(mut splitway: Splitway, names: [&str; N]) -> [u64; N] {
    assert!(splitway.end_with(Signal::TERM).unwrap().success());
    names.map(|name| host_counter(&mut splitway, name))
}

/// Kills at random moments, so many times, while [`DOWNLOADS`] clients download over links that
/// lose packets. No connection ends, every byte is right, and the host process holds what it held
/// before. `kill` is false if there was no process to kill.
pub(crate) fn downloads_outlive(
    splitway: &Splitway,
    servers: [SocketAddr; 2],
    files: &[KnownFile],
    deaths: usize,
    random: &mut Random,
    kill: impl FnMut() -> bool,
) {
    clients_outlive(
        splitway,
        DOWNLOADS,
        deaths,
        random,
        kill,
        |index, progress| {
            let mut connection = Connection::open(servers[index % 2])?;
            let mut turn = index;
            while !progress.is_over.load(Ordering::Relaxed) {
                connection.get(&files[turn % files.len()])?;
                progress.responses.fetch_add(1, Ordering::Relaxed);
                turn += 1;
            }
            // In order, on the connection of the beginning.
            connection.get(&files[index % files.len()])?;
            connection.finish()?;
            connection.read_end()
        },
    );
}

/// What clients and who kills tell each other.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    pub(crate) is_over: AtomicBool,
    pub(crate) responses: AtomicU64,
}

/// The same with any clients, which go on until it is over.
pub(crate) fn clients_outlive(
    splitway: &Splitway,
    clients: usize,
    deaths: usize,
    random: &mut Random,
    mut kill: impl FnMut() -> bool,
    client: impl Fn(usize, &Progress) -> testbed::Result<()> + Sync,
) {
    let host = splitway.host();
    let descriptors_before = descriptors(host).unwrap();
    let progress = Progress::default();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let clients = scope.spawn(|| on_threads(clients, |index| client(index, &progress)));
        let responses = || progress.responses.load(Ordering::Relaxed);
        let (mut died, mut before) = (0, 0);
        while died < deaths && !clients.is_finished() {
            // On a machine that is busy it may not have got to work yet. Some die so young, but not
            // all; and who waited before would kill many in the moment in which they serve, each
            // after a longer back-off.
            if random.below(8) > 0 {
                let works = || responses() > before;
                wait::until(SOON, "a response", || {
                    (works() || clients.is_finished()).then_some(())
                })
                .unwrap();
            }
            std::thread::sleep(Duration::from_millis(random.below(LIFE_MS_MAX)));
            before = responses();
            died += usize::from(kill());
        }
        progress.is_over.store(true, Ordering::Relaxed);
        clients.join().unwrap();
    });
    let responses = progress.responses.into_inner();
    println!(
        "{deaths} deaths and {responses} responses in {:.0?}",
        begun.elapsed()
    );
    // Epochs that are over have left neither descriptors nor memory.
    let left = wait::until(SOON, "what a NIC process needs", || {
        (descriptors(host).unwrap() == descriptors_before).then_some(())
    });
    assert!(
        left.is_ok(),
        "{} descriptors of the host process, {descriptors_before} before",
        descriptors(host).unwrap()
    );
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", host.as_raw_nonzero())).unwrap();
    assert_eq!(maps.matches("splitway-channel").count(), 1, "{maps}");
}

/// Has clients continue while the NIC process is killed, this many times.
pub(crate) fn clients_outlive_nics(
    splitway: &Splitway,
    clients: usize,
    deaths: usize,
    client: impl Fn(usize, &Progress) -> testbed::Result<()> + Sync,
) {
    let mut random = Random::seeded();
    let kill = || {
        kill_nic(splitway);
        true
    };
    clients_outlive(splitway, clients, deaths, &mut random, kill, client);
}
