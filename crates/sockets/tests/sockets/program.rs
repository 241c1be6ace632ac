//! An application, played by hand at its end of the channel.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use host::app::StreamId;
use socket_channel::attach::Key;
use socket_channel::channel::{AppEnd, in_memory};
use socket_channel::message::BindFlags;
use socket_channel::{
    AppId, AppRecord, ChannelId, Command, Event, Family, Flags, HandleId, How, Layout, Limits,
    Segment, Side, SocketId, Unusable,
};
use sockets::{Attachment, First, Grant, Identity};

use crate::modes;
use crate::world::World;

/// Handles that a program begins with.
pub(crate) const HANDLES: u32 = 2_000;

pub(crate) struct Program {
    pub(crate) app: AppId,
    pub(crate) channel: ChannelId,
    pub(crate) segment: Segment,
    pub(crate) end: AppEnd,
    next_handle: u32,
    next_request: u32,
    answers: BTreeMap<u32, Event>,
    /// Sockets of which a hint has come.
    pub(crate) hints: Vec<SocketId>,
}

/// The secret of each program.
pub(crate) const KEY: Key = Key::new([7; Key::BYTES]);

/// What the first process of an application brings.
pub(crate) fn first(grant: Grant, modes: u32, segment: Segment) -> First {
    First {
        grant,
        segment,
        identity: Identity {
            key: KEY,
            modes,
            segment_file: None,
        },
    }
}

impl Program {
    pub(crate) fn new(world: &mut World, app: u32) -> Program {
        Program::with_grant(world, app, Grant::default())
    }

    pub(crate) fn with_grant(world: &mut World, app: u32, grant: Grant) -> Program {
        Program::with(world, app, grant, modes::modes())
    }

    pub(crate) fn with(world: &mut World, app: u32, grant: Grant, modes: u32) -> Program {
        let limits = Limits {
            sockets_max: 4096,
            segment_bytes: 64 << 20,
        };
        Program::with_segment(world, app, limits, grant, modes)
    }

    /// The same with a segment of its own size.
    pub(crate) fn with_segment(
        world: &mut World,
        app: u32,
        limits: Limits,
        grant: Grant,
        modes: u32,
    ) -> Program {
        let segment = Segment::in_memory(Layout::of(limits).unwrap());
        let (host, end) = in_memory();
        let (app, channel) = (AppId(app), ChannelId(app.wrapping_mul(100)));
        let sockets = &mut world.apps.others;
        let attached = sockets.attach(Attachment {
            app,
            channel,
            pid: app.0.wrapping_add(1000),
            uid: 1000,
            first: Some(first(grant, modes, segment.clone())),
            end: host,
        });
        attached.unwrap();
        sockets.add_handles_without_descriptors(app, HandleId(0), HANDLES);
        Program {
            app,
            channel,
            segment,
            end,
            next_handle: 0,
            next_request: 1,
            answers: BTreeMap::new(),
            hints: Vec::new(),
        }
    }

    /// Handles from `first` on that it may use besides those that it begins with.
    pub(crate) fn add_handles(&mut self, world: &mut World, count: u32) {
        let sockets = &mut world.apps.others;
        sockets.add_handles_without_descriptors(self.app, HandleId(HANDLES), count);
    }

    /// Takes a connection out of the queue of a listener, and asks for nothing.
    pub(crate) fn take(&mut self, listener: SocketId) -> Option<(SocketId, HandleId)> {
        let socket = self.record(listener).accept().unwrap()?;
        let handle = self.handle();
        self.send(&Command::Accept { socket, handle });
        Some((socket, handle))
    }

