//! HTTP/3 with clients on quinn, rustls and UDP sockets of the kernel.

pub(crate) mod client;
mod closes;
pub(crate) mod receive;
mod reset;
mod watch;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use testbed::namespace::{isolated, isolated_long};
use testbed::process::signal;
use testbed::site::{KnownFile, Site};
use testbed::splitway::Splitway;
use testbed::wait;

use self::client::Client;
use self::watch::Watch;
use crate::deaths::{clients_outlive_nics, counted, files, lose_packets};
use crate::https::{Certificate, HTTPS};
use crate::isolation::no_content_in_the_host;
use crate::stat::{all_host_counted, json};
use crate::support::{SOON, nft, on_threads, program, serve_with, sh};

/// Clients while NIC processes die.
const CLIENTS: usize = 20;

pub(crate) fn serve(site: &Site, certificate: &Certificate, more: &[&str]) -> Splitway {
    let options = certificate.options();
    let mut all = vec!["--tls-listen", "443", "--http3"];
    all.extend(options.iter().map(String::as_str));
    all.extend(more);
    serve_with(site, &all)
}

pub(crate) fn certificate(site: &Site) -> Certificate {
    Certificate::new(site.outside(), "localhost", "ec", &["localhost"])
}

#[test]
fn every_byte_of_files_of_all_sizes_arrives() {
    isolated(|site| {
        let files: Vec<KnownFile> = [0, 1, 1000, 16_384, 1_000_000, 20_000_000]
            .iter()
            .map(|&size| site.file(&format!("file{size}"), size).unwrap())
            .collect();
        let certificate = certificate(&site);
        let _splitway = serve(&site, &certificate, &[]);
        for (seed, server) in (1..).zip(HTTPS) {
            let mut client = Client::connect(server, &certificate, seed);
            for file in &files {
                client.download(file);
            }
        }
    });
}

#[test]
fn responses_over_tcp_say_where_http3_is_and_those_over_quic_are_the_same() {
    isolated(|site| {
        let file = site.file("page.html", 5000).unwrap();
        let certificate = certificate(&site);
        let _splitway = serve(&site, &certificate, &[]);
        let mut client = Client::connect(HTTPS[0], &certificate, 1);
        // Neither tag nor date is sent while the file may change unnoticed.
        wait::until(SOON, "a tag", || {
            let head = client.ask("HEAD", "/page.html", &[]);
            head.field("etag").map(|_| ())
        })
        .unwrap();
        let curl = Command::new("curl")
            .args(["--silent", "--include", "--http1.1", "--cacert"])
            .arg(&certificate.certificate)
            .args(["--resolve", "localhost:443:10.77.0.2"])
            .arg("https://localhost/page.html")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&curl.stdout);
        let (head, _) = text.split_once("\r\n\r\n").unwrap();
        let over_tcp: BTreeMap<String, String> = head
            .lines()
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        assert_eq!(over_tcp["alt-svc"], "h3=\":443\"; ma=86400");
        let response = client.ask("GET", "/page.html", &[]);
        assert!(response.body == file.bytes(0, 5000), "other bytes");
        for name in [
            "content-length",
            "content-type",
            "etag",
            "last-modified",
            "accept-ranges",
        ] {
            assert_eq!(
                response.field(name),
                over_tcp.get(name).map(String::as_str),
                "{name}"
            );
        }
        assert_eq!(client.ask("GET", "/nothing", &[]).status, 404);
        let part = client.ask("GET", "/page.html", &[("range", "bytes=100-199")]);
        assert_eq!(
            (part.status, part.field("content-range")),
            (206, Some("bytes 100-199/5000"))
        );
        assert!(part.body == file.bytes(100, 100), "other bytes");
        let head = client.ask("HEAD", "/page.html", &[]);
        assert_eq!(
            (head.field("content-length"), head.body.len()),
            (Some("5000"), 0)
        );
        let etag = response.field("etag").unwrap();
        assert_eq!(
            client
                .ask("GET", "/page.html", &[("if-none-match", etag)])
                .status,
            304
        );
    });
}

/// Twenty clients with three times as many streams as files each, on a lossy link.
fn bring_every_byte(site: &Site, more: &[&str]) -> Splitway {
    let files = files(site);
    let certificate = certificate(site);
    let splitway = serve(site, &certificate, more);
    lose_packets();
    on_threads(20, |index| {
        let mut client = Client::connect(HTTPS[index % 2], &certificate, index as u64);
        for _ in 0..3 {
            let streams: Vec<u64> = files
                .iter()
                .map(|file| client.begin("GET", &format!("/{}", file.name()), &[]))
                .collect();
            for (file, stream) in files.iter().zip(streams) {
                let response = client.response(stream);
                assert!(
                    response.body == file.bytes(0, file.size() as usize),
                    "other bytes"
                );
            }
        }
        client.close();
        Ok(())
    });
    splitway
}

