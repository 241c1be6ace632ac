//! Connections that move from one worker to another while open.
//!
//! The new worker opens the connection's files first, as twins, while the old one keeps them open.
//! A file replaced by another version meanwhile keeps the connection where it is.

use contract::{FileId, FileMeta};

use super::nic_flow::NicFlow;
use super::{Ground, Layers};
use crate::tables::files::{MayClose, Readiness, State, TwinOpened};

impl Ground {
    /// Has worker `to` open files. True if it has all of them, and is opening no other.
    pub(crate) fn has_files_at(&mut self, files: Vec<FileId>, to: usize) -> bool {
        let mut is_ready = true;
        for file in files {
            match self.files.readiness(file, to) {
                Readiness::Ready => {}
                Readiness::Awaited => is_ready = false,
                Readiness::Unasked => {
                    is_ready = false;
                    self.files.open_twin(file, to);
                    self.ask_worker(to, file);
                }
            }
        }
        is_ready
    }

    /// The other worker has these files from now on: the previous one closes them.
    pub(crate) fn take_over(&mut self, files: Vec<FileId>) {
        for file in files {
            if let Some(close) = self.files.take_over(file) {
                self.send_close(close);
            }
        }
    }

    /// The connection of these files stays: the other worker closes them.
    pub(crate) fn drop_twins(&mut self, files: Vec<FileId>) {
        for file in files {
            if let Some(close) = self.files.drop_twin(file) {
                self.send_close(close);
            }
        }
    }

    /// A connection goes from one worker to another.
    pub(crate) fn change_workers(&mut self, before: usize, after: usize) {
        self.balance.remove(before);
        self.balance.add(after);
        if self.nic_stacks.of(before) == self.nic_stacks.of(after) {
            self.counters.connections_rebalanced += 1;
        } else {
            self.counters.connections_moved += 1;
        }
    }

    /// The worker of a flow has lost what was not departed, and open files.
    pub(crate) fn lose_outstanding(&mut self, nic: &mut NicFlow) {
        self.sends_outstanding -= std::mem::take(&mut nic.sends_outstanding);
        nic.holds = 0;
    }

    /// Cancels the moves to and from a worker that restarts without any state.
    pub(crate) fn stop_moves_of(&mut self, layers: &mut Layers<'_>, worker: usize) {
        for close in self.files.lose_twins(worker) {
            self.send_close(close);
        }
        layers.tcp.stop_moves_of(self, worker);
        layers.quic.stop_moves_of(self, worker);
    }

    /// Handles worker `worker`'s answer to an OPEN, with this metadata or a failure. False if the
    /// OPEN was not for a move.
    pub(crate) fn on_twin_opened(
        &mut self,
        layers: &mut Layers<'_>,
        worker: usize,
        file: FileId,
        meta: Option<&FileMeta>,
    ) -> bool {
        let nic = self.nic_stacks.of(worker);
        let Some((stream, opened)) = self.files.twin_opened(nic, worker, file, meta) else {
            return false;
        };
        let layer = layers.of_stream(stream);
        let is_awaited = layer.moves_to(stream) == Some(worker);
        let is_other = is_awaited && matches!(opened, TwinOpened::Other(_));
        let close = match opened {
            TwinOpened::Same if !is_awaited => self.files.drop_twin(file),
            TwinOpened::Same => None,
            TwinOpened::LetGo(close) | TwinOpened::Other(close) => close,
        };
        if let Some(close) = close {
            self.send_close(close);
        }
        self.counters.migrations_failed += u64::from(is_other);
        layer.on_twin_opened(self, stream, is_other);
        true
    }

    /// Has another worker open a file that the application knows.
    pub(crate) fn reopen_at(&mut self, file: FileId, worker: usize) {
        self.wait_at(file, worker);
        if let Some(found) = self.files.by_id_mut(file) {
            found.state = State::Reopening;
            self.ask_worker(worker, file);
        }
    }

    /// Marks a file known to the stream as open nowhere, and to be opened by this worker.
    pub(crate) fn wait_at(&mut self, file: FileId, worker: usize) {
        let Some(found) = self.files.by_id_mut(file) else {
            return;
        };
        let before = std::mem::replace(&mut found.worker, worker);
        if std::mem::replace(&mut found.state, State::Gone) == State::Open {
            self.send_close(MayClose::at(before, file));
        }
    }
}
