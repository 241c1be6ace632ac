//! One host with the NIC stacks of two machines, each in a network namespace of its own.
//!
//! ```text
//! client's bridge 10.91.0.1 ─┬─ data    host: answers for 10.91.0.2, hears clients
//!                            ├─ data    first NIC machine ┐ send to clients
//!                            └─ data    second NIC machine┘
//! another bridge ─┬─┬─ control          the control link of all three
//! ```

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;
use testbed::http::{Connection, download};
use testbed::namespace::{Network, isolated, within};
use testbed::process::{Process, run, signal, tool};
use testbed::site::{KnownFile, Site};
use testbed::splitway::Splitway;

use crate::deaths::{counted, files};
use crate::http2::{self, AT_ONCE};
use crate::https::Certificate;
use crate::restart::restart_nic;
use crate::support::{RESPONSE_MAX, SOON, on_threads, program, sh, slowest_response};

fn server() -> SocketAddr {
    "10.91.0.2:80".parse().unwrap()
}

/// The machines with their links, and a key.
struct Machines {
    site: Site,
    host: Network,
    nics: [Network; 2],
}

impl Machines {
    fn new(site: Site) -> Machines {
        let machine = || Network::new().unwrap();
        let machines = Machines {
            site,
            host: machine(),
            nics: [machine(), machine()],
        };
        for bridge in ["data", "control"] {
            sh(&format!("ip link add {bridge} type bridge"));
            sh(&format!("ip link set {bridge} up"));
            let all = [&machines.host].into_iter().chain(&machines.nics);
            for (number, machine) in all.enumerate() {
                let pid = machine.holder().as_raw_nonzero();
                let port = format!("{bridge}-{number}");
                sh(&format!(
                    "ip link add {port} type veth peer name {bridge} netns {pid}"
                ));
                let up = format!("ip link set {bridge} up");
                run(&mut within(machine.holder(), &up)).unwrap();
                sh(&format!("ip link set {port} master {bridge} up"));
            }
        }
        sh("ip address add 10.91.0.1/24 dev data");
        let mut keygen = Command::new(program());
        keygen.args(["keygen", "key"]);
        run(keygen.current_dir(machines.site.outside())).unwrap();
        machines
    }

    /// The root of the second machine.
    fn second_root(&self) -> PathBuf {
        self.site.outside().join("second")
    }

