//! The host's side of open files: names, metadata, and when a file may be closed.
//!
//! A file belongs to the stream that opened it, and to a NIC worker: the stream's own worker, or,
//! until the stream has an answer, one of another NIC stack that has the file. It is closed there
//! once the application has released the file and the peer has acknowledged every byte queued from
//! it: until then a retransmission may read it.
//!
//! Before a stream moves to another worker of its NIC stack, that worker opens its files, too: each
//! gets a [`Twin`] under the same id. The stream moves only if all are the same versions.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;

use contract::{Command, FileId, FileMeta, Growth, PassedId};
use slab::Slab;

use crate::app::{FileHandle, ListPlace, StreamId};
use crate::nics::nic_stacks::NicSet;
use crate::tables::sparsity::Sparsity;

/// An open file.
#[derive(Debug)]
pub(crate) struct File {
    /// Its number among all files, in the order in which they were opened.
    pub(crate) opened: u64,
    /// How often OPEN was repeated for want of descriptors.
    pub(crate) repeats: u8,
    /// The stream that opened it.
    pub(crate) stream: StreamId,
    /// The worker that has it open, or is to open it.
    pub(crate) worker: usize,
    /// Metadata, once OPEN has succeeded.
    pub(crate) meta: Option<FileMeta>,
    /// The NIC stack that reported `meta`.
    pub(crate) version_of: usize,
    pub(crate) state: State,
    /// NIC stacks that have been asked for the file.
    pub(crate) asked: NicSet,
    /// First error of an asked NIC stack; for a listing, an error that may hide entries takes
    /// precedence over one that means no entries. `EISDIR` always replaces it.
    pub(crate) errno: Option<u16>,
    /// Set for the listing of a directory, which continues at this place; the answer ends the file.
    pub(crate) listing: Option<Box<ListPlace>>,
    /// How it is opened.
    name: Name,
    /// Empty for a passed descriptor.
    pub(crate) path: Vec<u8>,
    held: bool,
    extents_queued: u32,
    twin: Option<Twin>,
}

/// The same file at another worker of the NIC stack, to which its stream is about to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Twin {
    worker: u16,
    /// OPEN is answered.
    is_open: bool,
}

/// State of a file at the worker to which its stream is about to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readiness {
    /// The stream can move.
    Ready,
    /// That worker can be asked for the file.
    Unasked,
    /// An answer is pending, from this worker or another one.
    Awaited,
}

/// Answer to an OPEN at the worker to which a stream is about to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TwinOpened {
    /// The worker has the same version open.
    Same,
    /// The worker has another version, to be closed, or none.
    Other(Option<MayClose>),
    /// The file is no longer needed, and may be closed.
    LetGo(Option<MayClose>),
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    /// By its path; [`Growth`] permits or forbids that it becomes longer while open.
    Path(Growth),
    /// By a descriptor that the NIC stack was passed.
    Passed(PassedId),
}

impl Name {
    fn growth(self) -> Growth {
        match self {
            Name::Path(growth) => growth,
            Name::Passed(_) => Growth::Forbidden,
        }
    }
}

/// A request to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// OPEN or OPENPASSED.
    Open(Name),
    /// LIST, from this place on.
    List(u64),
}

impl Lookup {
    pub(crate) fn command(self, file: FileId, path: &[u8]) -> Command<'_> {
        match self {
            Lookup::Open(Name::Path(growth)) => Command::Open { file, growth, path },
            Lookup::Open(Name::Passed(passed)) => Command::OpenPassed { file, passed },
            Lookup::List(from) => Command::List { file, from, path },
        }
    }
}

/// State of a file at its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// No OPEN was sent yet: the NIC stack is away.
    Waiting,
    /// OPEN is not answered.
    Opening,
    /// It is open, and the stream has no answer yet.
    Found,
    /// It is open, and the stream has the answer.
    Open,
    /// Like `Open`, but OPEN was repeated, for a worker that has restarted or has taken the stream
    /// over, and is unanswered.
    Reopening,
    /// The stream has the answer, and the file is open nowhere.
    Gone,
}

