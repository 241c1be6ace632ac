//! Streams by source and age: where one source holds too many of something, its oldest goes first.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::num::NonZeroU64;

use crate::app::StreamId;
use crate::tables::keyed_hash::KeyedHash;
use crate::tables::sources::Source;

/// The place of a stream: older ones have smaller numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Age(NonZeroU64);

/// Streams, at most once each.
#[derive(Debug)]
pub(crate) struct BySource {
    sources: HashMap<Source, BTreeMap<Age, StreamId>, KeyedHash>,
    /// Sources by the number of their streams; among equals, the one with the oldest is last.
    by_count: BTreeMap<(usize, Reverse<Age>), Source>,
    len: usize,
    last: u64,
}

impl BySource {
    pub(crate) fn new(hash: KeyedHash) -> BySource {
        BySource {
            sources: HashMap::with_hasher(hash),
            by_count: BTreeMap::new(),
            len: 0,
            last: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Adds a stream, the youngest of all.
    pub(crate) fn add(&mut self, ip: IpAddr, stream: StreamId) -> Age {
        self.last += 1;
        let age = Age(NonZeroU64::new(self.last).expect("it counts from 1"));
        self.len += 1;
        self.change(ip, |streams| streams.insert(age, stream));
        age
    }

    /// Removes the stream that was added as `age` for this address.
    pub(crate) fn remove(&mut self, ip: IpAddr, age: Age) {
        if self.change(ip, |streams| streams.remove(&age)).is_some() {
            self.len -= 1;
        }
    }

    /// The oldest stream of the source that has most.
    pub(crate) fn oldest_of_largest(&self) -> Option<StreamId> {
        let (_, source) = self.by_count.last_key_value()?;
        let (_, stream) = self.sources.get(source)?.first_key_value()?;
        Some(*stream)
    }

    fn change<T>(
        &mut self,
        ip: IpAddr,
        change: impl FnOnce(&mut BTreeMap<Age, StreamId>) -> T,
    ) -> T {
        let source = Source::from(ip);
        let streams = self.sources.entry(source).or_default();
        if let Some(key) = key(streams) {
            self.by_count.remove(&key);
        }
        let result = change(streams);
        match key(streams) {
            Some(key) => {
                self.by_count.insert(key, source);
            }
            None => {
                self.sources.remove(&source);
            }
        }
        result
    }
}

fn key(streams: &BTreeMap<Age, StreamId>) -> Option<(usize, Reverse<Age>)> {
    let (oldest, _) = streams.first_key_value()?;
    Some((streams.len(), Reverse(*oldest)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ip(source: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, source])
    }

    #[test]
    fn the_oldest_of_the_largest_source_goes_first() {
        let mut streams = BySource::new(KeyedHash([1; 16]));
        let first = streams.add(ip(1), StreamId(1));
        streams.add(ip(2), StreamId(2));
        let third = streams.add(ip(2), StreamId(3));
        assert_eq!(streams.oldest_of_largest(), Some(StreamId(2)));
        streams.remove(ip(2), third);
        assert_eq!(streams.oldest_of_largest(), Some(StreamId(1)));
        streams.remove(ip(1), first);
        streams.remove(ip(1), first);
        assert_eq!(streams.oldest_of_largest(), Some(StreamId(2)));
        assert_eq!((streams.len(), streams.sources.len()), (1, 1));
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_list(
            steps in proptest::collection::vec((0u8..4, any::<bool>()), 0..200),
        ) {
            let mut streams = BySource::new(KeyedHash([1; 16]));
            let mut list: Vec<(u8, Age, StreamId)> = Vec::new();
            for (number, (source, adds)) in steps.into_iter().enumerate() {
                if adds {
                    let stream = StreamId(number as u64);
                    list.push((source, streams.add(ip(source), stream), stream));
                } else if let Some(at) = list.iter().position(|(of, ..)| *of == source) {
                    let (_, age, _) = list.remove(at);
                    streams.remove(ip(source), age);
                }
                let count = |source| list.iter().filter(|(of, ..)| *of == source).count();
                let largest = list.iter().max_by_key(|(of, age, _)| (count(*of), Reverse(*age)));
                prop_assert_eq!(streams.oldest_of_largest(), largest.map(|(.., stream)| *stream));
                prop_assert_eq!(streams.len(), list.len());
            }
        }
    }
}
