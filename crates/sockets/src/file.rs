//! Files of the NIC stack, and ranges of files in a stream.
//!
//! A file is looked up once, for its metadata, and opened again for each connection that sends it,
//! at the NIC worker of that connection. Workers share the cached blocks of a version, so this
//! costs a message and no read. A connection whose worker finds another version is reset: no
//! response mixes two versions.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use host::PassedId;
use host::app::{FileHandle, FileMeta};
use rustix::io::Errno;
use socket_channel::{Flags, HandleId, SocketId};

use crate::application::{App, Context};
use crate::errno::number;
use crate::state::file::{Current, File, FileRange, Name, Shared};
use crate::state::socket::Kind;

impl App {
    /// Opens a file below the roots of the NIC stacks, for a handle (IO-TCP, Table 3:
    /// `offload_open`). The record reports the result.
    pub(crate) fn open_file(
        &mut self,
        cx: &mut Context<'_>,
        handle: HandleId,
        path: &[u8],
    ) -> Result<SocketId, Errno> {
        let slashes = path.iter().take_while(|byte| **byte == b'/').count();
        let path = &path[slashes..];
        if path.is_empty() {
            return Err(Errno::INVAL);
        }
        self.open_by(cx, handle, Name::Path(path.to_vec()))
    }

    /// Opens a file whose descriptor the application has passed.
    pub(crate) fn open_passed(
        &mut self,
        cx: &mut Context<'_>,
        handle: HandleId,
        file: u32,
    ) -> Result<SocketId, Errno> {
        let name = Name::Passed(self.passed.begin(file));
        self.open_by(cx, handle, name)
    }

    fn open_by(
        &mut self,
        cx: &mut Context<'_>,
        handle: HandleId,
        name: Name,
    ) -> Result<SocketId, Errno> {
        if !self.is_free(cx, handle) {
            return Err(Errno::BADF);
        }
        if self.files >= self.grant.files_max {
            return Err(Errno::MFILE);
        }
        let lookup = name.look_up(cx.io).ok_or(Errno::NFILE)?;
        let shared = Arc::new(Shared {
            name,
            found: OnceLock::new(),
        });
        let kind = Kind::File(File {
            shared,
            waiting: BTreeSet::new(),
            holders: BTreeSet::new(),
        });
        let made = self.insert(Flags::FILE, Some(handle), kind, cx.counters);
        let id = made.ok_or(Errno::NFILE)?;
        self.files += 1;
        cx.places.lookups.insert(lookup, (self.id, id));
        Ok(id)
    }

    /// Lets the broker close descriptors that are no longer used.
    pub(crate) fn release_passed(&mut self, cx: &mut Context<'_>) {
        for file in self.passed.take_released(cx.io) {
            cx.arrivals.release_file(self.id, file);
        }
    }

    /// Handles the end of the stack's use of a descriptor.
    pub(crate) fn on_passed_unused(&mut self, cx: &mut Context<'_>, passed: PassedId) {
        if let Some(file) = self.passed.on_unused(passed) {
            cx.arrivals.release_file(self.id, file);
        }
    }

    /// Handles the result of a file's lookup.
    pub(crate) fn on_looked_up(
        &mut self,
        cx: &mut Context<'_>,
        id: SocketId,
        found: Result<FileMeta, u16>,
    ) {
        let Some(socket) = self.socket(id) else {
            return;
        };
        let Kind::File(file) = &mut socket.kind else {
            return;
        };
        let found = found.map_err(|errno| Errno::from_raw_os_error(errno.into()));
        // The stack reports a lookup once.
        let _ = file.shared.found.set(found);
        let waiting = std::mem::take(&mut file.waiting);
        match found {
            Ok(meta) => {
                socket.record.set_file_meta(socket_channel::FileMeta {
                    size: meta.size,
                    mtime_ns: meta.mtime_ns,
                    ctime_ns: meta.ctime_ns,
                    inode: meta.inode,
                    device: meta.device,
                    is_weak: meta.is_weak,
                });
                socket.record.set(Flags::FILE_OPEN);
            }
            Err(errno) => socket.record.fail(number(errno), Flags::FAILED),
        }
        let is_closed = socket.handle.is_none();
        self.touch(id);
        for stream in waiting {
            self.pump(cx, stream);
        }
        if is_closed {
            self.remove_file(cx, id);
        }
    }

