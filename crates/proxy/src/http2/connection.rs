//! The life of one connection that carries HTTP/2, from a client or to a backend: its streams, and
//! how it ends.
//!
//! ```text
//!            drain                    a second later
//!  Serving ────────▶ Announced (GOAWAY) ─────────▶ Leaving (GOAWAY with the last ID)
//!     │ idle, fault (GOAWAY)                          │ no stream is left
//!     └──────────────────────▶ Closing (FIN) ◀────────┘
//!                                 └──▶ Closed
//! ```
//!
//! A connection to a backend only knows `Serving` and what follows an idle time, a fault, or the
//! backend's GOAWAY; `backend` has the differences.
//!
//! The TCP stream has one timer: the earliest of the connection's deadlines and its streams'.

mod backend;
mod frames;

use std::collections::BTreeMap;
use std::time::Duration;

use host::app::{AppEvent, CloseReason, Io, StreamId};
use http2::bounds::{ANNOUNCED_FOR, UNSENT_BYTES_LOW, UNSENT_BYTES_MAX};
use http2::budget::{Budget, FreeWindowUpdates, STREAM_TOKENS};
use http2::code::{Code, Fault};
use http2::frame::{self, STREAM_ID_MAX};
use http2::frame_reader::FrameReader;
use http2::hpack::decode::Decoder;
use http2::priority::EarlyPriorities;
use http2::scheduler::Scheduler;
use http2::settings;
use http2::stream_ids::StreamIds;
use http2::window::HeldWindow;

use self::backend::ToBackend;
use super::names::{Names, Notice};
use super::request::section_bytes_max;
use super::stream::{Stream, Turn};
use super::writer::Writer;
use crate::arrival::Arrival;
use crate::buffer::Buffer;
use crate::shared::Shared;

/// Time that a peer has after GOAWAY to close.
const LINGER: Duration = Duration::from_secs(5);

/// Bytes of all requests of a client that sessions have not read, at most: 16 streams of which a
/// backend takes nothing delay the connection's further bodies.
const WINDOW_BYTES: u32 = 1 << 20;

/// DATA whose content has yet to arrive.
#[derive(Clone, Copy, Debug)]
struct Incoming {
    stream: u32,
    left_bytes: u32,
    ends_stream: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Serving,
    /// The client has GOAWAY without a limit; requests in flight are still accepted.
    Announced,
    /// Streams beyond this ID are refused.
    Leaving(u32),
    /// No stream is left; FIN follows the last frame. Received bytes are discarded.
    Closing {
        has_fin: bool,
    },
    /// The connection is reset; `Closed` follows.
    Aborted,
}

/// The peer.
#[derive(Debug)]
enum Side {
    Client(Arrival),
    Backend(Box<ToBackend>),
}

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct Connection {
    stream: StreamId,
    side: Side,
    stage: Stage,
    /// Received bytes that are no whole frame.
    input: Buffer,
    /// The TCP stream may hold unread bytes.
    unread: bool,
    /// The peer has sent FIN.
    peer_finished: bool,
    /// The client's preface has arrived.
    has_preface: bool,
    /// The peer's first SETTINGS have arrived.
    has_settings: bool,
    /// The peer has sent GOAWAY.
    peer_leaves: bool,
    reader: FrameReader,
    decoder: Decoder,
    incoming: Option<Incoming>,
    writer: Writer,
    receive: HeldWindow,
    streams: BTreeMap<u32, Box<Stream>>,
    scheduler: Scheduler,
    /// Streams that wait for the window of the connection.
    blocked: Vec<u32>,
    priorities: EarlyPriorities,
    ids: StreamIds,
    budget: Budget,
    free_updates: FreeWindowUpdates,
    /// Time of the next look at a connection without streams, in microseconds, ...
    idle_us: Option<u64>,
    /// ... and bytes that the peer had acknowledged at the last one.
    acknowledged: u64,
    /// When the peer must have acknowledged SETTINGS; before a backend has sent its own, when these
    /// must be here.
    settings_us: Option<u64>,
    /// When the stage ends by itself.
    stage_us: Option<u64>,
    /// When the timer of the TCP stream expires.
    armed_us: Option<u64>,
}

