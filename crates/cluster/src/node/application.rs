//! One application: its resources, and the stack node's messages about it.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use socket_channel::channel::HostEnd;
use socket_channel::fifo_area::FifoArea;
use socket_channel::outbox::Outbox;
use socket_channel::record::Wanted;
use socket_channel::{
    AppId, Block, ChannelId, Event, Flags, HandleId, HostRecord, Segment, SocketId,
};
use sockets::{First, Grant, NewHandles, Waker};

use crate::message::{Body, State};
use crate::node::Rule;
use crate::node::shared_ports::{SharedPort, Sharing};
use crate::node::socket::{End, Mark, Socket, What};

/// Most ends of sockets that wait for room at the stack node: the most sockets of an application.
const CLOSES_MAX: usize = 1 << 20;

/// Service of an application by the stack node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The stack node has not answered.
    Attaching,
    Attached,
    /// The stack node serves it no longer.
    Detached,
}

/// The channel of one process.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) id: ChannelId,
    pub(crate) end: HostEnd,
    outbox: Outbox,
}

impl Channel {
    pub(crate) fn new(id: ChannelId, end: HostEnd) -> Channel {
        Channel {
            id,
            end,
            outbox: Outbox::default(),
        }
    }

    /// Whether a command may be taken: its answer has room.
    pub(crate) fn may_answer(&mut self) -> bool {
        self.outbox.has_room(&mut self.end)
    }

    /// Sends an answer, as soon as there is room.
    pub(crate) fn answer(&mut self, event: Event) {
        self.outbox.answer(&mut self.end, event);
    }

    fn hint(&mut self, event: &Event) {
        self.outbox.hint(&mut self.end, event);
    }
}

/// The host's end of a descriptor of the application.
#[derive(Debug)]
pub(crate) struct Handle {
    /// Hangs up when the last copy is closed; watched until it is dropped. `None` in a simulation.
    _fd: Option<OwnedFd>,
    pub(crate) use_of: Use,
    /// Process to which it was given.
    pub(crate) channel: ChannelId,
    /// Its process has reused it: another process's copy of the descriptor may be of a socket
    /// before this one.
    pub(crate) is_private: bool,
}

/// The use of a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Nothing,
    /// A socket is being made for it.
    Awaited,
    Socket(SocketId),
}

/// A command without an answer from the stack node yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) channel: ChannelId,
    /// The process's own number.
    pub(crate) number: u32,
    /// The handle for which a socket is made.
    pub(crate) makes_for: Option<HandleId>,
}

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) id: AppId,
    /// The user of its first process.
    pub(crate) uid: u32,
    pub(crate) grant: Grant,
    pub(crate) phase: Phase,
    segment: Segment,
    area: FifoArea,
    /// By index.
    pub(crate) sockets: HashMap<u32, Socket>,
    pub(crate) handles: HashMap<HandleId, Handle>,
    pub(crate) channels: Vec<Channel>,
    /// The channel whose commands come first in the next turn.
    pub(crate) first: usize,
    pub(crate) requests: HashMap<u32, Request>,
    pub(crate) next_request: u32,
    /// Messages that the stack node may not have put into its ring yet.
    pub(crate) untaken: u32,
    /// Ends of sockets to be sent to the stack node.
    pub(crate) closes: VecDeque<End>,
    /// Sockets to serve.
    pub(crate) queue: VecDeque<SocketId>,
    /// Sockets whose hints are pending.
    changed: Vec<SocketId>,
    /// Removed sockets, with the channels that wait for them.
    retired: Vec<(SocketId, Wanted)>,
    /// Closed descriptors, and ended processes, to handle after their last commands.
    pub(crate) hung: BTreeSet<HandleId>,
    pub(crate) ended: BTreeSet<ChannelId>,
    /// Connections that were taken out of an accept queue without a handle yet; with the time limit
    /// in microseconds once the process that took one may have ended.
    pub(crate) unadopted: HashMap<SocketId, Option<u64>>,
    /// Streams that lack a counted mark, with the time until which another process may still send
    /// it, in microseconds.
    pub(crate) unmarked: HashMap<SocketId, u64>,
    /// Closed connections with unsent bytes.
    pub(crate) closing: BTreeSet<SocketId>,
    /// Binds of sockets that share their ports.
    pub(crate) sharing: Vec<Sharing>,
}