    /// Returns the range of a file that an application names; the stream then waits for the lookup.
    pub(crate) fn file_range(
        &mut self,
        stream: SocketId,
        id: SocketId,
        offset: u64,
        len: u64,
    ) -> Option<FileRange> {
        self.socket(stream)?.stream()?;
        let Kind::File(file) = &mut self.socket(id)?.kind else {
            return None;
        };
        if file.shared.found.get().is_none() {
            file.waiting.insert(stream);
        }
        Some(FileRange {
            file: Arc::clone(&file.shared),
            of: id,
            offset,
            len,
        })
    }

    /// Closes a file whose last descriptor is closed. Queued ranges are still sent.
    pub(crate) fn close_file(&mut self, cx: &mut Context<'_>, id: SocketId) {
        let Some(socket) = self.socket(id) else {
            return;
        };
        // A file stays until its lookup is answered: streams may wait for it.
        let is_answered = match &socket.kind {
            Kind::File(file) => file.shared.found.get().is_some(),
            Kind::Unconnected(_) | Kind::Listener(_) | Kind::Stream(_) => true,
        };
        if is_answered {
            self.remove_file(cx, id);
        }
    }

    /// Removes a file that no descriptor names any more: connections without a queued range close
    /// it at once, others after their last range.
    fn remove_file(&mut self, cx: &mut Context<'_>, id: SocketId) {
        let holders = match self.socket(id).map(|socket| &mut socket.kind) {
            Some(Kind::File(file)) => std::mem::take(&mut file.holders),
            _ => BTreeSet::new(),
        };
        debug_assert!(
            holders.iter().all(|holder| self.socket(*holder).is_some()),
            "a connection that is gone holds a file"
        );
        self.remove(id, cx.counters);
        for holder in holders {
            self.close_unnamed(cx, holder);
        }
    }

    /// Closes a connection's open file if all its ranges are queued and no descriptor names it.
    pub(crate) fn close_unnamed(&mut self, cx: &mut Context<'_>, id: SocketId) {
        let stream = self.stream(id);
        let idle = stream.filter(|stream| stream.marks.is_empty());
        let Some(of) = idle.and_then(|stream| stream.current.as_ref().map(|it| it.of)) else {
            return;
        };
        if self.socket(of).is_some() {
            return;
        }
        let stream = self.stream(id);
        if let Some(current) = stream.and_then(|stream| stream.current.take()) {
            cx.io.close_file(current.handle);
        }
    }

    /// Notes that a connection has opened a file in place of another.
    pub(crate) fn note_opening(&mut self, id: SocketId, before: Option<Current>) {
        let stream = self.stream(id);
        let now = stream.and_then(|stream| stream.current.as_ref().map(|it| it.of));
        self.note_closed(id, before);
        let file = now.and_then(|of| self.socket(of));
        if let Some(Kind::File(file)) = file.map(|socket| &mut socket.kind) {
            file.holders.insert(id);
        }
    }

    /// Notes that a connection has closed a file.
    pub(crate) fn note_closed(&mut self, id: SocketId, closed: Option<Current>) {
        let file = closed.and_then(|closed| self.socket(closed.of));
        if let Some(Kind::File(file)) = file.map(|socket| &mut socket.kind) {
            file.holders.remove(&id);
        }
    }

    /// Handles the opening of a stream's file at its NIC worker.
    pub(crate) fn on_file_opened(
        &mut self,
        cx: &mut Context<'_>,
        id: SocketId,
        handle: FileHandle,
        meta: &FileMeta,
    ) {
        let stream = self.stream(id);
        let current = stream.and_then(|stream| stream.current.as_mut());
        match current.filter(|current| current.handle == handle) {
            None => cx.io.close_file(handle),
            Some(current) => match current.on_opened(meta) {
                Ok(()) => self.pump(cx, id),
                Err(errno) => self.abort(cx, id, errno, Flags::default()),
            },
        }
    }

    /// Handles a failure to open it there.
    pub(crate) fn on_file_failed(&mut self, cx: &mut Context<'_>, id: SocketId, errno: u16) {
        let errno = Errno::from_raw_os_error(errno.into());
        self.abort(cx, id, errno, Flags::default());
    }
}
