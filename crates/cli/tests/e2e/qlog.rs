//! Traces of QUIC connections, as files, beside what the server and its clients have done.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use testbed::namespace::isolated;
use testbed::process::{Process, signal};
use testbed::site::{KnownFile, Site};

use crate::deaths::{keep_packets, lose_packets};
use crate::http3::client::Client;
use crate::http3::receive::options as receive_options;
use crate::http3::{certificate, serve};
use crate::https::HTTPS;
use crate::stat::{host_counted, json};
use crate::support::{SOON, program};

/// `splitway qlog`, which has begun.
struct Qlog {
    process: Process,
    said: BufReader<ChildStderr>,
    dir: PathBuf,
}

fn command(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.arg("qlog").args(arguments).arg("-d").arg(dir);
    command.stderr(Stdio::piped());
    command
}

impl Qlog {
    fn begin(dir: PathBuf, arguments: &[&str]) -> Self {
        let mut process = Process::spawn(&mut command(&dir, arguments)).unwrap();
        let mut said = BufReader::new(process.child().stderr.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert!(line.contains("writing traces to"), "{line}");
        Self { process, said, dir }
    }

    /// Waits for its end; what it says last, and the traces by their files' names.
    fn await_end(mut self) -> (String, BTreeMap<String, Vec<Value>>) {
        let status = self.process.wait(SOON).unwrap();
        let mut said = String::new();
        self.said.read_to_string(&mut said).unwrap();
        assert!(status.success(), "{said}");
        let traces = fs::read_dir(&self.dir).unwrap().map(|entry| {
            let path = entry.unwrap().path();
            let mode = fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, read(&path))
        });
        let traces = traces.collect();
        (said, traces)
    }

    fn end(self) -> (String, BTreeMap<String, Vec<Value>>) {
        signal(self.process.pid(), Signal::INT).unwrap();
        self.await_end()
    }
}

/// The texts of a sequence (RFC 7464).
fn read(path: &Path) -> Vec<Value> {
    let bytes = fs::read(path).unwrap();
    assert_eq!(bytes.first(), Some(&0x1e));
    assert_eq!(bytes.last(), Some(&b'\n'));
    let texts = bytes.split(|&byte| byte == 0x1e).skip(1);
    texts
        .map(|text| serde_json::from_slice(text).unwrap())
        .collect()
}

/// What a command says that fails because of its input.
fn refused(dir: &Path, arguments: &[&str]) -> String {
    let output = command(dir, arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    said
}

fn named<'a>(trace: &'a [Value], name: &str) -> Vec<&'a Value> {
    let events = trace.iter().filter(|event| event["name"] == name);
    events.map(|event| &event["data"]).collect()
}

/// Numbers of the 1-RTT packets that events of a name have.
fn numbers(trace: &[Value], name: &str) -> Vec<u64> {
    let headers = named(trace, name).into_iter().map(|data| &data["header"]);
    headers
        .filter(|header| header["packet_type"] == "1RTT")
        .map(|header| header["packet_number"].as_u64().unwrap())
        .collect()
}

/// The numbers of connections, as `splitway stat` has them.
fn connections() -> Vec<u64> {
    let document = json(&[]);
    let connections = document["quic_connections"].as_array().unwrap().iter();
    connections
        .map(|connection| connection["connection"].as_u64().unwrap())
        .collect()
}

fn downloads(site: &Site) -> (KnownFile, PathBuf) {
    let file = site.file("film.mp4", 3_000_000).unwrap();
    (file, site.outside().join("traces"))
}

#[test]
fn a_trace_has_each_packet_of_a_connection_and_what_became_of_it() {
    isolated(|site| {
        let (file, dir) = downloads(&site);
        let certificate = certificate(&site);
        let _splitway = serve(&site, &certificate, &[]);
        lose_packets();
        let qlog = Qlog::begin(dir, &["--connections", "1"]);
        let mut client = Client::connect(HTTPS[0], &certificate, 1);
        client.quic.update_keys();
        client.download(&file);
        let connection = connections()[0];
        let lost = json(&[])["quic_connections"][0]["packets_lost"]
            .as_u64()
            .unwrap();
        let client_port = client.quic.local.port();
        // A CONNECTION_CLOSE that is lost leaves the trace open until the idle timeout.
        keep_packets();
        client.close();
        let (said, traces) = qlog.await_end();
        assert!(said.contains("1 connections"), "{said}");
        assert!(said.contains("none is missing"), "{said}");

        let trace = &traces[&format!("{connection}.sqlog")];
        assert_eq!(traces.len(), 1);
        let (header, events) = trace.split_first().unwrap();
        assert_eq!(header["serialization_format"], "application/qlog+json-seq");
        assert_eq!(header["trace"]["vantage_point"]["type"], "server");
        check_beginning(events, client_port);
        // Each number once, in order: as many as NIC stacks were given.
        let sent = numbers(events, "quic:packet_sent");
        assert!(sent.is_sorted_by(|a, b| a < b));
        assert_eq!(sent.len() as u64, host_counted("quic_packets"));
        assert!(numbers(events, "quic:packet_received").len() > 10);
        let found_lost = named(events, "quic:packet_lost");
        let of_data = found_lost
            .iter()
            .filter(|data| data["is_mtu_probe_packet"] == false);
        // Some may have been found lost since.
        let found = of_data.count() as u64;
        assert!(
            found >= lost && lost > 0,
            "{found} in the trace, {lost} lost"
        );
        let sent: BTreeSet<u64> = sent.into_iter().collect();
        assert!(
            numbers(events, "quic:packet_lost")
                .iter()
                .all(|it| sent.contains(it))
        );
        // The response is in the frames that were sent.
        let frames = named(events, "quic:packet_sent");
        let frames = frames
            .iter()
            .flat_map(|data| data["frames"].as_array().unwrap());
        let ends =
            frames.filter(|frame| frame["frame_type"] == "stream" && frame["stream_id"] == 0);
        let ends = ends.map(|frame| {
            let len = frame["raw"]["payload_length"].as_u64().unwrap();
            frame["offset"].as_u64().unwrap() + len
        });
        assert!(ends.max().unwrap() > file.size());

        check_recovery(events);
        let closed = named(events, "quic:connection_closed");
        assert_eq!(
            (closed.len(), &closed[0]["initiator"]),
            (1, &"remote".into())
        );
        check_commands(events, &sent);
    });
}

