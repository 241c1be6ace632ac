//! The application's interface to its streams: [`Io`] on a stack.

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
use crate::ground::{Ground, Layers, look_up};
use crate::quic::names::is_stream as is_quic;
use crate::splicing::{SpliceError, SpliceLimits};
use crate::tables::connections::{ConnectionHandle, Entry};
use crate::tables::files::{Lookup, Name};

/// What both transports do with their streams.
pub(crate) trait Transport {
    /// The NIC worker that sends for a stream.
    fn worker_of(&self, stream: StreamId) -> Option<usize>;
    fn owner(&self, stream: StreamId) -> Option<Owner>;
    /// Own address and peer's.
    fn addresses(&self, stream: StreamId) -> Option<(SocketAddr, SocketAddr)>;
    fn read(&mut self, ground: &mut Ground, now_us: u64, stream: StreamId, to: &mut [u8]) -> usize;
    fn write(&mut self, ground: &mut Ground, stream: StreamId, bytes: &[u8]) -> usize;
    fn write_file(
        &mut self,
        ground: &mut Ground,
        stream: StreamId,
        file: FileHandle,
        range: Range<u64>,
    ) -> u64;
    /// Forgets files of a stream that are closed, before a new file gets the id of one.
    fn forget_closed(&mut self, ground: &Ground, stream: StreamId);
    /// A file is opened for a stream.
    fn add_file(&mut self, stream: StreamId, file: FileId);
    /// A file of a stream was closed: another one may have waited for this.
    fn on_file_closed(&mut self, ground: &mut Ground, stream: StreamId);
    fn shutdown(&mut self, ground: &mut Ground, stream: StreamId);
    fn abort(&mut self, ground: &mut Ground, now_us: u64, stream: StreamId);
    /// The application is gone; queued data is still sent.
    fn close(&mut self, ground: &mut Ground, now_us: u64, stream: StreamId);
    fn congestion_window(&self, stream: StreamId) -> u64;
    fn set_timer(&mut self, now_us: u64, stream: StreamId, after: Option<Duration>);
    fn bound_rate(&mut self, stream: StreamId, bytes_per_second: Option<u64>);
    fn set_notsent_lowat(&mut self, stream: StreamId, bytes: u64);
    fn acknowledged(&self, stream: StreamId) -> u64;
    fn unacknowledged(&self, stream: StreamId) -> u64;
    fn unsent(&self, stream: StreamId) -> u64;
    fn waits_for_peer(&self, stream: StreamId) -> bool;
    /// OPEN has succeeded for a stream. The application learns of it once the connection is with
    /// the NIC stack that has the file.
    fn on_file_opened(&mut self, ground: &mut Ground, stream: StreamId);
    /// The connection of a stream waits for an answer to a repeated OPEN.
    fn hold_sends(&mut self, stream: StreamId);
    /// A repeated OPEN for a file of a stream is answered by this NIC stack.
    fn on_reopened(
        &mut self,
        ground: &mut Ground,
        nic: usize,
        file: (StreamId, FileId),
        has_changed: bool,
    );
    /// The worker that the connection of a stream moves to.
    fn moves_to(&self, stream: StreamId) -> Option<usize>;
    /// That worker has answered an OPEN. `is_other`: it has another version than the one being
    /// sent.
    fn on_twin_opened(&mut self, ground: &mut Ground, stream: StreamId, is_other: bool);
}

/// Calls the transport of a stream.
macro_rules! transport {
    ($stack:expr, $stream:expr, $layer:ident => $call:expr) => {
        if is_quic($stream) {
            let $layer = &$stack.quic;
            $call
        } else {
            let $layer = &$stack.tcp;
            $call
        }
    };
    ($stack:expr, $stream:expr, mut $layer:ident => $call:expr) => {
        if is_quic($stream) {
            let $layer = &mut $stack.quic;
            $call
        } else {
            let $layer = &mut $stack.tcp;
            $call
        }
    };
}

/// A stack during a call into the application.
pub(crate) struct Streams<'a> {
    pub(crate) ground: &'a mut Ground,
    pub(crate) layers: Layers<'a>,
    pub(crate) now_us: u64,
}