/// The surroundings of a connection.
pub(super) struct World<'a> {
    pub(super) io: &'a mut dyn Io,
    pub(super) shared: &'a mut Shared,
    pub(super) names: &'a mut Names,
}

impl Connection {
    /// Begins a connection, of which `input` has been read already: sends SETTINGS.
    pub(super) fn open(
        world: &mut World<'_>,
        stream: StreamId,
        arrival: Arrival,
        input: Buffer,
    ) -> Self {
        let window = HeldWindow::new(WINDOW_BYTES);
        let mut connection = Connection::new(world, stream, Side::Client(arrival), window);
        connection.input = input;
        connection.begin(world);
        connection.read(world);
        connection.advance(world);
        connection
    }

    fn new(world: &World<'_>, stream: StreamId, side: Side, receive: HeldWindow) -> Self {
        Connection {
            stream,
            side,
            stage: Stage::Serving,
            input: Buffer::default(),
            unread: true,
            peer_finished: false,
            has_preface: false,
            has_settings: false,
            peer_leaves: false,
            reader: FrameReader::default(),
            decoder: Decoder::default(),
            incoming: None,
            writer: Writer::new(stream),
            receive,
            streams: BTreeMap::new(),
            scheduler: Scheduler::default(),
            blocked: Vec::new(),
            priorities: EarlyPriorities::default(),
            ids: StreamIds::default(),
            budget: Budget::new(world.io.now_us()),
            free_updates: FreeWindowUpdates::default(),
            idle_us: None,
            acknowledged: 0,
            settings_us: None,
            stage_us: None,
            armed_us: None,
        }
    }

    /// Sends SETTINGS, and the window of the connection.
    fn begin(&mut self, world: &World<'_>) {
        let config = &world.shared.config;
        let section_bytes_max = section_bytes_max(config.head_bytes_max);
        let control = self.writer.control();
        settings::write(control, config.http2_streams_max, section_bytes_max);
        if let Some(increment) = self.receive.refill() {
            frame::window_update(control, 0, increment);
        }
        self.settings_us = Some(after(world.io, config.head_timeout));
        if world.shared.is_draining {
            self.announce(world.io);
        }
    }

    /// How the client has arrived.
    pub(super) fn arrival(&self) -> Option<Arrival> {
        match self.side {
            Side::Client(arrival) => Some(arrival),
            Side::Backend(_) => None,
        }
    }

    /// Handles an event of the TCP stream, and advances as far as possible.
    pub(super) fn on_event(&mut self, world: &mut World<'_>, event: &AppEvent) {
        match *event {
            AppEvent::Readable => self.unread = true,
            AppEvent::PeerFinished => {
                (self.unread, self.peer_finished) = (true, true);
                // The peer can acknowledge SETTINGS no longer.
                self.settings_us = None;
            }
            AppEvent::Timer => self.expired(world),
            AppEvent::Connected => self.connected(world),
            _ => {}
        }
        self.read(world);
        if *event == AppEvent::PeerFinished {
            self.cut_incoming(world.names);
            if !self.has_settings {
                self.close_waiting(world.names, CloseReason::Reset);
            }
        }
        self.advance(world);
    }

    /// The peer sends no more: messages without an end are cut short.
    fn cut_incoming(&self, names: &mut Names) {
        let streams = self
            .streams
            .values()
            .filter(|stream| !stream.incoming_ended);
        let finished = streams.map(|it| Notice::Event(it.name, AppEvent::PeerFinished));
        names.notices.extend(finished);
    }

    /// Begins a graceful shutdown: announces it, and closes once open streams are answered.
    pub(super) fn drain(&mut self, world: &mut World<'_>) {
        if self.stage == Stage::Serving && self.arrival().is_some() {
            self.announce(world.io);
        }
        self.advance(world);
    }

    fn announce(&mut self, io: &dyn Io) {
        self.stage = Stage::Announced;
        self.stage_us = Some(after(io, ANNOUNCED_FOR));
        frame::goaway(self.writer.control(), STREAM_ID_MAX, Code::NO_ERROR, "");
    }

