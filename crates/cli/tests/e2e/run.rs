//! Unmodified programs on the split stack, with `splitway run`.

use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;

use rustix::process::{Pid, Signal};
use testbed::http::{be_patient, download};
use testbed::namespace::isolated;
use testbed::process::{Process, run, signal, tool};
use testbed::procfs::children;
use testbed::site::{KnownFile, Site};
use testbed::wait;

use crate::deaths::lose_packets;
use crate::programs::{Stack, at, built};
use crate::sockets_stat::applications;
use crate::support::{SOON, on_threads, program};

pub(crate) const PORT: u16 = 8080;

/// Ports of a server behind another, and of a proxy that moves bytes by splice(2).
const BEHIND: u16 = 8081;
const SPLICED: u16 = 8082;

/// The library that programs load, linked as packages have it.
fn library() -> PathBuf {
    static LINKED: OnceLock<PathBuf> = OnceLock::new();
    let link = || {
        let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("preload");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/library.sh");
        let mut linking = Command::new(script);
        let archive = built("libsplitway_preload.a");
        run(linking.arg("preload").args([&archive, &place])).unwrap();
        place.join("libsplitway-preload.so")
    };
    LINKED.get_or_init(link).clone()
}

/// `splitway run` with these options.
pub(crate) fn splitway_run(options: &[&str]) -> Command {
    let mut command = Command::new(program());
    command
        .stdin(Stdio::null())
        .arg("run")
        .arg("--library")
        .arg(library())
        .args(options);
    command
}

/// The same on a stack that runs.
pub(crate) fn splitway_run_on(stack: &Stack, options: &[&str]) -> Command {
    let mut command = splitway_run(&[]);
    command.arg("--sockets").arg(stack.folder.join("sockets"));
    command.args(options);
    command
}

/// Starts a server, and waits until it listens.
pub(crate) fn start(command: &mut Command) -> Process {
    start_at(command, PORT)
}

/// The same of one on a port.
pub(crate) fn start_at(command: &mut Command, port: u16) -> Process {
    let mut started = Process::spawn(command.stdout(Stdio::null())).unwrap();
    let listens = || TcpStream::connect(at(port)).ok();
    if wait::until(SOON, "the program listens", listens).is_err() {
        panic!("it does not listen: {:?}", started.stop(SOON));
    }
    started
}

/// The process of a program that `splitway run` has started.
pub(crate) fn program_of(process: &Process) -> Pid {
    let started = || children(process.pid()).ok()?.first().copied();
    wait::until(SOON, "the program has begun", started).unwrap()
}

/// Ends it by a signal.
pub(crate) fn end(process: &mut Process, with: Signal) -> ExitStatus {
    signal(process.pid(), with).unwrap();
    process.wait(SOON).unwrap()
}

/// A configuration of nginx that serves a site, and its own files in a folder.
pub(crate) fn nginx_configuration(site: &Site, folder: &Path, workers: u32, rest: &str) -> PathBuf {
    let root = site.root().display();
    let servers = format!(
        "server {{\n listen {PORT};\n root {root};\n {rest}\n }}\n\
         server {{\n listen 8081;\n root {root};\n }}\n"
    );
    nginx_configuration_of(folder, workers, &servers)
}

/// The same with these servers.
pub(crate) fn nginx_configuration_of(folder: &Path, workers: u32, servers: &str) -> PathBuf {
    let path = folder.join("nginx.conf");
    let own = folder.display();
    let text = format!(
        "user root;\nworker_processes {workers};\ndaemon off;\npid {own}/nginx.pid;\n\
         error_log {own}/nginx.log;\nevents {{ worker_connections 1024; }}\n\
         http {{\n access_log off;\n sendfile on;\n tcp_nopush on;\n\
         client_body_temp_path {own}/body;\n proxy_temp_path {own}/proxy;\n\
         fastcgi_temp_path {own}/fastcgi;\n uwsgi_temp_path {own}/uwsgi;\n\
         scgi_temp_path {own}/scgi;\n{servers}}}\n"
    );
    fs::write(&path, text).unwrap();
    path
}

/// Starts nginx by its path, by which it starts its successor.
pub(crate) fn nginx(stack: &Stack, configuration: &Path) -> Process {
    let mut command = splitway_run_on(stack, &["--", "/usr/sbin/nginx", "-c"]);
    start(command.arg(configuration))
}

