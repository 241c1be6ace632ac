//! What those learn who watch a server from outside.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use rustix::process::Signal;
use testbed::http::{Connection, be_patient};
use testbed::namespace::isolated;
use testbed::process::signal;
use testbed::site::Site;
use testbed::splitway::{HTTP_V4, HTTP_V6, Splitway};
use testbed::wait;

use crate::support::{SOON, observer, serve_with, sh, started};

pub(crate) const ADMIN: &str = "127.0.0.1:9180";

/// A server that can be watched.
pub(crate) fn watched(site: &Site, options: &[&str]) -> Splitway {
    sh("ip link set lo up");
    let mut all = vec!["--admin", ADMIN];
    all.extend(options);
    serve_with(site, &all)
}

/// What the admin listener answers: status line and fields, and the body.
pub(crate) fn ask(request: &str) -> (String, String) {
    let address: SocketAddr = ADMIN.parse().unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    be_patient(&stream).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect(&answer);
    (head.to_owned(), body.to_owned())
}

fn get(path: &str) -> String {
    let (head, body) = ask(&format!("GET {path} HTTP/1.1\r\nHost: {ADMIN}\r\n\r\n"));
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    body
}

/// Once the host process was heard of.
#[track_caller]
fn healthy() {
    wait::until(SOON, "an answer of 200", || {
        let (head, body) = ask("GET /healthz HTTP/1.1\r\n\r\n");
        (head.starts_with("HTTP/1.1 200 ") && body == "ok\n").then_some(())
    })
    .unwrap();
}

/// Samples by name and labels.
fn samples() -> BTreeMap<String, f64> {
    let text = get("/metrics");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap();
            (name.to_owned(), value.parse().unwrap())
        })
        .collect()
}

/// Once these samples have these values at least: all samples.
#[track_caller]
pub(crate) fn awaited(values: &[(&str, f64)]) -> BTreeMap<String, f64> {
    wait::until(SOON, &format!("{values:?}"), || {
        let samples = samples();
        let is = |(name, value): &(&str, f64)| samples.get(*name).is_some_and(|is| is >= value);
        values.iter().all(is).then_some(samples)
    })
    .unwrap()
}

pub(crate) const WORKER_BYTES: &str = "splitway_nic_file_sent_bytes_total{nic=\"0\",worker=\"0\"}";

#[test]
fn what_is_served_is_in_the_metrics() {
    isolated(|site| {
        let file = site.file("file", 1_000_000).unwrap();
        let mut splitway = watched(&site, &["--workers", "2", "--workers-min", "2"]);
        let mut first = Connection::open(HTTP_V4).unwrap();
        let mut second = Connection::open(HTTP_V6).unwrap();
        for connection in [&mut first, &mut second] {
            connection.get(&file).unwrap();
            connection.send_get("missing").unwrap();
            assert_eq!(connection.read_head().unwrap().status, 404);
        }
        let other = WORKER_BYTES.replace("worker=\"0\"", "worker=\"1\"");
        let all = awaited(&[
            ("splitway_host_http_requests_total", 4.0),
            ("splitway_access_responses_total{status=\"200\"}", 2.0),
            (WORKER_BYTES, 1e6),
            (other.as_str(), 1e6),
        ]);
        for (name, value) in [
            ("splitway_host_connections_accepted_total", 2.0),
            ("splitway_host_http_connections_accepted_total", 2.0),
            ("splitway_host_http_responses_2xx_total", 2.0),
            ("splitway_host_http_responses_4xx_total", 2.0),
            ("splitway_host_http_virtual_bytes_total", 2e6),
            ("splitway_host_connections", 2.0),
            ("splitway_access_offloaded_bytes_total", 2e6),
            ("splitway_access_duration_seconds_count", 3.0),
            ("splitway_nic_read_bytes_total{nic=\"0\",worker=\"0\"}", 1e6),
        ] {
            assert!(
                all[name] >= value && all[name] <= value + 1.0,
                "{name} {}",
                all[name]
            );
        }
        // The kernel counts ticks: one of the modes may have none yet.
        for process in ["host", "nic"] {
            let of = format!("splitway_process_cpu_seconds_total{{process=\"{process}\"");
            let costs: Vec<f64> = all
                .iter()
                .filter(|(name, _)| name.starts_with(&of))
                .map(|(_, value)| *value)
                .collect();
            assert!(
                costs.len() == 2 && costs.iter().sum::<f64>() > 0.0,
                "{process}: {costs:?}"
            );
        }
        // Of a NIC process that follows another, counters begin again.
        signal(splitway.nic(), Signal::KILL).unwrap();
        splitway
            .line(|line| line.contains("in the place of the one before"))
            .unwrap();
        Connection::open(HTTP_V4).unwrap().get(&file).unwrap();
        awaited(&[("splitway_host_nic_restarts_total", 1.0)]);
        let status: serde_json::Value = serde_json::from_str(&get("/status.json")).unwrap();
        assert_eq!(status["top"][0]["name"], "/file");
        assert!(splitway.end_with(Signal::TERM).unwrap().success());
    });
}

