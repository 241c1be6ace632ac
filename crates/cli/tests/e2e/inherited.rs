//! Split sockets that other processes get: by `exec`, by `SCM_RIGHTS`, and by an upgrade.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::net::SocketAddrUnix;
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Signal, pidfd_getfd, pidfd_open, test_kill_process,
};
use testbed::http::download;
use testbed::namespace::isolated;
use testbed::process::{Process, signal};
use testbed::procfs::children;
use testbed::site::{KnownFile, Site};
use testbed::wait;

use crate::programs::{Stack, at};
use crate::run::{
    PORT, compiled, download_all, echo, end, files, master, nginx, nginx_configuration, pid_in,
    splitway_run_on, start, start_at,
};
use crate::support::{SOON, on_threads};

fn is_gone(pid: Pid) -> Option<()> {
    test_kill_process(pid).is_err().then_some(())
}

#[test]
fn nginx_is_upgraded_while_it_serves() {
    isolated(|site| {
        let files = files(&site, &[100_000, 2_000_000]);
        let stack = Stack::serve(&site);
        let folder = &stack.folder;
        let configuration = nginx_configuration(&site, folder, 2, "");
        // In the foreground, it does not start a successor.
        let text = fs::read_to_string(&configuration).unwrap();
        fs::write(&configuration, text.replace("daemon off;", "daemon on;")).unwrap();
        let mut nginx = nginx(&stack, &configuration);
        let is_set_up = || {
            let master = master(folder);
            let is_orphan = children(nginx.pid()).ok()?.contains(&master);
            let has_workers = children(master).ok()?.len() == 2;
            (is_orphan && has_workers).then_some(())
        };
        wait::until(SOON, "nginx is in the background", is_set_up).unwrap();
        on_threads(4, |thread| {
            if thread > 0 {
                return (0..10).try_for_each(|_| {
                    let mut all = files.iter();
                    all.try_for_each(|file| download(at(PORT), file).map(drop))
                });
            }
            let before = master(folder);
            signal(before, Signal::USR2).unwrap();
            let upgraded = || {
                let successor =
                    folder.join("nginx.pid.oldbin").exists() && master(folder) != before;
                successor.then(|| master(folder))
            };
            let successor = wait::until(SOON, "another nginx begins", upgraded)?;
            let has_workers = || children(successor).ok().filter(|all| all.len() == 2);
            wait::until(SOON, "it has workers", has_workers)?;
            signal(before, Signal::QUIT).unwrap();
            wait::until(SOON, "the first nginx ends", || is_gone(before))
        });
        download_all(&files);
        signal(master(folder), Signal::QUIT).unwrap();
        let end = nginx.wait(SOON).unwrap();
        assert!(end.success(), "{end}");
        stack.assert_nothing_left();
    });
}

/// Starts a server in Python that waits for connections as `server`.
fn python(stack: &Stack, script: &str) -> Process {
    let path = stack.folder.join("server.py");
    let text = format!(
        "import array, os, socket, subprocess, sys\n\
         server = socket.create_server(('0.0.0.0', {PORT}))\n{script}"
    );
    fs::write(&path, text).unwrap();
    let mut command = splitway_run_on(stack, &["--", "python3"]);
    start(command.arg(&path))
}

/// Runs a server of Python's, and expects three connections to be echoed.
fn assert_echoes(site: &Site, script: &str) {
    let stack = Stack::serve(site);
    let mut server = python(&stack, script);
    for len in [1, 5_000, 700_000] {
        echo(&KnownFile::whole("echo", len).bytes(0, len as usize)).unwrap();
    }
    end(&mut server, Signal::TERM);
    stack.assert_nothing_left();
}

#[test]
fn a_connection_is_the_standard_input_of_another_program() {
    isolated(|site| {
        assert_echoes(
            &site,
            "while True:\n \
         connection, _ = server.accept()\n \
         with connection: subprocess.Popen(['cat'], stdin=connection, stdout=connection)\n",
        );
    });
}

#[test]
fn a_connection_stays_when_its_process_becomes_another_program() {
    isolated(|site| {
        assert_echoes(
            &site,
            "while True:\n \
         connection, _ = server.accept()\n \
         if os.fork() == 0:\n  \
         os.dup2(connection.fileno(), 0)\n  \
         os.dup2(connection.fileno(), 1)\n  \
         os.environ.clear()\n  \
         os.execv('/bin/cat', ['cat'])\n \
         connection.close()\n",
        );
    });
}

