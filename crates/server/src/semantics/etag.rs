//! Entity tags (RFC 9110 §8.8.3), made from the metadata of a file's version.
//!
//! A tag is strong: it changes whenever a byte may have changed. Writing to a file changes its
//! times, and replacing a file changes its inode; the tag has both, as a hash, since inode numbers
//! are not for clients. A tag of a variant ends with its coding, so that the tag alone identifies
//! the client's variant.
//!
//! A version has no tag if it could only be weak: while a file may change again within the grain of
//! its timestamps, and where the file system does not show all changes. A client that makes a weak
//! tag strong, and sends it in `If-Match`, fails; without a tag it uses the date.

use std::hash::Hasher;
use std::time::Duration;

use host::app::FileMeta;
use siphasher::sip::SipHasher13;

use crate::semantics::encoding::Coding;

/// Within this time after a change, another change may not alter the timestamps: file systems take
/// them from a clock that advances with the scheduler's tick, at least every 10 ms.
const GRAIN_NS: i64 = 20_000_000;

/// The same for file systems that keep whole seconds, or every second one as FAT does.
const GRAIN_NS_COARSE: i64 = 2_000_000_000;

/// Hexadecimal digits of a tag.
const DIGITS: usize = 16;

/// The tag of a version of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ETag {
    digits: [u8; DIGITS],
    /// Coding of the version: the tag ends with it.
    coding: Option<Coding>,
}

impl ETag {
    /// Returns the tag of the version with this metadata.
    ///
    /// If `is_anywhere`, the file may come from any of several machines with copies and the same
    /// times of modification: the tag omits machine-specific metadata.
    pub(crate) fn of_file(meta: &FileMeta, coding: Option<Coding>, is_anywhere: bool) -> ETag {
        let FileMeta {
            size,
            mtime_ns,
            inode,
            device,
            ctime_ns,
            is_weak: _,
        } = *meta;
        // The keys are not secret: the same version has the same tag after a restart.
        let mut hasher = SipHasher13::new();
        hasher.write(&size.to_le_bytes());
        hasher.write(&mtime_ns.to_le_bytes());
        if !is_anywhere {
            hasher.write(&inode.to_le_bytes());
            hasher.write(&device.to_le_bytes());
            hasher.write(&ctime_ns.to_le_bytes());
        }
        ETag {
            digits: hexadecimal(hasher.finish()),
            coding,
        }
    }

    /// Returns the tag of a version that another component has numbered.
    pub(crate) fn of_number(number: u64) -> ETag {
        ETag {
            digits: hexadecimal(number),
            coding: None,
        }
    }

    /// Writes the tag in the form of a field's value.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.push(b'"');
        out.extend_from_slice(&self.digits);
        if let Some(coding) = self.coding {
            out.push(b'-');
            out.extend_from_slice(coding.name().as_bytes());
        }
        out.push(b'"');
    }

    /// True if one of a list of tags is this one (RFC 9110 §13.1.1, §13.1.2).
    pub(crate) fn is_in(&self, value: &[u8], comparison: Comparison) -> bool {
        Tags(value).any(|tag| self.matches(&tag, comparison))
    }

    /// True if the value is this tag alone, by strong comparison, as `If-Range` wants it.
    pub(crate) fn is(&self, value: &[u8]) -> bool {
        let mut tags = Tags(value);
        let first = tags.next();
        first.is_some_and(|tag| self.matches(&tag, Comparison::Strong)) && tags.0.is_empty()
    }

    fn matches(&self, tag: &Tag<'_>, comparison: Comparison) -> bool {
        if tag.is_weak && comparison == Comparison::Strong {
            return false;
        }
        let Some(rest) = tag.opaque.strip_prefix(&self.digits) else {
            return false;
        };
        match self.coding {
            None => rest.is_empty(),
            Some(coding) => rest.strip_prefix(b"-") == Some(coding.name().as_bytes()),
        }
    }
}

/// Returns the coding of the variant that the first tag of a list names, if any.
pub(crate) fn coding_named(value: &[u8]) -> Option<Coding> {
    let tag = Tags(value).next()?;
    let name = tag.opaque.get(DIGITS..)?.strip_prefix(b"-")?;
    let mut all = Coding::ALL.into_iter();
    all.find(|coding| coding.name().as_bytes() == name)
}

