//! What the fake host stack does with commands: it connects the sockets of an application with each
//! other.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::io::Errno;
use socket_channel::attach::{
    MODE_BUFFERS_ON_DEMAND, MODE_EAGER_ACCEPT, MODE_EAGER_RECEIVE, MODE_SETUP_WITH_ACCEPT,
};
use socket_channel::host_record::Turn;
use socket_channel::{
    Block, Command, Event, Family, Flags, HandleId, How, Side, SocketId, SocketOption, SpliceStage,
};

use super::world::{Done, FILE, FILE_SLOW, LOOPED, NO_ANSWER, Range, Socket, World, shuts_write};

/// Bytes that a connection holds, at most.
const HELD_MAX: usize = 64 << 10;

impl World {
    pub(super) fn obey(&mut self, channel: u32, command: Command<'_>) {
        match command {
            Command::Open {
                request,
                handle,
                family,
            } => {
                let done = self.open_socket(handle, family);
                self.answer(channel, request, done);
            }
            Command::Bind {
                request,
                socket,
                address,
                ..
            } => {
                let done = self.bind(socket, address);
                self.answer(channel, request, done);
            }
            Command::Listen {
                request, socket, ..
            } => {
                let done = self.listen(socket);
                self.answer(channel, request, done);
            }
            Command::Connect {
                request,
                socket,
                address,
            } => {
                let done = self.connect(socket, address);
                self.answer(channel, request, done);
            }
            Command::Disconnect { request, socket } => {
                self.disconnect(socket);
                self.answer(channel, request, Ok(Done::default()));
            }
            Command::Accept { socket, handle } => {
                if let Some(handle) = self.handles.get_mut(&handle.0) {
                    handle.socket = Some(socket);
                }
            }
            Command::Kick { socket } => {
                if self.is_there(socket) {
                    self.carry(socket.index);
                    self.carry_to(socket.index);
                }
            }
            Command::Shutdown {
                socket,
                how,
                mark,
                at,
            } => self.shutdown(socket, how, mark, at),
            Command::SetOption { .. } | Command::GetOption { .. } | Command::GetInfo { .. } => {
                self.obey_about_options(channel, command);
            }
            Command::Close { handle } => self.close_handle(handle.0),
            Command::LookUp { .. } | Command::Reuse { .. } | Command::Share { .. } => {
                self.obey_about_handles(channel, command);
            }
            Command::OpenFile { .. } | Command::OpenPassed { .. } | Command::SendFile { .. } => {
                self.obey_about_files(channel, command);
            }
            Command::Look { .. }
            | Command::Receive { .. }
            | Command::Room { .. }
            | Command::AcceptNext { .. }
            | Command::GetAddress { .. } => self.obey_about_held(channel, command),
            Command::Splice { .. } | Command::Unsplice { .. } => {
                self.obey_about_splices(channel, command);
            }
        }
    }

    fn obey_about_splices(&mut self, channel: u32, command: Command<'_>) {
        let (request, done) = match command {
            Command::Splice {
                request,
                first,
                second,
                ..
            } => (request, self.splice([first, second])),
            Command::Unsplice { request, socket } => (request, self.unsplice(socket)),
            _ => unreachable!("commands about splices"),
        };
        self.answer(channel, request, done);
    }

    /// Joins two connections: their peers are each other's until they come back.
    fn splice(&mut self, pair: [SocketId; 2]) -> Result<Done, Errno> {
        let [first, second] = pair.map(|socket| socket.index);
        let peer = |index| self.sockets.get(&index).and_then(|socket| socket.peer);
        let (Some(a), Some(b)) = (peer(first), peer(second)) else {
            return Err(Errno::NOTCONN);
        };
        for (from, to) in [(first, b), (second, a)] {
            let (Some(mut source), Some(target)) =
                (self.sockets.remove(&from), self.sockets.get_mut(&to))
            else {
                return Err(Errno::NOTCONN);
            };
            let _ = (source.record.look(), target.record.look());
            let moved = source.record.rx_take(|chunk| target.record.rx_write(chunk));
            source.record.set_spliced(moved as u64, 0);
            source.record.set(Flags::SPLICED);
            source.record.set_splice(SpliceStage::Joined, 0);
            source.peer = None;
            self.sockets.insert(from, source);
        }
        self.become_peers(a, b);
        self.spliced = Some([(first, a), (second, b)]);
        for index in [first, second, a, b] {
            self.hint(index);
        }
        Ok(Done::default())
    }

