//! HAProxy, unmodified, in `mode tcp`: what it copies by splice(2) the NIC stack moves instead, and
//! HAProxy counts it as ever.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use testbed::backend::{Backend, Speech};
use testbed::http::be_patient;
use testbed::namespace::isolated;
use testbed::process::Process;
use testbed::site::Site;
use testbed::wait;
use testbed::web::content;

use crate::deaths::lose_packets;
use crate::programs::{Stack, at};
use crate::proxy::{round_trip, spliced_tunnel, tunnel};
use crate::run::{PORT, end, splitway_run_on, start};
use crate::stat::{all_host_counted, host_counted};
use crate::support::{SOON, kill_nics_while, on_threads};

/// Clients at a time.
const CLIENTS: usize = 20;

/// What each sends and has back, in bytes, behind 100,000 and one more for each client.
const BYTES: usize = 2_000_000;

/// HAProxy before an echo of the kernel's, and the stack that it runs on.
struct Proxy {
    haproxy: Process,
    stack: Stack,
    admin: PathBuf,
    _backend: Backend,
}

impl Proxy {
    /// With lines for its defaults, and what `splitway run` is given.
    fn start(site: &Site, defaults: &str, options: &[&str]) -> Proxy {
        let backend = Backend::new(9001, Speech::Echo);
        let stack = Stack::serve(site);
        let (configuration, admin) = write_configuration(&stack.folder, defaults);
        let line = ["--connect", "10.77.0.0/24"];
        let line = [&line[..], options, &["--", "haproxy", "-f"]].concat();
        let mut command = splitway_run_on(&stack, &line);
        Proxy {
            haproxy: start(command.arg(configuration)),
            stack,
            admin,
            _backend: backend,
        }
    }

    /// What HAProxy says to have received from clients, and sent to them, in bytes.
    fn counted(&self) -> [u64; 2] {
        let mut admin = UnixStream::connect(&self.admin).unwrap();
        admin.write_all(b"show stat\n").unwrap();
        let mut table = String::new();
        admin.read_to_string(&mut table).unwrap();
        let line = table.lines().find(|line| line.starts_with("echo,FRONTEND"));
        let cells: Vec<&str> = line.expect("the listener").split(',').collect();
        [8, 9].map(|at| cells[at].parse().unwrap())
    }

    /// Waits until HAProxy has counted so much both ways.
    fn await_counted(&self, bytes: u64) {
        let all = || (self.counted() == [bytes; 2]).then_some(());
        let waited = wait::until(SOON, "HAProxy has counted all", all);
        assert!(waited.is_ok(), "{:?} of {bytes}", self.counted());
    }

    /// Ends all, and returns what the host process has counted.
    fn end<const N: usize>(mut self, names: [&str; N]) -> [u64; N] {
        let counted = all_host_counted(names);
        end(&mut self.haproxy, Signal::TERM);
        let ended = self.stack.splitway.end_with(Signal::TERM).unwrap();
        assert!(ended.success(), "{ended:?}");
        counted
    }
}

fn write_configuration(folder: &Path, defaults: &str) -> (PathBuf, PathBuf) {
    let (path, admin) = (folder.join("haproxy.cfg"), folder.join("haproxy.sock"));
    let text = format!(
        "global\n nbthread 2\n stats socket {admin} mode 600 level admin\n\
         defaults\n mode tcp\n timeout connect 5s\n{defaults}\n\
         option splice-request\n option splice-response\n\
         listen echo\n bind 0.0.0.0:{PORT}\n server one 10.77.0.1:9001\n",
        admin = admin.display()
    );
    fs::write(&path, text).unwrap();
    (path, admin)
}

const PATIENT: &str = " timeout client 30s\n timeout server 30s";
const SPLICED: [&str; 2] = ["--splice", "8080"];

/// What clients of [`spliced_tunnel`] send, altogether.
fn sent_bytes() -> u64 {
    (0..CLIENTS).map(|it| (100_000 + BYTES + it) as u64).sum()
}

#[test]
fn haproxy_has_its_tunnels_joined_and_counts_every_byte() {
    isolated(|site| {
        let proxy = Proxy::start(&site, PATIENT, &SPLICED);
        on_threads(CLIENTS, |client| spliced_tunnel(at(PORT), client, BYTES));
        proxy.await_counted(sent_bytes());
        let names = ["splices_joined", "splices_finished", "spliced_bytes"];
        let [joined, finished, bytes] = proxy.end(names);
        println!("{joined} joined, {finished} finished, {bytes} bytes");
        assert_eq!((joined, finished), (CLIENTS as u64, CLIENTS as u64));
        assert!(bytes >= (2 * CLIENTS * BYTES) as u64, "{bytes}");
    });
}

#[test]
fn connections_that_no_rule_names_are_copied() {
    isolated(|site| {
        let proxy = Proxy::start(&site, PATIENT, &["--splice", "81"]);
        on_threads(CLIENTS, |client| spliced_tunnel(at(PORT), client, 200_000));
        let all: u64 = (0..CLIENTS).map(|it| (300_000 + it) as u64).sum();
        proxy.await_counted(all);
        assert_eq!(proxy.end(["splices_begun"]), [0]);
    });
}

#[test]
fn short_tunnels_of_haproxy_are_copied() {
    isolated(|site| {
        let proxy = Proxy::start(&site, PATIENT, &SPLICED);
        on_threads(CLIENTS, |client| tunnel(at(PORT), client, 20_000));
        assert_eq!(proxy.end(["splices_begun"]), [0]);
    });
}

#[test]
fn tunnels_of_haproxy_go_on_while_packets_are_lost_and_nic_processes_are_killed() {
    isolated(|site| {
        let proxy = Proxy::start(&site, PATIENT, &SPLICED);
        lose_packets();
        kill_nics_while(&proxy.stack.splitway, || {
            on_threads(CLIENTS, |client| spliced_tunnel(at(PORT), client, BYTES));
        });
        let names = ["splices_joined", "splices_broken"];
        let [joined, broken] = proxy.end(names);
        println!("{joined} joined");
        assert!(joined > 0);
        assert_eq!(broken, 0);
    });
}

/// HAProxy's timeouts are those of silence: what passes without it counts, and what does not ends
/// the connection.
#[test]
fn timeouts_of_haproxy_see_what_the_nic_stack_moves() {
    isolated(|site| {
        let proxy = Proxy::start(&site, " timeout client 4s\n timeout server 4s", &SPLICED);
        let stream = TcpStream::connect(at(PORT)).unwrap();
        be_patient(&stream).unwrap();
        round_trip(&stream, &content(200_000, 1)).unwrap();
        let steered = || (host_counted("flows_steered") == 2).then_some(());
        wait::until(SOON, "a splice that is steered", steered).unwrap();
        for seed in 0..16 {
            round_trip(&stream, &content(10_000, seed)).unwrap();
            // Not a wait for something: silence that is shorter than the timeout.
            std::thread::park_timeout(Duration::from_millis(500));
        }
        match (&stream).read(&mut [0]) {
            Ok(0) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            other => panic!("{other:?} instead of the end"),
        }
        let names = ["splices_joined", "splices_returned"];
        assert_eq!(proxy.end(names), [1, 0]);
    });
}