/// True if the value of `If-Match` or `If-None-Match` stands for any version.
pub(crate) fn is_any(value: &[u8]) -> bool {
    value.trim_ascii() == b"*"
}

/// True if every change of the file from now on shows in its metadata.
pub(crate) fn is_settled(meta: &FileMeta, unix_time: Duration, is_anywhere: bool) -> bool {
    let changed_ns = if is_anywhere {
        meta.mtime_ns
    } else {
        meta.ctime_ns
    };
    let grain_ns = match changed_ns % 1_000_000_000 {
        0 => GRAIN_NS_COARSE,
        _ => GRAIN_NS,
    };
    let now_ns = i64::try_from(unix_time.as_nanos()).unwrap_or(i64::MAX);
    now_ns.saturating_sub(changed_ns) > grain_ns
}

/// How tags are compared (RFC 9110 §8.8.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    /// Both must be strong: the bytes are the same.
    Strong,
    /// Tags that proxies have made weak, as they do when they compress, match as well.
    Weak,
}

fn hexadecimal(number: u64) -> [u8; DIGITS] {
    let digit = |place: usize| b"0123456789abcdef"[(number >> (60 - 4 * place)) as usize & 15];
    std::array::from_fn(digit)
}

/// An entity tag that a client has sent.
struct Tag<'a> {
    is_weak: bool,
    opaque: &'a [u8],
}

/// The tags of a list, up to the first malformed one. Commas may occur within tags, so they do not
/// separate them.
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

    const META: FileMeta = FileMeta {
        size: 1,
        mtime_ns: 2,
        inode: 3,
        device: 4,
        ctime_ns: 5,
        is_weak: false,
    };

    fn tag() -> ETag {
        ETag::of_file(&META, None, false)
    }

    fn text(tag: &ETag) -> String {
        let mut out = Vec::new();
        tag.write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_tag_is_that_of_the_version() {
        let of = |meta: FileMeta| ETag::of_file(&meta, None, false);
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
        let of = |meta: FileMeta| ETag::of_file(&meta, None, true);
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
    fn a_file_is_settled_once_each_change_shows() {
        let now_ns = NOW.as_nanos() as i64;
        for (changed_ns, expected) in [
            (now_ns - GRAIN_NS - 1, true),
            (now_ns - GRAIN_NS + 1, false),
            (now_ns + 1, false),
            (now_ns - 1_000_000_000, false),
            (now_ns - 2_000_000_000, false),
            (now_ns - 3_000_000_000, true),
            (i64::MAX, false),
            (i64::MIN, true),
        ] {
            let own = FileMeta {
                ctime_ns: changed_ns,
                ..META
            };
            let copied = FileMeta {
                mtime_ns: changed_ns,
                ..META
            };
            assert_eq!(is_settled(&own, NOW, false), expected, "{changed_ns}");
            assert_eq!(is_settled(&copied, NOW, true), expected, "{changed_ns}");
        }
    }

    #[test]
    fn variants_have_tags_of_their_own_also_where_they_are_copies() {
        let codings = [None].into_iter().chain(Coding::ALL.map(Some));
        let tags: Vec<_> = codings
            .map(|coding| ETag::of_file(&META, coding, true))
            .collect();
        for (at, tag) in tags.iter().enumerate() {
            let own = text(tag);
            for (other_at, other) in tags.iter().enumerate() {
                assert_eq!(other.is(own.as_bytes()), other_at == at, "{own}");
            }
            assert_eq!(coding_named(own.as_bytes()), tag.coding, "{own}");
        }
    }

    #[test]
    fn only_a_tag_of_a_variant_names_a_coding() {
        for (value, expected) in [
            ("\"0123456789abcdef-gzip\"", Some(Coding::Gzip)),
            ("W/\"0123456789abcdef-zstd\", \"x\"", Some(Coding::Zstd)),
            ("\"0123456789abcdef\"", None),
            ("\"0123456789abcdef-gz\"", None),
            ("\"0123456789abcdefgzip\"", None),
            ("\"x\", \"0123456789abcdef-gzip\"", None),
            ("0123456789abcdef-gzip", None),
            ("*", None),
            ("", None),
        ] {
            assert_eq!(coding_named(value.as_bytes()), expected, "{value}");
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
        for (value, expected) in [("*", true), (" * ", true), ("\"*\"", false), ("", false)] {
            assert_eq!(is_any(value.as_bytes()), expected, "{value:?}");
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
                coding_named(value);
            }
        }
    }
}
