//! Received frames, and their effects on the connection and its streams (RFC 9113 §6).

use host::app::AppEvent;
use http2::bounds::{PENDING_BYTES_MAX, PREFACE};
use http2::budget::{FRAME_TOKENS, STREAM_TOKENS};
use http2::code::{Code, Fault};
use http2::frame::{self, Header, flag, kind};
use http2::frame_reader::{Incoming as Frame, PRIORITY_BYTES, Step};
use http2::priority::Priority;
use http2::window::{Exceeded, Overflow, SendWindow};

use super::{Connection, Incoming, Side, Stage, World};
use crate::buffer::COPY_BYTES;
use crate::http2::names::{Names, Notice};
use crate::http2::request::{self, Unreadable};
use crate::http2::stream::Stream;

impl Connection {
    /// Reads available frames.
    pub(super) fn read(&mut self, world: &mut World<'_>) {
        loop {
            match self.stage {
                Stage::Aborted => return,
                Stage::Closing { .. } => return self.discard(world),
                _ => {}
            }
            if self.writer.pending_bytes() > PENDING_BYTES_MAX {
                self.writer.flush(world.io);
                if self.writer.pending_bytes() > PENDING_BYTES_MAX {
                    return;
                }
            }
            match self.step(world) {
                Ok(true) => {}
                Ok(false) if self.unread => {
                    let scratch = &mut world.shared.scratch;
                    let count = self.input.fill(world.io, self.stream, scratch, COPY_BYTES);
                    self.unread = count > 0;
                }
                Ok(false) => return,
                Err(fault) => self.judge(world, fault),
            }
        }
    }

    /// Discards what arrives after GOAWAY, since closing with unread bytes would send RST. The
    /// linger time bounds it.
    fn discard(&mut self, world: &mut World<'_>) {
        self.input.clear();
        while self.unread {
            self.unread = world.io.read(self.stream, &mut world.shared.scratch) > 0;
        }
        if self.peer_finished
            && let Stage::Closing { has_fin: true } = self.stage
        {
            self.stage_us = None;
        }
    }

    /// Takes a frame, or a part of one; false if more bytes must arrive first.
    fn step(&mut self, world: &mut World<'_>) -> Result<bool, Fault> {
        if !self.has_preface {
            return self.take_preface();
        }
        match self.reader.step(self.input.bytes())? {
            Step::Partial => return Ok(false),
            Step::Consumed(bytes) => self.input.consume(bytes),
            Step::Content(bytes) => {
                let taken = self.take_content(world, bytes);
                self.input.consume(bytes);
                taken?;
            }
            Step::Frame(bytes, frame) => {
                self.input.consume(bytes);
                self.take(world, frame)?;
            }
        }
        Ok(true)
    }

    fn take_preface(&mut self) -> Result<bool, Fault> {
        let bytes = self.input.bytes();
        let count = bytes.len().min(PREFACE.len());
        if bytes[..count] != PREFACE[..count] {
            let why = "a connection that begins with another preface";
            return Err(Fault::protocol(why));
        }
        if count < PREFACE.len() {
            return Ok(false);
        }
        self.input.consume(count);
        self.has_preface = true;
        Ok(true)
    }

    fn take(&mut self, world: &mut World<'_>, frame: Frame) -> Result<(), Fault> {
        let is_settings = matches!(&frame, Frame::Whole(header)
            if header.kind == kind::SETTINGS && !header.has(flag::ACK));
        if !self.has_settings && !is_settings {
            return Err(Fault::protocol("another frame before SETTINGS"));
        }
        match frame {
            Frame::Data {
                stream,
                payload_bytes,
                data_bytes,
                ends_stream,
            } => {
                let data = Incoming {
                    stream,
                    left_bytes: data_bytes,
                    ends_stream,
                };
                self.take_data(world, payload_bytes, data)
            }
            Frame::Block {
                stream,
                ends_stream,
                depends_on_itself,
            } => {
                let result = self.take_block(world, stream, ends_stream);
                self.reader.release_block();
                match depends_on_itself {
                    true => result.and(Err(Fault::Stream(stream, Code::PROTOCOL_ERROR))),
                    false => result,
                }
            }
            Frame::Whole(header) => self.take_whole(world, header),
            Frame::Unknown(header) => {
                let payload_bytes = header.payload_bytes.into();
                Ok(self.budget.spend_frame(world.io.now_us(), payload_bytes)?)
            }
        }
    }

