//! A client: our own TCP on the other side, asking for files and comparing every byte.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tcp::{CloseReason, Connection, ConnectionEvent, Instant, Limits, Piece};
use wire::frame::{Received, TcpTemplate, parse};
use wire::tcp::Segment;

use crate::addresses;
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
    /// When it begins, or begins its next connection.
    begins_us: Option<u64>,
    begun: usize,
    /// Handshakes, counting those that came to nothing.
    attempts: u16,
    /// A reset instead of the first byte is a reason to try again.
    tries_again: bool,
    /// What it wants of TLS, if it speaks it.
    wanted: Option<ClientTlsConfig>,
    /// A connection that speaks TLS may be reset with a NIC process.
    loses_tags: bool,
    /// The last one is the one in use; those before are about to be forgotten.
    connections: Vec<Open>,
    /// What has arrived and may be merged with what follows.
    merged: Option<Merged>,
    pub(crate) vanished: bool,
    pub(crate) bytes_received: u64,
    /// Connections that have ended before they should have.
    pub(crate) connections_lost: u64,
    /// Connections that may have ended with a NIC process, of which not all was heard.
    pub(crate) connections_unproven: u64,
    pub(crate) finished_us: Option<u64>,
}

#[derive(Debug)]
struct Open {
    tcp: Connection,
    tls: Option<Box<ClientTls>>,
    port: u16,
    /// Requests not sent yet, the next one last.
    requests: Vec<usize>,
    responses: Responses,
    /// Something on it may break it.
    broken: bool,
    asked: Vec<RequestTime>,
    received: u64,
    reads_at_us: Option<u64>,
    paused: bool,
    shut_down: bool,
    over: bool,
    heard_us: u64,
}

/// Who is never told of a failure, because the reset was lost, notices it after so much silence.
const SILENCE_US_MAX: u64 = 30_000_000;

/// The same where a failure is rare, and silence mostly has other reasons.
const LONG_SILENCE_US_MAX: u64 = 150_000_000;

impl Open {
    /// Sends this, as soon as it can.
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

    /// Sends nothing more, once all is sent.
    fn shut_down(&mut self) -> Check {
        self.shut_down = true;
        match &mut self.tls {
            None => self.tcp.shutdown(),
            Some(tls) => tls.close()?,
        }
        self.speak();
        Ok(())
    }

    /// Hands to TCP what TLS has to say.
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

    /// Bytes of the stream have arrived.
    fn take(&mut self, bytes: &[u8]) -> Check {
        let Some(tls) = &mut self.tls else {
            return self.responses.take(bytes);
        };
        let mut plaintext = Vec::new();
        tls.take(bytes, &mut plaintext)?;
        self.responses.take(&plaintext)?;
        let is_cut = tls.is_closed() && self.responses.are_amid_one();
        self.speak();
        ensure(!is_cut, || {
            "close_notify amid a response: a part looks like all of it".to_owned()
        })
    }

    /// It may be aborted: for a file that cannot be read, or not any more.
    fn may_break(&self, versions: &FileVersions) -> bool {
        let mut asked = self.asked.iter();
        self.broken || asked.any(|&asked| versions.may_be_out_of_reach(asked))
    }

    /// When a connection that may be broken has been silent for too long.
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

/// The address of the client of this number.
pub(crate) fn address_of(number: usize, plan: &ClientPlan) -> IpAddr {
    let (network, last) = ((number / HOSTS) as u8, (number % HOSTS) as u8 + 1);
    match (plan.ipv6, plan.on_link) {
        (false, true) => Ipv4Addr::new(10, 77, 0, 100 + last).into(),
        (false, false) => Ipv4Addr::new(10, 88, network, last).into(),
        (true, true) => Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 1, last.into()).into(),
        (true, false) => Ipv6Addr::new(0xfd88, 0, 0, 0, 0, 0, 0, last.into()).into(),
    }
}

/// So often a client tries in all.
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
            // Who has half-closed waits for its responses, however long a crowded path takes.
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
            wanted: plan.tls.map(|tls| ClientTlsConfig::new(tls.suite)),
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

    /// The number of the client behind the router that has an address.
    pub(crate) fn number_at(address: Ipv4Addr) -> usize {
        let [_, _, network, last] = address.octets().map(usize::from);
        (network * HOSTS + last).saturating_sub(1)
    }

    /// When it wants to do something on its own, in microseconds.
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

    /// It has got all it wanted, or has gone.
    pub(crate) fn is_finished(&self) -> bool {
        self.vanished || self.finished_us.is_some()
    }

    /// Nothing is left of its connections either.
    pub(crate) fn is_gone(&self) -> bool {
        self.vanished || (self.is_finished() && self.connections.is_empty())
    }

    /// Where it stands, for people.
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

    /// Time has passed.
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

    /// A frame has arrived.
    pub(crate) fn on_frame(
        &mut self,
        now_us: u64,
        bytes: &[u8],
        frames: &mut Vec<Vec<u8>>,
    ) -> Check {
        // What is damaged is thrown away; ICMP does not concern clients.
        let Ok(Received::Tcp(packet)) = parse(bytes, false) else {
            return Ok(());
        };
        if self.vanished || packet.destination != self.address {
            return Ok(());
        }
        self.merge(now_us, &packet.segment, frames)
    }

    /// Hands up what cannot be merged any more, and keeps what can.
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

    /// A segment has reached TCP.
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
        self.connections.push(Open {
            tls,
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

    /// Takes the bytes that its manner takes now.
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
            open.take(&buffer[..count])?;
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

    /// Lets a connection say and send what there is.
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

    /// Sends the next request, or all of them, or FIN after the last one.
    fn ask(&mut self, index: usize) -> Check {
        let open = &mut self.connections[index];
        while let Some(number) = open.requests.pop() {
            open.asked.push(self.versions.ask(number));
            let expected = Expected::of(&self.versions, number);
            open.broken |= !expected.is_sound();
            open.responses.expect(expected);
            let last = open.requests.is_empty();
            let close = if last && self.plan.parting == Parting::ServerFirst {
                "Connection: close\r\n"
            } else {
                ""
            };
            let (path, accept) = expected.request(number);
            let accept = accept.map_or(String::new(), |it| format!("Accept: {it}\r\n"));
            let request = format!("GET {path} HTTP/1.1\r\nHost: sim\r\n{accept}{close}\r\n");
            open.write(request.as_bytes())?;
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
        // What had arrived before the end can still be read.
        let mut buffer = [0; 4096];
        loop {
            let count = open.tcp.read(&mut buffer);
            if count == 0 {
                break;
            }
            open.received += count as u64;
            self.bytes_received += count as u64;
            open.take(&buffer[..count])?;
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
    /// To whom it speaks.
    fn server_port(&self) -> u16 {
        match self.tls {
            None => addresses::PORT,
            Some(tls) if tls.wears => addresses::WEARING_PORT,
            Some(_) => addresses::TLS_PORT,
        }
    }
}

/// What a client's end has come to, for reports.
impl Client {
    /// Checks that a client which stays has come to its end.
    pub(crate) fn check_finished(&self) -> Result<(), Violation> {
        if self.is_finished() || !self.plan.manner.stays() {
            Ok(())
        } else {
            violation(format!("stuck: {}", self.describe()))
        }
    }
}
