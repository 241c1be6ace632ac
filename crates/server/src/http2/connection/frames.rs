//! Received frames, and their effects on the connection and its streams (RFC 9113 §6).

use host::app::Io;
use http::StatusCode;

use super::{Connection, Stage, context};
use crate::exchange::field_section::{Problem, Scratch};
use crate::exchange::misdirected::is_misdirected;
use crate::exchange::shared::Shared;
use crate::http2::frame_writer::FrameWriter;
use crate::http2::request;
use crate::http2::stream::{Context, Stream};
use crate::http2::stream_io;
use http2::bounds::{PENDING_BYTES_MAX, PREFACE};
use http2::budget::{FRAME_TOKENS, STREAM_TOKENS};
use http2::code::{Code, Fault};
use http2::frame::{self, Header, flag, kind};
use http2::frame_reader::{Incoming, PRIORITY_BYTES, Step};
use http2::priority::Priority;
use http2::stream_ids::CLOSED;
use http2::window::{Exceeded, Overflow, SendWindow};

impl Connection {
    /// Reads available frames.
    pub(super) fn read(&mut self, io: &mut dyn Io, shared: &mut Shared, scratch: &mut Scratch) {
        loop {
            match self.stage {
                Stage::Aborted => return,
                _ if self.is_http1 => return,
                Stage::Closing { .. } => return self.discard(io, shared),
                _ => {}
            }
            if self.writer.pending_bytes() > PENDING_BYTES_MAX {
                self.writer.flush(io);
                if self.writer.pending_bytes() > PENDING_BYTES_MAX {
                    return;
                }
            }
            match self.step(io, shared, scratch) {
                Ok(true) => {}
                Ok(false) if self.unread && self.input.is_full(&shared.pool) => {
                    let why = "a frame longer than a request's head";
                    self.judge(io, shared, Fault::Connection(Code::ENHANCE_YOUR_CALM, why));
                }
                Ok(false) if self.unread => {
                    self.unread = self.input.fill(io, self.stream, &mut shared.pool) > 0;
                }
                Ok(false) => return,
                Err(fault) => self.judge(io, shared, fault),
            }
        }
    }

    /// Discards what arrives after GOAWAY, since closing with unread bytes would send RST.
    fn discard(&mut self, io: &mut dyn Io, shared: &mut Shared) {
        self.input.release(&mut shared.pool);
        if let Stage::Closing { discard_bytes, .. } = &mut self.stage {
            let (stream, pool, unread) = (self.stream, &mut shared.pool, &mut self.unread);
            self.input.discard(io, stream, pool, unread, discard_bytes);
        }
    }

    /// Takes a frame, or a part of one; false if more bytes must arrive first.
    fn step(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        scratch: &mut Scratch,
    ) -> Result<bool, Fault> {
        if !self.has_preface {
            return self.take_preface(io, shared);
        }
        let (bytes, incoming) = match self.reader.step(self.input.bytes())? {
            Step::Partial => return Ok(false),
            Step::Consumed(bytes) | Step::Content(bytes) => (bytes, None),
            Step::Frame(bytes, incoming) => (bytes, Some(incoming)),
        };
        self.input.consume(bytes);
        if let Some(incoming) = incoming {
            self.take(io, shared, scratch, incoming)?;
        }
        Ok(true)
    }

    fn take_preface(&mut self, io: &dyn Io, shared: &Shared) -> Result<bool, Fault> {
        let bytes = self.input.bytes();
        let count = bytes.len().min(PREFACE.len());
        if bytes[..count] != PREFACE[..count] {
            if self.is_undecided {
                self.is_http1 = true;
                return Ok(false);
            }
            return Err(Fault::protocol(
                "a connection that begins with another preface",
            ));
        }
        if count < PREFACE.len() {
            return Ok(false);
        }
        self.input.consume(count);
        self.has_preface = true;
        if std::mem::take(&mut self.is_undecided) {
            self.begin(io, shared);
        }
        Ok(true)
    }

