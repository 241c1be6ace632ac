//! The cluster form: programs in a network namespace that has no address, on a link to the stack
//! node, which is this namespace; clients are the kernel's of this namespace.
//!
//! ```text
//! clients ── splitway0 ── stack node: serve, sockets-gate ── apps0  apps1 ── sockets-node, programs
//! ```

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use testbed::http::download;
use testbed::namespace::{Network, isolated, within};
use testbed::process::{Process, run, signal};
use testbed::procfs::children;
use testbed::site::Site;
use testbed::wait;

use crate::deaths::{files, lose_packets};
use crate::programs::{Stack, at, echo, sent_by_programs};
use crate::support::{SOON, assert_idle, on_threads, program, sh};

const FILES_PORT: u16 = 8080;
const ECHO_PORT: u16 = 9000;
const ENDS_PORT: u16 = 9001;

/// More than for one machine: nodes exchange keep-alives.
const NODE_WAKES_PER_SECOND_MAX: f64 = 10.0;

/// A command of `splitway`, and what it prints.
pub(crate) struct Running {
    process: Process,
    lines: Receiver<String>,
}

impl Running {
    fn spawn(command: &mut Command) -> Running {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = Process::spawn(command).unwrap();
        let output = BufReader::new(process.child().stdout.take().unwrap());
        let (sender, lines) = channel();
        // Unread, its output would block it.
        std::thread::spawn(move || {
            let lines = output.lines().map_while(Result::ok);
            lines.for_each(|line| drop(sender.send(line)));
        });
        Running { process, lines }
    }

    /// Waits for a line that begins like this.
    fn await_line(&self, beginning: &str) {
        let mut others = Vec::new();
        while let Ok(line) = self.lines.recv_timeout(SOON) {
            if line.starts_with(beginning) {
                return;
            }
            others.push(line);
        }
        panic!("no line {beginning:?}, but {others:#?}");
    }

    /// Its child of this name.
    fn child(&self, name: &str) -> Pid {
        let mut all = children(self.process.pid()).unwrap().into_iter();
        let found = all.find(|pid| {
            let comm = std::fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero()));
            comm.is_ok_and(|comm| comm.trim() == name)
        });
        found.unwrap_or_else(|| panic!("no {name}"))
    }
}

/// Both nodes.
pub(crate) struct Cluster {
    pub(crate) stack: Stack,
    node: Network,
    gate: Running,
    addresses: [String; 2],
}

/// The address of an interface, of what `ip` says.
fn mac(shown: &str) -> String {
    let mut words = shown.split_whitespace();
    let mac = words
        .by_ref()
        .skip_while(|word| *word != "link/ether")
        .nth(1);
    mac.unwrap().to_owned()
}

/// What a unit takes from its processes, as options of setpriv(1).
fn confinement(unit: &str) -> [String; 2] {
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/systemd");
    let text = std::fs::read_to_string(units.join(unit)).unwrap();
    let named = text
        .lines()
        .find_map(|line| line.strip_prefix("CapabilityBoundingSet="))
        .unwrap();
    let kept: String = named
        .to_lowercase()
        .split(' ')
        .map(|name| name.replace("cap_", ",+"))
        .collect();
    assert!(text.contains("NoNewPrivileges=yes"));
    [
        "--no-new-privs".into(),
        format!("--bounding-set=-all{kept}"),
    ]
}

impl Cluster {
    pub(crate) fn new(site: &Site) -> Cluster {
        let stack = Stack::serve(site);
        let node = Network::new().unwrap();
        let pid = node.holder().as_raw_nonzero();
        sh(&format!(
            "ip link add apps0 type veth peer name apps1 netns {pid}"
        ));
        sh("ip link set apps0 up");
        run(&mut within(node.holder(), "ip link set apps1 up")).unwrap();
        let there = within(node.holder(), "ip -oneline link show apps1");
        let addresses = [
            sh("ip -oneline link show apps0"),
            run(&mut { there }).unwrap(),
        ];
        let addresses = addresses.map(|shown| mac(&shown));
        let mut keygen = Command::new(program());
        run(keygen.args(["keygen", "key"]).current_dir(&stack.folder)).unwrap();
        let mut gate = Command::new("setpriv");
        gate.args(confinement("splitway-sockets-gate@.service"))
            .arg(program());
        gate.args(["sockets-gate", "--key-file", "key", "--sockets", "sockets"])
            .args([
                "--user",
                "root",
                "--node",
                &format!("eth:apps0,{}", addresses[1]),
            ])
            .current_dir(&stack.folder);
        let gate = Running::spawn(&mut gate);
        gate.await_line("waiting for ");
        Cluster {
            stack,
            node,
            gate,
            addresses,
        }
    }

