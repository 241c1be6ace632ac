//! The life of one connection that carries HTTP/2: its streams, and how it ends.
//!
//! ```text
//!            drain                    a second later
//!  Serving ────────▶ Announced (GOAWAY) ─────────▶ Leaving (GOAWAY with the last ID)
//!     │ idle, fault (GOAWAY)                          │ no stream is left
//!     └──────────────────────▶ Closing (FIN) ◀────────┘
//!                                 └──▶ Closed
//! ```
//!
//! The TCP stream has one timer: the earliest of the connection's deadlines and its streams'.

mod frames;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use host::app::{AppEvent, FileHandle, Io, StreamId, TlsAgreed};

use crate::access::Accesses;
use crate::exchange::client::Arrival;
use crate::exchange::field_section::{self, Scratch};
use crate::exchange::input::Input;
use crate::exchange::lifecycle::ConnectionInfo;
use crate::exchange::shared::Shared;
use crate::exchange::watch::{Expiry, Progress, Wait, Watch};
use crate::http2::frame_writer::FrameWriter;
use crate::http2::stream::{Context, Stream, Turn};
use crate::http2::stream_io::Owners;
use crate::semantics::pull::{OriginEvent, Ticket};
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
use http2::window::ReceiveWindow;

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: StreamId,
    arrival: Arrival,
    tls: Option<Box<TlsAgreed>>,
    /// Its responses are logged.
    is_logged: bool,
    stage: Stage,
    input: Input,
    /// The TCP stream may hold unread bytes.
    unread: bool,
    /// The peer has sent FIN.
    peer_finished: bool,
    /// The client may speak HTTP/1.1 instead: its first bytes decide.
    is_undecided: bool,
    /// It does.
    is_http1: bool,
    /// The client's preface has arrived.
    has_preface: bool,
    /// The client's first SETTINGS have arrived.
    has_settings: bool,
    /// The client has sent GOAWAY.
    peer_leaves: bool,
    reader: FrameReader,
    decoder: Decoder,
    writer: FrameWriter,
    receive: ReceiveWindow,
    streams: BTreeMap<u32, Box<Stream>>,
    /// IDs of the streams by their names.
    names: HashMap<StreamId, u32>,
    owners: Owners,
    scheduler: Scheduler,
    /// Streams that wait for the window of the connection.
    blocked: Vec<u32>,
    priorities: EarlyPriorities,
    ids: StreamIds,
    /// Requests so far.
    requests: u32,
    budget: Budget,
    free_updates: FreeWindowUpdates,
    watch: Watch,
    /// When the watch expires, in microseconds.
    watch_us: Option<u64>,
    /// When the client must have acknowledged SETTINGS.
    settings_us: Option<u64>,
    /// When the stage ends by itself.
    stage_us: Option<u64>,
    /// When the timer of the TCP stream expires.
    armed_us: Option<u64>,
    /// See [`Context::other_rates`].
    other_rates: Vec<(StreamId, Option<u64>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Serving,
    /// The client has GOAWAY without a limit; requests in flight are still accepted.
    Announced,
    /// Streams beyond this ID are refused.
    Leaving(u32),
    /// No stream is left; FIN follows the last frame. Received bytes are discarded, this many.
    Closing {
        has_fin: bool,
        discard_bytes: u64,
    },
    /// The connection is reset; `Closed` follows.
    Aborted,
}

/// The result of a handshake.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) arrival: Arrival,
    pub(crate) tls: Option<Box<TlsAgreed>>,
    /// Responses are logged.
    pub(crate) is_logged: bool,
    /// The client may speak HTTP/1.1 instead.
    pub(crate) is_undecided: bool,
}

/// The context of a stream, from fields of the connection.
macro_rules! context {
    ($connection:ident, $io:ident, $shared:ident) => {
        &mut Context {
            io: &mut *$io,
            shared: &mut *$shared,
            writer: &mut $connection.writer,
            other_rates: &mut $connection.other_rates,
            owners: &mut $connection.owners,
        }
    };
}
use context;

