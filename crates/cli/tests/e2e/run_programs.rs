//! More unmodified programs on the split stack: clients, and servers with loops of their own.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::thread::JoinHandle;

use rustix::process::Signal;
use serde_json::Value;
use testbed::http::be_patient;
use testbed::namespace::isolated;
use testbed::process::{Process, run, tool};
use testbed::site::{KnownFile, Site};
use testbed::wait;

use crate::deaths::lose_packets;
use crate::https::Certificate;
use crate::programs::{Stack, at};
use crate::run::{
    PORT, download_all, end, files, nginx_configuration_of, splitway_run_on, start, start_at,
};
use crate::support::{SOON, on_threads};

const REPLICA: u16 = 8081;

/// The side of programs that are not on the stack.
const KERNEL: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

/// A server of the kernel's that answers each request with a file, and says who has asked.
fn kernel_server(file: &KnownFile, requests: usize) -> (SocketAddr, JoinHandle<Vec<SocketAddr>>) {
    let server = TcpListener::bind((KERNEL, 0)).unwrap();
    let address = server.local_addr().unwrap();
    let file = file.clone();
    let serves = std::thread::spawn(move || {
        let answer = |_| {
            let (mut stream, peer) = server.accept().unwrap();
            be_patient(&stream).unwrap();
            let mut request = BufReader::new(&mut stream).lines();
            while !request.next().unwrap().unwrap().is_empty() {}
            drop(request);
            let size = file.size();
            let head = format!("HTTP/1.0 200 OK\r\nContent-Length: {size}\r\n\r\n");
            stream.write_all(head.as_bytes()).unwrap();
            stream.write_all(&file.bytes(0, size as usize)).unwrap();
            peer
        };
        (0..requests).map(answer).collect()
    });
    (address, serves)
}

#[test]
fn wget_fetches_by_the_split_stack() {
    isolated(|site| {
        let stack = Stack::serve(&site);
        let file = site.file("file", 3_000_000).unwrap();
        let (server, serves) = kernel_server(&file, 2);
        lose_packets();
        for _ in 0..2 {
            let line = ["--connect", "any", "--", "wget", "--quiet", "--tries=1"];
            let mut command = splitway_run_on(&stack, &line);
            command.args(["--output-document=-", &format!("http://{server}/file")]);
            let output = command.output().unwrap();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{} {errors}", output.status);
            assert!(output.stdout == file.bytes(0, 3_000_000), "other bytes");
        }
        for peer in serves.join().unwrap() {
            assert_eq!(peer.ip(), at(0).ip(), "it came from the stack");
        }
        stack.assert_nothing_left();
    });
}

/// Sends some megabytes with iperf3 over streams, and compares what both ends have counted.
fn iperf(client: &mut Command, options: &str) {
    const BYTES: u64 = 8 << 20;
    let server = at(PORT).ip().to_string();
    client.args(["--client", &server, "--port", &PORT.to_string(), "--json"]);
    client.args(["--bytes", &BYTES.to_string()]);
    client.args(options.split_whitespace());
    // The server closes its listener after each test and opens another: between, it refuses.
    let report = wait::until(SOON, "iperf3 begins a test", || {
        let output = client.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let report: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}"));
        let has_begun = !report["start"]["test_start"].is_null();
        (has_begun || !output.status.success()).then_some(report)
    });
    let report = report.unwrap();
    let sum = |of: &str| {
        let bytes = report["end"][of]["bytes"].as_u64();
        bytes.unwrap_or_else(|| panic!("{options}: no {of}: {}", report["error"]))
    };
    let (sent, received) = (sum("sum_sent"), sum("sum_received"));
    assert!(sent >= BYTES, "{options}: {sent}");
    // The sender ends the test when it has written all; what is under way then is not counted.
    assert!(
        received > 0 && received <= sent,
        "{options}: {received} of {sent}"
    );
}

