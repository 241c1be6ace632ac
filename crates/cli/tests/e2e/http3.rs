//! HTTP/3, with quinn and rustls on UDP sockets of the kernel as clients.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

use fakes::http3::{self, DATA, HEADERS, SETTINGS, frame, take_varint};
use fakes::quic_client::{QuicClient, Received};
use rustls::ClientConfig;
use rustls::crypto::aws_lc_rs;
use rustls::version::TLS13;
use testbed::namespace::isolated;
use testbed::site::{KnownFile, Site};
use testbed::splitway::Splitway;

use crate::https::{Certificate, HTTPS};
use crate::support::{SOON, serve_with};

/// A response, as it is received.
#[derive(Debug, Default)]
struct Incoming {
    bytes: Vec<u8>,
    is_finished: bool,
}

/// A response.
#[derive(Debug)]
struct Response {
    status: u16,
    fields: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Response {
    fn field(&self, name: &str) -> Option<&str> {
        let found = self.fields.iter().find(|(of, _)| of == name)?;
        Some(&found.1)
    }
}

/// A client with a connection, which it drives while it waits for something.
struct Client {
    quic: QuicClient,
    socket: UdpSocket,
    start: Instant,
    streams: BTreeMap<u64, Incoming>,
    buffer: Vec<u8>,
}

impl Client {
    fn connect(server: SocketAddr, certificate: &Certificate, seed: u64) -> Self {
        let any = match server {
            SocketAddr::V4(_) => "0.0.0.0:0",
            SocketAddr::V6(_) => "[::]:0",
        };
        let socket = UdpSocket::bind(any).unwrap();
        socket.connect(server).unwrap();
        let local = socket.local_addr().unwrap();
        let roots = certificate.roots();
        let config = ClientConfig::builder_with_provider(aws_lc_rs::default_provider().into())
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut client = Self {
            quic: QuicClient::connect(config, b"h3", (local, server), seed),
            socket,
            start: Instant::now(),
            streams: BTreeMap::new(),
            buffer: vec![0; 65_536],
        };
        client.until("a connection", |client| client.quic.is_connected);
        let control = client.quic.open_unidirectional().expect("a stream");
        client.quic.send(control, &[0]);
        client.quic.send(control, &frame(SETTINGS, b""));
        client
    }

    fn now_us(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    /// Sends and receives until something is so.
    fn until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !is_so(self) {
            assert_eq!(self.quic.lost, None, "waiting for {what}");
            assert!(begun.elapsed() < SOON, "waiting for {what}");
            self.turn();
        }
    }

    fn turn(&mut self) {
        let now_us = self.now_us();
        if self.quic.next_timeout_us().is_some_and(|at| at <= now_us) {
            self.quic.on_timeout(now_us);
        }
        while let Some(datagram) = self.quic.poll_datagram(now_us) {
            // As a link does, a socket whose peer is not there loses it.
            let _ = self.socket.send(&datagram);
        }
        let after = self.quic.next_timeout_us();
        let after_us = after.map_or(100_000, |at| at.saturating_sub(now_us).clamp(1000, 100_000));
        let wait = Duration::from_micros(after_us);
        self.socket.set_read_timeout(Some(wait)).unwrap();
        match self.socket.recv(&mut self.buffer) {
            Ok(len) => {
                let now_us = self.now_us();
                self.quic.on_datagram(now_us, &self.buffer[..len], false);
            }
            Err(error) => assert!(
                matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::ConnectionRefused
                ),
                "{error}"
            ),
        }
        for (stream, incoming) in &mut self.streams {
            while !incoming.is_finished {
                match self.quic.receive(*stream) {
                    Received::Bytes(bytes) => incoming.bytes.extend(bytes),
                    Received::Finished => incoming.is_finished = true,
                    Received::Blocked => break,
                    Received::Reset(code) => panic!("stream {stream} was reset: {code:#x}"),
                }
            }
        }
    }

    /// Sends a request, and returns its stream.
    fn begin(&mut self, method: &str, path: &str, more: &[(&str, &str)]) -> u64 {
        let pseudo = [
            (":method", method),
            (":scheme", "https"),
            (":authority", "localhost"),
            (":path", path),
        ];
        let request = http3::headers(&[&pseudo, more].concat());
        let stream = self.quic.request(&request).expect("a stream");
        self.streams.insert(stream, Incoming::default());
        stream
    }

    /// The response on a stream, once it is complete.
    fn response(&mut self, stream: u64) -> Response {
        self.until("a response", |it| it.streams[&stream].is_finished);
        let incoming = self.streams.remove(&stream).expect("a stream");
        let mut rest = &incoming.bytes[..];
        let mut response = None;
        while !rest.is_empty() {
            let kind = take_varint(&mut rest);
            let len = take_varint(&mut rest) as usize;
            let payload = &rest[..len];
            rest = &rest[len..];
            match (kind, &mut response) {
                (HEADERS, None) => {
                    let mut fields = http3::fields(payload);
                    let (name, status) = fields.remove(0);
                    assert_eq!(name, ":status");
                    response = Some(Response {
                        status: status.parse().expect("a status"),
                        fields,
                        body: Vec::new(),
                    });
                }
                (DATA, Some(response)) => response.body.extend(payload),
                _ => panic!("a frame of type {kind:#x}"),
            }
        }
        response.expect("a response")
    }

    fn ask(&mut self, method: &str, path: &str, more: &[(&str, &str)]) -> Response {
        let stream = self.begin(method, path, more);
        self.response(stream)
    }

    /// Downloads a file, and compares every byte.
    fn download(&mut self, file: &KnownFile) {
        let response = self.ask("GET", &format!("/{}", file.name()), &[]);
        assert_eq!(response.status, 200);
        assert!(
            response.body == file.bytes(0, file.size() as usize),
            "other bytes"
        );
    }
}

fn serve(site: &Site, certificate: &Certificate, more: &[&str]) -> Splitway {
    let options = certificate.options();
    let mut all = vec!["--tls-listen", "443", "--http3"];
    all.extend(options.iter().map(String::as_str));
    all.extend(more);
    serve_with(site, &all)
}

fn certificate(site: &Site) -> Certificate {
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
        let mut client = Client::connect(HTTPS[0], &certificate, 1);
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