    fn become_peers(&mut self, one: u32, other: u32) {
        for (index, peer) in [(one, other), (other, one)] {
            if let Some(socket) = self.sockets.get_mut(&index) {
                socket.peer = Some(peer);
            }
        }
    }

    /// The last two that were joined are apart again.
    fn unsplice(&mut self, socket: SocketId) -> Result<Done, Errno> {
        let is_one =
            |pair: &mut [(u32, u32); 2]| pair.iter().any(|(near, _)| *near == socket.index);
        let spliced = self.spliced.take_if(is_one).ok_or(Errno::INVAL)?;
        for (index, peer) in spliced {
            self.become_peers(index, peer);
            if let Some(socket) = self.sockets.get_mut(&index) {
                socket.record.set_splice(SpliceStage::Returned, 0);
                socket.record.clear(Flags::SPLICED);
            }
            self.hint(index);
        }
        Ok(Done::default())
    }

    /// The oldest connection that a listener holds and that is still there.
    fn next_held(&mut self, listener: SocketId) -> Option<SocketId> {
        loop {
            let queue = self.sockets.get_mut(&listener.index)?;
            let next = queue.held_connections.pop_front();
            queue.record.set_held(queue.held_connections.len() as u64);
            let next = next?;
            if self.is_there(next) {
                return Some(next);
            }
        }
    }

    /// Resets the connection of a socket, which may connect again.
    fn disconnect(&mut self, socket: SocketId) {
        let Some(found) = self.sockets.get_mut(&socket.index) else {
            return;
        };
        let blocks = found.record.disconnect(Flags::STREAM);
        (found.local, found.untold) = (None, None);
        found.held.clear();
        found.ranges.clear();
        found.finish_at = None;
        found.sent_bytes = 0;
        let peer = found.peer.take();
        for block in blocks.into_iter().flatten() {
            self.area.release(block);
        }
        if let Some(peer) = peer
            && let Some(of_peer) = self.sockets.get_mut(&peer)
        {
            of_peer.peer = None;
            self.fail(peer, Errno::CONNRESET);
            // If its last descriptor is closed, it ends.
            self.carry(peer);
        }
        self.hint(socket.index);
    }

    fn obey_about_handles(&mut self, channel: u32, command: Command<'_>) {
        match command {
            Command::LookUp { request, handle } => self.look_up(channel, request, handle.0),
            Command::Reuse { handle } => self.reuse(channel, handle.0),
            Command::Share {
                request,
                socket,
                handle,
            } => {
                let done = self.share(socket, handle.0);
                self.answer(channel, request, done);
            }
            _ => unreachable!("commands about handles"),
        }
    }

    /// The process closes a connection, and keeps its descriptor.
    fn reuse(&mut self, channel: u32, number: u32) {
        let handle = self.handles.get_mut(&number).unwrap();
        assert_eq!(handle.channel, channel, "it is its own");
        handle.is_private = true;
        let socket = handle.socket.take().unwrap();
        self.close(socket);
    }

    fn share(&mut self, socket: SocketId, number: u32) -> Result<Done, Errno> {
        let handle = self.handles.get_mut(&number);
        let handle = handle.filter(|handle| handle.socket == Some(socket));
        handle.ok_or(Errno::BADF)?.is_private = false;
        Ok(Done::default())
    }

