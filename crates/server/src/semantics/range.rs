//! `Range`: which bytes of a file are asked for (RFC 9110 §14).
//!
//! A request of a hundred bytes may ask for the same gigabytes many times over, or for thousands of
//! crumbs each of which costs a part of a multipart body. So parts that overlap, or whose gap is
//! smaller than what a part costs, become one, and who asks for more than a few gets the whole file
//! (RFC 9110 §17.15): a response never has a byte of the file twice.

use std::ops::Range;

use http_message::framing::list;
use http_message::number;

/// Parts no farther apart than this become one, in bytes: the head of a part is as long (RFC 9110
/// §15.3.7.2).
const GAP_BYTES_MAX: u64 = 100;

/// What a request selects of a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Selection {
    /// All of it: the field makes no sense, or asks for too much at once.
    Whole,
    /// One part.
    One(Range<u64>),
    /// Two or more parts, none of which touches another, in the order in which they were asked for.
    Several(Vec<Range<u64>>),
    /// Nothing that it has: 416.
    Unsatisfiable,
}

/// What a `Range` field with this value selects of a file of `size_bytes`; at most `ranges_max`
/// ranges of it.
pub(crate) fn select(value: &[u8], size_bytes: u64, ranges_max: usize) -> Selection {
    let Some(set) = byte_range_set(value) else {
        return Selection::Whole;
    };
    let mut parts = Parts::default();
    let mut count = 0;
    for spec in list(set) {
        count += 1;
        // RFC 9110 §14.2: a field that is invalid in any of its ranges may be ignored.
        let Some(spec) = Spec::parse(spec).filter(|_| count <= ranges_max) else {
            return Selection::Whole;
        };
        match spec.of(size_bytes) {
            Some(range) if range.is_empty() => return Selection::Whole,
            Some(range) => parts.add(range),
            None => {}
        }
    }
    match (parts.first, parts.rest) {
        _ if count == 0 => Selection::Whole,
        (None, _) => Selection::Unsatisfiable,
        (Some(only), rest) if rest.is_empty() => Selection::One(only),
        (Some(first), mut rest) => {
            rest.insert(0, first);
            Selection::Several(rest)
        }
    }
}

/// What follows `bytes=`; there are no other units (RFC 9110 §14.1).
fn byte_range_set(value: &[u8]) -> Option<&[u8]> {
    let (unit, rest) = value.split_at_checked("bytes".len())?;
    let set = rest.strip_prefix(b"=")?;
    unit.eq_ignore_ascii_case(b"bytes").then_some(set)
}

/// One range as it was written.
#[derive(Clone, Copy)]
enum Spec {
    /// From an offset to another, which is part of it.
    Between(u64, u64),
    /// The last so many bytes.
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

    /// What it names of a file, `None` if nothing of it is there. Empty only for all of an empty
    /// file, which is no range: the end of one, or `0-`, with which clients ask for any file from
    /// its start.
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

/// Parts that are apart. The usual one costs no allocation.
#[derive(Default)]
struct Parts {
    first: Option<Range<u64>>,
    rest: Vec<Range<u64>>,
}

impl Parts {
    /// Adds a range, and to it all that it comes near to, in the place of the first of these.
    fn add(&mut self, mut range: Range<u64>) {
        let Some(first) = &mut self.first else {
            self.first = Some(range);
            return;
        };
        let mut place = self.rest.len();
        // A range that grows comes near to others, so all are looked at again.
        while let Some(near) = self.rest.iter().position(|part| are_near(part, &range)) {
            range = cover(&self.rest.remove(near), &range);
            place = place.min(near);
        }
        if are_near(first, &range) {
            *first = cover(first, &range);
            while let Some(near) = self.rest.iter().position(|part| are_near(part, first)) {
                *first = cover(&self.rest.remove(near), first);
            }
        } else {
            self.rest.insert(place.min(self.rest.len()), range);
        }
    }
}

fn are_near(one: &Range<u64>, other: &Range<u64>) -> bool {
    let begins_before = |one: &Range<u64>, end: u64| one.start <= end.saturating_add(GAP_BYTES_MAX);
    begins_before(one, other.end) && begins_before(other, one.end)
}

fn cover(one: &Range<u64>, other: &Range<u64>) -> Range<u64> {
    one.start.min(other.start)..one.end.max(other.end)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select as any_of;

    use super::*;

    const RANGES_MAX: usize = 4;

    fn selected(value: &str, size_bytes: u64) -> Selection {
        select(value.as_bytes(), size_bytes, RANGES_MAX)
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
        // RFC 9110 §14.1.2: all of it, if it is shorter; and no Content-Range can say that of
        // nothing.
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
        assert_eq!(selected("bytes=0-0,1-1,2-2,3-3,4-4", 9), Selection::Whole);
        assert_eq!(
            selected(&format!("bytes={}", "0-,".repeat(5000)), 9),
            Selection::Whole
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
                Selection::Whole | Selection::Unsatisfiable => {}
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
                Selection::Whole => panic!("{specs:?} is valid"),
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
            select(&value, size_bytes, RANGES_MAX);
            select(&[b"bytes=", &value[..]].concat(), size_bytes, RANGES_MAX);
        }
    }
}
