//! Files that are opened again, after a worker without state has replaced another.
//!
//! Their connections wait for the answer. A file that is not the same version ends its stream: no
//! response mixes two versions.

use contract::{FileId, FileMeta};

use super::{Ground, Layers};
use crate::tables::files::{Reopened, Reopening};

impl Ground {
    /// Has a new worker open the files of its connections, under the same ids.
    pub(crate) fn reopen_files(&mut self, layers: &mut Layers<'_>, worker: usize) {
        let nic = self.nic_stacks.of(worker);
        for Reopening {
            file,
            path,
            lookup,
            waits,
        } in self.files.reopen(nic, worker)
        {
            if let Some(stream) = waits {
                layers.of_stream(stream).hold_sends(stream);
            }
            self.send_open(worker, file, &path, lookup);
        }
    }

    /// Handles the answer to a repeated OPEN; false if this OPEN was not repeated. `meta` is `None`
    /// if it has failed.
    pub(crate) fn on_reopened(
        &mut self,
        layers: &mut Layers<'_>,
        worker: usize,
        file: FileId,
        meta: Option<FileMeta>,
    ) -> bool {
        let nic = self.nic_stacks.of(worker);
        let Some((stream, outcome)) = self.files.reopened(nic, worker, file, meta) else {
            return false;
        };
        if let Reopened::LetGo(Some(close)) | Reopened::Changed(Some(close)) = outcome {
            self.send_close(close);
        }
        let has_changed = matches!(outcome, Reopened::Changed(_));
        let layer = layers.of_stream(stream);
        layer.on_reopened(self, nic, (stream, file), has_changed);
        true
    }
}