impl App {
    pub(crate) fn new(id: AppId, uid: u32, first: First) -> App {
        App {
            id,
            uid,
            grant: first.grant,
            phase: Phase::Attaching,
            area: FifoArea::new(first.segment.layout()),
            segment: first.segment,
            sockets: HashMap::new(),
            handles: HashMap::new(),
            channels: Vec::new(),
            first: 0,
            requests: HashMap::new(),
            next_request: 1,
            untaken: 0,
            closes: VecDeque::new(),
            queue: VecDeque::new(),
            changed: Vec::new(),
            retired: Vec::new(),
            hung: BTreeSet::new(),
            ended: BTreeSet::new(),
            unadopted: HashMap::new(),
            unmarked: HashMap::new(),
            closing: BTreeSet::new(),
            sharing: Vec::new(),
        }
    }

    pub(crate) fn sockets(&self) -> usize {
        self.sockets.len()
    }

    /// Ports that its sockets share, or are about to.
    pub(crate) fn shared(&self) -> impl Iterator<Item = SharedPort> {
        self.sharing.iter().map(|sharing| sharing.port)
    }

    /// Whether nothing of the application is left.
    pub(crate) fn is_over(&self) -> bool {
        let is_closed =
            self.channels.is_empty() && self.handles.is_empty() && self.sockets.is_empty();
        is_closed && self.closes.is_empty()
    }

    pub(crate) fn add_handle(&mut self, handle: HandleId, channel: ChannelId, fd: Option<OwnedFd>) {
        let made = Handle {
            _fd: fd,
            use_of: Use::Nothing,
            channel,
            is_private: false,
        };
        self.handles.insert(handle, made);
    }

    /// Adds handles, and watches their hang-ups.
    pub(crate) fn add_handles(&mut self, waker: Option<&Waker>, new: NewHandles) {
        for (fd, number) in new.descriptors.into_iter().zip(new.first.0..) {
            let handle = HandleId(number);
            let watched = waker.map(|waker| waker.add_handle(fd.as_fd(), self.id, handle));
            if let Some(Err(error)) = watched {
                // The descriptor closes, so the application's end hangs up.
                tracing::warn!(%error, "a descriptor of an application is not watched");
                continue;
            }
            self.add_handle(handle, new.channel, Some(fd));
        }
    }

    pub(crate) fn channel(&mut self, id: ChannelId) -> Option<&mut Channel> {
        self.channels.iter_mut().find(|channel| channel.id == id)
    }

    pub(crate) fn socket(&mut self, id: SocketId) -> Option<&mut Socket> {
        let found = self.sockets.get_mut(&id.index)?;
        (found.record.id() == id).then_some(found)
    }

    /// A socket that still exists on the stack node.
    pub(crate) fn live(&mut self, id: SocketId) -> Option<&mut Socket> {
        self.socket(id).filter(|socket| !socket.is_dead)
    }

    /// Queues a socket to be served.
    pub(crate) fn enqueue(&mut self, id: SocketId) {
        if let Some(socket) = self.socket(id)
            && !std::mem::replace(&mut socket.is_queued, true)
        {
            self.queue.push_back(id);
        }
    }

    /// Notes a change of a record: hints go out at the end of the turn.
    pub(crate) fn touch(&mut self, id: SocketId) {
        if let Some(socket) = self.socket(id)
            && !std::mem::replace(&mut socket.is_changed, true)
        {
            self.changed.push(id);
        }
    }