    /// `splitway nic --control` on one of the machines, and its address on the control link.
    fn nic_stack(&self, number: usize, root: &Path) -> (Process, String) {
        let mut command = within(self.nics[number].holder(), "");
        command.arg(program());
        command.args(["nic", "--control", "eth:control", "--key-file", "key"]);
        command.args(["--dev", "data", "--root"]).arg(root);
        command.current_dir(self.site.outside());
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = Process::spawn(&mut command).unwrap();
        let mut output = BufReader::new(process.child().stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let mac = line.split(['(', ')']).nth(1).expect("its address");
        // It goes on talking.
        std::thread::spawn(move || std::io::copy(&mut output, &mut std::io::sink()));
        (process, mac.to_owned())
    }

    /// NIC stacks of both machines, of which the second has a copy of the root.
    fn replicas(&self) -> [(Process, String); 2] {
        let (root, copy) = (self.site.root(), self.second_root());
        run(tool("cp -a").arg(root).arg(&copy)).unwrap();
        [self.nic_stack(0, root), self.nic_stack(1, &copy)]
    }

    fn host_stack(&self, macs: [&str; 2], options: &[&str]) -> Splitway {
        let mut command = within(self.host.holder(), "");
        command.args([program().as_os_str(), "serve".as_ref()]);
        for mac in macs {
            command.args(["--nic", &format!("eth:control,{mac}")]);
        }
        command.args(["--key-file", "key", "--dev", "data"]);
        command.args(["--addr", "10.91.0.2/24"]).args(options);
        command.current_dir(self.site.outside());
        Splitway::start(&mut command).unwrap()
    }
}

/// A connection that has got the first part of a file.
fn amid(file: &KnownFile) -> Connection {
    let mut connection = Connection::open(server()).unwrap();
    connection.send_get(file.name()).unwrap();
    connection.read_file_head(file).unwrap();
    connection.read_file_part(file, 0..file.size() / 8).unwrap();
    connection
}

/// The lines of `splitway ctl nics`, of two NIC stacks.
fn nics(control: &Path) -> Vec<String> {
    let mut ctl = Command::new(program());
    ctl.args(["ctl", "nics", "--socket"]).arg(control);
    let lines: Vec<String> = run(&mut ctl).unwrap().lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    lines
}

#[test]
fn downloads_go_on_from_a_replica_when_a_nic_machine_dies_for_good() {
    isolated(|site| {
        let large = site.file("large", 60_000_000).unwrap();
        let small = site.file("small", 700_000).unwrap();
        let machines = Machines::new(site);
        let [(mut first, first_mac), (_second, second_mac)] = machines.replicas();
        let macs = [first_mac.as_str(), &second_mac];
        let mut host = machines.host_stack(macs, &["--replicas"]);

        // More than any client buffers is still to come, from both machines.
        let begun: Vec<Connection> = (0..6).map(|_| amid(&large)).collect();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let clients = scope.spawn(|| {
                on_threads(6, |_| {
                    let mut connection = Connection::open(server())?;
                    while !over.load(Ordering::Relaxed) {
                        connection.get(&small)?;
                    }
                    connection.get(&small).map(|_| ())
                });
            });
            // As when its power fails: no end of the session is sent.
            signal(first.pid(), Signal::KILL).unwrap();
            first.wait(SOON).unwrap();
            let lost = host.line(|line| line.contains("go on through another"));
            let lost = lost.unwrap();
            assert!(lost.contains(&first_mac), "{lost}");
            for mut connection in begun {
                let rest = large.size() / 8..large.size();
                connection.read_file_part(&large, rest).unwrap();
                connection.get(&small).unwrap();
            }
            over.store(true, Ordering::Relaxed);
            clients.join().unwrap();
        });
        for _ in 0..4 {
            download(server(), &small).unwrap();
        }
        assert!(host.end_with(Signal::INT).unwrap().success());

        // It is not missed at the start either, and joins when it comes.
        let control = machines.site.outside().join("host.sock");
        let options = ["--replicas", "--control-socket", control.to_str().unwrap()];
        let mut host = machines.host_stack(macs, &options);
        let missing = |line: &String| line.contains("missing") && line.contains(&first_mac);
        assert!(host.output().iter().any(missing), "{:?}", host.output());
        let listed = nics(&control);
        assert!(listed[0].contains(&first_mac) && listed[0].contains("missing"));
        assert!(listed[1].contains(&second_mac) && listed[1].contains("serves"));
        download(server(), &large).unwrap();
        let (_first, mac) = machines.nic_stack(0, machines.site.root());
        assert_eq!(mac, first_mac);
        let serves = host.line(|line| line.contains("serves in the place"));
        assert!(serves.unwrap().contains(&first_mac));
        assert!(nics(&control).iter().all(|line| line.contains("1 worker,")));
        on_threads(4, |_| download(server(), &small).map(|_| ()));
        assert!(host.end_with(Signal::INT).unwrap().success());
    });
}

#[test]
fn replicas_are_replaced_one_after_the_other_and_no_response_waits() {
    isolated(|site| {
        let file = site.file("file", 300_000).unwrap();
        let machines = Machines::new(site);
        let [(_first, first_mac), (_second, second_mac)] = machines.replicas();
        let control = machines.site.outside().join("host.sock");
        let options = ["--replicas", "--control-socket", control.to_str().unwrap()];
        let mut host = machines.host_stack([&first_mac, &second_mac], &options);
        let slowest = slowest_response(6, &[server()], &file, || {
            for _ in 0..3 {
                let (done, said) = restart_nic(&control);
                assert!(done && said.lines().count() == 2, "{said}");
            }
        });
        println!("the slowest response took {slowest:?}");
        assert!(slowest < RESPONSE_MAX, "{slowest:?}");
        // One has taken its place before the next one was asked to end.
        let said = host.output().join("\n");
        let places: Vec<_> = said
            .lines()
            .filter(|line| line.contains("serves in the place"))
            .map(|line| line.contains(&first_mac))
            .collect();
        assert_eq!(places, [true, false].repeat(3), "{said}");
    });
}

