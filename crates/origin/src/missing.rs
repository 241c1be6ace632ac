//! Targets that an origin refused or failed to serve, remembered for a while. Clients choose the
//! targets and the origin its fields, so both their number and their memory are bounded.

use crate::broken::Broken;
use crate::freshness::Freshness;
use crate::message::Refusal;
use crate::store::Key;

/// Most remembered targets.
const COUNT_MAX: usize = 10_000;

/// Most memory of all targets, in bytes.
const BYTES_MAX: usize = 16 << 20;

/// Memory of a target besides its texts, in bytes: its entries in two tables, with allocations.
const ENTRY_BYTES: usize = 1024;

/// Why a target is not available for now.
pub(crate) enum Missing {
    /// The origin refused it, with a response that may be remembered.
    Refused(Refusal, Freshness),
    Broken(Broken),
}

impl Missing {
    /// Memory of the entry and its key, in bytes.
    fn memory_bytes(&self, key: &Key) -> usize {
        let fields = key.variant.fields();
        let variant: usize = fields.map(|(name, value)| name.len() + value.len()).sum();
        let answer = match self {
            Missing::Refused(refusal, _) => refusal.memory_bytes(),
            Missing::Broken(_) => 0,
        };
        // The table of variants has the target as well.
        ENTRY_BYTES + 2 * (key.target.len() + variant) + answer
    }
}

/// The number of remembered targets, and their memory.
#[derive(Debug, Default)]
pub(crate) struct Remembered {
    count: usize,
    bytes: usize,
    /// Targets forgotten to make room for others.
    pub(crate) evicted: u64,
}

impl Remembered {
    /// True if one more target exceeds a bound.
    pub(crate) fn is_full_for(&self, key: &Key, missing: &Missing) -> bool {
        self.count >= COUNT_MAX || self.bytes + missing.memory_bytes(key) > BYTES_MAX
    }

    pub(crate) fn add(&mut self, key: &Key, missing: &Missing) {
        self.count += 1;
        self.bytes += missing.memory_bytes(key);
    }

    pub(crate) fn remove(&mut self, key: &Key, missing: &Missing) {
        self.count -= 1;
        self.bytes -= missing.memory_bytes(key);
    }

    /// Forgets all targets to make room.
    pub(crate) fn evict_all(&mut self) {
        self.evicted += self.count as u64;
        (self.count, self.bytes) = (0, 0);
    }
}