#[test]
fn a_connection_is_the_standard_streams_of_a_child_and_of_another_program() {
    isolated(|site| {
        let stack = Stack::serve(&site);
        let program = compiled(&stack.folder, "cli/tests/programs/standard.c");
        let mut command = splitway_run_on(&stack, &["--"]);
        let mut server = start(command.arg(program).arg(PORT.to_string()));
        for len in [1, 5_000, 700_000] {
            for _ in 0..2 {
                echo(&KnownFile::whole("echo", len).bytes(0, len as usize)).unwrap();
            }
        }
        end(&mut server, Signal::TERM);
        stack.assert_nothing_left();
    });
}

/// Gets a connection from its parent, and sends what comes back.
const CHILD: &str = "import socket\n\
    channel = socket.socket(fileno=0)\n\
    while True:\n \
    _, passed, _, _ = socket.recv_fds(channel, 1, 1)\n \
    if not passed: break\n \
    with socket.socket(fileno=passed[0]) as connection:\n  \
    assert connection.getsockname()[1] == 8080\n  \
    while data := connection.recv(65536): connection.sendall(data)\n";

#[test]
fn a_connection_is_passed_to_another_program() {
    isolated(|site| {
        let child = site.outside().join("child.py");
        fs::write(&child, CHILD).unwrap();
        assert_echoes(
            &site,
            &format!(
                "own, other = socket.socketpair()\n\
                 subprocess.Popen([sys.executable, {child:?}], stdin=other)\n\
                 while True:\n \
                 connection, _ = server.accept()\n \
                 with connection: socket.send_fds(own, [b'x'], [connection.fileno()])\n"
            ),
        );
    });
}

#[test]
fn a_child_of_a_fork_gets_what_was_accepted_after_it() {
    isolated(|site| {
        assert_echoes(
            &site,
            "own, other = socket.socketpair()\n\
         if os.fork() == 0:\n \
         server.close()\n \
         own.close()\n \
         while True:\n  \
         _, passed, _, _ = socket.recv_fds(other, 1, 1)\n  \
         if not passed: os._exit(0)\n  \
         with socket.socket(fileno=passed[0]) as connection:\n   \
         while data := connection.recv(65536): connection.sendall(data)\n\
         other.close()\n\
         while True:\n \
         connection, _ = server.accept()\n \
         with connection: socket.send_fds(own, [b'x'], [connection.fileno()])\n",
        );
    });
}

/// Makes a socket with a name, as another user in a network where that is free, and passes it.
const FORGER: &str = "import os, socket, sys\n\
    channel = socket.socket(fileno=0)\n\
    os.setuid(65534)\n\
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n\
    own.bind(bytes.fromhex(sys.argv[1]))\n\
    socket.send_fds(channel, [b'x'], [other.fileno()])\n";

/// Listens, reads the name of the listener's handle, and says whether a socket that is passed with
/// a copy of it is left as it is.
const VICTIM: &str = "import os, socket, subprocess, sys\n\
    server = socket.create_server(('', 8080))\n\
    print(os.getpid(), server.fileno(), flush=True)\n\
    name = input()\n\
    own, other = socket.socketpair()\n\
    subprocess.Popen(['unshare', '-n', sys.executable, sys.argv[1], name], stdin=other)\n\
    _, passed, _, _ = socket.recv_fds(own, 1, 1)\n\
    with socket.socket(fileno=passed[0]) as forged:\n \
    print(forged.getpeername() == bytes.fromhex(name))\n";

/// The name of the other end of a descriptor of a process, as the kernel has it, with the zero byte
/// before it, in hexadecimal digits.
fn peer_name(pid: Pid, number: i32) -> String {
    let process = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    let handle = pidfd_getfd(process, number, PidfdGetfdFlags::empty()).unwrap();
    let address = rustix::net::getpeername(handle).unwrap().unwrap();
    let address = SocketAddrUnix::try_from(address).unwrap();
    let name = address.abstract_name().unwrap();
    assert!(name.starts_with(b"splitway/"), "{name:?}");
    let digits = name.iter().map(|byte| format!("{byte:02x}"));
    std::iter::once("00".to_owned()).chain(digits).collect()
}