    /// The TCP stream is over: so are all streams.
    pub(super) fn closed(mut self, world: &mut World<'_>, reason: CloseReason) {
        self.set_idle(world, false);
        self.close_streams(world.names, reason);
    }

    /// Memory of frames and of streams, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        let streams = self.streams.values().map(|stream| stream.memory_bytes());
        let frames = self.reader.memory_bytes() + self.decoder.memory_bytes();
        streams.sum::<usize>() + self.input.memory_bytes() + frames + self.writer.memory_bytes()
    }

    /// Names of the streams.
    pub(super) fn names(&self) -> impl Iterator<Item = StreamId> {
        self.streams.values().map(|stream| stream.name)
    }

    pub(super) fn stream(&self, id: u32) -> Option<&Stream> {
        self.streams.get(&id).map(|stream| &**stream)
    }

    /// A session reads from a stream.
    pub(super) fn read_stream(&mut self, id: u32, buffer: &mut [u8]) -> usize {
        let Some(stream) = self.streams.get_mut(&id) else {
            return 0;
        };
        let (count, consumed) = stream.read(buffer);
        stream.receive.consume(consumed);
        self.refill(id);
        self.consumed(consumed);
        count
    }

    /// Opens a stream's window if half of it is consumed.
    fn refill(&mut self, id: u32) {
        if let Some(stream) = self.streams.get_mut(&id)
            && !stream.incoming_ended
            && let Some(increment) = stream.receive.refill()
        {
            frame::window_update(self.writer.control(), id, increment);
        }
    }

    /// Content is consumed, or discarded.
    fn consumed(&mut self, bytes: u32) {
        self.receive.consume(bytes);
        if let Some(increment) = self.receive.refill() {
            frame::window_update(self.writer.control(), 0, increment);
        }
    }

    /// A session writes to a stream.
    pub(super) fn write_stream(&mut self, id: u32, bytes: &[u8]) -> usize {
        let Some(stream) = self.streams.get_mut(&id) else {
            return 0;
        };
        let count = stream.write(bytes);
        self.make_ready(id);
        count
    }

    /// The session writes nothing more to a client's stream. The rest of a request without an end
    /// is unwanted (RFC 9113 §8.1): END_STREAM, then RST_STREAM follow the response.
    pub(super) fn end_outgoing(&mut self, names: &mut Names, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        names
            .notices
            .push_back(Notice::Event(stream.name, AppEvent::PeerFinished));
        self.make_ready(id);
    }

    /// The session has gone, and leaves the rest of its response.
    pub(super) fn leave(&mut self, names: &mut Names, id: u32, deadline_us: u64) {
        if self.arrival().is_none() {
            return self.release(names, id, deadline_us);
        }
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.is_left = true;
            stream.deadline_us = Some(deadline_us);
            self.make_ready(id);
            self.remove_if_over(names, id);
        }
    }

    /// The session resets a stream.
    pub(super) fn abort_stream(&mut self, names: &mut Names, id: u32) {
        if self.arrival().is_none() {
            return self.release(names, id, 0);
        }
        if self.streams.contains_key(&id) {
            self.reset_stream(names, id, Code::INTERNAL_ERROR);
        }
    }

    /// Sets the time at which a session's timer expires, in microseconds.
    pub(super) fn set_deadline(&mut self, id: u32, deadline_us: Option<u64>) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.deadline_us = deadline_us;
        }
    }

    /// A stream may have something to write.
    fn make_ready(&mut self, id: u32) {
        if let Some(stream) = self.streams.get_mut(&id)
            && stream.place.is_none()
            && !stream.outgoing.is_ended()
        {
            stream.place = Some(self.scheduler.add(id, stream.rank()));
        }
    }

    /// Settles acknowledgments, writes, and sets the timer.
    pub(super) fn advance(&mut self, world: &mut World<'_>) {
        if self.stage == Stage::Aborted {
            return;
        }
        self.note_progress(world.io);
        while let Some((id, bytes)) = self.writer.acknowledge(world.io) {
            if let Some(stream) = self.streams.get_mut(&id)
                && stream.acknowledge(bytes)
            {
                let drained = Notice::Event(stream.name, AppEvent::Drained);
                world.names.notices.push_back(drained);
            }
        }
        self.write(world);
        self.end_if_done(world);
        self.look_at_idleness(world);
        self.arm(world.io);
    }

    /// Streams write in turns, as far as the TCP stream is about to send.
    fn write(&mut self, world: &mut World<'_>) {
        loop {
            let is_flushed = self.writer.flush(world.io);
            if !is_flushed || self.scheduler.is_empty() {
                return;
            }
            let usable = world.io.usable_window(self.stream);
            if world.io.unsent(self.stream) >= usable.saturating_add(UNSENT_BYTES_MAX) {
                world.io.set_notsent_lowat(self.stream, UNSENT_BYTES_LOW);
                return;
            }
            let Some(id) = self.scheduler.pop() else {
                return;
            };
            self.take_turn(world, id);
        }
    }

    fn take_turn(&mut self, world: &mut World<'_>, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.place = None;
        let turn = stream.take_turn(&mut self.writer);
        if stream.takes_writable() {
            let writable = Notice::Event(stream.name, AppEvent::Writable);
            world.names.notices.push_back(writable);
        }
        match turn {
            Turn::Wrote => {
                if stream.is_left {
                    let timeout = world.shared.config.idle_timeout;
                    stream.deadline_us = Some(after(world.io, timeout));
                }
                self.free_updates.on_data();
                self.make_ready(id);
            }
            // A session that leaves its response before the end has a fault.
            Turn::Idle if stream.is_left => {
                self.reset_stream(world.names, id, Code::INTERNAL_ERROR);
            }
            Turn::Idle => {}
            Turn::Blocked => {
                let has_window = stream.window.available() > 0;
                if has_window && !self.blocked.contains(&id) {
                    self.blocked.push(id);
                }
            }
            Turn::Ended => self.outgoing_ended(world, id),
        }
    }

    /// END_STREAM is written.
    fn outgoing_ended(&mut self, world: &mut World<'_>, id: u32) {
        self.free_updates.on_data();
        if self.arrival().is_none() {
            return;
        }
        self.budget.earn();
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        if !stream.incoming_ended {
            let name = stream.name;
            let discarded = stream.drop_incoming();
            self.consumed(discarded);
            frame::rst_stream(self.writer.control(), id, Code::NO_ERROR);
            self.ids.note_reset(id);
            let finished = Notice::Event(name, AppEvent::PeerFinished);
            world.names.notices.push_back(finished);
        }
        self.remove_if_over(world.names, id);
    }

    fn remove_if_over(&mut self, names: &mut Names, id: u32) {
        if self.streams.get(&id).is_some_and(|stream| stream.is_over()) {
            self.remove(names, id);
        }
    }

    /// As many streams are open as may be.
    fn is_full(&self, streams_max: u32) -> bool {
        self.streams.len() >= streams_max as usize
    }

    /// Resets a stream, and forgets it.
    fn reset_stream(&mut self, names: &mut Names, id: u32, code: Code) {
        let is_to_backend = self.arrival().is_none();
        let is_over = self.streams.get(&id).is_some_and(|stream| {
            let is_idle = is_to_backend && stream.outgoing.is_in_head();
            // RFC 9113 §6.4: no RST_STREAM for a stream whose HEADERS have not left.
            is_idle || stream.incoming_ended && stream.outgoing.is_ended()
        });
        if !is_over {
            frame::rst_stream(self.writer.control(), id, code);
            self.ids.note_reset(id);
        }
        self.remove(names, id);
    }

    /// Forgets a stream; a session that still uses it learns that it is over.
    fn remove(&mut self, names: &mut Names, id: u32) {
        let Some(mut stream) = self.streams.remove(&id) else {
            return;
        };
        if let Some(place) = stream.place {
            self.scheduler.remove(place);
        }
        self.blocked.retain(|&blocked| blocked != id);
        names.remove(&mut stream, CloseReason::Reset);
        let discarded = stream.drop_incoming();
        self.consumed(discarded);
    }

    fn close_streams(&mut self, names: &mut Names, reason: CloseReason) {
        while let Some((_, mut stream)) = self.streams.pop_first() {
            names.remove(&mut stream, reason);
        }
        self.close_waiting(names, reason);
        self.scheduler = Scheduler::default();
        self.blocked.clear();
    }

    /// Ends the stream or the connection of a fault.
    fn judge(&mut self, world: &mut World<'_>, fault: Fault) {
        match fault {
            Fault::Stream(id, code) => {
                let (stream, code_number) = (self.stream.0, code.0);
                tracing::debug!(stream, id, code = code_number, "stream error");
                let counters = &mut world.shared.counters;
                match self.side {
                    Side::Client(_) => counters.http2_stream_errors += 1,
                    Side::Backend(_) => counters.backend_http2_stream_errors += 1,
                }
                self.reset_stream(world.names, id, code);
                // A request may have taken a connection to a backend.
                if let Err(exhausted) = self.budget.spend(world.io.now_us(), STREAM_TOKENS) {
                    self.judge(world, exhausted.into());
                }
            }
            Fault::Connection(code, why) => {
                let stream = self.stream.0;
                tracing::debug!(stream, code = code.0, why, "connection error");
                let is_excessive = u64::from(code == Code::ENHANCE_YOUR_CALM);
                let counters = &mut world.shared.counters;
                match self.side {
                    Side::Client(_) => {
                        counters.http2_connection_errors += 1;
                        counters.http2_excessive_loads += is_excessive;
                    }
                    Side::Backend(_) => counters.backend_http2_connection_errors += 1,
                }
                self.close(world, code, why);
            }
        }
    }

    /// Sends GOAWAY, and closes once it is written.
    fn close(&mut self, world: &mut World<'_>, code: Code, why: &str) {
        if matches!(self.stage, Stage::Closing { .. } | Stage::Aborted) {
            return;
        }
        // RFC 9113 §6.8: it never increases. A backend has no streams of its own.
        let last_id = match (self.stage, &self.side) {
            (_, Side::Backend(_)) => 0,
            (Stage::Leaving(last_id), _) => last_id,
            _ => self.ids.last(),
        };
        frame::goaway(self.writer.control(), last_id, code, why);
        self.finish(world);
    }

    /// FIN follows the written frames.
    fn finish(&mut self, world: &mut World<'_>) {
        self.set_idle(world, false);
        self.close_streams(world.names, CloseReason::Reset);
        self.reader = FrameReader::default();
        (self.incoming, self.settings_us, self.idle_us) = (None, None, None);
        self.stage = Stage::Closing { has_fin: false };
        self.stage_us = Some(after(world.io, LINGER));
    }

    /// Closes a connection that has no stream left and gets no further one.
    fn end_if_done(&mut self, world: &mut World<'_>) {
        let is_idle = self.streams.is_empty() && self.is_none_waiting();
        let peer_leaves = self.peer_leaves || self.is_unwanted(world.shared);
        let has_peer_closed = self.peer_finished && !self.unread;
        match self.stage {
            Stage::Leaving(_) if is_idle => self.finish(world),
            // GOAWAY would reach a client that has closed its socket: its kernel answers with RST.
            Stage::Serving | Stage::Announced if is_idle && has_peer_closed => self.finish(world),
            Stage::Serving | Stage::Announced if is_idle && peer_leaves => {
                self.close(world, Code::NO_ERROR, "");
            }
            _ => {}
        }
        let may_finish = self.may_finish();
        if let Stage::Closing { has_fin } = &mut self.stage
            && !*has_fin
            && self.writer.flush(world.io)
            && may_finish
        {
            *has_fin = true;
            world.io.shutdown(self.stream);
        }
    }

    /// Without streams, a connection has the keep-alive timeout, and before SETTINGS that of heads.
    fn look_at_idleness(&mut self, world: &mut World<'_>) {
        let is_serving = !matches!(self.stage, Stage::Closing { .. } | Stage::Aborted);
        let is_idle = self.streams.is_empty() && self.is_none_waiting() && is_serving;
        self.set_idle(world, is_idle);
    }

    fn set_idle(&mut self, world: &mut World<'_>, is_idle: bool) {
        if is_idle == self.idle_us.is_some() {
            return;
        }
        let config = &world.shared.config;
        let timeout = match (&self.side, self.has_settings) {
            (Side::Backend(_), _) => config.backend_idle_timeout,
            (_, true) => config.keepalive_timeout,
            (_, false) => config.head_timeout,
        };
        self.acknowledged = world.io.acknowledged(self.stream);
        self.idle_us = is_idle.then(|| after(world.io, timeout));
        world.io.set_idle(self.stream, is_idle);
        if let Side::Backend(backend) = &self.side {
            world
                .shared
                .pools
                .count_idle_http2(backend.backend, is_idle);
        }
    }

    /// Sets the timer of the TCP stream to the earliest deadline.
    fn arm(&mut self, io: &mut dyn Io) {
        let streams = self.streams.values().map(|stream| stream.deadline_us);
        let own = [self.idle_us, self.settings_us, self.stage_us];
        let earliest_us = own.into_iter().chain(streams).flatten().min();
        if earliest_us != self.armed_us {
            self.armed_us = earliest_us;
            let now_us = io.now_us();
            let after = earliest_us.map(|at_us| at_us.saturating_sub(now_us));
            io.set_timer(self.stream, after.map(Duration::from_micros));
        }
    }

    /// The timer has expired: handles each deadline that is over.
    fn expired(&mut self, world: &mut World<'_>) {
        self.armed_us = None;
        let now_us = world.io.now_us();
        let is_over =
            |deadline_us: &mut Option<u64>| deadline_us.take_if(|at_us| *at_us <= now_us).is_some();
        if is_over(&mut self.settings_us) && !self.is_late_backend(world) {
            let why = "SETTINGS that are not acknowledged";
            self.judge(world, Fault::Connection(Code::SETTINGS_TIMEOUT, why));
        }
        if is_over(&mut self.stage_us) {
            self.stage_expired(world);
        }
        if is_over(&mut self.idle_us) {
            self.idle_expired(world);
        }
        let streams = self.streams.values_mut();
        let due: Vec<u32> = streams
            .filter_map(|stream| is_over(&mut stream.deadline_us).then_some(stream.id))
            .collect();
        for id in due {
            let Some(stream) = self.streams.get(&id) else {
                continue;
            };
            match stream.is_left {
                true => self.reset_stream(world.names, id, Code::CANCEL),
                false => {
                    let timer = Notice::Event(stream.name, AppEvent::Timer);
                    world.names.notices.push_back(timer);
                }
            }
        }
    }

    fn stage_expired(&mut self, world: &mut World<'_>) {
        match self.stage {
            Stage::Announced => {
                self.stage = Stage::Leaving(self.ids.last());
                frame::goaway(self.writer.control(), self.ids.last(), Code::NO_ERROR, "");
            }
            Stage::Closing { .. } => {
                world.io.abort(self.stream);
                self.stage = Stage::Aborted;
            }
            _ => {}
        }
    }

    fn idle_expired(&mut self, world: &mut World<'_>) {
        let acknowledged = world.io.acknowledged(self.stream);
        let has_moved = std::mem::replace(&mut self.acknowledged, acknowledged) != acknowledged;
        if has_moved && world.io.unacknowledged(self.stream) > 0 {
            let timeout = match self.side {
                Side::Client(_) => world.shared.config.keepalive_timeout,
                Side::Backend(_) => world.shared.config.backend_idle_timeout,
            };
            self.idle_us = Some(after(world.io, timeout));
            return;
        }
        self.close(world, Code::NO_ERROR, "");
    }
}

/// The time after this one, in microseconds.
fn after(io: &dyn Io, time: Duration) -> u64 {
    let time_us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    io.now_us().saturating_add(time_us)
}