    fn look_up(&mut self, channel: u32, request: u32, handle: u32) {
        let handle = self.handles.get(&handle);
        let handle = handle.filter(|it| !it.is_private || it.channel == channel);
        let is_own = handle.is_some_and(|handle| handle.channel == channel);
        let found = handle.ok_or(Errno::BADF);
        let found = found.and_then(|handle| handle.socket.ok_or(Errno::AGAIN));
        if let Ok(id) = found
            && let Some(socket) = self.sockets.get_mut(&id.index).filter(|_| !is_own)
        {
            socket.record.note(Flags::LOOKED_UP);
        }
        let done = found.map(|id| Done {
            socket: Some(id),
            ..Done::default()
        });
        self.answer(channel, request, done);
    }

    fn obey_about_held(&mut self, channel: u32, command: Command<'_>) {
        let there = |world: &World, socket| {
            let there = world.is_there(socket).then(Done::default);
            there.ok_or(Errno::BADF)
        };
        match command {
            Command::Look { request, socket } => {
                self.obey(channel, Command::Kick { socket });
                self.answer(channel, request, there(self, socket));
            }
            Command::Receive {
                request,
                socket,
                bytes,
            } => {
                if self.is_there(socket) {
                    self.hand_over(socket.index, bytes);
                    self.carry_to(socket.index);
                }
                self.answer(channel, request, there(self, socket));
            }
            Command::Room {
                request,
                socket,
                bytes,
            } => {
                if self.is_there(socket) {
                    self.carry(socket.index);
                    self.make_room(socket.index, bytes);
                }
                self.answer(channel, request, there(self, socket));
            }
            Command::AcceptNext {
                request,
                socket,
                handle,
            } => {
                let next = self.next_held(socket);
                let done = next.map(|next| self.give(handle, next.index));
                self.answer(channel, request, done.ok_or(Errno::AGAIN));
            }
            Command::GetAddress {
                request,
                socket,
                side,
            } => {
                if let Some(found) = self.sockets.get_mut(&socket.index)
                    && let Some((local, peer)) = found.untold
                {
                    match side {
                        Side::Local => found.record.set_local(local),
                        Side::Peer => found.record.set_peer(peer),
                    }
                }
                self.answer(channel, request, there(self, socket));
            }
            _ => unreachable!("commands for what is held"),
        }
    }

    /// Allocates the tx FIFO of a socket, or a larger one, with room for `bytes` more.
    fn make_room(&mut self, index: u32, bytes: u64) {
        let Some(found) = self.sockets.get_mut(&index) else {
            return;
        };
        let has = found.record.tx_bytes();
        let wanted = match has {
            0 => found.record.blocks()[0].map_or(0, Block::bytes),
            _ => found.record.tx_waiting_bytes() + bytes as usize,
        };
        if has < wanted.min(self.tx_max_bytes.max(1))
            && let Some(block) = self.area.allocate(wanted)
        {
            let replaced = found.record.replace_tx(Some(block));
            let unused = replaced.unwrap_or(Some(block));
            unused.into_iter().for_each(|it| self.area.release(it));
            found.record.set_tx_max(self.tx_max_bytes as u64);
        }
    }

    /// Hands held bytes over, until so many are in the rx FIFO.
    pub(super) fn hand_over(&mut self, index: u32, bytes: u64) {
        let found = self.sockets.get_mut(&index).unwrap();
        if found.record.look().is_err() {
            return;
        }
        let room = found.record.rx_room_bytes();
        let wanted = bytes.saturating_sub(found.record.rx_unread_bytes() as u64);
        let len = room.min(wanted as usize).min(found.held.len());
        let bytes: Vec<u8> = found.held.drain(..len).collect();
        assert_eq!(found.record.rx_write(&bytes), len);
        found.record.set_held(found.held.len() as u64);
        if found.held.is_empty() && found.record.flags().has(Flags::FIN_RECEIVED) {
            found.record.set(Flags::PEER_FINISHED);
        }
    }

