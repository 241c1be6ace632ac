//! Two applications of one shard: the server of the host process, and the one that stands for
//! applications in other processes.

use std::os::fd::BorrowedFd;

use crate::app::{AppEvent, Application, FileHandle, FileMeta, Io, Owner, StreamId};

/// Both applications. A stream belongs to the server if [`Io::owner`] says so; only `others` looks
/// up files.
///
/// Each gets the events of its own streams alone. They share the turns of the shard, in which each
/// bounds what it does.
#[derive(Debug)]
pub struct Applications<S, O> {
    /// The server.
    pub server: S,
    /// What owns all other streams.
    pub others: O,
}

impl<S: Application, O: Application> Application for Applications<S, O> {
    fn on_event(&mut self, io: &mut dyn Io, stream: StreamId, event: AppEvent) {
        if io.owner(stream) == Some(Owner::SERVER) {
            self.server.on_event(io, stream, event);
        } else {
            self.others.on_event(io, stream, event);
        }
    }

    fn on_looked_up(&mut self, io: &mut dyn Io, file: FileHandle, found: Result<FileMeta, u16>) {
        self.others.on_looked_up(io, file, found);
    }

    fn on_turn(&mut self, io: &mut dyn Io, now_us: u64) -> bool {
        self.server.on_turn(io, now_us) | self.others.on_turn(io, now_us)
    }

    fn next_timeout_us(&self) -> Option<u64> {
        let both = [self.server.next_timeout_us(), self.others.next_timeout_us()];
        both.into_iter().flatten().min()
    }

    fn wake_fds(&self) -> Vec<BorrowedFd<'_>> {
        [self.server.wake_fds(), self.others.wake_fds()].concat()
    }

    fn on_wake(&mut self, io: &mut dyn Io, now_us: u64) {
        self.server.on_wake(io, now_us);
        self.others.on_wake(io, now_us);
    }

    fn ring_set(&self) -> Option<BorrowedFd<'_>> {
        // To the server, nothing comes in memory.
        self.others.ring_set()
    }

    fn prepare_sleep(&mut self) -> bool {
        let server_is_quiet = self.server.prepare_sleep();
        self.others.prepare_sleep() && server_is_quiet
    }

    fn finish_sleep(&mut self) {
        self.server.finish_sleep();
        self.others.finish_sleep();
    }

    fn hurry_set(&self) -> Option<BorrowedFd<'_>> {
        // The server answers none but peers.
        self.others.hurry_set()
    }

    fn moderation_us_max(&self) -> u64 {
        let server_us = self.server.moderation_us_max();
        server_us.min(self.others.moderation_us_max())
    }
}