    /// Removes a socket, and its name.
    pub(crate) fn retire(&mut self, id: SocketId) {
        if self.socket(id).is_none() {
            return;
        }
        let Some(socket) = self.sockets.remove(&id.index) else {
            return;
        };
        self.unadopted.remove(&id);
        self.unmarked.remove(&id);
        self.closing.remove(&id);
        self.sharing.retain(|sharing| sharing.socket != id);
        for mark in socket.marks.iter().chain(&socket.early) {
            self.release(mark);
        }
        let retired = socket.record.retire();
        for block in retired.blocks.into_iter().flatten() {
            self.area.release(block);
        }
        self.retired.push((id, retired.wanted));
    }

    /// Drops a mark, and its reference to a file.
    pub(crate) fn release(&mut self, mark: &Mark) {
        if let What::File { file, .. } = mark.what
            && let Some(file) = self.socket(file)
        {
            file.references -= 1;
            let is_last = file.references == 0 && file.closing_until_us.is_some();
            let id = file.record.id();
            if is_last {
                self.end(id, false);
            }
        }
    }

    /// Ends a socket on both nodes.
    pub(crate) fn end(&mut self, id: SocketId, resets: bool) {
        let is_attached = self.phase == Phase::Attached;
        if let Some(socket) = self.live(id)
            && is_attached
        {
            let end = socket.end(resets);
            self.closes.push_back(end);
        }
        self.retire(id);
    }

    /// Ends a connection with an error; its socket stays until the descriptor closes.
    pub(crate) fn abort(&mut self, id: SocketId, errno: Errno, flags: Flags) {
        let is_attached = self.phase == Phase::Attached;
        let Some(socket) = self.live(id) else {
            return;
        };
        socket.is_dead = true;
        let flags = flags | Flags::FAILED | Flags::CLOSED;
        let errno = errno.raw_os_error().unsigned_abs();
        socket.record.fail(errno, flags);
        let marks = std::mem::take(&mut socket.marks);
        let early = std::mem::take(&mut socket.early);
        let is_closing = socket.closing_until_us.is_some();
        let end = socket.end(true);
        // No process takes these connections any more, and no descriptor ends them.
        let waiting: Vec<SocketId> = socket.record.accept_waiting_ids().collect();
        self.sharing.retain(|sharing| sharing.socket != id);
        for mark in marks.iter().chain(&early) {
            self.release(mark);
        }
        for connection in waiting {
            self.end(connection, true);
        }
        if is_attached {
            self.closes.push_back(end);
        }
        self.touch(id);
        if is_closing {
            self.retire(id);
        }
    }

    /// Resets the connection of a corrupt record.
    #[cold]
    pub(crate) fn reset_nonsense(&mut self, id: SocketId) {
        tracing::debug!(app = self.id.0, ?id, "a record makes no sense");
        self.abort(id, Errno::CONNRESET, Flags::default());
    }

    /// Fails all sockets: the stack node serves the application no longer, or is gone.
    pub(crate) fn detach(&mut self) {
        self.phase = Phase::Detached;
        self.closes.clear();
        self.queue.clear();
        let ids: Vec<SocketId> = self.sockets.values().map(|it| it.record.id()).collect();
        for id in ids {
            if let Some(socket) = self.socket(id) {
                socket.is_queued = false;
            }
            self.abort(id, Errno::CONNRESET, Flags::DETACHED);
            if self
                .socket(id)
                .is_some_and(|socket| socket.handle.is_none())
            {
                self.retire(id);
            }
        }
        let errno = Errno::CONNRESET.raw_os_error().unsigned_abs();
        for (_, request) in std::mem::take(&mut self.requests) {
            self.answer_request(request, |number| Event::Answer {
                request: number,
                errno,
                socket: None,
                value: 0,
            });
        }
    }

