//! One application: its sockets, and their messages to and from the other node.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;

use socket_channel::channel::{AppEnd, ReceiveError};
use socket_channel::{
    AppRecord, ChannelId, Command, Event, Flags, HandleId, How, Segment, SocketId, SocketOption,
};

use crate::gate::Granted;
use crate::gate::socket::{Handle, Socket};
use crate::message::{Body, DATA_BYTES_MAX, Message, State, UNTAKEN_MAX};

/// Fewest unused handles before more are requested.
const HANDLES_MIN: usize = 32;

/// Pause after a shortage until handles are requested again, in microseconds.
const SHORTAGE_PAUSE_US: u64 = 100_000;

/// Most answers that the other node awaits at once.
const REQUESTS_MAX: usize = 4096;

/// Most looks at a socket that keeps changing.
const LOOKS_MAX: usize = 4;

/// A command that waits for the ring.
#[derive(Debug)]
struct Unpushed {
    bytes: Vec<u8>,
    /// The command is part of the other node's count.
    is_counted: bool,
    /// Closes after the command.
    handle: Option<Handle>,
}

/// The subject of an awaited answer.
#[derive(Debug)]
enum Request {
    /// A socket is made for a handle.
    Make(Handle),
    /// An existing socket.
    Of(SocketId),
}

/// A range of a file, in bytes.
struct Range {
    file: SocketId,
    offset: u64,
    len: u64,
}

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct Member {
    segment: Segment,
    end: AppEnd,
    channel: ChannelId,
    handles: Vec<Handle>,
    awaits_handles: bool,
    /// End of the pause after a shortage of handles, in microseconds.
    short_until_us: Option<u64>,
    sockets: HashMap<SocketId, Socket>,
    /// Sockets to serve.
    queue: VecDeque<SocketId>,
    unpushed: VecDeque<Unpushed>,
    /// Commands that make sockets, and wait for handles.
    makes: VecDeque<Vec<u8>>,
    /// Messages of the other node that wait here.
    untaken: u32,
    /// Messages that no longer wait, not yet reported to the other node.
    taken: u32,
    requests: HashMap<u32, Request>,
}

/// Limits of a turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Messages for the session at which no more are made.
    pub(crate) out: usize,
    /// Most handles of an application.
    pub(crate) handles: usize,
}

/// The rule that the other node has broken.
type Rule = &'static str;

impl Member {
    pub(crate) fn new(granted: Granted) -> Member {
        Member {
            segment: granted.segment,
            end: granted.end,
            channel: granted.channel,
            handles: Vec::new(),
            awaits_handles: false,
            short_until_us: None,
            sockets: HashMap::new(),
            queue: VecDeque::new(),
            unpushed: VecDeque::new(),
            makes: VecDeque::new(),
            untaken: 0,
            taken: 0,
            requests: HashMap::new(),
        }
    }

    pub(crate) fn sockets(&self) -> usize {
        self.sockets.len()
    }

    /// Whether handles must be requested; true once per request.
    pub(crate) fn wants_handles(&mut self, now_us: u64, handles_max: usize) -> bool {
        if self
            .short_until_us
            .is_some_and(|until_us| until_us <= now_us)
        {
            self.ask_again();
        }
        let wants = self.handles.len() < HANDLES_MIN && !self.has_most(handles_max);
        wants && !std::mem::replace(&mut self.awaits_handles, true)
    }

    /// Whether the application has its most handles.
    fn has_most(&self, handles_max: usize) -> bool {
        self.handles.len() + self.sockets.len() >= handles_max
    }

    fn ask_again(&mut self) {
        if self.short_until_us.take().is_some() {
            self.awaits_handles = false;
        }
    }

