//! The two stacks on two machines: a client, a host and a NIC machine, each in a network namespace
//! of its own.
//!
//! ```text
//! client's bridge 10.91.0.1 ─┬─ host-port ── data    host: answers ARP for 10.91.0.2 and fd91::2, hears clients
//!                            └─ nic-port ─── data    NIC machine: sends to clients
//!        host: client ─── near  far ─── uplink :NIC machine     the control link, `splitway link` in between
//! ```

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::process::{ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::process::{Pid, Signal};
use testbed::http::{Connection, download};
use testbed::namespace::{Network, isolated, isolated_long, within};
use testbed::path::{CLIENT, Emulator, Path, UPLINK};
use testbed::process::{Process, await_end, run, signal};
use testbed::procfs::children;
use testbed::site::Site;
use testbed::splitway::Splitway;
use testbed::wait;

use crate::deaths;
use crate::https::{Certificate, Choice, Client};
use crate::isolation::status;
use crate::restart::restart_nic;
use crate::support::{RESPONSE_MAX, Random, SOON, on_threads, program, sh, slowest_response};

pub(crate) const ADDRESSES: [&str; 2] = ["10.91.0.2/24", "fd91::2/64"];

pub(crate) fn servers() -> [SocketAddr; 2] {
    ["10.91.0.2:80", "[fd91::2]:80"].map(|server| server.parse().unwrap())
}

/// Options of a control link that loses, repeats and reorders.
fn bad_link(seed: &str) -> [&str; 10] {
    [
        "--loss",
        "1%",
        "--duplicate",
        "1%",
        "--reorder",
        "1%",
        "--delay",
        "200us",
        "--seed",
        seed,
    ]
}

/// Three machines with their links.
pub(crate) struct Machines {
    pub(crate) site: Site,
    pub(crate) path: Path,
    host: Network,
    _control: Emulator,
}

impl Machines {
    /// The control link is as bad as these options of `splitway link` say.
    pub(crate) fn new(site: Site, conditions: &[&str]) -> Machines {
        let path = Path::new().unwrap();
        let host = Network::new().unwrap();
        let pid = host.holder().as_raw_nonzero();
        sh(&format!("ip link set {CLIENT} netns {pid}"));
        run(&mut within(
            host.holder(),
            &format!("ip link set {CLIENT} up"),
        ))
        .unwrap();
        let control = path.emulate(program(), conditions).unwrap();

        sh("ip link add bridge type bridge");
        sh("ip link set bridge up");
        for (port, machine) in [("host-port", host.holder()), ("nic-port", path.beyond())] {
            let pid = machine.as_raw_nonzero();
            sh(&format!(
                "ip link add {port} type veth peer name data netns {pid}"
            ));
            run(&mut within(machine, "ip link set data up")).unwrap();
            sh(&format!("ip link set {port} master bridge up"));
        }
        sh("ip address add 10.91.0.1/24 dev bridge");
        sh("ip address add fd91::1/64 dev bridge nodad");
        let machines = Machines {
            site,
            path,
            host,
            _control: control,
        };
        machines.keygen("key");
        machines
    }

    fn keygen(&self, name: &str) {
        let mut keygen = Command::new(program());
        run(keygen
            .args(["keygen", name])
            .current_dir(self.site.outside()))
        .unwrap();
    }

    pub(crate) fn nic_stack(&self) -> NicMachine {
        NicMachine::start(&self.site, self.path.beyond())
    }

    /// The command that starts a host stack with this key.
    fn host_command(&self, peer: &str, key: &str, addresses: &[&str]) -> Command {
        let mut command = within(self.host.holder(), "");
        command.arg(program());
        command.args([
            "serve",
            "--nic",
            &format!("eth:{CLIENT},{peer}"),
            "--key-file",
            key,
        ]);
        command.args(["--dev", "data", "--addr"]).args(addresses);
        command.current_dir(self.site.outside());
        command
    }

    pub(crate) fn host_stack(&self, nic: &NicMachine) -> Splitway {
        self.host_stack_with(nic, &[])
    }

    /// The same with further arguments.
    pub(crate) fn host_stack_with(&self, nic: &NicMachine, arguments: &[&str]) -> Splitway {
        let mut command = self.host_command(&nic.mac, "key", &ADDRESSES);
        Splitway::start(command.args(arguments)).unwrap()
    }

    /// What a host stack says that does not come to serve; it has an address of its own.
    fn refusal(&self, peer: &str, key: &str) -> String {
        let mut command = self.host_command(peer, key, &["10.91.0.3/24"]);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }
}

/// `splitway nic --control`.
pub(crate) struct NicMachine {
    process: Process,
    output: BufReader<ChildStdout>,
    /// Its address on the control link.
    mac: String,
}

impl NicMachine {
    fn start(site: &Site, machine: Pid) -> NicMachine {
        let mut command = within(machine, "");
        command.arg(program());
        command.args([
            "nic",
            "--control",
            &format!("eth:{UPLINK}"),
            "--key-file",
            "key",
        ]);
        command.args(["--dev", "data", "--root"]).arg(site.root());
        command.current_dir(site.outside());
        NicMachine::spawn(&mut command)
    }

    /// Starts a command that leads to `splitway nic --control`, and waits until that listens.
    pub(crate) fn spawn(command: &mut Command) -> NicMachine {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = Process::spawn(command).unwrap();
        let output = BufReader::new(process.child().stdout.take().unwrap());
        let mut nic = NicMachine {
            process,
            output,
            mac: String::new(),
        };
        let line = nic.await_line("waiting for host stacks on ");
        nic.mac = line.split(['(', ')']).nth(1).unwrap().to_owned();
        nic
    }

    /// Discards its output: unread, it would block the process.
    fn let_talk(self) -> Process {
        let NicMachine {
            process, output, ..
        } = self;
        std::thread::spawn(move || output.lines().for_each(drop));
        process
    }

    /// Reads its output up to a line that begins like this; the rest of that line.
    fn await_line(&mut self, beginning: &str) -> String {
        loop {
            let mut line = String::new();
            let bytes = self.output.read_line(&mut line).unwrap();
            assert_ne!(bytes, 0, "it has ended before {beginning:?}");
            if let Some(rest) = line.strip_prefix(beginning) {
                return rest.trim().to_owned();
            }
        }
    }

    /// The process that serves the next host stack.
    pub(crate) fn next_session(&mut self) -> Pid {
        let line = self.await_line("nic process ");
        Pid::from_raw(line.split(':').next().unwrap().parse().unwrap()).unwrap()
    }
}

#[test]
fn two_machines_serve_every_byte() {
    isolated(|site| {
        let files = [0, 1, 1448, 100_000, 3_000_001, 20_000_000].map(|size| {
            let name = format!("file-{size}");
            site.file(&name, size).unwrap()
        });
        let machines = Machines::new(site, &[]);
        let nic = machines.nic_stack();
        let mut host = machines.host_stack(&nic);
        for server in servers() {
            for file in &files {
                download(server, file).unwrap();
            }
        }
        on_threads(40, |index| {
            download(servers()[index % 2], &files[3 + index % 2]).map(|_| ())
        });

        // The clients' bridge still knows the host where it is, although another machine sends in
        // its name.
        let shown = run(&mut within(
            machines.host.holder(),
            "ip -oneline link show data",
        ))
        .unwrap();
        let mut words = shown
            .split_whitespace()
            .skip_while(|word| *word != "link/ether");
        let host_mac = words.nth(1).unwrap();
        let forwarding = sh("bridge fdb show br bridge");
        let learned = forwarding.lines().find(|line| line.starts_with(host_mac));
        assert!(
            learned.is_some_and(|line| line.contains("host-port")),
            "{forwarding}"
        );
        assert!(host.end_with(Signal::INT).unwrap().success());
    });
}

#[test]
fn all_but_the_supervisors_of_either_machine_are_confined() {
    isolated(|site| {
        let file = site.file("file", 2_000_000).unwrap();
        let machines = Machines::new(site, &[]);
        let mut nic = machines.nic_stack();
        let host = machines.host_stack(&nic);
        nic.next_session();
        download(servers()[0], &file).unwrap();
        let supervisors = [host.supervisor(), nic.process.pid()];
        let families = supervisors.map(|supervisor| children(supervisor).unwrap());
        assert_eq!(
            families.each_ref().map(Vec::len),
            [2, 2],
            "with a relay each"
        );
        for process in families.into_iter().flatten() {
            // SECCOMP_MODE_FILTER.
            assert_eq!(status(process, "Seccomp").as_deref(), Some("2"));
            assert_eq!(status(process, "NoNewPrivs").as_deref(), Some("1"));
            if status(process, "Name").as_deref() == Some("splitway-relay") {
                assert_eq!(
                    status(process, "CapPrm").as_deref(),
                    Some("0000000000000000")
                );
            }
        }
    });
}

#[test]
fn a_control_link_may_lose_repeat_and_reorder() {
    isolated(|site| {
        let file = site.file("file", 2_000_000).unwrap();
        let machines = Machines::new(site, &bad_link("7"));
        let nic = machines.nic_stack();
        let mut host = machines.host_stack(&nic);
        on_threads(30, |index| {
            download(servers()[index % 2], &file).map(|_| ())
        });
        assert!(host.end_with(Signal::INT).unwrap().success());
    });
}

#[test]
fn host_stacks_come_go_and_come_back() {
    isolated(|site| {
        let file = site.file("file", 2_000_000).unwrap();
        let machines = Machines::new(site, &[]);
        let mut nic = machines.nic_stack();
        for _ in 0..2 {
            let mut host = machines.host_stack(&nic);
            nic.next_session();
            download(servers()[0], &file).unwrap();
            assert!(host.end_with(Signal::INT).unwrap().success());
        }
        // One that does not even say good-bye; the next begins another session at once.
        let mut host = machines.host_stack(&nic);
        let session = nic.next_session();
        host.end_with(Signal::KILL).unwrap();
        let _host = machines.host_stack(&nic);
        assert_ne!(nic.next_session(), session);
        for server in servers() {
            download(server, &file).unwrap();
        }
    });
}

/// Each process between the host stack and the files is replaced when it dies, and the downloads go
/// on.
#[test]
fn downloads_outlive_nic_processes_relays_and_nic_machines() {
    isolated(|site| {
        let file = site.file("file", 3_000_000).unwrap();
        let machines = Machines::new(site, &["--loss", "1%", "--seed", "11"]);
        let mut nic = machines.nic_stack();
        let host = machines.host_stack(&nic);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let clients = scope.spawn(|| {
                on_threads(10, |index| {
                    let mut connection = Connection::open(servers()[index % 2])?;
                    while !over.load(Ordering::Relaxed) {
                        connection.get(&file)?;
                    }
                    connection.get(&file).map(|_| ())
                });
            });
            for _ in 0..3 {
                let session = nic.next_session();
                signal(session, Signal::KILL).unwrap();
            }
            nic.next_session();
            let mut family = children(host.supervisor()).unwrap();
            family.retain(|pid| *pid != host.host());
            for relay in family {
                signal(relay, Signal::KILL).unwrap();
            }
            nic.next_session();
            // As when its power fails: no end of the session is sent.
            signal(nic.process.pid(), Signal::KILL).unwrap();
            nic.process.wait(SOON).unwrap();
            nic = machines.nic_stack();
            nic.next_session();
            over.store(true, Ordering::Relaxed);
            clients.join().unwrap();
        });
    });
}

