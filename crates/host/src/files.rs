//! The host's side of open files: names, metadata, and when a file may be closed.
//!
//! A file belongs to the stream that opened it, and to the NIC worker that serves this stream. It is
//! closed below when the application has let go of it and every byte queued from it has been
//! acknowledged: until then a retransmission may ask for it.

use contract::{FileId, FileMeta};
use slab::Slab;

use crate::app::{FileHandle, StreamId};

/// What is known of a file.
#[derive(Debug)]
pub(crate) struct File {
    /// Who opened it.
    pub(crate) stream: StreamId,
    /// The worker that has it open.
    pub(crate) worker: usize,
    /// Metadata, once OPEN has succeeded.
    pub(crate) meta: Option<FileMeta>,
    /// For the log.
    pub(crate) path: Box<[u8]>,
    generation: u32,
    held: bool,
    extents_queued: u32,
    /// OPEN was repeated, for a NIC worker that has started anew, and is not answered.
    reopening: bool,
}

/// All files of a shard.
#[derive(Debug, Default)]
pub(crate) struct FileTable {
    files: Slab<File>,
    generation: u32,
}

/// CLOS this file at this worker; its id is free again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MayClose {
    /// The worker.
    pub(crate) worker: usize,
    /// The file.
    pub(crate) file: FileId,
}

/// A file that must be opened again.
#[derive(Debug)]
pub(crate) struct Reopening {
    pub(crate) file: FileId,
    pub(crate) path: Box<[u8]>,
    /// The stream that may have sent some of it, and must not go on before it is known to be the same version.
    pub(crate) waits: Option<StreamId>,
}

/// What the answer to a repeated OPEN says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reopened {
    /// The file is the same version as before.
    Same,
    /// Nobody needs it any more; if it is open, it may be closed.
    LetGo(Option<MayClose>),
    /// What is there is another version, or nothing: what is sent of it cannot go on.
    Changed,
}

impl FileTable {
    /// Most files open at once; the ids of a contract are 32 bits, and memory is bounded.
    pub(crate) const FILES_MAX: usize = 1 << 16;

    /// Files that are open below, or being opened.
    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }

    /// Takes an id for a file about to be opened; `None` if there are too many.
    pub(crate) fn open(
        &mut self,
        stream: StreamId,
        worker: usize,
        path: &[u8],
    ) -> Option<(FileId, FileHandle)> {
        if self.files.len() >= FileTable::FILES_MAX {
            return None;
        }
        self.generation = self.generation.wrapping_add(1);
        let generation = self.generation;
        let index = self.files.insert(File {
            stream,
            worker,
            meta: None,
            path: path.into(),
            generation,
            held: true,
            extents_queued: 0,
            reopening: false,
        });
        Some((FileId(index as u32), handle(index, generation)))
    }

    /// The open file behind an application's handle.
    pub(crate) fn by_handle(&self, file: FileHandle) -> Option<(FileId, &File)> {
        let index = file.0 as u32;
        let found = self.files.get(index as usize)?;
        (found.generation == (file.0 >> 32) as u32 && found.held).then_some((FileId(index), found))
    }

    /// The file behind a contract's id.
    pub(crate) fn by_id(&self, file: FileId) -> Option<&File> {
        self.files.get(file.0 as usize)
    }

    /// OPEN has succeeded at `worker`. Returns the stream to tell, unless the file was let go meanwhile
    /// (then it may be closed) or nobody asked.
    pub(crate) fn opened(
        &mut self,
        worker: usize,
        file: FileId,
        meta: FileMeta,
    ) -> Option<Result<(StreamId, FileHandle), MayClose>> {
        let found = self.files.get_mut(file.0 as usize)?;
        if found.worker != worker || found.meta.is_some() {
            return None;
        }
        found.meta = Some(meta);
        let told = (found.stream, handle(file.0 as usize, found.generation));
        Some(match self.may_close(file) {
            Some(close) => Err(close),
            None => Ok(told),
        })
    }

    /// OPEN has failed at `worker`: the id is free. Returns the stream to tell, if it still cares.
    pub(crate) fn open_failed(
        &mut self,
        worker: usize,
        file: FileId,
    ) -> Option<(StreamId, FileHandle)> {
        let found = self.files.get(file.0 as usize)?;
        if found.worker != worker || found.meta.is_some() {
            return None;
        }
        let found = self.files.remove(file.0 as usize);
        found
            .held
            .then(|| (found.stream, handle(file.0 as usize, found.generation)))
    }

    /// The files of a worker that has started anew, all of which it must open again.
    pub(crate) fn reopen(&mut self, worker: usize) -> Vec<Reopening> {
        let of_worker = self
            .files
            .iter_mut()
            .filter(|(_, file)| file.worker == worker);
        of_worker
            .map(|(index, file)| {
                file.reopening = file.meta.is_some();
                Reopening {
                    file: FileId(index as u32),
                    path: file.path.clone(),
                    waits: file.reopening.then_some(file.stream),
                }
            })
            .collect()
    }

    /// A repeated OPEN has been answered at `worker`: with this metadata, or with a failure. Returns the stream that
    /// waits for the answer, and what the answer says; `None` if the OPEN was not repeated.
    pub(crate) fn reopened(
        &mut self,
        worker: usize,
        file: FileId,
        meta: Option<FileMeta>,
    ) -> Option<(StreamId, Reopened)> {
        let found = self.files.get_mut(file.0 as usize)?;
        if found.worker != worker || !found.reopening {
            return None;
        }
        found.reopening = false;
        let same = found.meta == meta;
        let needed = found.held || found.extents_queued > 0;
        let stream = found.stream;
        if meta.is_none() {
            // The worker has forgotten the id.
            self.files.remove(file.0 as usize);
        }
        let outcome = match (needed, same) {
            (true, false) => Reopened::Changed,
            (true, true) => Reopened::Same,
            (false, _) => Reopened::LetGo(meta.and_then(|_| self.may_close(file))),
        };
        Some((stream, outcome))
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

    fn may_close(&mut self, file: FileId) -> Option<MayClose> {
        let found = &self.files[file.0 as usize];
        // While OPEN is unanswered the id stays taken, so that its answer cannot meet another file.
        let unanswered = found.meta.is_none() || found.reopening;
        if found.held || found.extents_queued > 0 || unanswered {
            return None;
        }
        let worker = found.worker;
        self.files.remove(file.0 as usize);
        Some(MayClose { worker, file })
    }
}

