//! Connections in TIME-WAIT, which hold no full connection any more (RFC 9293 §3.6.1).

use std::collections::{HashMap, VecDeque};

use tcp::{Instant, TimeWait};
use wire::tcp::{Header, Segment};

use crate::connections::{KeyedHash, Tuple};

/// Most of them at once. When there are more, the oldest ends early: that only weakens the protection
/// against old duplicates, which timestamps and random sequence numbers give as well.
const ENTRIES_MAX: usize = 1 << 17;

/// All connections in TIME-WAIT, found by their addresses and ports.
#[derive(Debug)]
pub(crate) struct TimeWaits {
    by_tuple: HashMap<Tuple, TimeWait, KeyedHash>,
    /// By the time they were last seen to expire. An entry that has been prolonged is queued anew when
    /// its turn comes; one that is gone is skipped.
    expiry: VecDeque<(Instant, Tuple)>,
}

/// What a segment for a connection in TIME-WAIT makes the stack do.
#[derive(Debug)]
pub(crate) enum Answer {
    /// There is no such connection.
    Unknown,
    /// A SYN may take its place (RFC 9293 §3.10.7.4, RFC 6191); it is gone.
    Replaced(TimeWait),
    /// It has dealt with it; this is to be sent, if anything.
    Handled(Option<Header>),
}

impl TimeWaits {
    pub(crate) fn new(hash: KeyedHash) -> TimeWaits {
        TimeWaits {
            by_tuple: HashMap::with_hasher(hash),
            expiry: VecDeque::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_tuple.len()
    }

    pub(crate) fn insert(&mut self, tuple: Tuple, time_wait: TimeWait) {
        self.expiry.push_back((time_wait.expires(), tuple));
        self.by_tuple.insert(tuple, time_wait);
        if self.expiry.len() > ENTRIES_MAX
            && let Some((at, oldest)) = self.expiry.pop_front()
            && self.by_tuple.get(&oldest).map(TimeWait::expires) == Some(at)
        {
            self.by_tuple.remove(&oldest);
        }
    }

    pub(crate) fn on_segment(
        &mut self,
        now: Instant,
        tuple: &Tuple,
        segment: &Segment<'_>,
    ) -> Answer {
        let Some(time_wait) = self.by_tuple.get_mut(tuple) else {
            return Answer::Unknown;
        };
        if time_wait.expires() <= now || time_wait.may_be_replaced_by(segment) {
            let old = *time_wait;
            self.by_tuple.remove(tuple);
            return Answer::Replaced(old);
        }
        Answer::Handled(time_wait.on_segment(now, segment))
    }

    /// Forgets those that have expired.
    pub(crate) fn expire(&mut self, now: Instant) {
        while let Some(&(at, tuple)) = self.expiry.front() {
            if at > now {
                return;
            }
            self.expiry.pop_front();
            match self.by_tuple.get(&tuple) {
                Some(time_wait) if time_wait.expires() > now => {
                    self.expiry.push_back((time_wait.expires(), tuple));
                }
                Some(_) => {
                    self.by_tuple.remove(&tuple);
                }
                None => {}
            }
        }
    }

    /// When [`TimeWaits::expire`] should next be called.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.expiry.front().map(|&(at, _)| at)
    }
}
