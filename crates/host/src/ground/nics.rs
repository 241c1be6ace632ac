//! NIC stacks that come, go, or start again.
//!
//! A worker has only soft state. A new one has no open files, no queued SENDs and no retained
//! blocks: a new epoch begins, in which the host replays OPEN and repeats each SEND without an
//! echo. Departed data needs no care: if it is lost on the network, its retransmission reads the
//! file again.

use contract::channel::HostChannel;

use super::workers::WorkerLink;
use super::{Ground, Layers};
use crate::nics::nic_stacks::NicRefusal;

impl Ground {
    pub(crate) fn on_nic_come(
        &mut self,
        layers: &mut Layers<'_>,
        now_us: u64,
        nic: usize,
        channels: Vec<HostChannel>,
    ) -> Result<(), NicRefusal> {
        if let Some(refusal) = self.nic_refusal(nic, channels.len()) {
            return Err(refusal);
        }
        let workers = self.nic_stacks.workers(nic);
        if workers.is_empty() {
            assert!(!channels.is_empty(), "a NIC stack has workers");
            self.introduce_nic(nic, channels);
            for worker in self.nic_stacks.workers(nic) {
                layers.tcp.send_setup(self, now_us, worker);
            }
        } else {
            self.counters.nic_restarts += 1;
            self.nic_stacks.has_come(nic);
            for (worker, channel) in workers.zip(channels) {
                self.on_nic_restarted(layers, now_us, worker, channel);
            }
        }
        layers.tcp.on_nic_come(self, nic);
        layers.quic.on_nic_come(self);
        layers.tcp.part_with_elsewhere(self, now_us);
        layers.tcp.splice_elsewhere(self);
        for file in self.files.waiting() {
            self.ask(layers, file);
        }
        Ok(())
    }

    pub(crate) fn on_nic_lost(&mut self, layers: &mut Layers<'_>, now_us: u64, nic: usize) {
        if !self.nic_stacks.is_there(nic) {
            return;
        }
        self.counters.nic_losses += 1;
        self.nic_stacks.has_gone(nic, now_us);
        let workers = self.nic_stacks.workers(nic);
        layers.tcp.leave_workers(self, now_us, workers.clone());
        for worker in workers.clone() {
            self.workers[worker].lose();
        }
        layers.tcp.steer(self);
        for worker in workers.clone() {
            self.stop_moves_of(layers, worker);
            self.division.forget_load(worker);
        }
        self.files.lose(nic, &workers);
        layers.tcp.on_nic_lost(self, &workers);
        layers.quic.on_nic_lost(self, &workers);
        layers.tcp.part_with_elsewhere(self, now_us);
        layers.tcp.splice_elsewhere(self);
        for file in self.files.waiting() {
            self.ask(layers, file);
        }
    }

    /// Fails requests for a file that only a NIC stack which has been away for too long can have.
    pub(crate) fn give_up_nics(&mut self, layers: &mut Layers<'_>, now_us: u64) {
        while let Some(nic) = self.nic_stacks.give_up(now_us) {
            layers.tcp.take_back_from(self, now_us, nic);
            layers.tcp.break_splices_of(self, now_us, nic);
            for file in self.files.waiting() {
                self.ask(layers, file);
            }
        }
    }

    pub(crate) fn on_nic_restarted(
        &mut self,
        layers: &mut Layers<'_>,
        now_us: u64,
        worker: usize,
        channel: HostChannel,
    ) {
        layers.tcp.leave_workers(self, now_us, worker..worker + 1);
        self.stop_moves_of(layers, worker);
        self.division.forget_load(worker);
        // Commands that waited for room in the old ring are replayed from the tables, or mean
        // nothing to the new worker.
        self.workers[worker] = WorkerLink::new(channel);
        layers.tcp.on_worker_restarted(self, worker);
        layers.quic.on_worker_restarted(self, worker);
        self.reopen_files(layers, worker);
        layers.tcp.steer(self);
        layers.tcp.send_setup(self, now_us, worker);
        layers.tcp.part_again_with(self, now_us, worker);
        layers.tcp.splice_again_with(self, worker);
        self.retry_waiting_room();
    }
}