#[test]
fn a_copied_name_makes_no_split_socket() {
    isolated(|site| {
        let stack = Stack::serve(&site);
        let outside = |name: &str| site.outside().join(name);
        fs::write(outside("forger.py"), FORGER).unwrap();
        fs::write(outside("victim.py"), VICTIM).unwrap();
        let mut command = splitway_run_on(&stack, &["--", "python3"]);
        command.arg(outside("victim.py")).arg(outside("forger.py"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut victim = command.spawn().unwrap();
        let mut said = BufReader::new(victim.stdout.take().unwrap()).lines();
        let numbers = said.next().unwrap().unwrap();
        let (pid, number) = numbers.split_once(' ').unwrap();
        let pid = Pid::from_raw(pid.parse().unwrap()).unwrap();
        let name = peer_name(pid, number.parse().unwrap());
        writeln!(victim.stdin.take().unwrap(), "{name}").unwrap();
        assert_eq!(said.next().unwrap().unwrap(), "True");
        assert!(victim.wait().unwrap().success());
    });
}

/// What a program tells its service manager (sd_notify(3)).
struct Notices(UnixDatagram);

impl Notices {
    fn of(command: &mut Command, path: &Path) -> Notices {
        command.env("NOTIFY_SOCKET", path);
        let socket = UnixDatagram::bind(path).unwrap();
        socket.set_read_timeout(Some(SOON)).unwrap();
        Notices(socket)
    }

    /// Waits until the program says that it is ready: from then on, it has its signals.
    fn await_ready(&self) {
        let mut notice = [0; 1024];
        loop {
            let len = self.0.recv(&mut notice).expect("it says that it is ready");
            if notice[..len].windows(7).any(|word| word == b"READY=1") {
                return;
            }
        }
    }
}

fn haproxy_configuration(folder: &Path) -> String {
    let own = folder.display();
    format!(
        "global\n stats socket {own}/haproxy.sock mode 600 level admin expose-fd listeners\n\
         defaults\n mode http\n timeout connect 5s\n timeout client 10s\n timeout server 10s\n\
         listen http\n bind 0.0.0.0:{PORT}\n server one 10.77.0.2:8081\n"
    )
}

/// Says that something is over, even if it ended in a panic.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn haproxy_passes_its_listeners_to_its_successor() {
    isolated(|site| {
        let files = files(&site, &[20_000, 1_000_000]);
        let stack = Stack::serve(&site);
        let folder = &stack.folder;
        let behind = nginx_configuration(&site, folder, 1, "");
        let text = fs::read_to_string(&behind).unwrap();
        // The proxy has the port of the first server.
        fs::write(&behind, text.replace("listen 8080;", "listen 8083;")).unwrap();
        let mut command = splitway_run_on(&stack, &["--", "nginx", "-c"]);
        let _nginx = start_at(command.arg(&behind), 8081);
        let configuration = folder.join("haproxy.cfg");
        fs::write(&configuration, haproxy_configuration(folder)).unwrap();
        let pid_file = folder.join("haproxy.pid");
        let line = ["--connect", "10.77.0.0/24", "--", "haproxy", "-Ws", "-p"];
        let mut command = splitway_run_on(&stack, &line);
        command.arg(&pid_file).arg("-f").arg(&configuration);
        let notices = Notices::of(&mut command, &folder.join("notify"));
        let mut haproxy = start(&mut command);
        notices.await_ready();
        let master = pid_in(&pid_file);
        let is_over = AtomicBool::new(false);
        on_threads(4, |thread| {
            if thread > 0 {
                while !is_over.load(Ordering::Relaxed) {
                    let mut all = files.iter();
                    all.try_for_each(|file| download(at(PORT), file).map(drop))?;
                }
                return Ok(());
            }
            let _over = SetAtEnd(&is_over);
            for _ in 0..20 {
                signal(master, Signal::USR2).unwrap();
                notices.await_ready();
            }
            Ok(())
        });
        download_all(&files);
        end(&mut haproxy, Signal::TERM);
    });
}