impl Connection {
    /// Begins a connection: sends SETTINGS.
    pub(crate) fn open(
        io: &mut dyn Io,
        shared: &mut Shared,
        stream: StreamId,
        accepted: Accepted,
    ) -> Self {
        let mut connection = Connection {
            stream,
            arrival: accepted.arrival,
            tls: accepted.tls,
            is_logged: accepted.is_logged,
            stage: Stage::Serving,
            input: Input::default(),
            unread: false,
            peer_finished: false,
            is_undecided: accepted.is_undecided,
            is_http1: false,
            has_preface: false,
            has_settings: false,
            peer_leaves: false,
            reader: FrameReader::default(),
            decoder: Decoder::default(),
            writer: FrameWriter::new(stream),
            receive: ReceiveWindow::INITIAL,
            streams: BTreeMap::new(),
            names: HashMap::new(),
            owners: Owners::new(),
            scheduler: Scheduler::default(),
            blocked: Vec::new(),
            priorities: EarlyPriorities::default(),
            ids: StreamIds::default(),
            requests: 0,
            budget: Budget::new(io.now_us()),
            free_updates: FreeWindowUpdates::default(),
            watch: Watch::default(),
            watch_us: None,
            settings_us: None,
            stage_us: None,
            armed_us: None,
            other_rates: Vec::new(),
        };
        if !connection.is_undecided {
            connection.begin(io, shared);
        }
        connection.advance(io, shared);
        connection
    }

    /// Sends SETTINGS.
    fn begin(&mut self, io: &dyn Io, shared: &Shared) {
        let config = &shared.config;
        let section_bytes_max = field_section::section_bytes_max(config);
        let section_bytes_max = u32::try_from(section_bytes_max).unwrap_or(u32::MAX);
        let control = self.writer.control();
        settings::write(control, config.http2_streams_max, section_bytes_max);
        let timeout_us = micros(config.head_timeout);
        let at_us = io.now_us().saturating_add(timeout_us);
        self.settings_us = (!self.peer_finished).then_some(at_us);
        if shared.is_draining {
            self.announce(io);
        }
    }

    /// The client speaks HTTP/1.1: the received bytes, whether more may be unread, and whether the
    /// client has sent FIN.
    pub(crate) fn take_http1(&mut self) -> Option<(Input, bool, bool)> {
        self.is_http1.then(|| {
            let input = std::mem::take(&mut self.input);
            (input, self.unread, self.peer_finished)
        })
    }

    /// Handles an event of the TCP stream, and advances as far as possible.
    pub(crate) fn on_event(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        scratch: &mut Scratch,
        event: &AppEvent,
    ) {
        match *event {
            AppEvent::Readable => self.unread = true,
            AppEvent::PeerFinished => {
                (self.unread, self.peer_finished) = (true, true);
                // The client can acknowledge SETTINGS no longer.
                self.settings_us = None;
            }
            AppEvent::Timer => self.expired(io, shared),
            AppEvent::Opened { file, .. }
            | AppEvent::OpenFailed { file, .. }
            | AppEvent::Listed { file, .. } => self.on_file(io, shared, file, event),
            _ => {}
        }
        self.read(io, shared, scratch);
        if !self.is_http1 {
            self.advance(io, shared);
        }
    }

    /// Handles news from the fetcher for the stream of this name, and advances as far as possible.
    pub(crate) fn on_news(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        name: StreamId,
        (ticket, news): (Ticket, OriginEvent),
    ) {
        if let Some(&id) = self.names.get(&name)
            && let Some(stream) = self.streams.get_mut(&id)
        {
            stream.on_news(context!(self, io, shared), ticket, news);
            self.make_ready(id);
        }
        self.advance(io, shared);
    }

    /// Begins a graceful shutdown: announces it, and closes once open streams are answered.
    pub(crate) fn drain(&mut self, io: &mut dyn Io, shared: &mut Shared) {
        match self.stage {
            Stage::Serving if self.is_undecided => self.close(io, shared, Code::NO_ERROR, ""),
            Stage::Serving => self.announce(io),
            _ => {}
        }
        self.advance(io, shared);
    }

    fn announce(&mut self, io: &dyn Io) {
        self.stage = Stage::Announced;
        self.stage_us = Some(io.now_us().saturating_add(micros(ANNOUNCED_FOR)));
        frame::goaway(self.writer.control(), STREAM_ID_MAX, Code::NO_ERROR, "");
    }

