//! Entity tags (RFC 9110 §8.8.3), made from what is known of a file's version.
//!
//! A tag is strong: it changes whenever a byte may have. Writing to a file changes its times, and
//! putting another in its place changes its inode; all of that is in the tag, as a hash, since
//! inode numbers are not for clients. A file that has changed within the grain of its timestamps
//! may change again without their showing it. For so long its tag is weak, and matches nothing,
//! then or later. Where the file system never shows all changes, the tag is weak, and matches by
//! weak comparison.

use std::hash::Hasher;
use std::time::Duration;

use host::app::FileMeta;
use siphasher::sip::SipHasher13;

use crate::semantics::encoding::Coding;

/// Within this time after a change a further one may leave the timestamps as they are: file systems
/// take them from a clock that advances with the scheduler's tick, every 10 ms at the least
/// frequent.
const GRAIN_NS: i64 = 20_000_000;

/// The same on file systems that keep whole seconds, or every second one as FAT does.
const GRAIN_NS_COARSE: i64 = 2_000_000_000;

/// Hexadecimal digits of a tag.
const DIGITS: usize = 16;

/// The tag of a version of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ETag {
    opaque: [u8; DIGITS],
    strength: Strength,
}

/// What a tag is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Strength {
    /// The bytes are the same.
    Strong,
    /// They are the same as far as the file system tells.
    Weak,
    /// They may have changed since; it matches nothing.
    Unsettled,
}

impl ETag {
    /// The tag of the version that this metadata tells of, at this time since the epoch.
    ///
    /// Where `is_anywhere`, the file may come from any of several machines that have copies of it,
    /// with the same times of modification: what is each machine's own is left out.
    pub(crate) fn new(
        meta: &FileMeta,
        coding: Option<Coding>,
        unix_time: Duration,
        is_anywhere: bool,
    ) -> ETag {
        let FileMeta {
            size,
            mtime_ns,
            inode,
            device,
            ctime_ns,
            is_weak,
        } = *meta;
        // Keys that are no secret: the same version has the same tag after a restart.
        let mut hasher = SipHasher13::new();
        hasher.write(&size.to_le_bytes());
        hasher.write(&mtime_ns.to_le_bytes());
        if !is_anywhere {
            hasher.write(&inode.to_le_bytes());
            hasher.write(&device.to_le_bytes());
            hasher.write(&ctime_ns.to_le_bytes());
        }
        // Copies have no inode to tell variants apart, which often have their file's time, and may
        // have the same size.
        if let Some(coding) = coding {
            hasher.write(coding.name().as_bytes());
        }
        let changed_ns = if is_anywhere { mtime_ns } else { ctime_ns };
        let strength = match is_settled(changed_ns, unix_time) {
            true if is_weak => Strength::Weak,
            true => Strength::Strong,
            false => Strength::Unsettled,
        };
        // Sent back later, it must not match what is said then: that may be of other bytes, with
        // the same times.
        if strength == Strength::Unsettled {
            hasher.write(b"unsettled");
        }
        ETag {
            opaque: hexadecimal(hasher.finish()),
            strength,
        }
    }

    /// The tag of a version that another component tells from others by this number.
    pub(crate) fn of_number(number: u64) -> ETag {
        ETag {
            opaque: hexadecimal(number),
            strength: Strength::Strong,
        }
    }

    /// True if the bytes may not be the same although the tag is.
    pub(crate) fn is_weak(&self) -> bool {
        self.strength == Strength::Weak
    }

    /// Writes the tag as a field's value has it.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        if self.strength != Strength::Strong {
            out.extend_from_slice(b"W/");
        }
        out.push(b'"');
        out.extend_from_slice(&self.opaque);
        out.push(b'"');
    }

    /// What distinguishes it from others, as text.
    pub(crate) fn opaque(&self) -> &[u8] {
        &self.opaque
    }

    /// True if one of a list of tags is this one (RFC 9110 §13.1.1, §13.1.2). `*` is any.
    pub(crate) fn is_in(&self, value: &[u8], comparison: Comparison) -> bool {
        value.trim_ascii() == b"*" || Tags(value).any(|tag| self.matches(&tag, comparison))
    }

    /// True if the value is this tag alone, by strong comparison, as `If-Range` wants it.
    pub(crate) fn is(&self, value: &[u8]) -> bool {
        let mut tags = Tags(value);
        let first = tags.next();
        first.is_some_and(|tag| self.matches(&tag, Comparison::Strong)) && tags.0.is_empty()
    }

    fn matches(&self, tag: &Tag<'_>, comparison: Comparison) -> bool {
        let is_comparable = match (self.strength, comparison) {
            (Strength::Strong, Comparison::Strong) => !tag.is_weak,
            (Strength::Strong | Strength::Weak, Comparison::Weak) => true,
            (Strength::Weak, Comparison::Strong) | (Strength::Unsettled, _) => false,
        };
        is_comparable && tag.opaque == self.opaque
    }
}

