//! A client: our own TCP on the other side, asking for files and comparing every byte.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tcp::{CloseReason, Connection, ConnectionEvent, Instant, Limits, Piece};
use wire::frame::{Received, TcpTemplate, parse};
use wire::tcp::Segment;

use crate::addresses;
use crate::client_http2::{ClientHttp2, Part};
use crate::client_tls::ClientTls;
use crate::file_versions::{FileVersions, RequestTime};
use crate::gro::Merged;
use crate::random::Random;
use crate::responses::{Expected, Responses};
use crate::router::ROUTER_MAC;
use crate::scenario::{ClientPlan, Manner, Parting};
use crate::site::ClientTlsConfig;
use crate::violation::{Check, Violation, ensure, violation};

/// A client.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) plan: ClientPlan,
    pub(crate) address: IpAddr,
    number: usize,
    versions: FileVersions,
    random: Random,
    config: tcp::Config,
    /// Time at which it opens its first or next connection.
    begins_us: Option<u64>,
    begun: usize,
    /// Handshakes, including failed ones.
    attempts: u16,
    /// Retries after a reset that comes before the first byte.
    tries_again: bool,
    /// TLS configuration, if it speaks TLS.
    wanted: Option<ClientTlsConfig>,
    /// A TLS connection may be reset because a NIC process died.
    loses_tags: bool,
    /// Connections; the last one is in use, the others are about to be dropped.
    connections: Vec<Open>,
    /// Received segment that may be merged with those that follow.
    merged: Option<Merged>,
    pub(crate) vanished: bool,
    pub(crate) bytes_received: u64,
    /// Connections that ended early.
    pub(crate) connections_lost: u64,
    /// Connections that ended early where tags may be lost with a NIC process.
    pub(crate) connections_unproven: u64,
    pub(crate) finished_us: Option<u64>,
}

#[derive(Debug)]
struct Open {
    tcp: Connection,
    tls: Option<Box<ClientTls>>,
    http2: Option<Box<ClientHttp2>>,
    port: u16,
    /// Requests not sent yet, the next one last.
    requests: Vec<usize>,
    responses: Responses,
    /// A request or response on it may make the server abort it.
    broken: bool,
    asked: Vec<RequestTime>,
    received: u64,
    reads_at_us: Option<u64>,
    paused: bool,
    shut_down: bool,
    over: bool,
    heard_us: u64,
}

/// Silence after which a client gives up if the reset that reports a failure may be lost, in µs.
const SILENCE_US_MAX: u64 = 30_000_000;

/// The same where a failure is rare and silence mostly has other reasons, in µs.
const LONG_SILENCE_US_MAX: u64 = 150_000_000;

impl Open {
    /// Queues bytes for sending.
    fn write(&mut self, bytes: &[u8]) -> Check {
        match &mut self.tls {
            None => {
                self.tcp.write(bytes);
            }
            Some(tls) => tls.write(bytes)?,
        }
        self.speak();
        Ok(())
    }

    /// Closes the sending direction once all queued bytes are sent.
    fn shut_down(&mut self) -> Check {
        self.shut_down = true;
        match &mut self.tls {
            None => self.tcp.shutdown(),
            Some(tls) => tls.close()?,
        }
        self.speak();
        Ok(())
    }

    /// Hands outgoing TLS records to TCP.
    fn speak(&mut self) {
        if let Some(tls) = &mut self.tls {
            let bytes = tls.take_outgoing();
            let taken = self.tcp.write(&bytes);
            // A connection that was aborted takes nothing.
            debug_assert!(taken == bytes.len() || taken == 0, "so little always fits");
            if tls.has_closed() {
                self.tcp.shutdown();
            }
        }
    }

    /// Takes received bytes of the stream.
    fn take(&mut self, bytes: &[u8], versions: &FileVersions) -> Check {
        let Some(tls) = &mut self.tls else {
            return self.responses.take(bytes);
        };
        let mut plaintext = Vec::new();
        tls.take(bytes, &mut plaintext)?;
        self.take_plaintext(&plaintext, versions)?;
        let Some(tls) = &mut self.tls else {
            return Ok(());
        };
        let is_cut = tls.is_closed() && self.responses.are_amid_one();
        self.speak();
        ensure(!is_cut, || {
            "close_notify amid a response: a part looks like all of it".to_owned()
        })
    }

