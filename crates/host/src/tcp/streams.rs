//! The application's operations on streams of TCP.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use contract::FileId;

use super::TcpLayer;
use crate::app::{FileHandle, Owner, StreamId};
use crate::ground::Ground;
use crate::nics::nic_stacks::NicSet;
use crate::streams::Transport;
use crate::tables::connections::{ConnectionHandle, Entry};

impl TcpLayer {
    /// The connection of a stream that the application may still use.
    pub(crate) fn handle_in_use(&self, stream: StreamId) -> Option<ConnectionHandle> {
        let handle = self.connections.handle_of(stream)?;
        self.connections.get(handle)?.told.then_some(handle)
    }

    pub(crate) fn entry_in_use(&self, stream: StreamId) -> Option<&Entry> {
        self.connections.get(self.handle_in_use(stream)?)
    }

    /// Acts on a stream in a way that may make it send.
    pub(crate) fn act<T: Default>(
        &mut self,
        stream: StreamId,
        act: impl FnOnce(&mut Entry) -> T,
    ) -> T {
        let Some(handle) = self.handle_in_use(stream) else {
            return T::default();
        };
        let result = self.connections.get_mut(handle).map(act);
        self.mark_dirty(handle);
        result.unwrap_or_default()
    }
}

impl Transport for TcpLayer {
    fn worker_of(&self, stream: StreamId) -> Option<usize> {
        self.entry_in_use(stream).map(|entry| entry.nic.worker)
    }

    fn owner(&self, stream: StreamId) -> Option<Owner> {
        Some(self.connections.by_stream(stream)?.owner)
    }

    fn addresses(&self, stream: StreamId) -> Option<(SocketAddr, SocketAddr)> {
        let tuple = self.connections.by_stream(stream)?.tuple;
        Some((tuple.local, tuple.remote))
    }

    fn read(&mut self, _: &mut Ground, now_us: u64, stream: StreamId, to: &mut [u8]) -> usize {
        self.act(stream, |entry| match &mut entry.tls {
            None => entry.tcp.read(to),
            Some(tls) => tls.read(&mut entry.tcp, now_us, to),
        })
    }

    fn write(&mut self, _: &mut Ground, stream: StreamId, bytes: &[u8]) -> usize {
        self.act(stream, |entry| match &mut entry.tls {
            None => entry.tcp.write(bytes),
            Some(tls) => tls.write(bytes),
        })
    }

    fn write_file(
        &mut self,
        ground: &mut Ground,
        stream: StreamId,
        file: FileHandle,
        range: Range<u64>,
    ) -> u64 {
        let Some((id, _)) = ground.files.by_handle(file) else {
            return 0;
        };
        let len = range.end - range.start;
        let queued = self.act(stream, |entry| match &mut entry.tls {
            _ if entry.route.is_looped() => 0,
            None => entry.tcp.write_virtual(id.0, range.start, len),
            Some(tls) => tls.write_range(id.0, range.start, len),
        });
        if queued > 0 {
            ground.files.extent_queued(id);
        }
        queued
    }

    fn forget_closed(&mut self, ground: &Ground, stream: StreamId) {
        if let Some(entry) = self.connections.by_stream_mut(stream) {
            ground.files.retain_own(stream, &mut entry.files);
        }
    }

    fn add_file(&mut self, stream: StreamId, file: FileId) {
        if let Some(entry) = self.connections.by_stream_mut(stream) {
            entry.files.push(file);
        }
    }

    fn on_file_closed(&mut self, ground: &mut Ground, stream: StreamId) {
        if let Some(entry) = self.connections.by_stream_mut(stream) {
            let (handle, is_to_move) = (entry.handle(), entry.nic.is_to_move);
            if is_to_move {
                self.mark_dirty(handle)
            } else {
                self.tell_next(ground, handle)
            }
        }
    }

    fn shutdown(&mut self, ground: &mut Ground, stream: StreamId) {
        self.act(stream, |entry| {
            entry.is_shut = true;
            match &mut entry.tls {
                None => entry.tcp.shutdown(),
                Some(tls) => tls.connection.close(),
            }
        });
        if let Some(handle) = self.handle_in_use(stream) {
            self.on_closing(ground, handle);
        }
    }