#[test]
fn streams_of_many_connections_bring_every_byte_where_packets_are_lost() {
    isolated(|site| {
        bring_every_byte(&site, &[]);
    });
}

/// Packets damaged in transit count as lost.
#[test]
fn damaged_packets_do_no_harm() {
    isolated(|site| {
        let file = site.file("file", 3_000_000).unwrap();
        let certificate = certificate(&site);
        let _splitway = serve(&site, &certificate, &[]);
        for hook in ["input", "output"] {
            // A byte behind the header; the UDP checksum is made valid again.
            nft(&format!(
                "add table inet damage_{hook}; \
                 add chain inet damage_{hook} packets {{ type filter hook {hook} priority 0; }}; \
                 add rule inet damage_{hook} packets udp length > 100 \
                 numgen random mod 50 < 1 counter @th,512,8 set 0x5a"
            ));
        }
        for (seed, server) in (1..).zip(HTTPS) {
            let mut client = Client::connect(server, &certificate, seed);
            client.download(&file);
        }
        let rules = sh("nft list table inet damage_input");
        assert!(!rules.contains("counter packets 0 "), "{rules}");
    });
}

/// Clients that change address and keys amid a download, with a while of total loss.
fn survive_changes(site: &Site, more: &[&str]) -> Splitway {
    let file = site.file("file", 20_000_000).unwrap();
    let certificate = certificate(site);
    let splitway = serve(site, &certificate, more);
    for (seed, server) in (1..).zip(HTTPS) {
        let mut client = Client::connect(server, &certificate, seed);
        let stream = client.begin("GET", "/file", &[]);
        client.until("a part", |it| it.has_received(stream) > 1_000_000);
        client.change_address();
        client.until("a part", |it| it.has_received(stream) > 5_000_000);
        client.quic.update_keys();
        client.until("a part", |it| it.has_received(stream) > 8_000_000);
        client.quic.update_keys();
        nft("add table inet hole; \
             add chain inet hole packets { type filter hook output priority 0; }; \
             add rule inet hole packets meta l4proto udp drop");
        // Not a wait for an event: the client's packets are lost for this long.
        let silence = Instant::now();
        while silence.elapsed() < Duration::from_secs(2) {
            client.turn();
        }
        nft("delete table inet hole");
        let response = client.response(stream);
        assert!(
            response.body == file.bytes(0, file.size() as usize),
            "other bytes"
        );
        client.close();
    }
    splitway
}

#[test]
fn a_connection_survives_another_address_new_keys_and_a_silence() {
    isolated(|site| {
        let splitway = survive_changes(&site, &["--report-json"]);
        let names = [
            "quic_connections_accepted",
            "quic_connections_closed",
            "quic_rejected",
        ];
        assert_eq!(counted(splitway, names), [2, 2, 0]);
    });
}

/// Clients with one connection each. On their link, before losses, no two packets may have the same
/// key and number.
fn outlive(site: &Site, deaths: usize, more: &[&str]) -> Splitway {
    let files = files(site);
    let certificate = certificate(site);
    let splitway = serve(site, &certificate, more);
    let watch = Watch::begin();
    lose_packets();
    clients_outlive_nics(&splitway, CLIENTS, deaths, |index, progress| {
        let mut client = watch.connect(HTTPS[index % 2], &certificate, index as u64);
        let mut turn = index;
        while !progress.is_over.load(Ordering::Relaxed) {
            client.download(&files[turn % files.len()]);
            progress.responses.fetch_add(1, Ordering::Relaxed);
            turn += 1;
        }
        client.download(&files[index % files.len()]);
        client.close();
        Ok(())
    });
    watch.end(CLIENTS);
    splitway
}

/// The same, while no new connections arrive.
fn outlive_on_one_connection(site: &Site, deaths: usize) {
    let splitway = outlive(site, deaths, &["--report-json"]);
    let [accepted, failed] = counted(
        splitway,
        ["quic_connections_accepted", "quic_handshakes_failed"],
    );
    assert_eq!((accepted, failed), (20, 0));
}

#[test]
fn connections_outlive_nic_processes() {
    isolated(|site| outlive_on_one_connection(&site, 3));
}

#[test]
#[ignore = "long: a hundred deaths"]
fn connections_outlive_a_hundred_nic_processes() {
    isolated_long(|site| outlive_on_one_connection(&site, 100));
}

#[test]
fn no_byte_of_content_is_in_the_memory_of_the_host_process() {
    isolated(|site| {
        let file = site.file("large", 30_000).unwrap();
        let certificate = certificate(&site);
        let splitway = serve(&site, &certificate, &[]);
        for turn in 0..20 {
            let mut client = Client::connect(HTTPS[turn % 2], &certificate, turn as u64);
            client.download(&file);
        }
        no_content_in_the_host(&site, &splitway, &[file.name()]);
    });
}

