//! Validators: whether two responses are of the same version (RFC 9110 §8.8), as parts of one
//! object must be.

use http::HeaderMap;
use http::header::{ETAG, LAST_MODIFIED};
use serde::{Deserialize, Serialize};

use crate::freshness;

/// Least time from a modification date to the response's own `Date`, in seconds, for the former to
/// be a strong validator: then no other version can follow within the same second (RFC 9110
/// §8.8.2.2 has a minute for clocks that differ).
const SETTLED_AFTER_S: u64 = 60;

/// The validators of a version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Validators {
    /// The tag with its quotes, and `W/` if it is weak.
    pub(crate) etag: Option<String>,
    pub(crate) last_modified: Option<String>,
    /// Time of the response, in seconds since the epoch.
    date_s: u64,
}

impl Validators {
    pub(crate) fn of(fields: &HeaderMap, answered_s: u64) -> Validators {
        let text = |name| Some(fields.get(name)?.to_str().ok()?.to_owned());
        Validators {
            etag: text(ETAG).filter(|tag: &String| is_tag(tag)),
            last_modified: text(LAST_MODIFIED).filter(|date| freshness::parse_date(date).is_some()),
            date_s: freshness::date(fields, &http::header::DATE).unwrap_or(answered_s),
        }
    }

    /// Whether a request can be conditional.
    pub(crate) fn is_some(&self) -> bool {
        self.etag.is_some() || self.last_modified.is_some()
    }

    /// The validator for `If-Range`, which excludes parts of other versions.
    pub(crate) fn strong(&self) -> Option<&str> {
        let tag = self.etag.as_deref();
        if let Some(tag) = tag {
            return Some(tag).filter(|tag| !tag.starts_with("W/"));
        }
        let date = self.last_modified.as_deref()?;
        let modified_s = freshness::parse_date(date)?;
        (modified_s.saturating_add(SETTLED_AFTER_S) <= self.date_s).then_some(date)
    }

    /// Whether a response's validators show that it is of another version.
    pub(crate) fn contradicts(&self, part: &Validators) -> bool {
        let differ =
            |known: &Option<String>, said: &Option<String>| said.is_some() && said != known;
        differ(&self.etag, &part.etag) || differ(&self.last_modified, &part.last_modified)
    }
}

fn is_tag(text: &str) -> bool {
    let opaque = text.strip_prefix("W/").unwrap_or(text);
    opaque.len() >= 2 && opaque.starts_with('"') && opaque.ends_with('"')
}

#[cfg(test)]
mod tests {
    use http::header::DATE;

    use super::*;

    fn validators(etag: &str, last_modified: &str) -> Validators {
        let mut fields = HeaderMap::new();
        for (name, value) in [(ETAG, etag), (LAST_MODIFIED, last_modified)] {
            if !value.is_empty() {
                fields.insert(name, value.parse().unwrap());
            }
        }
        fields.insert(DATE, "Sun, 06 Nov 1994 08:49:37 GMT".parse().unwrap());
        Validators::of(&fields, 0)
    }

    #[test]
    fn strong_is_a_tag_that_is_not_weak_or_a_date_that_is_over() {
        let (old, young) = (
            "Sun, 06 Nov 1994 08:48:37 GMT",
            "Sun, 06 Nov 1994 08:48:38 GMT",
        );
        for (etag, modified, strong) in [
            ("\"a\"", old, Some("\"a\"")),
            ("W/\"a\"", old, None),
            ("", old, Some(old)),
            ("", young, None),
            ("a", "", None),
            ("", "yesterday", None),
            ("", "", None),
        ] {
            let validators = validators(etag, modified);
            assert_eq!(validators.strong(), strong, "{etag} {modified}");
            assert!(!validators.contradicts(&validators.clone()));
        }
        let known = validators("\"a\"", old);
        for (etag, modified, contradicts) in [
            ("\"a\"", old, false),
            ("\"a\"", "", false),
            ("", "", false),
            ("\"b\"", old, true),
            ("W/\"a\"", old, true),
            ("\"a\"", young, true),
        ] {
            let part = validators(etag, modified);
            assert_eq!(known.contradicts(&part), contradicts, "{etag} {modified}");
        }
    }
}