    /// DATA begins; its content follows.
    fn take_data(
        &mut self,
        world: &mut World<'_>,
        payload_bytes: u32,
        data: Incoming,
    ) -> Result<(), Fault> {
        let exceeds = "DATA beyond the window of the connection";
        let exceeds = Fault::Connection(Code::FLOW_CONTROL_ERROR, exceeds);
        let taken = self.receive.take(payload_bytes);
        taken.map_err(|Exceeded| exceeds)?;
        let (id, data_bytes) = (data.stream, data.left_bytes);
        let is_useful = data_bytes > 0 || data.ends_stream;
        if !is_useful {
            self.budget.spend_frame(world.io.now_us(), 0)?;
        }
        if self.ids.is_idle(id) {
            return Err(Fault::protocol("DATA on a stream that is not open"));
        }
        let begun = self.begin_data(world.io.now_us(), payload_bytes, data);
        match begun {
            // Content of streams that are gone was in flight.
            Ok(false) | Err(_) => self.consumed(payload_bytes),
            Ok(true) => {
                self.incoming = Some(data);
                self.consumed(payload_bytes - data_bytes);
                self.refill(id);
                if data_bytes == 0 {
                    self.take_content(world, 0)?;
                }
            }
        }
        begun.map(|_| ())
    }

    /// False if the content is to be discarded.
    fn begin_data(
        &mut self,
        now_us: u64,
        payload_bytes: u32,
        data: Incoming,
    ) -> Result<bool, Fault> {
        let id = data.stream;
        self.incoming = None;
        let is_to_backend = self.arrival().is_none();
        let Some(stream) = self.streams.get_mut(&id) else {
            return self.check_gone(now_us, id).map(|()| false);
        };
        if is_to_backend && !stream.has_head {
            return Err(Fault::Stream(id, Code::PROTOCOL_ERROR));
        }
        if stream.incoming_ended {
            // nginx 1.22.1 ends a response without content twice: by its head, and an empty frame.
            if is_to_backend && payload_bytes == 0 && data.ends_stream {
                self.budget.spend(now_us, FRAME_TOKENS)?;
                return Ok(false);
            }
            return match self.ids.is_reset(id) {
                true => Ok(false),
                false => Err(Fault::Stream(id, Code::STREAM_CLOSED)),
            };
        }
        let taken = stream.receive.take(payload_bytes);
        taken.map_err(|Exceeded| Fault::Stream(id, Code::FLOW_CONTROL_ERROR))?;
        stream.receive.consume(payload_bytes - data.left_bytes);
        match stream.expect(data.left_bytes) {
            true => Ok(true),
            false => Err(Fault::Stream(id, Code::PROTOCOL_ERROR)),
        }
    }

    /// Takes bytes at the beginning of the input, which are content.
    fn take_content(&mut self, world: &mut World<'_>, bytes: usize) -> Result<(), Fault> {
        let Some(data) = &mut self.incoming else {
            return Ok(());
        };
        data.left_bytes -= bytes as u32;
        let (id, is_last, ends_stream) = (data.stream, data.left_bytes == 0, data.ends_stream);
        let Some(stream) = self.streams.get_mut(&id).filter(|it| !it.incoming_ended) else {
            // This side has reset the stream amid the frame.
            self.consumed(bytes as u32);
            return Ok(());
        };
        if bytes > 0 {
            stream.take(&self.input.bytes()[..bytes]);
            self.notify_readable(world.names, id);
        }
        if is_last {
            self.incoming = None;
        }
        match is_last && ends_stream {
            true => self.incoming_ended(world, id),
            false => Ok(()),
        }
    }

    /// END_STREAM has arrived, and everything before it.
    pub(super) fn incoming_ended(&mut self, world: &mut World<'_>, id: u32) -> Result<(), Fault> {
        let Some(stream) = self.streams.get_mut(&id) else {
            return Ok(());
        };
        if !stream.end_incoming() {
            return Err(Fault::Stream(id, Code::PROTOCOL_ERROR));
        }
        if let Side::Backend(_) = self.side {
            // The framing of the text marks the response's end.
            self.budget.earn();
            self.remove_if_over(world.names, id);
            self.notify_readable(world.names, id);
            return Ok(());
        }
        let finished = Notice::Event(stream.name, AppEvent::PeerFinished);
        world.names.notices.push_back(finished);
        self.remove_if_over(world.names, id);
        Ok(())
    }