    pub(crate) fn add_handles(&mut self, now_us: u64, handles: Vec<(HandleId, Option<OwnedFd>)>) {
        if handles.is_empty() {
            self.short_until_us = Some(now_us + SHORTAGE_PAUSE_US);
            return;
        }
        let handles = handles.into_iter().map(|(id, fd)| Handle { id, _fd: fd });
        self.handles.extend(handles);
        self.awaits_handles = false;
        // Listeners may have waited for handles.
        let listeners = self.sockets.iter();
        let listeners = listeners.filter(|(_, it)| it.told.flags.has(Flags::LISTENER));
        let listeners: Vec<SocketId> = listeners.map(|(id, _)| *id).collect();
        for id in listeners {
            self.enqueue(id);
        }
    }

    fn enqueue(&mut self, id: SocketId) {
        if let Some(socket) = self.sockets.get_mut(&id)
            && !std::mem::replace(&mut socket.is_queued, true)
        {
            self.queue.push_back(id);
        }
    }

    fn push_later(&mut self, command: &Command<'_>) {
        self.push_behind(command, false, None);
    }

    fn push_behind(&mut self, command: &Command<'_>, is_counted: bool, handle: Option<Handle>) {
        let mut bytes = Vec::new();
        command.encode(&mut bytes);
        self.unpushed.push_back(Unpushed {
            bytes,
            is_counted,
            handle,
        });
    }

