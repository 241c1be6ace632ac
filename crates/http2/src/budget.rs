//! A bound on work that leads to no response: useless frames, cancelled requests, changes of
//! priority (RFC 9113 §10.5, RFC 9114 §10.5).
//!
//! Work is counted in tokens. A connection begins with some, and earns more over time and one with
//! each completed response. Work beyond the peer's responses is thus bounded by [`TOKENS_MAX`] and
//! [`TOKENS_PER_SECOND`].

/// Most tokens that a connection saves up.
pub const TOKENS_MAX: u32 = 1000;

/// Tokens added per second.
pub const TOKENS_PER_SECOND: u64 = 100;

/// Cost of a buffered frame, or of an instruction.
pub const FRAME_TOKENS: u32 = 1;

/// Cost of a useless stream, or of a cancelled request: it may have had a file opened.
pub const STREAM_TOKENS: u32 = 4;

/// Bytes of discarded payload per token.
const BYTES_PER_TOKEN: u64 = 1 << 10;

const US_PER_TOKEN: u64 = 1_000_000 / TOKENS_PER_SECOND;

/// Too few tokens are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exhausted;

impl Exhausted {
    /// The reason that the peer gets.
    pub const WHY: &str = "more than a connection may ask for beside responses";
}

/// See the [module documentation](self).
#[derive(Debug)]
pub struct Budget {
    tokens: u32,
    refilled_us: u64,
}

impl Budget {
    /// A full budget.
    pub fn new(now_us: u64) -> Self {
        Budget {
            tokens: TOKENS_MAX,
            refilled_us: now_us,
        }
    }

    /// Takes tokens.
    ///
    /// # Errors
    /// Too few are left.
    pub fn spend(&mut self, now_us: u64, tokens: u32) -> Result<(), Exhausted> {
        let earned = now_us.saturating_sub(self.refilled_us) / US_PER_TOKEN;
        self.refilled_us += earned * US_PER_TOKEN;
        self.add(u32::try_from(earned).unwrap_or(u32::MAX));
        self.tokens = self.tokens.checked_sub(tokens).ok_or(Exhausted)?;
        Ok(())
    }

    /// Takes the cost of discarding a frame.
    ///
    /// # Errors
    /// As [`Budget::spend`].
    pub fn spend_frame(&mut self, now_us: u64, payload_bytes: u64) -> Result<(), Exhausted> {
        let bytes = u32::try_from(payload_bytes / BYTES_PER_TOKEN).unwrap_or(u32::MAX);
        self.spend(now_us, FRAME_TOKENS.saturating_add(bytes))
    }

    /// A response is complete.
    pub fn earn(&mut self) {
        self.add(1);
    }

    fn add(&mut self, tokens: u32) {
        self.tokens = self.tokens.saturating_add(tokens).min(TOKENS_MAX);
    }
}

/// WINDOW_UPDATE frames that cost nothing, for each DATA frame sent.
const WINDOW_UPDATES_PER_DATA: u32 = 2;

/// Most such frames that a connection saves up.
const WINDOW_UPDATES_MAX: u32 = 1000;

/// WINDOW_UPDATE frames that cost nothing: the peer answers DATA with them.
#[derive(Debug, Default)]
pub struct FreeWindowUpdates(u32);

impl FreeWindowUpdates {
    /// DATA is sent.
    pub fn on_data(&mut self) {
        self.0 = (self.0 + WINDOW_UPDATES_PER_DATA).min(WINDOW_UPDATES_MAX);
    }

    /// A WINDOW_UPDATE has arrived.
    ///
    /// # Errors
    /// It is not free, and too few tokens are left.
    pub fn on_window_update(&mut self, budget: &mut Budget, now_us: u64) -> Result<(), Exhausted> {
        match self.0.checked_sub(1) {
            Some(left) => self.0 = left,
            None => budget.spend(now_us, FRAME_TOKENS)?,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_window_updates_are_free_for_each_data_frame() {
        let (mut budget, mut free) = (Budget::new(0), FreeWindowUpdates::default());
        free.on_data();
        for _ in 0..TOKENS_MAX + 2 {
            assert_eq!(free.on_window_update(&mut budget, 0), Ok(()));
        }
        assert!(free.on_window_update(&mut budget, 0).is_err());
        for _ in 0..WINDOW_UPDATES_MAX {
            free.on_data();
        }
        assert_eq!(free.0, WINDOW_UPDATES_MAX);
    }

    #[test]
    fn tokens_come_with_time_and_responses_up_to_a_bound() {
        let mut budget = Budget::new(5);
        assert_eq!(budget.spend(5, TOKENS_MAX), Ok(()));
        assert!(budget.spend(10_004, 1).is_err());
        assert_eq!(budget.spend(10_005, 1), Ok(()));
        assert!(budget.spend(19_999, 1).is_err());
        budget.earn();
        assert_eq!(budget.spend(20_004, 1), Ok(()));
        assert_eq!(
            budget.spend(20_005, 1),
            Ok(()),
            "nothing of the time is lost"
        );
        assert_eq!(budget.spend(u64::MAX, TOKENS_MAX), Ok(()));
        assert!(budget.spend(u64::MAX, 1).is_err());
    }

    #[test]
    fn what_is_thrown_away_costs_by_its_length() {
        let mut budget = Budget::new(0);
        for _ in 0..TOKENS_MAX / 2 {
            assert_eq!(budget.spend_frame(0, 1024), Ok(()));
        }
        assert!(budget.spend_frame(0, 0).is_err());
        let mut budget = Budget::new(0);
        assert!(budget.spend_frame(0, u64::MAX).is_err());
    }
}