    /// The session has to read.
    pub(super) fn notify_readable(&mut self, names: &mut Names, id: u32) {
        if let Some(stream) = self.streams.get_mut(&id)
            && !std::mem::replace(&mut stream.is_readable, true)
        {
            let readable = Notice::Event(stream.name, AppEvent::Readable);
            names.notices.push_back(readable);
        }
    }

    /// Checks a frame of a stream that is gone. A backend may have sent many more before it gets to
    /// know that streams are cancelled than this side remembers.
    pub(super) fn check_gone(&mut self, now_us: u64, id: u32) -> Result<(), Fault> {
        let checked = self.ids.check_gone(id);
        match (&self.side, checked) {
            (Side::Backend(_), Err(_)) => Ok(self.budget.spend(now_us, FRAME_TOKENS)?),
            _ => checked,
        }
    }

    fn take_block(
        &mut self,
        world: &mut World<'_>,
        id: u32,
        ends_stream: bool,
    ) -> Result<(), Fault> {
        if let Side::Backend(_) = self.side {
            return self.take_response(world, id, ends_stream);
        }
        if self.ids.is_new(id)? {
            return self.take_request(world, id, ends_stream);
        }
        // Trailers. The dynamic table takes them in any case.
        let trailers = request::read_trailers(&mut self.decoder, self.reader.block());
        let trailers = trailers.map_err(|why| fault_of(why, id));
        self.budget.spend_frame(world.io.now_us(), 0)?;
        if !self.streams.contains_key(&id) {
            self.ids.check_gone(id)?;
        }
        if let Err(fault @ Fault::Connection(..)) = trailers {
            return Err(fault);
        }
        let Some(stream) = self.streams.get_mut(&id) else {
            return Ok(());
        };
        if stream.incoming_ended {
            return match self.ids.is_reset(id) {
                true => Ok(()),
                false => Err(Fault::Stream(id, Code::STREAM_CLOSED)),
            };
        }
        stream.take_trailers(trailers?);
        match ends_stream {
            true => self.incoming_ended(world, id),
            false => Err(Fault::Stream(id, Code::PROTOCOL_ERROR)),
        }
    }

    /// Opens a stream with its request.
    fn take_request(
        &mut self,
        world: &mut World<'_>,
        id: u32,
        ends_stream: bool,
    ) -> Result<(), Fault> {
        self.ids.open(id);
        let config = &world.shared.config;
        let (head_bytes_max, streams_max) = (config.head_bytes_max, config.http2_streams_max);
        let block = self.reader.block();
        let head = request::read(&mut self.decoder, block, ends_stream, head_bytes_max);
        let head = head.map_err(|why| fault_of(why, id))?;
        let is_late = matches!(self.stage, Stage::Leaving(last) if id > last);
        if is_late || self.is_full(streams_max) {
            frame::rst_stream(self.writer.control(), id, Code::REFUSED_STREAM);
            self.ids.note_reset(id);
            return Ok(self.budget.spend(world.io.now_us(), STREAM_TOKENS)?);
        }
        world.shared.counters.http2_requests += 1;
        let window = SendWindow::new(self.writer.settings().initial_window_bytes);
        let name = world.names.add(self.stream, id);
        let mut stream = Stream::of_client(id, name, head, window);
        if let Some(priority) = self.priorities.take(id.into()) {
            stream.prioritize(priority);
        }
        self.streams.insert(id, Box::new(stream));
        let notices = &mut world.names.notices;
        notices.push_back(Notice::Opened {
            name,
            connection: self.stream,
            id,
        });
        match ends_stream {
            true => self.incoming_ended(world, id),
            false => {
                notices.push_back(Notice::Event(name, AppEvent::Readable));
                Ok(())
            }
        }
    }

