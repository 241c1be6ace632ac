//! Programs that load no library, with `splitway run --compat`: one that is linked statically
//! (`crates/compat/tests/programs/sockets.c`), and what becomes of it.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::JoinHandle;

use rustix::net::sockopt::set_socket_linger;
use rustix::process::Signal;
use testbed::http::be_patient;
use testbed::namespace::isolated;
use testbed::process::{Process, await_end, run, signal};
use testbed::site::{KnownFile, Site};
use testbed::{Context, wait};

use crate::deaths::lose_packets;
use crate::programs::{Stack, at};
use crate::run::{PORT, echo, end, fetch, program_of, splitway_run_on, start};
use crate::support::{SOON, on_threads, program};

/// `splitway run --compat` on a stack that runs.
pub(crate) fn compat_on(stack: &Stack, options: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.stdin(Stdio::null());
    command.args(["run", "--compat", "--sockets"]);
    command.arg(stack.folder.join("sockets")).args(options);
    command
}

/// The program, linked statically.
fn linked(folder: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../compat/tests/programs/sockets.c");
    let program = folder.join("linked");
    let flags = "-static -O1 -D_GNU_SOURCE -Wall -Wextra -Werror -pthread -o";
    let mut compiling = Command::new("cc");
    run(compiling.args(flags.split(' ')).arg(&program).arg(source)).unwrap();
    program
}

/// The program in one of its ways, on the usual port.
fn server(stack: &Stack, way: &str) -> Command {
    let mut command = compat_on(stack, &["--"]);
    command.arg(linked(&stack.folder));
    command.args([way, &PORT.to_string()]);
    command
}

fn bytes(count: usize) -> Vec<u8> {
    KnownFile::whole("sent", count as u64).bytes(0, count)
}

/// A server sends back what it gets, over many connections at a time, with loss.
fn serves(site: &Site, way: &str) {
    let stack = Stack::serve(site);
    let mut server = start(&mut server(&stack, way));
    lose_packets();
    for count in [0, 1, 20_000, 2_000_000] {
        echo(&bytes(count)).unwrap();
    }
    let sent = bytes(70_000);
    on_threads(50, |_| {
        (0..3).try_for_each(|_| echo(&sent).context(|| "an echo".to_owned()))
    });
    let end = end(&mut server, Signal::TERM);
    assert_eq!(end.code(), Some(128 + Signal::TERM.as_raw()), "{way}");
    stack.assert_nothing_left();
}

#[test]
fn a_static_server_with_levels_sends_back_what_it_gets() {
    isolated(|site| serves(&site, "level"));
}

#[test]
fn a_static_server_with_edges_sends_back_what_it_gets() {
    isolated(|site| serves(&site, "edge"));
}

#[test]
fn a_static_server_with_threads_that_block_sends_back_what_it_gets() {
    isolated(|site| serves(&site, "threads"));
}

#[test]
fn a_static_server_with_processes_sends_back_what_it_gets() {
    isolated(|site| serves(&site, "fork"));
}

/// A server of the kernel's that sends back what it gets, and says who has connected.
fn kernel_echo(connections: usize) -> (SocketAddr, JoinHandle<Vec<SocketAddr>>) {
    let server = TcpListener::bind((Ipv4Addr::new(10, 77, 0, 1), 0)).unwrap();
    let address = server.local_addr().unwrap();
    let serve = move |_| {
        let (mut stream, peer) = server.accept().unwrap();
        be_patient(&stream).unwrap();
        let mut writes = stream.try_clone().unwrap();
        std::io::copy(&mut stream, &mut writes).unwrap();
        writes.shutdown(Shutdown::Write).unwrap();
        peer
    };
    let serves = std::thread::spawn(move || (0..connections).map(serve).collect());
    (address, serves)
}

