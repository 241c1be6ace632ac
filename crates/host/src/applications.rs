//! The applications of one shard: the server and the proxy of the host process, and the one that
//! stands for applications in other processes.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::app::{
    AppEvent, Application, FileHandle, FileMeta, Io, Owner, QuicConnection, QuicEvent, StreamId,
    StreamMemory,
};

/// The applications of a shard. [`Io::owner`] identifies the owner of a stream; only `others` looks
/// up files, only the server has QUIC.
///
/// Each gets the events of its own streams alone. They share the turns of the shard; each bounds
/// its own work per turn.
#[derive(Debug)]
pub struct Applications<S, P, O> {
    /// The server.
    pub server: S,
    /// The proxy.
    pub proxy: P,
    /// Owns all other streams.
    pub others: O,
}

/// In the place of an application that is not there.
#[derive(Clone, Copy, Debug, Default)]
pub struct Absent;

impl Application for Absent {
    fn on_event(&mut self, _io: &mut dyn Io, _stream: StreamId, _event: AppEvent) {}
}

impl<S: Application, P: Application, O: Application> Application for Applications<S, P, O> {
    fn on_event(&mut self, io: &mut dyn Io, stream: StreamId, event: AppEvent) {
        match io.owner(stream) {
            Some(Owner::SERVER) => self.server.on_event(io, stream, event),
            Some(Owner::PROXY) => self.proxy.on_event(io, stream, event),
            _ => self.others.on_event(io, stream, event),
        }
    }

    fn on_quic(&mut self, io: &mut dyn Io, connection: QuicConnection, event: QuicEvent) {
        self.server.on_quic(io, connection, event);
    }

    fn on_looked_up(&mut self, io: &mut dyn Io, file: FileHandle, found: Result<FileMeta, u16>) {
        self.others.on_looked_up(io, file, found);
    }

    fn on_plain_http(&mut self, unix_time: Duration, is_head: bool) -> Vec<u8> {
        // Only the server has ports that speak TLS.
        self.server.on_plain_http(unix_time, is_head)
    }

    fn memory(&self, owner: Owner, stream: StreamId) -> StreamMemory {
        match owner {
            Owner::SERVER => self.server.memory(owner, stream),
            Owner::PROXY => self.proxy.memory(owner, stream),
            _ => self.others.memory(owner, stream),
        }
    }

    fn quic_memory_bytes(&self, connection: QuicConnection) -> usize {
        self.server.quic_memory_bytes(connection)
    }

    fn on_turn(&mut self, io: &mut dyn Io, now_us: u64) -> bool {
        self.server.on_turn(io, now_us)
            | self.proxy.on_turn(io, now_us)
            | self.others.on_turn(io, now_us)
    }

    fn next_timeout_us(&self) -> Option<u64> {
        let all = [
            self.server.next_timeout_us(),
            self.proxy.next_timeout_us(),
            self.others.next_timeout_us(),
        ];
        all.into_iter().flatten().min()
    }

    fn wake_fds(&self) -> Vec<BorrowedFd<'_>> {
        let proxy = self.proxy.wake_fds();
        [self.server.wake_fds(), proxy, self.others.wake_fds()].concat()
    }

    fn on_wake(&mut self, io: &mut dyn Io, now_us: u64) {
        self.server.on_wake(io, now_us);
        self.proxy.on_wake(io, now_us);
        self.others.on_wake(io, now_us);
    }

    fn ring_set(&self) -> Option<BorrowedFd<'_>> {
        // To the server, nothing comes in memory.
        self.others.ring_set()
    }

    fn prepare_sleep(&mut self) -> bool {
        let own_are_quiet = self.server.prepare_sleep() & self.proxy.prepare_sleep();
        self.others.prepare_sleep() && own_are_quiet
    }

    fn finish_sleep(&mut self) {
        self.server.finish_sleep();
        self.proxy.finish_sleep();
        self.others.finish_sleep();
    }

    fn hurry_set(&self) -> Option<BorrowedFd<'_>> {
        // The others answer none but peers.
        self.others.hurry_set()
    }

    fn moderation_us_max(&self) -> u64 {
        let own_us = self
            .server
            .moderation_us_max()
            .min(self.proxy.moderation_us_max());
        own_us.min(self.others.moderation_us_max())
    }
}
