//! A running server, seen from outside.

use std::collections::BTreeSet;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect, recvmsg, send, socket_with,
};
use rustix::process::{Resource, Signal, getrlimit, setrlimit};
use serde_json::Value;
use testbed::http::{Connection, download};
use testbed::namespace::isolated;
use testbed::process::{run, signal};
use testbed::splitway::{HTTP_V4, HTTP_V6, Splitway};
use testbed::wait::until;

use crate::https::{Certificate, HTTPS, curl, serve_tls};
use crate::origin::{serve_origin, web_of_one_file};
use crate::support::{FAMILIES, SOON, program, serve_with, started};

/// What `splitway stat` prints.
fn stat(arguments: &[&str]) -> String {
    run(Command::new(program()).arg("stat").args(arguments)).unwrap()
}

pub(crate) fn json(arguments: &[&str]) -> Value {
    let arguments = [&["--json"], arguments].concat();
    serde_json::from_str(&stat(&arguments)).unwrap()
}

/// A counter of the host process of the server that runs.
pub(crate) fn host_counted(name: &str) -> u64 {
    let counters = &json(&["--summary"])["host"]["counters"];
    counters[name].as_u64().unwrap_or_default()
}

/// Several of them, at one moment.
pub(crate) fn all_host_counted<const N: usize>(names: [&str; N]) -> [u64; N] {
    let counters = &json(&["--summary"])["host"]["counters"];
    names.map(|name| counters[name].as_u64().expect("a counter"))
}

fn connections(document: &Value) -> &Vec<Value> {
    document["connections"].as_array().unwrap()
}

/// What `stat` says of the connection from this address.
fn row(document: &Value, client: SocketAddr) -> &Value {
    let row = connections(document)
        .iter()
        .find(|row| row["peer"] == client.to_string());
    row.unwrap_or_else(|| panic!("no {client} in {document}"))
}

fn client_of(connection: &Connection) -> SocketAddr {
    connection.stream().local_addr().unwrap()
}

fn number(row: &Value, part: &str, name: &str) -> u64 {
    let value = &row[part][name];
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{part}.{name} in {row}"))
}

#[test]
fn a_download_in_progress_is_shown_with_its_file_and_what_tcp_knows() {
    isolated(|site| {
        let file = site.file("film.mp4", 50_000_000).unwrap();
        let splitway = serve_with(&site, &[]);
        let mut clients = FAMILIES.map(|server| started(server, &file));
        let idle = Connection::open(HTTP_V4).unwrap();
        // Until the windows are full.
        let document = until(SOON, "both windows are full", || {
            let document = json(&[]);
            let are_full = clients.iter().all(|client| {
                let row = row(&document, client_of(client));
                number(row, "tcp", "bytes_acked") > 0 && row["file"]["path"] == "film.mp4"
            });
            are_full.then_some(document)
        })
        .unwrap();
        assert_eq!(document["schema"], 2);
        assert_eq!(
            document["server"]["host"]["pid"],
            splitway.host().as_raw_nonzero().get()
        );
        assert_eq!(document["server"]["nics"][0]["serves"], true);
        assert_eq!(document["host"]["usage"]["connections"], 3);
        assert_eq!(document["host"]["workers"][0]["connections"], 3);
        for client in &clients {
            let row = row(&document, client_of(client));
            assert_eq!(row["state"], "ESTABLISHED");
            assert_eq!(row["http"]["requests"], 1);
            assert_eq!(row["tcp"]["congestion"], "cubic");
            let (offset, size) = (
                number(row, "file", "offset_bytes"),
                number(row, "file", "size_bytes"),
            );
            assert_eq!(size, file.size());
            let tcp = |name| number(row, "tcp", name);
            assert!(offset < size && offset < tcp("bytes_acked"), "{row}");
            assert!(tcp("bytes_sent") >= tcp("bytes_acked"), "{row}");
            assert!(tcp("queued_bytes") > 0 && tcp("srtt_us") > 0, "{row}");
            assert!(tcp("cwnd_bytes") >= tcp("mss_bytes"), "{row}");
            assert!(tcp("bytes_received") > 0 && tcp("age_us") > 0, "{row}");
        }
        assert_eq!(row(&document, client_of(&idle))["file"], Value::Null);

        // Of all, those that are wanted.
        let peer = client_of(&clients[1]).ip().to_string();
        let document = json(&["--peer", &peer, "--state", "estab", "--port", "80"]);
        assert_eq!(connections(&document).len(), 1);
        row(&document, client_of(&clients[1]));
        assert!(connections(&json(&["--state", "time-wait"])).is_empty());
        assert_eq!(connections(&json(&["--file", "film"])).len(), 2);
        assert!(connections(&json(&["--summary"])).is_empty());
        let sorted = json(&["--sort", "age", "--limit", "1"]);
        assert_eq!(connections(&sorted).len(), 1);
        row(&sorted, client_of(&clients[0]));

        // For people, and as often as they like.
        let text = stat(&["--watch", "1", "--count", "2", "--sort", "send-q"]);
        for piece in [
            "host process: process ",
            "connections: 3;",
            "film.mp4 @ ",
            &client_of(&clients[0]).to_string(),
            " cubic ",
            " rtt:",
            "per second: ",
            "acked_rate ",
        ] {
            assert!(text.contains(piece), "no {piece} in\n{text}");
        }
        for client in &mut clients {
            client.read_file_part(&file, 0..file.size()).unwrap();
        }
        until(SOON, "the NIC process has told what it has sent", || {
            let sent = &json(&["--summary"])["server"]["nics"][0]["counters"]["file_sent_bytes"];
            (sent.as_u64()? >= 2 * file.size()).then_some(())
        })
        .unwrap();
    });
}

