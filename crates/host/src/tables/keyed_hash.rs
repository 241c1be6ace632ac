//! A hash for the tables that peers fill.

use std::hash::BuildHasher;

use siphasher::sip::SipHasher13;

/// A SipHash-1-3 under a secret key: peers choose addresses, so the table must not be theirs to
/// unbalance.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyedHash(pub(crate) [u8; 16]);

impl BuildHasher for KeyedHash {
    type Hasher = SipHasher13;
    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_key(&self.0)
    }
}