/// Fetches a file with curl, and compares every byte.
pub(crate) fn fetch(url: &str, file: &KnownFile) {
    let output = tool("curl --silent --show-error --fail")
        .arg(url)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{url}: {errors}");
    assert!(
        output.stdout == file.bytes(0, file.size() as usize),
        "{url}: other bytes"
    );
}

/// The processes that nginx serves with.
pub(crate) fn workers(folder: &Path) -> Vec<Pid> {
    children(master(folder)).unwrap()
}

pub(crate) fn master(folder: &Path) -> Pid {
    pid_in(&folder.join("nginx.pid"))
}

/// The number that a server writes down, which may listen before.
pub(crate) fn pid_in(path: &Path) -> Pid {
    let number = || Pid::from_raw(fs::read_to_string(path).ok()?.trim().parse().ok()?);
    wait::until(SOON, "the server says its number", number).unwrap()
}

/// Compiles a program of a folder in `crates`, which knows nothing of the split stack.
pub(crate) fn compiled(folder: &Path, source: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .join(source);
    let program = folder.join(source.file_stem().expect("a name"));
    let flags = "-O1 -D_GNU_SOURCE -Wall -Wextra -Werror -pthread -o";
    let mut compiling = Command::new("cc");
    compiling.args(flags.split(' ')).arg(&program).arg(source);
    run(&mut compiling).unwrap();
    program
}

/// Sends bytes to a server on the usual port, ends that direction, and has them back.
pub(crate) fn echo(sent: &[u8]) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(at(PORT))?;
    be_patient(&stream).unwrap();
    let mut writes = stream.try_clone()?;
    std::thread::scope(|scope| {
        let writer = scope.spawn(move || {
            writes.write_all(sent)?;
            writes.shutdown(Shutdown::Write)
        });
        let mut received = Vec::new();
        stream.read_to_end(&mut received)?;
        writer.join().expect("it writes")?;
        assert!(received == sent, "{} of {}", received.len(), sent.len());
        Ok(())
    })
}

pub(crate) fn files(site: &Site, sizes: &[u64]) -> Vec<KnownFile> {
    let made = sizes.iter().map(|size| site.file(&size.to_string(), *size));
    made.map(Result::unwrap).collect()
}

pub(crate) fn download_all(files: &[KnownFile]) {
    on_threads(8, |_| {
        files
            .iter()
            .try_for_each(|file| download(at(PORT), file).map(drop))
    });
}

#[test]
fn nginx_serves_files_whose_bytes_it_never_has() {
    isolated(|site| {
        let site = &site;
        let files = files(site, &[10, 20_000, 500_000, 3_000_000]);
        let stack = Stack::serve(site);
        let configuration = nginx_configuration(site, &stack.folder, 2, "");
        let mut nginx = nginx(&stack, &configuration);
        lose_packets();
        download_all(&files);
        let shown = applications();
        let offloaded: f64 = shown
            .iter()
            .filter_map(|app| app["offloaded_share"].as_f64())
            .fold(0.0, f64::max);
        assert!(offloaded > 0.99, "{shown:#?}");

        // A worker that is killed is another's work at once.
        for worker in workers(&stack.folder) {
            signal(worker, Signal::KILL).unwrap();
        }
        let again = || download(at(PORT), &files[1]).ok();
        wait::until(SOON, "nginx has other workers", again).unwrap();
        download_all(&files);
        let end = end(&mut nginx, Signal::TERM);
        assert!(end.success(), "{end}");
        stack.assert_nothing_left();
    });
}

#[test]
fn nginx_reads_its_configuration_again_while_it_serves() {
    isolated(|site| {
        let site = &site;
        let files = files(site, &[100_000, 2_000_000]);
        let stack = Stack::serve(site);
        let configuration = nginx_configuration(site, &stack.folder, 2, "");
        let mut nginx = nginx(&stack, &configuration);
        on_threads(5, |thread| {
            if thread > 0 {
                return (0..10).try_for_each(|_| {
                    let mut all = files.iter();
                    all.try_for_each(|file| download(at(PORT), file).map(drop))
                });
            }
            for _ in 0..3 {
                let before = workers(&stack.folder);
                signal(master(&stack.folder), Signal::HUP).unwrap();
                let others = || {
                    let now = workers(&stack.folder);
                    now.iter()
                        .any(|worker| !before.contains(worker))
                        .then_some(())
                };
                wait::until(SOON, "nginx has other workers", others)?;
            }
            Ok(())
        });
        let end = end(&mut nginx, Signal::QUIT);
        assert!(end.success(), "{end}");
    });
}