#[test]
fn an_object_of_an_origin_is_shown_by_what_was_asked_for() {
    isolated(|site| {
        let web = web_of_one_file(30_000_000);
        let _splitway = serve_origin(&site, &web, &[]);
        let mut connection = Connection::open(HTTP_V4).unwrap();
        connection.send_get("films/long.mp4?x=y").unwrap();
        let head = connection.read_head().unwrap();
        let len = head.content_length().unwrap();
        connection.read_body(1000, |_, _| Ok(())).unwrap();
        let document = json(&[]);
        let row = row(&document, client_of(&connection));
        assert_eq!(row["http"]["object"], "/films/long.mp4?x=y", "{row}");
        let text = stat(&[]);
        assert!(text.contains("/films/long.mp4?x=y @ "), "{text}");
        assert!(!text.contains("objects/"), "{text}");
        connection.read_body(len - 1000, |_, _| Ok(())).unwrap();
    });
}

#[test]
fn a_nic_process_that_stands_still_is_not_waited_for() {
    isolated(|site| {
        let file = site.file("file", 5_000_000).unwrap();
        let splitway = serve_with(&site, &[]);
        signal(splitway.nic(), Signal::STOP).unwrap();
        let mut client = Connection::open(HTTP_V6).unwrap();
        client.send_get(file.name()).unwrap();
        let document = until(SOON, "the request is in", || {
            let document = json(&[]);
            let row = row(&document, client_of(&client));
            let is_opening = row["http"]["phase"] == "opening";
            is_opening.then_some(document)
        })
        .unwrap();
        assert_eq!(document["host"]["usage"]["files"], 1);
        signal(splitway.nic(), Signal::CONT).unwrap();
        client.read_file(&file).unwrap();
    });
}

#[test]
fn a_host_process_that_stands_still_is_shown_as_far_as_is_known() {
    isolated(|site| {
        let splitway = serve_with(&site, &[]);
        signal(splitway.host(), Signal::STOP).unwrap();
        let output = Command::new(program())
            .args(["stat", "--json"])
            .output()
            .unwrap();
        signal(splitway.host(), Signal::CONT).unwrap();
        assert_eq!(output.status.code(), Some(1));
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(document["host"], Value::Null);
        assert_eq!(document["server"]["nics"][0]["serves"], true);
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(complaint.contains("has said nothing"), "{complaint}");
        assert_eq!(connections(&json(&[])).len(), 0, "it is well again");
    });
}

/// A client that asks, and has not read anything yet.
fn asked(control: &Path) -> OwnedFd {
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    connect(&socket, &SocketAddrUnix::new(control).unwrap()).unwrap();
    send(&socket, b"stat", SendFlags::empty()).unwrap();
    let mut bytes = [0; 32 << 10];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut slices = [IoSliceMut::new(&mut bytes)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    recvmsg(&socket, &mut slices, &mut ancillary, flags).unwrap();
    let mut descriptors = ancillary.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(passed) => passed.collect(),
        _ => Vec::new(),
    });
    descriptors.next().expect("a pipe")
}