impl File {
    /// Distinguishes the file from earlier ones with the same id.
    fn generation(&self) -> u32 {
        self.opened as u32
    }

    /// True if the file was open, and its repeated OPEN is unanswered.
    pub(crate) fn is_reopening(&self) -> bool {
        self.state == State::Reopening
    }

    /// True if bytes of the file may still have to be sent.
    pub(crate) fn is_needed(&self) -> bool {
        self.held || self.extents_queued > 0
    }

    /// True if the answer of NIC stack `nic` is the version that the stream knows.
    fn is_same(&self, nic: usize, meta: Option<&FileMeta>) -> bool {
        match (&self.meta, meta) {
            (Some(old), Some(new)) if self.version_of == nic => match self.name {
                Name::Path(Growth::Forbidden) => old == new,
                Name::Path(Growth::Allowed) => has_grown(old, new),
                Name::Passed(_) => is_unchanged(old, new),
            },
            (Some(old), Some(new)) => is_copy(old, new),
            _ => false,
        }
    }

    /// Returns the request for the file's worker.
    pub(crate) fn lookup(&self) -> Lookup {
        match &self.listing {
            Some(place) => Lookup::List(place.from),
            None => Lookup::Open(self.name),
        }
    }

    /// Returns the NIC stack that has begun a listing; no other can continue it.
    pub(crate) fn bound_to(&self) -> Option<usize> {
        let place = self.listing.as_ref()?;
        (place.from != 0).then_some(place.nic)
    }

    /// True if this NIC stack's part of a listing is complete.
    fn has_listed(&self, nic: usize) -> bool {
        let listing = self.listing.as_ref();
        listing.is_some_and(|place| place.told.contains(nic))
    }

    /// True if the stream has the answer, so that only this version will do.
    pub(crate) fn is_answered(&self) -> bool {
        matches!(self.state, State::Open | State::Reopening | State::Gone)
    }
}

/// All files of a shard.
#[derive(Debug, Default)]
pub(crate) struct FileTable {
    files: Slab<File>,
    /// Files opened so far.
    opened: u64,
    sparsity: Sparsity,
    /// Memory for paths, of files that were closed.
    spare: Vec<Vec<u8>>,
    /// Number of open files per passed descriptor.
    passed: HashMap<PassedId, u32>,
    /// Passed descriptors whose last file was closed.
    released_passed: Vec<PassedId>,
}

/// CLOS must be sent for this file to these workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MayClose {
    /// A worker that has the file open, ...
    pub(crate) worker: usize,
    /// ... and another one that has.
    pub(crate) twin: Option<usize>,
    /// The file.
    pub(crate) file: FileId,
}

impl MayClose {
    /// At this worker alone.
    pub(crate) fn at(worker: usize, file: FileId) -> MayClose {
        MayClose {
            worker,
            twin: None,
            file,
        }
    }
}

/// A file that must be opened again.
#[derive(Debug)]
pub(crate) struct Reopening {
    pub(crate) file: FileId,
    pub(crate) path: Vec<u8>,
    pub(crate) lookup: Lookup,
    /// The stream, if it may have sent bytes of the file: it waits until the version is known to be
    /// the same.
    pub(crate) waits: Option<StreamId>,
}

/// An answered listing.
#[derive(Debug)]
pub(crate) struct Listed {
    /// The directory's metadata in the previous part.
    pub(crate) version: Option<FileMeta>,
    /// NIC stacks that have been asked so far.
    pub(crate) asked: NicSet,
}

/// Outcome of a repeated OPEN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reopened {
    /// The file is the same version as before.
    Same,
    /// The file is no longer needed; if open, it may be closed.
    LetGo(Option<MayClose>),
    /// The NIC stack has another version, to be closed, or none: responses from the file cannot
    /// continue there.
    Changed(Option<MayClose>),
}