    /// Takes received bytes of HTTP.
    fn take_plaintext(&mut self, plaintext: &[u8], versions: &FileVersions) -> Check {
        let Some(http2) = &mut self.http2 else {
            return self.responses.take(plaintext);
        };
        let parts = http2.take(plaintext)?;
        let frames = http2.take_outgoing();
        for part in parts {
            match part {
                Part::Bytes(bytes) => self.responses.take(&bytes)?,
                Part::Reset => {
                    ensure(self.may_break(versions), || "a stream is reset".to_owned())?;
                    self.responses.cut_short();
                }
            }
        }
        match frames.is_empty() || self.shut_down {
            true => Ok(()),
            false => self.write(&frames),
        }
    }

    /// Sends a request.
    fn ask(&mut self, path: &str, accept: Option<&str>, is_last_of_server: bool) -> Check {
        if let Some(http2) = &mut self.http2 {
            http2.get(path, accept, is_last_of_server);
            let frames = http2.take_outgoing();
            return self.write(&frames);
        }
        let close = match is_last_of_server {
            true => "Connection: close\r\n",
            false => "",
        };
        let accept = accept.map_or(String::new(), |it| format!("Accept: {it}\r\n"));
        let request = format!("GET {path} HTTP/1.1\r\nHost: sim\r\n{accept}{close}\r\n");
        self.write(request.as_bytes())
    }

    /// Reports whether the server may abort: a requested file cannot be read, or no longer can.
    fn may_break(&self, versions: &FileVersions) -> bool {
        let mut asked = self.asked.iter();
        self.broken || asked.any(|&asked| versions.may_be_out_of_reach(asked))
    }

    /// Returns when a connection that may break has been silent for too long.
    fn gives_up_us(&self, versions: &FileVersions, loses_tags: bool) -> Option<u64> {
        let silence_us_max = if self.may_break(versions) {
            Some(SILENCE_US_MAX)
        } else {
            loses_tags.then_some(LONG_SILENCE_US_MAX)
        };
        let silence_us_max = silence_us_max.filter(|_| !self.over)?;
        Some(self.heard_us + silence_us_max)
    }
}

/// Returns the address of the client of this number.
pub(crate) fn address_of(number: usize, plan: &ClientPlan) -> IpAddr {
    let (network, last) = ((number / HOSTS) as u8, (number % HOSTS) as u8 + 1);
    match (plan.ipv6, plan.on_link) {
        (false, true) => Ipv4Addr::new(10, 77, 0, 100 + last).into(),
        (false, false) => Ipv4Addr::new(10, 88, network, last).into(),
        (true, true) => Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 1, last.into()).into(),
        (true, false) => Ipv6Addr::new(0xfd88, 0, 0, 0, 0, 0, 0, last.into()).into(),
    }
}

/// Handshakes that a client tries in all.
const ATTEMPTS_MAX: u16 = 20;

/// Clients of one network behind the router.
pub(crate) const HOSTS: usize = 250;

/// Time from a connection's end to the next one's beginning.
pub(crate) const BETWEEN_US: u64 = 1_000;

impl Client {
    pub(crate) fn new(
        number: usize,
        plan: ClientPlan,
        versions: FileVersions,
        begins_us: u64,
        tries_again: bool,
        loses_tags: bool,
        random: Random,
    ) -> Client {
        let address = address_of(number, &plan);
        let headers = if plan.ipv6 { 60 } else { 40 };
        let config = tcp::Config {
            mss: (plan.mtu - headers) as u16,
            peer_mss_default: if plan.ipv6 { 1220 } else { 536 },
            receive_buffer_bytes: plan.receive_buffer_bytes,
            timestamps: plan.timestamps,
            ecn: plan.ecn,
            ipv6: plan.ipv6,
            window_scaling: plan.window_scaling,
            time_wait: Duration::from_micros(plan.time_wait_us),
            // A client that has half-closed waits for its responses, however long a crowded path
            // takes.
            fin_wait_2: None,
            ..tcp::Config::default()
        };
        Client {
            address,
            number,
            versions,
            random,
            config,
            begins_us: Some(begins_us + plan.begins_us),
            begun: 0,
            attempts: 0,
            tries_again,
            wanted: plan
                .tls
                .map(|tls| ClientTlsConfig::new(tls.suite, tls.protocol())),
            loses_tags: loses_tags && plan.tls.is_some(),
            connections: Vec::new(),
            merged: None,
            vanished: false,
            bytes_received: 0,
            connections_lost: 0,
            connections_unproven: 0,
            finished_us: None,
            plan,
        }
    }