/// Who speaks, and what both sides have said of themselves.
fn check_beginning(events: &[Value], client_port: u16) {
    let times: Vec<f64> = events
        .iter()
        .map(|it| it["time"].as_f64().unwrap())
        .collect();
    assert!(times.is_sorted());
    assert_eq!(events[0]["name"], "quic:connection_started");
    let remote = &events[0]["data"]["remote"];
    assert_eq!(remote["ip_v4"], "10.77.0.1");
    assert_eq!(remote["port_v4"], client_port);
    let parameters = named(events, "quic:parameters_set");
    let initiators: BTreeSet<_> = parameters
        .iter()
        .map(|data| data["initiator"].as_str().unwrap())
        .collect();
    assert_eq!(initiators, BTreeSet::from(["local", "remote"]));
    assert_eq!(parameters[0]["max_idle_timeout"], 30_000);
}

/// What recovery and congestion control go by, where packets are lost and keys updated.
fn check_recovery(events: &[Value]) {
    let metrics = named(events, "quic:recovery_metrics_updated");
    for field in [
        "smoothed_rtt",
        "min_rtt",
        "congestion_window",
        "bytes_in_flight",
    ] {
        assert!(
            metrics.iter().all(|data| data[field].is_number()),
            "{field}"
        );
    }
    let states = named(events, "quic:congestion_state_updated");
    assert_eq!(states[0]["new"], "slow_start");
    assert!(states.iter().any(|data| data["new"] == "recovery"));
    assert_eq!(named(events, "quic:key_updated").len(), 1);
}

/// Each packet is of one QSEND, and all of these have departed; ranges were ready before.
fn check_commands(events: &[Value], sent: &BTreeSet<u64>) {
    let mut of_sends = BTreeSet::new();
    let number = |data: &Value, field: &str| data[field].as_u64().unwrap();
    for data in named(events, "splitway:send_issued") {
        let range = number(data, "first_packet_number")..=number(data, "last_packet_number");
        let packets = sent.range(range);
        assert_eq!(packets.clone().count() as u64, number(data, "datagrams"));
        for packet in packets {
            assert!(of_sends.insert(*packet), "packet {packet} is issued once");
        }
    }
    assert_eq!(of_sends, *sent);
    let pairs = [
        ("splitway:send_issued", "splitway:send_departed", "send"),
        ("splitway:prepare_issued", "splitway:range_ready", "prepare"),
    ];
    for (issued, answered, id) in pairs {
        let ids = |name: &str| -> BTreeSet<u64> {
            let data = named(events, name).into_iter();
            data.map(|data| data[id].as_u64().unwrap()).collect()
        };
        assert!(!ids(answered).is_empty(), "{answered}");
        assert!(ids(answered).is_subset(&ids(issued)), "{answered}");
        let waits = named(events, answered)
            .into_iter()
            .map(|data| &data["waited"]);
        assert!(waits.into_iter().all(Value::is_number));
    }
    let prepared: u64 = named(events, "splitway:prepare_issued")
        .iter()
        .map(|data| number(data, "length"))
        .sum();
    assert_eq!(prepared, 3_000_000);
}