impl Streams<'_> {
    /// The connection of a stream that the application may still use.
    fn handle(&self, stream: StreamId) -> Option<ConnectionHandle> {
        self.layers.tcp.handle_in_use(stream)
    }

    fn entry(&self, stream: StreamId) -> Option<&Entry> {
        self.layers.tcp.entry_in_use(stream)
    }

    /// Opens a file for a stream.
    fn open_by(&mut self, stream: StreamId, name: Name, path: &[u8]) -> FileHandle {
        let command = Lookup::Open(name).command(FileId(0), path);
        self.ask(stream, &command, |streams, worker| {
            let Streams {
                ground,
                layers,
                now_us,
            } = streams;
            ground.open_file(layers, *now_us, stream, worker, name, path)
        })
    }

    /// Executes a command for a stream, by `ask`, which gets the stream's worker.
    fn ask(
        &mut self,
        stream: StreamId,
        command: &Command<'_>,
        ask: impl FnOnce(&mut Self, usize) -> Option<(FileId, FileHandle)>,
    ) -> FileHandle {
        const NOWHERE: FileHandle = FileHandle(u64::MAX);
        let worker = transport!(self.layers, stream, layer => layer.worker_of(stream));
        let Some(worker) = worker else {
            return NOWHERE;
        };
        let sane = command.check().is_ok();
        let ground = &*self.ground;
        transport!(self.layers, stream, mut layer => layer.forget_closed(ground, stream));
        let opened = sane.then(|| ask(self, worker)).flatten();
        let Some((file, handle)) = opened else {
            let errno = if sane { Errno::MFILE } else { Errno::INVAL };
            let event = AppEvent::OpenFailed {
                file: NOWHERE,
                errno: errno.raw_os_error() as u16,
            };
            self.ground.app_events.push_back((stream, event));
            return NOWHERE;
        };
        transport!(self.layers, stream, mut layer => layer.add_file(stream, file));
        handle
    }
}

