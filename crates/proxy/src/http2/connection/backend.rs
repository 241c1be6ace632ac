//! Connections to backends: the proxy opens streams, and their responses arrive (RFC 9113 §8.3.2).
//!
//! A connection carries streams once the backend's SETTINGS have arrived: these bound their number,
//! and a peer of another protocol gets no request.

use std::collections::VecDeque;

use host::app::{AppEvent, CloseReason, Io, StreamId};
use http2::bounds::PREFACE;
use http2::code::{Code, Fault};
use http2::frame::{self, STREAM_ID_MAX};
use http2::settings;
use http2::window::{HeldWindow, INITIAL_BYTES, SendWindow};

use super::frames::fault_of;
use super::{Connection, Side, Stage, World, after};
use crate::http2::names::{Names, Notice};
use crate::http2::request::{self, section_bytes_max};
use crate::http2::response;
use crate::http2::stream::Stream;
use crate::http2::wanted::{Carrier, Want};
use crate::pools::BackendId;
use crate::shared::Shared;

/// Most streams of a connection, however many more the backend permits: others get another one.
const STREAMS_MAX: usize = 100;

/// Window of a connection, in bytes: each stream can hold all of its own, so that clients which
/// take nothing delay no other stream.
const WINDOW_BYTES: u32 = STREAMS_MAX as u32 * INITIAL_BYTES;

/// Time without an acknowledgment after which a connection carries no further stream: its backend
/// may be gone, or take nothing.
const STALLED_US: u64 = 3_000_000;

/// A connection to a backend.
#[derive(Debug)]
pub(super) struct ToBackend {
    pub(super) backend: BackendId,
    /// The TCP connection is established.
    is_connected: bool,
    /// First bytes of a connection for a single stream.
    own: Option<Vec<u8>>,
    /// Streams that wait for the backend's SETTINGS.
    waiting: VecDeque<Want>,
    /// A response has arrived.
    has_answered: bool,
    /// Bytes that the backend has acknowledged, and when that changed last or none were awaited, in
    /// microseconds.
    acknowledged: u64,
    moved_us: u64,
}

impl Connection {
    /// Begins a connection to a backend, which `want` waits for.
    pub(in super::super) fn to_backend(
        world: &World<'_>,
        stream: StreamId,
        want: &Want,
    ) -> Connection {
        let own = match &want.carrier {
            Carrier::Own(bytes) => Some(bytes.clone()),
            Carrier::Any | Carrier::Fresh => None,
        };
        let side = Side::Backend(Box::new(ToBackend {
            backend: want.backend,
            is_connected: false,
            own,
            waiting: VecDeque::new(),
            has_answered: false,
            acknowledged: 0,
            moved_us: world.io.now_us(),
        }));
        let window = HeldWindow::new(WINDOW_BYTES);
        let mut connection = Connection::new(world, stream, side, window);
        connection.has_preface = true;
        connection.settings_us = Some(after(world.io, want.timeout));
        connection
    }

    /// The backend, if the connection is to one.
    pub(in super::super) fn backend(&self) -> Option<BackendId> {
        match &self.side {
            Side::Backend(backend) => Some(backend.backend),
            Side::Client(_) => None,
        }
    }

    /// True if the connection may carry one more stream.
    pub(in super::super) fn has_room(&self, io: &dyn Io, carrier: &Carrier) -> bool {
        let Side::Backend(backend) = &self.side else {
            return false;
        };
        let may_be = match carrier {
            Carrier::Any => true,
            Carrier::Fresh => !backend.has_answered,
            Carrier::Own(_) => false,
        };
        let is_open = self.stage == Stage::Serving && !self.peer_leaves && !self.peer_finished;
        let has_ids = self.ids.last() < STREAM_ID_MAX - 2 * STREAMS_MAX as u32;
        let carried = self.streams.len() + backend.waiting.len();
        let is_shared = backend.own.is_none();
        let room = is_shared && carried < self.streams_max();
        may_be && is_open && has_ids && room && !backend.is_stalled(io, self.stream)
    }

    /// Notes whether the backend takes bytes.
    pub(super) fn note_progress(&mut self, io: &dyn Io) {
        if let Side::Backend(backend) = &mut self.side {
            let acknowledged = io.acknowledged(self.stream);
            let has_moved = std::mem::replace(&mut backend.acknowledged, acknowledged);
            if has_moved != acknowledged || io.unacknowledged(self.stream) == 0 {
                backend.moved_us = io.now_us();
            }
        }
    }

    /// Most streams: this side's bound, or the backend's if it is less.
    fn streams_max(&self) -> usize {
        let theirs = self.writer.settings().streams_max;
        STREAMS_MAX.min(usize::try_from(theirs).unwrap_or(usize::MAX))
    }

