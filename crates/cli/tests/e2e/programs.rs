//! Programs of others on the stack: those of `examples/c`, and clients that are the kernel's.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use serde_json::{Value, json};
use testbed::http::{Connection, download};
use testbed::namespace::isolated;
use testbed::process::{Process, run, signal};
use testbed::procfs::descriptors;
use testbed::site::{KnownFile, Site};
use testbed::splitway::Splitway;
use testbed::wait;

use crate::config::{configuration, serve_configured};
use crate::deaths::{files, lose_packets};
use crate::sockets::attach;
use crate::sockets_stat::applications;
use crate::support::{
    Random, SOON, WAKES_PER_SECOND_MAX, assert_idle, on_threads, process, program, serve_with,
};

const FILES_PORT: u16 = 8080;
const ECHO_PORT: u16 = 9000;

/// What Cargo has built beside the tests.
pub(crate) fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let mut places = test.ancestors().skip(1).map(|it| it.join(name));
    let place = places.find(|path| path.exists());
    place.unwrap_or_else(|| panic!("no {name}: cargo build -p splitway-capi --examples"))
}

/// The library for programs, linked as packages have it.
fn library() -> PathBuf {
    static LINKED: OnceLock<PathBuf> = OnceLock::new();
    let link = || {
        let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("library");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/library.sh");
        let mut linking = Command::new(script);
        run(linking.arg("link").args([&built("libsplitway.a"), &place])).unwrap();
        place.join("libsplitway.so")
    };
    LINKED.get_or_init(link).clone()
}

/// A server with a socket for programs, and a folder for these.
pub(crate) struct Stack {
    pub(crate) splitway: Splitway,
    pub(crate) folder: PathBuf,
    /// Descriptors of the host process while no program is attached.
    descriptors: usize,
}

impl Stack {
    pub(crate) fn serve(site: &Site) -> Stack {
        let folder = site.outside().to_owned();
        symlink(library(), folder.join("libsplitway.so.0")).unwrap();
        Stack::serve_in(site, folder)
    }

    fn serve_in(site: &Site, folder: PathBuf) -> Stack {
        let sockets = folder.join("sockets");
        let splitway = serve_with(site, &["--sockets", sockets.to_str().unwrap()]);
        Stack::of(splitway, folder)
    }

    /// With further lines of its configuration, of [sockets] first.
    pub(crate) fn serve_again_with(&mut self, site: &Site, lines: &str) {
        let sockets = self.folder.join("sockets");
        let lines = format!("[sockets]\npath = {sockets:?}\n{lines}\n");
        let splitway = serve_configured(&configuration(site, &lines));
        *self = Stack::of(splitway, self.folder.clone());
    }

    fn of(splitway: Splitway, folder: PathBuf) -> Stack {
        let sockets = folder.join("sockets");
        // The host process answers once it has the broker.
        attach(&sockets).expect("a program attaches");
        let mut stack = Stack {
            splitway,
            folder,
            descriptors: 0,
        };
        let gone = || (!stack.maps().contains("splitway-")).then_some(());
        wait::until(SOON, "what has attached is gone", gone).unwrap();
        stack.descriptors = descriptors(stack.splitway.host()).unwrap();
        stack
    }

    /// Kills all processes of the server.
    pub(crate) fn kill(&mut self) {
        self.splitway.end_with(Signal::KILL).unwrap();
    }

    /// Serves again at the same place.
    pub(crate) fn serve_again(&mut self, site: &Site) {
        *self = Stack::serve_in(site, self.folder.clone());
    }