#[test]
fn a_static_client_connects_or_is_refused() {
    isolated(|site| {
        let stack = Stack::serve(&site);
        let program = linked(&stack.folder);
        let client = |way: &str, to: SocketAddr, rest: &[&str]| {
            let mut command = compat_on(&stack, &["--connect", "10.77.0.0/24", "--"]);
            command.arg(&program).arg(way).arg(to.ip().to_string());
            run(command.arg(to.port().to_string()).args(rest)).unwrap();
        };
        let (server, serves) = kernel_echo(4);
        lose_packets();
        for count in ["0", "3000000"] {
            client("blocking", server, &[count]);
            client("nonblocking", server, &[count]);
        }
        for peer in serves.join().unwrap() {
            assert_eq!(peer.ip(), at(0).ip(), "it came from the stack");
        }
        client("refused", server, &[]);
        stack.assert_nothing_left();
    });
}

#[test]
fn a_client_of_the_same_stack_and_one_of_the_kernels_connect() {
    isolated(|site| {
        let stack = Stack::serve(&site);
        let program = linked(&stack.folder);
        let _server = start(&mut server(&stack, "edge"));
        let kernels = TcpListener::bind("127.0.0.1:0").unwrap();
        let kernels_port = kernels.local_addr().unwrap().port();
        let echoes = std::thread::spawn(move || {
            let (mut stream, peer) = kernels.accept().unwrap();
            let mut writes = stream.try_clone().unwrap();
            std::io::copy(&mut stream, &mut writes).unwrap();
            peer
        });
        let client = |ip: &str, port: u16| {
            let mut command = compat_on(&stack, &["--connect", "10.77.0.0/24", "--"]);
            command.arg(&program).args(["nonblocking", ip]);
            run(command.arg(port.to_string()).arg("500000"))
        };
        client("10.77.0.2", PORT).unwrap();
        // No rule leads there.
        client("127.0.0.1", kernels_port).unwrap();
        assert!(echoes.join().unwrap().ip().is_loopback());
    });
}

#[test]
fn a_static_program_sees_that_its_peer_resets() {
    isolated(|site| {
        let stack = Stack::serve(&site);
        let mut command = server(&stack, "reset");
        let program = std::thread::spawn(move || run(&mut command));
        for _ in 0..2 {
            let connect = || TcpStream::connect(at(PORT)).ok();
            let mut stream = wait::until(SOON, "the program listens", connect).unwrap();
            be_patient(&stream).unwrap();
            stream.write_all(b"abcd").unwrap();
            stream.read_exact(&mut [0; 4]).unwrap();
            set_socket_linger(&stream, Some(std::time::Duration::ZERO)).unwrap();
        }
        assert_eq!(program.join().unwrap().unwrap(), "reset\n");
        stack.assert_nothing_left();
    });
}

#[test]
fn a_peer_is_reset_if_what_it_sent_is_not_read() {
    isolated(|site| {
        let stack = Stack::serve(&site);
        let mut server = start(&mut server(&stack, "threads"));
        let program = program_of(&server);
        let mut stream = TcpStream::connect(at(PORT)).unwrap();
        be_patient(&stream).unwrap();
        stream.write_all(b"it").unwrap();
        stream.read_exact(&mut [0; 2]).unwrap();
        // It is stopped, so it reads no more; then it ends.
        signal(program, Signal::STOP).unwrap();
        stream.write_all(b"more").unwrap();
        let mut sent = stream.try_clone().unwrap();
        let full = vec![0; 16 << 20];
        let writer = std::thread::spawn(move || sent.write_all(&full));
        signal(program, Signal::KILL).unwrap();
        // One of the two calls reports it, as a broken pipe if FIN came first.
        let ends = [stream.read(&mut [0]).map(drop), writer.join().unwrap()];
        let is_reset = |end: &std::io::Result<()>| {
            let error = end.as_ref().err().map(std::io::Error::kind);
            matches!(
                error,
                Some(ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
            )
        };
        assert!(ends.iter().any(is_reset), "{ends:?}");
        let end = server.wait(SOON).unwrap();
        assert_eq!(end.code(), Some(128 + Signal::KILL.as_raw()));
        stack.assert_nothing_left();
    });
}

#[test]
fn signals_interrupt_calls_of_a_static_program_that_block() {
    isolated(|site| {
        let stack = Stack::serve(&site);
        let mut server = server(&stack, "signals");
        let mut server = Process::spawn(server.stdout(Stdio::piped())).unwrap();
        let output = server.child().stdout.take().unwrap();
        let mut lines = BufReader::new(output).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "interrupted");
        signal(program_of(&server), Signal::USR1).unwrap();
        let handled = || {
            let status = format!("/proc/{}/status", program_of(&server).as_raw_nonzero());
            let status = std::fs::read_to_string(status).ok()?;
            let pending = status.lines().find(|line| line.starts_with("ShdPnd"))?;
            pending.ends_with("0000000000000000").then_some(())
        };
        wait::until(SOON, "the signal is handled", handled).unwrap();
        let _stream = TcpStream::connect(at(PORT)).unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), "accepted");
        assert!(server.wait(SOON).unwrap().success());
        stack.assert_nothing_left();
    });
}