    /// Handles a message of the stack node about this application.
    pub(crate) fn on_message(&mut self, body: Body<'_>) -> Result<(), Rule> {
        if self.phase == Phase::Detached {
            return Ok(());
        }
        match body {
            Body::Event(bytes) => {
                let event = Event::decode(bytes).map_err(|_| "an event does not decode")?;
                self.on_answer(event);
            }
            Body::New { socket, state } => return self.on_new(socket, state),
            Body::State { socket, state } => self.on_state(socket, state),
            Body::Data { socket, bytes, .. } => return self.on_data(socket, bytes),
            Body::Accepted { listener, socket } => self.on_accepted(listener, socket),
            Body::Credit { socket, until } => {
                if let Some(found) = self.live(socket) {
                    found.tx_until = found.tx_until.max(until);
                    self.enqueue(socket);
                }
            }
            Body::Taken { count } => self.untaken = self.untaken.saturating_sub(count),
            Body::Detached => self.detach(),
            _ => return Err("a message of the wrong direction"),
        }
        Ok(())
    }

    fn answer_request(&mut self, request: Request, event: impl FnOnce(u32) -> Event) {
        if let Some(channel) = self.channel(request.channel) {
            channel.answer(event(request.number));
        }
    }

    fn on_answer(&mut self, event: Event) {
        let (Event::Answer { request, .. } | Event::Info { request, .. }) = event else {
            return;
        };
        let Some(about) = self.requests.remove(&request) else {
            return;
        };
        if matches!(event, Event::Answer { errno, .. } if errno != 0) {
            self.sharing.retain(|sharing| sharing.request != request);
        }
        let mut event = event;
        if let (Some(handle), Event::Answer { socket, errno, .. }) = (about.makes_for, &mut event) {
            let made = socket.filter(|id| self.live(*id).is_some());
            let found = self.handles.get_mut(&handle);
            match (made, found) {
                (Some(id), Some(found)) => {
                    found.use_of = Use::Socket(id);
                    if let Some(socket) = self.socket(id) {
                        socket.handle = Some(handle);
                    }
                }
                // The handle was closed meanwhile.
                (Some(id), None) => self.end(id, false),
                (None, found) => {
                    if let Some(found) = found {
                        found.use_of = Use::Nothing;
                    }
                    if *errno == 0 {
                        *errno = Errno::NFILE.raw_os_error().unsigned_abs();
                    }
                    *socket = None;
                }
            }
        }
        self.answer_request(about, |number| match event {
            Event::Answer {
                errno,
                socket,
                value,
                ..
            } => Event::Answer {
                request: number,
                errno,
                socket,
                value,
            },
            Event::Info { info, .. } => Event::Info {
                request: number,
                info,
            },
            other => other,
        });
    }

    fn on_new(&mut self, id: SocketId, state: State) -> Result<(), Rule> {
        let places = self.segment.layout().sockets_max();
        if id.index >= places {
            if self.closes.len() > CLOSES_MAX {
                self.detach();
                return Err("more sockets than there may be");
            }
            // This node grants fewer sockets than the other.
            let got = 0;
            let resets = true;
            self.closes.push_back(End {
                socket: id,
                got,
                resets,
            });
            return Ok(());
        }
        if let Some(old) = self.sockets.get(&id.index) {
            // The other node ended the old socket long ago.
            let old = old.record.id();
            self.retire(old);
        }
        let record = HostRecord::new(&self.segment, id, Flags::default(), None, None);
        self.sockets.insert(id.index, Socket::new(record));
        self.on_state(id, state);
        Ok(())
    }

    fn on_state(&mut self, id: SocketId, state: State) {
        let Some(socket) = self.live(id) else {
            return;
        };
        let before = std::mem::replace(&mut socket.state, state);
        let needs_blocks = before.rx_bytes == 0 && state.rx_bytes > 0;
        if needs_blocks && !self.give_blocks(id, state) {
            return self.abort(id, Errno::NOBUFS, Flags::default());
        }
        let Some(socket) = self.live(id) else {
            return;
        };
        let record = &mut socket.record;
        if let Some(local) = state.local {
            record.set_local(local);
        }
        if let Some(peer) = state.peer {
            record.set_peer(peer);
        }
        if let Some(meta) = state.meta {
            record.set_file_meta(meta);
        }
        if state.acked > before.acked {
            record.set_acked(state.acked);
        }
        if state.tx_limit != before.tx_limit {
            record.limit_tx(Some(state.tx_limit.into()).filter(|limit| *limit > 0));
        }
        record.set_option_words(state.options);
        if state.file_limit > before.file_limit {
            record.add_file_credit(state.file_limit - before.file_limit);
        }
        let cleared = before.flags - state.flags;
        if state.errors == before.errors {
            record.replace(cleared, state.flags);
        } else {
            record.fail(state.errno, state.flags);
            record.clear(cleared);
        }
        if let Some(local) = state.local {
            let sharing = self.sharing.iter_mut();
            for sharing in sharing.filter(|sharing| sharing.socket == id) {
                sharing.port.address.set_port(local.port());
            }
        }
        self.touch(id);
        self.enqueue(id);
    }