/// Of a machine that dies, the tags of the last records are unknown, and some connections over TLS
/// are reset.
#[test]
fn streams_of_http_2_go_on_while_replicas_are_replaced() {
    isolated(|site| {
        let files = files(&site);
        let outside = site.outside().to_owned();
        let certificate = Certificate::new(&outside, "server", "ec", &["localhost"]);
        let machines = Machines::new(site);
        let [(_first, first_mac), (_second, second_mac)] = machines.replicas();
        let control = outside.join("host.sock");
        let tls = certificate.options();
        let mut options = vec!["--replicas", "--report-json"];
        options.extend(["--control-socket", control.to_str().unwrap()]);
        options.extend(["--tls-listen", "443"]);
        options.extend(tls.iter().map(String::as_str));
        let host = machines.host_stack([&first_mac, &second_mac], &options);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let clients = scope.spawn(|| {
                on_threads(4, |index| {
                    let folder = outside.join(format!("client{index}"));
                    let server = ("https://localhost", &certificate);
                    let there = "--connect-to localhost:443:10.91.0.2:443";
                    let options = format!("--http2 {AT_ONCE} --limit-rate 500k {there}");
                    while !is_over.load(Ordering::Relaxed) {
                        http2::download(&folder, server, &files, &options)?;
                    }
                    Ok(())
                });
            });
            for _ in 0..3 {
                let (done, said) = restart_nic(&control);
                assert!(done && said.lines().count() == 2, "{said}");
            }
            is_over.store(true, Ordering::Relaxed);
            clients.join().unwrap();
        });
        let names = [
            "connections_broken",
            "tls_records_unproven",
            "http_http2_stream_errors",
        ];
        assert_eq!(counted(host, names), [0; 3]);
    });
}

#[test]
fn a_file_comes_from_the_machine_that_has_it() {
    isolated(|site| {
        let of_first = site.file("of-first", 900_000).unwrap();
        let of_second = site.file("of-second", 800_000).unwrap();
        let machines = Machines::new(site);
        fs::create_dir(machines.second_root()).unwrap();
        let moved = machines.second_root().join("of-second");
        fs::rename(machines.site.root().join("of-second"), moved).unwrap();
        let (_first, first_mac) = machines.nic_stack(0, machines.site.root());
        let (_second, second_mac) = machines.nic_stack(1, &machines.second_root());
        let mut host = machines.host_stack([&first_mac, &second_mac], &[]);
        on_threads(8, |_| {
            let mut connection = Connection::open(server())?;
            for file in [&of_first, &of_second, &of_second, &of_first] {
                connection.get(file)?;
            }
            Ok(())
        });
        let mut connection = Connection::open(server()).unwrap();
        connection.send_get("nowhere").unwrap();
        assert_eq!(connection.read_head().unwrap().status, 404);
        assert!(host.end_with(Signal::INT).unwrap().success());
    });
}

#[test]
fn a_directory_is_that_of_all_machines_whose_roots_are_no_copies() {
    isolated(|site| {
        let machines = Machines::new(site);
        let second = machines.second_root();
        // Each has so many that its part of the listing comes in several.
        for number in 0..400 {
            let roots = [machines.site.root(), &second];
            let directory = roots[number % 2].join("d");
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join(format!("{number:04}")), "x").unwrap();
        }
        let (_first, first_mac) = machines.nic_stack(0, machines.site.root());
        let (_second, second_mac) = machines.nic_stack(1, &second);
        let _host = machines.host_stack([&first_mac, &second_mac], &["--listing"]);
        for _ in 0..4 {
            let mut curl = tool("curl --silent --fail --max-time 20");
            curl.args(["--header", "Accept: application/json"]);
            let answer = run(curl.arg("http://10.91.0.2/d/")).unwrap();
            let entries: Vec<serde_json::Value> = serde_json::from_str(&answer).unwrap();
            let names = entries.iter().map(|entry| entry["name"].as_str().unwrap());
            assert!(
                names.eq((0..400).map(|number| format!("{number:04}"))),
                "{answer}"
            );
        }
    });
}
