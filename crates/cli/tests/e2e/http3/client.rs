//! A client of HTTP/3 on a UDP socket of the kernel.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fakes::http3::{self, DATA, HEADERS, SETTINGS, frame, take_varint};
use fakes::quic_client::{QuicClient, Received, Setup};
use nix::sys::socket::{setsockopt, sockopt};
use rustls::crypto::aws_lc_rs;
use rustls::version::TLS13;
use rustls::{ClientConfig, KeyLog};
use testbed::site::KnownFile;

use crate::https::Certificate;
use crate::support::SOON;

/// H3_NO_ERROR (RFC 9114 §8.1).
const NO_ERROR: u32 = 0x100;

fn unspecified(like: SocketAddr) -> IpAddr {
    match like {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// A response, as it is received.
#[derive(Debug, Default)]
struct Incoming {
    bytes: Vec<u8>,
    is_finished: bool,
}

/// A response.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Response {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let found = self.fields.iter().find(|(of, _)| of == name)?;
        Some(&found.1)
    }
}

/// A client with a connection, which it drives while it waits for something.
pub(crate) struct Client {
    pub(crate) quic: QuicClient,
    /// With the sessions that it may resume.
    config: ClientConfig,
    seed: u64,
    server: SocketAddr,
    socket: UdpSocket,
    start: Instant,
    streams: BTreeMap<u64, Incoming>,
    buffer: Vec<u8>,
    /// It leaves it to the kernel to cut what it sends into datagrams (`UDP_SEGMENT`).
    pub(crate) sends_superpackets: bool,
    keeps_datagrams: bool,
    /// All datagrams that have come, if its secrets are known.
    pub(crate) datagrams: Vec<Vec<u8>>,
}

impl Client {
    pub(crate) fn connect(server: SocketAddr, certificate: &Certificate, seed: u64) -> Self {
        Self::connect_logging(server, certificate, seed, None)
    }

    /// The same, and tells its secrets.
    pub(crate) fn connect_logging(
        server: SocketAddr,
        certificate: &Certificate,
        seed: u64,
        key_log: Option<Arc<dyn KeyLog>>,
    ) -> Self {
        let roots = certificate.roots();
        let mut config = ClientConfig::builder_with_provider(aws_lc_rs::default_provider().into())
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.enable_early_data = true;
        let keeps_datagrams = key_log.is_some();
        if let Some(key_log) = key_log {
            config.key_log = key_log;
        }
        let mut client = Self::begun(server, config, seed, keeps_datagrams);
        client.until("a connection", |client| client.quic.is_connected);
        client.open_control();
        client
    }

    fn begun(server: SocketAddr, config: ClientConfig, seed: u64, keeps_datagrams: bool) -> Self {
        let socket = UdpSocket::bind(SocketAddr::new(unspecified(server), 0)).unwrap();
        socket.connect(server).unwrap();
        let local = socket.local_addr().unwrap();
        let setup = Setup {
            seed,
            // The server's timeout decides.
            idle_timeout_ms: 600_000,
            ..Setup::default()
        };
        Self {
            quic: QuicClient::connect_as(config.clone(), (local, server), &setup),
            config,
            seed,
            server,
            socket,
            start: Instant::now(),
            streams: BTreeMap::new(),
            buffer: vec![0; 65_536],
            sends_superpackets: false,
            keeps_datagrams,
            datagrams: Vec::new(),
        }
    }

    /// Its datagrams are no longer kept.
    pub(crate) fn keep_no_datagrams(&mut self) {
        self.keeps_datagrams = false;
        self.datagrams.clear();
    }

    fn open_control(&mut self) {
        let control = self.quic.open_unidirectional().expect("a stream");
        self.quic.send(control, &[0]);
        self.quic.send(control, &frame(SETTINGS, b""));
    }

    /// Ends the connection, and begins another one that resumes its session: what it sends at once
    /// is early data.
    pub(crate) fn resume(self) -> Self {
        let (server, config, seed) = (self.server, self.config.clone(), self.seed + 1000);
        self.close();
        let mut client = Self::begun(server, config, seed, false);
        assert!(client.quic.may_send_early());
        client.open_control();
        client
    }

    pub(crate) fn now_us(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    /// Sends and receives until something is so.
    pub(crate) fn until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !is_so(self) {
            assert_eq!(self.quic.lost, None, "waiting for {what}");
            assert!(begun.elapsed() < SOON, "waiting for {what}");
            self.turn();
        }
    }

