//! Operations under way when NIC processes died.

use std::ops::AddAssign;

use crate::worker_slot::WorkerSlot;

/// Deaths of NIC processes, by the operations under way that the host has to repair. One death may
/// count under several operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NicCrashStats {
    /// All deaths.
    pub all: u64,
    /// An OPEN was not answered.
    pub opening: u64,
    /// A SEND had been accepted and not departed.
    pub sending: u64,
    /// A SEND had departed in part.
    pub amid_send: u64,
    /// A paced SEND was waiting for its time.
    pub holding: u64,
    /// Blocks were kept for retransmissions, or being read.
    pub retaining: u64,
    /// The state of the previous process was being installed again.
    pub replaying: u64,
    /// Ended workers with reports of tags that the host had not read.
    pub unread: u64,
}

impl NicCrashStats {
    /// Counts the death of the process of these workers.
    pub(crate) fn count(&mut self, slots: &[Option<WorkerSlot>]) {
        let any = |is: &dyn Fn(&WorkerSlot) -> bool| u64::from(slots.iter().flatten().any(is));
        *self += NicCrashStats {
            all: 1,
            opening: any(&|slot| slot.opens_unanswered() > 0),
            sending: any(&|slot| slot.worker.usage().jobs > 0),
            amid_send: any(&|slot| slot.worker.usage().jobs_begun > 0),
            holding: any(&|slot| slot.worker.usage().flows_held > 0),
            retaining: any(&|slot| slot.worker.usage().blocks_occupied > 0),
            replaying: any(&|slot| slot.replays()),
            unread: 0,
        };
    }
}

impl AddAssign for NicCrashStats {
    fn add_assign(&mut self, more: NicCrashStats) {
        self.all += more.all;
        self.opening += more.opening;
        self.sending += more.sending;
        self.amid_send += more.amid_send;
        self.holding += more.holding;
        self.retaining += more.retaining;
        self.replaying += more.replaying;
        self.unread += more.unread;
    }
}