/// Nothing on a veth pair segments datagrams sent with `UDP_SEGMENT`: they arrive merged.
#[test]
fn superpackets_of_clients_on_this_machine_are_split() {
    const REQUESTS: usize = 30;
    isolated(|site| {
        let file = site.file("page", 5000).unwrap();
        let certificate = certificate(&site);
        let splitway = serve(&site, &certificate, &["--report-json"]);
        let long = "x".repeat(1000);
        for (seed, server) in (1..).zip(HTTPS) {
            let mut client = Client::connect(server, &certificate, seed);
            client.sends_superpackets = true;
            let streams: Vec<u64> = (0..REQUESTS)
                .map(|_| client.begin("GET", "/page", &[("x-long", &long)]))
                .collect();
            for stream in streams {
                let response = client.response(stream);
                assert_eq!(response.status, 200);
                assert!(response.body == file.bytes(0, 5000), "other bytes");
            }
            client.close();
        }
        let [split, merged] = counted(splitway, ["datagrams_split", "datagrams_merged"]);
        assert!(split >= 20, "{split}");
        assert_eq!(merged, 0);
    });
}

#[test]
fn datagrams_to_ports_without_quic_are_refused() {
    isolated(|site| {
        let certificate = certificate(&site);
        let _splitway = serve(&site, &certificate, &[]);
        for server in HTTPS {
            let any = if server.is_ipv4() {
                "0.0.0.0:0"
            } else {
                "[::]:0"
            };
            let socket = UdpSocket::bind(any).unwrap();
            socket
                .set_read_timeout(Some(Duration::from_secs(10)))
                .unwrap();
            socket.connect((server.ip(), 444)).unwrap();
            socket.send(b"anyone?").unwrap();
            let refused = socket.recv(&mut [0; 100]).map_err(|error| error.kind());
            assert_eq!(refused, Err(ErrorKind::ConnectionRefused));
        }
    });
}

/// A graceful shutdown: requests in flight are answered, and new ones rejected.
#[test]
fn a_server_that_ends_finishes_what_it_was_asked_for() {
    isolated(|site| {
        let file = site.file("file", 20_000_000).unwrap();
        let certificate = certificate(&site);
        let mut splitway = serve(&site, &certificate, &[]);
        let mut client = Client::connect(HTTPS[0], &certificate, 1);
        let stream = client.begin("GET", "/file", &[]);
        client.until("a part", |it| it.has_received(stream) > 100_000);
        signal(splitway.supervisor(), Signal::QUIT).unwrap();
        let response = client.response(stream);
        assert!(
            response.body == file.bytes(0, file.size() as usize),
            "other bytes"
        );
        client.until_over();
        assert!(splitway.wait().unwrap().success());
    });
}

#[test]
fn a_client_that_resumes_is_answered_before_its_handshake_is_complete() {
    isolated(|site| {
        let file = site.file("file", 200_000).unwrap();
        let certificate = certificate(&site);
        let configuration = site.outside().join("early.toml");
        std::fs::write(&configuration, "[quic]\nearly_data = true\n").unwrap();
        let configuration = configuration.to_str().unwrap();
        let _splitway = serve(&site, &certificate, &["--config", configuration]);
        for (seed, server) in (1..).zip(HTTPS) {
            let mut client = Client::connect(server, &certificate, seed);
            client.download(&file);
            let mut client = client.resume();
            client.download(&file);
            assert!(client.quic.is_early_data_accepted());
            client.close();
        }
        assert_eq!(all_host_counted(["quic_early"]), [2]);
    });
}

#[test]
fn stat_shows_connections_and_what_is_offloaded() {
    isolated(|site| {
        let file = site.file("file", 20_000_000).unwrap();
        let certificate = certificate(&site);
        let _splitway = serve(&site, &certificate, &[]);
        let mut client = Client::connect(HTTPS[0], &certificate, 1);
        let stream = client.begin("GET", "/file", &[]);
        client.until("a part", |it| it.has_received(stream) > 1_000_000);
        let document = json(&["--port", "443"]);
        let [row] = &document["quic_connections"].as_array().unwrap()[..] else {
            panic!("{document}");
        };
        assert_eq!(row["state"], "ESTABLISHED");
        assert_eq!(row["peer"], client.quic.local.to_string());
        assert_eq!(row["is_offloaded"], true);
        assert_eq!(row["tls"]["alpn"], "h3");
        assert!(row["bytes_sent"].as_u64().unwrap() > 1_000_000);
        assert_eq!(document["host"]["usage"]["quic_connections"], 1);
        let text = sh(&format!("{} stat", program().display()));
        assert!(text.contains("QUIC: 1 connections with "), "{text}");
        assert!(
            text.lines()
                .any(|line| line.ends_with("offloaded") || line.contains(" offloaded ")),
            "{text}"
        );
        let others = json(&["--port", "444"]);
        assert_eq!(others["quic_connections"].as_array().unwrap().len(), 0);
        let response = client.response(stream);
        assert!(
            response.body == file.bytes(0, file.size() as usize),
            "other bytes"
        );
    });
}
