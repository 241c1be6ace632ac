//! A worker with its disk, its port and its channel.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use contract::channel::{Capacity, HostChannel, in_memory_of};
use netdev::memory::{self, MemoryPort};
use netdev::steering::Target;
use nic::Worker;

use crate::channel_tap::ChannelTap;
use crate::disk::{Disk, Root};
use crate::event_drain::EventDrain;
use crate::fairness::FairnessCheck;
use crate::file_versions::FileVersions;
use crate::ports::FaultyPort;
use crate::random::Random;
use crate::scenario::{Cramped, DiskPlan, Load, PortPlan};
use crate::wire_watch::WireWatch;

/// See the [module documentation](self).
pub(crate) struct WorkerSlot {
    pub(crate) worker: Worker<FaultyPort>,
    pub(crate) disk: Disk,
    pub(crate) far: MemoryPort,
    pub(crate) relay: ChannelTap,

    pub(crate) asleep: bool,
    /// Loads to report, each with its time; the next one is last.
    loads: Vec<Load>,
    next_load_us: Option<u64>,
    busy_permille: u32,
}

/// Interval of a worker's load reports, in microseconds, while its load is not constantly zero.
const LOAD_PERIOD_US: u64 = 20_000;

/// Parameters of all workers.
pub(crate) struct SlotMaker {
    pub(crate) config: nic::Config,
    pub(crate) link: memory::Link,
    pub(crate) port: PortPlan,
    pub(crate) cramped: Option<Cramped>,
    pub(crate) watches_turns: bool,
    pub(crate) watches_records: bool,
    pub(crate) watch: Option<Rc<RefCell<WireWatch>>>,
    pub(crate) forgets_tags: bool,
    /// A map steers frames to workers.
    pub(crate) is_steered: bool,
    pub(crate) made: u64,
    pub(crate) disk: DiskPlan,
    /// Number of roots between which the files are divided.
    pub(crate) parts: usize,
    pub(crate) versions: FileVersions,
    /// Loads to report, by worker.
    pub(crate) loads: Vec<Vec<Load>>,
    pub(crate) contract_loss_ppm: u32,
    pub(crate) clock_us: Rc<Cell<u64>>,
    pub(crate) random: Random,
    pub(crate) logs: bool,
}

impl SlotMaker {
    /// Returns the capacity of the rings.
    pub(crate) fn capacity(&self) -> Capacity {
        self.cramped.map_or(Capacity::FULL, |_| Capacity::LEAST)
    }

    /// Makes a worker of this NIC stack without state, and the host's end of its channel.
    pub(crate) fn make(&mut self, nic: usize, number: usize) -> (WorkerSlot, HostChannel) {
        let capacity = self.capacity();
        let loads = self.loads.get(number).cloned().unwrap_or_default();
        let (host, relay_host) = in_memory_of(capacity);
        let (relay_worker, worker) = in_memory_of(capacity);
        let (mut port, far) = memory::pair(self.link);
        self.made += 1;
        if self.is_steered {
            port.set_target(Target::new(self.made as u32));
        }
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
                watch: self.watch.clone(),
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
            next_load_us: loads.last().map(|load| load.at_us),
            loads,
            busy_permille: 0,
        };
        (slot, host)
    }
}

impl WorkerSlot {
    /// Returns the number of OPENs not answered to the host.
    pub(crate) fn opens_unanswered(&self) -> u32 {
        self.relay.opens_unanswered
    }

    /// Reports whether it replaced another worker and its OPENs are not all answered.
    pub(crate) fn replays(&self) -> bool {
        self.relay.replays && self.relay.opens_unanswered > 0
    }

    /// Returns when the worker must run again: for a paced SEND, held-up commands, or a load
    /// report.
    pub(crate) fn next_us(&self) -> Option<u64> {
        let paced_us = self.worker.next_timeout_us();
        let times_us = [paced_us, self.relay.opens_us, self.next_load_us];
        times_us.into_iter().flatten().min()
    }

    /// Reports the load, if it is time.
    pub(crate) fn report_load(&mut self, now_us: u64) {
        if self.next_load_us.is_none_or(|at_us| at_us > now_us) {
            return;
        }
        while let Some(load) = self.loads.pop_if(|load| load.at_us <= now_us) {
            self.busy_permille = load.busy_permille;
        }
        let elapsed_us = LOAD_PERIOD_US as u32;
        let busy_us = elapsed_us / 1000 * self.busy_permille;
        let has_told = self.worker.report_load(busy_us, elapsed_us);
        // Reports end with a report of the final load, if that is zero.
        let is_over = self.loads.is_empty() && self.busy_permille == 0 && has_told;
        self.next_load_us = (!is_over).then_some(now_us + LOAD_PERIOD_US);
    }
}