    pub(super) fn has_mode(&self, mode: u32) -> bool {
        self.modes & mode != 0
    }

    fn obey_about_files(&mut self, channel: u32, command: Command<'_>) {
        match command {
            Command::OpenFile {
                request,
                handle,
                path,
            } => {
                let done = self.open_file(handle, path);
                self.answer(channel, request, done);
            }
            Command::OpenPassed {
                request,
                handle,
                file,
            } => {
                let done = self.open_passed(handle, file);
                self.answer(channel, request, done);
            }
            Command::SendFile {
                socket,
                file,
                offset,
                len,
                mark,
                at,
            } => {
                if !self.is_there(socket) || !self.is_there(file) {
                    return;
                }
                let content = self.sockets[&file.index].content.clone();
                let found = self.sockets.get_mut(&socket.index).unwrap();
                let is_next = found.record.take_mark(mark, at) == Ok(Turn::Now);
                if !is_next || found.record.queue_file(len).is_err() {
                    return self.fail(socket.index, Errno::PROTO);
                }
                found.ranges.push_back(Range {
                    at,
                    file,
                    offset,
                    len,
                    content,
                });
                self.carry(socket.index);
            }
            _ => unreachable!("commands about files"),
        }
    }

    fn obey_about_options(&mut self, channel: u32, command: Command<'_>) {
        match command {
            Command::SetOption {
                request,
                socket,
                option,
                value,
            } => {
                let there = self.is_there(socket).then(Done::default);
                if there.is_some() {
                    let socket = self.sockets.get_mut(&socket.index).unwrap();
                    socket.options.insert(option, value);
                    let options = socket.options.clone();
                    if socket.untold.is_none() {
                        let value = |option| *options.get(&option).unwrap_or(&default_of(option));
                        socket.record.set_options(value);
                    }
                }
                self.answer(channel, request, there.ok_or(Errno::INVAL));
            }
            Command::GetOption {
                request,
                socket,
                option,
            } => {
                let done = self.option(socket, option).ok_or(Errno::INVAL);
                let done = done.map(|value| Done {
                    socket: None,
                    value,
                });
                self.answer(channel, request, done);
            }
            Command::GetInfo { request, socket } => match self.info(socket.index) {
                Some(info) => self.send(channel, Event::Info { request, info }),
                None => self.answer(channel, request, Err(Errno::NOTCONN)),
            },
            _ => unreachable!("commands about options"),
        }
    }

    fn is_there(&self, socket: SocketId) -> bool {
        let found = self.sockets.get(&socket.index);
        found.is_some_and(|found| found.record.id() == socket)
    }

    fn option(&self, socket: SocketId, option: SocketOption) -> Option<u64> {
        let socket = self.sockets.get(&socket.index)?;
        Some(*socket.options.get(&option).unwrap_or(&default_of(option)))
    }

    fn open_socket(&mut self, handle: HandleId, family: Family) -> Result<Done, Errno> {
        let index = self.allocate(Flags::STREAM, family, false);
        let index = index.ok_or(Errno::NOBUFS)?;
        Ok(self.give(handle, index))
    }

    fn give(&mut self, handle: HandleId, index: u32) -> Done {
        let socket = Some(self.sockets[&index].record.id());
        self.handles.get_mut(&handle.0).unwrap().socket = socket;
        Done { socket, value: 0 }
    }

    fn bind(&mut self, socket: SocketId, mut address: std::net::SocketAddr) -> Result<Done, Errno> {
        if address.port() == 0 {
            address.set_port(self.port());
        } else if address.port() == 1 {
            return Err(Errno::ACCESS);
        }
        if self.is_bound(address.port()) {
            self.close_hung_up();
            if self.is_bound(address.port()) {
                return Err(Errno::ADDRINUSE);
            }
        }
        let socket = self.sockets.get_mut(&socket.index).unwrap();
        socket.local = Some(address);
        socket.record.set_local(address);
        socket.record.set(Flags::BOUND);
        Ok(Done::default())
    }