    fn take(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        scratch: &mut Scratch,
        incoming: Incoming,
    ) -> Result<(), Fault> {
        let is_settings = matches!(&incoming, Incoming::Whole(header)
            if header.kind == kind::SETTINGS && !header.has(flag::ACK));
        if !self.has_settings && !is_settings {
            return Err(Fault::protocol("another frame before SETTINGS"));
        }
        match incoming {
            Incoming::Data {
                stream,
                payload_bytes,
                data_bytes,
                ends_stream,
            } => self.take_data(io, shared, stream, [payload_bytes, data_bytes], ends_stream),
            Incoming::Block {
                stream,
                ends_stream,
                depends_on_itself,
            } => {
                let result = self.take_block(io, shared, scratch, (stream, ends_stream));
                self.reader.release_block();
                match depends_on_itself {
                    true => result.and(Err(Fault::Stream(stream, Code::PROTOCOL_ERROR))),
                    false => result,
                }
            }
            Incoming::Whole(header) => self.take_whole(io, shared, header),
            Incoming::Unknown(header) => {
                let payload_bytes = header.payload_bytes.into();
                Ok(self.budget.spend_frame(io.now_us(), payload_bytes)?)
            }
        }
    }

    fn take_data(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        id: u32,
        [payload_bytes, data_bytes]: [u32; 2],
        ends_stream: bool,
    ) -> Result<(), Fault> {
        let exceeds = "DATA beyond the window of the connection";
        let exceeds = Fault::Connection(Code::FLOW_CONTROL_ERROR, exceeds);
        let taken = self.receive.take(payload_bytes);
        taken.map_err(|Exceeded| exceeds)?;
        if let Some(increment) = self.receive.refill() {
            frame::window_update(self.writer.control(), 0, increment);
        }
        self.budget.spend_frame(io.now_us(), 0)?;
        if self.ids.is_idle(id) {
            return Err(Fault::protocol("DATA on a stream that is not open"));
        }
        let Some(stream) = self.streams.get_mut(&id) else {
            return self.ids.check_gone(id);
        };
        // Frames that were in flight when the stream was reset.
        if stream.request_ended && self.ids.is_reset(id) {
            return Ok(());
        }
        check_open(stream)?;
        let of_stream = |code| Fault::Stream(id, code);
        let taken = stream.receive.take(payload_bytes);
        taken.map_err(|Exceeded| of_stream(Code::FLOW_CONTROL_ERROR))?;
        let taken = stream.take_body(data_bytes, ends_stream);
        taken.map_err(of_stream)?;
        if let Some(increment) = stream.refill(shared.config.body_bytes_max) {
            frame::window_update(self.writer.control(), id, increment);
        }
        match ends_stream {
            true => self.request_ended(io, shared, id),
            false => self.limit_request(shared, id),
        }
        Ok(())
    }

    fn take_block(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        scratch: &mut Scratch,
        (id, ends_stream): (u32, bool),
    ) -> Result<(), Fault> {
        if self.ids.is_new(id)? {
            return self.take_request(io, shared, scratch, (id, ends_stream));
        }
        // Trailers. The dynamic table takes them in any case.
        let checked = request::check_trailers(&mut self.decoder, self.reader.block(), scratch);
        let checked = checked.map_err(|problem| fault_of(problem, id));
        self.budget.spend_frame(io.now_us(), 0)?;
        if !self.streams.contains_key(&id) {
            self.ids.check_gone(id)?;
        }
        if let Err(fault @ Fault::Connection(..)) = checked {
            return Err(fault);
        }
        let Some(stream) = self.streams.get_mut(&id) else {
            return Ok(());
        };
        if stream.request_ended && self.ids.is_reset(id) {
            return Ok(());
        }
        check_open(stream)?;
        checked?;
        let taken = stream.take_trailers(ends_stream);
        taken.map_err(|code| Fault::Stream(id, code))?;
        self.request_ended(io, shared, id);
        Ok(())
    }

