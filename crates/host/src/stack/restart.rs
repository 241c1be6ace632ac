//! A NIC worker that starts again: what it kept is installed again, and what it had not sent is
//! issued again.
//!
//! All that a worker knows is soft state. A new one has no open files, no queued SENDs and no
//! retained blocks: a new epoch begins, in which the host replays OPEN and repeats each SEND of
//! which no echo has come. What had departed needs no care: should it be lost on the network, its
//! retransmission reads the file again.

use contract::channel::HostChannel;
use contract::{FileId, FileMeta};

use super::Stack;
use super::workers::Nic;
use crate::nics::nic_stacks::NicSet;
use crate::tables::files::{Reopened, Reopening};

impl Stack {
    /// A worker has been replaced by a new one, which knows nothing yet and listens on `channel`.
    /// Of what the old one had still to say, what no other says is heard: tags of records, and what
    /// has become of splices and of connections that were parted with.
    ///
    /// Files that were open are opened again, under the same ids, and their connections wait for
    /// the answer. One that is not the same version any more ends its connection: no response mixes
    /// two versions. SENDs that had not departed, as far as the host has heard, are issued again;
    /// if one had, and only its echo is missing, the peer gets these bytes twice, which TCP allows
    /// for. Nothing of this counts as loss. Keys and records that are not acknowledged go to the
    /// new one, with the tags that are known.
    ///
    /// # Panics
    /// If there is no such worker.
    pub fn on_nic_restarted(&mut self, now_us: u64, worker: usize, channel: HostChannel) {
        let nic = self.nic_stacks.of(worker);
        self.leave_workers(now_us, worker..worker + 1);
        self.stop_migrations_of(worker);
        self.division.forget_load(worker);
        // What waited for room in the old ring is replayed from the tables, or means nothing to the
        // new worker.
        self.nics[worker] = Nic::new(channel);
        for handle in self.connections.handles() {
            if let Some(entry) = self.connections.get_mut(handle)
                && entry.worker == worker
            {
                self.sends_outstanding -= std::mem::take(&mut entry.sends_outstanding);
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
        } in self.files.reopen(nic, worker)
        {
            if let Some(entry) = waits.and_then(|stream| self.connections.by_stream_mut(stream)) {
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

    /// The answer to a repeated OPEN; false if this OPEN was not repeated. `meta` is `None` if it
    /// has failed.
    pub(super) fn on_reopened(
        &mut self,
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
        if self.on_quic_reopened(stream, file, outcome) {
            return true;
        }
        let Some(entry) = self.connections.by_stream_mut(stream) else {
            return true;
        };
        let handle = entry.handle();
        if let Reopened::Changed(_) = outcome {
            entry.refused_by.insert(nic);
        }
        entry.holds = entry.holds.saturating_sub(1);
        if entry.holds == 0 {
            // What was refused may have been acknowledged since.
            let lacks_a_file = entry.refused_by.contains(nic) && self.lacks_a_file(handle);
            if lacks_a_file {
                self.reroute(handle);
            } else if let Some(entry) = self.connections.get_mut(handle) {
                entry.refused_by = NicSet::default();
            }
        }
        self.mark_dirty(handle);
        true
    }
}
