//! The host stack of one shard, without its port, its clock and its sleep.
//!
//! A [`Stack`] takes frames ([`Stack::on_frame`]), events of the NIC stack ([`Stack::on_channels`])
//! and the time ([`Stack::on_time`]). These calls send nothing: they mark connections as dirty.
//! [`Stack::serve`] then passes the events on to the application and sends the output of each dirty
//! connection, so that a burst of ACKs for one connection costs one pass.
//!
//! Output leaves one of two ways. A packet without file bytes is built here and sent through the
//! port. Anything with file bytes becomes a SEND, and so does everything after it in the stream
//! until its departure is reported: else the later bytes would overtake the earlier ones.
//!
//! A [`Ground`] has what both transports use, and [`TcpLayer`] and [`QuicLayer`] stand on it: a
//! frame, an event or an operation goes to one of them.
//!
//! | File | Contents |
//! |---|---|
//! | `nics` | NIC stacks: their events, and those that come, go or start again |
//! | `interface` | operations of the process that runs the stack |
//! | `inspect` | the stack's contents, for monitoring |

mod inspect;
mod interface;
mod nics;

use std::time::Duration;

use contract::FileId;
use contract::channel::HostChannel;
use netdev::{Frame, Offload, Port, Superpacket};
use tcp::{ConnectionEvent, Instant};
use wire::ParseError;
use wire::frame::{self, Received, TcpPacket};

use crate::app::{AppEvent, Application, StreamId};
use crate::config::StackConfig;
use crate::counters::Counters;
use crate::ground::Ground;
use crate::ground::Layers;
use crate::ground::link::{Link, send_frame};
use crate::link::icmp;
use crate::quic::events::Report;
use crate::quic::{HandshakeShare, QuicLayer, names};
use crate::streams::Streams;
use crate::tables::connections::ConnectionHandle;
use crate::tables::tuple::Tuple;
use crate::tcp::TcpLayer;
use crate::tcp::listening::{defers_accept, unreserve};
use crate::tcp::turns::queue_dirty;

pub use self::inspect::{
    ConnectionInfo, ConnectionView, DivisionView, FileInfo, Usage, WorkerView,
};
pub use self::nics::ChannelCorrupt;

/// Most connections in a TLS handshake that [`Stack::serve`] serves at a time. A handshake costs a
/// signature, 0.1 ms with ECDSA and ten times that with RSA, for which all other connections wait.
pub(crate) const HANDSHAKES_MAX: usize = 16;

/// The host stack of one shard.
#[derive(Debug)]
pub struct Stack {
    pub(crate) ground: Ground,
    pub(crate) tcp: TcpLayer,
    pub(crate) quic: QuicLayer,
}

impl Stack {
    /// A stack on a link, served by one NIC stack, whose workers are behind `channels`.
    ///
    /// # Panics
    /// If there are no channels.
    pub fn new(config: StackConfig, link: Link, channels: Vec<HostChannel>, now_us: u64) -> Stack {
        let mut stack = Stack::awaiting(config, link, 1, now_us);
        assert!(!channels.is_empty(), "a stack needs a NIC worker");
        stack.ground.introduce_nic(0, channels);
        stack
    }

    /// Creates a stack on a link, to be served by this number of NIC stacks, none of which has
    /// joined yet. One must join, with [`Stack::on_nic_come`], before anything else happens.
    ///
    /// # Panics
    /// If the number is zero, or above 64.
    pub fn awaiting(config: StackConfig, link: Link, nic_stacks: usize, now_us: u64) -> Stack {
        let listen_ports = config.listen_ports.clone();
        let mut stack = Stack {
            tcp: TcpLayer::new(&config, &link, now_us),
            quic: QuicLayer::new(&config),
            ground: Ground::new(config, link, nic_stacks, now_us),
        };
        for port in listen_ports {
            stack.tcp.serve_port(&mut stack.ground, port);
        }
        stack
    }

    /// Sets the time since the epoch for applications.
    pub fn set_unix_time(&mut self, unix_time: Duration) {
        self.ground.unix_time = unix_time;
        for (_, config) in &self.tcp.tls_listeners {
            config.set_unix_time(unix_time);
        }
    }

    /// Returns the counters since the start.
    pub fn counters(&self) -> Counters {
        self.ground.counters
    }

    pub(crate) fn counters_mut(&mut self) -> &mut Counters {
        &mut self.ground.counters
    }