impl FileTable {
    /// Upper limit on open files, above any configured one: ids of a contract have 32 bits.
    pub(crate) const FILES_MAX: usize = 1 << 24;

    /// Number of paths whose memory is kept, and their largest capacity, in bytes.
    const SPARE_MAX: usize = 1 << 10;
    const SPARE_BYTES_MAX: usize = 256;

    /// Returns the number of files that are open at a worker, or being opened.
    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }

    /// Takes an id for a file about to be opened by a worker of this NIC stack; `None` if there are
    /// too many files.
    pub(crate) fn open(
        &mut self,
        stream: StreamId,
        nic: usize,
        worker: usize,
        name: Name,
        path: &[u8],
    ) -> Option<(FileId, FileHandle)> {
        if self.files.len() >= FileTable::FILES_MAX {
            return None;
        }
        self.opened += 1;
        let mut path_kept = self.spare.pop().unwrap_or_default();
        path_kept.extend_from_slice(path);
        if let Name::Passed(passed) = name {
            *self.passed.entry(passed).or_default() += 1;
        }
        let index = self.files.insert(File {
            opened: self.opened,
            repeats: 0,
            stream,
            worker,
            meta: None,
            version_of: nic,
            state: State::Opening,
            asked: NicSet::of(nic),
            errno: None,
            listing: None,
            name,
            path: path_kept,
            held: true,
            extents_queued: 0,
            twin: None,
        });
        Some((FileId(index as u32), handle(index, self.opened as u32)))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &File> {
        self.files.iter().map(|(_, file)| file)
    }

    /// Returns the file behind an application's handle.
    pub(crate) fn by_handle(&self, file: FileHandle) -> Option<(FileId, &File)> {
        let index = file.0 as u32;
        let found = self.files.get(index as usize)?;
        (found.generation() == (file.0 >> 32) as u32 && found.held)
            .then_some((FileId(index), found))
    }

    /// Removes from a stream's files those that were closed, or whose id another stream has by now.
    pub(crate) fn retain_own(&self, stream: StreamId, files: &mut Vec<FileId>) {
        files.retain(|file| self.by_id(*file).is_some_and(|file| file.stream == stream));
    }

    /// Returns the file behind a contract's id.
    pub(crate) fn by_id(&self, file: FileId) -> Option<&File> {
        self.files.get(file.0 as usize)
    }

    /// Returns the file behind a contract's id, mutably.
    pub(crate) fn by_id_mut(&mut self, file: FileId) -> Option<&mut File> {
        self.files.get_mut(file.0 as usize)
    }

    /// Handles a successful OPEN at `worker`, of NIC stack `nic`. Returns the stream to notify; if
    /// the file was released meanwhile, an error with the file to close; `None` if no OPEN was
    /// pending.
    pub(crate) fn opened(
        &mut self,
        nic: usize,
        worker: usize,
        file: FileId,
        meta: FileMeta,
    ) -> Option<Result<StreamId, MayClose>> {
        let found = self.opening(worker, file)?;
        if found.listing.is_some() {
            return None;
        }
        found.meta = Some(meta);
        found.version_of = nic;
        found.state = State::Found;
        let stream = found.stream;
        Some(match self.may_close(file) {
            Some(close) => Err(close),
            None => Ok(stream),
        })
    }

    /// Marks the file as known to its stream. Returns the event's handle and metadata.
    pub(crate) fn tell(&mut self, file: FileId) -> Option<(FileHandle, FileMeta)> {
        let found = self.files.get_mut(file.0 as usize)?;
        found.state = State::Open;
        Some((handle(file.0 as usize, found.generation()), found.meta?))
    }

    /// Returns the file if its OPEN at `worker` is unanswered.
    pub(crate) fn opening(&mut self, worker: usize, file: FileId) -> Option<&mut File> {
        let found = self.files.get_mut(file.0 as usize)?;
        (found.worker == worker && found.state == State::Opening).then_some(found)
    }

    /// Handles a successful LIST at `worker`: frees the id. Returns the listing, and the stream to
    /// notify unless it has released the handle; `None` if no LIST was pending.
    pub(crate) fn listed(
        &mut self,
        worker: usize,
        file: FileId,
    ) -> Option<(Listed, Option<(StreamId, FileHandle)>)> {
        let found = self.opening(worker, file)?;
        let listed = Listed {
            version: found.listing.as_ref()?.version,
            asked: found.asked,
        };
        Some((listed, self.open_failed(file)))
    }

    /// Handles a failed OPEN: frees the id. Returns the stream to notify, unless it has released
    /// the handle.
    pub(crate) fn open_failed(&mut self, file: FileId) -> Option<(StreamId, FileHandle)> {
        let found = self.forget(file)?;
        found
            .held
            .then(|| (found.stream, handle(file.0 as usize, found.generation())))
    }

    /// Returns the files of a worker of NIC stack `nic` that has restarted: it must open all again.
    pub(crate) fn reopen(&mut self, nic: usize, worker: usize) -> Vec<Reopening> {
        let of_worker = self
            .files
            .iter_mut()
            .filter(|(_, file)| file.worker == worker);
        of_worker
            .map(|(index, file)| {
                file.state = if file.is_answered() {
                    State::Reopening
                } else {
                    State::Opening
                };
                file.asked.insert(nic);
                Reopening {
                    file: FileId(index as u32),
                    path: file.path.clone(),
                    lookup: file.lookup(),
                    waits: file.is_answered().then_some(file.stream),
                }
            })
            .collect()
    }

    /// The workers of a NIC stack are gone, and with them their open files. Streams without an
    /// answer wait.
    pub(crate) fn lose(&mut self, nic: usize, workers: &Range<usize>) {
        // Files that are not needed only waited for an answer, which will not come.
        let is_lost =
            |file: &File| workers.contains(&file.worker) && file.is_answered() && !file.is_needed();
        let files = self.files.iter();
        let lost = files.filter(|(_, file)| is_lost(file));
        let lost: Vec<FileId> = lost.map(|(index, _)| FileId(index as u32)).collect();
        for file in lost {
            self.forget(file);
        }
        for (_, file) in &mut self.files {
            file.twin = file
                .twin
                .filter(|twin| !workers.contains(&twin.worker.into()));
            if !file.is_answered() && !file.has_listed(nic) {
                // It may have the file when it is back.
                file.asked.remove(nic);
            }
            if workers.contains(&file.worker) {
                file.state = if file.is_answered() {
                    State::Gone
                } else {
                    State::Waiting
                };
            }
        }
    }

    /// Returns the files for which no OPEN was sent.
    pub(crate) fn waiting(&self) -> Vec<FileId> {
        let waiting = self
            .files
            .iter()
            .filter(|(_, file)| file.state == State::Waiting);
        waiting.map(|(index, _)| FileId(index as u32)).collect()
    }

    /// Handles the answer to a repeated OPEN at `worker`, of NIC stack `nic`: metadata, or `None`
    /// for a failure. Returns the waiting stream and the outcome; `None` if the OPEN was not
    /// repeated.
    pub(crate) fn reopened(
        &mut self,
        nic: usize,
        worker: usize,
        file: FileId,
        meta: Option<FileMeta>,
    ) -> Option<(StreamId, Reopened)> {
        let found = self.files.get_mut(file.0 as usize)?;
        if found.worker != worker || found.state != State::Reopening {
            return None;
        }
        let stream = found.stream;
        let close = meta.map(|_| MayClose::at(worker, file));
        if !found.is_needed() {
            found.state = if meta.is_some() {
                State::Open
            } else {
                State::Gone
            };
            return Some((stream, Reopened::LetGo(self.may_close(file))));
        }
        if !found.is_same(nic, meta.as_ref()) {
            found.state = State::Gone;
            return Some((stream, Reopened::Changed(close)));
        }
        found.state = State::Open;
        // If the file has grown since, the response keeps the size at the first open.
        if found.version_of != nic || found.name.growth() == Growth::Forbidden {
            found.meta = meta;
        }
        found.version_of = nic;
        Some((stream, Reopened::Same))
    }

    /// An extent of the file was queued.
    pub(crate) fn extent_queued(&mut self, file: FileId) {
        if let Some(found) = self.files.get_mut(file.0 as usize) {
            found.extents_queued += 1;
        }
    }

    /// An extent of the file was acknowledged, or will never be sent.
    pub(crate) fn extent_released(&mut self, file: FileId) -> Option<MayClose> {
        let found = self.files.get_mut(file.0 as usize)?;
        found.extents_queued = found.extents_queued.saturating_sub(1);
        self.may_close(file)
    }

    /// The application has let go of the file.
    pub(crate) fn let_go(&mut self, file: FileId) -> Option<MayClose> {
        self.files.get_mut(file.0 as usize)?.held = false;
        self.may_close(file)
    }

    /// The stream is over: nothing of the file will be sent again.
    pub(crate) fn stream_over(&mut self, file: FileId) -> Option<MayClose> {
        let found = self.files.get_mut(file.0 as usize)?;
        found.held = false;
        found.extents_queued = 0;
        self.may_close(file)
    }

    /// Returns the file's state at worker `to` of its NIC stack.
    pub(crate) fn readiness(&self, file: FileId, to: usize) -> Readiness {
        let Some(found) = self.files.get(file.0 as usize) else {
            return Readiness::Ready;
        };
        match (found.state, found.twin) {
            (State::Open, None) => Readiness::Unasked,
            (State::Open, Some(twin)) if twin.is_open && usize::from(twin.worker) == to => {
                Readiness::Ready
            }
            _ => Readiness::Awaited,
        }
    }

    /// Worker `to` of its NIC stack is asked for the file, too.
    pub(crate) fn open_twin(&mut self, file: FileId, to: usize) {
        if let (Some(found), Ok(worker)) = (self.files.get_mut(file.0 as usize), to.try_into()) {
            found.twin = Some(Twin {
                worker,
                is_open: false,
            });
        }
    }

    /// Handles the answer to that OPEN at `worker`, of NIC stack `nic`: metadata, or `None` for a
    /// failure. Returns the stream and the outcome; `None` if no such OPEN was pending.
    pub(crate) fn twin_opened(
        &mut self,
        nic: usize,
        worker: usize,
        file: FileId,
        meta: Option<&FileMeta>,
    ) -> Option<(StreamId, TwinOpened)> {
        let found = self.files.get_mut(file.0 as usize)?;
        let twin = found.twin.as_mut()?;
        if usize::from(twin.worker) != worker || twin.is_open {
            return None;
        }
        twin.is_open = true;
        let stream = found.stream;
        let is_same = found.is_same(nic, meta);
        if meta.is_none() {
            found.twin = None;
        }
        if !found.is_needed() {
            return Some((stream, TwinOpened::LetGo(self.may_close(file))));
        }
        if is_same {
            return Some((stream, TwinOpened::Same));
        }
        Some((stream, TwinOpened::Other(self.drop_twin(file))))
    }

    /// The stream does not move. A twin whose OPEN is unanswered stays until the answer.
    pub(crate) fn drop_twin(&mut self, file: FileId) -> Option<MayClose> {
        let found = self.files.get_mut(file.0 as usize)?;
        let twin = found.twin.take_if(|twin| twin.is_open)?;
        Some(MayClose::at(twin.worker.into(), file))
    }

    /// The stream has moved to the other worker: the file must be closed at the previous one.
    pub(crate) fn take_over(&mut self, file: FileId) -> Option<MayClose> {
        let found = self.files.get_mut(file.0 as usize)?;
        let twin = found.twin.take_if(|twin| twin.is_open)?;
        let before = std::mem::replace(&mut found.worker, twin.worker.into());
        Some(MayClose::at(before, file))
    }

    /// A worker restarts and has lost its twins. Returns the files whose close waited for its
    /// answers.
    pub(crate) fn lose_twins(&mut self, worker: usize) -> Vec<MayClose> {
        let mut lost = Vec::new();
        for (index, file) in &mut self.files {
            let is_there = |twin: &mut Twin| usize::from(twin.worker) == worker;
            if file.twin.take_if(is_there).is_some() {
                lost.push(FileId(index as u32));
            }
        }
        lost.into_iter()
            .filter_map(|file| self.may_close(file))
            .collect()
    }

    /// Frees the id, and keeps the path's memory for reuse; the returned file has an empty path.
    fn forget(&mut self, file: FileId) -> Option<File> {
        let mut found = self.files.try_remove(file.0 as usize)?;
        let (len, places) = (self.files.len(), self.files.capacity());
        if self.sparsity.on_removed(len, places) {
            self.files.shrink_to_fit();
        }
        if let Name::Passed(passed) = found.name {
            self.release_passed(passed);
        }
        let mut path = std::mem::take(&mut found.path);
        if self.spare.len() < FileTable::SPARE_MAX && path.capacity() <= FileTable::SPARE_BYTES_MAX
        {
            path.clear();
            self.spare.push(path);
        }
        Some(found)
    }

    fn release_passed(&mut self, passed: PassedId) {
        if let Entry::Occupied(mut files) = self.passed.entry(passed) {
            *files.get_mut() -= 1;
            if *files.get() == 0 {
                files.remove();
                self.released_passed.push(passed);
            }
        }
    }

    /// True if a file is opened by this descriptor.
    pub(crate) fn uses_passed(&self, passed: PassedId) -> bool {
        self.passed.contains_key(&passed)
    }

    /// Returns the descriptors whose last file was closed since the last call.
    pub(crate) fn take_released_passed(&mut self) -> Vec<PassedId> {
        std::mem::take(&mut self.released_passed)
    }

    fn may_close(&mut self, file: FileId) -> Option<MayClose> {
        let found = &self.files[file.0 as usize];
        // While OPEN is unanswered the id stays taken, so that its answer cannot meet another file.
        let is_unanswered = matches!(found.state, State::Opening | State::Reopening)
            || found.twin.is_some_and(|twin| !twin.is_open);
        if found.is_needed() || is_unanswered {
            return None;
        }
        let is_open = matches!(found.state, State::Found | State::Open);
        let worker = is_open.then_some(found.worker);
        let twin = found.twin.map(|twin| usize::from(twin.worker));
        self.forget(file);
        match (worker, twin) {
            (Some(worker), twin) => Some(MayClose { worker, twin, file }),
            (None, Some(twin)) => Some(MayClose::at(twin, file)),
            (None, None) => None,
        }
    }
}