/// How tags are compared (RFC 9110 §8.8.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    /// Both must be strong: the bytes are the same.
    Strong,
    /// What proxies have made weak, as they do when they compress, is good enough.
    Weak,
}

fn hexadecimal(number: u64) -> [u8; DIGITS] {
    let digit = |place: usize| b"0123456789abcdef"[(number >> (60 - 4 * place)) as usize & 15];
    std::array::from_fn(digit)
}

/// Whether a change from now on would show in the timestamps.
fn is_settled(changed_ns: i64, unix_time: Duration) -> bool {
    let grain_ns = match changed_ns % 1_000_000_000 {
        0 => GRAIN_NS_COARSE,
        _ => GRAIN_NS,
    };
    let now_ns = i64::try_from(unix_time.as_nanos()).unwrap_or(i64::MAX);
    now_ns.saturating_sub(changed_ns) > grain_ns
}

/// An entity tag that a client has sent.
struct Tag<'a> {
    is_weak: bool,
    opaque: &'a [u8],
}

/// The tags of a list, as far as it is one. Commas may stand within tags, so they do not divide it.
struct Tags<'a>(&'a [u8]);

impl<'a> Iterator for Tags<'a> {
    type Item = Tag<'a>;

    fn next(&mut self) -> Option<Tag<'a>> {
        let is_between = |byte: &u8| matches!(byte, b' ' | b'\t' | b',');
        let start = self.0.iter().position(|byte| !is_between(byte));
        let rest = &self.0[start.unwrap_or(self.0.len())..];
        // RFC 9110 §8.8.3: "W/" is case-sensitive.
        let (is_weak, quoted) = match rest.strip_prefix(b"W/") {
            Some(quoted) => (true, quoted),
            None => (false, rest),
        };
        let tag = quoted.strip_prefix(b"\"").and_then(|text| {
            let end = text.iter().position(|&byte| byte == b'"')?;
            self.0 = &text[end + 1..];
            Some(Tag {
                is_weak,
                opaque: &text[..end],
            })
        });
        if tag.is_none() {
            self.0 = rest;
        }
        tag
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    const NOW: Duration = Duration::from_secs(1_000_000);

    const LATER: Duration = Duration::from_secs(1_000_010);

    const META: FileMeta = FileMeta {
        size: 1,
        mtime_ns: 2,
        inode: 3,
        device: 4,
        ctime_ns: 5,
        is_weak: false,
    };

    fn tag() -> ETag {
        ETag::new(&META, None, NOW, false)
    }

