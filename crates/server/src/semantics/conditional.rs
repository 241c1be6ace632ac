//! Conditional requests (RFC 9110 §13): whether a file is the version that the client assumes.

use std::time::{Duration, SystemTime};

use host::app::FileMeta;

use crate::semantics::date;
use crate::semantics::encoding::Coding;
use crate::semantics::etag::{self, Comparison, ETag};
use crate::semantics::fields::{Field, Head};

/// Properties that distinguish versions of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Validators {
    /// Entity tag, unless it could only be weak.
    pub(crate) etag: Option<ETag>,
    /// Time of the last modification, in seconds since the epoch; `None` if before the epoch.
    pub(crate) modified_s: Option<u64>,
    /// True if `Last-Modified` is sent: a later version has another date, or the response has a
    /// tag.
    pub(crate) is_dated: bool,
}

impl Validators {
    /// Returns the validators of a file. Without a tag a client uses the date, which distinguishes
    /// versions once its second is over.
    pub(crate) fn of_file(
        meta: &FileMeta,
        coding: Option<Coding>,
        unix_time: Duration,
        is_anywhere: bool,
    ) -> Self {
        let is_settled = etag::is_settled(meta, unix_time, is_anywhere);
        let is_tagged = is_settled && !meta.is_weak;
        let modified_s = date::modified_s(meta.mtime_ns);
        Validators {
            etag: is_tagged.then(|| ETag::of_file(meta, coding, is_anywhere)),
            modified_s,
            is_dated: is_tagged
                || is_settled && modified_s.is_some_and(|second| second < unix_time.as_secs()),
        }
    }

    /// Returns the validators of a numbered version.
    pub(crate) fn of_number(number: u64, modified_s: Option<u64>) -> Self {
        Validators {
            etag: Some(ETag::of_number(number)),
            modified_s,
            is_dated: true,
        }
    }
}

/// The result of a request's conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The request is answered as if it had no condition.
    Proceed,
    /// 304: the client has this version already.
    NotModified,
    /// 412: the client wants another version.
    Failed,
}

/// Judges the conditions of a GET or HEAD, in the order of RFC 9110 §13.2.2.
pub(crate) fn judge(head: Head<'_>, validators: &Validators) -> Verdict {
    let any = |field, comparison| {
        let mut values = head.values(field);
        values.any(|value| {
            let etag = validators.etag.as_ref();
            etag::is_any(value) || etag.is_some_and(|etag| etag.is_in(value, comparison))
        })
    };
    // An invalid date, or a file without a date, disables a condition (§13.1.3, §13.1.4).
    let not_later_than = |field| {
        let date_s = head.value(field).and_then(parsed)?;
        Some(validators.modified_s? <= date_s)
    };
    let has = |field| head.present().has(field);

    let is_wanted = if has(Field::IfMatch) {
        any(Field::IfMatch, Comparison::Strong)
    } else {
        not_later_than(Field::IfUnmodifiedSince).unwrap_or(true)
    };
    if !is_wanted {
        return Verdict::Failed;
    }
    let is_known = if has(Field::IfNoneMatch) {
        any(Field::IfNoneMatch, Comparison::Weak)
    } else {
        not_later_than(Field::IfModifiedSince).unwrap_or(false)
    };
    if is_known {
        Verdict::NotModified
    } else {
        Verdict::Proceed
    }
}

/// True if `If-Range` permits `Range`: it is absent, or the client has a part of this very version
/// (RFC 9110 §13.1.5).
pub(crate) fn range_applies(head: Head<'_>, validators: &Validators, unix_time: Duration) -> bool {
    if !head.present().has(Field::IfRange) {
        return true;
    }
    let Some(value) = head.value(Field::IfRange) else {
        return false;
    };
    // Without a tag, a later version may have the same date.
    let Some(etag) = &validators.etag else {
        return false;
    };
    if etag.is(value) {
        return true;
    }
    // Once the second is over, no later version has its date. Two versions within the second may:
    // §8.8.2.2 demands that there be none, which no server can know.
    validators.modified_s.is_some_and(|modified_s| {
        parsed(value) == Some(modified_s) && modified_s < unix_time.as_secs()
    })
}