    fn is_bound(&self, port: u16) -> bool {
        let mut sockets = self.sockets.values();
        sockets.any(|socket| {
            socket.local.map(|local| local.port()) == Some(port) && socket.peer.is_none()
        })
    }

    fn listen(&mut self, socket: SocketId) -> Result<Done, Errno> {
        let flags = self.sockets[&socket.index].record.flags();
        if flags.has(Flags::CONNECTED) || flags.has(Flags::FILE) {
            return Err(Errno::INVAL);
        }
        let found = self.sockets.get_mut(&socket.index).unwrap();
        if !flags.has(Flags::LISTENER) {
            let queue = self.area.allocate(1 << 14);
            found.record.set_blocks(queue, None);
            found.record.clear(Flags::STREAM);
            found.record.set(Flags::LISTENER);
        }
        Ok(Done::default())
    }

    /// FIFOs of a connection: with Buffers On Demand, one to write to is asked for when memory is
    /// short.
    pub(super) fn fifos(&mut self, bytes: usize) -> [Option<Block>; 2] {
        let is_asked_for = self.is_short && self.has_mode(MODE_BUFFERS_ON_DEMAND);
        let rx = self.area.allocate(bytes);
        let tx = (!is_asked_for).then(|| self.area.allocate(bytes));
        [rx, tx.flatten()]
    }

    fn connect(&mut self, socket: SocketId, to: std::net::SocketAddr) -> Result<Done, Errno> {
        let index = socket.index;
        let is_fresh = |flags: Flags| flags - Flags::BOUND == Flags::STREAM;
        if !self.is_there(socket) || !is_fresh(self.sockets[&index].record.flags()) {
            return Err(Errno::ISCONN);
        }
        self.close_hung_up();
        if self.sockets[&index].local.is_none() {
            let port = self.port();
            let found = self.sockets.get_mut(&index).unwrap();
            let local = (to.ip(), port).into();
            found.local = Some(local);
            found.record.set_local(local);
        }
        let listener = self.sockets.iter().find(|(_, other)| {
            other.record.flags().has(Flags::LISTENER)
                && other.local.is_some_and(|local| local.port() == to.port())
        });
        let listener = listener.map(|(index, _)| *index);
        let [rx, tx] = self.fifos(1 << 16);
        let found = self.sockets.get_mut(&index).unwrap();
        found.record.set_blocks(rx, tx);
        found.record.set_peer(to);
        let looped = if to.port() == LOOPED {
            Flags::LOOPED
        } else {
            Flags::default()
        };
        found.record.set(Flags::CONNECTING | looped);
        if to.port() == NO_ANSWER {
            return Ok(Done::default());
        }
        let Some(listener) = listener else {
            let refused = Errno::CONNREFUSED.raw_os_error() as u32;
            found.record.fail(refused, Flags::FAILED);
            self.hint(index);
            return Ok(Done::default());
        };
        let local = found.local.unwrap();
        let family = found.family;
        let flags = Flags::STREAM | Flags::CONNECTED | looped;
        let other = self.allocate(flags, family, true).ok_or(Errno::NOBUFS)?;
        let with_setup = self.has_mode(MODE_SETUP_WITH_ACCEPT);
        let accepts_eagerly = self.has_mode(MODE_EAGER_ACCEPT);
        let accepted = self.sockets.get_mut(&other).unwrap();
        accepted.peer = Some(index);
        accepted.local = Some(to);
        if with_setup {
            accepted.record.set_local(to);
            accepted.record.set_peer(local);
            accepted.record.set_options(default_of);
        } else {
            accepted.untold = Some((to, local));
        }
        let id = accepted.record.id();
        let found = self.sockets.get_mut(&index).unwrap();
        found.peer = Some(other);
        found.record.replace(Flags::CONNECTING, Flags::CONNECTED);
        self.credit(index);
        self.credit(other);
        let queue = self.sockets.get_mut(&listener).unwrap();
        if !accepts_eagerly {
            queue.held_connections.push_back(id);
            queue.record.set_held(queue.held_connections.len() as u64);
        } else if queue.record.look().is_err() || queue.record.accept_push(id).is_err() {
            return Err(Errno::NOBUFS);
        }
        self.hint(index);
        self.hint(listener);
        Ok(Done::default())
    }