    /// The memory files of programs that the host process has mapped, one in a line.
    fn maps(&self) -> String {
        let maps = format!("/proc/{}/maps", self.splitway.host().as_raw_nonzero());
        let maps = std::fs::read_to_string(maps).unwrap();
        let of_programs = ["splitway-segment", "splitway-sockets"];
        let is_theirs = |line: &&str| of_programs.iter().any(|name| line.contains(name));
        maps.lines()
            .filter(is_theirs)
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// Compiles a program of `examples/c`.
    pub(crate) fn compile(&self, name: &str) -> PathBuf {
        self.compile_from("../../examples/c", name)
    }

    /// The same of one in a folder, as seen from this crate's.
    pub(crate) fn compile_from(&self, folder: &str, name: &str) -> PathBuf {
        let own = Path::new(env!("CARGO_MANIFEST_DIR"));
        let program = self.folder.join(name);
        let done = Command::new("cc")
            .args(["-O1", "-D_GNU_SOURCE"])
            .args(["-Wall", "-Wextra", "-Werror", "-I"])
            .arg(own.join("../capi/include"))
            .arg("-o")
            .arg(&program)
            .arg(own.join(folder).join(name).with_extension("c"))
            .arg(library())
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{errors}");
        program
    }

    /// Starts a program, and waits until it listens.
    fn start(&self, program: &Path, port: u16) -> Process {
        self.start_with(program, port, &[])
    }

    /// The same with further arguments.
    pub(crate) fn start_with(&self, program: &Path, port: u16, arguments: &[&Path]) -> Process {
        let all = "async-send,eager-receive,eager-accept,setup-with-accept,buffers-on-demand";
        self.start_in(program, port, all, arguments)
    }

    /// The same in these modes.
    fn start_in(&self, program: &Path, port: u16, modes: &str, arguments: &[&Path]) -> Process {
        let mut command = Command::new(program);
        command
            .arg(port.to_string())
            .args(arguments)
            .env("SPLITWAY_SOCKET", self.folder.join("sockets"))
            .env("SPLITWAY_MODES", modes)
            .env("LD_LIBRARY_PATH", &self.folder)
            .stdout(Stdio::null());
        let started = Process::spawn(&mut command).unwrap();
        let connected = || TcpStream::connect(at(port)).ok();
        wait::until(SOON, "the program listens", connected).unwrap();
        started
    }

    /// What of programs is left in the host process once they are gone: as many descriptors as
    /// before them, and no memory of a segment.
    pub(crate) fn assert_nothing_left(&self) {
        let (host, before) = (self.splitway.host(), self.descriptors);
        let left = wait::until(SOON, "programs are gone", || {
            (descriptors(host).unwrap() == before).then_some(())
        });
        assert!(
            left.is_ok(),
            "{} descriptors of the host process, {before} before",
            descriptors(host).unwrap()
        );
        assert_eq!(self.maps(), "");
    }
}

/// Where a program is reached.
pub(crate) fn at(port: u16) -> SocketAddr {
    ([10, 77, 0, 2], port).into()
}

/// Sends the bytes of a file, and compares what comes back.
pub(crate) fn echo(server: SocketAddr, file: &KnownFile) -> testbed::Result<()> {
    exchange(server, file).map_err(|error| testbed::Failure::new(error.to_string()))
}

fn exchange(server: SocketAddr, file: &KnownFile) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(server)?;
    stream.set_read_timeout(Some(SOON))?;
    stream.set_write_timeout(Some(SOON))?;
    let sent = file.bytes(0, file.size() as usize);
    let mut writing = stream.try_clone()?;
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| writing.write_all(&sent));
        let mut received = vec![0; sent.len()];
        stream.read_exact(&mut received)?;
        assert!(received == sent, "every byte");
        writer.join().expect("it does not panic")?;
        Ok(())
    })
}

#[test]
fn a_file_server_in_c_offloads_files_while_packets_are_lost_and_nic_processes_die() {
    isolated(|site| {
        let files = files(&site);
        let stack = Stack::serve(&site);
        let program = stack.compile("file_server");
        let server = stack.start(&program, FILES_PORT);
        lose_packets();
        for death in 0..4 {
            on_threads(8, |index| {
                for turn in 0..4 {
                    download(at(FILES_PORT), &files[(index + turn) % files.len()])?;
                }
                Ok(())
            });
            if death < 3 {
                let nic = process(&stack.splitway, "splitway-nic").unwrap();
                signal(nic, Signal::KILL).unwrap();
            }
        }
        // The program has not touched a byte of them, and the server serves beside it.
        download(at(80), &files[0]).unwrap();
        drop(server);
        stack.assert_nothing_left();
    });
}

/// Bytes of files that programs have queued, and bytes that were taken from them.
pub(crate) fn sent_by_programs() -> (u64, u64) {
    let shown = applications();
    let sum = |name: &str| {
        let values = shown.iter().map(|row| row[name].as_u64());
        values.sum::<Option<u64>>().unwrap()
    };
    (sum("file_bytes"), sum("sent_bytes"))
}