#[test]
fn packets_that_nic_workers_open_are_in_the_trace() {
    isolated(|site| {
        let (file, dir) = downloads(&site);
        let certificate = certificate(&site);
        let options = receive_options(&site);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let _splitway = serve(&site, &certificate, &options);
        lose_packets();
        let qlog = Qlog::begin(dir, &["--connections", "1"]);
        let mut client = Client::connect(HTTPS[0], &certificate, 1);
        client.quic.update_keys();
        client.download(&file);
        let client_port = client.quic.local.port();
        keep_packets();
        client.close();
        let (said, traces) = qlog.await_end();
        assert!(said.contains("none is missing"), "{said}");
        let [opened, refused] = ["quic_packets_opened", "quic_packets_refused"].map(host_counted);
        assert!(opened > 50, "{opened}");
        let events = &traces.values().next().unwrap()[1..];
        check_beginning(events, client_port);
        let received: BTreeSet<u64> = numbers(events, "quic:packet_received")
            .into_iter()
            .collect();
        assert!(received.len() as u64 >= opened - refused);
        // What these packets acknowledge is not in flight any more.
        check_recovery(events);
    });
}

#[test]
fn one_connection_or_those_of_one_client_are_traced_and_no_others() {
    isolated(|site| {
        let (file, dir) = downloads(&site);
        let certificate = certificate(&site);
        let _splitway = serve(&site, &certificate, &[]);
        let mut first = Client::connect(HTTPS[0], &certificate, 1);
        first.download(&file);
        let known = connections()[0];
        let mut second = Client::connect(HTTPS[1], &certificate, 2);
        // It is there already: its packets from now on.
        let qlog = Qlog::begin(dir.join("one"), &["--connection", &known.to_string()]);
        first.download(&file);
        second.download(&file);
        first.close();
        let (_, traces) = qlog.await_end();
        let names: Vec<&String> = traces.keys().collect();
        assert_eq!(names, [&format!("{known}.sqlog")]);
        let events = &traces[names[0]][1..];
        assert!(numbers(events, "quic:packet_sent")[0] > 1000);
        assert_eq!(named(events, "quic:connection_closed").len(), 1);

        let host: IpAddr = "fd77::1".parse().unwrap();
        let of_host = ["--host", &host.to_string(), "--seconds", "600"];
        let qlog = Qlog::begin(dir.join("two"), &of_host);
        let mut others = HTTPS.map(|server| Client::connect(server, &certificate, 3));
        for client in &mut others {
            client.download(&file);
        }
        // One at a time.
        let busy = refused(&dir.join("three"), &[]);
        assert!(busy.contains("being traced already"), "{busy}");
        let (_, traces) = qlog.end();
        assert_eq!(traces.len(), 2, "the second, and one of those that came");
        for trace in traces.values() {
            let remote = &trace[1]["data"]["remote"];
            assert_eq!(remote["ip_v6"], host.to_string());
        }
        // When it has gone, there is room for another, and connections go on untraced.
        let qlog = Qlog::begin(dir.join("four"), &["--bytes", "20K", "--host", "10.77.0.1"]);
        others[0].download(&file);
        let (_, traces) = qlog.await_end();
        assert_eq!(traces.len(), 1, "it ends when the files are full");
        second.download(&file);
    });
}

#[test]
fn what_cannot_be_traced_is_refused() {
    isolated(|site| {
        let (_, dir) = downloads(&site);
        let certificate = certificate(&site);
        {
            let _splitway = serve(&site, &certificate, &[]);
            let unknown = refused(&dir, &["--connection", "4711"]);
            for part in ["--connection 4711", "no connection 4711", "splitway stat"] {
                assert!(unknown.contains(part), "{unknown}");
            }
            let place = site.outside().join("a file");
            fs::write(&place, "").unwrap();
            let unwritable = refused(&place, &[]);
            assert!(
                unwritable.contains("a file") && unwritable.contains("-d"),
                "{unwritable}"
            );
            let unwritable = refused(Path::new("/proc/traces"), &[]);
            assert!(unwritable.contains("/proc/traces"), "{unwritable}");
        }
        let _splitway = crate::support::serve(&site);
        let without = refused(&dir, &[]);
        assert!(
            without.contains("no port of this server speaks QUIC"),
            "{without}"
        );
    });
}

#[test]
fn a_client_of_traces_that_stands_still_holds_up_nothing_and_learns_what_is_missing() {
    isolated(|site| {
        let file = site.file("film.mp4", 60_000_000).unwrap();
        let certificate = certificate(&site);
        let _splitway = serve(&site, &certificate, &[]);
        let qlog = Qlog::begin(site.outside().join("traces"), &["--connections", "1"]);
        signal(qlog.process.pid(), Signal::STOP).unwrap();
        let mut client = Client::connect(HTTPS[0], &certificate, 1);
        client.download(&file);
        signal(qlog.process.pid(), Signal::CONT).unwrap();
        client.close();
        let (said, traces) = qlog.await_end();
        assert!(said.contains("and are missing"), "{said}");
        let trace = traces.values().next().unwrap();
        let dropped = named(trace, "splitway:events_dropped");
        let dropped: u64 = dropped
            .iter()
            .map(|data| data["events"].as_u64().unwrap())
            .sum();
        assert!(said.contains(&format!("; {dropped} came faster")), "{said}");
        // What was kept is in order, and the rest of it is not cut off.
        let sent = numbers(trace, "quic:packet_sent");
        assert!(sent.is_sorted_by(|a, b| a < b));
        assert!((sent.len() as u64) < host_counted("quic_packets"));
    });
}