    /// Carries a stream, for which there is room, or will once the connection is established.
    pub(in super::super) fn carry(&mut self, world: &mut World<'_>, want: Want) {
        if self.has_settings {
            self.open_stream(world, &want);
        } else if let Side::Backend(backend) = &mut self.side {
            backend.waiting.push_back(want);
        }
        self.advance(world);
    }

    fn open_stream(&mut self, world: &mut World<'_>, want: &Want) {
        let Side::Backend(backend) = &self.side else {
            return;
        };
        let id = match self.ids.last() {
            0 => 1,
            last => last + 2,
        };
        let (name, is_reused) = (want.name, backend.has_answered);
        self.ids.open(id);
        let window = SendWindow::new(self.writer.settings().initial_window_bytes);
        let stream = Stream::to_backend(id, name, window);
        self.streams.insert(id, Box::new(stream));
        world.shared.counters.backend_http2_streams += 1;
        world.names.carry(name, self.stream, id);
        let carried = Notice::Carried { name, is_reused };
        world.names.notices.push_back(carried);
    }

    /// The backend's SETTINGS are here: streams that have waited open, as many as it permits.
    pub(super) fn open_waiting(&mut self, world: &mut World<'_>) {
        let streams_max = self.streams_max();
        let Side::Backend(backend) = &mut self.side else {
            return;
        };
        self.settings_us = Some(after(world.io, world.shared.config.head_timeout));
        let mut waiting = std::mem::take(&mut backend.waiting);
        if streams_max == 0 {
            let refused = waiting
                .into_iter()
                .map(|want| closed(want.name, CloseReason::Reset));
            world.names.notices.extend(refused);
            self.peer_leaves = true;
            return;
        }
        // Some have gone by now.
        waiting.retain(|want| world.shared.streams.contains_key(&want.name));
        let others = waiting.split_off(waiting.len().min(streams_max));
        for want in &waiting {
            self.open_stream(world, want);
        }
        world.shared.wanted.put_back(others.into_iter());
    }

    /// The connection is over: streams that wait for it are, too.
    pub(super) fn close_waiting(&mut self, names: &mut Names, reason: CloseReason) {
        if let Side::Backend(backend) = &mut self.side {
            let waiting = std::mem::take(&mut backend.waiting).into_iter();
            names
                .notices
                .extend(waiting.map(|want| closed(want.name, reason)));
        }
    }

    /// True if no stream waits for the connection.
    pub(super) fn is_none_waiting(&self) -> bool {
        match &self.side {
            Side::Backend(backend) => backend.waiting.is_empty(),
            Side::Client(_) => true,
        }
    }

    /// The TCP connection is established: the preface follows (RFC 9113 §3.4).
    pub(super) fn connected(&mut self, world: &mut World<'_>) {
        let Side::Backend(backend) = &mut self.side else {
            return;
        };
        backend.is_connected = true;
        let control = self.writer.control();
        control.extend_from_slice(backend.own.as_deref().unwrap_or_default());
        control.extend_from_slice(PREFACE);
        let section_bytes_max = section_bytes_max(world.shared.config.head_bytes_max);
        settings::write_of_client(control, section_bytes_max);
        if let Some(increment) = self.receive.refill() {
            frame::window_update(control, 0, increment);
        }
    }

    /// True if the backend's SETTINGS have not arrived in time: the connection is reset.
    pub(super) fn is_late_backend(&mut self, world: &mut World<'_>) -> bool {
        if self.has_settings || self.arrival().is_some() {
            return false;
        }
        self.close_waiting(world.names, CloseReason::TimedOut);
        self.set_idle(world, false);
        self.stage = Stage::Aborted;
        world.io.abort(self.stream);
        true
    }

    /// True if nothing more is to be sent to the backend: the proxy ends, the configuration has the
    /// backend no more or drains it, others are idle enough, or the connection was for one stream.
    pub(super) fn is_unwanted(&self, shared: &Shared) -> bool {
        let Side::Backend(backend) = &self.side else {
            return false;
        };
        let is_used_up = backend.own.is_some() && self.ids.last() > 0;
        let is_kept =
            shared
                .pools
                .keeps_http2(&shared.config, backend.backend, self.idle_us.is_some());
        self.has_settings && (shared.is_draining || is_used_up || !is_kept)
    }

    /// True if FIN may follow GOAWAY. A backend closes first, so that its side is in TIME-WAIT.
    pub(super) fn may_finish(&self) -> bool {
        match &self.side {
            Side::Client(_) => true,
            Side::Backend(_) => self.peer_finished && !self.unread,
        }
    }