#[test]
fn no_response_waits_while_the_nic_process_of_another_machine_is_replaced() {
    isolated(|site| {
        let file = site.file("file", 300_000).unwrap();
        let machines = Machines::new(site, &[]);
        let nic = machines.nic_stack();
        let socket = machines.site.outside().join("control");
        let options = ["--control-socket", socket.to_str().unwrap()];
        let _host = machines.host_stack_with(&nic, &options);
        let _nic = nic.let_talk();
        let slowest = slowest_response(6, &servers(), &file, || {
            for _ in 0..5 {
                let (done, said) = restart_nic(&socket);
                assert!(done, "{said}");
            }
        });
        println!("the slowest response took {slowest:?}");
        assert!(slowest < RESPONSE_MAX, "{slowest:?}");
    });
}

/// Records are sealed on the other machine. When the NIC process there dies or is replaced, the
/// host gets its last events before another one begins, and no connection ends.
#[test]
fn records_of_tls_are_sealed_on_another_machine() {
    isolated(|site| {
        let file = site.file("file", 3_000_000).unwrap();
        let certificate = Certificate::new(site.outside(), "server", "ec", &["localhost"]);
        let client = Client::new(&[&certificate], Choice::Any);
        let machines = Machines::new(site, &bad_link("13"));
        let mut nic = machines.nic_stack();
        let mut command = machines.host_command(&nic.mac, "key", &ADDRESSES);
        command.args([
            "--tls-listen",
            "443",
            "--tls-key-records",
            "64",
            "--report-json",
        ]);
        let socket = machines.site.outside().join("control");
        command.arg("--control-socket").arg(&socket);
        let mut host = Splitway::start(command.args(certificate.options())).unwrap();
        let servers = servers().map(|server| SocketAddr::new(server.ip(), 443));
        on_threads(10, |index| client.download(servers[index % 2], &file));

        let over = AtomicBool::new(false);
        let whole = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let clients = scope.spawn(|| {
                on_threads(10, |index| {
                    let mut connection = client.open(servers[index % 2])?;
                    while !over.load(Ordering::Relaxed) {
                        connection.get(&file)?;
                        whole.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(())
                });
            });
            let await_progress = || {
                let before = whole.load(Ordering::Relaxed);
                let progress = || whole.load(Ordering::Relaxed) > before + 5;
                wait::until(SOON, "downloads", || {
                    (progress() || clients.is_finished()).then_some(())
                })
                .unwrap();
            };
            for replaces in [false, true, false, true, false] {
                let session = nic.next_session();
                await_progress();
                if replaces {
                    let (done, said) = restart_nic(&socket);
                    assert!(done, "{said}");
                } else {
                    signal(session, Signal::KILL).unwrap()
                }
            }
            nic.next_session();
            await_progress();
            over.store(true, Ordering::Relaxed);
            clients.join().unwrap();
        });
        println!("{whole:?} downloads");
        assert!(host.end_with(Signal::INT).unwrap().success());
        let mut counter = |name| deaths::host_counter(&mut host, name);
        assert_eq!(
            [
                "nic_restarts",
                "tls_records_unproven",
                "tls_seal_mismatches"
            ]
            .map(&mut counter),
            [5, 0, 0]
        );
    });
}

