//! Metadata of files, for no connection: an OPEN whose answer closes the file again.

use contract::{FileId, Growth};

use super::Stack;
use crate::app::{AppEvent, FileHandle, StreamId};
use crate::nics::nic_stacks::NicSet;
use crate::tables::files::{Lookup, State};

const LOOKUP: Lookup = Lookup::Open(Growth::Allowed);

impl Stack {
    /// Asks for the metadata of a file: the NIC stack with least to do first, the others if that
    /// does not have it.
    pub(crate) fn look_up(&mut self, now_us: u64, path: &[u8]) -> Option<FileHandle> {
        LOOKUP.command(FileId(0), path).check().ok()?;
        let worker = 0;
        let (file, handle) =
            self.admit_file(now_us, StreamId::NONE, worker, Growth::Allowed, path)?;
        if let Some(found) = self.files.by_id_mut(file) {
            (found.asked, found.state) = (NicSet::default(), State::Waiting);
        }
        self.ask(file);
        Some(handle)
    }

    /// The file is open. Its metadata is all that was wanted.
    pub(super) fn tell_looked_up(&mut self, file: FileId) {
        if let Some((handle, meta)) = self.files.tell(file) {
            let meta = meta.into();
            let event = AppEvent::Opened { file: handle, meta };
            self.app_events.push_back((StreamId::NONE, event));
        }
        if let Some(close) = self.files.let_go(file) {
            self.send_close(close);
        }
    }
}