#[test]
fn a_wrong_request_says_why() {
    isolated(|site| {
        let splitway = watched(&site, &[]);
        healthy();
        assert_eq!(get("/healthz?x").as_str(), "ok\n");
        for (request, status) in [
            ("GET /nothing HTTP/1.1\r\n\r\n", "404"),
            ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
            ("nonsense\r\n\r\n", "400"),
        ] {
            let (head, _) = ask(request);
            assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
        }
        let (head, body) = ask("HEAD /metrics HTTP/1.1\r\n\r\n");
        assert!(head.contains("version=0.0.4") && body.is_empty(), "{head}");
        drop(splitway);
    });
}

/// A load balancer sends no more clients, while nothing is to be restarted.
#[test]
fn a_server_that_drains_is_healthy_and_not_ready() {
    isolated(|site| {
        let large = site.file("large", 50_000_000).unwrap();
        let mut splitway = watched(&site, &[]);
        healthy();
        assert_eq!(get("/readyz").as_str(), "ok\n");
        // A response that keeps the server from its end.
        let mut connection = started(HTTP_V4, &large);
        signal(splitway.supervisor(), Signal::QUIT).unwrap();
        wait::until(SOON, "an answer of 503", || {
            let (head, body) = ask("GET /readyz HTTP/1.1\r\n\r\n");
            (head.contains(" 503 ") && body.contains("draining")).then_some(())
        })
        .unwrap();
        assert_eq!(get("/healthz").as_str(), "ok\n");
        connection.read_file_part(&large, 0..large.size()).unwrap();
        drop(connection);
        splitway.line(|line| line.starts_with("drained")).unwrap();
    });
}

#[test]
fn a_host_process_that_hangs_is_not_healthy() {
    isolated(|site| {
        let splitway = watched(&site, &[]);
        healthy();
        signal(splitway.host(), Signal::STOP).unwrap();
        wait::until(SOON, "an answer of 503", || {
            let (head, body) = ask("GET /healthz HTTP/1.1\r\n\r\n");
            (head.contains(" 503 ") && body.contains("silent")).then_some(())
        })
        .unwrap();
        signal(splitway.host(), Signal::CONT).unwrap();
        wait::until(SOON, "an answer of 200", || {
            let (head, _) = ask("GET /healthz HTTP/1.1\r\n\r\n");
            head.contains(" 200 ").then_some(())
        })
        .unwrap();
    });
}

#[test]
fn scrapers_that_are_slow_or_never_ask_delay_no_other() {
    isolated(|site| {
        let file = site.file("file", 20_000_000).unwrap();
        let mut splitway = watched(&site, &[]);
        let address: SocketAddr = ADMIN.parse().unwrap();
        let mut slow = Vec::new();
        for number in 0..16 {
            let mut stream = TcpStream::connect(address).unwrap();
            if number % 2 == 0 {
                stream.write_all(b"GET /metrics HTTP/1.1\r\n").unwrap();
            }
            slow.push(stream);
        }
        let mut download = started(HTTP_V4, &file);
        download.read_file_part(&file, 0..file.size()).unwrap();
        // They are given up one after the other, and then others are answered.
        awaited(&[("splitway_access_responses_total{status=\"200\"}", 1.0)]);
        drop(slow);
        let mut last = TcpStream::connect(address).unwrap();
        last.write_all(b"GET /metrics HT").unwrap();
        assert!(splitway.end_with(Signal::TERM).unwrap().success());
    });
}

#[test]
fn the_listener_outlives_the_observer() {
    isolated(|site| {
        let splitway = watched(&site, &[]);
        healthy();
        let before = observer(&splitway).unwrap();
        signal(before, Signal::KILL).unwrap();
        // Who connects meanwhile waits.
        healthy();
        awaited(&[("splitway_host_frames_received_total", 0.0)]);
        assert_ne!(observer(&splitway), Some(before));
    });
}

#[test]
fn an_address_that_is_taken_is_refused() {
    isolated(|site| {
        sh("ip link set lo up");
        let _taken = std::net::TcpListener::bind(ADMIN).unwrap();
        let mut serve = Command::new(crate::support::program());
        serve.arg("serve").arg(site.root()).args(["--admin", ADMIN]);
        let output = serve.output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            said.contains(ADMIN) && said.contains("choose another port"),
            "{said}"
        );
    });
}