/// Kills NIC processes, of another machine, at random moments, so many times, while two hundred
/// clients download over links that lose packets; the link between the machines loses, repeats and
/// reorders frames.
fn downloads_outlive(site: Site, deaths: usize) {
    let mut random = Random::seeded();
    let files = deaths::files(&site);
    let seed = random.below(1 << 32).to_string();
    let machines = Machines::new(site, &bad_link(&seed));
    let nic = machines.nic_stack();
    let mut command = machines.host_command(&nic.mac, "key", &ADDRESSES);
    let mut host = Splitway::start(command.arg("--report-json")).unwrap();
    let nic = nic.let_talk();
    deaths::lose_packets();
    deaths::downloads_outlive(&host, servers(), &files, deaths, &mut random, || {
        let mut family = children(nic.pid()).unwrap();
        family.retain(|pid| status(*pid, "Name").as_deref() != Some("splitway-relay"));
        let process = family.pop();
        process.is_some_and(|process| signal(process, Signal::KILL).is_ok())
    });
    host.end_with(Signal::TERM).unwrap();
    let accepted = deaths::host_counter(&mut host, "connections_accepted");
    assert_eq!(accepted, deaths::DOWNLOADS as u64);
    let restarts = deaths::host_counter(&mut host, "nic_restarts");
    println!("{restarts} sessions followed another");
    // Frames were lost, and what was in them left again: the relay has counted that.
    let again = deaths::counter(&mut host, "nic", "control_link_parcels_repeated");
    assert!(again > 0, "{again}");
    // Some died before they served, but not most.
    assert!(restarts >= deaths as u64 / 2, "{restarts}");
}