    /// Returns the number of the client behind the router that has this address.
    pub(crate) fn number_at(address: Ipv4Addr) -> usize {
        let [_, _, network, last] = address.octets().map(usize::from);
        (network * HOSTS + last).saturating_sub(1)
    }

    /// Returns the time of its next timer, in microseconds.
    pub(crate) fn next_us(&self) -> Option<u64> {
        if self.vanished {
            return None;
        }
        let timers = self.connections.iter().flat_map(|open| {
            let timeout_us = open.tcp.next_timeout().map(Instant::as_us);
            let reads_at_us = open.reads_at_us.filter(|_| !open.over);
            let gives_up_us = open.gives_up_us(&self.versions, self.loses_tags);
            [timeout_us, reads_at_us, gives_up_us]
        });
        let merges_us = self.merged.as_ref().map(|merged| merged.until_us);
        let timers = timers.flatten().chain(self.begins_us);
        timers.chain(merges_us).min()
    }

    /// Reports whether all responses have arrived, or the client has vanished.
    pub(crate) fn is_finished(&self) -> bool {
        self.vanished || self.finished_us.is_some()
    }

    /// Reports whether the client is finished and its connections are closed.
    pub(crate) fn is_gone(&self) -> bool {
        self.vanished || (self.is_finished() && self.connections.is_empty())
    }

    /// Describes the client's progress, for people.
    pub(crate) fn describe(&self) -> String {
        let open: Vec<String> = self
            .connections
            .iter()
            .map(|open| {
                format!(
                    "port {} {:?}, {} responses, {} bytes, {} in flight, timeout at {:?}",
                    open.port,
                    open.tcp.state(),
                    open.responses.completed,
                    open.received,
                    open.tcp.flight_bytes(),
                    open.tcp.next_timeout(),
                )
            })
            .collect();
        format!(
            "client {} at {}: connection {} of {}; {}",
            self.number,
            self.address,
            self.begun,
            self.plan.connections.len(),
            open.join("; ")
        )
    }

    /// Runs the timers that are due.
    pub(crate) fn on_time(&mut self, now_us: u64, frames: &mut Vec<Vec<u8>>) -> Check {
        if self.vanished {
            return Ok(());
        }
        let is_due = |merged: &mut Merged| merged.until_us <= now_us;
        if let Some(merged) = self.merged.take_if(is_due) {
            self.on_segment(now_us, &merged.segment(), frames)?;
        }
        if self.begins_us.is_some_and(|at_us| at_us <= now_us) {
            self.begins_us = None;
            self.begin(now_us)?;
        }
        let now = Instant::from_us(now_us);
        for index in 0..self.connections.len() {
            let open = &mut self.connections[index];
            if open.tcp.next_timeout().is_some_and(|at| at <= now) {
                open.tcp.on_timeout(now);
            }
            if open
                .gives_up_us(&self.versions, self.loses_tags)
                .is_some_and(|at_us| at_us <= now_us)
            {
                open.tcp.abort();
            }
            if open.reads_at_us.is_some_and(|at_us| at_us <= now_us) {
                open.reads_at_us = None;
                self.read(index, now_us)?;
            }
            self.settle(index, now_us, frames)?;
        }
        self.forget_closed();
        Ok(())
    }

    /// Takes a received frame.
    pub(crate) fn on_frame(
        &mut self,
        now_us: u64,
        bytes: &[u8],
        frames: &mut Vec<Vec<u8>>,
    ) -> Check {
        // Damaged frames are dropped; clients ignore ICMP.
        let Ok(Received::Tcp(packet)) = parse(bytes, false) else {
            return Ok(());
        };
        if self.vanished || packet.destination != self.address {
            return Ok(());
        }
        self.merge(now_us, &packet.segment, frames)
    }

    /// Merges a segment with those before it, and hands up segments that are complete.
    fn merge(&mut self, now_us: u64, segment: &Segment<'_>, frames: &mut Vec<Vec<u8>>) -> Check {
        let Some(merges_us) = self.plan.merges_us else {
            return self.on_segment(now_us, segment, frames);
        };
        let added = self
            .merged
            .as_mut()
            .is_some_and(|merged| merged.add(segment));
        let is_over = |merged: &mut Merged| !added || merged.is_complete();
        if let Some(merged) = self.merged.take_if(is_over) {
            self.on_segment(now_us, &merged.segment(), frames)?;
        }
        if added {
            return Ok(());
        }
        self.merged = Merged::begin(segment, now_us + merges_us);
        match self.merged {
            Some(_) => Ok(()),
            None => self.on_segment(now_us, segment, frames),
        }
    }