    fn abort(&mut self, ground: &mut Ground, now_us: u64, stream: StreamId) {
        if self.has_splices() && self.abort_spliced(ground, now_us, stream, false) {
            return;
        }
        self.act(stream, |entry| entry.tcp.abort());
    }

    fn close(&mut self, ground: &mut Ground, now_us: u64, stream: StreamId) {
        if self.has_splices() && self.abort_spliced(ground, now_us, stream, true) {
            return;
        }
        self.act(stream, |entry| {
            match &mut entry.tls {
                None => entry.tcp.close(),
                Some(tls) => tls.connection.close(),
            }
            entry.app_deadline_us = None;
        });
        let Some(handle) = self.handle_in_use(stream) else {
            return;
        };
        self.on_closing(ground, handle);
        if let Some(entry) = self.connections.get_mut(handle) {
            entry.told = false;
        }
    }

    fn congestion_window(&self, stream: StreamId) -> u64 {
        let entry = self.entry_in_use(stream);
        entry.map_or(0, |entry| entry.tcp.congestion_window())
    }

    fn set_timer(&mut self, now_us: u64, stream: StreamId, after: Option<Duration>) {
        let deadline_us = after.map(|after| now_us.saturating_add(after.as_micros() as u64));
        self.act(stream, |entry| entry.app_deadline_us = deadline_us);
    }

    fn bound_rate(&mut self, stream: StreamId, bytes_per_second: Option<u64>) {
        self.act(stream, |entry| {
            entry.tcp.set_max_pacing_rate(bytes_per_second);
        });
    }

    fn set_notsent_lowat(&mut self, stream: StreamId, bytes: u64) {
        self.act(stream, |entry| entry.notsent_lowat = Some(bytes));
    }

    fn acknowledged(&self, stream: StreamId) -> u64 {
        let entry = self.entry_in_use(stream);
        entry.map_or(0, Entry::acknowledged_bytes)
    }

    fn unacknowledged(&self, stream: StreamId) -> u64 {
        let entry = self.entry_in_use(stream);
        entry.map_or(0, |entry| match &entry.tls {
            None => entry.tcp.queued_bytes(),
            Some(tls) => tls.connection.unacknowledged_bytes(),
        })
    }

    fn unsent(&self, stream: StreamId) -> u64 {
        self.entry_in_use(stream).map_or(0, Entry::notsent_bytes)
    }

    fn waits_for_peer(&self, stream: StreamId) -> bool {
        self.unacknowledged(stream) > 0
            && self.entry_in_use(stream).is_some_and(|entry| {
                entry.tcp.undeparted_transmissions() == 0 && entry.nic.holds == 0
            })
    }

    fn on_file_opened(&mut self, ground: &mut Ground, stream: StreamId) {
        if let Some(handle) = self.connections.handle_of(stream) {
            self.tell_opened(ground, handle);
        }
    }

    fn hold_sends(&mut self, stream: StreamId) {
        if let Some(entry) = self.connections.by_stream_mut(stream) {
            entry.nic.holds += 1;
        }
    }

    fn on_reopened(
        &mut self,
        ground: &mut Ground,
        nic: usize,
        (stream, _): (StreamId, FileId),
        has_changed: bool,
    ) {
        let Some(entry) = self.connections.by_stream_mut(stream) else {
            return;
        };
        let handle = entry.handle();
        if has_changed {
            entry.refused_by.insert(nic);
        }
        entry.nic.release();
        if entry.nic.holds == 0 {
            // The refused file's data may have been acknowledged since.
            let lacks_a_file = entry.refused_by.contains(nic) && self.lacks_a_file(ground, handle);
            if lacks_a_file {
                self.reroute(ground, handle);
            } else if let Some(entry) = self.connections.get_mut(handle) {
                entry.refused_by = NicSet::default();
            }
        }
        self.mark_dirty(handle);
    }

    fn moves_to(&self, stream: StreamId) -> Option<usize> {
        self.connections.by_stream(stream)?.nic.moves_to
    }

    fn on_twin_opened(&mut self, ground: &mut Ground, stream: StreamId, is_other: bool) {
        let Some(handle) = self.connections.handle_of(stream) else {
            return;
        };
        if is_other {
            self.stop_migrating(ground, handle);
        }
        self.mark_dirty(handle);
    }
}