#[test]
fn files_that_a_program_has_open_go_from_the_nic_process_though_that_dies() {
    isolated(|site| {
        files(&site);
        let stack = Stack::serve(&site);
        let program = stack.compile_from("tests/programs", "sendfile");
        let place = site.outside().join("elsewhere");
        std::fs::create_dir(&place).unwrap();
        let elsewhere = Site::at(place).unwrap();
        std::fs::create_dir(elsewhere.root().join("once")).unwrap();
        let kept: Vec<_> = (0..4)
            .map(|number| elsewhere.file(&format!("{number}"), 300_000 + number))
            .map(Result::unwrap)
            .collect();
        let server = stack.start_with(&program, FILES_PORT, &[elsewhere.root()]);
        lose_packets();
        for death in 0..4 {
            on_threads(8, |index| {
                for turn in 0..4 {
                    download(at(FILES_PORT), &kept[(index + turn) % kept.len()])?;
                    // One that has no name any more when it is sent.
                    let name = format!("once/{death}-{index}-{turn}");
                    download(at(FILES_PORT), &elsewhere.file(&name, 200_000)?)?;
                }
                Ok(())
            });
            if death < 3 {
                let nic = process(&stack.splitway, "splitway-nic").unwrap();
                signal(nic, Signal::KILL).unwrap();
            }
        }
        let (file_bytes, sent_bytes) = sent_by_programs();
        let whole = 4 * 8 * 4 * (300_000 + 200_000);
        assert!(file_bytes >= whole, "{file_bytes} of {whole}");
        assert!(
            sent_bytes < whole / 1000,
            "{sent_bytes} bytes were read here"
        );
        drop(server);
        stack.assert_nothing_left();
        let kept = || {
            let nic = process(&stack.splitway, "splitway-nic")?;
            let broker = process(&stack.splitway, "splitway-broker")?;
            let has = |pid| passed_files(pid, elsewhere.root());
            (has(nic) + has(broker) == 0).then_some(())
        };
        wait::until(SOON, "no file is kept", kept).unwrap();
    });
}

#[test]
fn files_that_a_program_has_open_outlive_a_broker_and_then_a_nic_process() {
    isolated(|site| {
        let stack = Stack::serve(&site);
        let program = stack.compile_from("tests/programs", "sendfile");
        let place = site.outside().join("elsewhere");
        std::fs::create_dir(&place).unwrap();
        let elsewhere = Site::at(place).unwrap();
        let file = elsewhere.file("large", 30_000_000).unwrap();
        let server = stack.start_with(&program, FILES_PORT, &[elsewhere.root()]);
        let mut stream = TcpStream::connect(at(FILES_PORT)).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream.write_all(b"GET /large HTTP/1.1\r\n\r\n").unwrap();
        // It waits for its client.
        let mut received = vec![0; 100_000];
        stream.read_exact(&mut received).unwrap();
        let broker = || process(&stack.splitway, "splitway-broker");
        for _ in 0..2 {
            let before = broker().unwrap();
            signal(before, Signal::KILL).unwrap();
            let another = || broker().filter(|pid| *pid != before);
            let next = wait::until(SOON, "another broker", another).unwrap();
            let has_it = || (passed_files(next, elsewhere.root()) > 0).then_some(());
            wait::until(SOON, "it has the file", has_it).unwrap();
            let nic = process(&stack.splitway, "splitway-nic").unwrap();
            signal(nic, Signal::KILL).unwrap();
            let next = || process(&stack.splitway, "splitway-nic").filter(|pid| *pid != nic);
            let next = wait::until(SOON, "another NIC process", next).unwrap();
            let has_it = || (passed_files(next, elsewhere.root()) > 0).then_some(());
            wait::until(SOON, "it has the file", has_it).unwrap();
            let mut more = vec![0; 5_000_000];
            stream.read_exact(&mut more).unwrap();
            received.extend(more);
        }
        stream.read_to_end(&mut received).unwrap();
        let end = received.windows(4).position(|it| it == b"\r\n\r\n");
        let body = &received[end.unwrap() + 4..];
        assert!(body == file.bytes(0, file.size() as usize), "every byte");
        drop((stream, server));
        stack.assert_nothing_left();
    });
}

/// Descriptors of a process that are of files below a folder.
fn passed_files(pid: Pid, folder: &Path) -> usize {
    let open = std::fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero())).unwrap();
    let links = open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    links.filter(|link| link.starts_with(folder)).count()
}