    /// Hands a segment to TCP.
    fn on_segment(
        &mut self,
        now_us: u64,
        segment: &Segment<'_>,
        frames: &mut Vec<Vec<u8>>,
    ) -> Check {
        let header = &segment.header;
        let found = self
            .connections
            .iter()
            .position(|open| open.port == header.destination_port);
        let Some(index) = found else {
            if let Some(reset) = tcp::reset_for(segment) {
                let template = self.template(header.destination_port);
                frames.push(template.to_frame(&reset, &[]));
            }
            return Ok(());
        };
        let now = Instant::from_us(now_us);
        self.connections[index].heard_us = now_us;
        self.connections[index].tcp.on_segment(now, segment);
        self.read(index, now_us)?;
        self.settle(index, now_us, frames)?;
        self.forget_closed();
        Ok(())
    }

    fn begin(&mut self, now_us: u64) -> Check {
        let mut requests = self.plan.connections[self.begun].clone();
        requests.reverse();
        let port = 40_000 + 32 * (self.number % HOSTS) as u16 + self.attempts;
        self.attempts += 1;
        self.begun += 1;
        let [isn, ts_offset] = [self.random.next() as u32, self.random.next() as u32];
        let tls = match (&self.wanted, self.plan.tls) {
            (Some(wanted), Some(plan)) => Some(Box::new(ClientTls::new(plan, wanted, now_us)?)),
            _ => None,
        };
        let http2 = self.plan.tls.and_then(|tls| tls.http2);
        let http2 = http2.map(|window_bytes| match self.plan.parting {
            // It can open no window after it has closed its direction.
            Parting::HalfClose => 1 << 30,
            _ => window_bytes,
        });
        self.connections.push(Open {
            tls,
            http2: http2.map(|window_bytes| Box::new(ClientHttp2::new(window_bytes))),
            tcp: Connection::connect(
                &self.config,
                port,
                self.plan.server_port(),
                isn,
                ts_offset,
                Instant::from_us(now_us),
            ),
            port,
            requests,
            responses: Responses::new(self.versions.clone()),
            broken: false,
            asked: Vec::new(),
            received: 0,
            reads_at_us: None,
            paused: false,
            shut_down: false,
            over: false,
            heard_us: now_us,
        });
        Ok(())
    }