/// True if a file of another NIC stack is the same version, provided that the roots are copies:
/// inode, device and change time are particular to each machine.
fn is_copy(one: &FileMeta, other: &FileMeta) -> bool {
    (one.size, one.mtime_ns) == (other.size, other.mtime_ns)
}

/// True if the file behind a descriptor is unchanged. Its change time is ignored: it also changes
/// as the open file gains and loses names.
fn is_unchanged(old: &FileMeta, new: &FileMeta) -> bool {
    let ctime_ns = old.ctime_ns;
    *old == FileMeta { ctime_ns, ..*new }
}

/// True if all bytes of `old` are still in `new`, provided that the file's writer only appends.
fn has_grown(old: &FileMeta, new: &FileMeta) -> bool {
    (old.device, old.inode) == (new.device, new.inode) && new.size >= old.size
}

fn handle(index: usize, generation: u32) -> FileHandle {
    FileHandle(u64::from(generation) << 32 | index as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: StreamId = StreamId(9);

    const NIC: usize = 0;

    /// A version of a file.
    const OLD: FileMeta = FileMeta {
        size: 5,
        inode: 1,
        device: 1,
        mtime_ns: 77,
        ctime_ns: 78,
        is_weak: false,
    };

    fn open(files: &mut FileTable, path: &[u8]) -> (FileId, FileHandle) {
        files
            .open(STREAM, NIC, 0, Name::Path(Growth::Forbidden), path)
            .unwrap()
    }

    #[test]
    fn a_file_is_closed_when_let_go_and_acknowledged() {
        let mut files = FileTable::default();
        let (id, handle) = open(&mut files, b"a");
        let meta = FileMeta::default();
        assert_eq!(files.opened(NIC, 0, id, meta), Some(Ok(STREAM)));
        assert_eq!(files.tell(id), Some((handle, meta)));
        files.extent_queued(id);
        assert_eq!(files.let_go(id), None);
        assert!(
            files.by_handle(handle).is_none(),
            "the application has let go"
        );
        assert_eq!(files.extent_released(id), Some(MayClose::at(0, id)));
        assert!(files.by_id(id).is_none());
    }

    #[test]
    fn an_id_is_not_reused_while_its_open_is_unanswered() {
        let mut files = FileTable::default();
        let (first, _) = open(&mut files, b"a");
        assert_eq!(files.stream_over(first), None);
        let (second, _) = open(&mut files, b"b");
        assert_ne!(first, second);
        let close = MayClose::at(0, first);
        assert_eq!(
            files.opened(NIC, 0, first, FileMeta::default()),
            Some(Err(close))
        );
        assert_eq!(open(&mut files, b"c").0, first);
    }

    #[test]
    fn answers_that_were_not_awaited_are_ignored() {
        let mut files = FileTable::default();
        let (id, _) = open(&mut files, b"a");
        assert_eq!(
            files.opened(NIC, 1, id, FileMeta::default()),
            None,
            "another worker"
        );
        assert!(files.opening(0, FileId(77)).is_none(), "unknown id");
        files.opened(NIC, 0, id, FileMeta::default());
        assert_eq!(files.opened(NIC, 0, id, FileMeta::default()), None, "twice");
        assert!(files.opening(0, id).is_none(), "failed after success");
    }

    #[test]
    fn a_stale_handle_does_not_reach_the_next_file() {
        let mut files = FileTable::default();
        let (id, stale) = open(&mut files, b"a");
        files.open_failed(id);
        let (again, fresh) = open(&mut files, b"b");
        assert_eq!(id, again);
        assert!(files.by_handle(stale).is_none());
        assert!(files.by_handle(fresh).is_some());
    }

    #[test]
    fn what_is_not_needed_does_not_wait_for_a_nic_stack_that_is_gone() {
        let mut files = FileTable::default();
        let (id, _) = open(&mut files, b"a");
        files.opened(NIC, 0, id, FileMeta::default());
        files.tell(id);
        files.lose(NIC, &(0..1));
        files.by_id_mut(id).unwrap().worker = 1;
        files.reopen(1, 1);
        // Its OPEN is unanswered, and the answer does not come.
        assert_eq!(files.stream_over(id), None);
        assert_eq!(files.len(), 1);
        files.lose(1, &(1..2));
        assert_eq!(files.len(), 0);
    }

    /// Outcome of another NIC stack's answer for a file that had this metadata.
    fn answered_by_another(old: FileMeta, new: Option<FileMeta>) -> Reopened {
        answered_by(1, Name::Path(Growth::Forbidden), old, new)
    }

    /// Outcome of an answer by worker 1 of this NIC stack for a file that [`NIC`] had.
    fn answered_by(nic: usize, name: Name, old: FileMeta, new: Option<FileMeta>) -> Reopened {
        let mut files = FileTable::default();
        let (id, _) = files.open(STREAM, NIC, 0, name, b"a").unwrap();
        files.opened(NIC, 0, id, old);
        files.tell(id);
        files.lose(NIC, &(0..1));
        let file = files.by_id_mut(id).unwrap();
        assert_eq!(file.state, State::Gone);
        file.worker = 1;
        assert_eq!(files.reopen(nic, 1).len(), 1);
        files.reopened(nic, 1, id, new).unwrap().1
    }

    #[test]
    fn a_copy_has_the_same_size_and_time_of_modification() {
        let old = OLD;
        let copy = FileMeta {
            inode: 2,
            device: 3,
            ctime_ns: 4,
            ..old
        };
        assert_eq!(answered_by_another(old, Some(copy)), Reopened::Same);
        let close = MayClose::at(1, FileId(0));
        for other in [
            FileMeta { size: 6, ..copy },
            FileMeta {
                mtime_ns: 79,
                ..copy
            },
        ] {
            let outcome = answered_by_another(old, Some(other));
            assert_eq!(outcome, Reopened::Changed(Some(close)));
        }
        assert_eq!(answered_by_another(old, None), Reopened::Changed(None));
    }

    #[test]
    fn a_descriptor_means_the_same_file_though_that_has_lost_its_name() {
        let close = MayClose::at(1, FileId(0));
        let unlinked = FileMeta {
            ctime_ns: 99,
            ..OLD
        };
        let written = FileMeta {
            mtime_ns: 99,
            ..OLD
        };
        let changed = Reopened::Changed(Some(close));
        for (new, outcome) in [
            (OLD, Reopened::Same),
            (unlinked, Reopened::Same),
            (written, changed),
        ] {
            let name = Name::Passed(PassedId(7));
            assert_eq!(answered_by(NIC, name, OLD, Some(new)), outcome);
        }
    }

    #[test]
    fn a_file_that_may_grow_is_the_same_while_it_loses_nothing() {
        let old = OLD;
        let grown = FileMeta {
            size: 6,
            mtime_ns: 79,
            ctime_ns: 79,
            ..old
        };
        let replaced = FileMeta { inode: 2, ..grown };
        let cut = FileMeta { size: 4, ..grown };
        let close = MayClose::at(1, FileId(0));
        let changed = Reopened::Changed(Some(close));
        for (nic, new, outcome) in [
            (NIC, grown, Reopened::Same),
            (NIC, replaced, changed),
            (NIC, cut, changed),
            // Inodes of a copy differ, so that a longer one may be another file.
            (1, replaced, changed),
            (1, FileMeta { inode: 2, ..old }, Reopened::Same),
            (1, cut, changed),
        ] {
            let name = Name::Path(Growth::Allowed);
            assert_eq!(answered_by(nic, name, old, Some(new)), outcome);
        }
        let outcome = answered_by(NIC, Name::Path(Growth::Forbidden), old, Some(grown));
        assert_eq!(outcome, changed);
        // From one NIC stack to another, then to a new process of the latter, where the copy has
        // grown meanwhile.
        let copy = FileMeta { inode: 9, ..old };
        let longer = FileMeta { size: 7, ..copy };
        let mut files = FileTable::default();
        let (id, _) = files
            .open(STREAM, NIC, 0, Name::Path(Growth::Allowed), b"a")
            .unwrap();
        files.opened(NIC, 0, id, old);
        files.tell(id);
        for (nic, worker, found) in [(1, 1, copy), (1, 1, longer)] {
            let before = files.by_id(id).unwrap().worker;
            files.lose(nic, &(before..before + 1));
            files.by_id_mut(id).unwrap().worker = worker;
            assert_eq!(files.reopen(nic, worker).len(), 1);
            let (_, outcome) = files.reopened(nic, worker, id, Some(found)).unwrap();
            assert_eq!(outcome, Reopened::Same);
        }
    }
}
