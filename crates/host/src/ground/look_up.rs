//! Metadata of files without a connection: an OPEN whose answer closes the file again.

use contract::{FileId, Growth, PassedId};

use crate::app::{AppEvent, FileHandle, StreamId};
use crate::ground::Ground;
use crate::ground::Layers;
use crate::nics::nic_stacks::NicSet;
use crate::tables::files::{Lookup, Name, State};

const BY_PATH: Name = Name::Path(Growth::Allowed);

impl Ground {
    /// Requests the metadata of a file: from the least busy NIC stack first, then from the others
    /// if that one lacks the file.
    pub(crate) fn look_up(
        &mut self,
        layers: &mut Layers<'_>,
        now_us: u64,
        path: &[u8],
    ) -> Option<FileHandle> {
        let command = Lookup::Open(BY_PATH).command(FileId(0), path);
        command.check().ok()?;
        self.look_up_by(layers, now_us, BY_PATH, path)
    }

    /// The same for a file of which a NIC stack was passed a descriptor.
    pub(crate) fn look_up_passed(
        &mut self,
        layers: &mut Layers<'_>,
        now_us: u64,
        passed: PassedId,
    ) -> Option<FileHandle> {
        self.look_up_by(layers, now_us, Name::Passed(passed), &shown(passed))
    }

    fn look_up_by(
        &mut self,
        layers: &mut Layers<'_>,
        now_us: u64,
        name: Name,
        path: &[u8],
    ) -> Option<FileHandle> {
        let worker = 0;
        let (file, handle) = self.admit_file(layers, now_us, StreamId::NONE, worker, name, path)?;
        if let Some(found) = self.files.by_id_mut(file) {
            (found.asked, found.state) = (NicSet::default(), State::Waiting);
        }
        self.ask(layers, file);
        Some(handle)
    }

    /// The file is open. Only its metadata was requested.
    pub(crate) fn tell_looked_up(&mut self, file: FileId) {
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

/// Stands for the path of a file without one, in messages.
pub(crate) fn shown(passed: PassedId) -> Vec<u8> {
    format!("descriptor {:x}", passed.0).into_bytes()
}
