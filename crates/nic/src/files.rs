//! Open files, by the host's names for them.

use std::collections::HashMap;

use contract::{FileId, FileMeta};

use crate::blocks::Blocks;
use crate::reader::{FileToken, Opened, Reader};
use crate::shrink;
use crate::slab::{Key, Slab};

/// A file that the host has named.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) id: FileId,
    pub(crate) state: FileState,
    /// The host has not sent CLOS yet.
    named: bool,
    /// SENDs under way that need it.
    users: u32,
    /// Flows to wake when the open has completed.
    waiters: Vec<Key>,
}

/// State of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileState {
    /// The open is under way.
    Opening,
    /// It can be read.
    Open {
        /// Bytes in the file.
        size: u64,
        /// Version of the file, for [`Blocks`].
        version: Key,
    },
    /// It could not be opened: the `errno`.
    Failed(u16),
}

/// Result of an open.
#[derive(Debug)]
pub(crate) struct OpenOutcome {
    pub(crate) id: FileId,
    pub(crate) result: Result<FileMeta, u16>,
    /// The host still waits for the answer.
    pub(crate) named: bool,
}

/// The files of a worker.
#[derive(Debug)]
pub(crate) struct Files {
    files: Slab<File>,
    by_id: HashMap<FileId, Key>,
}

impl Files {
    pub(crate) fn new() -> Files {
        Files {
            files: Slab::new(),
            by_id: HashMap::new(),
        }
    }

    /// Files that take up room: the named ones, and files that SENDs still need.
    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }

    pub(crate) fn find(&self, id: FileId) -> Option<Key> {
        self.by_id.get(&id).copied()
    }

    pub(crate) fn get(&self, key: Key) -> Option<&File> {
        self.files.get(key)
    }

    /// Names a file that is about to be opened. The id must be free.
    pub(crate) fn insert(&mut self, id: FileId) -> FileToken {
        let key = self.files.insert(File {
            id,
            state: FileState::Opening,
            named: true,
            users: 0,
            waiters: Vec::new(),
        });
        self.by_id.insert(id, key);
        FileToken(key.to_bits())
    }

    /// Completes an open. Moves the flows that waited for it to `waiters`.
    pub(crate) fn complete(
        &mut self,
        token: FileToken,
        result: Result<Opened, u16>,
        blocks: &mut Blocks,
        reader: &mut dyn Reader,
        waiters: &mut Vec<Key>,
    ) -> Option<OpenOutcome> {
        let key = Key::from_bits(token.0);
        let file = self.files.get_mut(key)?;
        waiters.append(&mut file.waiters);
        let outcome = OpenOutcome {
            id: file.id,
            result: result.map(|opened| opened.meta),
            named: file.named,
        };
        match result {
            Ok(opened) => {
                file.state = FileState::Open {
                    size: opened.meta.size,
                    version: blocks.versions.open(&opened),
                };
            }
            Err(errno) => {
                file.state = FileState::Failed(errno);
                if file.named {
                    file.named = false;
                    shrink::remove(&mut self.by_id, &outcome.id);
                }
            }
        }
        self.remove_if_unused(key, blocks, reader);
        Some(outcome)
    }

    /// Carries out CLOS. False if the id is not in use.
    pub(crate) fn close(
        &mut self,
        id: FileId,
        blocks: &mut Blocks,
        reader: &mut dyn Reader,
    ) -> bool {
        let Some(key) = shrink::remove(&mut self.by_id, &id) else {
            return false;
        };
        if let Some(file) = self.files.get_mut(key) {
            file.named = false;
        }
        self.remove_if_unused(key, blocks, reader);
        true
    }

    /// Adds a SEND as a user of the file.
    pub(crate) fn acquire(&mut self, key: Key) {
        if let Some(file) = self.files.get_mut(key) {
            file.users += 1;
        }
    }

    /// Removes a SEND from the users of the file.
    pub(crate) fn release(&mut self, key: Key, blocks: &mut Blocks, reader: &mut dyn Reader) {
        if let Some(file) = self.files.get_mut(key) {
            file.users -= 1;
        }
        self.remove_if_unused(key, blocks, reader);
    }

    /// Registers `flow` to be woken when the file's open has completed.
    pub(crate) fn wait(&mut self, key: Key, flow: Key) {
        if let Some(file) = self.files.get_mut(key)
            && file.waiters.last() != Some(&flow)
        {
            file.waiters.push(flow);
        }
    }

    fn remove_if_unused(&mut self, key: Key, blocks: &mut Blocks, reader: &mut dyn Reader) {
        let Some(file) = self.files.get(key) else {
            return;
        };
        if file.named || file.users > 0 || file.state == FileState::Opening {
            return;
        }
        if let FileState::Open { version, .. } = file.state {
            blocks.versions.close(version);
            reader.close(FileToken(key.to_bits()));
        }
        self.files.remove(key);
    }
}
