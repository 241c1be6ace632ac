//! Streams by source and age: where one source holds too many of something, its oldest goes first.
//!
//! Each connection is added when it begins and removed when its peer sends data, so both take
//! constant time: a source has a list of its streams, and sources with equally many form a list.

use std::collections::HashMap;
use std::net::IpAddr;

use slab::Slab;

use crate::app::StreamId;
use crate::tables::keyed_hash::KeyedHash;
use crate::tables::sources::Source;

/// Places for which an empty table keeps memory.
const SPARE_MAX: usize = 1024;

/// The place of a stream, which another has once this is given back.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Place(u32);

/// Ends a list.
const NONE: u32 = u32::MAX;

/// A list of elements that lie in a [`Slab`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct List {
    first: u32,
    last: u32,
}

const EMPTY: List = List {
    first: NONE,
    last: NONE,
};

/// An element of a list.
#[derive(Debug)]
struct Element<T> {
    value: T,
    previous: u32,
    next: u32,
}

impl<T> Element<T> {
    fn new(value: T) -> Element<T> {
        Element {
            value,
            previous: NONE,
            next: NONE,
        }
    }
}

impl List {
    /// Puts an element behind all others.
    fn push<T>(&mut self, elements: &mut Slab<Element<T>>, place: u32) {
        let element = &mut elements[place as usize];
        (element.previous, element.next) = (self.last, NONE);
        match self.last {
            NONE => self.first = place,
            last => elements[last as usize].next = place,
        }
        self.last = place;
    }

    /// Takes an element out, which keeps its place in the slab.
    fn unlink<T>(&mut self, elements: &mut Slab<Element<T>>, place: u32) {
        let &Element { previous, next, .. } = &elements[place as usize];
        match previous {
            NONE => self.first = next,
            previous => elements[previous as usize].next = next,
        }
        match next {
            NONE => self.last = previous,
            next => elements[next as usize].previous = previous,
        }
    }
}

#[derive(Debug)]
struct OfSource {
    source: Source,
    /// The oldest comes first.
    streams: List,
    count: usize,
}

/// Streams, or connections that `T` names, at most once each.
#[derive(Debug)]
pub(crate) struct BySource<T = StreamId> {
    /// A stream, and where its source is.
    streams: Slab<Element<(T, u32)>>,
    sources: Slab<Element<OfSource>>,
    places: HashMap<Source, u32, KeyedHash>,
    /// Sources by the number of their streams less one; within a list, the source that has had its
    /// number for longest comes first. The last list is not empty.
    by_count: Vec<List>,
}

impl<T: Copy> BySource<T> {
    pub(crate) fn new(hash: KeyedHash) -> BySource<T> {
        BySource {
            streams: Slab::new(),
            sources: Slab::new(),
            places: HashMap::with_hasher(hash),
            by_count: Vec::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.streams.len()
    }

    /// Adds a stream, the youngest of all.
    pub(crate) fn add(&mut self, ip: IpAddr, stream: T) -> Place {
        let source = Source::from(ip);
        let at = *self.places.entry(source).or_insert_with(|| {
            let of = OfSource {
                source,
                streams: EMPTY,
                count: 0,
            };
            self.sources.insert(Element::new(of)) as u32
        });
        let place = self.streams.insert(Element::new((stream, at))) as u32;
        let of = &mut self.sources[at as usize].value;
        of.streams.push(&mut self.streams, place);
        of.count += 1;
        let count = of.count;
        self.regroup(at, count - 1, count);
        Place(place)
    }

    /// Removes the stream that was added with this place.
    pub(crate) fn remove(&mut self, place: Place) {
        let Some(&Element { value: (_, at), .. }) = self.streams.get(place.0 as usize) else {
            return;
        };
        let of = &mut self.sources[at as usize].value;
        of.streams.unlink(&mut self.streams, place.0);
        of.count -= 1;
        let count = of.count;
        self.streams.remove(place.0 as usize);
        self.regroup(at, count + 1, count);
        if count == 0 {
            let of = self.sources.remove(at as usize).value;
            self.places.remove(&of.source);
        }
        if self.streams.is_empty() && self.streams.capacity() > SPARE_MAX {
            *self = BySource::new(*self.places.hasher());
        }
    }

    /// Returns the oldest stream of the source with most; of equal sources, the one that has had
    /// its number for longest.
    pub(crate) fn oldest_of_largest(&self) -> Option<T> {
        let largest = self.sources.get(self.by_count.last()?.first as usize)?;
        let oldest = self.streams.get(largest.value.streams.first as usize)?;
        Some(oldest.value.0)
    }

    /// A source has another number of streams.
    fn regroup(&mut self, at: u32, before: usize, after: usize) {
        if before > 0 {
            self.by_count[before - 1].unlink(&mut self.sources, at);
        }
        if after > 0 {
            if self.by_count.len() < after {
                self.by_count.resize(after, EMPTY);
            }
            self.by_count[after - 1].push(&mut self.sources, at);
        }
        while self.by_count.last() == Some(&EMPTY) {
            self.by_count.pop();
        }
    }
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
        streams.remove(third);
        assert_eq!(streams.oldest_of_largest(), Some(StreamId(1)));
        streams.remove(first);
        assert_eq!(streams.oldest_of_largest(), Some(StreamId(2)));
        assert_eq!((streams.len(), streams.sources.len()), (1, 1));
    }

    #[test]
    fn a_crowd_that_has_gone_leaves_no_memory() {
        let mut streams = BySource::new(KeyedHash([1; 16]));
        let crowd: Vec<Place> = (0..2 * SPARE_MAX as u64)
            .map(|number| streams.add(ip(number as u8), StreamId(number)))
            .collect();
        crowd.into_iter().for_each(|place| streams.remove(place));
        let capacities = (streams.streams.capacity(), streams.places.capacity());
        assert_eq!(capacities, (0, 0));
        streams.add(ip(1), StreamId(1));
        assert_eq!(streams.oldest_of_largest(), Some(StreamId(1)));
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_list(
            steps in proptest::collection::vec(
                (0u8..4, any::<prop::sample::Index>(), any::<bool>()),
                0..200,
            ),
        ) {
            let mut streams = BySource::new(KeyedHash([1; 16]));
            let mut list: Vec<(u8, Place, StreamId)> = Vec::new();
            // Sources; the one whose number of streams has changed last is last.
            let mut changed: Vec<u8> = Vec::new();
            for (number, (source, index, adds)) in steps.into_iter().enumerate() {
                let source = if adds {
                    let stream = StreamId(number as u64);
                    list.push((source, streams.add(ip(source), stream), stream));
                    source
                } else if !list.is_empty() {
                    let (source, place, _) = list.remove(index.index(list.len()));
                    streams.remove(place);
                    source
                } else {
                    continue;
                };
                changed.retain(|of| *of != source);
                changed.push(source);
                let count = |source| list.iter().filter(|(of, ..)| *of == source).count();
                let largest = changed.iter().rev().max_by_key(|of| count(**of));
                let oldest = list.iter().find(|(of, ..)| Some(of) == largest);
                prop_assert_eq!(streams.oldest_of_largest(), oldest.map(|(.., stream)| *stream));
                prop_assert_eq!(streams.len(), list.len());
            }
        }
    }
}
