//! Connections that wait to be accepted.
//!
//! With Eager Accept, connections wait in the accept queue, fully set up, and a process takes one
//! without the host stack. Without it they wait here until an AcceptNext requests the oldest.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use host::app::{AppEvent, BindError, StreamId};
use rustix::io::Errno;
use socket_channel::attach::{MODE_EAGER_ACCEPT, MODE_SETUP_WITH_ACCEPT};
use socket_channel::{Flags, HandleId, SocketId};

use crate::application::{App, Context};
use crate::connect::looped;
use crate::errno;
use crate::state::listener::{HeldConnection, Listener};
use crate::state::socket::{Kind, Socket, Unconnected};
use crate::state::stream::Stream;

impl App {
    /// Makes a socket a listener, or changes the backlog of a listener.
    pub(crate) fn listen(
        &mut self,
        cx: &mut Context<'_>,
        id: SocketId,
        backlog: u32,
    ) -> Result<(), Errno> {
        let socket = self.socket(id).ok_or(Errno::BADF)?;
        if socket.is_over() {
            return Err(Errno::CONNRESET);
        }
        let Unconnected { binding } = match &mut socket.kind {
            Kind::Unconnected(unconnected) => *unconnected,
            Kind::Listener(listener) => {
                let max = socket.record.accept_queue_max();
                listener.backlog = (backlog as usize).clamp(1, max);
                self.bound_queue(cx, id);
                return Ok(());
            }
            Kind::Stream(_) | Kind::File(_) => return Err(Errno::INVAL),
        };
        let is_full = |app: &App| app.listeners.len() >= app.grant.listeners_max as usize;
        if is_full(self) && (!self.close_hung_up(cx) || is_full(self)) {
            return Err(Errno::NOBUFS);
        }
        let binding = match binding {
            Some(binding) => binding,
            // listen(2) binds an unbound socket.
            None => self.bind_any(cx, id)?,
        };
        let backlog = (backlog as usize).max(1);
        let queue = self.allocate_promised(Some(backlog.saturating_mul(size_of::<u64>())));
        let queue = queue.ok_or(Errno::NOBUFS)?;
        let socket = self.socket(id).ok_or(Errno::BADF)?;
        let options = socket.options.to_stream_options();
        let mut listened = cx.io.listen(binding, options);
        if listened == Err(BindError::InUse) && self.close_hung_up(cx) {
            listened = cx.io.listen(binding, options);
        }
        if let Err(error) = listened {
            self.release_fifos([Some(queue)]);
            return Err(errno::of_bind(error));
        }
        let socket = self.socket(id).ok_or(Errno::BADF)?;
        socket.record.set_blocks(Some(queue), None);
        socket.record.replace(Flags::STREAM, Flags::LISTENER);
        socket.kind = Kind::Listener(Listener {
            binding,
            backlog: backlog.min(socket.record.accept_queue_max()),
            held: VecDeque::new(),
        });
        self.listeners.push(id);
        cx.places.bindings.insert(binding, (self.id, id));
        self.bound_queue(cx, id);
        Ok(())
    }

    /// Puts a new connection into the accept queue, fully set up, so that a process accepts it
    /// without a command to the host.
    pub(crate) fn on_accepted(
        &mut self,
        cx: &mut Context<'_>,
        listener: SocketId,
        stream: StreamId,
    ) {
        if !self.has_mode(MODE_EAGER_ACCEPT) {
            return self.hold(cx, listener, stream);
        }
        let addresses = cx.io.addresses(stream);
        let pushed = addresses.and_then(|addresses| {
            let id = self.open_accepted(cx, listener, stream, addresses)?;
            let queue = self.socket(listener)?;
            if queue.record.accept_push(id).is_err() {
                self.remove(id, cx.counters);
                return None;
            }
            self.count_source(cx, id, addresses.1.ip());
            Some(id)
        });
        let Some(id) = pushed else {
            return self.refuse(cx, stream);
        };
        cx.counters.connections_accepted += 1;
        cx.places.streams.insert(stream, (self.id, id));
        self.touch(listener);
        self.bound_queue(cx, listener);
        self.pump(cx, id);
    }

