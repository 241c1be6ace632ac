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
//! | File | Contents |
//! |---|---|
//! | `arrival` | frames, and segments of no connection |
//! | `admission` | half-open connections, SYN cookies, limits on new connections |
//! | `reports` | events of the NIC workers |
//! | `restart` | a NIC worker that starts again |
//! | `route` | which NIC stack has a file, and where a connection goes whose NIC stack is gone |
//! | `transmit` | SENDs, own packets, ACKD |
//! | `workers` | the channels, and messages that did not fit |
//! | `division` | how many workers are in use, and which connections go to which, as load changes |
//! | `migration` | a connection that goes from one worker to another |
//! | `memory`, `shortage` | measures when connection memory, or files and descriptors, run short |
//! | `streams` | operations of an application, on a stack |
//! | `setup` | listeners whose SYNs NIC workers answer |
//! | `fast_open` | text in SYNs |
//! | `teardown` | connections whose end a NIC stack runs |
//! | `splice` | connections that a NIC stack joins |
//! | `steering` | frames of such connections, which a packet filter gives to NIC workers |
//! | `quic` | connections of QUIC |
//! | `tls_streams` | connections that speak TLS |
//! | `records` | their records, for the NIC workers, and what becomes of the tags |
//! | `change` | limits and times that change while connections go on |
//! | `connect` | connections that this side opens |
//! | `loopback` | connections with both ends here |
//! | `congestion` | congestion control by listener and by stream |
//! | `listing` | listings of directories |
//! | `listening` | addresses that applications bind, and listeners |
//! | `look_up` | metadata of files, for no connection |
//! | `link` | the link, and how much fits into a SEND |
//! | `inspect` | the stack's contents, for monitoring |

mod change;
mod inspect;
mod reports;
mod restart;

use std::collections::VecDeque;
use std::time::Duration;

use contract::FileId;
use contract::channel::HostChannel;
use netdev::{Offload, Port, Superpacket};
use tcp::{ConnectionEvent, Instant};

use crate::app::{AppEvent, Application, CloseReason, StreamId};
use crate::config::StackConfig;
use crate::counters::Counters;
use crate::ground::Ground;
use crate::ground::link::Link;
use crate::ground::workers::Deferred;
use crate::quic::QuicLayer;
use crate::quic::names;
use crate::streams::Streams;
use crate::tables::connections::{ConnectionHandle, Entry};
use crate::tables::files::{Lookup, MayClose};
use crate::tcp::listening::{defers_accept, unreserve};
use crate::tcp::{TcpLayer, transmit};
use crate::timer::TimerWheel;

pub use self::inspect::{
    ConnectionInfo, ConnectionView, DivisionView, FileInfo, Usage, WorkerView,
};
pub use self::reports::ChannelCorrupt;

/// Most connections in a TLS handshake that [`Stack::serve`] serves at a time. A handshake costs a
/// signature, 0.1 ms with ECDSA and ten times that with RSA, for which all other connections wait.
pub(crate) const HANDSHAKES_MAX: usize = 16;

/// The host stack of one shard.
#[derive(Debug)]
pub struct Stack {
    pub(crate) ground: Ground,
    pub(crate) tcp: TcpLayer,
    /// If a port has QUIC.
    pub(crate) quic: Option<Box<QuicLayer>>,
}

impl Stack {
    /// A stack on a link, served by one NIC stack, whose workers are behind `channels`.
    ///
    /// # Panics
    /// If there are no channels.
    pub fn new(config: StackConfig, link: Link, channels: Vec<HostChannel>, now_us: u64) -> Stack {
        let mut stack = Stack::awaiting(config, link, 1, now_us);
        assert!(!channels.is_empty(), "a stack needs a NIC worker");
        stack.introduce_nic(0, channels);
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
            quic: None,
            ground: Ground::new(config, link, nic_stacks, now_us),
        };
        for port in listen_ports {
            stack.serve_port(port);
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
            self.on_wheel(now_us, ConnectionHandle::at(place));
        }
        self.tcp.due = due;
        self.tcp.time_waits.expire(Instant::from_us(now_us));
        self.on_half_open_timeouts(now_us);
        self.give_up_nics(now_us);
        self.look_at_load(now_us);
        if self.has_setup() {
            self.look_at_setup(now_us);
        }
        if self.quic.is_some() {
            self.quic_on_time(now_us);
        }
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