    /// Where it comes from.
    pub(crate) fn arrival(&self) -> Arrival {
        self.arrival
    }

    /// Memory for requests, responses and frames, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let streams = self.streams.values().map(|stream| stream.memory_bytes());
        streams.sum::<usize>()
            + self.blocked.capacity() * size_of::<u32>()
            + self.names.capacity() * size_of::<(StreamId, u32)>()
            + self.owners.capacity() * size_of::<(FileHandle, u32)>()
            + self.input.memory_bytes()
            + self.reader.memory_bytes()
            + self.decoder.memory_bytes()
            + self.writer.memory_bytes()
    }

    /// The current state of the connection: that of the stream which has been open for longest.
    pub(crate) fn info(&self) -> ConnectionInfo {
        let first = self.streams.values().next().map(|stream| stream.info());
        let phase = match self.stage {
            Stage::Closing { .. } => "lingering",
            Stage::Aborted => "aborted",
            _ => first.as_ref().map_or("reading", |first| first.phase),
        };
        ConnectionInfo {
            phase,
            requests: self.requests,
            site: first.as_ref().and_then(|first| first.site.clone()),
            object: first.and_then(|first| first.object),
        }
    }

    /// The TCP stream is over, and its files are closed: releases all resources.
    pub(crate) fn closed(mut self, io: &mut dyn Io, shared: &mut Shared) {
        let streams = self.streams.values_mut();
        streams.for_each(|stream| stream.output.forget_files());
        self.close_streams(io, shared);
        self.input.release(&mut shared.pool);
    }

    fn close_streams(&mut self, io: &mut dyn Io, shared: &mut Shared) {
        self.names.clear();
        while let Some((_, stream)) = self.streams.pop_first() {
            let is_cancelled = !stream.output.is_ended();
            stream.closed(context!(self, io, shared), is_cancelled);
        }
        self.scheduler = Scheduler::default();
        self.blocked.clear();
    }

    /// A file has been opened, or could not be.
    fn on_file(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        file: FileHandle,
        event: &AppEvent,
    ) {
        // If its stream is over, that has closed it.
        let Some(&id) = self.owners.get(&file) else {
            return;
        };
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.on_event(context!(self, io, shared), event);
        self.make_ready(id);
    }

    /// A stream may have something to write.
    fn make_ready(&mut self, id: u32) {
        if let Some(stream) = self.streams.get_mut(&id)
            && stream.place.is_none()
        {
            stream.place = Some(self.scheduler.add(id, stream.priority()));
        }
    }

    /// Streams of the connection's other streams have other rates.
    fn apply_rates(&mut self) {
        while let Some((name, rate)) = self.other_rates.pop() {
            let id = self.names.get(&name);
            if let Some(stream) = id.and_then(|id| self.streams.get_mut(id)) {
                stream.output.pacing_rate = rate;
            }
        }
    }

    /// Settles acknowledgments, writes, and sets the timer.
    fn advance(&mut self, io: &mut dyn Io, shared: &mut Shared) {
        self.acknowledge(io, shared);
        self.write(io, shared);
        self.end_if_done(io, shared);
        self.apply_rates();
        self.input.release_if_empty(&mut shared.pool);
        self.watch(io, shared);
        self.arm(io);
    }

    /// Streams learn which of their bytes have been acknowledged.
    fn acknowledge(&mut self, io: &mut dyn Io, shared: &mut Shared) {
        while let Some((id, bytes)) = self.writer.acknowledge(io) {
            let Some(stream) = self.streams.get_mut(&id) else {
                continue;
            };
            stream.output.acknowledge(bytes);
            if stream.output.unacknowledged() > 0 {
                continue;
            }
            stream.on_event(context!(self, io, shared), &AppEvent::Drained);
            match stream.is_over() {
                true => self.remove(io, shared, id, false),
                false => self.make_ready(id),
            }
        }
    }

    /// Streams write in turns, as far as the TCP stream is about to send.
    fn write(&mut self, io: &mut dyn Io, shared: &mut Shared) {
        while self.stage != Stage::Aborted {
            self.writer.flush(io);
            if self.writer.is_blocked() || self.scheduler.is_empty() {
                return;
            }
            let bytes_max = io
                .usable_window(self.stream)
                .saturating_add(UNSENT_BYTES_MAX);
            if io.unsent(self.stream) >= bytes_max {
                io.set_notsent_lowat(self.stream, UNSENT_BYTES_LOW);
                return;
            }
            let Some(id) = self.scheduler.pop() else {
                return;
            };
            self.take_turn(io, shared, id);
        }
    }

    fn take_turn(&mut self, io: &mut dyn Io, shared: &mut Shared, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.place = None;
        // The timer makes it ready again.
        if stream.paced_until_us(io.now_us()).is_some() {
            return;
        }
        match stream.take_turn(context!(self, io, shared)) {
            Turn::Wrote => {
                self.free_updates.on_data();
                self.make_ready(id);
            }
            Turn::Idle => {
                let has_window = stream.output.window.available() > 0;
                let is_waiting = stream.output.is_begun() && !stream.output.is_ended();
                let is_blocked = has_window && self.writer.window.available() == 0;
                if is_waiting && is_blocked && !self.blocked.contains(&id) {
                    self.blocked.push(id);
                }
            }
            Turn::Finished => self.finished(shared, id),
            Turn::Lost => self.reset_stream(io, shared, id, Code::INTERNAL_ERROR),
        }
    }

    /// END_STREAM is written.
    fn finished(&mut self, shared: &Shared, id: u32) {
        self.budget.earn();
        self.limit_request(shared, id);
    }

    /// Ends a request whose body is too long, once its response is complete (RFC 9113 §8.1).
    fn limit_request(&mut self, shared: &Shared, id: u32) {
        if let Some(stream) = self.streams.get_mut(&id)
            && !stream.request_ended
            && stream.output.is_ended()
            && stream.is_too_long(shared.config.body_bytes_max)
        {
            self.drop_request(id);
        }
    }

    /// The rest of a request is unwanted, and its response is complete.
    fn drop_request(&mut self, id: u32) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.request_ended = true;
            frame::rst_stream(self.writer.control(), id, Code::NO_ERROR);
            self.ids.note_reset(id);
        }
    }

    /// A request has ended, perhaps after its response.
    fn request_ended(&mut self, io: &mut dyn Io, shared: &mut Shared, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.go_on(context!(self, io, shared));
        if stream.is_over() {
            self.remove(io, shared, id, false);
        }
    }

    /// As many streams are open as may be.
    fn is_full(&self, streams_max: u32) -> bool {
        let streams_max = streams_max as usize;
        let open = || self.streams.values().filter(|stream| stream.is_open());
        self.streams.len() >= streams_max && open().count() >= streams_max
    }

    /// Resets a stream.
    fn reset_stream(&mut self, io: &mut dyn Io, shared: &mut Shared, id: u32, code: Code) {
        // RFC 9113 §5.4.2: once.
        if !self.ids.is_reset(id) {
            frame::rst_stream(self.writer.control(), id, code);
            self.ids.note_reset(id);
        }
        self.remove(io, shared, id, true);
    }

    /// Forgets a stream.
    fn remove(&mut self, io: &mut dyn Io, shared: &mut Shared, id: u32, is_cancelled: bool) {
        let Some(stream) = self.streams.remove(&id) else {
            return;
        };
        if let Some(place) = stream.place {
            self.scheduler.remove(place);
        }
        self.blocked.retain(|&blocked| blocked != id);
        self.names.remove(&stream.output.name);
        stream.closed(context!(self, io, shared), is_cancelled);
    }

    /// Ends the stream or the connection of a fault.
    fn judge(&mut self, io: &mut dyn Io, shared: &mut Shared, fault: Fault) {
        match fault {
            Fault::Stream(id, code) => {
                shared.counters.http2_stream_errors += 1;
                self.reset_stream(io, shared, id, code);
                // The request may have had a file opened.
                if let Err(exhausted) = self.budget.spend(io.now_us(), STREAM_TOKENS) {
                    self.judge(io, shared, exhausted.into());
                }
            }
            Fault::Connection(code, why) => {
                tracing::debug!(
                    stream = self.stream.0,
                    code = code.0,
                    why,
                    "connection error"
                );
                shared.counters.http2_connection_errors += 1;
                if code == Code::ENHANCE_YOUR_CALM {
                    shared.counters.http2_excessive_loads += 1;
                }
                self.close(io, shared, code, why);
            }
        }
    }

    /// Sends GOAWAY, and closes once it is written.
    fn close(&mut self, io: &mut dyn Io, shared: &mut Shared, code: Code, why: &str) {
        if matches!(self.stage, Stage::Closing { .. } | Stage::Aborted) {
            return;
        }
        if !self.is_undecided {
            // RFC 9113 §6.8: it never increases.
            let last_id = match self.stage {
                Stage::Leaving(last_id) => last_id,
                _ => self.ids.last(),
            };
            frame::goaway(self.writer.control(), last_id, code, why);
        }
        self.finish(io, shared);
    }

    /// FIN follows the written frames.
    fn finish(&mut self, io: &mut dyn Io, shared: &mut Shared) {
        self.close_streams(io, shared);
        self.reader = FrameReader::default();
        self.settings_us = None;
        self.stage_us = None;
        self.stage = Stage::Closing {
            has_fin: false,
            discard_bytes: shared.config.linger_bytes_max,
        };
    }

    fn abort(&mut self, io: &mut dyn Io, shared: &mut Shared) {
        self.close_streams(io, shared);
        self.input.release(&mut shared.pool);
        io.abort(self.stream);
        self.stage = Stage::Aborted;
    }

    /// The client sends nothing more.
    fn has_peer_closed(&self) -> bool {
        self.peer_finished && !self.unread
    }

    /// Closes a connection that has no stream left and gets no further one.
    fn end_if_done(&mut self, io: &mut dyn Io, shared: &mut Shared) {
        let is_idle = self.streams.is_empty();
        match self.stage {
            Stage::Leaving(_) if is_idle => self.finish(io, shared),
            // GOAWAY would reach a client that has closed its socket: its kernel answers with RST.
            Stage::Serving | Stage::Announced if is_idle && self.has_peer_closed() => {
                self.finish(io, shared);
            }
            Stage::Serving | Stage::Announced if is_idle && self.peer_leaves => {
                self.close(io, shared, Code::NO_ERROR, "");
            }
            _ => {}
        }
        if let Stage::Closing { has_fin, .. } = &mut self.stage
            && !*has_fin
        {
            self.writer.flush(io);
            if !self.writer.is_blocked() {
                *has_fin = true;
                io.shutdown(self.stream);
            }
        }
    }

    /// The outside event that the connection waits for.
    fn wait(&self, io: &dyn Io) -> Option<Wait> {
        let is_sending = io.unacknowledged(self.stream) > 0;
        match self.stage {
            Stage::Aborted => None,
            _ if is_sending || !self.streams.is_empty() => Some(Wait::Progress),
            Stage::Closing { .. } => Some(Wait::Linger),
            _ if !self.has_settings || self.reader.is_within_frame() => Some(Wait::Head),
            _ if !self.input.is_empty() => Some(Wait::Head),
            _ => Some(Wait::Idle),
        }
    }

    fn watch(&mut self, io: &mut dyn Io, shared: &Shared) {
        let Some(wait) = self.wait(io) else {
            self.watch.clear();
            self.watch_us = None;
            return;
        };
        if !self.watch.is_for(wait) {
            let progress = self.progress(io);
            let after = self.watch.set(wait, &progress, &shared.config);
            self.watch_us = Some(io.now_us().saturating_add(micros(after)));
            io.set_idle(self.stream, wait == Wait::Idle);
        }
    }

    fn progress(&self, io: &dyn Io) -> Progress {
        Progress {
            acknowledged: io.acknowledged(self.stream),
            unacknowledged: io.unacknowledged(self.stream),
            waits_for_peer: io.waits_for_peer(self.stream),
        }
    }

    /// Sets the timer of the TCP stream to the earliest deadline.
    fn arm(&mut self, io: &mut dyn Io) {
        if self.stage == Stage::Aborted {
            return;
        }
        let now_us = io.now_us();
        let streams = self.streams.values().flat_map(|stream| {
            let paced_us = stream
                .paced_until_us(now_us)
                .filter(|_| stream.place.is_none());
            [stream.output.deadline_us, paced_us]
        });
        let own = [self.watch_us, self.settings_us, self.stage_us];
        let earliest_us = own.into_iter().chain(streams).flatten().min();
        if earliest_us != self.armed_us {
            self.armed_us = earliest_us;
            let after = earliest_us.map(|at_us| at_us.saturating_sub(now_us));
            io.set_timer(self.stream, after.map(Duration::from_micros));
        }
    }

    /// The timer has expired: handles each deadline that is over.
    fn expired(&mut self, io: &mut dyn Io, shared: &mut Shared) {
        self.armed_us = None;
        let now_us = io.now_us();
        let is_over =
            |deadline_us: &mut Option<u64>| deadline_us.take_if(|at_us| *at_us <= now_us).is_some();
        if is_over(&mut self.stage_us) && self.stage == Stage::Announced {
            self.stage = Stage::Leaving(self.ids.last());
            frame::goaway(self.writer.control(), self.ids.last(), Code::NO_ERROR, "");
        }
        if is_over(&mut self.settings_us) {
            let why = "SETTINGS that are not acknowledged";
            self.judge(io, shared, Fault::Connection(Code::SETTINGS_TIMEOUT, why));
        }
        if is_over(&mut self.watch_us) {
            self.watch_expired(io, shared);
        }
        self.streams_expired(io, shared, now_us);
    }

    fn streams_expired(&mut self, io: &mut dyn Io, shared: &mut Shared, now_us: u64) {
        let ids: Vec<u32> = self.streams.keys().copied().collect();
        for id in ids {
            let Some(stream) = self.streams.get_mut(&id) else {
                continue;
            };
            let deadline_us = &mut stream.output.deadline_us;
            if deadline_us.take_if(|at_us| *at_us <= now_us).is_some() {
                let result = stream.expired(context!(self, io, shared));
                match result {
                    Ok(()) => {}
                    Err(Code::NO_ERROR) => {
                        self.drop_request(id);
                        self.remove(io, shared, id, false);
                        continue;
                    }
                    Err(code) => {
                        self.reset_stream(io, shared, id, code);
                        continue;
                    }
                }
            }
            // Its rate may permit more.
            self.make_ready(id);
        }
    }

    fn watch_expired(&mut self, io: &mut dyn Io, shared: &mut Shared) {
        let progress = self.progress(io);
        let expiry = self.watch.expire(&progress, &shared.config);
        let has_streams = !self.streams.is_empty();
        match expiry {
            Expiry::Stale => {}
            Expiry::Again(after) => {
                self.watch_us = Some(io.now_us().saturating_add(micros(after)));
            }
            Expiry::Overdue(Wait::Head) => {
                shared.counters.head_timeouts += 1;
                self.close(
                    io,
                    shared,
                    Code::NO_ERROR,
                    "a frame that did not end in time",
                );
            }
            Expiry::Overdue(Wait::Idle) => {
                shared.counters.idle_timeouts += 1;
                self.close(io, shared, Code::NO_ERROR, "");
            }
            // Streams have timers of their own.
            Expiry::Overdue(Wait::Progress) if has_streams && progress.unacknowledged == 0 => {}
            Expiry::Overdue(Wait::Progress) => {
                shared.counters.stall_timeouts += 1;
                self.abort(io, shared);
            }
            Expiry::TooSlow => {
                shared.note_slow_client(io.now_us(), self.stream);
                self.abort(io, shared);
            }
            Expiry::Overdue(Wait::Linger) => {
                shared.counters.linger_timeouts += 1;
                self.abort(io, shared);
            }
        }
    }

    /// Returns the notes for an access log, if responses are logged.
    fn accesses(&self, shared: &Shared) -> Option<Accesses> {
        let is_logged = self.is_logged && shared.access_log.is_some();
        is_logged.then(|| Accesses::new(self.stream.0, &self.arrival, self.tls.as_deref()))
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
