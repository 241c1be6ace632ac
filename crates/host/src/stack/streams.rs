//! The application's interface to its streams: [`Io`] on a [`Stack`].

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::time::Duration;

use contract::{Command, FileId, Growth, PassedId};
use rustix::io::Errno;
use tcp::Instant;

use crate::app::{
    AppEvent, Bind, BindError, BindingId, ConnectError, FileHandle, FileMeta, Io, ListPlace,
    Offloads, Owner, QuicConnection, QuicStream, StreamId, StreamOption, StreamOptions,
};
use crate::splicing::{SpliceError, SpliceLimits};
use crate::stack::Stack;
use crate::stack::quic::names::is_stream as is_quic;
use crate::tables::connections::{ConnectionHandle, Entry};
use crate::tables::files::{Lookup, Name};

/// A stack during a call into the application.
pub(crate) struct Streams<'a> {
    pub(crate) stack: &'a mut Stack,
    pub(crate) now_us: u64,
}

impl Streams<'_> {
    /// The connection of a stream that the application may still use.
    fn handle(&self, stream: StreamId) -> Option<ConnectionHandle> {
        let handle = self.stack.connections.handle_of(stream)?;
        self.stack.connections.get(handle)?.told.then_some(handle)
    }

    fn entry(&self, stream: StreamId) -> Option<&Entry> {
        self.stack.connections.get(self.handle(stream)?)
    }

    /// Acts on a stream in a way that may make it send.
    fn act<T: Default>(&mut self, stream: StreamId, act: impl FnOnce(&mut Entry) -> T) -> T {
        let Some(handle) = self.handle(stream) else {
            return T::default();
        };
        let result = self.stack.connections.get_mut(handle).map(act);
        self.stack.mark_dirty(handle);
        result.unwrap_or_default()
    }

    /// Opens a file for a stream.
    fn open_by(&mut self, stream: StreamId, name: Name, path: &[u8]) -> FileHandle {
        let command = Lookup::Open(name).command(FileId(0), path);
        let now_us = self.now_us;
        self.ask(stream, &command, |stack, worker| {
            stack.open_file(now_us, stream, worker, name, path)
        })
    }

    /// Executes a command for a stream, by `ask`, which gets the stream's worker.
    fn ask(
        &mut self,
        stream: StreamId,
        command: &Command<'_>,
        ask: impl FnOnce(&mut Stack, usize) -> Option<(FileId, FileHandle)>,
    ) -> FileHandle {
        const NOWHERE: FileHandle = FileHandle(u64::MAX);
        let worker = if is_quic(stream) {
            self.stack.quic_worker(stream)
        } else {
            self.entry(stream).map(|entry| entry.worker)
        };
        let Some(worker) = worker else {
            return NOWHERE;
        };
        let sane = command.check().is_ok();
        // Before a new file gets the id of a closed one.
        if let Some(entry) = self.stack.connections.by_stream_mut(stream) {
            forget_closed(&mut entry.files, &self.stack.files, stream);
        }
        let opened = sane.then(|| ask(self.stack, worker)).flatten();
        let Some((file, handle)) = opened else {
            let errno = if sane { Errno::MFILE } else { Errno::INVAL };
            let event = AppEvent::OpenFailed {
                file: NOWHERE,
                errno: errno.raw_os_error() as u16,
            };
            self.stack.app_events.push_back((stream, event));
            return NOWHERE;
        };
        if let Some(entry) = self.stack.connections.by_stream_mut(stream) {
            entry.files.push(file);
        } else {
            self.stack.add_quic_file(stream, file);
        }
        handle
    }
}