    /// Opens a stream with its request.
    fn take_request(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        scratch: &mut Scratch,
        (id, ends_stream): (u32, bool),
    ) -> Result<(), Fault> {
        self.ids.open(id);
        let config = &shared.config;
        let read = request::read(&mut self.decoder, self.reader.block(), config, scratch);
        let head = &scratch.head[..scratch.head.len().min(config.head_bytes_max)];
        let identity = self.tls.as_ref().map(|tls| &tls.identity);
        let read = match read {
            Ok(read) if is_misdirected(identity, head, &read.request, config) => {
                shared.counters.misdirected_requests += 1;
                Err(StatusCode::MISDIRECTED_REQUEST)
            }
            Ok(read) => Ok(read),
            Err(Problem::Refused(status)) => Err(status),
            Err(problem) => return Err(fault_of(problem, id)),
        };
        let is_late = matches!(self.stage, Stage::Leaving(last) if id > last);
        if is_late || self.is_full(config.http2_streams_max) {
            frame::rst_stream(self.writer.control(), id, Code::REFUSED_STREAM);
            self.ids.note_reset(id);
            return Ok(self.budget.spend(io.now_us(), STREAM_TOKENS)?);
        }
        shared.counters.http2_requests += 1;
        shared.http2_streams += 1;
        let window = SendWindow::new(self.writer.settings.initial_window_bytes);
        let accesses = self.accesses(shared);
        let mut stream = Stream::new(
            (id, stream_io::name(shared.http2_streams)),
            (self.stream, &self.arrival),
            window,
            self.requests,
            accesses,
        );
        self.requests = self.requests.saturating_add(1);
        stream.request_ended = ends_stream;
        if let Some(priority) = self.priorities.take(id.into()) {
            stream.prioritize(priority);
        }
        let taken = stream.take_request(context!(self, io, shared), head, read);
        self.names.insert(stream.output.name, id);
        self.streams.insert(id, Box::new(stream));
        taken.map_err(|code| Fault::Stream(id, code))?;
        self.make_ready(id);
        Ok(())
    }

    fn take_whole(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        header: Header,
    ) -> Result<(), Fault> {
        match header.kind {
            kind::WINDOW_UPDATE => return self.take_window_update(io, header.stream),
            kind::RST_STREAM => return self.take_reset(io, shared, header.stream),
            _ => {}
        }
        self.budget.spend(io.now_us(), FRAME_TOKENS)?;
        match header.kind {
            kind::SETTINGS if header.has(flag::ACK) => {
                self.settings_us = None;
                Ok(())
            }
            kind::SETTINGS => self.take_settings(),
            kind::PING if header.has(flag::ACK) => Ok(()),
            kind::PING => {
                if let Some(payload) = self.reader.payload().first_chunk() {
                    frame::ping_ack(self.writer.control(), payload);
                }
                Ok(())
            }
            kind::GOAWAY => {
                self.peer_leaves = true;
                Ok(())
            }
            kind::PRIORITY_UPDATE => self.take_priority_update(shared.config.http2_streams_max),
            _ => self.take_priority(header),
        }
    }

    /// RFC 9113 §5.3.2: the priority itself is ignored.
    fn take_priority(&self, header: Header) -> Result<(), Fault> {
        let id = header.stream;
        let dependency = frame::read_31_bits(self.reader.payload());
        let code = match header.payload_bytes {
            PRIORITY_BYTES if dependency == Some(id) => Code::PROTOCOL_ERROR,
            PRIORITY_BYTES => return Ok(()),
            _ => Code::FRAME_SIZE_ERROR,
        };
        // RFC 9113 §6.4: no RST_STREAM for an idle stream.
        Err(match self.ids.is_idle(id) {
            true => Fault::Connection(code, "a priority of another length, or of its own stream"),
            false => Fault::Stream(id, code),
        })
    }

    fn take_settings(&mut self) -> Result<(), Fault> {
        self.has_settings = true;
        let before = self.writer.settings;
        let FrameWriter {
            settings, encoder, ..
        } = &mut self.writer;
        settings.apply(self.reader.payload(), encoder)?;
        let settings = self.writer.settings;
        let change =
            i64::from(settings.initial_window_bytes) - i64::from(before.initial_window_bytes);
        for stream in self.streams.values_mut() {
            let changed = stream.output.window.change(change);
            changed.map_err(|Overflow| TOO_LARGE)?;
        }
        frame::settings_ack(self.writer.control());
        if change > 0 {
            let ids: Vec<u32> = self.streams.keys().copied().collect();
            ids.into_iter().for_each(|id| self.make_ready(id));
        }
        Ok(())
    }

