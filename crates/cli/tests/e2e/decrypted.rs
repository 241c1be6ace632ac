//! What a key log and a capture show of connections, together.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use fakes::http3;
use rustix::process::Signal;
use rustls::KeyLog;
use testbed::namespace::{isolated, isolated_long};
use testbed::process::{run, signal, tool};
use testbed::site::Site;
use testbed::splitway::Splitway;
use wire::datagram;

use crate::capture::{Capture, Interface, read};
use crate::http3::client::Client;
use crate::http3::{certificate, serve};
use crate::https::{Certificate, Choice, HTTPS, finish};
use crate::support::{SOON, program};

/// What a key log has of a secret: the label, and the client random.
type Name = (String, String);

/// Secrets by their names, in hexadecimal digits.
type Secrets = BTreeMap<Name, String>;

/// All that a client and a server of TLS 1.3 have in common.
const LABELS: [&str; 5] = [
    "CLIENT_HANDSHAKE_TRAFFIC_SECRET",
    "CLIENT_TRAFFIC_SECRET_0",
    "EXPORTER_SECRET",
    "SERVER_HANDSHAKE_TRAFFIC_SECRET",
    "SERVER_TRAFFIC_SECRET_0",
];

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What clients know.
#[derive(Debug, Default)]
struct Known(Mutex<Secrets>);

impl KeyLog for Known {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        let name = (label.to_owned(), hex(client_random));
        let before = self.0.lock().unwrap().insert(name, hex(secret));
        assert_eq!(before, None, "{label} is logged once");
    }
}

/// The secrets of a key log, once there are as many.
fn logged(path: &Path, count: usize) -> Secrets {
    testbed::wait::until(SOON, "the key log", || {
        let text = fs::read_to_string(path).unwrap();
        let lines = text.lines().map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let [label, random, secret] = words[..] else {
                panic!("three words: {line}");
            };
            ((label.to_owned(), random.to_owned()), secret.to_owned())
        });
        let secrets: Secrets = lines.collect();
        (secrets.len() >= count).then_some(secrets)
    })
    .unwrap()
}

fn serve_logging(site: &Site, certificate: &Certificate) -> (Splitway, std::path::PathBuf) {
    let keys = site.outside().join("keys");
    let splitway = serve(site, certificate, &["--key-log", keys.to_str().unwrap()]);
    (splitway, keys)
}

/// UDP payloads from one end to another, of whole datagrams that are no longer than the link takes.
fn payloads(interface: &Interface, from: SocketAddr, to: SocketAddr) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    for packet in &interface.packets {
        // The kernel completes what the host stack sends, which is one datagram each.
        let Ok(Some(udp)) = datagram::parse(&packet.bytes, true) else {
            continue;
        };
        assert_eq!(packet.len, packet.bytes.len(), "all of it");
        assert!(
            packet.len <= 14 + 1500,
            "one datagram: {} bytes",
            packet.len
        );
        if (udp.source, udp.destination) == (from, to) {
            found.push(udp.payload.to_vec());
        }
    }
    found
}

#[test]
fn the_key_log_has_what_clients_know_and_the_capture_each_datagram_they_get() {
    isolated(|site| {
        let file = site.file("film.mp4", 2_000_000).unwrap();
        let certificate = certificate(&site);
        let (_splitway, keys) = serve_logging(&site, &certificate);
        let known = Arc::new(Known::default());
        for (seed, server) in (1..).zip(HTTPS) {
            let path = site.outside().join("server.pcapng");
            let capture = Capture::begin(&["--port", "443", "--snaplen", "300000"], &path);
            let log = Arc::clone(&known) as Arc<dyn KeyLog>;
            let mut client = Client::connect_logging(server, &certificate, seed, Some(log));
            client.download(&file);
            let said = capture.end();
            assert!(said.contains("none is missing"), "{said}");

            let interfaces = read(&path);
            let [received, host, nic] = &interfaces[..] else {
                panic!("three interfaces: {interfaces:?}");
            };
            let local = client.quic.local;
            let sent: BTreeSet<Vec<u8>> = [host, nic]
                .into_iter()
                .flat_map(|interface| payloads(interface, server, local))
                .collect();
            assert!(client.datagrams.len() > 1000);
            for (at, datagram) in client.datagrams.iter().enumerate() {
                assert!(sent.contains(datagram), "datagram {at} is captured");
            }
            let from_nic = payloads(nic, server, local).len();
            assert!(from_nic > 1000, "{from_nic} datagrams of the NIC stack");
            assert!(payloads(received, local, server).len() > 1);
        }
        // The same over TCP.
        let mut over_tcp = crate::https::Client::new(&[&certificate], Choice::Tls13);
        let config = Arc::get_mut(&mut over_tcp.config).unwrap();
        config.key_log = Arc::clone(&known) as Arc<dyn KeyLog>;
        let mut connection = over_tcp.open(HTTPS[0]).unwrap();
        connection.get(&file).unwrap();
        finish(connection).unwrap();

        let known = known.0.lock().unwrap();
        let labels: Vec<&str> = known.keys().map(|(label, _)| &label[..]).collect();
        assert_eq!(labels, LABELS.map(|label| [label; 3]).concat());
        assert_eq!(logged(&keys, known.len()), *known);
        let mode = fs::metadata(&keys).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    });
}