    pub(crate) fn on_wheel(&mut self, now_us: u64, handle: ConnectionHandle) {
        let Some(entry) = self.tcp.connections.get_mut(handle) else {
            return;
        };
        let now = Instant::from_us(now_us);
        entry.armed_us = u64::MAX;
        if entry.tcp.next_timeout().is_some_and(|at| at <= now) {
            entry.tcp.on_timeout(now);
        }
        if let Some(tls) = entry.tls.as_mut() {
            tls.on_timeout(&mut entry.tcp, now_us);
        }
        if entry.app_deadline_us.is_some_and(|at| at <= now_us) {
            self.ground
                .app_events
                .push_back((entry.stream, AppEvent::Timer));
        }
        self.mark_dirty(handle);
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
            self.next_setup_us(),
            self.next_quic_us(),
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
        self.hear_loopback(now_us);
        let mut handshakes = 0;
        let mut busy = self.serve_waiting(now_us, &mut handshakes, port, app);
        busy |= app.on_turn(&mut self.streams(now_us), now_us);
        self.look_at_memory(now_us, app);
        busy |= self.serve_waiting(now_us, &mut handshakes, port, app);
        if self.quic.is_some() {
            busy |= self.serve_quic_layer(now_us, port, app);
        }
        if self.ground.shortage.has_opens() {
            self.repeat_opens();
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
            transmit::send_frame(&mut self.ground.counters, port, &packet);
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

    pub(crate) fn streams(&mut self, now_us: u64) -> Streams<'_> {
        Streams {
            stack: self,
            now_us,
        }
    }

    /// Serves every dirty connection, but only a few in a TLS handshake: `handshakes` counts those
    /// served in this turn.
    pub(crate) fn serve_waiting<P: Port, A: Application>(
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
            } else if let Some(handle) =
                self.next_with_room().or_else(|| self.tcp.dirty.pop_front())
            {
                match self.in_tls_handshake(handle) {
                    // Still marked dirty, so that it is not queued twice.
                    true => self.tcp.shaking_hands.push_back(handle),
                    false => self.serve_connection(now_us, handle, port, app),
                }
            } else if *handshakes < HANDSHAKES_MAX
                && let Some(handle) = self.tcp.shaking_hands.pop_front()
            {
                *handshakes += 1;
                self.serve_connection(now_us, handle, port, app);
            } else {
                return busy;
            }
            busy = true;
        }
    }

    /// Passes on an event that is no connection's own, unless its stream is over; or the answer to
    /// a look-up, which has none.
    pub(crate) fn tell<A: Application>(
        &mut self,
        now_us: u64,
        app: &mut A,
        stream: StreamId,
        event: AppEvent,
    ) {
        let Some(entry) = self.tcp.connections.by_stream_mut(stream) else {
            if names::is_stream(stream) && stream != StreamId::NONE {
                return self.tell_quic_stream(now_us, app, stream, event);
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
            if entry.is_deferred {
                let handle = entry.handle();
                self.accept_deferred(now_us, handle, app);
                return;
            }
            if !entry.told {
                return self.on_join_timeout(now_us, stream);
            }
        }
        if entry.told || self.tcp.splicing.splices.by_stream(stream).is_some() {
            app.on_event(&mut self.streams(now_us), stream, event);
        }
    }

    pub(crate) fn serve_connection<P: Port, A: Application>(
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
        let Some(entry) = self.tcp.connections.get_mut(handle) else {
            return;
        };
        entry.dirty = false;
        let is_share_stale = std::mem::take(&mut entry.is_share_stale);
        count_stats(&mut self.ground.counters, entry);
        // If everything departs at issue, only reports count.
        if !self.ground.config.departs_at_issue {
            count_sends(&mut self.ground.sends_outstanding, entry);
        }
        let may_send = entry.tls.is_none() || self.define_records(now_us, handle);
        let is_reachable = self.transmit(now_us, handle, port, may_send);
        let Some(entry) = self.tcp.connections.get_mut(handle) else {
            return;
        };
        transmit::acknowledge_below(&mut self.ground.counters, &mut self.ground.workers, entry);
        // Not before the peer's FIN is acknowledged: the table does not know that this is still to
        // be done.
        if let Some(time_wait) = entry.tcp.time_wait().filter(|_| is_reachable) {
            let tuple = entry.tuple;
            self.forget(handle);
            self.tcp.time_waits.insert(&tuple, time_wait);
        } else if entry.tcp.is_closed() {
            // If it ended just now, for want of a route, the application first gets its `Closed`.
            if entry.told {
                queue_dirty(&mut self.tcp.dirty, entry);
            } else {
                self.forget(handle);
            }
        } else {
            arm_timer(&mut self.tcp.wheel, entry);
            if entry
                .notsent_lowat
                .is_some_and(|bytes| entry.notsent_bytes() <= bytes)
            {
                entry.notsent_lowat = None;
                self.ground
                    .app_events
                    .push_back((entry.stream, AppEvent::Writable));
            }
            let becomes_orphan = entry.orphan_since.is_none() && entry.tcp.has_sent_fin();
            if entry.is_to_move {
                self.move_on(handle);
            }
            if becomes_orphan {
                self.bound_orphans(handle);
            }
            if is_share_stale || self.ground.memory.is_near() {
                self.charge(handle, app);
            }
        }
    }

    /// Marks the connection as an orphan, which waits for its peer alone, and aborts the oldest
    /// orphans beyond the limit.
    pub(crate) fn bound_orphans(&mut self, handle: ConnectionHandle) {
        let Some(entry) = self.tcp.connections.get_mut(handle) else {
            return;
        };
        entry.orphan_since = Some(self.tcp.orphans.add(entry.stream));
        // The connection no longer counts as silent.
        self.tcp.gate.on_heard(entry.unheard.take());
        while let Some(oldest) = self.tcp.orphans.take_beyond(self.ground.config.orphans_max) {
            if let Some(entry) = self.tcp.connections.by_stream_mut(oldest) {
                let handle = entry.handle();
                entry.tcp.abort();
                self.ground.counters.orphans_aborted += 1;
                self.mark_dirty(handle);
            }
        }
    }

    /// Reports the connection's events to the application.
    pub(crate) fn pass_on_events<A: Application>(
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
                    if defers_accept(&self.tcp.bindings, now_us, entry) {
                        continue;
                    }
                    entry.told = true;
                    if entry.is_reserved {
                        // Its application bounds how many it holds, silent or not.
                        self.tcp.gate.on_heard(entry.unheard.take());
                    }
                    unreserve(&mut self.tcp.bindings, entry);
                    self.ground.counters.connections_accepted += 1;
                    let tls = None;
                    AppEvent::Accepted { peer, tls }
                }
                ConnectionEvent::Readable => AppEvent::Readable,
                ConnectionEvent::Writable => AppEvent::Writable,
                ConnectionEvent::PeerFinished => AppEvent::PeerFinished,
                ConnectionEvent::Drained => AppEvent::Drained,
                ConnectionEvent::Released { object, .. } => {
                    if let Some(close) = self.ground.files.extent_released(FileId(object)) {
                        self.send_close(close);
                    }
                    continue;
                }
                ConnectionEvent::Closed { reason } => {
                    match self.on_closed(now_us, handle, reason) {
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

    /// TCP has ended: returns the event for the application, if the application has the connection.
    pub(crate) fn on_closed(
        &mut self,
        now_us: u64,
        handle: ConnectionHandle,
        reason: tcp::CloseReason,
    ) -> Option<AppEvent> {
        if self.has_splices() {
            self.on_leg_closed(now_us, handle);
        }
        let entry = self.tcp.connections.get_mut(handle)?;
        let tuple = entry.tuple;
        if reason != tcp::CloseReason::Finished
            && let Some(cookie) = entry.cookie
        {
            self.tcp.gate.on_cookie_spent(now_us, tuple, cookie);
        }
        let reason = match reason {
            _ if entry.data_plane_failed => CloseReason::DataPlaneFailed,
            _ if entry.tls.as_ref().is_some_and(|tls| tls.has_failed) => CloseReason::TlsFailed,
            tcp::CloseReason::Finished => CloseReason::Finished,
            tcp::CloseReason::Refused if entry.is_active => CloseReason::Refused,
            tcp::CloseReason::Reset | tcp::CloseReason::Refused => CloseReason::Reset,
            tcp::CloseReason::Unreachable => CloseReason::Unreachable,
            tcp::CloseReason::TimedOut => CloseReason::TimedOut,
            tcp::CloseReason::Aborted => CloseReason::Aborted,
        };
        let is_delivered = match reason {
            CloseReason::Finished => true,
            CloseReason::Reset | CloseReason::TimedOut | CloseReason::Aborted => {
                entry.is_delivered()
            }
            CloseReason::Refused
            | CloseReason::Unreachable
            | CloseReason::DataPlaneFailed
            | CloseReason::TlsFailed => false,
        };
        let (acknowledged, retransmissions) =
            (entry.acknowledged_bytes(), entry.tcp.retransmissions());
        let told = std::mem::replace(&mut entry.told, false);
        entry.app_deadline_us = None;
        self.end_of_stream(handle);
        if !told {
            return None;
        }
        match is_delivered {
            true => self.ground.counters.connections_finished += 1,
            false => self.ground.counters.connections_broken += 1,
        }
        Some(AppEvent::Closed {
            reason,
            acknowledged,
            retransmissions,
        })
    }

    /// The stream is over: the NIC stack may forget its flow and close its files.
    pub(crate) fn end_of_stream(&mut self, handle: ConnectionHandle) {
        let Some(entry) = self.tcp.connections.get_mut(handle) else {
            return;
        };
        let (worker, flow) = (entry.worker, entry.flow());
        let stream_offset = entry.tcp.acknowledged_bytes();
        // Undeparted SENDs never depart, and are not reported.
        self.ground.sends_outstanding -= std::mem::take(&mut entry.sends_outstanding);
        let files = std::mem::take(&mut entry.files);
        entry.tls = None;
        self.tcp.migrations.forget(StreamId(flow.0));
        if std::mem::replace(&mut entry.flow_open, false) {
            self.ground.counters.ackds += 1;
            self.ground.workers[worker].send_or_defer(Deferred::Acked {
                flow,
                stream_offset,
                last: true,
            });
        }
        for file in files {
            let owned = self
                .ground
                .files
                .by_id(file)
                .is_some_and(|file| file.stream.0 == flow.0);
            if owned && let Some(close) = self.ground.files.stream_over(file) {
                self.send_close(close);
            }
        }
    }

    /// Sends CLOS.
    pub(crate) fn send_close(&mut self, close: MayClose) {
        for worker in [close.worker].into_iter().chain(close.twin) {
            self.ground.counters.closes += 1;
            self.ground.workers[worker].send_or_defer(Deferred::Close { file: close.file });
        }
    }

    /// Sends OPEN or LIST.
    pub(crate) fn send_open(&mut self, worker: usize, file: FileId, path: &[u8], lookup: Lookup) {
        match lookup {
            Lookup::Open(_) => self.ground.counters.opens += 1,
            Lookup::List(_) => self.ground.counters.lists += 1,
        }
        self.ground.workers[worker].open_or_defer(file, path, lookup);
    }

    /// Removes a connection from the table.
    pub(crate) fn forget(&mut self, handle: ConnectionHandle) {
        self.end_of_stream(handle);
        self.forget_candidate(handle);
        self.tcp.wheel.cancel(handle.place());
        if let Some(mut entry) = self.tcp.connections.remove(handle) {
            self.ground.balance.remove(entry.worker);
            self.ground.memory.release(entry.charged_bytes);
            unreserve(&mut self.tcp.bindings, &mut entry);
            if entry.is_active {
                let crate::tables::tuple::Tuple { local, remote } = entry.tuple;
                self.tcp.ephemeral_ports.on_freed(local, remote);
            } else {
                self.tcp.gate.on_heard(entry.unheard.take());
                self.ground.sources.remove(entry.source());
            }
            if let Some(since) = entry.orphan_since {
                self.tcp.orphans.remove(since);
            }
            self.tcp.connections.recycle(entry);
        }
        // Tables that have grown for a crowd go with it.
        if self.tcp.connections.shrink_if_sparse() {
            self.tcp.wheel.shrink();
        }
    }

    pub(crate) fn mark_dirty(&mut self, handle: ConnectionHandle) {
        if let Some(entry) = self.tcp.connections.get_mut(handle) {
            queue_dirty(&mut self.tcp.dirty, entry);
        }
    }

    /// A neighbour may have been found, or given up.
    pub(crate) fn retry_waiting_neighbor(&mut self, now_us: u64) {
        while let Some(handle) = self.tcp.waiting_neighbor.take() {
            self.mark_dirty(handle);
        }
        self.retry_half_open(now_us);
        self.retry_quic_neighbor();
    }

    /// Rings may have room again; call it after every sleep. Connections retry in the order in
    /// which they began to wait; those of full rings keep waiting.
    pub fn retry_waiting_room(&mut self) {
        for nic in &mut self.ground.workers {
            if !nic.waiting.is_empty() && nic.has_room() {
                nic.retries = nic.waiting.len();
            }
        }
    }

    /// Returns the next connection that waits for room in a ring which has some, and marks it
    /// dirty. The others keep waiting: only as many connections are looked at as can send.
    #[inline]
    pub(crate) fn next_with_room(&mut self) -> Option<ConnectionHandle> {
        for nic in &mut self.ground.workers {
            while nic.retries > 0 && nic.has_room() {
                nic.retries -= 1;
                let Some(handle) = nic.waiting.take() else {
                    nic.retries = 0;
                    break;
                };
                // The connection may be gone; if it is dirty, its turn comes in any case.
                if let Some(entry) = self.tcp.connections.get_mut(handle)
                    && !std::mem::replace(&mut entry.dirty, true)
                {
                    return Some(handle);
                }
            }
        }
        None
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
                self.mark_dirty(handle);
            }
        }
        self.close_all_quic(now_us);
        while self.serve(now_us, port, app) && !self.tcp.shaking_hands.is_empty() {}
        round_trip_us
    }
}