    fn open_accepted(
        &mut self,
        cx: &mut Context<'_>,
        listener: SocketId,
        stream: StreamId,
        (local, peer): (SocketAddr, SocketAddr),
    ) -> Option<SocketId> {
        let Socket { options, own, .. } = *self.socket(listener)?;
        let flags = Flags::STREAM | Flags::CONNECTED | looped(cx, stream);
        let mut stream = Stream::new(stream, Some(listener), None);
        let with_setup = self.has_mode(MODE_SETUP_WITH_ACCEPT);
        if !with_setup {
            stream.untold = Some(Box::new((local, peer)));
            stream.waits_for_handle = true;
        }
        let kind = Kind::Stream(stream);
        let id = self.insert(flags, None, kind, cx.counters)?;
        let socket = self.socket(id)?;
        socket.options = options.inherited();
        // The listener has named the port, not the connection.
        socket.own = own;
        socket.own.is_port_named = false;
        if with_setup {
            socket.set_local(local);
            socket.record.set_peer(peer);
            socket.tell_options();
        } else {
            socket.own.note_port(local);
        }
        if !self.has_buffers_on_demand() {
            self.provide_both(id);
        }
        self.grant_file_credit(cx, id);
        if options.notsent_lowat_bytes().is_some() {
            self.bound_notsent(cx, id);
        }
        Some(id)
    }

    /// Counts a connection for its source.
    fn count_source(&mut self, cx: &mut Context<'_>, id: SocketId, ip: IpAddr) {
        if let Some(stream) = self.stream(id) {
            stream.source = Some(ip);
            self.admit(cx, ip);
        }
    }

    /// Holds a connection until AcceptNext: it has no socket, and takes no memory of the segment.
    fn hold(&mut self, cx: &mut Context<'_>, id: SocketId, stream: StreamId) {
        let has_place = self.places_left() > 0;
        let addresses = cx.io.addresses(stream).filter(|_| has_place);
        let Some(addresses) = addresses else {
            return self.refuse(cx, stream);
        };
        let listener = self.socket(id).and_then(|socket| socket.listener_mut());
        let Some(listener) = listener else {
            return self.refuse(cx, stream);
        };
        listener.held.push_back(HeldConnection {
            stream,
            addresses,
            peer_finished: false,
            end: None,
        });
        self.held_connections += 1;
        self.admit(cx, addresses.1.ip());
        cx.counters.connections_accepted += 1;
        cx.places.streams.insert(stream, (self.id, id));
        self.bound_queue(cx, id);
        self.touch(id);
    }

    /// Handles an event of a held connection. False if the stream is none.
    pub(crate) fn on_event_of_held(
        &mut self,
        cx: &mut Context<'_>,
        id: SocketId,
        stream: StreamId,
        event: &AppEvent,
    ) -> bool {
        let listener = self.socket(id).and_then(|socket| socket.listener_mut());
        let Some(listener) = listener else {
            return false;
        };
        let mut held = listener.held.iter_mut();
        if let Some(held) = held.find(|held| held.stream == stream) {
            match event {
                AppEvent::PeerFinished => held.peer_finished = true,
                AppEvent::Closed { reason, .. } => {
                    held.end = Some((*reason, cx.io.take_unread(stream)));
                    cx.places.streams.remove(&stream);
                }
                // Received bytes are read later.
                _ => {}
            }
        }
        true
    }