    /// The application node, once it has a session.
    pub(crate) fn node(&self) -> Running {
        let mut node = within(self.node.holder(), "setpriv");
        node.args(confinement("splitway-sockets-node.service"))
            .arg(program());
        node.args(["sockets-node", "--key-file", "key", "--sockets", "programs"])
            .args(["--stack", &format!("eth:apps1,{}", self.addresses[0])])
            .current_dir(&self.stack.folder);
        let node = Running::spawn(&mut node);
        node.await_line("the stack node at ");
        node
    }

    /// What runs a program on the application node.
    fn command(&self, program: &Path, port: u16) -> Command {
        self.command_of(program, &[&port.to_string()])
    }

    /// The same with any arguments.
    pub(crate) fn command_of(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = within(self.node.holder(), "");
        command
            .arg(program)
            .args(arguments)
            .env("SPLITWAY_SOCKET", self.stack.folder.join("programs"))
            .env("LD_LIBRARY_PATH", &self.stack.folder);
        command
    }

    /// Starts a program on the application node, and waits until it listens.
    fn start(&self, program: &Path, port: u16) -> Process {
        let mut command = self.command(program, port);
        let started = Process::spawn(command.stdout(Stdio::null())).unwrap();
        let connected = || TcpStream::connect(at(port)).ok();
        wait::until(SOON, "the program listens", connected).unwrap();
        started
    }

    /// Starts a program that says how its sockets end, and connects to it.
    fn connect(&self, program: &Path) -> (Running, TcpStream) {
        let ends = Running::spawn(&mut self.command(program, ENDS_PORT));
        ends.await_line("listens");
        let open = TcpStream::connect(at(ENDS_PORT)).unwrap();
        open.set_read_timeout(Some(SOON)).unwrap();
        ends.await_line("accepted");
        (ends, open)
    }
}

/// A connection ends in whatever way: a read does not time out.
fn assert_ended(mut open: TcpStream) {
    let ended = open.read(&mut [0; 1]);
    assert!(
        ended.as_ref().is_ok_and(|count| *count == 0)
            || ended.is_err_and(|it| it.kind() == std::io::ErrorKind::ConnectionReset),
    );
}

/// What a program says of sockets that were reset.
const RESET: &str = "ended EPOLLHUP ECONNRESET ECONNRESET";

#[test]
fn programs_without_tcp_serve_every_byte_and_files_do_not_cross_the_link() {
    isolated(|site| {
        let files = files(&site);
        let small = site.file("echo", 30_000).unwrap();
        let cluster = Cluster::new(&site);
        let _node = cluster.node();
        let shown = run(&mut within(cluster.node.holder(), "ip -4 address")).unwrap();
        assert_eq!(shown, "", "it has no address");
        let server = cluster.start(&cluster.stack.compile("file_server"), FILES_PORT);
        let echoes = cluster.start(&cluster.stack.compile("echo"), ECHO_PORT);
        let serve = || {
            on_threads(8, |index| {
                for turn in 0..4 {
                    download(at(FILES_PORT), &files[(index + turn) % files.len()])?;
                }
                Ok(())
            });
            on_threads(30, |_| echo(at(ECHO_PORT), &small));
        };
        serve();
        lose_packets();
        serve();
        let (file_bytes, sent_bytes) = sent_by_programs();
        let echoed = 2 * 30 * 30_000;
        assert!(file_bytes > 10 * echoed, "{file_bytes}");
        // Heads of responses.
        assert!(sent_bytes < echoed + 100_000, "{sent_bytes}");
        drop((server, echoes));
        cluster.stack.assert_nothing_left();
    });
}

#[test]
fn programs_and_nodes_that_are_killed_leave_nothing_and_others_take_their_place() {
    isolated(|site| {
        let small = site.file("echo", 30_000).unwrap();
        let cluster = Cluster::new(&site);
        let node = cluster.node();
        let program = cluster.stack.compile("echo");
        for _ in 0..3 {
            let server = cluster.start(&program, ECHO_PORT);
            echo(at(ECHO_PORT), &small).unwrap();
            let open = TcpStream::connect(at(ECHO_PORT)).unwrap();
            open.set_read_timeout(Some(SOON)).unwrap();
            signal(server.pid(), Signal::KILL).unwrap();
            assert_ended(open);
            cluster.stack.assert_nothing_left();
        }
        let ends = cluster.stack.compile_from("tests/programs", "ends");
        // Neither is of use without the other.
        for process in ["splitway-node", "splitway-broker"] {
            let (said, open) = cluster.connect(&ends);
            signal(node.child(process), Signal::KILL).unwrap();
            said.await_line(RESET);
            assert_ended(open);
            node.await_line("the stack node at ");
            cluster.stack.assert_nothing_left();
            let server = cluster.start(&program, ECHO_PORT);
            echo(at(ECHO_PORT), &small).unwrap();
            drop(server);
            cluster.stack.assert_nothing_left();
        }
    });
}