    /// The user of a stream has gone: the stream is cancelled, unless only END_STREAM is to come
    /// behind whole content.
    pub(super) fn release(&mut self, names: &mut Names, id: u32, deadline_us: u64) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.is_left = true;
        if stream.awaits_end() {
            stream.deadline_us = Some(deadline_us);
            return;
        }
        self.reset_stream(names, id, Code::CANCEL);
    }

    /// GOAWAY has arrived: streams beyond its ID are not processed (RFC 9113 §6.8).
    pub(super) fn take_goaway(&mut self, names: &mut Names) {
        let last = frame::read_31_bits(self.reader.payload()).unwrap_or(0);
        if self.arrival().is_some() {
            return;
        }
        let beyond: Vec<u32> = self
            .streams
            .range(last.saturating_add(1)..)
            .map(|(&id, _)| id)
            .collect();
        for id in beyond {
            self.give_back(names, id, false);
        }
    }

    /// A backend has not processed a stream.
    fn give_back(&mut self, names: &mut Names, id: u32, is_refused: bool) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        let name = stream.name;
        stream.is_left = true;
        self.ids.note_reset(id);
        self.remove(names, id);
        let unprocessed = Notice::Unprocessed { name, is_refused };
        names.notices.push_back(unprocessed);
    }

    /// RST_STREAM of a backend. A response that is complete before stays (RFC 9113 §8.1).
    pub(super) fn take_backend_reset(
        &mut self,
        world: &mut World<'_>,
        id: u32,
    ) -> Result<(), Fault> {
        let code = frame::read_31_bits(self.reader.payload()).unwrap_or(0);
        let Some(stream) = self.streams.get_mut(&id) else {
            return Ok(());
        };
        let is_answered = stream.has_head;
        if stream.incoming_ended {
            stream.outgoing.discard();
            let place = stream.place.take();
            place.into_iter().for_each(|it| self.scheduler.remove(it));
            return Ok(());
        }
        match code == Code::REFUSED_STREAM.0 && !is_answered {
            true => self.give_back(world.names, id, true),
            false => self.remove(world.names, id),
        }
        Ok(())
    }

    /// A field block of a backend: 1xx, a response, or trailers.
    pub(super) fn take_response(
        &mut self,
        world: &mut World<'_>,
        id: u32,
        ends_stream: bool,
    ) -> Result<(), Fault> {
        if self.ids.is_idle(id) {
            return Err(Fault::protocol("HEADERS on a stream that is not open"));
        }
        let stream = self.streams.get(&id);
        let is_trailers = stream.is_some_and(|stream| stream.has_head);
        let is_head = stream.is_some_and(|stream| stream.outgoing.is_head());
        if is_trailers {
            return self.take_response_trailers(world, id, ends_stream);
        }
        // The dynamic table takes the block in any case.
        let (block, how) = (self.reader.block(), (is_head, ends_stream));
        let head_bytes_max = world.shared.config.head_bytes_max;
        let head = response::read(&mut self.decoder, block, how, head_bytes_max);
        let head = head.map_err(|why| fault_of(why, id));
        if let Err(fault @ Fault::Connection(..)) = head {
            return Err(fault);
        }
        let now_us = world.io.now_us();
        let Some(stream) = self.streams.get_mut(&id) else {
            return self.check_gone(now_us, id);
        };
        let head = head?;
        stream.begin_message(&head.text, head.framing);
        match (head.framing, &mut self.side) {
            (Some(_), Side::Backend(backend)) => backend.has_answered = true,
            // The text of 1xx waits for the session, and no window bounds it.
            _ => self.budget.spend_frame(now_us, head.text.len() as u64)?,
        }
        self.notify_readable(world.names, id);
        match ends_stream {
            true => self.incoming_ended(world, id),
            false => Ok(()),
        }
    }

    fn take_response_trailers(
        &mut self,
        world: &mut World<'_>,
        id: u32,
        ends_stream: bool,
    ) -> Result<(), Fault> {
        let trailers = request::read_trailers(&mut self.decoder, self.reader.block());
        let trailers = trailers.map_err(|why| fault_of(why, id))?;
        let Some(stream) = self.streams.get_mut(&id) else {
            return Ok(());
        };
        if stream.incoming_ended {
            return Err(Fault::Stream(id, Code::STREAM_CLOSED));
        }
        if !ends_stream {
            return Err(Fault::Stream(id, Code::PROTOCOL_ERROR));
        }
        stream.take_trailers(trailers);
        self.incoming_ended(world, id)
    }
}

impl ToBackend {
    /// True if the backend has acknowledged nothing for too long.
    fn is_stalled(&self, io: &dyn Io, stream: StreamId) -> bool {
        let silent_us = io.now_us().saturating_sub(self.moved_us);
        let is_silent = io.acknowledged(stream) == self.acknowledged && silent_us > STALLED_US;
        is_silent && io.unacknowledged(stream) > 0
    }
}

fn closed(name: StreamId, reason: CloseReason) -> Notice {
    let closed = AppEvent::Closed {
        reason,
        acknowledged: 0,
        retransmissions: 0,
    };
    Notice::Event(name, closed)
}