#[test]
fn iperf3_sends_and_receives() {
    isolated(|site| {
        let stack = Stack::serve(&site);
        let mut server = splitway_run_on(&stack, &["--", "iperf3", "--server", "--port"]);
        let mut server = start(server.arg(PORT.to_string()));
        lose_packets();
        for options in ["", "--reverse", "--parallel 3", "--reverse --parallel 3"] {
            iperf(&mut Command::new("iperf3"), options);
            let line = ["--connect", "10.77.0.0/24", "--", "iperf3"];
            iperf(&mut splitway_run_on(&stack, &line), options);
        }
        end(&mut server, Signal::TERM);
        stack.assert_nothing_left();
    });
}

/// A server of node's: it sends files of a folder, and back what it is sent.
const NODE_SERVER: &str = r#"
const fs = require('fs'), http = require('http'), path = require('path');
const [, , root, port] = process.argv;
http.createServer((request, response) => {
    if (request.method === 'POST') {
        request.pipe(response);
        return;
    }
    const file = path.join(root, path.basename(request.url));
    const stream = fs.createReadStream(file);
    response.setHeader('Content-Length', fs.statSync(file).size);
    stream.pipe(response);
}).listen(port, '0.0.0.0');
process.on('SIGTERM', () => process.exit(0));
"#;

#[test]
fn node_serves_files_and_sends_bodies_back() {
    isolated(|site| {
        let files = files(&site, &[10, 20_000, 500_000, 3_000_000]);
        let stack = Stack::serve(&site);
        let script = stack.folder.join("server.js");
        fs::write(&script, NODE_SERVER).unwrap();
        let mut command = splitway_run_on(&stack, &["--", "node"]);
        command.arg(&script).arg(site.root());
        let mut node = start(command.arg(PORT.to_string()));
        lose_packets();
        // It closes a connection for each file, and takes its number for the next, or for a file.
        for _ in 0..3 {
            download_all(&files);
        }
        on_threads(4, |_| {
            for file in &files {
                let body = file.bytes(0, file.size() as usize);
                let back = posted(&body).unwrap();
                assert!(back == body, "{}: other bytes", file.name());
            }
            Ok(())
        });
        let end = end(&mut node, Signal::TERM);
        assert!(end.success(), "{end}");
        stack.assert_nothing_left();
    });
}

/// A cluster of node's, whose workers begin before there is a socket: they send as many bytes as a
/// path says.
const NODE_CLUSTER: &str = r#"
const [policy, port] = process.argv.slice(2);
const cluster = require("cluster");
cluster.schedulingPolicy = policy === "none" ? cluster.SCHED_NONE : cluster.SCHED_RR;
if (cluster.isPrimary) {
    for (let worker = 0; worker < 2; worker++) cluster.fork();
    process.on("SIGTERM", () => process.exit(0));
} else {
    const http = require("http");
    const answer = (request, response) => {
        const length = Number(request.url.slice(1));
        response.end(Buffer.alloc(length, "x"));
    };
    http.createServer(answer).listen(Number(port), "0.0.0.0");
    process.on("disconnect", () => process.exit(0));
}
"#;

fn cluster_of_node_serves(site: &Site, policy: &str) {
    let stack = Stack::serve(site);
    let script = stack.folder.join("cluster.js");
    fs::write(&script, NODE_CLUSTER).unwrap();
    let mut command = splitway_run_on(&stack, &["--", "node"]);
    command.arg(&script).arg(policy);
    let mut node = start(command.arg(PORT.to_string()));
    on_threads(4, |_| {
        for length in [0, 10, 20_000, 2_000_000] {
            let mut stream = TcpStream::connect(at(PORT)).unwrap();
            be_patient(&stream).expect("options");
            let request = format!("GET /{length} HTTP/1.0\r\n\r\n");
            stream.write_all(request.as_bytes()).unwrap();
            let mut response = Vec::new();
            stream.read_to_end(&mut response).unwrap();
            assert!(response.starts_with(b"HTTP/1.1 200"), "{response:?}");
            let head = response.windows(4).position(|four| four == b"\r\n\r\n");
            let body = &response[head.expect("the end of the head") + 4..];
            assert!(body.len() == length && body.iter().all(|byte| *byte == b'x'));
        }
        Ok(())
    });
    let end = end(&mut node, Signal::TERM);
    assert!(end.success(), "{end}");
    stack.assert_nothing_left();
}