fn control_socket(splitway: &mut Splitway) -> String {
    let line = splitway.line(|line| line.starts_with("control socket: "));
    line.unwrap()["control socket: ".len()..].to_owned()
}

#[test]
fn of_many_connections_each_is_shown_once_also_beside_readers_that_do_not_read() {
    isolated(|site| {
        const CONNECTIONS: usize = 1500;
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = limit.maximum;
        setrlimit(Resource::Nofile, limit).unwrap();
        let file = site.file("file", 3_000_000).unwrap();
        let mut splitway = serve_with(&site, &[]);
        let control = control_socket(&mut splitway);
        let clients: Vec<Connection> = (0..CONNECTIONS)
            .map(|_| Connection::open(HTTP_V4).unwrap())
            .collect();
        // What there is to be told is more than a pipe holds.
        let silent: Vec<OwnedFd> = (0..3).map(|_| asked(Path::new(&control))).collect();
        let document = json(&[]);
        let told: BTreeSet<String> = connections(&document)
            .iter()
            .map(|row| row["peer"].as_str().unwrap().to_owned())
            .collect();
        let there: BTreeSet<String> = clients
            .iter()
            .map(|client| client_of(client).to_string())
            .collect();
        assert_eq!(connections(&document).len(), CONNECTIONS, "each once");
        assert_eq!(told, there);
        // They delay no other.
        download(HTTP_V4, &file).unwrap();
        let mut document = String::new();
        for silent in silent {
            document.clear();
            let mut bytes = vec![0; 1 << 20];
            loop {
                // It does not block.
                match rustix::io::read(&silent, &mut bytes) {
                    Ok(0) => break,
                    Ok(count) => document.push_str(&String::from_utf8_lossy(&bytes[..count])),
                    Err(rustix::io::Errno::AGAIN) => std::thread::yield_now(),
                    Err(errno) => panic!("{errno}"),
                }
            }
            let lines: Vec<&str> = document.lines().collect();
            assert!(lines[0].starts_with("{\"host\":"), "{}", lines[0]);
            assert_eq!(lines[lines.len() - 1], "{\"end\":{}}");
            assert!(lines.len() >= CONNECTIONS + 2, "{} lines", lines.len());
        }
    });
}

/// curl closes its socket with close_notify unread, so that its kernel answers that with RST.
#[test]
fn downloads_by_curl_over_https_break_no_connection() {
    const DOWNLOADS: u64 = 60;
    isolated(|site| {
        let file = site.file("film.mp4", 300_000).unwrap();
        let certificate = Certificate::new(site.outside(), "server", "ec", &[]);
        let _splitway = serve_tls(&site, &[&certificate], &[]);
        for number in 0..DOWNLOADS as usize {
            let server = HTTPS[number % 2];
            curl(&site, &certificate.certificate, server, &file, "");
        }
        let names = ["connections_finished", "connections_broken", "tls_failed"];
        let ended = until(SOON, "every connection has ended", || {
            let ended = all_host_counted(names);
            (ended.iter().sum::<u64>() >= DOWNLOADS).then_some(ended)
        });
        assert_eq!(ended.unwrap(), [DOWNLOADS, 0, 0]);
        let names = ["retransmitted_bytes", "real_bytes", "virtual_bytes"];
        let [again, real, sealed] = all_host_counted(names);
        // A client that is slow to run may be probed, with one segment.
        assert!(again * 20 < real + sealed, "{again} of {real} + {sealed}");
        let share = 100.0 * again as f64 / (real + sealed) as f64;
        let text = stat(&["--summary"]);
        assert!(text.contains("60 connections, 60 requests; "), "{text}");
        assert!(
            text.contains(&format!("{share:.1} % of them again")),
            "{text}"
        );
        let sealed = || {
            let document = json(&["--summary"]);
            let sealed = &document["server"]["nics"][0]["counters"]["sealed_sent_bytes"];
            sealed
                .as_u64()
                .filter(|sealed| *sealed > DOWNLOADS * file.size())
        };
        until(SOON, "the NIC process has reported all records", sealed).unwrap();
    });
}
