//! A client of HTTP/3: quinn and rustls on the other side, asking for files and comparing every
//! byte.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use fakes::http3;
use fakes::quic_client::{QuicClient, Received, Setup, TokenMemoryCache};
use wire::datagram::{self, DatagramHeader};
use wire::ip;

use crate::addresses;
use crate::client::{BETWEEN_US, HOSTS, address_of};
use crate::file_versions::{FileVersions, RequestTime};
use crate::http3_response::Http3Response;
use crate::random::Random;
use crate::responses::Expected;
use crate::router::ROUTER_MAC;
use crate::scenario::{ClientPlan, Manner, QuicPlan};
use crate::site::{ClientTlsConfig, IDLE_TIMEOUT};
use crate::violation::{Check, ensure, violation};

/// H3_NO_ERROR and H3_REQUEST_CANCELLED (RFC 9114 §8.1).
const NO_ERROR: u32 = 0x100;
const CANCELLED: u32 = 0x10c;

/// The type of the control stream (RFC 9114 §6.2.1).
const CONTROL: u8 = 0;

/// Priorities that a client may request for a response (RFC 9218).
const PRIORITIES: [Option<&str>; 4] = [None, None, Some("u=1"), Some("u=5, i")];

/// Ports of each client, including those that it migrates to.
const PORTS: usize = 32;

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct QuicPeer {
    pub(crate) plan: ClientPlan,
    quic: QuicPlan,
    pub(crate) address: IpAddr,
    number: usize,
    versions: FileVersions,
    random: Random,
    wanted: ClientTlsConfig,
    /// Tokens that validate its address.
    tokens: Arc<TokenMemoryCache>,
    /// Time at which it opens its first or next connection.
    begins_us: Option<u64>,
    begun: usize,
    /// Retries after a failed handshake: the token of a Retry may be too old.
    tries_again: bool,
    ports_used: usize,
    /// Connections; the last one is in use, the others wait for stray packets.
    connections: Vec<Open>,
    vanished: bool,
    pub(crate) bytes_received: u64,
    pub(crate) connections_lost: u64,
    /// Connections that were answered from the preferred address.
    pub(crate) moved_over: u64,
    finished_us: Option<u64>,
    /// Time of its next timer.
    next_us: Option<u64>,
}

struct Open {
    client: QuicClient,
    server: SocketAddr,
    /// Requests not sent yet, the next one last.
    unsent: Vec<usize>,
    requests: Vec<Request>,
    completed: usize,
    received: u64,
    /// Received since the last update of keys.
    since_update: u64,
    reads_at_us: Option<u64>,
    paused: bool,
    has_begun: bool,
    /// It has begun with early data, which the server has not accepted or rejected yet.
    is_early: bool,
    has_moved: bool,
    /// It has moved to the preferred address, and a packet has arrived from there.
    is_answered_there: bool,
    over: bool,
}

/// A sent request whose response is not complete.
#[derive(Debug)]
struct Request {
    number: usize,
    stream: u64,
    asked: RequestTime,
    response: Http3Response,
    received: u64,
}

impl Open {
    /// Queues the requests again: early data was rejected, and its streams are gone.
    fn begin_again(&mut self) {
        self.has_begun = false;
        let requests = self.requests.drain(..).rev();
        self.unsent.extend(requests.map(|request| request.number));
    }
}

impl Request {
    /// Reports whether the server may reset the stream: the file cannot be read, or no longer can.
    fn may_break(&self, versions: &FileVersions) -> bool {
        !self.response.expected.is_sound() || versions.may_be_out_of_reach(self.asked)
    }
}

impl QuicPeer {
    pub(crate) fn new(
        number: usize,
        plan: ClientPlan,
        quic: QuicPlan,
        versions: FileVersions,
        begins_us: u64,
        tries_again: bool,
        random: Random,
    ) -> QuicPeer {
        let begins_us = Some(begins_us + plan.begins_us);
        QuicPeer {
            address: address_of(number, &plan),
            number,
            versions,
            random,
            wanted: ClientTlsConfig::new(quic.suite(), "h3"),
            tokens: Arc::default(),
            begins_us,
            begun: 0,
            tries_again,
            ports_used: 0,
            connections: Vec::new(),
            vanished: false,
            bytes_received: 0,
            connections_lost: 0,
            moved_over: 0,
            finished_us: None,
            next_us: begins_us,
            plan,
            quic,
        }
    }

