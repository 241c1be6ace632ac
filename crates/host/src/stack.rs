//! The host stack of one shard, without its port, its clock and its sleep.
//!
//! A [`Stack`] is fed with frames ([`Stack::on_frame`]), with what the NIC stack says
//! ([`Stack::on_channels`]) and with time ([`Stack::on_time`]). None of these sends anything: they mark
//! connections as dirty. [`Stack::serve`] then tells the application what has happened and hands out
//! what each dirty connection wants to send, so that a burst of ACKs for one connection costs one pass.
//!
//! What leaves goes one of two ways. A packet without file bytes is built here and sent through the
//! port. Anything with file bytes becomes a SEND, and so does whatever follows it in the stream until
//! its departure has been reported: else the later bytes would overtake the earlier ones.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use contract::channel::{HostChannel, ReceiveError};
use contract::{Command, Event, FileId, FlowId, RejectReason, Segment, SendId};
use port::{Frame, Offload, Port, SendError, Superpacket};
use tcp::{ConnectionEvent, Instant, Piece};
use wire::frame::{self, Received, TcpTemplate};

use crate::app::{AppEvent, Application, CloseReason, StreamId};
use crate::config::StackConfig;
use crate::connections::{
    Connections, KeyedHash, Tuple, index_of_send, send_id, transmission_of_send,
};
use crate::counters::Counters;
use crate::files::{FileTable, MayClose};
use crate::icmp;
use crate::neighbor::{Neighbors, Resolution};
use crate::streams::Streams;
use crate::time_wait::{Answer, TimeWaits};
use crate::timer::{TimerWheel, Token};

/// Bytes that a peer may acknowledge before ACKD tells the NIC stack; the paper's 32 KB (IO-TCP §3.5).
const ACKD_BYTES: u64 = 32 << 10;

/// A SEND has about so many bytes, at most. More would save commands, departures and rounds, and let one flow
/// hold up the decisions about itself: what is in a SEND has been decided.
const SEND_BYTES: usize = 256 << 10;

/// The link that packets leave through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Own hardware address.
    pub mac: [u8; 6],
    /// Largest IP packet on the wire, in bytes.
    pub mtu: usize,
    /// Largest IPv4 packet that is cut below, in bytes.
    pub ipv4_superpacket_max: usize,
    /// Largest IPv6 packet that is cut below, in bytes.
    pub ipv6_superpacket_max: usize,
}

impl Link {
    /// The link of a port.
    pub fn of(port: &impl Port) -> Link {
        Link {
            mac: port.mac(),
            mtu: port.mtu(),
            ipv4_superpacket_max: port.superpacket_max(false),
            ipv6_superpacket_max: port.superpacket_max(true),
        }
    }

    /// What fits into one SEND of a connection with packets of `mss` bytes: whole superpackets of whole
    /// packets.
    fn limits(&self, ipv6: bool, mss: u16) -> tcp::Limits {
        let superpacket_max = match ipv6 {
            true => self.ipv6_superpacket_max,
            false => self.ipv4_superpacket_max,
        };
        let mss = usize::from(mss.max(1));
        let packets = superpacket_max.saturating_sub(HEADERS_BYTES_MAX) / mss;
        let superpacket = packets.max(1) * mss;
        let bytes = superpacket * (SEND_BYTES / superpacket).max(1);
        tcp::Limits {
            bytes_max: bytes.min(contract::limits::SEND_BYTES_MAX),
            pieces_max: contract::limits::SEGMENTS_MAX,
            real_bytes_max: contract::limits::INLINE_BYTES_MAX,
        }
    }
}

/// IPv6 and TCP headers with all options, in bytes.
const HEADERS_BYTES_MAX: usize = 40 + 60;

/// The host stack of one shard.
#[derive(Debug)]
pub struct Stack {
    config: StackConfig,
    tcp_config_v4: tcp::Config,
    tcp_config_v6: tcp::Config,
    link: Link,
    isn: tcp::IsnGenerator,
    pub(crate) neighbors: Neighbors,
    pub(crate) connections: Connections,
    pub(crate) files: FileTable,
    nics: Vec<Nic>,
    time_waits: TimeWaits,
    wheel: TimerWheel,
    /// Connections to serve.
    dirty: VecDeque<usize>,
    /// Connections that wait for a neighbour's address.
    waiting_neighbor: Vec<usize>,
    /// Connections that wait for room in a ring.
    waiting_room: Vec<usize>,
    /// What applications are to be told besides the connections' own events.
    pub(crate) app_events: VecDeque<AppEvent>,
    /// Finished frames that belong to no connection.
    frames: VecDeque<Vec<u8>>,
    due: Vec<Token>,
    /// SENDs issued and not departed, of all connections.
    sends_outstanding: u64,
    sends_departed: u64,
    pub(crate) unix_time: Duration,
    counters: Counters,
}