fn handle(index: usize, generation: u32) -> FileHandle {
    FileHandle(u64::from(generation) << 32 | index as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: StreamId = StreamId(9);

    #[test]
    fn a_file_is_closed_when_let_go_and_acknowledged() {
        let mut files = FileTable::default();
        let (id, handle) = files.open(STREAM, 0, b"a").unwrap();
        assert_eq!(
            files.opened(0, id, FileMeta::default()),
            Some(Ok((STREAM, handle)))
        );
        files.extent_queued(id);
        assert_eq!(files.let_go(id), None);
        assert!(
            files.by_handle(handle).is_none(),
            "the application has let go"
        );
        assert_eq!(
            files.extent_released(id),
            Some(MayClose {
                worker: 0,
                file: id
            })
        );
        assert!(files.by_id(id).is_none());
    }

    #[test]
    fn an_id_is_not_reused_while_its_open_is_unanswered() {
        let mut files = FileTable::default();
        let (first, _) = files.open(STREAM, 0, b"a").unwrap();
        assert_eq!(files.stream_over(first), None);
        let (second, _) = files.open(STREAM, 0, b"b").unwrap();
        assert_ne!(first, second);
        let close = MayClose {
            worker: 0,
            file: first,
        };
        assert_eq!(
            files.opened(0, first, FileMeta::default()),
            Some(Err(close))
        );
        assert_eq!(files.open(STREAM, 0, b"c").unwrap().0, first);
    }

    #[test]
    fn answers_that_nobody_asked_for_are_ignored() {
        let mut files = FileTable::default();
        let (id, _) = files.open(STREAM, 0, b"a").unwrap();
        assert_eq!(
            files.opened(1, id, FileMeta::default()),
            None,
            "another worker"
        );
        assert_eq!(files.open_failed(0, FileId(77)), None, "unknown id");
        files.opened(0, id, FileMeta::default());
        assert_eq!(files.opened(0, id, FileMeta::default()), None, "twice");
        assert_eq!(files.open_failed(0, id), None, "failed after success");
    }

    #[test]
    fn a_stale_handle_does_not_reach_the_next_file() {
        let mut files = FileTable::default();
        let (id, stale) = files.open(STREAM, 0, b"a").unwrap();
        files.open_failed(0, id);
        let (again, fresh) = files.open(STREAM, 0, b"b").unwrap();
        assert_eq!(id, again);
        assert!(files.by_handle(stale).is_none());
        assert!(files.by_handle(fresh).is_some());
    }
}