    /// Number of SENDs that the NIC stack has not carried out yet.
    pub(crate) fn sends_outstanding(&self) -> u64 {
        self.ground.sends_outstanding
    }

    /// SENDs that have departed since the start.
    pub(crate) fn sends_departed(&self) -> u64 {
        self.ground.sends_departed
    }

    /// Frames and events taken in since the start.
    pub(crate) fn items(&self) -> u64 {
        self.ground.counters.frames_received + self.ground.counters.events
    }

    /// The channels of the NIC stacks that are there, for arming wake-ups.
    pub(crate) fn channels(&mut self) -> impl Iterator<Item = &mut HostChannel> {
        let there = self.ground.workers.iter_mut().filter(|nic| nic.is_there());
        there.map(|nic| &mut nic.channel)
    }

    /// Requests a heartbeat from every connected worker. Calls `missing` with each worker that has
    /// missed some, and their number in a row.
    pub(crate) fn heartbeat(&mut self, mut missing: impl FnMut(usize, u32)) {
        for (worker, nic) in self.ground.workers.iter_mut().enumerate() {
            if nic.is_there() {
                match nic.channel.heartbeat() {
                    0 => {}
                    missed => missing(worker, missed),
                }
            }
        }
    }

    /// The channels of a NIC stack.
    pub(crate) fn channels_of(&self, nic: usize) -> impl Iterator<Item = &HostChannel> {
        let workers = self.ground.nic_stacks.workers(nic);
        self.ground.workers[workers].iter().map(|nic| &nic.channel)
    }

    /// The NIC stack of a worker.
    pub(crate) fn nic_of(&self, worker: usize) -> usize {
        self.ground.nic_stacks.of(worker)
    }

    /// Returns the number of connections in the table, in TIME-WAIT, and in teardown by a NIC
    /// stack.
    pub fn connections(&self) -> usize {
        self.tcp.connections.len() + self.tcp.time_waits.len() + self.tcp.teardown.parted.len()
    }

    /// Fires the timers that are due.
    pub fn on_time(&mut self, now_us: u64) {
        let mut due = std::mem::take(&mut self.tcp.due);
        self.tcp.wheel.advance(now_us, &mut due);
        for place in due.drain(..) {
            self.tcp
                .on_wheel(&mut self.ground, now_us, ConnectionHandle::at(place));
        }
        self.tcp.due = due;
        self.tcp.time_waits.expire(Instant::from_us(now_us));
        self.tcp.on_half_open_timeouts(&mut self.ground, now_us);
        let (ground, mut layers) = self.split();
        ground.give_up_nics(&mut layers, now_us);
        ground.look_at_load(&mut layers, now_us);
        if self.tcp.has_setup(&self.ground) {
            self.tcp.look_at_setup(&mut self.ground, now_us);
        }
        self.quic.on_time(&mut self.ground, now_us);
        if self
            .ground
            .neighbors
            .next_timeout_us()
            .is_some_and(|at| at <= now_us)
        {
            self.ground.neighbors.on_timeout(now_us);
            self.retry_waiting_neighbor(now_us);
        }
    }

    /// Announces the hardware address of all own addresses on the link; call it when the stack
    /// begins to answer for them.
    pub fn announce(&mut self, now_us: u64) {
        self.ground.neighbors.announce(now_us);
    }