#[test]
fn a_cluster_of_node_serves_by_connections_that_are_passed_to_its_workers() {
    isolated(|site| cluster_of_node_serves(&site, "rr"));
}

#[test]
fn a_cluster_of_node_serves_by_a_listener_that_is_passed_to_its_workers() {
    isolated(|site| cluster_of_node_serves(&site, "none"));
}

/// What comes back for a body.
fn posted(body: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(at(PORT))?;
    be_patient(&stream).expect("options");
    let mut writes = stream.try_clone()?;
    std::thread::scope(|scope| {
        let writer = scope.spawn(move || {
            let size = body.len();
            let head = format!("POST / HTTP/1.0\r\nContent-Length: {size}\r\n\r\n");
            writes.write_all(head.as_bytes())?;
            writes.write_all(body)
        });
        let mut response = Vec::new();
        stream.read_to_end(&mut response)?;
        writer.join().expect("it writes")?;
        let head = response.windows(4).position(|bytes| bytes == b"\r\n\r\n");
        let head = head.expect("a response") + 4;
        Ok(response.split_off(head))
    })
}

#[test]
fn nginx_speaks_tls_with_a_listener_for_each_worker() {
    isolated(|site| {
        let files = files(&site, &[10, 20_000, 500_000, 3_000_000]);
        let stack = Stack::serve(&site);
        let certificate = Certificate::new(site.outside(), "server", "ec", &["localhost"]);
        let (chain, key) = (certificate.certificate.display(), certificate.key.display());
        let root = site.root().display();
        let servers = format!(
            "ssl_certificate {chain};\n ssl_certificate_key {key};\n\
             ssl_protocols TLSv1.2 TLSv1.3;\n\
             server {{\n listen {PORT} ssl http2 reuseport;\n root {root};\n }}\n"
        );
        let configuration = nginx_configuration_of(&stack.folder, 2, &servers);
        let mut command = splitway_run_on(&stack, &["--", "nginx", "-c"]);
        let mut nginx = start(command.arg(&configuration));
        lose_packets();
        on_threads(6, |thread| {
            let version = ["--http1.1 --tls-max 1.2", "--http1.1 --tlsv1.3", "--http2"][thread % 3];
            for file in &files {
                let mut curl = tool(&format!(
                    "curl -q --silent --show-error --fail --max-time 60 {version} --cacert {chain}"
                ));
                let url = format!("https://{}/{}", at(PORT), file.name());
                // Twice, of which the second goes by the same connection.
                let output = curl.args([&url, &url]).output().unwrap();
                let errors = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{version}: {errors}");
                let bytes = file.bytes(0, file.size() as usize);
                assert!(
                    output.stdout == [&bytes[..], &bytes].concat(),
                    "{version}: other bytes"
                );
            }
            Ok(())
        });
        let end = end(&mut nginx, Signal::QUIT);
        assert!(end.success(), "{end}");
        stack.assert_nothing_left();
    });
}

/// A client of redis.
struct Redis(BufReader<TcpStream>);

impl Redis {
    fn at(port: u16) -> Redis {
        let stream = TcpStream::connect(at(port)).unwrap();
        be_patient(&stream).unwrap();
        Redis(BufReader::new(stream))
    }

    /// Sends a command, and returns what is said: of strings of bytes, those.
    fn ask(&mut self, command: &[&[u8]]) -> Vec<u8> {
        let mut packet = format!("*{}\r\n", command.len()).into_bytes();
        for word in command {
            packet.extend(format!("${}\r\n", word.len()).into_bytes());
            packet.extend(*word);
            packet.extend(b"\r\n");
        }
        self.0.get_mut().write_all(&packet).unwrap();
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        assert!(!line.starts_with('-'), "{line}");
        let Some(len) = line.strip_prefix('$') else {
            return line.trim_end().into();
        };
        let Ok(len) = len.trim_end().parse::<usize>() else {
            return Vec::new();
        };
        let mut bytes = vec![0; len + 2];
        self.0.read_exact(&mut bytes).unwrap();
        bytes.truncate(len);
        bytes
    }