    fn take_whole(&mut self, world: &mut World<'_>, header: Header) -> Result<(), Fault> {
        let now_us = world.io.now_us();
        match header.kind {
            kind::WINDOW_UPDATE => return self.take_window_update(world, header.stream),
            kind::RST_STREAM => return self.take_reset(world, header.stream),
            // Peers of gRPC measure the path with a PING for each round trip in which DATA arrives.
            kind::PING => self
                .free_updates
                .on_window_update(&mut self.budget, now_us)?,
            _ => self.budget.spend(now_us, FRAME_TOKENS)?,
        }
        match header.kind {
            kind::SETTINGS if header.has(flag::ACK) => {
                self.settings_us = None;
                Ok(())
            }
            kind::SETTINGS => self.take_settings(world),
            kind::PING if header.has(flag::ACK) => Ok(()),
            kind::PING => {
                if let Some(payload) = self.reader.payload().first_chunk() {
                    frame::ping_ack(self.writer.control(), payload);
                }
                Ok(())
            }
            kind::GOAWAY => {
                self.peer_leaves = true;
                self.take_goaway(world.names);
                Ok(())
            }
            kind::PRIORITY_UPDATE if self.arrival().is_none() => {
                Err(Fault::protocol("PRIORITY_UPDATE of a server"))
            }
            kind::PRIORITY_UPDATE => {
                self.take_priority_update(world.shared.config.http2_streams_max)
            }
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

    fn take_settings(&mut self, world: &mut World<'_>) -> Result<(), Fault> {
        let before = self.writer.settings();
        self.writer.apply_settings(self.reader.payload())?;
        let settings = self.writer.settings();
        let is_first = !std::mem::replace(&mut self.has_settings, true);
        if is_first && self.arrival().is_some() {
            // The timeout of heads is over: that between requests begins.
            self.idle_us = None;
        }
        let change =
            i64::from(settings.initial_window_bytes) - i64::from(before.initial_window_bytes);
        for stream in self.streams.values_mut() {
            let changed = stream.window.change(change);
            changed.map_err(|Overflow| TOO_LARGE)?;
        }
        frame::settings_ack(self.writer.control());
        if change > 0 {
            let ids: Vec<u32> = self.streams.keys().copied().collect();
            ids.into_iter().for_each(|id| self.make_ready(id));
        }
        if is_first {
            self.open_waiting(world);
        }
        Ok(())
    }

    fn take_window_update(&mut self, world: &mut World<'_>, id: u32) -> Result<(), Fault> {
        self.free_updates
            .on_window_update(&mut self.budget, world.io.now_us())?;
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
        let changed = stream.window.change(increment.into());
        changed.map_err(|Overflow| Fault::Stream(id, Code::FLOW_CONTROL_ERROR))?;
        self.make_ready(id);
        Ok(())
    }

    fn take_reset(&mut self, world: &mut World<'_>, id: u32) -> Result<(), Fault> {
        if self.ids.is_idle(id) {
            return Err(Fault::protocol("RST_STREAM on a stream that is not open"));
        }
        let now_us = world.io.now_us();
        let Some(stream) = self.streams.get(&id) else {
            return Ok(self.budget.spend(now_us, FRAME_TOKENS)?);
        };
        if let Side::Backend(_) = self.side {
            return self.take_backend_reset(world, id);
        }
        let is_cancelled = !stream.outgoing.is_ended();
        self.remove(world.names, id);
        if is_cancelled {
            self.budget.spend(now_us, STREAM_TOKENS)?;
        }
        Ok(())
    }

    /// RFC 9218 §7.1.
    fn take_priority_update(&mut self, streams_max: u32) -> Result<(), Fault> {
        let Some((&id, value)) = self.reader.payload().split_first_chunk() else {
            return Ok(());
        };
        let id = u32::from_be_bytes(id) & frame::STREAM_ID_MAX;
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

const TOO_LARGE: Fault = Fault::Connection(
    Code::FLOW_CONTROL_ERROR,
    "a window larger than 2^31-1 bytes",
);

pub(super) fn fault_of(why: Unreadable, id: u32) -> Fault {
    match why {
        Unreadable::Block => {
            let why = "a field block that is not well-formed";
            Fault::Connection(Code::COMPRESSION_ERROR, why)
        }
        Unreadable::Message => Fault::Stream(id, Code::PROTOCOL_ERROR),
    }
}