/// Many clients of an echo server, without and with loss of packets; `program` finds the server.
fn echo_to_many(site: &Site, program: impl FnOnce(&Stack) -> PathBuf) {
    let file = site.file("echo", 30_000).unwrap();
    let stack = Stack::serve(site);
    let server = stack.start(&program(&stack), ECHO_PORT);
    on_threads(300, |_| echo(at(ECHO_PORT), &file));
    lose_packets();
    on_threads(30, |_| echo(at(ECHO_PORT), &file));
    drop(server);
    stack.assert_nothing_left();
}

#[test]
fn an_echo_server_in_c_returns_every_byte_of_many_connections() {
    isolated(|site| echo_to_many(&site, |stack| stack.compile("echo")));
}

#[test]
fn sends_of_a_program_complete_when_its_peer_has_their_bytes_while_packets_are_lost() {
    isolated(|site| {
        let stack = Stack::serve(&site);
        let program = stack.compile("send_zc");
        lose_packets();
        for turn in 0..5 {
            let file = site.file(&format!("sent{turn}"), 2_000_000 + turn).unwrap();
            let listener = TcpListener::bind("10.77.0.1:0").unwrap();
            let port = listener.local_addr().unwrap().port().to_string();
            let mut sender = Command::new(&program);
            sender.args(["10.77.0.1", &port]);
            let path = site.root().join(file.name());
            let sender = sender
                .arg(path)
                .env("SPLITWAY_SOCKET", stack.folder.join("sockets"))
                .env("LD_LIBRARY_PATH", &stack.folder);
            std::thread::scope(|scope| {
                let receiver = scope.spawn(|| {
                    let (mut stream, _) = listener.accept().unwrap();
                    stream.set_read_timeout(Some(SOON)).unwrap();
                    let mut received = Vec::new();
                    stream.read_to_end(&mut received).unwrap();
                    received
                });
                let said = run(sender).unwrap();
                assert_eq!(said.trim(), "the peer has it all");
                let sent = file.bytes(0, file.size() as usize);
                assert!(receiver.join().unwrap() == sent, "every byte");
            });
        }
        stack.assert_nothing_left();
    });
}

#[test]
fn an_echo_server_in_rust_has_a_task_for_each_of_many_connections() {
    isolated(|site| echo_to_many(&site, |_| built("examples/tokio_echo")));
}

/// Runs a program of this stack to its end.
pub(crate) fn output_of(stack: &Stack, program: &Path, arguments: &[&str]) -> std::process::Output {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("SPLITWAY_SOCKET", stack.folder.join("sockets"))
        .env("LD_LIBRARY_PATH", &stack.folder);
    command.output().unwrap()
}

#[test]
fn programs_of_one_stack_connect_to_each_other() {
    isolated(|site| {
        let file = site.file("echo", 30_000).unwrap();
        let stack = Stack::serve(&site);
        let program = stack.compile("echo");
        let server = stack.start(&program, ECHO_PORT);
        let client = built("examples/echo_client");
        for (ip, connections, bytes) in [
            ("127.0.0.1", "3000", "2000"),
            ("10.77.0.2", "40", "1000000"),
            ("10.77.0.2", "1000", "1"),
        ] {
            let to = format!("{ip}:{ECHO_PORT}");
            let done = output_of(&stack, &client, &[&to, connections, bytes]);
            let said = String::from_utf8_lossy(&done.stderr).into_owned();
            assert!(done.status.success(), "{to}: {said}");
            // Others are served meanwhile as before.
            echo(at(ECHO_PORT), &file).unwrap();
        }
        // No program listens there, and the server of the host process is for others.
        for refused in ["127.0.0.1:9", "10.77.0.2:80"] {
            let done = output_of(&stack, &client, &[refused, "1", "1"]);
            let said = String::from_utf8_lossy(&done.stderr).into_owned();
            assert!(!done.status.success() && said.contains("refused"), "{said}");
        }
        drop(server);
        stack.assert_nothing_left();
    });
}