    fn open_file(&mut self, handle: HandleId, path: &[u8]) -> Result<Done, Errno> {
        let index = self.allocate(Flags::FILE, Family::V4, false);
        let index = index.ok_or(Errno::NOBUFS)?;
        let done = self.give(handle, index);
        if path == FILE.as_bytes() {
            self.open(index);
        } else if path != FILE_SLOW.as_bytes() {
            let socket = self.sockets.get_mut(&index).unwrap();
            let missing = Errno::NOENT.raw_os_error() as u32;
            socket.record.fail(missing, Flags::FAILED);
            self.hint(index);
        }
        Ok(done)
    }

    /// Opens a file that was passed, or fails to.
    fn open_passed(&mut self, handle: HandleId, file: u32) -> Result<Done, Errno> {
        let index = self.allocate(Flags::FILE, Family::V4, false);
        let index = index.ok_or(Errno::NOBUFS)?;
        let done = self.give(handle, index);
        match self.opens_passed {
            Ok(()) => {
                let file = File::from(self.passed.remove(&file).unwrap());
                let mut content = vec![0; file.metadata().unwrap().len() as usize];
                // Its position is the program's.
                file.read_exact_at(&mut content, 0).unwrap();
                self.open_with(index, Arc::new(content));
            }
            Err(errno) => {
                let socket = self.sockets.get_mut(&index).unwrap();
                let errno = errno.raw_os_error() as u32;
                socket.record.fail(errno, Flags::FAILED);
                self.hint(index);
            }
        }
        Ok(done)
    }

    fn shutdown(&mut self, socket: SocketId, how: How, mark: u32, at: u64) {
        if !self.is_there(socket) {
            return;
        }
        let found = self.sockets.get_mut(&socket.index).unwrap();
        if shuts_write(how) {
            // Checked as the real one does; a client that was misled resets itself.
            if found.record.take_mark(mark, at) != Ok(Turn::Now) {
                return self.fail(socket.index, Errno::PROTO);
            }
            found.finish_at.get_or_insert(at);
        }
        self.carry(socket.index);
    }

    /// The last descriptor of a socket is closed.
    pub(super) fn close(&mut self, socket: SocketId) {
        let index = socket.index;
        if !self.is_there(socket) {
            return;
        }
        let found = self.sockets.get_mut(&index).unwrap();
        let Ok(_) = found.record.look() else {
            return self.retire(index);
        };
        let unread = found.record.rx_unread_bytes() > 0 || !found.held.is_empty();
        let unread = found.record.flags().has(Flags::STREAM) && unread;
        while found.record.accept_taken().is_some() {}
        let held = std::mem::take(&mut found.held_connections);
        let waiting: Vec<SocketId> = found.record.accept_waiting_ids().collect();
        let waiting: Vec<SocketId> = waiting.into_iter().chain(held).collect();
        for connection in waiting {
            self.close(connection);
        }
        let found = self.sockets.get_mut(&index).unwrap();
        match found.peer {
            Some(peer) if unread => {
                if self.sockets.contains_key(&peer) {
                    self.sockets.get_mut(&peer).unwrap().peer = None;
                    self.fail(peer, Errno::CONNRESET);
                }
                self.retire(index);
            }
            Some(_) => {
                found.is_orphan = true;
                let at = found.record.tx_tail();
                found.finish_at.get_or_insert(at);
                self.carry(index);
            }
            None => self.retire(index),
        }
    }

