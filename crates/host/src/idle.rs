//! Which idle connections go when the table of connections is full.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;

use crate::app::StreamId;
use crate::sources::Source;

/// A kept-alive connection that waits for another request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Idle {
    pub(crate) stream: StreamId,
    pub(crate) remote: IpAddr,
    /// Since when, in microseconds.
    pub(crate) since_us: u64,
}

/// At most `count` of these connections, the first to go last: of the source with most the one that has been idle
/// longest, and so on with what is left.
pub(crate) fn victims(mut idle: Vec<Idle>, count: usize) -> Vec<StreamId> {
    idle.sort_unstable_by_key(|idle| Reverse((idle.since_us, idle.stream)));
    // How many of its source have been idle for a shorter time: that many it leaves behind when it goes.
    let mut seen: HashMap<Source, usize> = HashMap::new();
    let mut ranked: Vec<_> = idle
        .into_iter()
        .map(|idle| {
            let behind = seen.entry(Source::from(idle.remote)).or_default();
            *behind += 1;
            (*behind, Reverse(idle.since_us), idle.stream)
        })
        .collect();
    ranked.sort_unstable();
    let excess = ranked.len().saturating_sub(count);
    ranked.drain(..excess);
    ranked.into_iter().map(|(.., stream)| stream).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idle(stream: u64, source: u8, since_us: u64) -> Idle {
        Idle {
            stream: StreamId(stream),
            remote: IpAddr::from([192, 0, 2, source]),
            since_us,
        }
    }

    #[test]
    fn the_longest_idle_of_the_largest_source_goes_first() {
        let all = vec![
            idle(1, 1, 10),
            idle(2, 2, 50),
            idle(3, 2, 40),
            idle(4, 2, 60),
            idle(5, 3, 30),
            idle(6, 3, 70),
        ];
        let mut order = victims(all.clone(), 10);
        order.reverse();
        // Source 2 has three, then 2 and 3 have two each, then all have one.
        assert_eq!(order, [3, 5, 2, 1, 4, 6].map(StreamId));
        let mut first = victims(all, 2);
        first.reverse();
        assert_eq!(first, [3, 5].map(StreamId));
        assert_eq!(victims(Vec::new(), 2), []);
    }
}