    /// Reads as many bytes as its manner allows now.
    fn read(&mut self, index: usize, now_us: u64) -> Check {
        let open = &mut self.connections[index];
        if open.reads_at_us.is_some() {
            return Ok(());
        }
        let mut room = usize::MAX;
        if let Manner::Slow { bytes, every_us } = self.plan.manner {
            room = bytes;
            if open.tcp.unread_bytes() > 0 {
                open.reads_at_us = Some(now_us + every_us);
            }
        }
        let mut buffer = [0; 4096];
        while room > 0 {
            let len = room.min(buffer.len());
            let count = open.tcp.read(&mut buffer[..len]);
            if count == 0 {
                break;
            }
            room -= count;
            open.received += count as u64;
            self.bytes_received += count as u64;
            open.take(&buffer[..count], &self.versions)?;
            match self.plan.manner {
                Manner::Pauses {
                    after_bytes,
                    for_us,
                } if open.received >= after_bytes && !open.paused => {
                    open.paused = true;
                    open.reads_at_us = Some(now_us + for_us);
                    break;
                }
                Manner::Resets { after_bytes } if open.received >= after_bytes => open.tcp.abort(),
                Manner::Vanishes { after_bytes } if open.received >= after_bytes => {
                    self.vanished = true;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Handles a connection's events and transmits its segments.
    fn settle(&mut self, index: usize, now_us: u64, frames: &mut Vec<Vec<u8>>) -> Check {
        while let Some(event) = self.connections[index].tcp.poll_event() {
            match event {
                ConnectionEvent::Connected => self.ask(index)?,
                ConnectionEvent::PeerFinished => self.connections[index].shut_down()?,
                ConnectionEvent::Closed { reason } => self.on_closed(index, now_us, reason)?,
                _ => {}
            }
        }
        let open = &self.connections[index];
        if !open.over && open.responses.are_complete() && open.responses.completed > 0 {
            self.ask(index)?;
        }
        self.transmit(index, now_us, frames);
        Ok(())
    }

    /// Sends the next request, or all requests if it pipelines, or FIN after the last one.
    fn ask(&mut self, index: usize) -> Check {
        let open = &mut self.connections[index];
        while let Some(number) = open.requests.pop() {
            open.asked.push(self.versions.ask(number));
            let expected = Expected::of(&self.versions, number);
            open.broken |= !expected.is_sound();
            open.responses.expect(expected);
            let last = open.requests.is_empty();
            let (path, accept) = expected.request(number);
            let is_last_of_server = last && self.plan.parting == Parting::ServerFirst;
            open.ask(&path, accept, is_last_of_server)?;
            if last && self.plan.parting == Parting::HalfClose && !open.shut_down {
                open.shut_down()?;
            }
            if !self.plan.pipelines {
                return Ok(());
            }
        }
        let done = open.responses.are_complete() && open.requests.is_empty();
        if done && self.plan.parting == Parting::ClientFirst && !open.shut_down {
            open.shut_down()?;
        }
        Ok(())
    }

    fn on_closed(&mut self, index: usize, now_us: u64, reason: CloseReason) -> Check {
        let open = &mut self.connections[index];
        open.over = true;
        // Bytes that arrived before the end can still be read.
        let mut buffer = [0; 4096];
        loop {
            let count = open.tcp.read(&mut buffer);
            if count == 0 {
                break;
            }
            open.received += count as u64;
            self.bytes_received += count as u64;
            open.take(&buffer[..count], &self.versions)?;
        }
        let complete = open.responses.are_complete() && open.requests.is_empty();
        let in_order = reason == CloseReason::Finished && complete;
        let is_early = reason == CloseReason::Reset && open.received == 0;
        if is_early && self.tries_again && self.attempts < ATTEMPTS_MAX {
            self.begun -= 1;
        } else if in_order {
            let says_so = open.tls.as_ref().is_none_or(|tls| tls.is_closed());
            ensure(says_so, || {
                format!("FIN without close_notify: {}", self.describe())
            })?;
        } else if self.loses_tags && !open.may_break(&self.versions) && self.plan.manner.stays() {
            self.connections_unproven += 1;
        } else if !open.may_break(&self.versions) && self.plan.manner.stays() {
            self.connections_lost += 1;
            return violation(format!("ended by {reason:?}: {}", self.describe()));
        }
        if self.begun < self.plan.connections.len() {
            self.begins_us = Some(now_us + BETWEEN_US)
        } else {
            self.finished_us = Some(now_us)
        }
        Ok(())
    }

    fn transmit(&mut self, index: usize, now_us: u64, frames: &mut Vec<Vec<u8>>) {
        let now = Instant::from_us(now_us);
        let mut template = self.template(self.connections[index].port);
        let open = &mut self.connections[index];
        let limits = Limits {
            bytes_max: open.tcp.mss().into(),
            pieces_max: 1,
            real_bytes_max: open.tcp.mss().into(),
            direct_bytes_max: 0,
        };
        while let Some(transmit) = open.tcp.poll_transmit(now, &limits) {
            let pieces = open.tcp.pieces(transmit.range.clone());
            let payload: Vec<u8> = pieces
                .flat_map(|piece| match piece {
                    Piece::Real(bytes) => bytes,
                    Piece::Virtual { .. } => &[],
                })
                .copied()
                .collect();
            template.traffic_class = transmit.ecn.mark(0);
            frames.push(template.to_frame(&transmit.header, &payload));
            if let Some(transmission) = transmit.transmission {
                open.tcp.on_departed(transmission, now);
            }
        }
    }

    fn template(&self, port: u16) -> TcpTemplate {
        let server = addresses::address(self.address.is_ipv6());
        TcpTemplate::new(
            ROUTER_MAC,
            addresses::MAC,
            SocketAddr::new(self.address, port),
            SocketAddr::new(server, self.plan.server_port()),
        )
    }

    fn forget_closed(&mut self) {
        self.connections.retain(|open| !open.tcp.is_closed());
    }
}

impl ClientPlan {
    /// Returns the server's port that it connects to.
    fn server_port(&self) -> u16 {
        match self.tls {
            None => addresses::PORT,
            Some(tls) if tls.wears => addresses::WEARING_PORT,
            Some(_) => addresses::TLS_PORT,
        }
    }
}

/// Checks and reports at the end of a run.
impl Client {
    /// Checks that a client which stays has finished.
    pub(crate) fn check_finished(&self) -> Result<(), Violation> {
        if self.is_finished() || !self.plan.manner.stays() {
            Ok(())
        } else {
            violation(format!("stuck: {}", self.describe()))
        }
    }
}