/// Runs all cases of a program on the kernel's sockets and on those of the stack: both print the
/// same lines.
fn compare_with_kernel(site: &Site, name: &str) {
    const NO_SUCH_CASE: i32 = 2;
    let stack = Stack::serve(site);
    let program = stack.compile_from("../capi/tests/programs", name);
    let mut differences = Vec::new();
    for case in 0.. {
        let case = case.to_string();
        let [kernel, split] = ["kernel", "split"].map(|on| {
            let done = output_of(&stack, &program, &[on, &case]);
            let said = String::from_utf8_lossy(&done.stdout).into_owned();
            let errors = String::from_utf8_lossy(&done.stderr).into_owned();
            let code = done.status.code();
            assert!(
                matches!(code, Some(0 | NO_SUCH_CASE)),
                "{on}\n{said}\n{errors}"
            );
            (code, said)
        });
        if kernel.0 == Some(NO_SUCH_CASE) {
            assert!(case.parse::<usize>().unwrap() > 2, "there are cases");
            break;
        }
        let title = kernel.1.lines().next().unwrap_or_default();
        let lines = kernel.1.lines().zip(split.1.lines()).enumerate();
        let different = lines.filter(|(_, (kernel, split))| kernel != split);
        differences.extend(different.map(|(line, (kernel, split))| {
            format!("{title}, line {line}: {kernel} on the kernel, {split}")
        }));
        assert_eq!(kernel.1.lines().count(), split.1.lines().count(), "{title}");
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    stack.assert_nothing_left();
}

#[test]
fn sockets_go_through_the_states_that_they_have_on_the_kernel() {
    isolated(|site| compare_with_kernel(&site, "states"));
}

#[test]
fn programs_do_the_same_in_each_mode() {
    isolated(|site| {
        let file = site.file("file", 300_000).unwrap();
        let stack = Stack::serve(&site);
        let (echoes, files) = (stack.compile("echo"), stack.compile("file_server"));
        let tasks = built("examples/tokio_echo");
        for modes in [
            "eager-receive,eager-accept,setup-with-accept",
            "async-send,eager-accept,setup-with-accept",
            "async-send,eager-receive,setup-with-accept",
            "async-send,eager-receive,eager-accept,buffers-on-demand",
            "async-send,eager-receive,eager-accept,setup-with-accept",
            "split-tcp",
        ] {
            let servers = [
                stack.start_in(&echoes, ECHO_PORT, modes, &[]),
                stack.start_in(&tasks, ECHO_PORT + 1, modes, &[]),
                stack.start_in(&files, FILES_PORT, modes, &[]),
            ];
            on_threads(20, |index| {
                echo(at(ECHO_PORT + index as u16 % 2), &file)?;
                download(at(FILES_PORT), &file).map(drop)
            });
            drop(servers);
            stack.assert_nothing_left();
        }
    });
}

#[test]
fn ten_programs_without_traffic_and_both_stacks_wake_five_times_a_second_at_most() {
    isolated(|site| {
        let file = site.file("echo", 30_000).unwrap();
        let stack = Stack::serve(&site);
        let program = stack.compile("echo");
        let ports = ECHO_PORT..ECHO_PORT + 10;
        let programs: Vec<_> = ports.clone().map(|it| stack.start(&program, it)).collect();
        // They have had work before, and a client of each is still connected.
        on_threads(10, |index| echo(at(ECHO_PORT + index as u16), &file));
        let clients: Vec<_> = ports
            .map(|it| TcpStream::connect(at(it)).unwrap())
            .collect();
        let mut all = vec![stack.splitway.host(), stack.splitway.nic()];
        all.extend(programs.iter().map(Process::pid));
        assert_idle(&all, WAKES_PER_SECOND_MAX, Duration::from_secs(5));
        drop(clients);
    });
}

/// Kills programs so many times while clients download from them.
fn kill_programs(site: &Site, kills: u64) {
    let files = files(site);
    let stack = Stack::serve(site);
    let (program, echoes) = (stack.compile("file_server"), stack.compile("echo"));
    let other = stack.start(&echoes, ECHO_PORT);
    let small = site.file("small", 3_000).unwrap();
    let mut random = Random::seeded();
    for _ in 0..kills {
        // The port is free at once, though connections of the one before still end.
        let server = stack.start(&program, FILES_PORT);
        let clients = 1 + random.below(4) as usize;
        let connections: Vec<Connection> = (0..clients)
            .filter_map(|client| {
                let mut connection = Connection::open(at(FILES_PORT)).ok()?;
                let file = &files[client % files.len()];
                connection.send_get(file.name()).ok()?;
                Some(connection)
            })
            .collect();
        for _ in 0..random.below(100_000) {
            std::hint::spin_loop();
        }
        signal(server.pid(), Signal::KILL).unwrap();
        drop(server);
        drop(connections);
        // Another program goes on.
        echo(at(ECHO_PORT), &small).unwrap();
    }
    drop(other);
    stack.assert_nothing_left();
    download(at(80), &files[0]).unwrap();
}

#[test]
fn a_thousand_programs_that_are_killed_leave_nothing_and_disturb_no_other() {
    isolated(|site| kill_programs(&site, 1_000));
}

#[test]
fn what_a_killed_program_has_queued_still_arrives() {
    isolated(|site| {
        let file = site.file("file", 200_000).unwrap();
        let stack = Stack::serve(&site);
        let program = stack.compile("file_server");
        let server = stack.start(&program, FILES_PORT);
        let mut connection = Connection::open(at(FILES_PORT)).unwrap();
        connection.send_get(file.name()).unwrap();
        // The header waits for the file, which is queued as a whole.
        connection.read_file_head(&file).unwrap();
        signal(server.pid(), Signal::KILL).unwrap();
        drop(server);
        connection.read_file_part(&file, 0..file.size()).unwrap();
        connection.read_end().unwrap();
    });
}

/// Connections of an echo server that stay open.
fn hold(count: usize) -> Vec<TcpStream> {
    let open = |_| {
        let stream = TcpStream::connect(at(ECHO_PORT)).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream
    };
    (0..count).map(open).collect()
}

/// Sends bytes on each connection, and compares what comes back.
fn echo_on_each(connections: &mut [TcpStream], file: &KnownFile, round: usize) {
    for (number, connection) in connections.iter_mut().enumerate() {
        let sent = file.bytes((number * 7 + round * 1000) as u64, 500);
        connection.write_all(&sent).unwrap();
        let mut received = vec![0; sent.len()];
        connection.read_exact(&mut received).unwrap();
        assert!(received == sent, "every byte of connection {number}");
    }
}

#[test]
fn a_program_serves_hundreds_of_connections_while_brokers_die_under_load() {
    isolated(|site| {
        let file = site.file("echo", 30_000).unwrap();
        let stack = Stack::serve(&site);
        let server = stack.start(&stack.compile("echo"), ECHO_PORT);
        let broker = || process(&stack.splitway, "splitway-broker");
        let mut held = Vec::new();
        for death in 0..5 {
            // Three times what the program has in store, and all at work while the broker dies.
            held.extend(hold(200));
            std::thread::scope(|scope| {
                let load = scope.spawn(|| on_threads(100, |_| echo(at(ECHO_PORT), &file)));
                echo_on_each(&mut held, &file, death);
                let before = broker().unwrap();
                signal(before, Signal::KILL).unwrap();
                echo_on_each(&mut held, &file, death + 1);
                load.join().unwrap();
                let another = || broker().filter(|pid| *pid != before);
                wait::until(SOON, "another broker", another).unwrap();
            });
        }
        // Of a program that begins later as well.
        let other = stack.start(&stack.compile("echo"), ECHO_PORT + 1);
        echo(at(ECHO_PORT + 1), &file).unwrap();
        drop((held, server, other));
        stack.assert_nothing_left();
    });
}

#[test]
fn children_are_attached_though_brokers_die_before_and_while_they_are() {
    isolated(|site| {
        let file = site.file("echo", 5_000).unwrap();
        let stack = Stack::serve(&site);
        let crashes = stack.compile_from("tests/programs", "crashes");
        let server = stack.start_with(&crashes, FILES_PORT, &[Path::new("fork")]);
        for _ in 0..6 {
            let broker = || process(&stack.splitway, "splitway-broker");
            let before = wait::until(SOON, "a broker", broker).unwrap();
            // Each connection is served by a child whose first call comes before, with or after it.
            std::thread::scope(|scope| {
                let load = scope.spawn(|| on_threads(10, |_| echo(at(FILES_PORT), &file)));
                signal(before, Signal::KILL).unwrap();
                on_threads(10, |_| echo(at(FILES_PORT), &file));
                load.join().unwrap();
            });
        }
        signal(server.pid(), Signal::KILL).unwrap();
        drop(server);
        stack.assert_nothing_left();
    });
}

/// What applications and connections hold, as `splitway stat --json` says: of each application its
/// processes, sockets and memory, and what the host stack has in use.
fn holdings() -> Value {
    let mut stat = Command::new(program());
    let text = run(stat.args(["stat", "--json", "--summary"])).unwrap();
    let document: Value = serde_json::from_str(&text).unwrap();
    let applications = document["applications"].as_array().unwrap();
    let held = |row: &Value| {
        let fields = [
            "application",
            "processes",
            "sockets",
            "listeners",
            "connections",
            "files",
            "memory_bytes",
        ];
        let fields = fields.map(|field| row[field].clone());
        Value::from(fields.to_vec())
    };
    let usage = &document["host"]["usage"];
    // Not TIME-WAIT: the port is free meanwhile.
    let in_use = ["connections", "half_open", "files"].map(|field| usage[field].clone());
    json!({
        "applications": applications.iter().map(held).collect::<Vec<_>>(),
        "host": in_use.to_vec(),
    })
}

/// Says so when it is dropped, also by a failure.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends bytes to a server whose processes abort, and compares what comes back before it fails.
fn echo_in_part(server: SocketAddr, file: &KnownFile) {
    let sent = file.bytes(0, file.size() as usize);
    let Ok(mut stream) = TcpStream::connect(server) else {
        return;
    };
    stream.set_read_timeout(Some(SOON)).unwrap();
    if stream.write_all(&sent).is_err() || stream.shutdown(Shutdown::Write).is_err() {
        return;
    }
    let mut received = Vec::new();
    if let Err(error) = stream.read_to_end(&mut received) {
        assert_ne!(error.kind(), ErrorKind::WouldBlock, "it never ends");
    }
    assert!(sent.starts_with(&received), "every byte that comes back");
}

/// A thousand rounds of a program whose processes end in one bad way, under load, beside another
/// program.
fn crash(site: &Site, mode: &str) {
    const CLIENTS: usize = 8;
    const ROUNDS: usize = 1000;
    let (file, small) = (site.file("echo", 5_000).unwrap(), site.file("small", 500));
    let small = small.unwrap();
    let stack = Stack::serve(site);
    let other = stack.start(&stack.compile("echo"), ECHO_PORT);
    let mut held = hold(20);
    echo_on_each(&mut held, &small, 0);
    let connected = || (holdings()["applications"][0][4] == held.len()).then(holdings);
    let before = wait::until(SOON, "only those connections are left", connected).unwrap();
    let crashes = stack.compile_from("tests/programs", "crashes");
    let server = stack.start_with(&crashes, FILES_PORT, &[Path::new(mode)]);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over = Over(&is_over);
        // The other program goes on all the time.
        let beside = scope.spawn(|| {
            let mut round = 0;
            while !is_over.load(Ordering::Relaxed) {
                echo_on_each(&mut held, &small, round);
                round += 1;
            }
        });
        if mode == "abort" {
            let aborting = scope.spawn(|| {
                let next = at(FILES_PORT + 1);
                let listens = || TcpStream::connect(next).ok();
                wait::until(2 * SOON, "all have aborted", listens).unwrap();
            });
            on_threads(CLIENTS, |_| {
                while !aborting.is_finished() {
                    echo_in_part(at(FILES_PORT), &file);
                }
                Ok(())
            });
            echo(at(FILES_PORT), &file).unwrap();
        } else {
            on_threads(CLIENTS, |_| {
                (0..ROUNDS / CLIENTS).try_for_each(|_| echo(at(FILES_PORT), &file))
            });
        }
        drop(over);
        beside.join().unwrap();
    });
    signal(server.pid(), Signal::KILL).unwrap();
    drop(server);
    let same = || (holdings() == before).then_some(());
    let after = wait::until(SOON, "nothing is left", same);
    assert!(after.is_ok(), "{} is left, {before} before", holdings());
    echo_on_each(&mut held, &small, 0);
    drop((held, other));
    stack.assert_nothing_left();
}

#[test]
fn a_thousand_children_serve_a_connection_each_and_leave_nothing() {
    isolated(|site| crash(&site, "fork"));
}

#[test]
fn a_thousand_processes_execute_another_program_and_leave_nothing() {
    isolated(|site| crash(&site, "exec"));
}

#[test]
fn a_thousand_connections_closed_in_the_wrong_process_go_on_in_the_right_one() {
    isolated(|site| crash(&site, "close"));
}

#[test]
fn a_thousand_processes_abort_at_any_moment_and_leave_nothing() {
    isolated(|site| crash(&site, "abort"));
}