/// A channel to a NIC worker, and what did not fit into it.
#[derive(Debug)]
struct Nic {
    channel: HostChannel,
    backlog: VecDeque<Deferred>,
}

/// A small command that waits for room. Bounded by the number of files and flows.
#[derive(Debug)]
enum Deferred {
    Open {
        file: FileId,
        path: Box<[u8]>,
    },
    Close {
        file: FileId,
    },
    Acked {
        flow: FlowId,
        stream_offset: u64,
        last: bool,
    },
}

impl Deferred {
    fn command(&self) -> Command<'_> {
        match self {
            Deferred::Open { file, path } => Command::Open { file: *file, path },
            Deferred::Close { file } => Command::Close { file: *file },
            Deferred::Acked {
                flow,
                stream_offset,
                last,
            } => Command::Acked {
                flow: *flow,
                stream_offset: *stream_offset,
                last: *last,
            },
        }
    }
}

impl Nic {
    /// Sends now, or later but in order.
    fn send_or_defer(&mut self, command: Deferred) {
        if !self.backlog.is_empty() || self.channel.send(&command.command()).is_err() {
            self.backlog.push_back(command);
        }
    }

    fn send_backlog(&mut self) {
        while let Some(command) = self.backlog.front() {
            if self.channel.send(&command.command()).is_err() {
                return;
            }
            self.backlog.pop_front();
        }
    }

    /// True if any SEND fits now and would overtake nothing.
    fn has_room(&mut self) -> bool {
        self.backlog.is_empty() && self.channel.has_room()
    }
}

impl Stack {
    /// A stack on a link, served by the NIC workers behind `channels`.
    pub fn new(config: StackConfig, link: Link, channels: Vec<HostChannel>, now_us: u64) -> Stack {
        let mss = |headers: usize| link.mtu.saturating_sub(headers).clamp(64, 65_495) as u16;
        let with_mss = |mss, peer_mss_default| tcp::Config {
            mss,
            peer_mss_default,
            ..config.tcp
        };
        let mut hash_key = config.secret;
        hash_key[0] ^= 0xff;
        Stack {
            // RFC 9293 §3.7.1: the MSS counts neither IP nor TCP options.
            tcp_config_v4: with_mss(mss(40), 536),
            tcp_config_v6: with_mss(mss(60), 1220),
            link,
            isn: tcp::IsnGenerator::new(config.secret),
            neighbors: Neighbors::new(link.mac, &config.addresses, &config.gateways),
            connections: Connections::new(KeyedHash(hash_key)),
            files: FileTable::default(),
            nics: channels
                .into_iter()
                .map(|channel| Nic {
                    channel,
                    backlog: VecDeque::new(),
                })
                .collect(),
            time_waits: TimeWaits::new(KeyedHash(hash_key)),
            wheel: TimerWheel::new(now_us),
            dirty: VecDeque::new(),
            waiting_neighbor: Vec::new(),
            waiting_room: Vec::new(),
            app_events: VecDeque::new(),
            frames: VecDeque::new(),
            due: Vec::new(),
            sends_outstanding: 0,
            sends_departed: 0,
            unix_time: Duration::ZERO,
            counters: Counters::default(),
            config,
        }
    }

    /// Sets the time since the epoch that applications are told.
    pub fn set_unix_time(&mut self, unix_time: Duration) {
        self.unix_time = unix_time;
    }