/// Queues the connection to be served.
#[inline]
pub(crate) fn queue_dirty(dirty: &mut VecDeque<ConnectionHandle>, entry: &mut Entry) {
    if !std::mem::replace(&mut entry.dirty, true) {
        dirty.push_back(entry.handle());
    }
}

/// Adds the connection's statistics to the counters.
#[inline]
pub(crate) fn count_stats(counters: &mut Counters, entry: &mut Entry) {
    let (round_trips, timestamp_round_trips) = entry.tcp.take_round_trips();
    counters.round_trips += u64::from(round_trips.count);
    counters.round_trips_us += round_trips.sum_us;
    counters.timestamp_round_trips += u64::from(timestamp_round_trips.count);
    counters.timestamp_round_trips_us += timestamp_round_trips.sum_us;
    if entry.tcp.has_rare_stats() {
        count_rare_stats(counters, &entry.tcp.take_stats());
    }
}

/// Adds the statistics that few ACKs change.
#[cold]
pub(crate) fn count_rare_stats(counters: &mut Counters, stats: &tcp::Stats) {
    counters.sends_repeated += u64::from(stats.lost_undeparted);
    counters.timeouts += u64::from(stats.timeouts);
    counters.spurious_timeouts += u64::from(stats.spurious_timeouts);
    counters.ecn_reductions += u64::from(stats.ecn_reductions);
    counters.timestamps_missing += u64::from(stats.timestamps_missing);
}

/// Updates the number of undeparted SENDs of a connection, and of all. TCP learns of departures
/// from reports, and from the peer's acknowledgments even if a report is lost.
pub(crate) fn count_sends(sends_outstanding: &mut u64, entry: &mut Entry) {
    let undeparted = entry.tcp.undeparted_transmissions() as u64;
    *sends_outstanding -= std::mem::replace(&mut entry.sends_outstanding, undeparted);
    *sends_outstanding += undeparted;
}

/// Arms the connection's timer for its earliest deadline. One that has moved away leaves the timer
/// where it is: it fires, and is armed for the later time.
pub(crate) fn arm_timer(wheel: &mut TimerWheel, entry: &mut Entry) {
    let tcp_us = entry.tcp.next_timeout().map_or(u64::MAX, Instant::as_us);
    let mut deadline_us = tcp_us.min(entry.app_deadline_us.unwrap_or(u64::MAX));
    if let Some(tls) = &entry.tls {
        deadline_us = deadline_us.min(tls.deadline_us().unwrap_or(u64::MAX));
    }
    if deadline_us < entry.armed_us {
        entry.armed_us = deadline_us;
        wheel.arm(entry.handle().place(), deadline_us);
    }
}
