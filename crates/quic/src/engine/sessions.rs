//! Sessions that clients may resume with early data, each once (RFC 8446 §8.1).

use std::collections::HashMap;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustls::server::StoresServerSessions;
use zeroize::Zeroizing;

/// A bounded number of them: the oldest half is forgotten where there is no room.
#[derive(Debug)]
pub(super) struct KeptSessions(Mutex<Memory>);

type Generation = HashMap<Vec<u8>, Zeroizing<Vec<u8>>>;

struct Memory {
    last: Generation,
    before: Generation,
    generation_max: usize,
}

impl KeptSessions {
    pub(super) fn new(sessions_max: usize) -> Self {
        Self(Mutex::new(Memory {
            last: Generation::new(),
            before: Generation::new(),
            generation_max: (sessions_max / 2).max(1),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Memory> {
        // A panic ends the process; what it leaves behind is not read.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StoresServerSessions for KeptSessions {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        let mut memory = self.lock();
        if memory.last.len() >= memory.generation_max {
            memory.before = mem::take(&mut memory.last);
        }
        memory.last.insert(key, Zeroizing::new(value));
        true
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        let memory = self.lock();
        let found = memory.last.get(key).or_else(|| memory.before.get(key))?;
        Some(found.to_vec())
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        let mut memory = self.lock();
        let found = memory.last.remove(key);
        let mut found = found.or_else(|| memory.before.remove(key))?;
        Some(mem::take(&mut *found))
    }

    fn can_cache(&self) -> bool {
        true
    }
}

/// Without sessions.
impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let count = self.last.len() + self.before.len();
        f.debug_struct("Memory").field("count", &count).finish()
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
            let memory = kept.lock();
            assert!(memory.last.len() + memory.before.len() <= 8);
        }
        assert!((96..100).all(|number| kept.take(&[number]) == Some(vec![number])));
        assert!((0..92).all(|number| kept.take(&[number]).is_none()));
    }
}
