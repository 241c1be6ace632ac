//! Ten million requests through the proxy, and as many over HTTP/3: no process grows with their
//! number.

use std::path::Path;
use std::process::Command;

use rustix::process::Pid;
use testbed::http::Connection;
use testbed::namespace::isolated_long;
use testbed::process::Process;
use testbed::procfs::{children, descriptors, memory};
use testbed::site::KnownFile;
use testbed::splitway::{HTTP_V4, Splitway};
use testbed::wait;

use crate::http3::client::Client;
use crate::http3::{certificate, serve};
use crate::https::{Certificate, HTTPS};
use crate::proxy::{listen, pool, started, written};
use crate::run::nginx_configuration_of;
use crate::stat::{host_counted, json};
use crate::support::{SOON, on_threads};

/// Requests before the first look, by when tables and caches have their size, and in all.
const WARM: usize = 1_000_000;
const ALL: usize = 10_000_000;

/// Clients at a time.
const CLIENTS: usize = 8;

/// Requests of a client's connection, and requests that it sends at once.
const OF_CONNECTION: usize = 5000;
const AT_ONCE: usize = 50;

/// The growth of a process's resident memory between the looks: the movements of allocators and
/// tables, less than a byte for a request.
const GROWTH_BYTES_MAX: u64 = 4 << 20;

/// The port of the backend.
const BACKEND: u16 = 8081;

/// Resident bytes and descriptors of the supervisor and its children, once no connection is left.
fn look(splitway: &Splitway) -> Vec<(Pid, u64, usize)> {
    wait::until(SOON, "connections are over", || {
        let usage = &json(&["--summary"])["host"]["usage"];
        (usage["connections"] == 0).then_some(())
    })
    .unwrap();
    let supervisor = splitway.supervisor();
    let mut processes = children(supervisor).unwrap();
    processes.push(supervisor);
    processes.sort_by_key(|pid| pid.as_raw_nonzero());
    let usage = processes.into_iter().map(|pid| {
        let resident = memory(pid).unwrap().resident_bytes;
        (pid, resident, descriptors(pid).unwrap())
    });
    usage.collect()
}

/// Sends requests and looks at the processes before the last nine tenths and after them.
fn assert_flat(splitway: &Splitway, send: impl Fn(usize)) {
    send(WARM);
    let before = look(splitway);
    send(ALL - WARM);
    let after = look(splitway);
    assert_eq!(before.len(), after.len(), "processes");
    for ((pid, resident, open), (same, grown, more)) in before.iter().zip(&after) {
        println!("{pid:?}: {resident}, then {grown} bytes; {open}, then {more} descriptors");
        assert_eq!(pid, same, "a process was replaced");
        assert!(
            *grown <= resident + GROWTH_BYTES_MAX,
            "{pid:?}: {resident}, then {grown} bytes"
        );
        assert!(more <= open, "{pid:?}: {open}, then {more} descriptors");
    }
}

/// nginx as a backend.
fn backend(folder: &Path, root: &Path) -> Process {
    let root = root.display();
    let servers = format!(
        "server {{\n listen {BACKEND};\n root {root};\n keepalive_requests 1000000;\n }}\n"
    );
    let configuration = nginx_configuration_of(folder, 1, &servers);
    let mut command = Command::new("/usr/sbin/nginx");
    command.arg("-c").arg(configuration);
    let process = Process::spawn(&mut command).unwrap();
    wait::until(SOON, "the backend listens", || {
        std::net::TcpStream::connect(("127.0.0.1", BACKEND)).ok()
    })
    .unwrap();
    process
}

/// Sends pipelined requests, on connections with some thousands each.
fn through_proxy(file: &KnownFile, requests: usize) {
    let batch = testbed::http::request("GET", file.name()).repeat(AT_ONCE);
    on_threads(CLIENTS, |_| {
        let of_client = requests / CLIENTS;
        for _ in 0..of_client / OF_CONNECTION {
            let mut connection = Connection::open(HTTP_V4)?;
            for _ in 0..OF_CONNECTION / AT_ONCE {
                connection.send(batch.as_bytes())?;
                for _ in 0..AT_ONCE {
                    connection.read_file(file)?;
                }
            }
            connection.finish()?;
        }
        Ok(())
    });
}

#[test]
#[ignore = "takes many minutes"]
fn the_proxy_does_not_grow_with_ten_million_requests() {
    isolated_long(|site| {
        let file = site.file("100", 100).unwrap();
        let folder = site.outside().join("backend");
        std::fs::create_dir(&folder).unwrap();
        let _backend = backend(&folder, site.root());
        let idle = "[proxy]\nbackend_idle_timeout = \"2s\"\n";
        let text = [idle, &listen(80, "web", ""), &pool("web", "", &[BACKEND])].concat();
        let splitway = started(&written(&site, &text));
        assert_flat(&splitway, |requests| through_proxy(&file, requests));
        let counted = host_counted("proxy_requests");
        assert!(counted >= ALL as u64, "{counted} requests");
    });
}

/// Sends requests on many streams at once, on connections with some thousands each.
fn over_http3(certificate: &Certificate, file: &KnownFile, requests: usize) {
    let path = format!("/{}", file.name());
    on_threads(CLIENTS, |index| {
        let of_client = requests / CLIENTS;
        for connection in 0..of_client / OF_CONNECTION {
            let seed = (index + CLIENTS * connection) as u64;
            let mut client = Client::connect(HTTPS[0], certificate, seed);
            for _ in 0..OF_CONNECTION / AT_ONCE {
                let streams: Vec<u64> = (0..AT_ONCE)
                    .map(|_| client.begin("GET", &path, &[]))
                    .collect();
                for stream in streams {
                    let response = client.response(stream);
                    assert_eq!(response.status, 200);
                    assert!(response.body == file.bytes(0, file.size() as usize));
                }
            }
            client.close();
        }
        Ok(())
    });
}

#[test]
#[ignore = "takes many minutes"]
fn http3_does_not_grow_with_ten_million_requests() {
    isolated_long(|site| {
        let file = site.file("100", 100).unwrap();
        let certificate = certificate(&site);
        let splitway = serve(&site, &certificate, &[]);
        assert_flat(&splitway, |requests| {
            over_http3(&certificate, &file, requests);
        });
        let counted = host_counted("http_http3_requests");
        assert!(counted >= ALL as u64, "{counted} requests");
    });
}