#[test]
fn secrets_are_logged_where_that_was_asked_for_and_nowhere_else() {
    isolated(|site| {
        let file = site.file("file", 100_000).unwrap();
        let certificate = certificate(&site);
        let options = certificate.options();
        let [keys, access, errors] = ["keys", "access", "errors"].map(|it| site.outside().join(it));
        let serve = |more: &[&str]| {
            let mut command = Command::new(program());
            command.arg("serve").arg(site.root());
            command.args(["--tls-listen", "443", "--http3", "--log", "trace"]);
            command.args(&options).args(more);
            command.arg("--access-log").arg(&access);
            command.arg("--error-log").arg(&errors);
            // It is for programs that have no option for it.
            Splitway::start(command.env("SSLKEYLOGFILE", &keys)).unwrap()
        };
        let secrets_of_a_download = |seed| {
            let known = Arc::new(Known::default());
            let log = Arc::clone(&known) as Arc<dyn KeyLog>;
            let mut client = Client::connect_logging(HTTPS[0], &certificate, seed, Some(log));
            client.download(&file);
            let secrets = known.0.lock().unwrap().clone();
            assert_eq!(secrets.len(), LABELS.len());
            secrets
        };
        let nowhere_but = |secrets: &Secrets, place: Option<&Path>| {
            for entry in fs::read_dir(site.outside()).unwrap() {
                let path = entry.unwrap().path();
                if !path.is_file() || Some(&*path) == place {
                    continue;
                }
                let mut bytes = Vec::new();
                let mut file = fs::File::open(&path).unwrap();
                file.read_to_end(&mut bytes).unwrap();
                let text = String::from_utf8_lossy(&bytes);
                for secret in secrets.values() {
                    assert!(!text.contains(secret), "a secret in {}", path.display());
                }
            }
        };
        let end = |mut splitway: Splitway| {
            signal(splitway.supervisor(), Signal::TERM).unwrap();
            assert!(splitway.wait().unwrap().success());
            let said = splitway.output().join("\n");
            said + &fs::read_to_string(&errors).unwrap()
        };
        let splitway = serve(&[]);
        let secrets = secrets_of_a_download(1);
        let said = end(splitway);
        assert!(!keys.exists(), "the environment alone has no effect");
        assert!(secrets.values().all(|secret| !said.contains(secret)));
        nowhere_but(&secrets, None);

        let other = site.outside().join("wanted");
        let splitway = serve(&["--key-log", other.to_str().unwrap()]);
        let secrets = secrets_of_a_download(2);
        assert_eq!(logged(&other, LABELS.len()), secrets);
        let said = end(splitway);
        assert!(said.contains("FOR DEBUGGING ONLY"), "{said}");
        assert!(!keys.exists());
        assert!(secrets.values().all(|secret| !said.contains(secret)));
        nowhere_but(&secrets, Some(&other));
    });
}