    /// Returns the time of its next timer, in microseconds.
    pub(crate) fn next_us(&self) -> Option<u64> {
        self.next_us.filter(|_| !self.vanished)
    }

    /// Reports whether all responses have arrived, or the client has vanished.
    pub(crate) fn is_finished(&self) -> bool {
        self.vanished || self.finished_us.is_some()
    }

    /// Reports whether the client is finished and its connections are drained.
    pub(crate) fn is_gone(&self) -> bool {
        self.vanished || (self.is_finished() && self.connections.is_empty())
    }

    /// Describes the client's progress, for people.
    pub(crate) fn describe(&self) -> String {
        let open: Vec<String> = self
            .connections
            .iter()
            .map(|open| {
                let requests = open.requests.iter();
                let requests = requests.map(|it| (it.stream, it.response.expected, it.received));
                format!(
                    "{}, {} responses, {} bytes, waits for {:?}",
                    open.client.local,
                    open.completed,
                    open.received,
                    requests.collect::<Vec<_>>()
                )
            })
            .collect();
        format!(
            "client {} at {}: QUIC connection {} of {}; {}",
            self.number,
            self.address,
            self.begun,
            self.plan.connections.len(),
            open.join("; ")
        )
    }

    /// Checks that a client which stays has finished.
    pub(crate) fn check_finished(&self) -> Check {
        ensure(self.is_finished() || !self.plan.manner.stays(), || {
            format!("stuck: {}", self.describe())
        })
    }

    /// Runs the timers that are due.
    pub(crate) fn on_time(&mut self, now_us: u64, frames: &mut Vec<Vec<u8>>) -> Check {
        if self.begins_us.is_some_and(|at_us| at_us <= now_us) {
            self.begins_us = None;
            self.begin(now_us);
        }
        for index in 0..self.connections.len() {
            let open = &mut self.connections[index];
            let timeout_us = open.client.next_timeout_us();
            if timeout_us.is_some_and(|at_us| at_us <= now_us) {
                open.client.on_timeout(now_us);
            }
            if open.reads_at_us.is_some_and(|at_us| at_us <= now_us) {
                open.reads_at_us = None;
            }
            self.settle(index, now_us, frames)?;
        }
        self.look_ahead();
        Ok(())
    }

    /// Takes a received frame.
    pub(crate) fn on_frame(
        &mut self,
        now_us: u64,
        bytes: &[u8],
        frames: &mut Vec<Vec<u8>>,
    ) -> Check {
        // Damaged frames are dropped.
        let Ok(Some(packet)) = datagram::parse(bytes, false) else {
            return Ok(());
        };
        if self.vanished {
            return Ok(());
        }
        let preferred = addresses::preferred(self.address.is_ipv6());
        let mut connections = self.connections.iter();
        let found = connections.position(|open| open.client.local == packet.destination);
        if let Some(index) = found {
            let open = &mut self.connections[index];
            let is_preferred = packet.source.ip() == preferred;
            if is_preferred && !std::mem::replace(&mut open.is_answered_there, true) {
                self.moved_over += 1;
            }
            let client = &mut open.client;
            client.on_packet(now_us, packet.payload, packet.ecn);
            self.settle(index, now_us, frames)?;
            self.look_ahead();
        }
        Ok(())
    }

    fn next_local(&mut self) -> SocketAddr {
        let port = 40_000 + PORTS * (self.number % HOSTS) + self.ports_used % PORTS;
        self.ports_used += 1;
        SocketAddr::new(self.address, port as u16)
    }

    /// Returns the server's address, or its preferred address.
    fn server(&self, is_preferred: bool) -> SocketAddr {
        let ipv6 = self.address.is_ipv6();
        let server = match is_preferred {
            true => addresses::preferred(ipv6),
            false => addresses::address(ipv6),
        };
        SocketAddr::new(server, addresses::QUIC_PORT)
    }

