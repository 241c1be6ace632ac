//! What was under way when NIC processes died.

use std::ops::AddAssign;

use crate::worker_slot::WorkerSlot;

/// Deaths of NIC processes, and how many of them came when something was under way that the host
/// has to make up for. One death may have come in the middle of several things.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NicCrashStats {
    /// All of them.
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
    /// What the one before had known was being installed again.
    pub replaying: u64,
    /// Workers that had said tags of records which the host had not read.
    pub unread: u64,
}

impl NicCrashStats {
    /// The process of these workers dies.
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