    /// Allocates FIFOs as large as on the other node, or smaller. False if there is no room, or
    /// existing ones are in use.
    fn give_blocks(&mut self, id: SocketId, state: State) -> bool {
        let old = match self.socket(id) {
            Some(socket) if socket.record.is_unused() => socket.record.blocks(),
            _ => return false,
        };
        if let Some(socket) = self.socket(id) {
            socket.record.set_blocks(None, None);
        }
        for block in old.into_iter().flatten() {
            self.area.release(block);
        }
        let mut allocate = |bytes: u32| -> Option<Option<Block>> {
            if bytes == 0 {
                return Some(None);
            }
            self.area.allocate(bytes as usize).map(Some)
        };
        let Some(rx) = allocate(state.rx_bytes) else {
            return false;
        };
        let Some(tx) = allocate(state.tx_bytes) else {
            rx.into_iter().for_each(|block| self.area.release(block));
            return false;
        };
        if let Some(socket) = self.socket(id) {
            socket.record.set_blocks(rx, tx);
        }
        true
    }

    fn on_data(&mut self, id: SocketId, bytes: &[u8]) -> Result<(), Rule> {
        let Some(socket) = self.live(id) else {
            return Ok(());
        };
        let has_credit = socket.rx_bytes + bytes.len() as u64 <= socket.rx_until;
        if !has_credit || socket.record.rx_write(bytes) < bytes.len() {
            self.abort(id, Errno::CONNRESET, Flags::default());
            return Err("more bytes than there was credit for");
        }
        if socket.closing_until_us.is_some() {
            // As a kernel responds to bytes after close(2) (RFC 2525 §2.17).
            self.end(id, true);
            return Ok(());
        }
        socket.rx_bytes += bytes.len() as u64;
        self.touch(id);
        self.enqueue(id);
        Ok(())
    }

    fn on_accepted(&mut self, listener: SocketId, id: SocketId) {
        if let Some(socket) = self.socket(id) {
            socket.listener = Some(listener);
        }
        let is_live = self.live(id).is_some();
        let Some(queue) = self.live(listener) else {
            return self.end(id, true);
        };
        // The connection has used the listener's credit in any case.
        queue.pushed += 1;
        if is_live && queue.record.accept_push(id).is_ok() {
            return self.touch(listener);
        }
        self.end(id, true);
        self.enqueue(listener);
    }

    /// Sends hints about changes, and wakes sleeping processes.
    pub(crate) fn flush(&mut self) {
        for id in std::mem::take(&mut self.changed) {
            let Some(socket) = self.socket(id) else {
                continue;
            };
            socket.is_changed = false;
            let wanted = socket.record.take_wanted();
            self.hint(id, wanted);
        }
        for (id, wanted) in std::mem::take(&mut self.retired) {
            self.hint(id, wanted);
        }
        for channel in &mut self.channels {
            channel.outbox.flush(&mut channel.end);
        }
    }

    fn hint(&mut self, socket: SocketId, wanted: Wanted) {
        for channel in &mut self.channels {
            let is_wanted = match wanted {
                Wanted::None => false,
                Wanted::By(by) => by == channel.id,
                Wanted::BySeveral => true,
            };
            if is_wanted {
                channel.hint(&Event::Ready { socket });
            }
        }
    }
}