    /// When [`Stack::on_time`] should next be called, in microseconds.
    pub fn next_timeout_us(&self) -> Option<u64> {
        let time_wait_us = self.tcp.time_waits.next_timeout().map(Instant::as_us);
        let half_open_us = self.tcp.gate.next_timeout().map(Instant::as_us);
        [
            self.tcp.wheel.next_us(),
            self.ground.neighbors.next_timeout_us(),
            time_wait_us,
            half_open_us,
            self.ground.nic_stacks.next_timeout_us(),
            self.ground.division.next_timeout_us(),
            self.tcp.next_setup_us(),
            self.quic.next_timeout_us(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Passes pending events on to the application and sends pending output. Returns true if
    /// anything was done: there may be more to do then, since few TLS handshakes are served at a
    /// time, and segments between own connections are delivered in the next turn.
    pub fn serve<P: Port, A: Application>(
        &mut self,
        now_us: u64,
        port: &mut P,
        app: &mut A,
    ) -> bool {
        for nic in &mut self.ground.workers {
            nic.send_backlog();
        }
        self.tcp.hear_loopback(&mut self.ground, now_us);
        let mut handshakes = 0;
        let mut busy = self.serve_waiting(now_us, &mut handshakes, port, app);
        busy |= app.on_turn(&mut self.streams(now_us), now_us);
        let (ground, mut layers) = self.split();
        ground.look_at_memory(&mut layers, now_us, app);
        busy |= self.serve_waiting(now_us, &mut handshakes, port, app);
        if !self.quic.is_unused() {
            busy |= self.serve_quic_connections(now_us, port, app);
        }
        if self.ground.shortage.has_opens() {
            self.ground.repeat_opens();
        }
        while let Some(frame) = self
            .ground
            .neighbors
            .poll_frame()
            .or_else(|| self.ground.frames.pop_front())
        {
            let packet = Superpacket {
                header: &frame,
                payload: &[],
                offload: Offload::None,
            };
            send_frame(&mut self.ground.counters, port, &packet);
            busy = true;
        }
        for nic in &mut self.ground.workers {
            nic.channel.flush();
        }
        busy || !self.tcp.loopback.is_empty()
    }

    /// Calls the application's [`Application::on_wake`]: its descriptor is readable.
    /// [`Stack::serve`] sends the output.
    pub fn wake<A: Application>(&mut self, now_us: u64, app: &mut A) {
        app.on_wake(&mut self.streams(now_us), now_us);
    }

    /// The ground, and the layers on it.
    pub(crate) fn split(&mut self) -> (&mut Ground, Layers<'_>) {
        let Stack { ground, tcp, quic } = self;
        (ground, Layers { tcp, quic })
    }

    pub(crate) fn streams(&mut self, now_us: u64) -> Streams<'_> {
        let (ground, layers) = self.split();
        Streams {
            ground,
            layers,
            now_us,
        }
    }

    /// Serves every dirty connection, but only a few in a TLS handshake: `handshakes` counts those
    /// served in this turn.
    fn serve_waiting<P: Port, A: Application>(
        &mut self,
        now_us: u64,
        handshakes: &mut usize,
        port: &mut P,
        app: &mut A,
    ) -> bool {
        let mut busy = false;
        loop {
            if let Some((stream, event)) = self.ground.app_events.pop_front() {
                self.tell(now_us, app, stream, event);
                busy = true;
                continue;
            }
            let handle = if let Some(handle) = self
                .tcp
                .next_with_room(&mut self.ground)
                .or_else(|| self.tcp.dirty.pop_front())
            {
                if self.tcp.awaits_header(handle) {
                    self.tcp.read_header(&mut self.ground, now_us, handle);
                }
                // Still marked dirty, so that it is not queued twice.
                if self.tcp.in_tls_handshake(handle) {
                    self.tcp.shaking_hands.push_back(handle);
                    busy = true;
                    continue;
                }
                handle
            } else if *handshakes < HANDSHAKES_MAX
                && let Some(handle) = self.tcp.shaking_hands.pop_front()
            {
                *handshakes += 1;
                handle
            } else {
                return busy;
            };
            self.serve_connection(now_us, handle, port, app);
            busy = true;
        }
    }

    /// Passes on an event that is no connection's own, unless its stream is over; or the answer to
    /// a look-up, which has none.
    fn tell<A: Application>(
        &mut self,
        now_us: u64,
        app: &mut A,
        stream: StreamId,
        event: AppEvent,
    ) {
        let Some(entry) = self.tcp.connections.by_stream_mut(stream) else {
            if names::is_stream(stream) && stream != StreamId::NONE {
                self.quic.on_app_event(now_us, stream, event);
                return self.report_quic(now_us, app);
            }
            let mut streams = self.streams(now_us);
            match event {
                AppEvent::Opened { file, meta } if stream == StreamId::NONE => {
                    app.on_looked_up(&mut streams, file, Ok(meta));
                }
                AppEvent::OpenFailed { file, errno } if stream == StreamId::NONE => {
                    app.on_looked_up(&mut streams, file, Err(errno));
                }
                _ => {}
            }
            return;
        };
        if matches!(event, AppEvent::Timer) {
            // Meanwhile the application may have moved the timer, or cancelled it.
            if entry.app_deadline_us.is_none_or(|at| at > now_us) {
                return;
            }
            entry.app_deadline_us = None;
            let handle = entry.handle();
            if entry.awaits_header() {
                return self.tcp.miss_header(&mut self.ground, now_us, handle);
            }
            if entry.is_deferred {
                self.accept_deferred(now_us, handle, app);
                return;
            }
            if !entry.told {
                return self.tcp.on_join_timeout(&mut self.ground, now_us, stream);
            }
        }
        if entry.told || self.tcp.splicing.splices.by_stream(stream).is_some() {
            app.on_event(&mut self.streams(now_us), stream, event);
        }
    }

    /// Reports events of QUIC connections to the application, and issues their packets, until
    /// nothing is left to do. Its share of handshakes is separate from TLS over TCP's.
    #[inline(never)]
    fn serve_quic_connections<P: Port, A: Application>(
        &mut self,
        now_us: u64,
        port: &mut P,
        app: &mut A,
    ) -> bool {
        let mut share = HandshakeShare::default();
        let mut was_busy = false;
        self.quic.retry_room(&mut self.ground, now_us);
        loop {
            let mut busy = self
                .quic
                .begin_round(&mut self.ground, now_us, &mut share, port);
            busy |= self.tell_quic(now_us, app);
            busy |= self.quic.end_round(&mut self.ground, now_us, port, app);
            if !busy {
                self.quic.flush_trace();
                return was_busy;
            }
            was_busy = true;
        }
    }

    /// Reports events to the application.
    fn tell_quic<A: Application>(&mut self, now_us: u64, app: &mut A) -> bool {
        let mut busy = false;
        loop {
            if let Some((stream, event)) = self.ground.app_events.pop_front() {
                self.tell(now_us, app, stream, event);
            } else if let Some((listener, event)) = self.quic.poll_event() {
                self.quic
                    .on_event(&mut self.ground, now_us, listener, event);
                self.report_quic(now_us, app);
            } else {
                return busy;
            }
            busy = true;
        }
    }

    fn report_quic<A: Application>(&mut self, now_us: u64, app: &mut A) {
        while let Some(report) = self.quic.next_report(&mut self.ground) {
            match report {
                Report::Stream(stream, event) => {
                    let is_over = matches!(event, AppEvent::Closed { .. });
                    app.on_event(&mut self.streams(now_us), stream, event);
                    if is_over {
                        self.quic.remove_stream(&mut self.ground, stream);
                    }
                }
                Report::Connection(connection, event) => {
                    app.on_quic(&mut self.streams(now_us), connection, event);
                }
            }
        }
    }

    #[inline]
    fn serve_connection<P: Port, A: Application>(
        &mut self,
        now_us: u64,
        handle: ConnectionHandle,
        port: &mut P,
        app: &mut A,
    ) {
        // Still marked dirty, so that the application's writes in this pass do not queue it again.
        self.pass_on_events(now_us, handle, app);
        if self.tcp.teardown.candidates > 0 && self.part_with(now_us, handle, app) {
            return;
        }
        self.tcp
            .end_turn(&mut self.ground, now_us, handle, port, app);
    }

    /// Parts with a connection if only its end is left: its application learns that it is closed.
    /// True if so: it is gone.
    #[cold]
    #[inline(never)]
    fn part_with<A: Application>(
        &mut self,
        now_us: u64,
        handle: ConnectionHandle,
        app: &mut A,
    ) -> bool {
        if !self.tcp.part_with(&mut self.ground, now_us, handle) {
            return false;
        }
        if let Some(entry) = self.tcp.connections.get(handle) {
            let stream = entry.stream;
            let reason = tcp::CloseReason::Finished;
            let closed = (self.tcp).on_closed(&mut self.ground, now_us, handle, reason);
            if let Some(event) = closed {
                app.on_event(&mut self.streams(now_us), stream, event);
            }
        }
        self.tcp.forget(&mut self.ground, handle);
        true
    }

    /// Has the application accept a deferred connection; false if it was not deferred.
    #[cold]
    fn accept_deferred<A: Application>(
        &mut self,
        now_us: u64,
        handle: ConnectionHandle,
        app: &mut A,
    ) -> bool {
        let Some((stream, event)) = self.tcp.accept_deferred(&mut self.ground, handle) else {
            return false;
        };
        app.on_event(&mut self.streams(now_us), stream, event);
        true
    }

    /// Reports the connection's events to the application.
    fn pass_on_events<A: Application>(
        &mut self,
        now_us: u64,
        handle: ConnectionHandle,
        app: &mut A,
    ) {
        loop {
            let Some(entry) = self.tcp.connections.get_mut(handle) else {
                return;
            };
            if entry.tls.is_some() {
                return self.pass_on_tls_events(now_us, handle, app);
            }
            if entry.is_held_back() {
                return (self.tcp).await_header(&mut self.ground, now_us, handle);
            }
            let (stream, peer) = (entry.stream, entry.tuple.remote);
            let Some(event) = entry.tcp.poll_event() else {
                return;
            };
            let has_text = matches!(event, ConnectionEvent::Readable);
            if has_text && !entry.heard && !entry.tcp.state().is_opening() {
                entry.heard = true;
                self.tcp.gate.on_heard(entry.unheard.take());
            }
            let event = match event {
                ConnectionEvent::Connected if entry.is_active => AppEvent::Connected,
                // It was accepted with the text of its SYN.
                ConnectionEvent::Connected if entry.told => {
                    entry.heard = true;
                    self.tcp.gate.on_heard(entry.unheard.take());
                    continue;
                }
                ConnectionEvent::Connected => {
                    // It is accepted with its text.
                    if entry.is_deferred || defers_accept(&self.tcp.bindings, now_us, entry) {
                        continue;
                    }
                    entry.told = true;
                    if entry.is_reserved {
                        // Its application bounds how many it holds, silent or not.
                        self.tcp.gate.on_heard(entry.unheard.take());
                    }
                    unreserve(&mut self.tcp.bindings, entry);
                    self.ground.counters.connections_accepted += 1;
                    let (proxied, tls) = (None, None);
                    AppEvent::Accepted { peer, proxied, tls }
                }
                ConnectionEvent::Readable => AppEvent::Readable,
                ConnectionEvent::Writable => AppEvent::Writable,
                ConnectionEvent::PeerFinished => AppEvent::PeerFinished,
                ConnectionEvent::Drained => AppEvent::Drained,
                ConnectionEvent::Released { object, .. } => {
                    if let Some(close) = self.ground.files.extent_released(FileId(object)) {
                        self.ground.send_close(close);
                    }
                    continue;
                }
                ConnectionEvent::Closed { reason } => {
                    match self.tcp.on_closed(&mut self.ground, now_us, handle, reason) {
                        Some(event) => event,
                        None => continue,
                    }
                }
            };
            let told = self
                .tcp
                .connections
                .get(handle)
                .is_some_and(|entry| entry.told)
                || self.accept_deferred(now_us, handle, app);
            if told || matches!(event, AppEvent::Closed { .. }) {
                app.on_event(&mut self.streams(now_us), stream, event);
            }
        }
    }

    /// A neighbour may have been found, or given up.
    pub(crate) fn retry_waiting_neighbor(&mut self, now_us: u64) {
        while let Some(handle) = self.tcp.waiting_neighbor.take() {
            self.tcp.mark_dirty(handle);
        }
        self.tcp.retry_half_open(&mut self.ground, now_us);
        self.quic.retry_neighbor();
    }

    /// Rings may have room again; call it after every sleep. Connections retry in the order in
    /// which they began to wait; those of full rings keep waiting.
    pub fn retry_waiting_room(&mut self) {
        self.ground.retry_waiting_room();
    }

    /// Sends RST on every connection and accepts no more: the shard is about to end. Returns the
    /// longest round trip of a connection with bytes in flight, in microseconds; `None` without
    /// such connections: the other peers expect the sequence number of their RST.
    pub fn abort_all<P: Port, A: Application>(
        &mut self,
        now_us: u64,
        port: &mut P,
        app: &mut A,
    ) -> Option<u64> {
        self.stop_listening();
        self.tcp.resets.part();
        let mut round_trip_us = None;
        for handle in self.tcp.connections.handles() {
            if let Some(entry) = self.tcp.connections.get_mut(handle) {
                if entry.tcp.flight_bytes() > 0 {
                    let srtt = entry.tcp.smoothed_rtt().unwrap_or_default();
                    round_trip_us = round_trip_us.max(Some(srtt.as_micros() as u64));
                }
                entry.tcp.abort();
                self.tcp.mark_dirty(handle);
            }
        }
        self.quic.close_all(now_us);
        while self.serve(now_us, port, app) && !self.tcp.shaking_hands.is_empty() {}
        round_trip_us
    }

    /// Handles a received frame.
    pub fn on_frame(&mut self, now_us: u64, frame: Frame<'_>) {
        self.ground.counters.frames_received += 1;
        let Some(packet) = frame::parse_segment(frame.bytes, frame.checksum_valid) else {
            return self.on_other_frame(now_us, frame);
        };
        self.on_tcp(now_us, &packet, &frame);
    }

    /// Segment arrival, RFC 9293 §3.10.7: the part that precedes any connection.
    #[inline]
    fn on_tcp(&mut self, now_us: u64, packet: &TcpPacket<'_>, frame: &Frame<'_>) {
        let segment = &packet.segment;
        if let Some(handle) = self.tcp.connections.find(&Tuple::of(packet))
            && let Some(entry) = self.tcp.connections.get_mut(handle)
        {
            if entry.route.is_looped() {
                return self.on_martian();
            }
            self.ground.counters.segments_received += 1;
            let Some(time_wait) = entry.tcp.replaced_by(segment) else {
                entry.tcp.on_segment(Instant::from_us(now_us), segment);
                entry.is_share_stale |= !segment.payload.is_empty();
                queue_dirty(&mut self.tcp.dirty, entry);
                return;
            };
            (self.tcp).replace(&mut self.ground, handle, &Tuple::of(packet), time_wait);
        } else if (self.ground.config).is_martian(frame.bytes, packet.source, packet.destination) {
            return self.on_martian();
        } else if self.ground.config.may_get(packet.destination) {
            self.ground.counters.segments_received += 1;
        } else {
            return;
        }
        self.on_stray_frame(now_us, packet, frame);
    }

    /// Handles a segment that belongs to no connection of the table, in the frame that it came in.
    #[cold]
    #[inline(never)]
    fn on_stray_frame(&mut self, now_us: u64, packet: &TcpPacket<'_>, frame: &Frame<'_>) {
        (self.tcp).on_stray_frame(&mut self.ground, now_us, packet, frame);
    }

    #[cold]
    fn on_martian(&mut self) {
        self.ground.counters.martians_dropped += 1;
    }

    /// Handles a frame without a segment.
    #[cold]
    fn on_other_frame(&mut self, now_us: u64, frame: Frame<'_>) {
        match frame::parse(frame.bytes, frame.checksum_valid) {
            Ok(Received::Arp(arp)) => {
                if let Some(reply) = self.ground.neighbors.on_arp(now_us, &arp) {
                    self.ground.frames.push_back(reply);
                }
                self.ground.counters.address_conflicts += self.ground.neighbors.take_conflicts();
                self.retry_waiting_neighbor(now_us);
            }
            Ok(Received::Icmp6(message)) if self.ground.neighbors.takes(&message) => {
                if let Some(reply) = self.ground.neighbors.on_ndisc(now_us, &message) {
                    self.ground.frames.push_back(reply);
                }
                self.ground.counters.address_conflicts += self.ground.neighbors.take_conflicts();
                self.retry_waiting_neighbor(now_us);
            }
            Ok(Received::Other) => self
                .quic
                .on_datagram_frame(&mut self.ground, now_us, &frame),
            Ok(other) => {
                if let Some(error) = icmp::error(&other) {
                    return self.tcp.on_icmp_error(&mut self.ground, now_us, &error);
                }
                let is_own = |ip| self.ground.config.has_address(ip);
                if self.ground.config.is_shared {
                    return;
                }
                if let Some(reply) = icmp::reply(self.ground.link.mac, &other, is_own) {
                    self.ground.reply_to_echo(now_us, reply);
                }
            }
            Err(ParseError::Fragment) => self.ground.counters.fragments_dropped += 1,
            Err(_) => self.ground.counters.frames_malformed += 1,
        }
    }

    /// Passes the events of a connection that speaks TLS to the application.
    fn pass_on_tls_events<A: Application>(
        &mut self,
        now_us: u64,
        handle: ConnectionHandle,
        app: &mut A,
    ) {
        self.tcp.release_acknowledged(&mut self.ground, handle);
        let Some(stream) = self.tcp.connections.get(handle).map(|entry| entry.stream) else {
            return;
        };
        while let Some(event) = self
            .tcp
            .next_tls_event(&mut self.ground, now_us, handle, app)
        {
            let told = self
                .tcp
                .connections
                .get(handle)
                .is_some_and(|entry| entry.told);
            if told || matches!(event, AppEvent::Closed { .. }) {
                app.on_event(&mut self.streams(now_us), stream, event);
            }
        }
    }
}
