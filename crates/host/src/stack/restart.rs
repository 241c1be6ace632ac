//! Restart of a NIC worker: the host installs its state again, and reissues unsent commands.
//!
//! A worker has only soft state. A new one has no open files, no queued SENDs and no retained
//! blocks: a new epoch begins, in which the host replays OPEN and repeats each SEND without an
//! echo. Departed data needs no care: if it is lost on the network, its retransmission reads the
//! file again.

use contract::channel::HostChannel;
use contract::{FileId, FileMeta};

use super::Stack;
use crate::ground::workers::WorkerLink;
use crate::nics::nic_stacks::NicSet;
use crate::tables::files::{Reopened, Reopening};

impl Stack {
    /// A new worker, without state, has replaced an old one and listens on `channel`. The host
    /// still reads the events of the old one that no other repeats: tags of records, and the fate
    /// of splices and of connections parted with.
    ///
    /// Open files are opened again, under the same ids, and their connections wait for the answer.
    /// A file that is not the same version ends its connection: no response mixes two versions.
    /// SENDs that had not departed, as far as the host knows, are issued again; if one had, and
    /// only its echo is missing, the peer gets these bytes twice, which TCP allows for. None of
    /// this counts as loss. The new worker gets unacknowledged keys and records, with the known
    /// tags.
    ///
    /// # Panics
    /// If there is no such worker.
    pub fn on_nic_restarted(&mut self, now_us: u64, worker: usize, channel: HostChannel) {
        let nic = self.ground.nic_stacks.of(worker);
        self.leave_workers(now_us, worker..worker + 1);
        self.stop_migrations_of(worker);
        self.ground.division.forget_load(worker);
        // Commands that waited for room in the old ring are replayed from the tables, or mean
        // nothing to the new worker.
        self.ground.workers[worker] = WorkerLink::new(channel);
        for handle in self.tcp.connections.handles() {
            if let Some(entry) = self.tcp.connections.get_mut(handle)
                && entry.worker == worker
            {
                self.ground.sends_outstanding -= std::mem::take(&mut entry.sends_outstanding);
                entry.holds = 0;
                entry.tcp.on_all_undeparted_lost();
                self.mark_dirty(handle);
            }
        }
        self.on_quic_worker_restarted(worker);
        for Reopening {
            file,
            path,
            lookup,
            waits,
        } in self.ground.files.reopen(nic, worker)
        {
            if let Some(entry) = waits.and_then(|stream| self.tcp.connections.by_stream_mut(stream))
            {
                entry.holds += 1;
            } else if let Some(stream) = waits {
                self.hold_quic(stream);
            }
            self.send_open(worker, file, &path, lookup);
        }
        self.steer();
        self.send_setup(now_us, worker);
        self.part_again_with(now_us, worker);
        self.splice_again_with(worker);
        self.retry_waiting_room();
    }

    /// Handles the answer to a repeated OPEN; false if this OPEN was not repeated. `meta` is `None`
    /// if it has failed.
    pub(crate) fn on_reopened(
        &mut self,
        worker: usize,
        file: FileId,
        meta: Option<FileMeta>,
    ) -> bool {
        let nic = self.ground.nic_stacks.of(worker);
        let Some((stream, outcome)) = self.ground.files.reopened(nic, worker, file, meta) else {
            return false;
        };
        if let Reopened::LetGo(Some(close)) | Reopened::Changed(Some(close)) = outcome {
            self.send_close(close);
        }
        if self.on_quic_reopened(stream, file, outcome) {
            return true;
        }
        let Some(entry) = self.tcp.connections.by_stream_mut(stream) else {
            return true;
        };
        let handle = entry.handle();
        if let Reopened::Changed(_) = outcome {
            entry.refused_by.insert(nic);
        }
        entry.holds = entry.holds.saturating_sub(1);
        if entry.holds == 0 {
            // The refused file's data may have been acknowledged since.
            let lacks_a_file = entry.refused_by.contains(nic) && self.lacks_a_file(handle);
            if lacks_a_file {
                self.reroute(handle);
            } else if let Some(entry) = self.tcp.connections.get_mut(handle) {
                entry.refused_by = NicSet::default();
            }
        }
        self.mark_dirty(handle);
        true
    }
}
