//! A worker, with what is around it: its disk, its port, its channel.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use contract::channel::{Capacity, HostChannel, in_memory_of};
use netdev::memory::{self, MemoryPort};
use nic::Worker;

use crate::channel_tap::ChannelTap;
use crate::disk::{Disk, Root};
use crate::event_drain::EventDrain;
use crate::fairness::FairnessCheck;
use crate::file_versions::FileVersions;
use crate::ports::FaultyPort;
use crate::random::Random;
use crate::scenario::{Cramped, DiskPlan, PortPlan};

/// A worker, with what is around it.
pub(crate) struct WorkerSlot {
    pub(crate) worker: Worker<FaultyPort>,
    pub(crate) disk: Disk,
    pub(crate) far: MemoryPort,
    pub(crate) relay: ChannelTap,

    pub(crate) asleep: bool,
}

/// What every worker is made of.
pub(crate) struct SlotMaker {
    pub(crate) config: nic::Config,
    pub(crate) link: memory::Link,
    pub(crate) port: PortPlan,
    pub(crate) cramped: Option<Cramped>,
    pub(crate) watches_turns: bool,
    pub(crate) watches_records: bool,
    pub(crate) forgets_tags: bool,
    pub(crate) made: u64,
    pub(crate) disk: DiskPlan,
    /// Roots that have the files between them.
    pub(crate) parts: usize,
    pub(crate) versions: FileVersions,
    pub(crate) contract_loss_ppm: u32,
    pub(crate) clock_us: Rc<Cell<u64>>,
    pub(crate) random: Random,
    pub(crate) logs: bool,
}

impl SlotMaker {
    /// What rings hold.
    pub(crate) fn capacity(&self) -> Capacity {
        self.cramped.map_or(Capacity::FULL, |_| Capacity::LEAST)
    }

    /// A worker of this NIC stack that knows nothing, and the host's end of its channel.
    pub(crate) fn make(&mut self, nic: usize) -> (WorkerSlot, HostChannel) {
        let capacity = self.capacity();
        let (host, relay_host) = in_memory_of(capacity);
        let (relay_worker, worker) = in_memory_of(capacity);
        let (port, far) = memory::pair(self.link);
        self.made += 1;
        let feed = Rc::new(RefCell::new(EventDrain::new(relay_worker)));
        let port = FaultyPort::new(port, &self.port, self.made, self.clock_us.clone())
            .of_worker(Rc::clone(&feed), self.watches_records);
        let root = Root {
            nic,
            parts: self.parts,
        };
        let disk = Disk::new(
            self.disk.clone(),
            root,
            self.versions.clone(),
            self.clock_us.clone(),
            self.random.fork(),
            self.logs,
        );
        let slot = WorkerSlot {
            worker: Worker::new(&self.config, worker, port, Box::new(disk.clone()))
                .expect("memory"),
            disk,
            far,
            relay: ChannelTap {
                host: relay_host,
                worker: feed,
                life: self.made,
                forgets_tags: self.forgets_tags,
                loss_ppm: self.contract_loss_ppm,
                cramped: self.cramped,
                opens_us: None,
                events_max: u32::MAX,
                opens_unanswered: 0,
                replays: false,
                random: self.random.fork(),
                fairness: self.watches_turns.then(FairnessCheck::default),
            },
            asleep: false,
        };
        (slot, host)
    }
}

impl WorkerSlot {
    /// OPENs of which the host has heard nothing.
    pub(crate) fn opens_unanswered(&self) -> u32 {
        self.relay.opens_unanswered
    }

    /// It follows another worker, opens its files again, and nothing has left it yet.
    pub(crate) fn replays(&self) -> bool {
        self.relay.replays && self.relay.opens_unanswered > 0
    }

    /// When the worker has to look again for the sake of a paced SEND, or of commands that could
    /// not pass.
    pub(crate) fn next_us(&self) -> Option<u64> {
        let paced_us = self.worker.next_timeout_us();
        paced_us.into_iter().chain(self.relay.opens_us).min()
    }
}