    fn text(tag: &ETag) -> String {
        let mut out = Vec::new();
        tag.write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_tag_is_that_of_the_version() {
        let of = |meta: FileMeta| ETag::new(&meta, None, NOW, false);
        assert_eq!(of(META), tag());
        for other in [
            FileMeta { size: 9, ..META },
            FileMeta {
                mtime_ns: 9,
                ..META
            },
            FileMeta { inode: 9, ..META },
            FileMeta { device: 9, ..META },
            FileMeta {
                ctime_ns: 9,
                ..META
            },
            FileMeta {
                inode: 4,
                device: 3,
                ..META
            },
        ] {
            assert_ne!(of(other), tag(), "{other:?}");
        }
    }

    #[test]
    fn a_tag_stays_what_it_is_across_restarts_and_upgrades() {
        assert_eq!(text(&tag()), "\"0ac1337336f43ed3\"");
    }

    #[test]
    fn copies_on_other_machines_have_the_same_tag() {
        let of = |meta: FileMeta| ETag::new(&meta, None, NOW, true);
        let copy = FileMeta {
            inode: 7,
            device: 8,
            ctime_ns: 9,
            ..META
        };
        assert_eq!(of(copy), of(META));
        assert_ne!(of(FileMeta { size: 9, ..META }), of(META));
        assert_ne!(
            of(FileMeta {
                mtime_ns: 9,
                ..META
            }),
            of(META)
        );
    }

    #[test]
    fn where_changes_may_leave_no_trace_the_tag_is_weak_and_matches_by_weak_comparison() {
        let of = |is_weak| ETag::new(&FileMeta { is_weak, ..META }, None, NOW, false);
        let (weak, strong) = (of(true), of(false));
        assert!(text(&weak).starts_with("W/") && !text(&strong).starts_with("W/"));
        for tag in [text(&weak), text(&strong)] {
            assert!(weak.is_in(tag.as_bytes(), Comparison::Weak), "{tag}");
            assert!(!weak.is_in(tag.as_bytes(), Comparison::Strong), "{tag}");
            assert!(!weak.is(tag.as_bytes()), "{tag}");
        }
    }

    #[test]
    fn what_has_just_changed_has_a_weak_tag_that_matches_nothing() {
        let now_ns = NOW.as_nanos() as i64;
        for (ctime_ns, is_strong) in [
            (now_ns - GRAIN_NS - 1, true),
            (now_ns - GRAIN_NS + 1, false),
            (now_ns + 1, false),
            (now_ns - 1_000_000_000, false),
            (now_ns - 2_000_000_000, false),
            (now_ns - 3_000_000_000, true),
            (i64::MAX, false),
            (i64::MIN, true),
        ] {
            let tag = ETag::new(&FileMeta { ctime_ns, ..META }, None, NOW, false);
            assert_eq!(!text(&tag).starts_with("W/"), is_strong, "{ctime_ns}");
            let itself = text(&tag);
            assert_eq!(tag.is_in(itself.as_bytes(), Comparison::Weak), is_strong);
            assert!(tag.is_in(b"*", Comparison::Strong));
            let settled = ETag::new(&FileMeta { ctime_ns, ..META }, None, LATER, false);
            let is_known = settled.is_in(itself.as_bytes(), Comparison::Weak);
            assert_eq!(is_known, is_strong, "{ctime_ns}");
        }
    }

    #[test]
    fn variants_have_tags_of_their_own_also_where_they_are_copies() {
        let codings = [None].into_iter().chain(Coding::ALL.map(Some));
        let tags: Vec<_> = codings
            .map(|coding| text(&ETag::new(&META, coding, NOW, true)))
            .collect();
        for (at, tag) in tags.iter().enumerate() {
            assert!(!tags[..at].contains(tag), "{tags:?}");
        }
    }

    #[test]
    fn lists_are_searched_for_the_tag() {
        let own = text(&tag());
        let bare = own.trim_matches('"');
        for (value, weak, strong) in [
            (own.clone(), true, true),
            (format!("W/{own}"), true, false),
            (format!("\"a\", {own}"), true, true),
            (format!("\"a,b\"\t,,W/\"c\" ,W/{own},"), true, false),
            (format!("\"a\"{own}"), true, true),
            ("*".to_owned(), true, true),
            (" * ".to_owned(), true, true),
            (String::new(), false, false),
            ("\"\"".to_owned(), false, false),
            (bare.to_owned(), false, false),
            (format!("w/{own}"), false, false),
            (format!("W/ {own}"), false, false),
            (format!("\"{bare}"), false, false),
            (format!("\"a, {own}"), false, false),
            (format!("x, {own}"), false, false),
            (format!("*, {own}"), false, false),
            ("W/".to_owned(), false, false),
            ("\"*\"".to_owned(), false, false),
        ] {
            let is_in = |comparison| tag().is_in(value.as_bytes(), comparison);
            assert_eq!(is_in(Comparison::Weak), weak, "{value:?}");
            assert_eq!(is_in(Comparison::Strong), strong, "{value:?}");
        }
        assert!(tag().is(own.as_bytes()));
        for value in [
            format!("W/{own}"),
            format!("{own}, {own}"),
            "*".to_owned(),
            String::new(),
        ] {
            assert!(!tag().is(value.as_bytes()), "{value:?}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_lists_end(
            pieces in vec(select(vec!["W/", "\"", "*", ",", " ", "x", "\u{e9}"]), 0..30),
            bytes in vec(any::<u8>(), 0..64),
        ) {
            let text = pieces.concat();
            for value in [text.as_bytes(), &bytes] {
                prop_assert!(Tags(value).count() <= value.len());
                tag().is(value);
            }
        }
    }
}