    /// Gives a process the oldest held connection of a listener, for a handle; EAGAIN if there is
    /// none.
    pub(crate) fn accept_next(
        &mut self,
        cx: &mut Context<'_>,
        id: SocketId,
        handle: HandleId,
    ) -> Result<SocketId, Errno> {
        if !self.is_free(cx, handle) {
            return Err(Errno::BADF);
        }
        loop {
            let socket = self.socket(id).ok_or(Errno::BADF)?;
            let listener = socket.listener_mut().ok_or(Errno::INVAL)?;
            let held = listener.held.pop_front().ok_or(Errno::AGAIN)?;
            self.held_connections -= 1;
            let (stream, end) = (held.stream, held.end);
            let source = held.addresses.1.ip();
            let made = self.open_accepted(cx, id, stream, held.addresses);
            match made.and_then(|made| self.stream(made)) {
                Some(stream) => stream.source = Some(source),
                None => self.sources.free(Some(source)),
            }
            self.bound_queue(cx, id);
            let Some(connection) = made else {
                cx.counters.connections_refused += 1;
                if end.is_none() {
                    cx.places.streams.remove(&stream);
                    cx.io.abort(stream);
                }
                continue;
            };
            self.take_handle(handle, connection);
            if let Some(socket) = self.socket(connection) {
                socket.handle = Some(handle);
                if let Some(stream) = socket.stream_mut() {
                    stream.waits_for_handle = false;
                }
            }
            match end {
                Some((reason, unread)) => {
                    if held.peer_finished {
                        self.note_peer_finished(connection);
                    }
                    self.end_stream(cx, connection, reason, unread);
                }
                None => {
                    cx.places.streams.insert(stream, (self.id, connection));
                    if held.peer_finished {
                        self.on_peer_finished(cx, connection);
                    } else {
                        self.pump(cx, connection);
                    }
                }
            }
            return Ok(connection);
        }
    }

    /// Resets the held connections of a listener.
    pub(crate) fn abort_held(&mut self, cx: &mut Context<'_>, id: SocketId) {
        let socket = self.socket(id);
        let Some(listener) = socket.and_then(|socket| socket.listener_mut()) else {
            return;
        };
        let held = std::mem::take(&mut listener.held);
        self.held_connections -= held.len();
        for connection in held {
            self.sources.free(Some(connection.addresses.1.ip()));
            if connection.end.is_none() {
                cx.places.streams.remove(&connection.stream);
                cx.io.abort(connection.stream);
            }
        }
    }

    /// Updates a listener after a look at its queue: taken connections wait for their handles, and
    /// the stack learns the listener's room.
    pub(crate) fn bound_queue(&mut self, cx: &mut Context<'_>, id: SocketId) {
        let places = self.places_for(id);
        let Some(socket) = self.socket(id) else {
            return;
        };
        let Socket { record, kind, .. } = socket;
        let Kind::Listener(listener) = kind else {
            return;
        };
        record.set_held(listener.held.len() as u64);
        let waiting = record.accept_waiting() + listener.held.len();
        let room = listener.backlog.saturating_sub(waiting).min(places);
        cx.io.set_listener_room(listener.binding, room);
        let mut taken = Vec::new();
        while let Some(connection) = record.accept_taken() {
            taken.push(connection);
        }
        for connection in taken {
            let adopts = |socket: &&mut Socket| socket.handle.is_none();
            if self.socket(connection).filter(adopts).is_some() {
                self.unadopted.insert(connection, None);
            }
        }
    }

    /// Closes a listener: its address becomes free, and waiting connections are reset.
    pub(crate) fn close_listener(&mut self, cx: &mut Context<'_>, id: SocketId) {
        // Connections that a process has taken before are its own.
        self.look(cx, id);
        let Some(socket) = self.socket(id) else {
            return;
        };
        let Kind::Listener(listener) = &socket.kind else {
            return;
        };
        let binding = listener.binding;
        self.reset_waiting(cx, id);
        cx.io.release(binding);
        cx.places.bindings.remove(&binding);
        self.remove(id, cx.counters);
    }

    /// Resets the connections that wait to be accepted.
    pub(crate) fn reset_waiting(&mut self, cx: &mut Context<'_>, listener: SocketId) {
        self.abort_held(cx, listener);
        let Some(socket) = self.socket(listener) else {
            return;
        };
        let waiting: Vec<SocketId> = socket.record.accept_waiting_ids().collect();
        for connection in waiting {
            self.abort(cx, connection, Errno::CONNRESET, Flags::default());
            self.remove_if_over(cx, connection);
        }
    }
}
