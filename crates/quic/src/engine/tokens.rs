//! Tokens by which returning clients validate their address (RFC 9000 §8.1.3): each is accepted
//! once (§8.1.4).

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use quinn_proto::{TokenLog, TokenReuseError};

use crate::engine::generations::Generations;

/// Lifetime of a token.
pub(super) const LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);

/// Tokens sent on each connection.
pub(super) const SENT: u32 = 2;

/// The used tokens of an endpoint. It remembers a bounded number; once it forgets some, it refuses
/// all tokens as old as those.
pub(super) struct UsedTokens(Mutex<Memory>);

struct Memory {
    /// Older tokens are refused.
    floor: SystemTime,
    /// Nonces of used tokens.
    used: Generations<u128, ()>,
    /// Issue time of the newest token of each half.
    newest: SystemTime,
    newest_before: Option<SystemTime>,
}

impl UsedTokens {
    /// For an endpoint that begins at `start`: an earlier one with the same secret may have
    /// accepted older tokens. Remembers at most `tokens_max`.
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
        // A panic ends the process, so poisoned state is never read.
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
    /// Forgets the older half of the used tokens.
    fn raise_floor(&mut self) {
        // Issue times are whole seconds.
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