#[test]
fn a_gate_that_is_killed_and_a_host_stack_that_ends_reset_all_and_others_take_their_place() {
    isolated(|site| {
        let small = site.file("echo", 30_000).unwrap();
        let mut cluster = Cluster::new(&site);
        let node = cluster.node();
        let program = cluster.stack.compile("echo");
        let ends = cluster.stack.compile_from("tests/programs", "ends");
        let serve = |cluster: &Cluster| {
            let server = cluster.start(&program, ECHO_PORT);
            echo(at(ECHO_PORT), &small).unwrap();
            drop(server);
            cluster.stack.assert_nothing_left();
        };
        let (said, open) = cluster.connect(&ends);
        signal(cluster.gate.child("splitway-gate"), Signal::KILL).unwrap();
        said.await_line(RESET);
        assert_ended(open);
        cluster.gate.await_line("waiting for ");
        node.await_line("the stack node at ");
        serve(&cluster);

        let (said, open) = cluster.connect(&ends);
        cluster.stack.kill();
        said.await_line(RESET);
        drop(open);
        // The gate is there all the time.
        cluster.stack.serve_again(&site);
        serve(&cluster);
    });
}

#[test]
fn a_session_that_is_lost_resets_all_and_new_programs_are_served_once_it_is_back() {
    isolated(|site| {
        let small = site.file("echo", 30_000).unwrap();
        let cluster = Cluster::new(&site);
        let node = cluster.node();
        let program = cluster.stack.compile("echo");
        let server = cluster.start(&program, ECHO_PORT);
        let mut open = TcpStream::connect(at(ECHO_PORT)).unwrap();
        open.set_read_timeout(Some(SOON)).unwrap();
        sh("ip link set apps0 down");
        node.await_line("the stack node is gone");
        assert!(open.read(&mut [0; 1]).is_err(), "its connection is reset");
        drop(server);
        cluster.stack.assert_nothing_left();
        sh("ip link set apps0 up");
        node.await_line("the stack node at ");
        let server = cluster.start(&program, ECHO_PORT);
        echo(at(ECHO_PORT), &small).unwrap();
        drop(server);
        cluster.stack.assert_nothing_left();
    });
}

/// A ring takes the last words of 1,300 sockets; the rest waits for room.
#[test]
fn what_programs_hold_is_given_back_though_no_other_session_begins() {
    isolated(|site| {
        let cluster = Cluster::new(&site);
        let node = cluster.node();
        let many = cluster.stack.compile_from("tests/programs", "many");
        let mut command = cluster.command(&many, 10_000);
        let held = Running::spawn(command.arg("3000"));
        held.await_line("bound");
        sh("ip link set apps0 down");
        node.await_line("the stack node is gone");
        cluster.stack.assert_nothing_left();
    });
}

#[test]
fn rules_of_the_stack_node_hold_for_programs_of_another() {
    isolated(|site| {
        let small = site.file("echo", 30_000).unwrap();
        let mut cluster = Cluster::new(&site);
        let program = cluster.stack.compile("echo");
        let _node = cluster.node();
        // The gate runs as this user.
        let rules = [
            ("user = 'root'\nlisten = ['9000']", "listen: "),
            ("user = '77'", "socket: "),
        ];
        for (rule, failed) in rules {
            cluster.stack.kill();
            let rule = format!("[[sockets.allow]]\n{rule}");
            cluster.stack.serve_again_with(&site, &rule);
            if failed == "listen: " {
                let server = cluster.start(&program, ECHO_PORT);
                echo(at(ECHO_PORT), &small).unwrap();
                drop(server);
            }
            let refused = cluster.command(&program, ENDS_PORT).output().unwrap();
            let said = String::from_utf8_lossy(&refused.stderr);
            assert_eq!(refused.status.code(), Some(1), "{said}");
            assert!(said.contains(failed), "{said}");
            assert!(said.to_lowercase().contains("permission denied"), "{said}");
        }
        cluster.stack.assert_nothing_left();
    });
}

#[test]
fn each_node_wakes_ten_times_a_second_at_most_for_idle_programs() {
    isolated(|site| {
        let file = site.file("echo", 30_000).unwrap();
        let cluster = Cluster::new(&site);
        let node = cluster.node();
        let program = cluster.stack.compile("echo");
        let ports = ECHO_PORT..ECHO_PORT + 5;
        let programs: Vec<_> = ports
            .clone()
            .map(|it| cluster.start(&program, it))
            .collect();
        // They have had work before, and a client of each is still connected.
        on_threads(5, |index| echo(at(ECHO_PORT + index as u16), &file));
        let clients: Vec<_> = ports
            .map(|it| TcpStream::connect(at(it)).unwrap())
            .collect();
        let own = [node.child("splitway-node"), node.child("splitway-broker")];
        let gate = cluster.gate.child("splitway-gate");
        let own = own.into_iter().chain(programs.iter().map(Process::pid));
        let nodes: [Vec<_>; 2] = [own.collect(), vec![gate]];
        for node in nodes {
            assert_idle(&node, NODE_WAKES_PER_SECOND_MAX, Duration::from_secs(10));
        }
        drop(clients);
    });
}
