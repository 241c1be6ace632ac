//! `Range`: which bytes of a file are asked for (RFC 9110 §14).
//!
//! A request of a hundred bytes may ask for the same gigabytes many times over, or for thousands of
//! tiny ranges, each of which costs a part of a multipart body. So overlapping ranges become one,
//! and so do ranges whose gap is no longer than the head of a part: a response never has a byte of
//! the file twice, and a multipart body is at most one such head longer than the file. A request
//! for too many ranges gets the whole file (RFC 9110 §17.15).

use std::ops::Range;

use http_message::framing::list;
use http_message::number;

/// The part of a file that a request selects.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Selection {
    /// The whole file: the field is invalid.
    Whole,
    /// The whole file: the field has more ranges than the limit.
    TooMany,
    /// One part.
    One(Range<u64>),
    /// Two or more parts that do not touch, in the order of the request.
    Several(Vec<Range<u64>>),
    /// No byte of the file: 416.
    Unsatisfiable,
}

/// Limits on the number and the distance of parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Most ranges of a request.
    pub(crate) ranges_max: usize,
    /// Longest gap across which parts become one, in bytes: the length of a part's head.
    pub(crate) gap_bytes_max: u64,
}

/// Returns the part or parts that a `Range` field with this value selects of a file of
/// `size_bytes`.
pub(crate) fn select(value: &[u8], size_bytes: u64, limits: Limits) -> Selection {
    let Some(set) = byte_range_set(value) else {
        return Selection::Whole;
    };
    let (mut first, mut rest) = (None, Vec::new());
    let mut count = 0;
    for spec in list(set) {
        count += 1;
        if count > limits.ranges_max {
            return Selection::TooMany;
        }
        // RFC 9110 §14.2: a field that is invalid in any of its ranges may be ignored.
        let Some(spec) = Spec::parse(spec) else {
            return Selection::Whole;
        };
        match spec.of(size_bytes) {
            Some(range) if range.is_empty() => return Selection::Whole,
            // The usual one costs no allocation.
            Some(range) if first.is_none() => first = Some(range),
            Some(range) => rest.push(range),
            None => {}
        }
    }
    match first {
        _ if count == 0 => Selection::Whole,
        None => Selection::Unsatisfiable,
        Some(only) if rest.is_empty() => Selection::One(only),
        Some(first) => {
            rest.insert(0, first);
            merged(rest, limits.gap_bytes_max)
        }
    }
}

/// True if the value is a set of byte ranges, for a file of any size.
pub(crate) fn is_valid(value: &[u8]) -> bool {
    byte_range_set(value).is_some_and(|set| {
        let mut specs = list(set).peekable();
        specs.peek().is_some() && specs.all(|spec| Spec::parse(spec).is_some())
    })
}

/// Joins ranges that overlap or have no more than `gap_bytes_max` between them, at the place of the
/// first.
fn merged(ranges: Vec<Range<u64>>, gap_bytes_max: u64) -> Selection {
    let mut parts: Vec<(usize, Range<u64>)> = ranges.into_iter().enumerate().collect();
    parts.sort_unstable_by_key(|(place, range)| (range.start, *place));
    parts.dedup_by(|(place, range), (kept_place, kept)| {
        let is_near = range.start <= kept.end.saturating_add(gap_bytes_max);
        if is_near {
            kept.end = kept.end.max(range.end);
            *kept_place = (*kept_place).min(*place);
        }
        is_near
    });
    if let [(_, only)] = &parts[..] {
        return Selection::One(only.clone());
    }
    parts.sort_unstable_by_key(|&(place, _)| place);
    Selection::Several(parts.into_iter().map(|(_, range)| range).collect())
}

/// Returns the value after `bytes=`; there are no other units (RFC 9110 §14.1).
fn byte_range_set(value: &[u8]) -> Option<&[u8]> {
    let (unit, rest) = value.split_at_checked("bytes".len())?;
    let set = rest.strip_prefix(b"=")?;
    unit.eq_ignore_ascii_case(b"bytes").then_some(set)
}

/// One range of the field.
#[derive(Clone, Copy)]
enum Spec {
    /// From an offset to another, inclusive.
    Between(u64, u64),
    /// The last bytes of the file, by their number.
    Last(u64),
}