impl Io for Streams<'_> {
    fn bind(&mut self, bind: &Bind) -> Result<BindingId, BindError> {
        self.layers.tcp.bind(self.ground, bind)
    }

    fn listen(&mut self, binding: BindingId, options: StreamOptions) -> Result<(), BindError> {
        self.layers.tcp.bindings.listen(binding, options)
    }

    fn reuse_address(&mut self, binding: BindingId, reuses: bool) {
        self.layers.tcp.bindings.reuse_address(binding, reuses);
    }

    fn reuse_port(&mut self, binding: BindingId, group: Option<u32>) {
        self.layers.tcp.bindings.reuse_port(binding, group);
    }

    fn set_listener_room(&mut self, binding: BindingId, room: usize) {
        self.layers.tcp.bindings.set_room(binding, room);
    }

    fn set_source_room(&mut self, owner: Owner, source: IpAddr, has_room: bool) {
        self.layers
            .tcp
            .bindings
            .set_source_room(owner, source, has_room);
    }

    fn release(&mut self, binding: BindingId) {
        self.layers.tcp.bindings.release(binding);
    }

    fn bindings(&self, owner: Owner) -> usize {
        self.layers.tcp.bindings.of_owner(owner)
    }

    fn unlisten(&mut self, binding: BindingId) {
        self.layers.tcp.bindings.unlisten(binding);
    }

    fn bound_address(&self, binding: BindingId) -> Option<SocketAddr> {
        self.layers.tcp.bindings.address(binding)
    }

    fn refuses_client(&mut self, client: IpAddr) -> bool {
        self.ground.refuses_client(self.now_us, client)
    }

    fn owner(&self, stream: StreamId) -> Option<Owner> {
        transport!(self.layers, stream, layer => layer.owner(stream))
    }

    fn listener(&self, stream: StreamId) -> Option<BindingId> {
        self.layers.tcp.connections.by_stream(stream)?.listener
    }

    fn addresses(&self, stream: StreamId) -> Option<(SocketAddr, SocketAddr)> {
        transport!(self.layers, stream, layer => layer.addresses(stream))
    }

    fn connect(
        &mut self,
        owner: Owner,
        local: Option<SocketAddr>,
        remote: SocketAddr,
    ) -> Result<StreamId, ConnectError> {
        (self.layers.tcp).connect(self.ground, self.now_us, owner, local, remote)
    }

    fn read(&mut self, stream: StreamId, buffer: &mut [u8]) -> usize {
        let now_us = self.now_us;
        transport!(self.layers, stream, mut layer => {
            layer.read(self.ground, now_us, stream, buffer)
        })
    }

    fn write(&mut self, stream: StreamId, bytes: &[u8]) -> usize {
        transport!(self.layers, stream, mut layer => layer.write(self.ground, stream, bytes))
    }

    fn write_file(&mut self, stream: StreamId, file: FileHandle, range: Range<u64>) -> u64 {
        let Some((_, found)) = self.ground.files.by_handle(file) else {
            return 0;
        };
        let size = found.meta.map_or(0, |meta| meta.size);
        if found.stream != stream || range.start >= range.end || range.end > size {
            return 0;
        }
        transport!(self.layers, stream, mut layer => {
            layer.write_file(self.ground, stream, file, range)
        })
    }

    fn is_looped(&self, stream: StreamId) -> bool {
        let entry = self.layers.tcp.connections.by_stream(stream);
        entry.is_some_and(|entry| entry.route.is_looped())
    }

    fn open(&mut self, stream: StreamId, path: &[u8], growth: Growth) -> FileHandle {
        self.open_by(stream, Name::Path(growth), path)
    }

    fn open_passed(&mut self, stream: StreamId, passed: PassedId) -> FileHandle {
        self.open_by(stream, Name::Passed(passed), &look_up::shown(passed))
    }

    fn look_up(&mut self, path: &[u8]) -> Option<FileHandle> {
        self.ground.look_up(&mut self.layers, self.now_us, path)
    }

    fn look_up_passed(&mut self, passed: PassedId) -> Option<FileHandle> {
        self.ground
            .look_up_passed(&mut self.layers, self.now_us, passed)
    }

    fn uses_passed(&self, passed: PassedId) -> bool {
        self.ground.files.uses_passed(passed)
    }

    fn take_released_passed(&mut self) -> Vec<PassedId> {
        self.ground.files.take_released_passed()
    }

    fn list(&mut self, stream: StreamId, path: &[u8], from: Option<ListPlace>) -> FileHandle {
        let command = Lookup::List(0).command(FileId(0), path);
        self.ask(stream, &command, |streams, worker| {
            let Streams {
                ground,
                layers,
                now_us,
            } = streams;
            ground.list_directory(layers, *now_us, stream, worker, path, from)
        })
    }

    fn close_file(&mut self, file: FileHandle) {
        let Some((id, found)) = self.ground.files.by_handle(file) else {
            return;
        };
        let stream = found.stream;
        if let Some(close) = self.ground.files.let_go(id) {
            self.ground.send_close(close);
        }
        transport!(self.layers, stream, mut layer => layer.on_file_closed(self.ground, stream));
    }

    fn shutdown(&mut self, stream: StreamId) {
        transport!(self.layers, stream, mut layer => layer.shutdown(self.ground, stream));
    }

    fn splice(
        &mut self,
        first: StreamId,
        second: StreamId,
        limits: SpliceLimits,
    ) -> Result<(), SpliceError> {
        self.layers
            .tcp
            .splice(self.ground, self.now_us, [first, second], limits)
    }

    fn unsplice(&mut self, stream: StreamId) {
        self.layers.tcp.unsplice(self.ground, self.now_us, stream);
    }

    fn abort(&mut self, stream: StreamId) {
        let now_us = self.now_us;
        transport!(self.layers, stream, mut layer => layer.abort(self.ground, now_us, stream));
    }

    fn close(&mut self, stream: StreamId) {
        let now_us = self.now_us;
        transport!(self.layers, stream, mut layer => layer.close(self.ground, now_us, stream));
    }

    fn quic_stream(&self, stream: StreamId) -> Option<QuicStream> {
        self.layers.quic.quic_stream(stream)
    }

    fn open_unidirectional(&mut self, connection: QuicConnection) -> Option<StreamId> {
        self.layers.quic.open_unidirectional(connection)
    }

    fn peer_streams_max(&mut self, connection: QuicConnection) -> u64 {
        self.layers.quic.peer_streams_max(connection)
    }

    fn reset_stream(&mut self, stream: StreamId, code: u64) {
        self.layers.quic.reset_stream(self.ground, stream, code);
    }

    fn stop_sending(&mut self, stream: StreamId, code: u64) {
        self.layers.quic.stop_sending(self.ground, stream, code);
    }

    fn prioritize(&mut self, stream: StreamId, priority: i32) {
        self.layers.quic.prioritize(stream, priority);
    }

    fn close_quic(&mut self, connection: QuicConnection, code: u64, reason: &[u8]) {
        self.layers
            .quic
            .close_connection(self.now_us, connection, code, reason);
    }

    fn offloads(&self) -> Offloads {
        Offloads {
            setup: self.ground.config.setup_offload,
            teardown: self.ground.config.teardown_offload,
        }
    }

    fn set_option(&mut self, stream: StreamId, option: StreamOption) {
        if let (StreamOption::TeardownOffload(is_wanted), Some(handle)) =
            (option, self.handle(stream))
        {
            self.layers.tcp.set_teardown(handle, is_wanted);
        }
        let now = Instant::from_us(self.now_us);
        self.layers.tcp.act(stream, |entry| match option {
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
        transport!(self.layers, stream, layer => layer.congestion_window(stream))
    }

    fn unread(&self, stream: StreamId) -> usize {
        self.entry(stream).map_or(0, unread_bytes)
    }

    fn take_unread(&mut self, stream: StreamId) -> Vec<u8> {
        let Some(entry) = self.layers.tcp.connections.by_stream_mut(stream) else {
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
        let now_us = self.now_us;
        transport!(self.layers, stream, mut layer => layer.set_timer(now_us, stream, after));
    }

    fn set_idle(&mut self, stream: StreamId, is_idle: bool) {
        let since_us = is_idle.then_some(self.now_us);
        if let Some(handle) = self.handle(stream)
            && let Some(entry) = self.layers.tcp.connections.get_mut(handle)
        {
            entry.idle_since_us = since_us;
        }
    }

    fn set_max_pacing_rate(&mut self, stream: StreamId, bytes_per_second: Option<u64>) {
        transport!(self.layers, stream, mut layer => layer.bound_rate(stream, bytes_per_second));
    }

    fn set_notsent_lowat(&mut self, stream: StreamId, bytes: u64) {
        transport!(self.layers, stream, mut layer => layer.set_notsent_lowat(stream, bytes));
    }

    fn acknowledged(&self, stream: StreamId) -> u64 {
        transport!(self.layers, stream, layer => layer.acknowledged(stream))
    }

    fn unacknowledged(&self, stream: StreamId) -> u64 {
        transport!(self.layers, stream, layer => layer.unacknowledged(stream))
    }

    fn unsent(&self, stream: StreamId) -> u64 {
        transport!(self.layers, stream, layer => layer.unsent(stream))
    }

    fn usable_window(&self, stream: StreamId) -> u64 {
        self.entry(stream)
            .map_or(0, |entry| entry.tcp.usable_window_bytes())
    }

    fn waits_for_peer(&self, stream: StreamId) -> bool {
        transport!(self.layers, stream, layer => layer.waits_for_peer(stream))
    }

    fn retransmissions(&self, stream: StreamId) -> u32 {
        self.entry(stream)
            .map_or(0, |entry| entry.tcp.retransmissions())
    }

    fn now_us(&self) -> u64 {
        self.now_us
    }

    fn unix_time(&self) -> Duration {
        self.ground.unix_time
    }
}

/// Bytes received and not read; of TLS, records that are not opened count with their length.
fn unread_bytes(entry: &Entry) -> usize {
    let opened = entry.tls.as_ref();
    let opened = opened.map_or(0, |tls| tls.connection.readable_bytes());
    entry.tcp.unread_bytes() + opened
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
