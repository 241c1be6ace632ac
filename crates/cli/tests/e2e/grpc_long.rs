//! Calls of gRPC through `splitway proxy`, over TLS and without it, between programs of its own
//! implementation in C. `scripts/setup.sh long` installs it.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use testbed::namespace::isolated_long;
use testbed::process::{Process, run};
use testbed::wait;

use crate::deaths::{counted, lose_packets};
use crate::https::Certificate;
use crate::proxy::{listen, pool, started, written};
use crate::proxy_http2::listen_tls;
use crate::support::{SOON, on_threads};

/// A script with its interpreter.
fn python(script: &str) -> Command {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../grpc");
    let is_there = place.join("complete").exists();
    assert!(is_there, "gRPC is missing: scripts/setup.sh long");
    let scripts: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/grpc");
    let mut command = Command::new(place.join("bin/python"));
    command.arg(scripts.join(script));
    command
}

/// One process, since each client counts the calls that end at either port.
fn server(ports: [u16; 2]) -> Process {
    let ports_as_text = ports.map(|port| port.to_string());
    let server = Process::spawn(python("server.py").args(ports_as_text)).unwrap();
    for port in ports {
        let listens = || TcpStream::connect(("127.0.0.1", port)).ok();
        wait::until(SOON, "a server of gRPC", listens).unwrap();
    }
    server
}

/// Unary calls, streams in either direction and in both, metadata, statuses, deadlines and
/// cancellations, messages of 4 MiB, and a hundred calls at a time.
#[test]
#[ignore = "needs gRPC from PyPI"]
fn grpc_passes_over_tls_and_without_it() {
    isolated_long(|site| {
        let _server = server([9001, 9002]);
        let certificate = Certificate::new(site.outside(), "server", "ec", &["localhost"]);
        let text = listen_tls(&certificate)
            + &listen(80, "web", "http2_prior_knowledge = true")
            + &pool("web", "protocol = \"h2c\"", &[9001, 9002]);
        let proxy = started(&written(&site, &text));
        let addresses = [
            "10.77.0.2:80",
            "[fd77::2]:80",
            "10.77.0.2:443",
            "[fd77::2]:443",
        ];
        let all = |index: usize| {
            let mut client = python("client.py");
            client.arg(addresses[index]);
            if index > 1 {
                client.arg(&certificate.certificate);
            }
            let said = run(&mut client)?;
            assert!(said.ends_with("done\n"), "{said}");
            Ok(())
        };
        on_threads(4, all);
        lose_packets();
        on_threads(2, |index| all(2 * index));
        let names = [
            "proxy_http2_connection_errors",
            "proxy_backend_http2_connection_errors",
            "proxy_backend_http2_stream_errors",
            "proxy_refused_5xx",
        ];
        assert_eq!(counted(proxy, names), [0; 4]);
    });
}