    fn info(&mut self) -> String {
        String::from_utf8(self.ask(&[b"INFO"])).unwrap()
    }
}

fn redis(stack: &Stack, site: &Site, port: u16, options: &str) -> Process {
    let folder = site.outside().join(port.to_string());
    fs::create_dir(&folder).unwrap();
    let line = ["--connect", "10.77.0.0/24", "--", "redis-server"];
    let mut command = splitway_run_on(stack, &line);
    command
        .args(["--bind", "0.0.0.0", "--save", "", "--protected-mode", "no"])
        .args(["--port", &port.to_string(), "--dir"])
        .arg(&folder)
        .args(options.split_whitespace());
    start_at(&mut command, port)
}

/// The values that are set: one in four is large.
fn value(number: usize) -> Vec<u8> {
    let size = if number.is_multiple_of(4) {
        200_000
    } else {
        1000
    };
    let name = format!("value-{number}");
    KnownFile::whole(&name, size).bytes(0, size as usize)
}

#[test]
fn redis_replicates_and_saves_while_threads_serve_its_clients() {
    const VALUES: usize = 100;
    isolated(|site| {
        let stack = Stack::serve(&site);
        let mut master = redis(
            &stack,
            &site,
            PORT,
            "--io-threads 4 --io-threads-do-reads yes",
        );
        lose_packets();
        let keys = |thread: usize| (0..VALUES).filter(move |number| number % 4 == thread);
        let set = |round: &str| {
            on_threads(4, |thread| {
                let mut redis = Redis::at(PORT);
                for number in keys(thread) {
                    let key = format!("{round}-{number}");
                    let said = redis.ask(&[b"SET", key.as_bytes(), &value(number)]);
                    assert_eq!(said, b"+OK");
                }
                Ok(())
            });
        };
        set("before");
        let of_master = format!("--replicaof {} {PORT}", at(PORT).ip());
        let mut replica = redis(&stack, &site, REPLICA, &of_master);
        let mut to_master = Redis::at(PORT);
        to_master.ask(&[b"BGSAVE"]);
        set("meanwhile");
        let saved = || {
            let info = to_master.info();
            let is_over = info.contains("rdb_bgsave_in_progress:0");
            is_over.then_some(info)
        };
        let info = wait::until(SOON, "the save is over", saved).unwrap();
        assert!(info.contains("rdb_last_bgsave_status:ok"), "{info}");
        let dump = site.outside().join(PORT.to_string()).join("dump.rdb");
        run(Command::new("redis-check-rdb").arg(dump)).unwrap();

        let mut to_replica = Redis::at(REPLICA);
        let last = format!("meanwhile-{}", VALUES - 1);
        let has_all = || {
            // While it loads what its master has sent, it answers nothing else.
            if !to_replica.info().contains("master_link_status:up") {
                return None;
            }
            let count = to_replica.ask(&[b"DBSIZE"]);
            (count == format!(":{}", 2 * VALUES).into_bytes()).then_some(())
        };
        wait::until(SOON, "the replica has all", has_all).unwrap();
        assert!(!to_replica.ask(&[b"GET", last.as_bytes()]).is_empty());
        on_threads(4, |thread| {
            for port in [PORT, REPLICA] {
                let mut redis = Redis::at(port);
                for (number, round) in
                    keys(thread).flat_map(|it| [(it, "before"), (it, "meanwhile")])
                {
                    let key = format!("{round}-{number}");
                    let found = redis.ask(&[b"GET", key.as_bytes()]);
                    assert!(found == value(number), "{port}: {key}");
                }
            }
            Ok(())
        });
        for redis in [&mut replica, &mut master] {
            let end = end(redis, Signal::TERM);
            assert!(end.success(), "{end}");
        }
        stack.assert_nothing_left();
    });
}