#[test]
fn nginx_fetches_from_split_and_from_kernel_servers() {
    isolated(|site| {
        let site = &site;
        let files = files(site, &[50, 700_000]);
        let stack = Stack::serve(site);
        let behind = TcpListener::bind("127.0.0.1:0").unwrap();
        let kernels = behind.local_addr().unwrap();
        let configuration = nginx_configuration(
            site,
            &stack.folder,
            1,
            &format!(
                "location /split/ {{ proxy_pass http://10.77.0.2:8081/; }}\n\
                 location /kernel {{ proxy_pass http://{kernels}; }}"
            ),
        );
        let mut command = splitway_run_on(&stack, &["--connect", "10.77.0.0/24", "--", "nginx"]);
        let _nginx = start(command.arg("-c").arg(configuration));
        let kernel = std::thread::spawn(move || {
            let (mut stream, _) = behind.accept().unwrap();
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).unwrap();
            stream
                .write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 6\r\n\r\nkernel")
                .unwrap();
        });
        for file in &files {
            fetch(&format!("http://{}/split/{}", at(PORT), file.name()), file);
        }
        let url = format!("http://{}/kernel", at(PORT));
        let said = run(tool("curl --silent --show-error --fail").arg(url)).unwrap();
        assert_eq!(said, "kernel");
        kernel.join().unwrap();
    });
}

#[test]
fn haproxy_forwards_what_lighttpd_serves() {
    isolated(|site| {
        let files = files(&site, &[10, 500_000, 3_000_000]);
        let stack = Stack::serve(&site);
        let folder = &stack.folder;
        let lighttpd = folder.join("lighttpd.conf");
        let text = format!(
            "server.document-root = {:?}\nserver.port = {BEHIND}\nserver.bind = \"0.0.0.0\"\n\
             server.network-backend = \"sendfile\"\n",
            site.root()
        );
        fs::write(&lighttpd, text).unwrap();
        let mut command = splitway_run_on(&stack, &["--", "lighttpd", "-D", "-f"]);
        let _lighttpd = start_at(command.arg(&lighttpd), BEHIND);
        // HTTP on one port, and TCP by splice(2) on another.
        let haproxy = folder.join("haproxy.cfg");
        let behind = at(BEHIND);
        let text = format!(
            "global\n nbthread 2\ndefaults\n timeout connect 5s\n timeout client 10s\n\
             timeout server 10s\n\
             listen http\n mode http\n bind 0.0.0.0:{PORT}\n server one {behind}\n\
             listen tcp\n mode tcp\n option splice-request\n option splice-response\n\
             bind 0.0.0.0:{SPLICED}\n server one {behind}\n"
        );
        fs::write(&haproxy, text).unwrap();
        let line = ["--connect", "10.77.0.0/24", "--", "haproxy", "-f"];
        let mut command = splitway_run_on(&stack, &line);
        let _haproxy = start(command.arg(&haproxy));
        lose_packets();
        on_threads(4, |_| {
            for port in [BEHIND, PORT, SPLICED] {
                for file in &files {
                    download(at(port), file)?;
                }
            }
            Ok(())
        });
    });
}

#[test]
fn a_program_gets_a_stack_of_its_own_where_none_runs() {
    isolated(|site| {
        let site = &site;
        let file = site.file("file", 300_000).unwrap();
        let port = PORT.to_string();
        let line = [
            "--listen",
            &port,
            "--",
            "python3",
            "-m",
            "http.server",
            &port,
        ];
        let mut command = splitway_run(&line);
        command.current_dir(site.root()).stderr(Stdio::null());
        let mut server = start(&mut command);
        fetch(&format!("http://{}/{}", at(PORT), file.name()), &file);
        // The kernel has nothing there.
        let kernels = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], PORT)));
        assert!(kernels.is_err());
        end(&mut server, Signal::TERM);
        let gone = || TcpStream::connect(at(PORT)).is_err().then_some(());
        wait::until(SOON, "the stack is gone", gone).unwrap();
    });
}