/// True if `If-Range`, or without it `If-Match`, has the tag of this version.
pub(crate) fn names_version(head: Head<'_>, validators: &Validators) -> bool {
    let Some(etag) = &validators.etag else {
        return false;
    };
    if head.present().has(Field::IfRange) {
        return head
            .value(Field::IfRange)
            .is_some_and(|value| etag.is(value));
    }
    let mut values = head.values(Field::IfMatch);
    values.any(|value| etag.is_in(value, Comparison::Strong))
}

/// Returns the coding of the variant of which the client has a part, by a tag in the request.
pub(crate) fn coding_named(head: Head<'_>) -> Option<Coding> {
    let fields = [Field::IfRange, Field::IfMatch, Field::IfNoneMatch];
    let field = fields
        .into_iter()
        .find(|&field| head.present().has(field))?;
    head.values(field).find_map(etag::coding_named)
}

/// An HTTP-date in any of its three forms (RFC 9110 §5.6.7), in seconds since the epoch.
fn parsed(value: &[u8]) -> Option<u64> {
    let time = httpdate::parse_http_date(std::str::from_utf8(value).ok()?).ok()?;
    let since = time.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    Some(since.as_secs())
}

#[cfg(test)]
mod tests {
    use host::app::FileMeta;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;
    use crate::semantics::fields::Present;

    /// RFC 9110 §5.6.7's example, a day later: when the file was modified is the example itself.
    const NOW: Duration = Duration::from_secs(784_111_777 + 86_400);
    const MODIFIED_S: u64 = 784_111_777;

    const BEFORE: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
    const SAME: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const AFTER: &str = "Sun, 06 Nov 1994 08:49:38 GMT";

    fn validators() -> Validators {
        let meta = FileMeta {
            mtime_ns: MODIFIED_S as i64 * 1_000_000_000,
            ..FileMeta::default()
        };
        Validators::of_file(&meta, None, NOW, false)
    }

    fn own() -> String {
        let mut out = Vec::new();
        validators().etag.unwrap().write(&mut out);
        String::from_utf8(out).unwrap()
    }