#[test]
fn a_key_log_goes_on_when_its_writer_has_died() {
    isolated(|site| {
        let file = site.file("file", 100_000).unwrap();
        let certificate = certificate(&site);
        let (splitway, keys) = serve_logging(&site, &certificate);
        let known = Arc::new(Known::default());
        for seed in 1..=2 {
            let log = Arc::clone(&known) as Arc<dyn KeyLog>;
            let mut client = Client::connect_logging(HTTPS[0], &certificate, seed, Some(log));
            client.download(&file);
            let known = known.0.lock().unwrap().clone();
            assert_eq!(logged(&keys, known.len()), known);
            let observer = crate::support::observer(&splitway).expect("an observer");
            signal(observer, Signal::KILL).unwrap();
        }
    });
}

/// What tshark makes of a capture with a key log: the values of a field, in packets that a filter
/// accepts.
fn dissected(capture: &Path, keys: &Path, filter: &str, field: &str) -> Vec<String> {
    let mut command = tool("tshark");
    command.arg("-r").arg(capture);
    command.args(["-o", &format!("tls.keylog_file:{}", keys.display())]);
    command.args(["-Y", filter, "-T", "fields", "-e", field]);
    let output = run(&mut command).unwrap();
    output.lines().map(str::to_owned).collect()
}

#[test]
#[ignore = "needs tshark"]
fn tshark_decrypts_a_capture_and_shows_the_response() {
    isolated_long(|site| {
        let file = site.file("film.mp4", 300_000).unwrap();
        let certificate = certificate(&site);
        let (_splitway, keys) = serve_logging(&site, &certificate);
        for (seed, server) in (1..).zip(HTTPS) {
            let path = site.outside().join("server.pcapng");
            let capture = Capture::begin(&["--snaplen", "300000"], &path);
            let known = Arc::new(Known::default());
            let log = Arc::clone(&known) as Arc<dyn KeyLog>;
            let mut client = Client::connect_logging(server, &certificate, seed, Some(log));
            client.download(&file);
            capture.end();
            logged(&keys, LABELS.len() * seed as usize);
            let response = "udp.srcport == 443 && quic.stream.stream_id == 0";
            // HEADERS (RFC 9114 §7.2.2)
            let headers = format!("{response} && http3.frame_type == 1");
            let payloads = dissected(&path, &keys, &headers, "http3.frame_payload");
            let payload = payloads.first().and_then(|of| of.split(',').next());
            let fields = http3::fields(&bytes(payload.expect("HEADERS")));
            assert_eq!(fields[0], (":status".to_owned(), "200".to_owned()));
            let pieces = dissected(&path, &keys, response, "quic.stream_data");
            let stream = bytes(&pieces.join(","));
            let content = file.bytes(0, file.size() as usize);
            let found = stream.windows(content.len()).any(|it| it == content);
            assert!(found, "the file, in {} bytes of the stream", stream.len());
        }
    });
}

#[test]
#[ignore = "needs tshark"]
fn tshark_decrypts_a_capture_of_http2() {
    isolated_long(|site| {
        let file = site.file("film.mp4", 300_000).unwrap();
        let certificate = certificate(&site);
        let (_splitway, keys) = serve_logging(&site, &certificate);
        let path = site.outside().join("server.pcapng");
        let capture = Capture::begin(&["--snaplen", "300000"], &path);
        let mut curl = tool("curl -q --silent --fail --max-time 60 --http2 --tls-max 1.3");
        curl.arg("--cacert").arg(&certificate.certificate);
        curl.arg("--output").arg(site.outside().join("copy"));
        run(curl.arg(format!("https://{}/{}", HTTPS[0], file.name()))).unwrap();
        capture.end();
        let sent = "tcp.srcport == 443 && http2.streamid == 1";
        let headers = format!("{sent} && http2.type == 1");
        let statuses = dissected(&path, &keys, &headers, "http2.headers.status");
        assert_eq!(statuses, ["200"]);
        let lengths = dissected(&path, &keys, &headers, "http2.headers.content_length");
        assert_eq!(lengths, ["300000"]);
        let data = dissected(
            &path,
            &keys,
            &format!("{sent} && http2.type == 0"),
            "http2.data.data",
        );
        // The first DATA frame: tshark loses the place in TCP where packets come out of order.
        let content = bytes(&data.join(","));
        assert!(content.starts_with(&file.bytes(0, 4087)));
    });
}

/// What hexadecimal digits stand for, whatever is between them.
fn bytes(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|it| it.to_digit(16)).collect();
    digits
        .chunks(2)
        .map(|it| (it[0] << 4 | it[1]) as u8)
        .collect()
}
