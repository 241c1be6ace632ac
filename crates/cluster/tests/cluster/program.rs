//! A program, played by hand at its end of the channel.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;

use socket_channel::channel::AppEnd;
use socket_channel::message::BindFlags;
use socket_channel::{
    AppId, AppRecord, ChannelId, Command, Event, Family, Flags, HandleId, How, Segment, SocketId,
};

use crate::nodes::Nodes;

/// Words of a record, as `socket_channel::record` lays it out.
const APP_FLAGS: usize = 42;
pub(crate) const ACCEPT_HEAD: usize = 44;

pub(crate) struct Program {
    pub(crate) app: AppId,
    pub(crate) channel: ChannelId,
    pub(crate) segment: Segment,
    pub(crate) end: AppEnd,
    next_handle: u32,
    next_request: u32,
    answers: BTreeMap<u32, Event>,
}

impl Program {
    pub(crate) fn new(app: AppId, channel: ChannelId, segment: Segment, end: AppEnd) -> Program {
        Program {
            app,
            channel,
            segment,
            end,
            next_handle: 0,
            next_request: 1,
            answers: BTreeMap::new(),
        }
    }

    pub(crate) fn record(&self, socket: SocketId) -> AppRecord<'_> {
        AppRecord::of(&self.segment, socket).unwrap()
    }

    /// A word of a socket's record: the program may write what it likes.
    pub(crate) fn word(&self, socket: SocketId, word: usize) -> &AtomicU64 {
        let own = self.record(socket).app_flags();
        let mut words = self.segment.words().iter();
        let place = words.position(|it| std::ptr::eq(it, own)).unwrap();
        &self.segment.words()[place + word - APP_FLAGS]
    }

    pub(crate) fn handle(&mut self) -> HandleId {
        self.next_handle += 1;
        HandleId(self.next_handle - 1)
    }

    pub(crate) fn hear(&mut self) {
        while let Some(event) = self.end.receive().unwrap() {
            if let Event::Answer { request, .. } | Event::Info { request, .. } = event {
                self.answers.insert(request, event);
            }
        }
        self.end.flush();
    }

    pub(crate) fn send(&mut self, command: &Command<'_>) {
        self.end.send(command).unwrap();
        self.end.flush();
    }

    /// Sends a command and waits for its answer; an error is an `errno`.
    #[track_caller]
    pub(crate) fn call(
        &mut self,
        nodes: &mut Nodes,
        make: impl FnOnce(u32) -> Command<'static>,
    ) -> Result<Option<SocketId>, u32> {
        let request = self.next_request;
        self.next_request += 1;
        self.send(&make(request));
        nodes.run_until(|_| {
            self.hear();
            self.answers.contains_key(&request)
        });
        match self.answers.remove(&request).unwrap() {
            Event::Answer {
                errno: 0, socket, ..
            } => Ok(socket),
            Event::Answer { errno, .. } => Err(errno),
            Event::Info { .. } => Ok(None),
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    pub(crate) fn open(&mut self, nodes: &mut Nodes, handle: HandleId) -> Result<SocketId, u32> {
        let family = Family::V4;
        let opened = self.call(nodes, |request| Command::Open {
            request,
            handle,
            family,
        });
        opened.map(Option::unwrap)
    }

    pub(crate) fn bind(
        &mut self,
        nodes: &mut Nodes,
        socket: SocketId,
        port: u16,
    ) -> Result<(), u32> {
        self.bind_with(nodes, socket, port, BindFlags::NONE)
    }

    pub(crate) fn bind_with(
        &mut self,
        nodes: &mut Nodes,
        socket: SocketId,
        port: u16,
        flags: BindFlags,
    ) -> Result<(), u32> {
        let address = format!("0.0.0.0:{port}").parse().unwrap();
        let bound = self.call(nodes, |request| Command::Bind {
            request,
            socket,
            address,
            flags,
        });
        bound.map(|_| ())
    }

    /// A listener on a port of all addresses, and its handle.
    pub(crate) fn listener(
        &mut self,
        nodes: &mut Nodes,
        port: u16,
        backlog: u32,
    ) -> Result<(SocketId, HandleId), u32> {
        let handle = self.handle();
        let socket = self.open(nodes, handle)?;
        self.bind(nodes, socket, port)?;
        self.call(nodes, |request| Command::Listen {
            request,
            socket,
            backlog,
        })?;
        Ok((socket, handle))
    }

    /// Begins to connect.
    pub(crate) fn connect(
        &mut self,
        nodes: &mut Nodes,
        socket: SocketId,
        address: &str,
    ) -> Result<(), u32> {
        let address = address.parse().unwrap();
        let begun = self.call(nodes, |request| Command::Connect {
            request,
            socket,
            address,
        });
        begun.map(|_| ())
    }

    /// The next connection of a listener, if one waits.
    pub(crate) fn try_accept(&mut self, listener: SocketId) -> Option<(SocketId, HandleId)> {
        let socket = self.record(listener).accept().ok().flatten()?;
        let handle = self.handle();
        self.send(&Command::Accept { socket, handle });
        Some((socket, handle))
    }

    /// The next connection of a listener.
    #[track_caller]
    pub(crate) fn accept(&mut self, nodes: &mut Nodes, listener: SocketId) -> (SocketId, HandleId) {
        let mut accepted = None;
        nodes.run_until(|_| {
            accepted = self.try_accept(listener);
            accepted.is_some()
        });
        accepted.unwrap()
    }

    /// Writes as much as there is room for; returns how many bytes.
    pub(crate) fn write(&mut self, socket: SocketId, bytes: &[u8]) -> usize {
        let record = self.record(socket);
        let count = record.write(bytes).unwrap_or(0);
        if count > 0 && record.must_kick() {
            self.send(&Command::Kick { socket });
        }
        count
    }

    /// Reads what is there.
    pub(crate) fn read(&mut self, socket: SocketId) -> Vec<u8> {
        let mut bytes = vec![0; 10_000];
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
        let flags = record.and_then(|record| record.flags().ok());
        flags.unwrap_or(Flags::CLOSED)
    }

    pub(crate) fn finish(&mut self, socket: SocketId) {
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
}

/// Bytes that tell where they are.
pub(crate) fn text(len: usize, seed: u8) -> Vec<u8> {
    let byte = |at: usize| (at as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0] ^ seed;
    (0..len).map(byte).collect()
}