#[test]
fn a_client_connects_by_the_split_stack() {
    isolated(|site| {
        let site = &site;
        let stack = Stack::serve(site);
        let server = TcpListener::bind("10.77.0.1:0").unwrap();
        let address = server.local_addr().unwrap();
        let answers = std::thread::spawn(move || {
            let (mut stream, peer) = server.accept().unwrap();
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).unwrap();
            stream
                .write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello")
                .unwrap();
            peer
        });
        let mut command = splitway_run_on(&stack, &["--connect", "any", "--", "curl", "--silent"]);
        let said = run(command.arg(format!("http://{address}/"))).unwrap();
        assert_eq!(said, "hello");
        let peer = answers.join().unwrap();
        assert_eq!(peer.ip(), at(0).ip(), "it came from the stack");
    });
}

#[test]
fn redis_answers_a_thousand_clients() {
    isolated(|site| {
        let site = &site;
        let stack = Stack::serve(site);
        let line = [
            "--",
            "redis-server",
            "--bind",
            "0.0.0.0",
            "--save",
            "",
            "--protected-mode",
            "no",
        ];
        let mut command = splitway_run_on(&stack, &line);
        command
            .args(["--port", &PORT.to_string()])
            .current_dir(&stack.folder);
        let mut redis = start(&mut command);
        let mut benchmark = tool("redis-benchmark -h 10.77.0.2 -c 50 -n 20000 -t set,get --csv");
        let said = run(benchmark.args(["-p", &PORT.to_string()])).unwrap();
        assert!(said.contains("GET"), "{said}");
        let end = end(&mut redis, Signal::TERM);
        assert!(end.success(), "{end}");
        stack.assert_nothing_left();
    });
}

#[test]
fn the_exit_code_is_that_of_the_program() {
    isolated(|site| {
        let site = &site;
        let stack = Stack::serve(site);
        for (script, code) in [("exit 7", 7), ("kill -TERM $$", 143)] {
            let mut command = splitway_run_on(&stack, &["--", "sh", "-c", script]);
            let status = command.status().unwrap();
            assert_eq!(status.code(), Some(code), "{script}");
        }
        // What a program leaves behind is waited for, and gets the library though its environment
        // was cleared.
        let script = "(env -i sh -c 'grep -q splitway-preload /proc/self/maps && echo in' &)";
        let said = run(&mut splitway_run_on(&stack, &["--", "sh", "-c", script])).unwrap();
        assert_eq!(said.trim(), "in");
    });
}

#[test]
fn a_program_ignores_what_it_was_started_to_ignore() {
    isolated(|site| {
        let stack = Stack::serve(&site);
        let run_on = splitway_run_on(&stack, &["--", "grep", "SigIgn", "/proc/self/status"]);
        let mut shell = Command::new("sh");
        shell.args(["-c", "trap '' HUP USR1; exec \"$0\" \"$@\""]);
        let said = run(shell.arg(run_on.get_program()).args(run_on.get_args())).unwrap();
        let mask = said.trim_start_matches("SigIgn:").trim();
        let mask = u64::from_str_radix(mask, 16).unwrap();
        let bit = |with: Signal| 1 << (with.as_raw() - 1);
        let wanted = bit(Signal::HUP) | bit(Signal::USR1);
        assert_eq!(mask & (wanted | bit(Signal::TERM)), wanted, "{said}");
    });
}

/// A line of a program on its standard output.
fn await_line(run: &mut Child, line: &str) {
    let mut lines = BufReader::new(run.stdout.as_mut().unwrap()).lines();
    assert!(lines.any(|read| read.unwrap() == line), "no line {line}");
}

#[test]
fn a_program_that_waits_by_direct_system_calls_is_reported_with_the_remedy() {
    isolated(|site| {
        let stack = Stack::serve(&site);
        let program = compiled(&stack.folder, "cli/tests/programs/inline.c");
        let said = stack.folder.join("said");
        let mut command = splitway_run_on(&stack, &["--"]);
        command.arg(program).stderr(File::create(&said).unwrap());
        let mut run = Process::spawn(&mut command).unwrap();
        let is_reported = || {
            let said = fs::read_to_string(&said).unwrap();
            let is_whole = said.contains("inline (process ") && said.contains("--compat");
            is_whole.then_some(())
        };
        wait::until(SOON, "a report", is_reported).unwrap();
        end(&mut run, Signal::TERM);
    });
}

