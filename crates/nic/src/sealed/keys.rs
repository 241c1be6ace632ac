//! The keys of a flow, by epoch.

use std::fmt;

use contract::RejectReason;
use contract::limits::KEYS_MAX;
use contract::tls::{Key, Suite};
use zeroize::Zeroizing;

use super::cipher::CipherKey;

/// Memory counted for a key, in bytes: the cipher's, its place here, and a part of a flow's stream
/// state.
pub(crate) const KEY_BYTES: usize = 1024;

/// A key that seals. The memory of the cipher and of the IV is overwritten when it is dropped.
pub(crate) struct SealingKey {
    pub(crate) epoch: u16,
    pub(crate) suite: Suite,
    pub(super) key: CipherKey,
    pub(super) iv: Zeroizing<[u8; 12]>,
    /// No record is defined with this number or a higher one.
    pub(super) next_number: u64,
    /// Runs that are defined and not acknowledged.
    runs: usize,
    /// KEYGONE was received: no run will be added.
    going: bool,
}

/// The keys of a flow.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    keys: Vec<SealingKey>,
    /// The highest epoch so far.
    last_epoch: Option<u16>,
}

impl Keys {
    /// Carries out KEY.
    pub(super) fn install(&mut self, key: &Key<'_>) -> Result<(), RejectReason> {
        if self.last_epoch.is_some_and(|last| key.epoch <= last) {
            return Err(RejectReason::KeyConflict);
        }
        if self.keys.len() >= KEYS_MAX {
            return Err(RejectReason::TooManyKeys);
        }
        let cipher_key =
            CipherKey::new(key.suite.cipher, key.key).ok_or(RejectReason::Malformed)?;
        self.last_epoch = Some(key.epoch);
        // Most flows never have a second key.
        self.keys.reserve_exact(1);
        self.keys.push(SealingKey {
            epoch: key.epoch,
            suite: key.suite,
            key: cipher_key,
            iv: Zeroizing::new(key.iv),
            next_number: 0,
            runs: 0,
            going: false,
        });
        Ok(())
    }

    /// Carries out KEYGONE. False if there is no such key.
    pub(super) fn let_go(&mut self, epoch: u16) -> bool {
        let Some(key) = self.get_mut(epoch) else {
            return false;
        };
        key.going = true;
        self.remove_unneeded();
        true
    }

    pub(crate) fn get(&self, epoch: u16) -> Option<&SealingKey> {
        self.keys.iter().find(|key| key.epoch == epoch)
    }

    fn get_mut(&mut self, epoch: u16) -> Option<&mut SealingKey> {
        self.keys.iter_mut().find(|key| key.epoch == epoch)
    }

    /// Returns a key that records may be defined under.
    pub(super) fn usable(&self, epoch: u16) -> Option<&SealingKey> {
        self.get(epoch).filter(|key| !key.going)
    }

    /// Counts a run that has been defined and whose last record comes before `next_number`.
    pub(super) fn acquire(&mut self, epoch: u16, next_number: u64) {
        if let Some(key) = self.get_mut(epoch) {
            key.runs += 1;
            key.next_number = next_number;
        }
    }

    /// Counts down the runs of a key, one of which has been acknowledged.
    pub(super) fn release(&mut self, epoch: u16) {
        if let Some(key) = self.get_mut(epoch) {
            key.runs -= 1;
            self.remove_unneeded();
        }
    }

    fn remove_unneeded(&mut self) {
        self.keys.retain(|key| key.runs > 0 || !key.going);
    }

    pub(super) fn clear(&mut self) {
        self.keys.clear();
    }

    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }
}

/// Omits the key and the IV.
impl fmt::Debug for SealingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealingKey")
            .field("epoch", &self.epoch)
            .field("suite", &self.suite)
            .field("next_number", &self.next_number)
            .finish_non_exhaustive()
    }
}