    fn send(&mut self, now_us: u64) {
        // As a link does, a socket whose peer is not there loses what it is given.
        if !self.sends_superpackets {
            while let Some(datagram) = self.quic.poll_datagram(now_us) {
                let _ = self.socket.send(&datagram);
            }
            return;
        }
        while let Some((datagrams, each)) = self.quic.poll_superpacket(now_us) {
            setsockopt(&self.socket, sockopt::UdpGsoSegment, &(each as i32)).unwrap();
            let _ = self.socket.send(&datagrams);
        }
    }

    pub(crate) fn turn(&mut self) {
        let now_us = self.now_us();
        if self.quic.next_timeout_us().is_some_and(|at| at <= now_us) {
            self.quic.on_timeout(now_us);
        }
        self.send(now_us);
        let after = self.quic.next_timeout_us();
        let after_us = after.map_or(100_000, |at| at.saturating_sub(now_us).clamp(1000, 100_000));
        let wait = Duration::from_micros(after_us);
        self.socket.set_read_timeout(Some(wait)).unwrap();
        match self.socket.recv(&mut self.buffer) {
            Ok(len) => {
                let now_us = self.now_us();
                if self.keeps_datagrams {
                    self.datagrams.push(self.buffer[..len].to_vec());
                }
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

    /// Sends a request, once the server permits another stream, and returns its stream.
    pub(crate) fn begin(&mut self, method: &str, path: &str, more: &[(&str, &str)]) -> u64 {
        let pseudo = [
            (":method", method),
            (":scheme", "https"),
            (":authority", "localhost"),
            (":path", path),
        ];
        let request = http3::headers(&[&pseudo, more].concat());
        let begun = Instant::now();
        let stream = loop {
            if let Some(stream) = self.quic.request(&request) {
                break stream;
            }
            assert!(begun.elapsed() < SOON, "waiting for a stream");
            self.turn();
        };
        self.streams.insert(stream, Incoming::default());
        stream
    }

    /// So many bytes of a stream have come.
    pub(crate) fn has_received(&self, stream: u64) -> usize {
        self.streams[&stream].bytes.len()
    }

    /// Reads no more of a stream, so that the server may soon send no more on it.
    pub(crate) fn pause(&mut self, stream: u64) {
        self.streams.remove(&stream);
    }

    /// Goes on from another address.
    pub(crate) fn change_address(&mut self) {
        let any = SocketAddr::new(unspecified(self.server), 0);
        self.socket = UdpSocket::bind(any).unwrap();
        self.socket.connect(self.server).unwrap();
        self.quic.local = self.socket.local_addr().unwrap();
    }

    /// Waits for the server to close the connection, in order.
    pub(crate) fn until_over(&mut self) {
        self.until_closed_with(NO_ERROR);
    }

    /// Waits for the server to close the connection with this code of HTTP/3.
    pub(crate) fn until_closed_with(&mut self, code: u32) {
        let why = self.await_close();
        let is_expected = why.starts_with("closed by peer") && why.contains(&code.to_string());
        assert!(is_expected, "{why}");
    }

    /// Waits for the server to close the connection with INTERNAL_ERROR (RFC 9000 §20.1).
    pub(crate) fn until_closed_by_server(&mut self) {
        let why = self.await_close();
        assert!(why.contains("internal error"), "{why}");
    }

    /// Waits for the end of the connection; its reason.
    fn await_close(&mut self) -> String {
        let begun = Instant::now();
        loop {
            if let Some(why) = &self.quic.lost {
                return why.clone();
            }
            assert!(begun.elapsed() < SOON, "waiting for the end");
            self.turn();
        }
    }

    /// Ends the connection.
    pub(crate) fn close(mut self) {
        self.quic.close(self.now_us(), NO_ERROR);
        self.turn();
    }

    /// The response on a stream, once it is complete.
    pub(crate) fn response(&mut self, stream: u64) -> Response {
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

    pub(crate) fn ask(&mut self, method: &str, path: &str, more: &[(&str, &str)]) -> Response {
        let stream = self.begin(method, path, more);
        self.response(stream)
    }

    /// Downloads a file, and compares every byte.
    pub(crate) fn download(&mut self, file: &KnownFile) {
        let response = self.ask("GET", &format!("/{}", file.name()), &[]);
        assert_eq!(response.status, 200);
        assert!(
            response.body == file.bytes(0, file.size() as usize),
            "other bytes"
        );
    }
}