    pub(crate) fn record(&self, socket: SocketId) -> AppRecord<'_> {
        AppRecord::of(&self.segment, socket).unwrap()
    }

    pub(crate) fn handle(&mut self) -> HandleId {
        self.next_handle += 1;
        HandleId(self.next_handle - 1)
    }

    pub(crate) fn hear(&mut self) {
        while let Some(event) = self.end.receive().unwrap() {
            match event {
                Event::Answer { request, .. } | Event::Info { request, .. } => {
                    self.answers.insert(request, event);
                }
                Event::Ready { socket } => self.hints.push(socket),
                Event::ScanAll => {}
            }
        }
        self.end.flush();
    }

    pub(crate) fn send(&mut self, command: &Command<'_>) {
        self.end.send(command).unwrap();
        self.end.flush();
    }

    /// Sends a command and waits for its answer.
    #[track_caller]
    pub(crate) fn ask(
        &mut self,
        world: &mut World,
        make: impl FnOnce(u32) -> Command<'static>,
    ) -> Event {
        let request = self.next_request;
        self.next_request += 1;
        self.send(&make(request));
        world.run_until(|_| {
            self.hear();
            self.answers.contains_key(&request)
        });
        self.answers.remove(&request).unwrap()
    }

    /// The same; an error is an `errno`.
    #[track_caller]
    pub(crate) fn call(
        &mut self,
        world: &mut World,
        make: impl FnOnce(u32) -> Command<'static>,
    ) -> Result<(Option<SocketId>, u64), u32> {
        match self.ask(world, make) {
            Event::Answer {
                errno: 0,
                socket,
                value,
                ..
            } => Ok((socket, value)),
            Event::Answer { errno, .. } => Err(errno),
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    pub(crate) fn open(&mut self, world: &mut World, handle: HandleId) -> SocketId {
        let family = Family::V4;
        let opened = self.call(world, |request| Command::Open {
            request,
            handle,
            family,
        });
        opened.unwrap().0.unwrap()
    }

    pub(crate) fn bind(
        &mut self,
        world: &mut World,
        socket: SocketId,
        address: &str,
        flags: BindFlags,
    ) -> Result<(), u32> {
        let address: SocketAddr = address.parse().unwrap();
        let bound = self.call(world, |request| Command::Bind {
            request,
            socket,
            address,
            flags,
        });
        bound.map(|_| ())
    }

    pub(crate) fn listen(
        &mut self,
        world: &mut World,
        socket: SocketId,
        backlog: u32,
    ) -> Result<(), u32> {
        let listens = self.call(world, |request| Command::Listen {
            request,
            socket,
            backlog,
        });
        listens.map(|_| ())
    }

    /// A listener on a port of all addresses, and its handle.
    #[track_caller]
    pub(crate) fn listener(&mut self, world: &mut World, port: u16) -> (SocketId, HandleId) {
        let handle = self.handle();
        let socket = self.open(world, handle);
        let address = format!("0.0.0.0:{port}");
        self.bind(world, socket, &address, BindFlags::NONE).unwrap();
        self.listen(world, socket, 512).unwrap();
        (socket, handle)
    }

    pub(crate) fn connect(
        &mut self,
        world: &mut World,
        socket: SocketId,
        address: &str,
    ) -> Result<(), u32> {
        let address: SocketAddr = address.parse().unwrap();
        let begun = self.call(world, |request| Command::Connect {
            request,
            socket,
            address,
        });
        begun.map(|_| ())
    }

    /// Accepts the next connection of a listener, waiting for it.
    #[track_caller]
    pub(crate) fn accept(&mut self, world: &mut World, listener: SocketId) -> (SocketId, HandleId) {
        let handle = self.handle();
        (self.accept_for(world, listener, handle), handle)
    }

    /// Accepts a connection for a handle.
    pub(crate) fn accept_for(
        &mut self,
        world: &mut World,
        listener: SocketId,
        handle: HandleId,
    ) -> SocketId {
        let mut taken = None;
        world.run_until(|_| {
            taken = self.record(listener).accept().unwrap();
            taken.is_some() || self.record(listener).held() > 0
        });
        let socket = match taken {
            Some(socket) => {
                self.send(&Command::Accept { socket, handle });
                socket
            }
            None => self.accept_next(world, listener, handle).unwrap(),
        };
        self.ask_addresses(world, socket);
        self.ask_for_room(world, socket, 1);
        socket
    }

    /// Asks for room for so many bytes, or for a FIFO to write to.
    #[track_caller]
    pub(crate) fn ask_for_room(&mut self, world: &mut World, socket: SocketId, bytes: u64) {
        let asked = self.call(world, |request| Command::Room {
            request,
            socket,
            bytes,
        });
        // Of a connection that is over, the record tells.
        let _ = asked;
    }

    /// Asks for the oldest connection that a listener holds.
    pub(crate) fn accept_next(
        &mut self,
        world: &mut World,
        listener: SocketId,
        handle: HandleId,
    ) -> Result<SocketId, u32> {
        let accepted = self.call(world, |request| Command::AcceptNext {
            request,
            socket: listener,
            handle,
        });
        accepted.map(|(socket, _)| socket.unwrap())
    }

    /// Asks for what the record of an accepted connection does not tell.
    fn ask_addresses(&mut self, world: &mut World, socket: SocketId) {
        for side in Side::ALL {
            let record = AppRecord::of(&self.segment, socket).unwrap();
            let told = match side {
                Side::Local => record.local(),
                Side::Peer => record.peer(),
            };
            if told.is_none() {
                let asked = self.call(world, |request| Command::GetAddress {
                    request,
                    socket,
                    side: *side,
                });
                asked.unwrap();
            }
        }
    }

    /// Writes as much as there is room for; returns how many bytes.
    pub(crate) fn write(&mut self, socket: SocketId, bytes: &[u8]) -> usize {
        self.write_by(socket, |record| record.write(bytes))
    }

    /// The same, with more to follow.
    pub(crate) fn write_with_more(&mut self, socket: SocketId, bytes: &[u8]) -> usize {
        self.write_by(socket, |record| record.write_with_more(bytes))
    }

    fn write_by(
        &mut self,
        socket: SocketId,
        write: impl FnOnce(&AppRecord<'_>) -> Result<usize, Unusable>,
    ) -> usize {
        let record = self.record(socket);
        let written = write(&record);
        if written == Err(Unusable::NoFifo) {
            // The answer is not waited for.
            self.send(&Command::Room {
                request: 0,
                socket,
                bytes: 1,
            });
        }
        let record = self.record(socket);
        let count = written.unwrap_or(0);
        if count > 0 && record.must_kick() {
            self.send(&Command::Kick { socket });
        }
        count
    }

    /// Writes all of it, waiting for room.
    #[track_caller]
    pub(crate) fn write_all(&mut self, world: &mut World, socket: SocketId, bytes: &[u8]) {
        let mut written = 0;
        world.run_until(|_| {
            self.hear();
            written += self.write(socket, &bytes[written..]);
            written == bytes.len()
        });
    }

    /// Reads what is there, and asks for what is held.
    pub(crate) fn read(&mut self, socket: SocketId) -> Vec<u8> {
        let mut bytes = vec![0; 10_000];
        if self.record(socket).held() > 0 {
            // The answer is not waited for.
            let _ = self.end.send(&Command::Receive {
                request: 0,
                socket,
                bytes: bytes.len() as u64,
            });
            self.end.flush();
        }
        let record = self.record(socket);
        let count = record.read(&mut bytes).unwrap_or(0);
        if count > 0 && record.rx_must_kick(count) {
            self.send(&Command::Kick { socket });
        }
        bytes.truncate(count);
        bytes
    }

    pub(crate) fn flags(&self, socket: SocketId) -> Flags {
        let record = AppRecord::of(&self.segment, socket).ok();
        record
            .and_then(|record| record.flags().ok())
            .unwrap_or(Flags::CLOSED)
    }

    /// Reads all until the end of the stream.
    #[track_caller]
    pub(crate) fn read_to_end(&mut self, world: &mut World, socket: SocketId) -> Vec<u8> {
        let mut all = Vec::new();
        world.run_until(|_| {
            self.hear();
            let is_finished = self.flags(socket).has(Flags::PEER_FINISHED);
            let bytes = self.read(socket);
            all.extend_from_slice(&bytes);
            is_finished && bytes.is_empty()
        });
        all
    }

    pub(crate) fn shutdown(&mut self, socket: SocketId) {
        let (mark, at) = self.record(socket).mark();
        let how = How::Write;
        self.send(&Command::Shutdown {
            socket,
            how,
            mark,
            at,
        });
    }

    pub(crate) fn close(&mut self, handle: HandleId) {
        self.send(&Command::Close { handle });
    }

    /// The process ends: the kernel closes its descriptors.
    pub(crate) fn exit(self, world: &mut World) {
        for number in 0..HANDLES {
            world.hang_up(self.app, HandleId(number));
        }
        world.end_process(self.app, self.channel);
    }
}

/// A world whose clients echo nothing, with a program that listens at port 8000 and a client that
/// connects to it: the listener, and the client's stream.
pub(crate) fn silent_connection() -> (World, Program, SocketId, StreamId) {
    silent_connection_in(modes::modes())
}

/// The same with a program that is granted this.
pub(crate) fn silent_connection_in(modes: u32) -> (World, Program, SocketId, StreamId) {
    let mut world = World::new();
    world.clients.echoes = false;
    let mut program = Program::with(&mut world, 1, Grant::default(), modes);
    let (listener, _) = program.listener(&mut world, 8000);
    let stream = world.connect(8000);
    (world, program, listener, stream)
}

/// Bytes that tell where they are.
pub(crate) fn text(len: usize, seed: u8) -> Vec<u8> {
    let byte = |at: usize| (at as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0] ^ seed;
    (0..len).map(byte).collect()
}