    /// Carries what the peer of a socket has for it.
    pub(super) fn carry_to(&mut self, index: u32) {
        let peer = self.sockets.get(&index).and_then(|socket| socket.peer);
        if let Some(peer) = peer {
            self.carry(peer);
        }
    }

    /// Carries what a socket has to send to its peer: bytes and file ranges in order, then the end.
    pub(super) fn carry(&mut self, index: u32) {
        let Some(mut from) = self.sockets.remove(&index) else {
            return;
        };
        let Some(mut to) = from.peer.and_then(|peer| self.sockets.remove(&peer)) else {
            let is_over = from.is_orphan;
            self.sockets.insert(index, from);
            if is_over {
                self.retire(index);
            }
            return;
        };
        let peer = from.peer.unwrap();
        let holds = !self.has_mode(MODE_EAGER_RECEIVE);
        let is_sane = from.record.look().is_ok() && to.record.look().is_ok();
        let mut is_blocked = false;
        while is_sane && !is_blocked {
            let next = from.ranges.front().map_or(u64::MAX, |range| range.at);
            let mut carried = from.record.tx_read(next, |chunk| to.take_in(chunk, holds));
            let head = from.record.tx_head();
            if let Some(range) = from.ranges.front_mut()
                && range.at == head
            {
                // A file that is being opened holds up what is behind it. One that is open stays
                // so for the range, whatever becomes of its descriptor.
                if range.content.is_none() {
                    let file = self.sockets.get(&range.file.index);
                    range.content = file.and_then(|file| file.content.clone());
                }
                let content = range.content.clone().unwrap_or_default();
                let rest = content.get(range.offset as usize..).unwrap_or_default();
                let rest = &rest[..rest.len().min(range.len as usize)];
                let len = to.take_in(rest, holds);
                range.offset += len as u64;
                range.len -= len as u64;
                carried += len;
                from.record.add_file_credit(len as u64);
                if range.len == 0 {
                    from.sent_bytes += carried as u64;
                    from.ranges.pop_front();
                    continue;
                }
            }
            from.sent_bytes += carried as u64;
            if carried == 0 {
                let has_more = from.record.tx_waiting_bytes() > 0 || !from.ranges.is_empty();
                is_blocked = !has_more || holds || to.record.rx_room_bytes() > 0;
                is_blocked |= to.record.rx_wait_for_room();
                let _ = to.record.look();
            }
        }
        if !self.holds_acks {
            from.record.set_acked(from.sent_bytes);
        }
        let is_done = from.ranges.is_empty() && from.record.tx_waiting_bytes() == 0;
        let finished = from.finish_at.is_some() && is_done;
        if finished {
            let end = if to.held.is_empty() {
                Flags::PEER_FINISHED | Flags::FIN_RECEIVED
            } else {
                Flags::FIN_RECEIVED
            };
            to.record.set(end);
            from.record.set(Flags::SHUT_WRITE);
        }
        let is_over = !is_sane || from.is_orphan && finished;
        if is_over {
            to.peer = None;
        }
        self.sockets.insert(index, from);
        self.sockets.insert(peer, to);
        self.hint(index);
        self.hint(peer);
        if is_over {
            self.retire(index);
        }
    }
}

impl Socket {
    /// Takes bytes that have arrived; tells how many.
    fn take_in(&mut self, bytes: &[u8], holds: bool) -> usize {
        if !holds {
            return self.record.rx_write(bytes);
        }
        let len = bytes.len().min(HELD_MAX - self.held.len());
        self.held.extend(&bytes[..len]);
        self.record.set_held(self.held.len() as u64);
        len
    }
}

/// What an option is before it is set.
fn default_of(option: SocketOption) -> u64 {
    match option {
        SocketOption::LingerMs => u64::MAX,
        SocketOption::MaxSegmentBytes => 1448,
        SocketOption::Congestion => 1,
        SocketOption::KeepIdleSeconds => 7200,
        _ => 0,
    }
}
