//! Programs in Go, which make their system calls themselves, with `splitway run --compat`.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;
use testbed::http::{Connection, download};
use testbed::namespace::isolated_long;
use testbed::process::{run, tool};

use crate::deaths::lose_packets;
use crate::programs::{Stack, at};
use crate::run::{PORT, download_all, end, files, splitway_run_on, start};
use crate::run_compat::compat_on;
use crate::support::on_threads;

/// Go's own place, where it is not in `PATH`.
const GO: &str = "/usr/local/go/bin/go";

/// The server of `crates/compat/tests/programs`, built without a network.
fn built(folder: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../compat/tests/programs/server.go");
    let program = folder.join("server");
    let go = if Path::new(GO).exists() { GO } else { "go" };
    let mut building = Command::new(go);
    building.args(["build", "-o"]).arg(&program).arg(source);
    building.env("CGO_ENABLED", "0").env("GOFLAGS", "-mod=mod");
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("go");
    run(building.env("GOCACHE", cache).env("GOTOOLCHAIN", "local")).unwrap();
    program
}

#[test]
#[ignore = "builds a program in Go"]
fn a_go_server_serves_files_and_sends_bodies_back() {
    isolated_long(|site| {
        let files = files(&site, &[0, 10, 20_000, 500_000, 3_000_000]);
        let stack = Stack::serve(&site);
        let server = built(&stack.folder);
        let refused = splitway_run_on(&stack, &["--"]).arg(&server).output();
        let said = String::from_utf8_lossy(&refused.unwrap().stderr).into_owned();
        assert!(said.contains("written in Go"), "{said}");
        assert!(said.contains("splitway run --compat"), "{said}");

        let mut command = compat_on(&stack, &["--connect", "10.77.0.0/24", "--"]);
        command.arg(&server).arg(site.root());
        let mut server = start(command.arg(PORT.to_string()));
        lose_packets();
        for _ in 0..3 {
            download_all(&files);
        }
        on_threads(100, |_| {
            files[1..4]
                .iter()
                .try_for_each(|file| download(at(PORT), file).map(drop))
        });
        // One connection for all.
        on_threads(8, |_| {
            let mut connection = Connection::open(at(PORT))?;
            for file in files.iter().chain(&files) {
                connection.get(file)?;
            }
            Ok(())
        });
        // curl sends and compares bodies, as diff sees them.
        for file in &files {
            let url = format!("http://{}/echo", at(PORT));
            let sent = site.root().join(file.name());
            let mut curl = tool("curl --silent --show-error --fail --data-binary");
            let output = curl.arg(format!("@{}", sent.display())).arg(url).output();
            let output = output.unwrap();
            assert!(output.status.success(), "{output:?}");
            assert!(
                output.stdout == file.bytes(0, file.size() as usize),
                "{} bytes of {}",
                output.stdout.len(),
                file.size()
            );
        }
        // Addresses are those of TCP.
        let fetch = |path: &str| {
            let url = format!("http://{}/{path}", at(PORT));
            run(tool("curl --silent --show-error --fail --ipv4").arg(url))
        };
        let said = fetch("who").unwrap();
        let (peer, local) = said.split_once(' ').unwrap();
        assert!(peer.starts_with("10.77.0.1:"), "{said}");
        assert_eq!(local, at(PORT).to_string());
        // It connects to itself by the stack, to servers of the kernel's, and to where none is.
        let said = fetch(&format!("ask?url=http://{}/who", at(PORT))).unwrap();
        assert!(said.starts_with("10.77.0.2:"), "{said}");
        let kernels = TcpListener::bind("10.77.0.1:0").unwrap();
        let address = kernels.local_addr().unwrap();
        drop(kernels);
        fetch(&format!("ask?url=http://{address}/")).unwrap_err();
        let end = end(&mut server, Signal::TERM);
        assert_eq!(end.code(), Some(128 + Signal::TERM.as_raw()));
        stack.assert_nothing_left();
    });
}

#[test]
#[ignore = "needs Caddy"]
fn caddy_serves_files() {
    isolated_long(|site| {
        let files = files(&site, &[10, 20_000, 500_000, 3_000_000]);
        let stack = Stack::serve(&site);
        let mut command = compat_on(&stack, &["--", "caddy", "file-server", "--listen"]);
        command.arg(format!(":{PORT}")).arg("--root");
        command.arg(site.root()).env("HOME", &stack.folder);
        let mut caddy = start(command.stderr(Stdio::null()));
        lose_packets();
        download_all(&files);
        on_threads(100, |_| {
            let mut connection = Connection::open(at(PORT))?;
            files.iter().try_for_each(|file| {
                connection.get(file)?;
                Ok(())
            })
        });
        let end = end(&mut caddy, Signal::TERM);
        assert!(end.success(), "{end}");
        stack.assert_nothing_left();
    });
}
