//! Tokens by which a client that comes again shows that it has its address (RFC 9000 §8.1.3): each
//! is taken once (§8.1.4).

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use quinn_proto::{TokenLog, TokenReuseError};

use crate::engine::generations::Generations;

/// Lifetime of a token.
pub(super) const LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);

/// Tokens sent on each connection.
pub(super) const SENT: u32 = 2;

/// Tokens of an endpoint that were used. It remembers a bounded number: where it forgets some,
/// tokens as old as these are refused from then on.
pub(super) struct UsedTokens(Mutex<Memory>);

struct Memory {
    /// Older tokens are refused.
    floor: SystemTime,
    /// Their nonces.
    used: Generations<u128, ()>,
    /// When the newest was issued of those used last, and of those before.
    newest: SystemTime,
    newest_before: Option<SystemTime>,
}

impl UsedTokens {
    /// Of an endpoint that begins at `start`: another one, with the same secret, may have taken
    /// tokens that are older. At most `tokens_max` are remembered.
    pub(super) fn new(start: SystemTime, tokens_max: usize) -> Self {
        Self(Mutex::new(Memory {
            floor: start,
            used: Generations::new(tokens_max),
            newest: start,
            newest_before: None,
        }))
    }
}

impl TokenLog for UsedTokens {
    fn check_and_insert(
        &self,
        nonce: u128,
        issued: SystemTime,
        _lifetime: Duration,
    ) -> Result<(), TokenReuseError> {
        // A panic ends the process; what it leaves behind is not read.
        let mut memory = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if issued < memory.floor || memory.used.get(&nonce).is_some() {
            return Err(TokenReuseError);
        }
        if memory.used.make_room() {
            memory.raise_floor();
            if issued < memory.floor {
                return Err(TokenReuseError);
            }
        }
        memory.used.insert(nonce, ());
        memory.newest = memory.newest.max(issued);
        Ok(())
    }
}

impl Memory {
    /// Of those used, the older half is forgotten.
    fn raise_floor(&mut self) {
        // Times of issue are whole seconds.
        if let Some(forgotten) = self.newest_before.replace(self.newest) {
            self.floor = forgotten + Duration::from_secs(1);
        }
        self.newest = self.floor;
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn is_taken(used: &UsedTokens, nonce: u128, issued_s: u64) -> bool {
        used.check_and_insert(nonce, at(issued_s), LIFETIME).is_ok()
    }

    #[test]
    fn a_token_is_taken_once() {
        let used = UsedTokens::new(at(100), 8);
        assert!(is_taken(&used, 1, 100));
        assert!(!is_taken(&used, 1, 100));
        assert!(!is_taken(&used, 2, 99), "of an endpoint before this one");
        assert!(is_taken(&used, 2, 100));
    }

    #[test]
    fn what_is_forgotten_is_not_taken_again() {
        let used = UsedTokens::new(at(0), 8);
        let taken: Vec<u128> = (0..1000)
            .filter(|nonce| is_taken(&used, *nonce, *nonce as u64 / 10))
            .collect();
        assert!(taken.len() >= 8, "{taken:?}");
        assert!(
            (0..1000)
                .all(|nonce| !taken.contains(&nonce) || !is_taken(&used, nonce, nonce as u64 / 10))
        );
        let memory = used.0.lock().unwrap();
        assert!(memory.used.len() <= 8);
    }
}
