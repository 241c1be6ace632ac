//! The choice of a backend of a pool for a request.

pub(crate) mod maglev;

use std::fmt;
use std::str::FromStr;

use maglev::Table;

/// How a pool distributes its requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Balance {
    /// Each backend in turn.
    #[default]
    RoundRobin,
    /// The backend with the fewest connections in use; among equals, each in turn.
    LeastConnections,
    /// Consistent hashing by Maglev's table: the same key goes to the same backend while that
    /// backend is usable, and few keys move when a backend comes or goes.
    Maglev(HashOn),
}

/// The value that a key is hashed from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HashOn {
    /// The client's address, without the port.
    #[default]
    Source,
    /// The value of the request field with this name, in lower case; the address if there is no
    /// such field.
    Header(String),
}

/// A text that is no [`Balance`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BalanceError(String);

impl fmt::Display for BalanceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is none of round-robin, least-connections, maglev, maglev-header:NAME",
            self.0
        )
    }
}

impl std::error::Error for BalanceError {}

const HEADER: &str = "maglev-header:";

impl FromStr for Balance {
    type Err = BalanceError;

    fn from_str(text: &str) -> Result<Self, BalanceError> {
        match text {
            "round-robin" => Ok(Balance::RoundRobin),
            "least-connections" => Ok(Balance::LeastConnections),
            "maglev" => Ok(Balance::Maglev(HashOn::Source)),
            _ => match text.strip_prefix(HEADER) {
                Some(name) if is_field_name(name) => {
                    Ok(Balance::Maglev(HashOn::Header(name.to_ascii_lowercase())))
                }
                _ => Err(BalanceError(text.to_owned())),
            },
        }
    }
}

impl fmt::Display for Balance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Balance::RoundRobin => f.write_str("round-robin"),
            Balance::LeastConnections => f.write_str("least-connections"),
            Balance::Maglev(HashOn::Source) => f.write_str("maglev"),
            Balance::Maglev(HashOn::Header(name)) => write!(f, "{HEADER}{name}"),
        }
    }
}

fn is_field_name(name: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(is_token)
}

/// A backend as a candidate for a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// The backend may be chosen.
    pub(crate) is_eligible: bool,
    /// Connections in use.
    pub(crate) active: u32,
}

/// State kept between the choices of a pool.
#[derive(Debug, Default)]
pub(crate) struct Balancer {
    /// Where the next turn begins.
    next: usize,
    /// Maglev's table for the current backends, once it is needed.
    table: Option<Table>,
}

impl Balancer {
    /// Discards the table, since the set of backends has changed.
    pub(crate) fn reset(&mut self) {
        self.table = None;
    }

    /// Returns the number of the next backend; `None` if none is eligible. `table` makes Maglev's
    /// table of the backends that are up.
    pub(crate) fn choose(
        &mut self,
        balance: &Balance,
        candidates: &[Candidate],
        key: u64,
        table: impl FnOnce() -> Table,
    ) -> Option<usize> {
        let count = candidates.len();
        let from = self.next.min(count);
        let in_turn = (from..count).chain(0..from);
        let mut eligible = in_turn.filter(|&at| candidates[at].is_eligible);
        let chosen = match balance {
            Balance::RoundRobin => eligible.next(),
            Balance::LeastConnections => eligible.min_by_key(|&at| candidates[at].active),
            Balance::Maglev(_) => {
                let table = self.table.get_or_insert_with(table);
                let is_eligible = |at: usize| candidates.get(at).is_some_and(|it| it.is_eligible);
                return table.find(key, is_eligible);
            }
        };
        self.next = chosen.map_or(self.next, |at| at + 1);
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(active: &[u32]) -> Vec<Candidate> {
        let candidate = |&active| Candidate {
            is_eligible: active < 100,
            active,
        };
        active.iter().map(candidate).collect()
    }

    fn choose(balancer: &mut Balancer, balance: &Balance, active: &[u32]) -> Option<usize> {
        let none = || Table::new(&[]);
        balancer.choose(balance, &candidates(active), 0, none)
    }

    #[test]
    fn round_robin_goes_round_and_skips_what_cannot_be_used() {
        let mut balancer = Balancer::default();
        let mut next = |active: &[u32]| choose(&mut balancer, &Balance::RoundRobin, active);
        let turns: Vec<_> = (0..4).filter_map(|_| next(&[0, 0, 0])).collect();
        assert_eq!(turns, [0, 1, 2, 0]);
        assert_eq!(next(&[0, 100, 0]), Some(2));
        assert_eq!(next(&[0]), Some(0));
        assert_eq!(next(&[100]), None);
        assert_eq!(next(&[]), None);
    }

    #[test]
    fn the_fewest_connections_come_first_and_equals_take_turns() {
        let mut balancer = Balancer::default();
        let mut next = |active: &[u32]| choose(&mut balancer, &Balance::LeastConnections, active);
        assert_eq!(next(&[3, 1, 2]), Some(1));
        assert_eq!(next(&[1, 1, 1]), Some(2));
        assert_eq!(next(&[1, 1, 1]), Some(0));
        assert_eq!(next(&[100, 99, 100]), Some(1));
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for text in [
            "round-robin",
            "least-connections",
            "maglev",
            "maglev-header:x-user",
        ] {
            assert_eq!(text.parse::<Balance>().unwrap().to_string(), text);
        }
        for text in ["", "maglev-header:", "maglev-header:a b", "roundrobin"] {
            let error = text.parse::<Balance>().unwrap_err().to_string();
            assert!(error.contains("maglev"), "{error}");
        }
    }
}