impl Spec {
    fn parse(text: &[u8]) -> Option<Spec> {
        let dash = text.iter().position(|&byte| byte == b'-')?;
        let (first, last) = (&text[..dash], &text[dash + 1..]);
        match (first, last) {
            (b"", count) => number::saturating(count).map(Spec::Last),
            (first, b"") => Some(Spec::Between(number::saturating(first)?, u64::MAX)),
            (first, last) => {
                let (first, last) = (number::saturating(first)?, number::saturating(last)?);
                (first <= last).then_some(Spec::Between(first, last))
            }
        }
    }

    /// Returns the range within a file of `size_bytes`, `None` if it has no byte. Empty only for an
    /// empty file as a whole, which is no range: its end, or `0-`, with which clients request any
    /// file from its start.
    fn of(self, size_bytes: u64) -> Option<Range<u64>> {
        match self {
            Spec::Between(0, u64::MAX) if size_bytes == 0 => Some(0..0),
            Spec::Between(first, last) => {
                (first < size_bytes).then(|| first..last.saturating_add(1).min(size_bytes))
            }
            Spec::Last(0) => None,
            Spec::Last(count) => Some(size_bytes.saturating_sub(count)..size_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select as any_of;

    use super::*;

    const RANGES_MAX: usize = 4;
    const GAP_BYTES_MAX: u64 = 100;
    const LIMITS: Limits = Limits {
        ranges_max: RANGES_MAX,
        gap_bytes_max: GAP_BYTES_MAX,
    };

    fn selected(value: &str, size_bytes: u64) -> Selection {
        select(value.as_bytes(), size_bytes, LIMITS)
    }

    fn are_near(one: &Range<u64>, other: &Range<u64>) -> bool {
        let begins_before =
            |one: &Range<u64>, end: u64| one.start <= end.saturating_add(GAP_BYTES_MAX);
        begins_before(one, other.end) && begins_before(other, one.end)
    }

    #[test]
    fn one_range_is_first_to_last_from_first_or_the_end() {
        for (value, size_bytes, range) in [
            ("bytes=0-0", 1000, 0..1),
            ("bytes=0-999", 1000, 0..1000),
            ("bytes=0-1000", 1000, 0..1000),
            ("bytes=10-19", 1000, 10..20),
            ("Bytes=10-", 1000, 10..1000),
            ("bytes=999-", 1000, 999..1000),
            ("bytes=-1", 1000, 999..1000),
            ("bytes=-1000", 1000, 0..1000),
            ("bytes=-99999", 1000, 0..1000),
            ("bytes= , 1-2 ,", 1000, 1..3),
            ("bytes=0-99999999999999999999999", 1000, 0..1000),
            ("bytes=-99999999999999999999999", 1000, 0..1000),
            (
                "bytes=4294967296-4294967297",
                5 << 30,
                1 << 32..(1 << 32) + 2,
            ),
            ("bytes=0-18446744073709551615", u64::MAX, 0..u64::MAX),
        ] {
            assert_eq!(
                selected(value, size_bytes),
                Selection::One(range),
                "{value}"
            );
        }
    }

    #[test]
    fn what_makes_no_sense_is_as_if_it_were_not_there() {
        for value in [
            "",
            "bytes",
            "bytes=",
            "bytes=,",
            "bytes=-",
            "bytes=a-b",
            "bytes=1",
            "bytes=2-1",
            "bytes=1-2,2-1",
            "bytes=1-2;3-4",
            "bytes=1-2-3",
            "bytes=+1-2",
            "bytes=0x1-2",
            "bytes=1 - 2",
            "bytes =1-2",
            "bytes: 1-2",
            "byte=1-2",
            "lines=1-2",
            "bytes=--1",
            "\u{a0}bytes=1-2",
        ] {
            assert_eq!(selected(value, 1000), Selection::Whole, "{value}");
        }
    }

    #[test]
    fn what_is_beyond_the_end_is_unsatisfiable() {
        for (value, size_bytes) in [
            ("bytes=1000-", 1000),
            ("bytes=1000-2000,3000-", 1000),
            ("bytes=-0", 1000),
            ("bytes=18446744073709551616-", 1000),
            ("bytes=0-0", 0),
            ("bytes=1-", 0),
            ("bytes=-0", 0),
        ] {
            assert_eq!(
                selected(value, size_bytes),
                Selection::Unsatisfiable,
                "{value}"
            );
        }
        // RFC 9110 §14.1.2: the whole file, if it is shorter; no Content-Range can express an empty
        // one.
        assert_eq!(selected("bytes=-1", 0), Selection::Whole);
    }

    #[test]
    #[expect(
        clippy::single_range_in_vec_init,
        reason = "one range is what is left of several"
    )]
    fn ranges_that_touch_or_nearly_do_are_one() {
        for (value, ranges) in [
            ("bytes=0-9,10-19", &[0..20][..]),
            ("bytes=0-9,110-119", &[0..120]),
            ("bytes=0-9,111-119", &[0..10, 111..120]),
            ("bytes=500-599,0-9", &[500..600, 0..10]),
            ("bytes=500-599,0-9,550-700", &[500..701, 0..10]),
            ("bytes=900-,0-9,500-599,5-", &[0..1000]),
            ("bytes=0-9,900-,300-310,5-400", &[0..401, 900..1000]),
            ("bytes=900-,0-9,300-310,5-400", &[900..1000, 0..401]),
            ("bytes=0-,0-,0-,0-", &[0..1000]),
            ("bytes=0-0,500-500,2000-", &[0..1, 500..501]),
            ("bytes=-1,0-0", &[999..1000, 0..1]),
        ] {
            let expected = match ranges {
                [only] => Selection::One(only.clone()),
                several => Selection::Several(several.to_vec()),
            };
            assert_eq!(selected(value, 1000), expected, "{value}");
        }
    }

    #[test]
    fn too_many_ranges_are_all() {
        assert_eq!(selected("bytes=0-0,1-1,2-2,3-3", 9), Selection::One(0..4));
        assert_eq!(selected("bytes=0-0,1-1,2-2,3-3,4-4", 9), Selection::TooMany);
        assert_eq!(
            selected(&format!("bytes={}", "0-,".repeat(5000)), 9),
            Selection::TooMany
        );
    }

    proptest! {
        #[test]
        fn a_selection_is_within_the_file_and_apart(
            pieces in vec(any_of(vec![
                "bytes=", "BYTES=", "-", ",", " ", "0", "1", "99", "250", "1000",
                "18446744073709551615",
                "99999999999999999999", "\t", "x", "=", "--", ",,",
            ]), 0..20),
            size_bytes in prop_oneof![0..2000u64, any::<u64>()],
        ) {
            let value = pieces.concat();
            match selected(&value, size_bytes) {
                Selection::Whole | Selection::TooMany | Selection::Unsatisfiable => {}
                Selection::One(range) => {
                    prop_assert!(range.start < range.end && range.end <= size_bytes);
                }
                Selection::Several(ranges) => {
                    prop_assert!((2..=RANGES_MAX).contains(&ranges.len()));
                    for (at, range) in ranges.iter().enumerate() {
                        prop_assert!(range.start < range.end && range.end <= size_bytes);
                        prop_assert!(ranges[..at].iter().all(|other| !are_near(other, range)));
                    }
                }
            }
        }

        #[test]
        fn a_selection_has_every_byte_that_was_asked_for(
            ranges in vec((0..1200u64, 0..300u64), 1..=RANGES_MAX),
        ) {
            const SIZE_BYTES: u64 = 1000;
            let specs: Vec<String> = ranges
                .iter()
                .map(|(first, more)| format!("{first}-{}", first + more))
                .collect();
            let chosen = match selected(&format!("bytes={}", specs.join(",")), SIZE_BYTES) {
                Selection::Whole | Selection::TooMany => panic!("{specs:?} is valid"),
                Selection::Unsatisfiable => Vec::new(),
                Selection::One(range) => vec![range],
                Selection::Several(ranges) => ranges,
            };
            for byte in 0..SIZE_BYTES {
                let is_asked_for = ranges
                    .iter()
                    .any(|(first, more)| (*first..=first + more).contains(&byte));
                let times = chosen.iter().filter(|range| range.contains(&byte)).count();
                prop_assert!(times <= 1 && (times == 1 || !is_asked_for), "{} in \
                    {:?}", byte, chosen);
            }
        }

        #[test]
        fn arbitrary_bytes_select_something(
            value in vec(any::<u8>(), 0..64),
            size_bytes in any::<u64>(),
        ) {
            for value in [value.clone(), [b"bytes=", &value[..]].concat()] {
                if select(&value, size_bytes, LIMITS) != Selection::Whole {
                    prop_assert!(value.starts_with(b"bytes="), "{:?}", value);
                }
                is_valid(&value);
            }
        }
    }
}
