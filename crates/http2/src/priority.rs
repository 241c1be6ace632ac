//! Priorities of responses (RFC 9218).

/// The urgency of a response, and whether the client can use its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priority {
    /// From 0, the most urgent, to 7.
    pub urgency: u8,
    /// The response may take turns with others of the same urgency.
    pub incremental: bool,
}

impl Default for Priority {
    fn default() -> Self {
        Priority {
            urgency: 3,
            incremental: false,
        }
    }
}

/// Distance of two urgencies: more than the spread within one.
const URGENCY_STEP: i32 = 1 << 26;

/// How many streams of an urgency have distinct ranks.
const ORDERED: u64 = 1 << 25;

impl Priority {
    /// Parses the value of a `Priority` field or of PRIORITY_UPDATE. Invalid values and unknown
    /// parameters are ignored (RFC 9218 §4).
    pub fn parse(value: &[u8]) -> Self {
        let mut priority = Priority::default();
        for member in value.split(|&byte| byte == b',') {
            let member = member.split(|&byte| byte == b';').next();
            match member.unwrap_or_default().trim_ascii() {
                [b'u', b'=', digit @ b'0'..=b'7'] => priority.urgency = digit - b'0',
                b"i" | b"i=?1" => priority.incremental = true,
                b"i=?0" => priority.incremental = false,
                _ => {}
            }
        }
        priority
    }

    /// The rank of the connection's request with this ordinal; the greatest goes first. Within an
    /// urgency, non-incremental streams go first, one after the other, then incremental ones in
    /// turns (RFC 9218 §10).
    pub fn of_request(self, ordinal: u64) -> i32 {
        let urgency = i32::from(self.urgency.min(7));
        let order = if self.incremental {
            ORDERED
        } else {
            ordinal % ORDERED
        };
        (3 - urgency) * URGENCY_STEP - order as i32
    }
}

/// Most priorities kept for streams not opened yet.
const EARLY_MAX: usize = 32;

/// Priorities of streams not opened yet (RFC 9218 §7).
#[derive(Debug, Default)]
pub struct EarlyPriorities(Vec<(u64, Priority)>);

impl EarlyPriorities {
    /// Keeps the priority of a stream, in place of the oldest one if there are too many.
    pub fn keep(&mut self, id: u64, priority: Priority) {
        self.0.retain(|(known, _)| *known != id);
        if self.0.len() == EARLY_MAX {
            self.0.remove(0);
        }
        self.0.push((id, priority));
    }

    /// Takes the priority of a stream that opens.
    pub fn take(&mut self, id: u64) -> Option<Priority> {
        let place = self.0.iter().position(|(known, _)| *known == id)?;
        Some(self.0.swap_remove(place).1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(value: &str) -> (u8, bool) {
        let priority = Priority::parse(value.as_bytes());
        (priority.urgency, priority.incremental)
    }

    /// Covers: RFC 9218 §4, RFC 9218 §4.1, RFC 9218 §4.2
    #[test]
    fn values_are_read_and_nonsense_is_ignored() {
        for (value, expected) in [
            ("", (3, false)),
            ("u=0", (0, false)),
            ("u=7, i", (7, true)),
            ("i", (3, true)),
            ("i=?1,u=5", (5, true)),
            ("i=?0", (3, false)),
            ("u=5;x=1, i;y", (5, true)),
            ("u=1, u=2", (2, false)),
            ("u=8", (3, false)),
            ("u=-1", (3, false)),
            ("u=10, i=1", (3, false)),
            ("unknown=9, i", (3, true)),
        ] {
            assert_eq!(parsed(value), expected, "{value}");
        }
    }

    /// Covers: RFC 9218 §10
    #[test]
    fn streams_come_by_urgency_and_then_in_order_or_in_turns() {
        let of = |urgency, incremental, ordinal| {
            let priority = Priority {
                urgency,
                incremental,
            };
            priority.of_request(ordinal)
        };
        assert_eq!(Priority::default().of_request(0), 0);
        for urgency in 0..7 {
            for ordinal in [0, 1, 100, 1 << 40] {
                assert!(of(urgency, false, ordinal) > of(urgency, false, ordinal + 1));
                assert_eq!(of(urgency, true, ordinal), of(urgency, true, 0));
                assert!(of(urgency, false, ordinal) > of(urgency, true, ordinal));
                assert!(of(urgency, true, ordinal) > of(urgency + 1, false, 0));
            }
        }
    }
}