    fn take_window_update(&mut self, io: &mut dyn Io, id: u32) -> Result<(), Fault> {
        self.free_updates
            .on_window_update(&mut self.budget, io.now_us())?;
        let increment = frame::read_31_bits(self.reader.payload()).unwrap_or(0);
        if id == 0 {
            if increment == 0 {
                return Err(Fault::protocol("WINDOW_UPDATE of 0"));
            }
            let changed = self.writer.window.change(increment.into());
            changed.map_err(|Overflow| TOO_LARGE)?;
            for id in std::mem::take(&mut self.blocked) {
                self.make_ready(id);
            }
            return Ok(());
        }
        if self.ids.is_idle(id) {
            return Err(Fault::protocol(
                "WINDOW_UPDATE on a stream that is not open",
            ));
        }
        let Some(stream) = self.streams.get_mut(&id) else {
            return Ok(());
        };
        if increment == 0 {
            return Err(Fault::Stream(id, Code::PROTOCOL_ERROR));
        }
        let changed = stream.output.window.change(increment.into());
        changed.map_err(|Overflow| Fault::Stream(id, Code::FLOW_CONTROL_ERROR))?;
        self.make_ready(id);
        Ok(())
    }

    fn take_reset(&mut self, io: &mut dyn Io, shared: &mut Shared, id: u32) -> Result<(), Fault> {
        if self.ids.is_idle(id) {
            return Err(Fault::protocol("RST_STREAM on a stream that is not open"));
        }
        let Some(stream) = self.streams.get(&id) else {
            return Ok(self.budget.spend(io.now_us(), FRAME_TOKENS)?);
        };
        let is_cancelled = !stream.output.is_ended();
        self.remove(io, shared, id, is_cancelled);
        if is_cancelled {
            self.budget.spend(io.now_us(), STREAM_TOKENS)?;
        }
        Ok(())
    }

    /// RFC 9218 §7.1.
    fn take_priority_update(&mut self, streams_max: u32) -> Result<(), Fault> {
        let Some((&id, value)) = self.reader.payload().split_first_chunk() else {
            return Ok(());
        };
        let id = u32::from_be_bytes(id) & !(1 << 31);
        let priority = Priority::parse(value);
        if id.is_multiple_of(2) {
            return Err(Fault::protocol(
                "PRIORITY_UPDATE of another stream than a client's",
            ));
        }
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.prioritize(priority);
            if let Some(place) = stream.place.take() {
                self.scheduler.remove(place);
                self.make_ready(id);
            }
            return Ok(());
        }
        if !self.ids.is_idle(id) {
            return Ok(());
        }
        if id / 2 > (self.ids.last() / 2).saturating_add(streams_max) {
            return Err(Fault::protocol(
                "PRIORITY_UPDATE beyond the concurrent streams",
            ));
        }
        self.priorities.keep(id.into(), priority);
        Ok(())
    }
}

/// A frame of a request that has ended: an error of the stream, or of the connection if the stream
/// is closed (RFC 9113 §5.1).
fn check_open(stream: &Stream) -> Result<(), Fault> {
    match (stream.request_ended, stream.is_open()) {
        (false, _) => Ok(()),
        (true, true) => Err(Fault::Stream(stream.output.id, Code::STREAM_CLOSED)),
        (true, false) => Err(CLOSED),
    }
}

const TOO_LARGE: Fault = Fault::Connection(
    Code::FLOW_CONTROL_ERROR,
    "a window larger than 2^31-1 bytes",
);

fn fault_of(problem: Problem, id: u32) -> Fault {
    match problem {
        Problem::Undecodable => {
            let why = "a field block that is not well-formed";
            Fault::Connection(Code::COMPRESSION_ERROR, why)
        }
        // Trailers get no response.
        Problem::Malformed | Problem::Refused(_) => Fault::Stream(id, Code::PROTOCOL_ERROR),
    }
}