#[test]
fn two_hundred_downloads_outlive_ten_nic_processes_over_a_bad_link() {
    isolated(|site| downloads_outlive(site, 10));
}

#[test]
#[ignore = "takes twenty minutes"]
fn two_hundred_downloads_outlive_a_thousand_nic_processes_over_a_bad_link() {
    isolated_long(|site| downloads_outlive(site, 1000));
}

#[test]
fn who_lacks_the_key_is_refused_and_told_what_to_do() {
    isolated(|site| {
        let file = site.file("file", 500_000).unwrap();
        let machines = Machines::new(site, &[]);
        let refusal = machines.refusal("02:00:00:00:00:99", "key");
        assert!(
            refusal.contains("check that `splitway nic --control` runs there"),
            "{refusal}"
        );

        let mut nic = machines.nic_stack();
        machines.keygen("other-key");
        let refusal = machines.refusal(&nic.mac, "other-key");
        assert!(refusal.contains("copy the key file"), "{refusal}");

        let readable = machines.site.outside().join("other-key");
        std::fs::set_permissions(&readable, std::fs::Permissions::from_mode(0o644)).unwrap();
        let refusal = machines.refusal(&nic.mac, "other-key");
        assert!(refusal.contains("chmod 600"), "{refusal}");
        let refusal = machines.refusal(&nic.mac, "no-key");
        assert!(refusal.contains("splitway keygen"), "{refusal}");

        // While another host is served, nothing changes for that one.
        std::fs::set_permissions(&readable, std::fs::Permissions::from_mode(0o600)).unwrap();
        let _host = machines.host_stack(&nic);
        nic.next_session();
        let mut connection = Connection::open(servers()[0]).unwrap();
        connection.get(&file).unwrap();
        let refusal = machines.refusal(&nic.mac, "other-key");
        assert!(refusal.contains("copy the key file"), "{refusal}");
        connection.get(&file).unwrap();
    });
}

#[test]
fn a_nic_machine_that_falls_silent_is_noticed() {
    isolated(|site| {
        let file = site.file("file", 500_000).unwrap();
        let machines = Machines::new(site, &[]);
        let mut nic = machines.nic_stack();
        let mut host = machines.host_stack(&nic);
        let session = nic.next_session();
        download(servers()[0], &file).unwrap();
        // As when its power fails: no end of the session is sent.
        signal(nic.process.pid(), Signal::KILL).unwrap();
        let line = host.line(|line| line.contains("has said nothing")).unwrap();
        assert!(line.contains(&nic.mac), "{line}");
        // The NIC process does not outlive its supervisor.
        await_end(session, SOON).unwrap();
        nic.process.wait(SOON).unwrap();
    });
}