    /// What was done so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    pub(crate) fn counters_mut(&mut self) -> &mut Counters {
        &mut self.counters
    }

    /// SENDs that the NIC stack has still to carry out.
    pub fn sends_outstanding(&self) -> u64 {
        self.sends_outstanding
    }

    /// SENDs that have departed since the start.
    pub fn sends_departed(&self) -> u64 {
        self.sends_departed
    }

    /// Frames and events taken in since the start.
    pub(crate) fn items(&self) -> u64 {
        self.counters.frames_received + self.counters.events
    }

    /// The channels, for arming wake-ups.
    pub(crate) fn channels(&mut self) -> impl Iterator<Item = &mut HostChannel> {
        self.nics.iter_mut().map(|nic| &mut nic.channel)
    }

    /// Connections in the table, and those in TIME-WAIT.
    pub fn connections(&self) -> usize {
        self.connections.len() + self.time_waits.len()
    }

    /// A frame has arrived.
    pub fn on_frame(&mut self, now_us: u64, frame: Frame<'_>) {
        self.counters.frames_received += 1;
        match frame::parse(frame.bytes, frame.checksum_valid) {
            Ok(Received::Tcp(packet)) => {
                let local =
                    SocketAddr::new(packet.destination, packet.segment.header.destination_port);
                let remote = SocketAddr::new(packet.source, packet.segment.header.source_port);
                self.on_tcp(now_us, Tuple { local, remote }, &packet.segment);
            }
            Ok(Received::Arp(arp)) => {
                if let Some(reply) = self.neighbors.on_arp(now_us, &arp) {
                    self.frames.push_back(reply);
                }
                self.retry_waiting_neighbor();
            }
            Ok(Received::Icmp6(message)) if self.neighbors.takes(&message) => {
                if let Some(reply) = self.neighbors.on_ndisc(now_us, &message) {
                    self.frames.push_back(reply);
                }
                self.retry_waiting_neighbor();
            }
            Ok(other) => {
                let own = |ip: IpAddr| {
                    self.config
                        .addresses
                        .iter()
                        .any(|&(address, _)| address == ip)
                };
                if let Some(reply) = icmp::reply(self.link.mac, &other, own) {
                    self.frames.push_back(reply);
                }
            }
            Err(_) => self.counters.frames_malformed += 1,
        }
    }

    /// Segment arrival, RFC 9293 §3.10.7: the part that comes before any connection.
    fn on_tcp(&mut self, now_us: u64, tuple: Tuple, segment: &wire::tcp::Segment<'_>) {
        if !self
            .config
            .addresses
            .iter()
            .any(|&(address, _)| address == tuple.local.ip())
        {
            return;
        }
        self.counters.segments_received += 1;
        let now = Instant::from_us(now_us);
        if let Some(index) = self.connections.find(&tuple)
            && let Some(entry) = self.connections.get_mut(index)
        {
            entry.tcp.on_segment(now, segment);
            self.mark_dirty(index);
            return;
        }
        match self.time_waits.on_segment(now, &tuple, segment) {
            Answer::Unknown | Answer::Replaced => {}
            Answer::Handled(None) => return,
            Answer::Handled(Some(header)) => return self.send_bare(now_us, tuple, &header),
        }
        if self.is_listening(tuple.local) {
            let header = &segment.header;
            let is_syn = header.flags.contains(wire::tcp::Flags::SYN)
                && !header.flags.contains(wire::tcp::Flags::ACK);
            if is_syn && self.connections.len() >= self.config.connections_max {
                self.counters.connections_refused += 1;
                return;
            }
            let config = match tuple.local {
                SocketAddr::V4(_) => &self.tcp_config_v4,
                SocketAddr::V6(_) => &self.tcp_config_v6,
            };
            let isn = self.isn.isn(tuple.local, tuple.remote, now);
            let ts_offset = self.isn.ts_offset(tuple.local, tuple.remote);
            if let Some(connection) = tcp::Connection::accept(config, segment, isn, ts_offset, now)
            {
                let next_hop = self.neighbors.next_hop(tuple.remote.ip());
                let index = self
                    .connections
                    .insert(connection, tuple, next_hop, self.nics.len());
                self.mark_dirty(index);
                return;
            }
        }
        if let Some(reset) = tcp::reset_for(segment) {
            self.counters.resets_sent += 1;
            self.send_bare(now_us, tuple, &reset);
        }
    }

    fn is_listening(&self, local: SocketAddr) -> bool {
        self.config.listen_ports.contains(&local.port())
    }

    /// Sends a segment without data that belongs to no connection of the table. It is not worth waiting
    /// for a neighbour.
    fn send_bare(&mut self, now_us: u64, tuple: Tuple, header: &wire::tcp::Header) {
        let next_hop = self.neighbors.next_hop(tuple.remote.ip());
        let Resolution::Known(destination_mac) = self.neighbors.resolve(now_us, next_hop) else {
            return;
        };
        let mut buffer = [0; contract::limits::HEADER_BYTES_MAX];
        let template = TcpTemplate::new(self.link.mac, destination_mac, tuple.local, tuple.remote);
        let Some(length) = template.write(header, &mut buffer) else {
            return;
        };
        let frame = &mut buffer[..length];
        if frame::complete_checksum(frame, []).is_ok() {
            self.frames.push_back(frame.to_vec());
        }
    }

    /// Takes in what the NIC workers have reported, at most `budget` events each; returns how many.
    /// An error means that a channel is unusable.
    pub fn on_channels(&mut self, now_us: u64, budget: usize) -> Result<usize, ChannelCorrupt> {
        let mut taken = 0;
        for worker in 0..self.nics.len() {
            for _ in 0..budget {
                match self.nics[worker].channel.receive() {
                    Ok(Some(event)) => self.on_event(now_us, worker, event),
                    Ok(None) => break,
                    Err(ReceiveError::Malformed { .. }) => self.counters.events_invalid += 1,
                    Err(ReceiveError::Corrupt) => return Err(ChannelCorrupt { worker }),
                }
                taken += 1;
            }
        }
        self.counters.events += taken as u64;
        if taken > 0 {
            self.retry_waiting_room();
        }
        Ok(taken)
    }

    fn on_event(&mut self, now_us: u64, worker: usize, event: Event) {
        let valid = match event {
            Event::Departed {
                send,
                flow,
                departed_us,
            } => self.on_departed(now_us, worker, send, flow, departed_us),
            Event::Opened { file, meta } => match self.files.opened(worker, file, meta) {
                Some(Ok((stream, file))) => {
                    self.app_events.push_back(AppEvent::Opened {
                        stream,
                        file,
                        meta: meta.into(),
                    });
                    true
                }
                Some(Err(close)) => {
                    self.close_below(close);
                    true
                }
                None => false,
            },
            Event::OpenFailed { file, errno } => self.on_open_failed(worker, file, errno),
            Event::ReadFailed {
                flow,
                file,
                offset,
                errno,
                ..
            } => {
                self.counters.reads_failed += 1;
                let path = self
                    .files
                    .by_id(file)
                    .map_or_else(Default::default, |file| String::from_utf8_lossy(&file.path));
                tracing::warn!(path = %path, offset, errno, "reading failed: the response is aborted");
                match self.connections.index_of(StreamId(flow.0)) {
                    Some(index) => self.fail(worker, index),
                    // The connection may have ended while the event was on its way.
                    None => true,
                }
            }
            Event::Rejected { reason, id } => self.on_rejected(worker, reason, id),
        };
        if !valid {
            self.counters.events_invalid += 1;
            tracing::debug!(worker, ?event, "an event that makes no sense");
        }
    }

    fn on_departed(
        &mut self,
        now_us: u64,
        worker: usize,
        send: SendId,
        flow: FlowId,
        departed_us: u64,
    ) -> bool {
        let Some(index) = self.connections.index_of(StreamId(flow.0)) else {
            // The connection may have ended while the event was on its way.
            return true;
        };
        let Some(entry) = self.connections.get_mut(index) else {
            return false;
        };
        if entry.worker != worker || index_of_send(send.0) != Some(index) {
            return false;
        }
        if entry.sends_outstanding > 0 {
            entry.sends_outstanding -= 1;
            self.sends_outstanding -= 1;
            self.sends_departed += 1;
        }
        let transmission = transmission_of_send(send, entry.last_transmission);
        // The other side's clock is not trusted with the future.
        entry
            .tcp
            .on_departed(transmission, Instant::from_us(departed_us.min(now_us)));
        self.mark_dirty(index);
        true
    }

    fn on_open_failed(&mut self, worker: usize, file: FileId, errno: u16) -> bool {
        let known = self.files.by_id(file).is_some();
        if let Some((stream, file)) = self.files.open_failed(worker, file) {
            self.app_events.push_back(AppEvent::OpenFailed {
                stream,
                file,
                errno,
            });
        }
        known
    }

    /// The NIC stack did not carry a command out: whatever depends on it fails.
    fn on_rejected(&mut self, worker: usize, reason: RejectReason, id: u64) -> bool {
        tracing::warn!(worker, ?reason, id, "the NIC stack rejected a command");
        if let Some(index) = index_of_send(id) {
            return self.connections.get(index).is_some() && self.fail(worker, index);
        }
        // Not a SEND: if it was an OPEN, it has failed.
        const EINVAL: u16 = 22;
        const EMFILE: u16 = 24;
        let errno = match reason {
            RejectReason::TooManyFiles => EMFILE,
            _ => EINVAL,
        };
        u32::try_from(id).is_ok_and(|id| self.on_open_failed(worker, FileId(id), errno))
    }

    /// Aborts a connection because the data plane could not do its part.
    fn fail(&mut self, worker: usize, index: usize) -> bool {
        let Some(entry) = self.connections.get_mut(index) else {
            return false;
        };
        if entry.worker != worker {
            return false;
        }
        entry.data_plane_failed = true;
        entry.tcp.abort();
        self.mark_dirty(index);
        true
    }

    /// Fires the timers that are due.
    pub fn on_time(&mut self, now_us: u64) {
        let mut due = std::mem::take(&mut self.due);
        self.wheel.advance(now_us, &mut due);
        for token in due.drain(..) {
            // The token is a stream id: a connection that is gone is not found.
            if let Some(index) = self.connections.index_of(StreamId(token)) {
                self.on_wheel(now_us, index);
            }
        }
        self.due = due;
        self.time_waits.expire(Instant::from_us(now_us));
        if self
            .neighbors
            .next_timeout_us()
            .is_some_and(|at| at <= now_us)
        {
            self.neighbors.on_timeout(now_us);
            self.retry_waiting_neighbor();
        }
    }

    fn on_wheel(&mut self, now_us: u64, index: usize) {
        let Some(entry) = self.connections.get_mut(index) else {
            return;
        };
        if entry.wheel_us > now_us {
            // An older place of a timer that has since moved to an earlier one.
            return;
        }
        entry.wheel_us = u64::MAX;
        let now = Instant::from_us(now_us);
        if entry.tcp.next_timeout().is_some_and(|at| at <= now) {
            entry.tcp.on_timeout(now);
        }
        if entry.app_deadline_us.is_some_and(|at| at <= now_us) {
            self.app_events.push_back(AppEvent::Timer {
                stream: entry.stream,
            });
        }
        self.mark_dirty(index);
    }

    /// When [`Stack::on_time`] should next be called, in microseconds.
    pub fn next_timeout_us(&self) -> Option<u64> {
        let time_wait_us = self.time_waits.next_timeout().map(Instant::as_us);
        [
            self.wheel.next_us(),
            self.neighbors.next_timeout_us(),
            time_wait_us,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Tells the application what has happened, and sends what there is to send. Returns true if
    /// anything was done.
    pub fn serve<P: Port, A: Application>(
        &mut self,
        now_us: u64,
        port: &mut P,
        app: &mut A,
    ) -> bool {
        let mut busy = false;
        for nic in &mut self.nics {
            nic.send_backlog();
        }
        loop {
            if let Some(event) = self.app_events.pop_front() {
                self.tell(now_us, app, event);
            } else if let Some(index) = self.dirty.pop_front() {
                self.serve_connection(now_us, index, port, app);
            } else {
                break;
            }
            busy = true;
        }
        while let Some(frame) = self
            .neighbors
            .poll_frame()
            .or_else(|| self.frames.pop_front())
        {
            self.send_frame(
                port,
                &Superpacket {
                    header: &frame,
                    payload: &[],
                    offload: Offload::None,
                },
            );
            busy = true;
        }
        for nic in &mut self.nics {
            nic.channel.flush();
        }
        busy
    }

    /// Passes on an event that is no connection's own, unless its stream is over.
    fn tell<A: Application>(&mut self, now_us: u64, app: &mut A, event: AppEvent) {
        let (AppEvent::Opened { stream, .. }
        | AppEvent::OpenFailed { stream, .. }
        | AppEvent::Timer { stream }) = event
        else {
            unreachable!("connections tell their own events");
        };
        let Some(entry) = self
            .connections
            .index_of(stream)
            .and_then(|index| self.connections.get_mut(index))
        else {
            return;
        };
        if matches!(event, AppEvent::Timer { .. }) {
            // Meanwhile the application may have moved the timer, or cancelled it.
            if entry.app_deadline_us.is_none_or(|at| at > now_us) {
                return;
            }
            entry.app_deadline_us = None;
        }
        if entry.told {
            app.on_event(
                &mut Streams {
                    stack: self,
                    now_us,
                },
                event,
            );
        }
    }

    fn serve_connection<P: Port, A: Application>(
        &mut self,
        now_us: u64,
        index: usize,
        port: &mut P,
        app: &mut A,
    ) {
        let Some(entry) = self.connections.get_mut(index) else {
            return;
        };
        let stream = entry.stream;
        // Still marked dirty, so that what the application queues now is not queued for a second pass.
        self.pass_on_events(now_us, index, app);
        if let Some(entry) = self.connections.get_mut(index) {
            entry.dirty = false;
        }
        self.transmit(now_us, index, port);
        self.acknowledge_below(now_us, index);
        let Some(entry) = self.connections.get(index) else {
            return;
        };
        if let Some(time_wait) = entry.tcp.time_wait() {
            let tuple = entry.tuple;
            self.forget(index);
            self.time_waits.insert(tuple, time_wait);
        } else if entry.tcp.is_closed() {
            self.forget(index);
        } else {
            self.arm_timer(stream);
        }
    }

    /// Tells the application what the connection has to say.
    fn pass_on_events<A: Application>(&mut self, now_us: u64, index: usize, app: &mut A) {
        loop {
            let Some(entry) = self.connections.get_mut(index) else {
                return;
            };
            let (stream, peer) = (entry.stream, entry.tuple.remote);
            let Some(event) = entry.tcp.poll_event() else {
                return;
            };
            let event = match event {
                ConnectionEvent::Connected => {
                    entry.told = true;
                    self.counters.connections_accepted += 1;
                    AppEvent::Accepted { stream, peer }
                }
                ConnectionEvent::Readable => AppEvent::Readable { stream },
                ConnectionEvent::Writable => AppEvent::Writable { stream },
                ConnectionEvent::PeerFinished => AppEvent::PeerFinished { stream },
                ConnectionEvent::Drained => AppEvent::Drained { stream },
                ConnectionEvent::Released { object, .. } => {
                    if let Some(close) = self.files.extent_released(FileId(object)) {
                        self.close_below(close);
                    }
                    continue;
                }
                ConnectionEvent::Closed { reason } => {
                    let reason = match reason {
                        _ if entry.data_plane_failed => CloseReason::DataPlaneFailed,
                        tcp::CloseReason::Finished => CloseReason::Finished,
                        tcp::CloseReason::Reset | tcp::CloseReason::Refused => CloseReason::Reset,
                        tcp::CloseReason::TimedOut => CloseReason::TimedOut,
                        tcp::CloseReason::Aborted => CloseReason::Aborted,
                    };
                    let told = std::mem::replace(&mut entry.told, false);
                    entry.app_deadline_us = None;
                    self.end_of_stream(index);
                    if !told {
                        continue;
                    }
                    match reason {
                        CloseReason::Finished => self.counters.connections_finished += 1,
                        _ => self.counters.connections_broken += 1,
                    }
                    AppEvent::Closed { stream, reason }
                }
            };
            let told = self.connections.get(index).is_some_and(|entry| entry.told);
            if told || matches!(event, AppEvent::Closed { .. }) {
                app.on_event(
                    &mut Streams {
                        stack: self,
                        now_us,
                    },
                    event,
                );
            }
        }
    }

    /// Hands out what the connection wants to send.
    fn transmit<P: Port>(&mut self, now_us: u64, index: usize, port: &mut P) {
        let Some(entry) = self.connections.get_mut(index) else {
            return;
        };
        let nic = &mut self.nics[entry.worker];
        let destination_mac = match self.neighbors.resolve(now_us, entry.next_hop) {
            Resolution::Known(mac) => Some(mac),
            Resolution::Pending => {
                self.waiting_neighbor.push(index);
                return;
            }
            // Sent to nobody, so that TCP's own timers decide when to give up.
            Resolution::Unreachable => None,
        };
        let Tuple { local, remote } = entry.tuple;
        let template = destination_mac
            .map(|destination_mac| TcpTemplate::new(self.link.mac, destination_mac, local, remote));
        let tcp_offset = template.as_ref().map_or(0, TcpTemplate::tcp_offset) as u16;
        let limits = self.link.limits(local.is_ipv6(), entry.tcp.mss());
        let now = Instant::from_us(now_us);
        let mut header = [0; contract::limits::HEADER_BYTES_MAX];
        loop {
            if !nic.has_room() {
                self.waiting_room.push(index);
                return;
            }
            let Some(transmit) = entry.tcp.poll_transmit(now, &limits) else {
                return;
            };
            let length = template
                .as_ref()
                .and_then(|template| template.write(&transmit.header, &mut header));
            self.counters.retransmissions += u64::from(transmit.retransmission);
            if let Some(transmission) = transmit.transmission {
                entry.last_transmission = transmission;
            }
            let Some(length) = length else {
                self.counters.packets_dropped += 1;
                if let Some(transmission) = transmit.transmission {
                    entry.tcp.on_departed(transmission, now);
                }
                continue;
            };
            let bytes = transmit.range.end - transmit.range.start;
            match transmit.transmission {
                Some(transmission) if transmit.has_virtual || transmit.follows_undeparted => {
                    let mut real_bytes = 0;
                    let segments = entry
                        .tcp
                        .pieces(transmit.range.clone())
                        .map(|piece| match piece {
                            Piece::Real(bytes) => {
                                real_bytes += bytes.len() as u64;
                                Segment::Inline(bytes)
                            }
                            Piece::Virtual {
                                object,
                                offset,
                                len,
                            } => Segment::File {
                                file: FileId(object),
                                offset,
                                len: len as u32,
                            },
                        })
                        .collect();
                    let send = contract::Send {
                        id: send_id(index, transmission),
                        flow: entry.flow(),
                        stream_offset: transmit.range.start,
                        issued_us: now_us,
                        tsval_fraction_us: transmit.tsval_fraction_us,
                        mss: transmit.mss,
                        header: &header[..length],
                        segments,
                    };
                    let sent = nic.channel.send(&Command::Send(send));
                    debug_assert!(sent.is_ok(), "has_room() was asked");
                    entry.flow_open = true;
                    entry.sends_outstanding += 1;
                    self.sends_outstanding += 1;
                    self.counters.sends += 1;
                    self.counters.real_bytes += real_bytes;
                    self.counters.virtual_bytes += bytes - real_bytes;
                }
                transmission => {
                    let frame = &mut header[..length];
                    let finished = frame::finish(frame, bytes as usize);
                    debug_assert!(
                        finished.is_ok(),
                        "real_bytes_max is below any packet's bound"
                    );
                    let mut payload = [IoSlice::new(&[]); contract::limits::SEGMENTS_MAX];
                    let mut pieces = 0;
                    for (slot, piece) in payload
                        .iter_mut()
                        .zip(entry.tcp.pieces(transmit.range.clone()))
                    {
                        if let Piece::Real(bytes) = piece {
                            *slot = IoSlice::new(bytes);
                            pieces += 1;
                        }
                    }
                    let packet = Superpacket {
                        header: frame,
                        payload: &payload[..pieces],
                        offload: Offload::Tcp {
                            tcp_offset,
                            mss: transmit.mss,
                            ipv6: entry.tuple.local.is_ipv6(),
                        },
                    };
                    match port.send(&packet) {
                        Ok(()) => self.counters.packets_sent += 1,
                        Err(_) => self.counters.packets_dropped += 1,
                    }
                    self.counters.real_bytes += bytes;
                    if let Some(transmission) = transmission {
                        entry.tcp.on_departed(transmission, now);
                    }
                }
            }
        }
    }

    fn send_frame<P: Port>(&mut self, port: &mut P, packet: &Superpacket<'_>) {
        match port.send(packet) {
            Ok(()) => self.counters.packets_sent += 1,
            Err(SendError::WouldBlock | SendError::Dropped) => self.counters.packets_dropped += 1,
            Err(SendError::Failed(error)) => {
                self.counters.packets_dropped += 1;
                tracing::debug!(%error, "a frame could not be sent");
            }
        }
    }

    /// Sends ACKD when enough has been acknowledged, and takes it as a sign that the next hop lives.
    fn acknowledge_below(&mut self, now_us: u64, index: usize) {
        let Some(entry) = self.connections.get_mut(index) else {
            return;
        };
        let stream_offset = entry.tcp.acknowledged_bytes();
        if !entry.flow_open || stream_offset - entry.ackd_offset < ACKD_BYTES {
            return;
        }
        entry.ackd_offset = stream_offset;
        self.neighbors.confirm(now_us, entry.next_hop);
        let flow = entry.flow();
        self.counters.ackds += 1;
        self.nics[entry.worker].send_or_defer(Deferred::Acked {
            flow,
            stream_offset,
            last: false,
        });
    }

    /// The stream is over: the NIC stack may forget its flow and close its files.
    fn end_of_stream(&mut self, index: usize) {
        let Some(entry) = self.connections.get_mut(index) else {
            return;
        };
        let (worker, flow) = (entry.worker, entry.flow());
        let stream_offset = entry.tcp.acknowledged_bytes();
        // What has not departed never will, and is not reported.
        self.sends_outstanding -= std::mem::take(&mut entry.sends_outstanding);
        let files = std::mem::take(&mut entry.files);
        if std::mem::replace(&mut entry.flow_open, false) {
            self.counters.ackds += 1;
            self.nics[worker].send_or_defer(Deferred::Acked {
                flow,
                stream_offset,
                last: true,
            });
        }
        for file in files {
            let owned = self
                .files
                .by_id(file)
                .is_some_and(|file| file.stream.0 == flow.0);
            if owned && let Some(close) = self.files.stream_over(file) {
                self.close_below(close);
            }
        }
    }

    /// Sends CLOS.
    pub(crate) fn close_below(&mut self, close: MayClose) {
        self.counters.closes += 1;
        self.nics[close.worker].send_or_defer(Deferred::Close { file: close.file });
    }

    /// Sends OPEN.
    pub(crate) fn open_below(&mut self, worker: usize, file: FileId, path: &[u8]) {
        self.counters.opens += 1;
        self.nics[worker].send_or_defer(Deferred::Open {
            file,
            path: path.into(),
        });
    }

    /// Removes a connection from the table.
    fn forget(&mut self, index: usize) {
        self.end_of_stream(index);
        self.connections.remove(index);
    }

    pub(crate) fn mark_dirty(&mut self, index: usize) {
        if let Some(entry) = self.connections.get_mut(index)
            && !entry.dirty
        {
            entry.dirty = true;
            self.dirty.push_back(index);
        }
    }

    /// A neighbour may have been found, or given up.
    fn retry_waiting_neighbor(&mut self) {
        while let Some(index) = self.waiting_neighbor.pop() {
            self.mark_dirty(index);
        }
    }

    /// A ring may have room again.
    pub(crate) fn retry_waiting_room(&mut self) {
        while let Some(index) = self.waiting_room.pop() {
            self.mark_dirty(index);
        }
    }

    /// Makes sure that the wheel calls for the connection's earliest deadline.
    pub(crate) fn arm_timer(&mut self, stream: StreamId) {
        let Some(entry) = self
            .connections
            .index_of(stream)
            .and_then(|index| self.connections.get_mut(index))
        else {
            return;
        };
        let tcp_us = entry.tcp.next_timeout().map_or(u64::MAX, Instant::as_us);
        let deadline_us = tcp_us.min(entry.app_deadline_us.unwrap_or(u64::MAX));
        // A deadline that has moved away is left where it is: the wheel calls, and is told again.
        if deadline_us < entry.wheel_us {
            entry.wheel_us = deadline_us;
            self.wheel.schedule(deadline_us, stream.0);
        }
    }

    /// Sends RST on every connection and accepts no more: the shard is about to end.
    pub fn abort_all<P: Port, A: Application>(&mut self, now_us: u64, port: &mut P, app: &mut A) {
        self.config.listen_ports.clear();
        for index in self.connections.indices() {
            if let Some(entry) = self.connections.get_mut(index) {
                entry.tcp.abort();
                self.mark_dirty(index);
            }
        }
        self.serve(now_us, port, app);
    }
}

/// The NIC stack has written nonsense into a ring's indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelCorrupt {
    /// Which worker's channel.
    pub worker: usize,
}