    fn with_head<T>(fields: &[(&str, &str)], act: impl FnOnce(Head<'_>) -> T) -> T {
        let mut present = Present::default();
        let mut bytes = b"GET / HTTP/1.1\r\n".to_vec();
        for (name, value) in fields {
            present.insert(Field::named(name).expect("a field that matters"));
            bytes.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        act(Head::new(&bytes, present))
    }

    fn judged(fields: &[(&str, &str)]) -> Verdict {
        with_head(fields, |head| judge(head, &validators()))
    }

    #[test]
    fn each_condition_alone() {
        use Verdict::{Failed, NotModified, Proceed};
        let own = own();
        let weak = format!("W/{own}");
        assert_eq!(judged(&[]), Proceed);
        for (name, value, verdict) in [
            ("If-Match", own.as_str(), Proceed),
            ("If-Match", "*", Proceed),
            ("If-Match", &weak, Failed),
            ("If-Match", "\"other\"", Failed),
            ("If-Match", "", Failed),
            ("If-None-Match", &own, NotModified),
            ("If-None-Match", &weak, NotModified),
            ("If-None-Match", "*", NotModified),
            ("If-None-Match", "\"other\"", Proceed),
            ("If-None-Match", "", Proceed),
            ("If-Modified-Since", BEFORE, Proceed),
            ("If-Modified-Since", SAME, NotModified),
            ("If-Modified-Since", AFTER, NotModified),
            (
                "If-Modified-Since",
                "Sunday, 06-Nov-94 08:49:37 GMT",
                NotModified,
            ),
            ("If-Modified-Since", "Sun Nov  6 08:49:37 1994", NotModified),
            ("If-Modified-Since", "yesterday", Proceed),
            ("If-Modified-Since", "", Proceed),
            ("If-Unmodified-Since", BEFORE, Failed),
            ("If-Unmodified-Since", SAME, Proceed),
            ("If-Unmodified-Since", AFTER, Proceed),
            ("If-Unmodified-Since", "784111777", Proceed),
        ] {
            assert_eq!(judged(&[(name, value)]), verdict, "{name}: {value}");
        }
    }

    #[test]
    fn tags_come_before_dates_and_what_is_wanted_before_what_is_known() {
        use Verdict::{Failed, NotModified, Proceed};
        let own = own();
        for (fields, verdict) in [
            (
                &[("If-Match", own.as_str()), ("If-Unmodified-Since", BEFORE)][..],
                Proceed,
            ),
            (
                &[("If-Match", "\"other\""), ("If-Unmodified-Since", AFTER)],
                Failed,
            ),
            (
                &[("If-None-Match", "\"other\""), ("If-Modified-Since", AFTER)],
                Proceed,
            ),
            (
                &[("If-None-Match", &own), ("If-Modified-Since", BEFORE)],
                NotModified,
            ),
            (
                &[("If-None-Match", &own), ("If-Match", "\"other\"")],
                Failed,
            ),
            (&[("If-None-Match", &own), ("If-Match", &own)], NotModified),
            (
                &[("If-Modified-Since", SAME), ("If-Unmodified-Since", BEFORE)],
                Failed,
            ),
            (
                &[("If-None-Match", "\"other\""), ("If-None-Match", &own)],
                NotModified,
            ),
            (
                &[("If-Modified-Since", SAME), ("If-Modified-Since", SAME)],
                Proceed,
            ),
        ] {
            assert_eq!(judged(fields), verdict, "{fields:?}");
        }
    }

    #[test]
    fn a_file_without_a_date_has_no_conditions_on_it() {
        let undated = Validators {
            modified_s: None,
            ..validators()
        };
        for name in ["If-Modified-Since", "If-Unmodified-Since"] {
            let verdict = with_head(&[(name, SAME)], |head| judge(head, &undated));
            assert_eq!(verdict, Verdict::Proceed);
        }
        let applies = |head: Head<'_>| range_applies(head, &undated, NOW);
        assert!(!with_head(&[("If-Range", SAME)], applies));
    }

    #[test]
    fn a_range_is_of_the_version_that_the_client_has() {
        let own = own();
        let weak = format!("W/{own}");
        let both = format!("{own}, {own}");
        for (value, applies) in [
            (own.as_str(), true),
            (SAME, true),
            (BEFORE, false),
            (AFTER, false),
            (&weak, false),
            (&both, false),
            ("\"other\"", false),
            ("*", false),
            ("", false),
        ] {
            let head = [("If-Range", value)];
            let found = with_head(&head, |head| range_applies(head, &validators(), NOW));
            assert_eq!(found, applies, "{value:?}");
        }
        let twice = [("If-Range", own.as_str()), ("If-Range", &own)];
        assert!(!with_head(&twice, |head| range_applies(
            head,
            &validators(),
            NOW
        )));
    }

    #[test]
    fn a_second_that_is_not_over_is_no_version() {
        let now = Duration::from_secs(MODIFIED_S);
        let fields = [("If-Range", SAME)];
        assert!(!with_head(&fields, |head| range_applies(
            head,
            &validators(),
            now
        )));
        let later = now + Duration::from_secs(1);
        assert!(with_head(&fields, |head| range_applies(
            head,
            &validators(),
            later
        )));
    }

    proptest! {
        #[test]
        fn arbitrary_conditions_are_judged(
            fields in vec((
                select(vec![
                    "If-Match",
                    "If-None-Match",
                    "If-Modified-Since",
                    "If-Unmodified-Since",
                    "If-Range",
                ]),
                prop_oneof![
                    "[ -~]{0,40}",
                    select(vec![SAME, "*", "W/\"\"", "Mon, 31 Feb 9999 25:61:61 GMT", "Sun Nov 99 \
                        08:49:37 1994"])
                        .prop_map(str::to_owned),
                ],
            ), 0..6),
        ) {
            let fields: Vec<_> = fields
                .iter()
                .map(|(name, value)| (*name, value.as_str()))
                .collect();
            judged(&fields);
            with_head(&fields, |head| range_applies(head, &validators(), NOW));
        }

        #[test]
        fn arbitrary_dates_are_dates_or_not(bytes in vec(any::<u8>(), 0..40)) {
            parsed(&bytes);
        }
    }
}