impl Io for Streams<'_> {
    fn bind(&mut self, bind: &Bind) -> Result<BindingId, BindError> {
        self.stack.bind(bind)
    }

    fn listen(&mut self, binding: BindingId, options: StreamOptions) -> Result<(), BindError> {
        self.stack.listen(binding, options)
    }

    fn reuse_address(&mut self, binding: BindingId, reuses: bool) {
        self.stack.bindings.reuse_address(binding, reuses);
    }

    fn join_group(&mut self, binding: BindingId, group: u32) {
        self.stack.bindings.join_group(binding, group);
    }

    fn set_listener_room(&mut self, binding: BindingId, room: usize) {
        self.stack.bindings.set_room(binding, room);
    }

    fn set_source_room(&mut self, owner: Owner, source: IpAddr, has_room: bool) {
        self.stack.bindings.set_source_room(owner, source, has_room);
    }

    fn release(&mut self, binding: BindingId) {
        self.stack.release(binding);
    }

    fn bindings(&self, owner: Owner) -> usize {
        self.stack.bindings.of_owner(owner)
    }

    fn unlisten(&mut self, binding: BindingId) {
        self.stack.bindings.unlisten(binding);
    }

    fn bound_address(&self, binding: BindingId) -> Option<SocketAddr> {
        self.stack.bound_address(binding)
    }

    fn owner(&self, stream: StreamId) -> Option<Owner> {
        // Only the server uses QUIC.
        if is_quic(stream) {
            return self.stack.quic_worker(stream).map(|_| Owner::SERVER);
        }
        Some(self.stack.connections.by_stream(stream)?.owner)
    }

    fn listener(&self, stream: StreamId) -> Option<BindingId> {
        self.stack.connections.by_stream(stream)?.listener
    }

    fn addresses(&self, stream: StreamId) -> Option<(SocketAddr, SocketAddr)> {
        if is_quic(stream) {
            return self.stack.quic_addresses(stream);
        }
        let tuple = self.stack.connections.by_stream(stream)?.tuple;
        Some((tuple.local, tuple.remote))
    }

    fn connect(
        &mut self,
        owner: Owner,
        local: Option<SocketAddr>,
        remote: SocketAddr,
    ) -> Result<StreamId, ConnectError> {
        self.stack.connect(self.now_us, owner, local, remote)
    }

    fn read(&mut self, stream: StreamId, buffer: &mut [u8]) -> usize {
        if is_quic(stream) {
            return self.stack.quic_read(stream, buffer);
        }
        let now_us = self.now_us;
        self.act(stream, |entry| match &mut entry.tls {
            None => entry.tcp.read(buffer),
            Some(tls) => tls.read(&mut entry.tcp, now_us, buffer),
        })
    }

    fn write(&mut self, stream: StreamId, bytes: &[u8]) -> usize {
        if is_quic(stream) {
            return self.stack.quic_write(stream, bytes);
        }
        self.act(stream, |entry| match &mut entry.tls {
            None => entry.tcp.write(bytes),
            Some(tls) => tls.write(bytes),
        })
    }

    fn write_file(&mut self, stream: StreamId, file: FileHandle, range: Range<u64>) -> u64 {
        if is_quic(stream) {
            return self.stack.quic_write_file(stream, file, range);
        }
        let Some((id, found)) = self.stack.files.by_handle(file) else {
            return 0;
        };
        let size = found.meta.map_or(0, |meta| meta.size);
        if found.stream != stream || range.start >= range.end || range.end > size {
            return 0;
        }
        let len = range.end - range.start;
        let queued = self.act(stream, |entry| match &mut entry.tls {
            _ if entry.route.is_looped() => 0,
            None => entry.tcp.write_virtual(id.0, range.start, len),
            Some(tls) => tls.write_range(id.0, range.start, len),
        });
        if queued > 0 {
            self.stack.files.extent_queued(id);
        }
        queued
    }

    fn is_looped(&self, stream: StreamId) -> bool {
        let entry = self.stack.connections.by_stream(stream);
        entry.is_some_and(|entry| entry.route.is_looped())
    }

    fn open(&mut self, stream: StreamId, path: &[u8], growth: Growth) -> FileHandle {
        self.open_by(stream, Name::Path(growth), path)
    }

    fn open_passed(&mut self, stream: StreamId, passed: PassedId) -> FileHandle {
        self.open_by(stream, Name::Passed(passed), &super::look_up::shown(passed))
    }

    fn look_up(&mut self, path: &[u8]) -> Option<FileHandle> {
        self.stack.look_up(self.now_us, path)
    }

    fn look_up_passed(&mut self, passed: PassedId) -> Option<FileHandle> {
        self.stack.look_up_passed(self.now_us, passed)
    }

    fn uses_passed(&self, passed: PassedId) -> bool {
        self.stack.files.uses_passed(passed)
    }

    fn take_released_passed(&mut self) -> Vec<PassedId> {
        self.stack.files.take_released_passed()
    }

    fn list(&mut self, stream: StreamId, path: &[u8], from: Option<ListPlace>) -> FileHandle {
        let command = Lookup::List(0).command(FileId(0), path);
        let now_us = self.now_us;
        self.ask(stream, &command, |stack, worker| {
            stack.list_directory(now_us, stream, worker, path, from)
        })
    }

    fn close_file(&mut self, file: FileHandle) {
        let Some((id, found)) = self.stack.files.by_handle(file) else {
            return;
        };
        let stream = found.stream;
        if let Some(close) = self.stack.files.let_go(id) {
            self.stack.send_close(close);
        }
        // Another file may have waited for this.
        self.stack.mark_quic_stream(stream);
        if let Some(entry) = self.stack.connections.by_stream_mut(stream) {
            let (handle, is_to_move) = (entry.handle(), entry.is_to_move);
            if is_to_move {
                self.stack.mark_dirty(handle)
            } else {
                self.stack.tell_next(handle)
            }
        }
    }

    fn shutdown(&mut self, stream: StreamId) {
        if is_quic(stream) {
            return self.stack.quic_shutdown(stream);
        }
        self.act(stream, |entry| {
            entry.is_shut = true;
            match &mut entry.tls {
                None => entry.tcp.shutdown(),
                Some(tls) => tls.connection.close(),
            }
        });
        if let Some(handle) = self.handle(stream) {
            self.stack.on_closing(handle);
        }
    }

    fn splice(
        &mut self,
        first: StreamId,
        second: StreamId,
        limits: SpliceLimits,
    ) -> Result<(), SpliceError> {
        self.stack.splice(self.now_us, [first, second], limits)
    }

    fn unsplice(&mut self, stream: StreamId) {
        self.stack.unsplice(self.now_us, stream);
    }

    fn abort(&mut self, stream: StreamId) {
        if is_quic(stream) {
            return self.stack.quic_abort(stream);
        }
        if self.stack.has_splices() && self.stack.abort_spliced(self.now_us, stream, false) {
            return;
        }
        self.act(stream, |entry| entry.tcp.abort());
    }

    fn close(&mut self, stream: StreamId) {
        if is_quic(stream) {
            return self.stack.quic_close(stream);
        }
        if self.stack.has_splices() && self.stack.abort_spliced(self.now_us, stream, true) {
            return;
        }
        self.act(stream, |entry| {
            match &mut entry.tls {
                None => entry.tcp.close(),
                Some(tls) => tls.connection.close(),
            }
            entry.app_deadline_us = None;
        });
        let handle = self.handle(stream);
        if let Some(handle) = handle {
            self.stack.on_closing(handle);
        }
        let entry = handle.and_then(|handle| self.stack.connections.get_mut(handle));
        if let Some(entry) = entry {
            entry.told = false;
        }
    }

    fn quic_stream(&self, stream: StreamId) -> Option<QuicStream> {
        self.stack.quic_stream(stream)
    }

    fn open_unidirectional(&mut self, connection: QuicConnection) -> Option<StreamId> {
        self.stack.quic_open_unidirectional(connection)
    }

    fn peer_streams_max(&mut self, connection: QuicConnection) -> u64 {
        self.stack.quic_streams_max(connection)
    }

    fn reset_stream(&mut self, stream: StreamId, code: u64) {
        self.stack.quic_reset(stream, code);
    }

    fn stop_sending(&mut self, stream: StreamId, code: u64) {
        self.stack.quic_stop_sending(stream, code);
    }

    fn prioritize(&mut self, stream: StreamId, priority: i32) {
        self.stack.quic_prioritize(stream, priority);
    }

    fn close_quic(&mut self, connection: QuicConnection, code: u64, reason: &[u8]) {
        self.stack.close_quic(self.now_us, connection, code, reason);
    }

    fn offloads(&self) -> Offloads {
        Offloads {
            setup: self.stack.config.setup_offload,
            teardown: self.stack.config.teardown_offload,
        }
    }

    fn set_option(&mut self, stream: StreamId, option: StreamOption) {
        if let (StreamOption::TeardownOffload(is_wanted), Some(handle)) =
            (option, self.handle(stream))
        {
            self.stack.set_teardown(handle, is_wanted);
        }
        let now = Instant::from_us(self.now_us);
        self.act(stream, |entry| match option {
            StreamOption::NoDelay(nodelay) => entry.tcp.set_nodelay(nodelay),
            StreamOption::Cork(is_in) => entry.tcp.set_cork(is_in),
            StreamOption::QuickAck(quickack) => entry.tcp.set_quickack(quickack),
            StreamOption::Keepalive(keepalive) => entry.tcp.set_keepalive(now, keepalive),
            StreamOption::UserTimeout(timeout) => entry.tcp.set_user_timeout(timeout),
            StreamOption::ReceiveBufferBytes(bytes) => entry.tcp.set_receive_buffer_bytes(bytes),
            StreamOption::SendBufferBytes(bytes) => entry.tcp.set_send_buffer_bytes(bytes),
            StreamOption::Congestion(algorithm) => entry.tcp.set_congestion(now, algorithm),
            StreamOption::MssMax(bytes) => {
                entry.tcp.set_mss_max(bytes);
            }
            StreamOption::TrafficClass(class) => {
                entry.traffic_class = class.of(entry.tuple.remote);
                // The next packet makes another.
                entry.prefix = None;
            }
            // The stack handles it, not TCP.
            StreamOption::TeardownOffload(_) => {}
        });
    }

    fn info(&self, stream: StreamId) -> Option<tcp::Info> {
        let now = Instant::from_us(self.now_us);
        self.entry(stream).map(|entry| entry.tcp.info(now))
    }

    fn congestion_window(&self, stream: StreamId) -> u64 {
        if is_quic(stream) {
            return self.stack.quic_congestion_window(stream);
        }
        self.entry(stream)
            .map_or(0, |entry| entry.tcp.congestion_window())
    }

    fn unread(&self, stream: StreamId) -> usize {
        self.entry(stream).map_or(0, unread_bytes)
    }

    fn take_unread(&mut self, stream: StreamId) -> Vec<u8> {
        let Some(entry) = self.stack.connections.by_stream_mut(stream) else {
            return Vec::new();
        };
        // Of TLS, records are longer than their plaintext.
        let mut bytes = vec![0; unread_bytes(entry)];
        let mut count = 0;
        loop {
            let rest = &mut bytes[count..];
            let read = match &mut entry.tls {
                None => entry.tcp.read(rest),
                Some(tls) => tls.read(&mut entry.tcp, self.now_us, rest),
            };
            if read == 0 {
                break;
            }
            count += read;
        }
        bytes.truncate(count);
        bytes
    }

    fn set_timer(&mut self, stream: StreamId, after: Option<Duration>) {
        if is_quic(stream) {
            return self.stack.quic_set_timer(self.now_us, stream, after);
        }
        let deadline_us = after.map(|after| self.now_us.saturating_add(after.as_micros() as u64));
        self.act(stream, |entry| entry.app_deadline_us = deadline_us);
    }

    fn set_idle(&mut self, stream: StreamId, is_idle: bool) {
        let since_us = is_idle.then_some(self.now_us);
        if let Some(handle) = self.handle(stream)
            && let Some(entry) = self.stack.connections.get_mut(handle)
        {
            entry.idle_since_us = since_us;
        }
    }

    fn set_max_pacing_rate(&mut self, stream: StreamId, bytes_per_second: Option<u64>) {
        if is_quic(stream) {
            return self.stack.quic_set_rate(stream, bytes_per_second);
        }
        self.act(stream, |entry| {
            entry.tcp.set_max_pacing_rate(bytes_per_second);
        });
    }

    fn set_notsent_lowat(&mut self, stream: StreamId, bytes: u64) {
        if is_quic(stream) {
            return self.stack.quic_set_lowat(stream, bytes);
        }
        self.act(stream, |entry| entry.notsent_lowat = Some(bytes));
    }

    fn acknowledged(&self, stream: StreamId) -> u64 {
        if is_quic(stream) {
            return self.stack.quic_acknowledged(stream);
        }
        self.entry(stream).map_or(0, Entry::acknowledged_bytes)
    }

    fn unacknowledged(&self, stream: StreamId) -> u64 {
        if is_quic(stream) {
            return self.stack.quic_unacknowledged(stream);
        }
        self.entry(stream).map_or(0, |entry| match &entry.tls {
            None => entry.tcp.queued_bytes(),
            Some(tls) => tls.connection.unacknowledged_bytes(),
        })
    }

    fn unsent(&self, stream: StreamId) -> u64 {
        if is_quic(stream) {
            return self.stack.quic_unsent(stream);
        }
        self.entry(stream).map_or(0, Entry::notsent_bytes)
    }

    fn waits_for_peer(&self, stream: StreamId) -> bool {
        if is_quic(stream) {
            return self.stack.quic_waits_for_peer(stream);
        }
        self.unacknowledged(stream) > 0
            && self
                .entry(stream)
                .is_some_and(|entry| entry.tcp.undeparted_transmissions() == 0 && entry.holds == 0)
    }

    fn retransmissions(&self, stream: StreamId) -> u32 {
        self.entry(stream)
            .map_or(0, |entry| entry.tcp.retransmissions())
    }

    fn now_us(&self) -> u64 {
        self.now_us
    }

    fn unix_time(&self) -> Duration {
        self.stack.unix_time
    }
}

/// Bytes received and not read; of TLS, records that are not opened count with their length.
fn unread_bytes(entry: &Entry) -> usize {
    let opened = entry.tls.as_ref();
    let opened = opened.map_or(0, |tls| tls.connection.readable_bytes());
    entry.tcp.unread_bytes() + opened
}

/// Keeps a stream's list of files as short as its open files: ids that were closed, or that another
/// stream has by now, are removed.
fn forget_closed(
    files: &mut Vec<FileId>,
    table: &crate::tables::files::FileTable,
    stream: StreamId,
) {
    files.retain(|&file| table.by_id(file).is_some_and(|file| file.stream == stream));
}

impl From<contract::FileMeta> for FileMeta {
    fn from(meta: contract::FileMeta) -> FileMeta {
        FileMeta {
            size: meta.size,
            mtime_ns: meta.mtime_ns,
            inode: meta.inode,
            device: meta.device,
            ctime_ns: meta.ctime_ns,
            is_weak: meta.is_weak,
        }
    }
}