    fn begin(&mut self, now_us: u64) {
        let mut unsent = self.plan.connections[self.begun].clone();
        unsent.reverse();
        self.begun += 1;
        let server = self.server(false);
        let addresses = (self.next_local(), server);
        let name = ClientTlsConfig::name().to_str().into_owned();
        let setup = Setup {
            server_name: &name,
            window_bytes: self.quic.window_bytes,
            stream_window_bytes: self.quic.stream_window_bytes,
            idle_timeout_ms: IDLE_TIMEOUT.as_millis() as u32,
            begins_us: now_us,
            seed: self.random.next(),
            tokens: Some(&self.tokens),
            ..Setup::default()
        };
        let config = self.wanted.config(now_us);
        self.connections.push(Open {
            client: QuicClient::connect_as(config, addresses, &setup),
            server,
            unsent,
            requests: Vec::new(),
            completed: 0,
            received: 0,
            since_update: 0,
            reads_at_us: None,
            paused: false,
            has_begun: false,
            is_early: false,
            has_moved: false,
            is_answered_there: false,
            over: false,
        });
    }

    /// Handles a connection's events and transmits its packets.
    fn settle(&mut self, index: usize, now_us: u64, frames: &mut Vec<Vec<u8>>) -> Check {
        let open = &mut self.connections[index];
        if open.is_early && open.client.is_connected {
            open.is_early = false;
            if !open.client.is_early_data_accepted() {
                open.begin_again();
            }
        }
        let may_begin = open.client.is_connected || open.client.may_send_early();
        if !open.over && may_begin && !open.has_begun {
            open.has_begun = true;
            open.is_early = !open.client.is_connected;
            if let Some(control) = open.client.open_unidirectional() {
                let settings = http3::frame(http3::SETTINGS, []);
                open.client
                    .send(control, &[&[CONTROL], &settings[..]].concat());
            }
            self.ask(index);
        }
        self.read(index, now_us)?;
        let open = &mut self.connections[index];
        let is_idle = !open.over && open.has_begun && open.requests.is_empty();
        if is_idle && open.unsent.is_empty() {
            self.close(index, now_us, NO_ERROR);
        } else if is_idle {
            self.ask(index);
        }
        let open = &mut self.connections[index];
        if let Some(why) = open.client.lost.as_ref().filter(|_| !open.over) {
            let why = why.clone();
            if self.tries_again && !open.client.is_connected {
                open.over = true;
                self.begun -= 1;
                self.begins_us = Some(now_us + BETWEEN_US);
                return Ok(());
            }
            self.connections_lost += 1;
            return violation(format!("ended by {why}: {}", self.describe()));
        }
        self.transmit(index, now_us, frames);
        Ok(())
    }

    /// Sends the next request, or all requests if it pipelines.
    fn ask(&mut self, index: usize) {
        let open = &mut self.connections[index];
        while let Some(number) = open.unsent.pop() {
            let expected = Expected::of(&self.versions, number);
            let (path, accept) = expected.request(number);
            let mut fields = vec![
                (":method", "GET"),
                (":scheme", "https"),
                (":authority", "sim.example"),
                (":path", &path),
            ];
            fields.extend(accept.map(|it| ("accept", it)));
            fields.extend(self.random.pick(&PRIORITIES).map(|it| ("priority", it)));
            let request = http3::headers(&fields);
            let Some(stream) = open.client.request(&request) else {
                // A new stream has to wait until another one ends.
                open.unsent.push(number);
                return;
            };
            open.requests.push(Request {
                number,
                stream,
                asked: self.versions.ask(number),
                response: Http3Response::new(expected),
                received: 0,
            });
            if !self.plan.pipelines {
                return;
            }
        }
    }

