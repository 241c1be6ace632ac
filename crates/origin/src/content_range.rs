//! The field `Content-Range` (RFC 9110 §14.4): which bytes of an object an answer has.

use http::HeaderMap;
use http::header::{CONTENT_RANGE, CONTENT_TYPE};

/// A value of the field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContentRange {
    /// `bytes 0-9/100`, or `bytes 0-9/*`.
    Part {
        first: u64,
        last: u64,
        size_bytes: Option<u64>,
    },
    /// `bytes */100`: the requested range lies outside.
    Unsatisfied { size_bytes: u64 },
}

impl ContentRange {
    /// The value of a response; `None` if there is none, several, a malformed one or one of another
    /// unit. White space around the numbers is ignored.
    pub(crate) fn of(fields: &HeaderMap) -> Option<Self> {
        let mut values = fields.get_all(CONTENT_RANGE).into_iter();
        let value = values.next().filter(|_| values.next().is_none())?;
        let value = value.to_str().ok()?.trim();
        let (unit, rest) = value.split_once([' ', '\t'])?;
        if !unit.eq_ignore_ascii_case("bytes") {
            return None;
        }
        let (range, size) = rest.split_once('/')?;
        let (range, size) = (range.trim(), size.trim());
        if range == "*" {
            let size_bytes = number(size)?;
            return Some(ContentRange::Unsatisfied { size_bytes });
        }
        let (first, last) = range.split_once('-')?;
        let (first, last) = (number(first.trim())?, number(last.trim())?);
        let size_bytes = match size {
            "*" => None,
            size => Some(number(size)?),
        };
        let is_sound = first <= last && last < size_bytes.unwrap_or(u64::MAX);
        is_sound.then_some(ContentRange::Part {
            first,
            last,
            size_bytes,
        })
    }
}

/// Whether the body has several parts, each with its own fields (RFC 9110 §14.6).
pub(crate) fn is_multipart(fields: &HeaderMap) -> bool {
    const PREFIX: &[u8] = b"multipart/";
    let media_type = fields.get(CONTENT_TYPE).map(|value| value.as_bytes());
    let start = media_type.and_then(|value| value.get(..PREFIX.len()));
    start.is_some_and(|start| start.eq_ignore_ascii_case(PREFIX))
}

fn number(digits: &str) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.bytes().all(|it| it.is_ascii_digit());
    is_number.then(|| digits.parse().ok())?
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn of(values: &[&str]) -> Option<ContentRange> {
        let mut fields = HeaderMap::new();
        for value in values {
            fields.append(CONTENT_RANGE, HeaderValue::from_str(value).unwrap());
        }
        ContentRange::of(&fields)
    }

    /// RFC 9110 §14.4
    #[test]
    fn ranges_are_read_whatever_their_case_and_white_space() {
        let part = |first, last, size_bytes| {
            Some(ContentRange::Part {
                first,
                last,
                size_bytes,
            })
        };
        for (value, expected) in [
            ("bytes 0-9/100", part(0, 9, Some(100))),
            ("BYTES 0-9/100", part(0, 9, Some(100))),
            ("Bytes \t 0 - 9 / 100 ", part(0, 9, Some(100))),
            ("bytes 90-99/100", part(90, 99, Some(100))),
            ("bytes 5-5/*", part(5, 5, None)),
            (
                "bytes */100",
                Some(ContentRange::Unsatisfied { size_bytes: 100 }),
            ),
            (
                "bytes */0",
                Some(ContentRange::Unsatisfied { size_bytes: 0 }),
            ),
        ] {
            assert_eq!(of(&[value]), expected, "{value}");
        }
    }

    #[test]
    fn what_is_malformed_is_no_range() {
        for values in [
            &[][..],
            &[""],
            &["bytes"],
            &["bytes0-9/10"],
            &["bytes=0-9/10"],
            &["items 0-9/10"],
            &["bytes 9-0/10"],
            &["bytes 0-10/10"],
            &["bytes 0-/10"],
            &["bytes -9/10"],
            &["bytes +0-9/10"],
            &["bytes 0-9"],
            &["bytes 0-9/"],
            &["bytes */*"],
            &["bytes 0-18446744073709551616/*"],
            &["bytes 0-9/10, bytes 0-9/10"],
            &["bytes 0-9/10", "bytes 0-9/10"],
        ] {
            assert_eq!(of(values), None, "{values:?}");
        }
    }
}
