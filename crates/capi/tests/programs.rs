//! C programs that are linked with the library: those of examples/c, and one that makes each call.

use std::fs;
use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use sha2::{Digest, Sha256};
use splitway::Family;
use splitway::client::{Client, SendFlags};

use crate::library::library;
use crate::support::{BLOCKING, FILE, Fake, finish, listener, pattern, receive_all, v4};

mod library;
mod support;

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Compiles a program against the header and the library.
fn compile(source: &Path, into: &Path) -> PathBuf {
    let program = into.join(source.file_stem().unwrap());
    // Programs look for the library by its soname.
    let link = into.join("libsplitway.so.0");
    if !link.exists() {
        std::os::unix::fs::symlink(library(), &link).unwrap();
    }
    let done = Command::new("cc")
        .args([
            "-std=c11",
            "-D_GNU_SOURCE",
            "-O1",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-pthread",
        ])
        .arg("-I")
        .arg(here().join("include"))
        .arg("-o")
        .arg(&program)
        .arg(source)
        .arg(library())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{errors}");
    program
}

fn command(program: &Path, fake: &Fake) -> Command {
    let mut command = Command::new(program);
    command
        .env("SPLITWAY_SOCKET", fake.path())
        .env("LD_LIBRARY_PATH", program.parent().unwrap());
    command
}

/// A program that is ended when the test is over.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A connection to a port, as soon as a program listens on it.
fn connect(client: &Client, port: u16) -> OwnedFd {
    loop {
        let fd = client.socket(Family::V4, BLOCKING).unwrap();
        if client.connect(fd.as_fd(), v4(port)).is_ok() {
            return fd;
        }
        std::thread::yield_now();
    }
}

fn send(client: &Client, fd: &OwnedFd, bytes: &[u8]) {
    let pieces = &[IoSlice::new(bytes)];
    let sent = client.send(fd.as_fd(), pieces, SendFlags::default());
    assert_eq!(sent, Ok(bytes.len()));
}

fn example(name: &str) -> PathBuf {
    here().join("../../examples/c").join(name)
}

#[test]
fn the_echo_server_echoes() {
    let directory = tempfile::tempdir().unwrap();
    let program = compile(&example("echo.c"), directory.path());
    let fake = Fake::start();
    let client = fake.attach();
    let _server = Running(command(&program, &fake).arg("7").spawn().unwrap());
    std::thread::scope(|scope| {
        for seed in 0..8 {
            let client = &client;
            scope.spawn(move || {
                let bytes = pattern(seed, 200_000);
                let fd = connect(client, 7);
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        send(client, &fd, &bytes);
                        finish(client, &fd);
                    });
                    let echoed = receive_all(client, &fd);
                    assert_eq!(echoed.len(), bytes.len());
                    assert_eq!(Sha256::digest(echoed), Sha256::digest(&bytes));
                });
            });
        }
    });
}

#[test]
fn the_file_server_sends_files_that_it_never_reads() {
    let directory = tempfile::tempdir().unwrap();
    let program = compile(&example("file_server.c"), directory.path());
    let fake = Fake::start();
    let client = fake.attach();
    let _server = Running(command(&program, &fake).arg("8080").spawn().unwrap());
    let get = |path: &str| {
        let fd = connect(&client, 8080);
        send(
            &client,
            &fd,
            format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes(),
        );
        receive_all(&client, &fd)
    };
    let content = fake.world().content();
    let head = format!(
        "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        content.len()
    );
    let expected = [head.as_bytes(), &content[..]].concat();
    for _ in 0..3 {
        let response = get(FILE);
        assert_eq!(response.len(), expected.len());
        assert_eq!(Sha256::digest(response), Sha256::digest(&expected));
    }
    assert_eq!(
        get("/none"),
        b"HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n"
    );
}

#[test]
fn a_sender_uses_its_buffers_again_when_the_peer_has_their_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let program = compile(&example("send_zc.c"), directory.path());
    let fake = Fake::start();
    let client = fake.attach();
    let listener = listener(&client, 9000, BLOCKING);
    let bytes = pattern(3, 3_000_001);
    let file = directory.path().join("file");
    fs::write(&file, &bytes).unwrap();
    let mut sender = command(&program, &fake);
    sender.args(["10.0.0.1", "9000"]).arg(&file);
    let sender = sender.stdout(Stdio::piped()).stderr(Stdio::piped());
    let sender = sender.spawn().unwrap();
    let (accepted, _) = client.accept(listener.as_fd(), BLOCKING).unwrap();
    let received = receive_all(&client, &accepted);
    assert_eq!(received.len(), bytes.len());
    assert_eq!(Sha256::digest(received), Sha256::digest(&bytes));
    let done = sender.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{errors}");
    assert_eq!(done.stdout, b"the peer has it all\n");
}

#[test]
fn each_function_of_the_interface_does_what_it_says() {
    let directory = tempfile::tempdir().unwrap();
    let source = here().join("tests/programs/interface.c");
    let program = compile(&source, directory.path());
    let fake = Fake::start();
    let done = command(&program, &fake).output().unwrap();
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{errors}");
    assert_eq!(String::from_utf8_lossy(&done.stdout), "done\n");
    assert!(fs::metadata(fake.path()).is_ok());
}

#[test]
fn a_program_without_a_broker_learns_why() {
    let directory = tempfile::tempdir().unwrap();
    let program = compile(&example("echo.c"), directory.path());
    let mut command = Command::new(&program);
    command.env("SPLITWAY_SOCKET", directory.path().join("none.sock"));
    command.env("LD_LIBRARY_PATH", directory.path());
    let done = command.output().unwrap();
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success());
    let why = "none.sock: No such file or directory";
    assert!(errors.contains(why), "{errors}");
}