#[test]
fn nothing_is_left_of_a_program_that_is_killed() {
    isolated(|site| {
        let stack = Stack::serve(&site);
        let mut server = start(&mut server(&stack, "edge"));
        let streams: Vec<TcpStream> = (0..20)
            .map(|_| {
                let mut stream = TcpStream::connect(at(PORT)).unwrap();
                be_patient(&stream).unwrap();
                stream.write_all(&bytes(100_000)).unwrap();
                stream.read_exact(&mut [0; 10]).unwrap();
                stream
            })
            .collect();
        signal(program_of(&server), Signal::KILL).unwrap();
        let end = server.wait(SOON).unwrap();
        assert_eq!(end.code(), Some(128 + Signal::KILL.as_raw()));
        for mut stream in streams {
            // All that it has sent, or a reset.
            let _ = stream.read_to_end(&mut Vec::new());
        }
        TcpStream::connect(at(PORT)).unwrap_err();
        stack.assert_nothing_left();
    });
}

#[test]
fn a_program_does_not_outlive_its_supervisor_and_ends_with_its_stack() {
    isolated(|site| {
        let mut stack = Stack::serve(&site);
        let mut first = start(&mut server(&stack, "edge"));
        let program = program_of(&first);
        signal(first.pid(), Signal::KILL).unwrap();
        first.wait(SOON).unwrap();
        await_end(program, SOON).unwrap();
        stack.assert_nothing_left();

        let mut second = server(&stack, "level");
        let mut second = start(second.stderr(Stdio::null()));
        let mut stream = TcpStream::connect(at(PORT)).unwrap();
        stream.write_all(b"it").unwrap();
        stack.kill();
        // `accept` fails, and so does the program.
        assert_eq!(second.wait(SOON).unwrap().code(), Some(1));
    });
}

#[test]
fn exit_codes_are_passed_on_and_programs_with_the_c_library_run_as_well() {
    isolated(|site| {
        let file = site.file("file", 300_000).unwrap();
        let stack = Stack::serve(&site);
        for (script, code) in [("exit 7", 7), ("kill -TERM $$", 143)] {
            let status = compat_on(&stack, &["--", "sh", "-c", script]).status();
            assert_eq!(status.unwrap().code(), Some(code), "{script}");
        }
        let mut command = compat_on(&stack, &["--", "python3", "-m", "http.server"]);
        command.arg(PORT.to_string()).current_dir(site.root());
        let mut server = start(command.stderr(Stdio::null()));
        fetch(&format!("http://{}/{}", at(PORT), file.name()), &file);
        end(&mut server, Signal::TERM);
        stack.assert_nothing_left();
    });
}

#[test]
fn a_static_program_is_not_left_to_the_kernel_without_a_word() {
    isolated(|site| {
        let stack = Stack::serve(&site);
        let program = linked(&stack.folder);
        let refused = splitway_run_on(&stack, &["--"]).arg(&program).output();
        let refused = refused.unwrap();
        assert_eq!(refused.status.code(), Some(2));
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(said.contains("linked statically"), "{said}");
        assert!(said.contains("splitway run --compat"), "{said}");
        if cfg!(target_arch = "x86_64") {
            let refused = compat_on(&stack, &["--"])
                .arg(&program)
                .args(["32", "bits"])
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&refused.stderr);
            let code = Some(128 + Signal::KILL.as_raw());
            assert_eq!(refused.status.code(), code, "{said}");
            assert!(said.contains("is a program of 32 bits"), "{said}");
        }
    });
}