#[test]
fn a_signal_that_ends_the_program_also_ends_what_it_leaves_alone() {
    isolated(|site| {
        let stack = Stack::serve(&site);
        let script = "sleep 1000 & echo started; wait";
        let mut command = splitway_run_on(&stack, &["--", "sh", "-c", script]);
        let mut run = Process::spawn(command.stdout(Stdio::piped())).unwrap();
        await_line(run.child(), "started");
        assert_eq!(end(&mut run, Signal::TERM).code(), Some(143));
        stack.assert_nothing_left();
    });
}

/// Directories of a stack that `splitway run` has started.
fn places(temporary: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(temporary).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn a_run_that_is_killed_leaves_no_directories() {
    isolated(|site| {
        let temporary = site.outside().join("tmp");
        fs::create_dir(&temporary).unwrap();
        let mut command = splitway_run(&["--", "sh", "-c", "echo started; read line"]);
        command.env("TMPDIR", &temporary).stdin(Stdio::piped());
        let mut run = Process::spawn(command.stdout(Stdio::piped())).unwrap();
        await_line(run.child(), "started");
        assert!(!places(&temporary).is_empty());
        end(&mut run, Signal::KILL);
        let is_gone = || places(&temporary).is_empty().then_some(());
        wait::until(SOON, "the directories are removed", is_gone).unwrap();
    });
}

#[test]
fn processes_of_other_users_reach_a_stack_of_the_programs_own_whatever_the_umask() {
    isolated(|site| {
        let temporary = site.outside().join("tmp");
        fs::create_dir(&temporary).unwrap();
        fs::set_permissions(&temporary, Permissions::from_mode(0o755)).unwrap();
        let run_on = splitway_run(&["--", "sh", "-c", "echo started; read line; exit 0"]);
        let mut shell = Command::new("sh");
        shell
            .args(["-c", "umask 077; exec \"$0\" \"$@\""])
            .arg(run_on.get_program())
            .args(run_on.get_args())
            .env("TMPDIR", &temporary)
            .stdin(Stdio::piped());
        let mut run = Process::spawn(shell.stdout(Stdio::piped())).unwrap();
        await_line(run.child(), "started");
        let mut found = places(&temporary);
        let mut directories = 0;
        while let Some(place) = found.pop() {
            let kind = fs::symlink_metadata(&place).unwrap();
            if kind.is_dir() {
                assert_eq!(kind.permissions().mode() & 0o777, 0o755, "{place:?}");
                directories += 1;
                found.extend(places(&place));
            }
        }
        assert!(directories >= 3, "{directories}");
        drop(run.child().stdin.take());
        assert!(run.wait(SOON).unwrap().success());
    });
}

/// Calls that nginx makes on the sockets of clients if those are the kernel's.
const SOCKET_CALLS: &str =
    "sendfile,accept4,accept,recvfrom,readv,writev,sendto,shutdown,bind,listen";

#[test]
fn nginx_makes_no_system_call_on_the_sockets_of_its_clients() {
    isolated(|site| {
        let files = files(&site, &[500_000]);
        let stack = Stack::serve(&site);
        let configuration = nginx_configuration(&site, &stack.folder, 1, "");
        let trace = stack.folder.join("trace");
        let mut command = splitway_run_on(&stack, &["--", "strace", "-f", "-o"]);
        let filter = format!("trace={SOCKET_CALLS}");
        command.arg(&trace).args(["-e", &filter, "nginx", "-c"]);
        let mut nginx = start(command.arg(&configuration));
        download_all(&files);
        signal(master(&stack.folder), Signal::QUIT).unwrap();
        assert!(nginx.wait(SOON).unwrap().success());
        let traced = fs::read_to_string(&trace).unwrap();
        // Its lines about ends of processes show that it was there.
        assert!(traced.contains("exited with 0"), "{traced}");
        let calls: Vec<&str> = traced
            .lines()
            .filter(|line| line.contains('(') && !line.contains("SIG"))
            .collect();
        assert_eq!(calls, [""; 0]);
    });
}