    fn record(&self, id: SocketId) -> Option<AppRecord<'_>> {
        let record = AppRecord::of(&self.segment, id).ok()?;
        record.flags().is_ok().then_some(record)
    }

    /// Handles a message of the other node about this application.
    pub(crate) fn on_message(&mut self, body: &Body<'_>) -> Result<(), Rule> {
        match *body {
            Body::Command(bytes) => {
                self.count()?;
                let command = Command::decode(bytes).map_err(|_| "a command does not decode")?;
                self.on_command(bytes, &command)
            }
            Body::Data {
                socket,
                has_more,
                bytes,
            } => self.on_data(socket, bytes, has_more),
            Body::SendFile {
                socket,
                file,
                offset,
                len,
                ends_more,
            } => {
                self.count()?;
                let range = Range { file, offset, len };
                self.on_send_file(socket, range, ends_more)
            }
            Body::Finish { socket } => {
                self.count()?;
                let found = self.sockets.get_mut(&socket).ok_or("an end of no stream")?;
                found.is_finished = true;
                let Some((mark, at)) = self.record(socket).map(|record| record.mark()) else {
                    self.count_taken();
                    return Ok(());
                };
                let how = How::Write;
                let command = Command::Shutdown {
                    socket,
                    how,
                    mark,
                    at,
                };
                self.push_behind(&command, true, None);
                Ok(())
            }
            Body::Close {
                socket,
                got,
                resets,
            } => {
                self.count()?;
                let closed = self.sockets.remove(&socket);
                let closed = closed.ok_or("the end of no socket")?;
                // Bytes that no program reads count as unread (RFC 2525 §2.17).
                let is_listener = closed.told.flags.has(Flags::LISTENER);
                let has_unread = !is_listener && closed.rx_told > got;
                self.close(socket, closed, resets || has_unread, true);
                Ok(())
            }
            Body::Credit { socket, until } => {
                let found = self.sockets.get_mut(&socket).ok_or("credit of no socket")?;
                if until < found.rx_until && !found.told.flags.has(Flags::LISTENER) {
                    return Err("credit is taken back");
                }
                found.rx_until = until;
                self.enqueue(socket);
                Ok(())
            }
            _ => Err("a message of the wrong direction"),
        }
    }

    /// Counts a message that waits here until the ring has room.
    fn count(&mut self) -> Result<(), Rule> {
        self.untaken += 1;
        if self.untaken > UNTAKEN_MAX {
            return Err("more messages than may wait");
        }
        Ok(())
    }

    fn count_taken(&mut self) {
        self.untaken -= 1;
        self.taken += 1;
    }

    fn on_command(&mut self, bytes: &[u8], command: &Command<'_>) -> Result<(), Rule> {
        let (request, socket) = match *command {
            Command::Open { .. } | Command::OpenFile { .. } => {
                self.makes.push_back(bytes.to_vec());
                return Ok(());
            }
            Command::Bind {
                request, socket, ..
            }
            | Command::Listen {
                request, socket, ..
            }
            | Command::Connect {
                request, socket, ..
            }
            | Command::SetOption {
                request, socket, ..
            }
            | Command::GetOption {
                request, socket, ..
            }
            | Command::GetInfo { request, socket } => (request, socket),
            _ => return Err("a command that has no answer"),
        };
        self.expect(request, Request::Of(socket))?;
        self.push_behind(command, true, None);
        Ok(())
    }

    /// Registers an awaited answer, unless the request is 0.
    fn expect(&mut self, request: u32, about: Request) -> Result<(), Rule> {
        if request == 0 {
            return Ok(());
        }
        if self.requests.len() >= REQUESTS_MAX {
            return Err("more requests than may wait");
        }
        match self.requests.insert(request, about) {
            None => Ok(()),
            Some(_) => Err("a request twice"),
        }
    }

    fn on_data(&mut self, id: SocketId, bytes: &[u8], has_more: bool) -> Result<(), Rule> {
        if !self.sockets.contains_key(&id) {
            return Err("bytes for no socket");
        }
        let Some(record) = self.record(id) else {
            return Ok(());
        };
        match record.fill(bytes, has_more) {
            Ok(written) if written == bytes.len() => {
                let must_kick = record.must_kick();
                if self.await_acked(id) || self.is_short_of_room(id) {
                    self.enqueue(id);
                }
                if must_kick {
                    self.push_later(&Command::Kick { socket: id });
                }
                Ok(())
            }
            Ok(_) => Err("more bytes than it had credit for"),
            Err(_) => Ok(()),
        }
    }

    /// Whether the peer has acknowledged the whole stream. If not, requests an event for further
    /// acknowledgments, since programs may wait for them.
    fn await_acked(&self, id: SocketId) -> bool {
        self.record(id).is_some_and(|record| {
            let position = record.tx_tail().saturating_add(record.file_queued_bytes());
            record.await_acked(position)
        })
    }

    /// Whether the other node's credit is at most half a FIFO.
    fn is_short_of_room(&self, id: SocketId) -> bool {
        let record = self.record(id);
        record
            .zip(self.sockets.get(&id))
            .is_some_and(|(record, socket)| {
                let told = socket.tx_told.saturating_sub(record.tx_tail());
                told <= used_bytes(&socket.told) / 2
            })
    }

    /// Requests an event for room in the tx FIFO, or for file bytes, if the other node may soon
    /// wait for it.
    fn await_room(&self, id: SocketId) {
        if let Some(record) = self.record(id)
            && (record.file_queued_bytes() > 0 || self.is_short_of_room(id))
        {
            record.await_room();
        }
    }

    fn on_send_file(
        &mut self,
        socket: SocketId,
        range: Range,
        ends_more: bool,
    ) -> Result<(), Rule> {
        let Range { file, offset, len } = range;
        if !self.sockets.contains_key(&socket) || !self.sockets.contains_key(&file) {
            return Err("a file of no socket");
        }
        let Some(record) = self.record(socket) else {
            self.count_taken();
            return Ok(());
        };
        if record.queue_file(len) != len {
            return Err("more file bytes than it had credit for");
        }
        let (mark, at) = record.mark();
        if ends_more {
            record.end_more_with_mark();
        }
        self.await_acked(socket);
        // Serving the socket requests events for further file bytes.
        self.enqueue(socket);
        let command = Command::SendFile {
            socket,
            file,
            offset,
            len,
            mark,
            at,
        };
        self.push_behind(&command, true, None);
        Ok(())
    }

    fn close(&mut self, id: SocketId, socket: Socket, resets: bool, is_counted: bool) {
        if resets && socket.told.flags.has(Flags::STREAM) {
            self.push_later(&Command::SetOption {
                request: 0,
                socket: id,
                option: SocketOption::LingerMs,
                value: 0,
            });
        }
        self.ask_again();
        let handle = socket.handle;
        let command = Command::Close { handle: handle.id };
        self.push_behind(&command, is_counted, Some(handle));
    }

    /// Closes all sockets. With `resets`, resets connections whose streams have not ended.
    pub(crate) fn close_all(&mut self, resets: bool) {
        for (id, socket) in std::mem::take(&mut self.sockets) {
            let resets = resets && !socket.is_finished;
            self.close(id, socket, resets, false);
        }
        self.makes.clear();
    }

    /// Puts commands into the ring. True if there were any.
    pub(crate) fn push(&mut self) -> bool {
        let mut worked = false;
        while let Some(next) = self.unpushed.front() {
            if !self.end.has_room() {
                break;
            }
            let command = Command::decode(&next.bytes).expect("it was encoded here");
            if self.end.send(&command).is_err() {
                break;
            }
            worked = true;
            let is_counted = next.is_counted;
            let pushed = self.unpushed.pop_front();
            // The descriptor closes once the command is in the ring.
            if pushed.as_ref().is_some_and(|it| it.handle.is_some()) {
                self.end.flush();
            }
            drop(pushed);
            if is_counted {
                self.count_taken();
            }
        }
        self.end.flush();
        worked
    }

    /// Drops events of the host stack, which takes no commands from an application that does not
    /// read.
    pub(crate) fn forget_events(&mut self) {
        while let Ok(Some(_)) | Err(ReceiveError::Malformed) = self.end.receive() {}
    }

    pub(crate) fn has_unpushed(&self) -> bool {
        !self.unpushed.is_empty()
    }

    /// Does a round of work; true if there was any.
    pub(crate) fn turn(
        &mut self,
        app: u32,
        out: &mut VecDeque<Vec<u8>>,
        bounds: Bounds,
    ) -> Result<bool, Rule> {
        let mut worked = self.make_sockets()?;
        worked |= self.refuse_sockets(app, out, bounds);
        while out.len() < bounds.out {
            match self.end.receive() {
                Ok(Some(event)) => self.on_event(app, out, event),
                Ok(None) => break,
                Err(ReceiveError::Malformed) => continue,
                Err(ReceiveError::Corrupt) => return Err("the event ring makes no sense"),
            }
            worked = true;
        }
        // Serves each socket once, so that none starves another.
        for _ in 0..self.queue.len() {
            if out.len() >= bounds.out {
                break;
            }
            let Some(id) = self.queue.pop_front() else {
                break;
            };
            worked = true;
            self.tell(app, out, id);
        }
        worked |= self.push();
        if self.taken > 0 && out.len() < bounds.out {
            let count = std::mem::take(&mut self.taken);
            say(out, app, Body::Taken { count });
            worked = true;
        }
        Ok(worked)
    }

    fn make_sockets(&mut self) -> Result<bool, Rule> {
        let mut worked = false;
        while !self.makes.is_empty() && !self.handles.is_empty() {
            let Some((bytes, handle)) = self.makes.pop_front().zip(self.handles.pop()) else {
                break;
            };
            worked = true;
            let (request, command) = match Command::decode(&bytes) {
                Ok(Command::Open {
                    request, family, ..
                }) => {
                    let handle = handle.id;
                    let command = Command::Open {
                        request,
                        handle,
                        family,
                    };
                    (request, command)
                }
                Ok(Command::OpenFile { request, path, .. }) => {
                    let handle = handle.id;
                    let command = Command::OpenFile {
                        request,
                        handle,
                        path,
                    };
                    (request, command)
                }
                _ => return Err("a command that makes no socket"),
            };
            if request == 0 {
                return Err("a socket without a request");
            }
            self.expect(request, Request::Make(handle))?;
            self.push_behind(&command, true, None);
        }
        Ok(worked)
    }

    /// Refuses commands that make sockets while there is no handle.
    fn refuse_sockets(&mut self, app: u32, out: &mut VecDeque<Vec<u8>>, bounds: Bounds) -> bool {
        let mut worked = false;
        let is_short = self.short_until_us.is_some() || self.has_most(bounds.handles);
        while is_short
            && self.handles.is_empty()
            && out.len() < bounds.out
            && let Some(command) = self.makes.pop_front()
        {
            worked = true;
            self.count_taken();
            let (Ok(Command::Open { request, .. }) | Ok(Command::OpenFile { request, .. })) =
                Command::decode(&command)
            else {
                continue;
            };
            let answer = Event::Answer {
                request,
                errno: rustix::io::Errno::MFILE.raw_os_error().unsigned_abs(),
                socket: None,
                value: 0,
            };
            let mut bytes = Vec::new();
            answer.encode(&mut bytes);
            say(out, app, Body::Event(&bytes));
        }
        worked
    }

    fn on_event(&mut self, app: u32, out: &mut VecDeque<Vec<u8>>, event: Event) {
        let request = match event {
            Event::Ready { socket } => return self.enqueue(socket),
            Event::ScanAll => {
                let ids: Vec<SocketId> = self.sockets.keys().copied().collect();
                return ids.into_iter().for_each(|id| self.enqueue(id));
            }
            Event::Answer { request, .. } | Event::Info { request, .. } => request,
        };
        match (self.requests.remove(&request), event) {
            (Some(Request::Make(handle)), Event::Answer { socket: None, .. }) => {
                self.handles.push(handle);
            }
            (
                Some(Request::Make(handle)),
                Event::Answer {
                    socket: Some(id), ..
                },
            ) => self.introduce(app, out, id, handle),
            (Some(Request::Of(id)), _) => {
                // The record must be current when the program reads the answer.
                self.tell_state(app, out, id);
                self.enqueue(id);
            }
            (Some(Request::Make(_)), _) | (None, _) => return,
        }
        let mut bytes = Vec::new();
        event.encode(&mut bytes);
        say(out, app, Body::Event(&bytes));
    }

    /// Announces a new socket by its name.
    fn introduce(&mut self, app: u32, out: &mut VecDeque<Vec<u8>>, id: SocketId, handle: Handle) {
        let mut socket = Socket::new(handle);
        let state = socket.observe(&self.segment, id);
        socket.tx_told = self.tx_until(id);
        socket.told = state;
        say(out, app, Body::New { socket: id, state });
        let until = socket.tx_told;
        if until > 0 {
            say(out, app, Body::Credit { socket: id, until });
        }
        self.sockets.insert(id, socket);
        self.enqueue(id);
    }

    fn tx_until(&self, id: SocketId) -> u64 {
        let record = self.record(id);
        let room = record.and_then(|record| Some((record.tx_room_bytes().ok()?, record)));
        room.map_or(0, |(room, record)| record.tx_tail() + room as u64)
    }

    fn tell_state(&mut self, app: u32, out: &mut VecDeque<Vec<u8>>, id: SocketId) {
        let Some(socket) = self.sockets.get_mut(&id) else {
            return;
        };
        let state = socket.observe(&self.segment, id);
        if state != socket.told {
            let becomes = |flag| state.flags.has(flag) && !socket.told.flags.has(flag);
            if becomes(Flags::LISTENER) {
                socket.rx_until = 0;
            }
            socket.told = state;
            say(out, app, Body::State { socket: id, state });
        }
    }

    /// Sends a socket's bytes, as far as there is credit, or its connections; then its state.
    fn tell(&mut self, app: u32, out: &mut VecDeque<Vec<u8>>, id: SocketId) {
        let Some(socket) = self.sockets.get_mut(&id) else {
            return;
        };
        socket.is_queued = false;
        for _ in 0..LOOKS_MAX {
            let Some(before) = self.record(id).map(|record| record.edge()) else {
                return self.tell_state(app, out, id);
            };
            let has_more = if self.is_listener(id) {
                self.accept(app, out, id)
            } else {
                self.await_acked(id);
                self.await_room(id);
                self.send_bytes(app, out, id)
            };
            self.tell_state(app, out, id);
            self.tell_room(app, out, id);
            if has_more {
                return self.enqueue(id);
            }
            let channel = self.channel;
            let rests = |record: AppRecord<'_>| record.want(channel, before);
            if self.record(id).is_none_or(rests) {
                return;
            }
        }
        self.enqueue(id);
    }

    fn is_listener(&self, id: SocketId) -> bool {
        let flags = self.record(id).and_then(|record| record.flags().ok());
        flags.is_some_and(|flags| flags.has(Flags::LISTENER))
    }

    /// Takes a connection out of a listener's accept queue. True if there may be more.
    fn accept(&mut self, app: u32, out: &mut VecDeque<Vec<u8>>, listener: SocketId) -> bool {
        // The listener's state precedes its connections.
        self.tell_state(app, out, listener);
        let Some(socket) = self.sockets.get_mut(&listener) else {
            return false;
        };
        if socket.rx_told >= socket.rx_until || self.handles.is_empty() {
            return false;
        }
        let record = AppRecord::of(&self.segment, listener);
        let Ok(Some(id)) = record.and_then(|record| record.accept()) else {
            return false;
        };
        let Some(handle) = self.handles.pop() else {
            return false;
        };
        socket.rx_told += 1;
        let handle_id = handle.id;
        self.push_later(&Command::Accept {
            socket: id,
            handle: handle_id,
        });
        self.introduce(app, out, id, handle);
        let socket = id;
        say(out, app, Body::Accepted { listener, socket });
        true
    }

    /// Sends received bytes. True if there are more, with credit.
    fn send_bytes(&mut self, app: u32, out: &mut VecDeque<Vec<u8>>, id: SocketId) -> bool {
        let Some(socket) = self.sockets.get_mut(&id) else {
            return false;
        };
        let credit = socket.rx_until.saturating_sub(socket.rx_told);
        let Ok(record) = AppRecord::of(&self.segment, id) else {
            return false;
        };
        let mut bytes = [0; DATA_BYTES_MAX];
        let len = credit.min(DATA_BYTES_MAX as u64) as usize;
        let len = match record.read(&mut bytes[..len]) {
            Ok(len) if len > 0 => len,
            _ => return false,
        };
        socket.rx_told += len as u64;
        let has_credit = socket.rx_told < socket.rx_until;
        let must_kick = record.rx_must_kick(len);
        let has_more = has_credit && record.rx_waiting_bytes() > 0;
        let bytes = &bytes[..len];
        let data = Body::Data {
            socket: id,
            has_more: false,
            bytes,
        };
        say(out, app, data);
        if must_kick {
            self.push_later(&Command::Kick { socket: id });
        }
        has_more
    }

    /// Gives credit for bytes in the other direction, a quarter of the FIFO at a time.
    fn tell_room(&mut self, app: u32, out: &mut VecDeque<Vec<u8>>, id: SocketId) {
        let until = self.tx_until(id);
        let Some(socket) = self.sockets.get_mut(&id) else {
            return;
        };
        let step = (used_bytes(&socket.told) / 4).max(1);
        if until >= socket.tx_told.saturating_add(step) {
            socket.tx_told = until;
            say(out, app, Body::Credit { socket: id, until });
        }
    }

    pub(crate) fn prepare_sleep(&mut self) -> bool {
        let has_told_all = self.queue.is_empty() && self.taken == 0;
        has_told_all && self.end.prepare_sleep()
    }

    pub(crate) fn disarm(&mut self) {
        self.end.disarm();
    }
}

/// The usable part of a tx FIFO, in bytes.
fn used_bytes(state: &State) -> u64 {
    let tx_bytes = u64::from(state.tx_bytes);
    match state.tx_limit {
        0 => tx_bytes,
        limit => u64::from(limit).min(tx_bytes),
    }
}

fn say(out: &mut VecDeque<Vec<u8>>, app: u32, body: Body<'_>) {
    out.push_back(Message { app, body }.encode());
}
