//! Sessions that clients may resume with early data, each once (RFC 8446 §8.1).

use std::fmt;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustls::server::StoresServerSessions;
use zeroize::Zeroizing;

use crate::engine::generations::Generations;

type Memory = Generations<Vec<u8>, Zeroizing<Vec<u8>>>;

/// A bounded store of sessions.
pub(super) struct KeptSessions(Mutex<Memory>);

impl KeptSessions {
    pub(super) fn new(sessions_max: usize) -> Self {
        Self(Mutex::new(Memory::new(sessions_max)))
    }

    fn lock(&self) -> MutexGuard<'_, Memory> {
        // A panic ends the process, so poisoned state is never read.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StoresServerSessions for KeptSessions {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        self.lock().insert(key, Zeroizing::new(value));
        true
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.lock().get(key).map(|found| found.to_vec())
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        let mut found = self.lock().remove(key)?;
        Some(mem::take(&mut *found))
    }

    fn can_cache(&self) -> bool {
        true
    }
}

/// Prints no sessions.
impl fmt::Debug for KeptSessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.lock().len();
        f.debug_struct("KeptSessions")
            .field("count", &count)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_taken_once() {
        let kept = KeptSessions::new(8);
        assert!(kept.put(vec![1], vec![2, 3]));
        assert_eq!(kept.get(&[1]), Some(vec![2, 3]));
        assert_eq!(kept.take(&[1]), Some(vec![2, 3]));
        assert_eq!(kept.take(&[1]), None);
        assert_eq!(kept.get(&[1]), None);
    }

    #[test]
    fn the_oldest_make_room() {
        let kept = KeptSessions::new(8);
        for number in 0..100 {
            kept.put(vec![number], vec![number]);
            assert!(kept.lock().len() <= 8);
        }
        assert!((96..100).all(|number| kept.take(&[number]) == Some(vec![number])));
        assert!((0..92).all(|number| kept.take(&[number]).is_none()));
    }
}