    /// Reads as many bytes as its manner allows now.
    fn read(&mut self, index: usize, now_us: u64) -> Check {
        let open = &mut self.connections[index];
        if open.over || open.reads_at_us.is_some() {
            return Ok(());
        }
        let mut room = usize::MAX;
        if let Manner::Slow { bytes, .. } = self.plan.manner {
            room = bytes;
        }
        let mut at = 0;
        while at < open.requests.len() && room > 0 {
            let request = &mut open.requests[at];
            match open.client.receive_some(request.stream, room) {
                Received::Bytes(bytes) => {
                    room -= bytes.len();
                    let len = bytes.len() as u64;
                    request.received += len;
                    open.received += len;
                    open.since_update += len;
                    self.bytes_received += len;
                    request.response.take(&self.versions, &bytes)?;
                    let stops = self.quic.stops_after_bytes;
                    if stops.is_some_and(|after| request.received >= after) {
                        open.client.stop(request.stream, CANCELLED);
                        open.requests.remove(at);
                        open.completed += 1;
                    }
                }
                Received::Blocked => at += 1,
                Received::Finished => {
                    let request = open.requests.remove(at);
                    request.response.finish(&self.versions)?;
                    open.completed += 1;
                }
                Received::Reset(code) => {
                    let request = open.requests.remove(at);
                    ensure(request.may_break(&self.versions), || {
                        format!("{request:?} was reset with {code:#x}")
                    })?;
                    open.completed += 1;
                }
            }
            match self.plan.manner {
                Manner::Pauses {
                    after_bytes,
                    for_us,
                } if open.received >= after_bytes && !open.paused => {
                    open.paused = true;
                    open.reads_at_us = Some(now_us + for_us);
                    break;
                }
                Manner::Resets { after_bytes } if open.received >= after_bytes => {
                    self.close(index, now_us, CANCELLED);
                    return Ok(());
                }
                Manner::Vanishes { after_bytes } if open.received >= after_bytes => {
                    self.vanished = true;
                    return Ok(());
                }
                _ => {}
            }
        }
        if let Manner::Slow { every_us, .. } = self.plan.manner
            && room == 0
        {
            open.reads_at_us = Some(now_us + every_us);
        }
        let is_due = |every_bytes| open.since_update >= every_bytes;
        if self.quic.updates_every_bytes.is_some_and(is_due) {
            open.since_update = 0;
            open.client.update_keys();
        }
        let is_due = |after_bytes| open.received >= after_bytes && open.client.is_confirmed();
        if self.quic.moves_after_bytes.is_some_and(is_due) && !open.has_moved {
            open.has_moved = true;
            self.change_path(index);
        }
        Ok(())
    }

    /// Migrates to another port, or to the address that the server prefers.
    fn change_path(&mut self, index: usize) {
        let moves_over = self.quic.moves_over;
        let local = match moves_over {
            true => self.connections[index].client.local,
            false => self.next_local(),
        };
        let server = self.server(moves_over);
        let open = &mut self.connections[index];
        open.server = server;
        open.client.move_to(local);
    }

    /// Closes a connection and schedules the next one.
    fn close(&mut self, index: usize, now_us: u64, code: u32) {
        let open = &mut self.connections[index];
        open.over = true;
        if self.quic.says_close {
            open.client.close(now_us, code);
        }
        if self.begun < self.plan.connections.len() {
            self.begins_us = Some(now_us + BETWEEN_US);
        } else {
            self.finished_us = Some(now_us);
        }
    }

    fn transmit(&mut self, index: usize, now_us: u64, frames: &mut Vec<Vec<u8>>) {
        let open = &mut self.connections[index];
        if open.over && !self.quic.says_close {
            return;
        }
        while let Some(payload) = open.client.poll_datagram(now_us) {
            let header = DatagramHeader {
                source_mac: ROUTER_MAC,
                destination_mac: addresses::MAC,
                source: open.client.local,
                destination: open.server,
                ecn: ip::Ecn::NotEct,
            };
            frames.extend(header.to_frame(&payload));
        }
    }

    /// Drops drained connections and computes the next timer.
    fn look_ahead(&mut self) {
        let says_close = self.quic.says_close;
        self.connections
            .retain(|open| !open.over || (says_close && !open.client.is_drained()));
        let timers = self.connections.iter_mut().flat_map(|open| {
            let reads_at_us = open.reads_at_us.filter(|_| !open.over);
            [open.client.next_timeout_us(), reads_at_us]
        });
        self.next_us = timers.flatten().chain(self.begins_us).min();
    }
}

impl std::fmt::Debug for Open {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Open")
            .field("local", &self.client.local)
            .field("requests", &self.requests)
            .finish_non_exhaustive()
    }
}
