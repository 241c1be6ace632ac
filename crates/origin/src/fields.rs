//! Header fields of an origin's response: which are kept and passed on (RFC 9111 §3.1), which a 304
//! replaces (§3.2), and their limits.

use std::fmt;
use std::iter;
use std::time::{Duration, UNIX_EPOCH};

use http::HeaderMap;
use http::header::{CONNECTION, DATE, HeaderName, HeaderValue};
use http_message::trailers;
use serde::{Deserialize, Serialize};

use crate::freshness;

/// Fields of one connection (RFC 9110 §7.6.1, RFC 9111 §3.1, RFC 9114 §4.2).
const HOP_BY_HOP: [&str; 11] = [
    "connection",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authentication-info",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Fields that the server sets itself: it serves the content in its own pieces, under its own tag
/// and age, and at its own address (`Alt-Svc`).
const OWN: [&str; 8] = [
    "accept-ranges",
    "age",
    "alt-svc",
    "content-length",
    "content-range",
    "etag",
    "last-modified",
    "server",
];

/// Fields that describe the stored bytes. A 304 has no content, so its fields replace none of them
/// (RFC 9111 §3.2); nor do they fit a page that the server writes itself.
const OF_BYTES: [&str; 5] = [
    "content-digest",
    "content-encoding",
    "content-md5",
    "digest",
    "repr-digest",
];

/// Further fields that describe a body, dropped if it is not passed on.
const OF_BODY: [&str; 4] = [
    "content-disposition",
    "content-language",
    "content-location",
    "content-type",
];

/// Limits of a response's header fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldLimits {
    /// Most bytes of kept fields: names, values, and two for each field.
    pub bytes_max: usize,
    /// Most kept fields.
    pub count_max: usize,
}

impl FieldLimits {
    /// The largest `bytes_max`: the fields must fit into a message beside a `Location`.
    pub const BYTES_MAX: usize = 20 << 10;

    /// The largest `count_max`.
    pub const COUNT_MAX: usize = 256;

    /// The reason if these fields exceed a limit.
    pub(crate) fn excess(&self, fields: &Fields) -> Option<String> {
        let (bytes, count) = (fields.bytes(), fields.iter().count());
        if bytes > self.bytes_max {
            let most = self.bytes_max;
            Some(format!(
                "its header fields have {bytes} bytes, and {most} are kept (origin.head_max)"
            ))
        } else if count > self.count_max {
            let most = self.count_max;
            Some(format!(
                "it has {count} header fields, and {most} are kept (origin.fields_max)"
            ))
        } else {
            None
        }
    }
}

impl Default for FieldLimits {
    fn default() -> Self {
        FieldLimits {
            bytes_max: 16 << 10,
            count_max: 128,
        }
    }
}

/// Kept fields of a response: a line `name:value` for each, in the order of arrival. Each byte of a
/// value is stored as the character with that code, so that JSON can represent bytes beyond ASCII.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fields(Box<str>);

impl Fields {
    /// The kept fields of a response that arrived at this time. A missing or unreadable `Date`
    /// becomes that time (RFC 9110 §6.6.1).
    pub(crate) fn of(all: &HeaderMap, answered_s: u64) -> Fields {
        let named = connection_options(all);
        let mut lines = String::new();
        for (name, value) in all {
            let is_kept = is_kept(name.as_str()) && name != DATE;
            if is_kept && !named.iter().any(|it| name.as_str() == it) {
                push(&mut lines, name.as_str(), value.as_bytes());
            }
        }
        let date = all
            .get(DATE)
            .filter(|_| freshness::date(all, &DATE).is_some());
        match date {
            Some(date) => push(&mut lines, DATE.as_str(), date.as_bytes()),
            None => push(&mut lines, DATE.as_str(), date_text(answered_s).as_bytes()),
        }
        Fields(lines.into())
    }

    /// The kept trailers of a response (RFC 9110 §6.5).
    pub(crate) fn of_trailers(all: &HeaderMap) -> Fields {
        let mut lines = String::new();
        let may_be = |name: &str| is_kept(name) && trailers::may_have(name.as_bytes());
        for (name, value) in all.iter().filter(|(name, _)| may_be(name.as_str())) {
            push(&mut lines, name.as_str(), value.as_bytes());
        }
        Fields(lines.into())
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .split_terminator('\n')
            .filter_map(|line| line.split_once(':'))
    }

    /// Returns the fields as header fields; `None` if any field is invalid, or is one that is not
    /// kept.
    pub fn to_headers(&self) -> Option<Vec<(HeaderName, HeaderValue)>> {
        let headers = self.iter().map(|(name, value)| {
            let name: HeaderName = name.parse().ok()?;
            let value = HeaderValue::from_bytes(&bytes_of(value)?).ok()?;
            is_kept(name.as_str()).then_some((name, value))
        });
        let count = self.0.split_terminator('\n').count();
        let headers: Vec<_> = headers.collect::<Option<_>>()?;
        (headers.len() == count).then_some(headers)
    }

    /// The values of a field, by its name in lower case.
    pub(crate) fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let is_it = move |field: &(&str, &str)| field.0 == name;
        self.iter().filter(is_it).map(|(_, value)| value)
    }

    /// Length of the fields in a response, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.0.chars().count()
    }

    /// Allocated bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.0.len()
    }

    /// Removes the fields that describe the body.
    pub(crate) fn without_body(self) -> Fields {
        let is_of_body = |name: &str| OF_BYTES.contains(&name) || OF_BODY.contains(&name);
        self.retain(|name| !is_of_body(name))
    }

    pub(crate) fn retain(self, is_kept: impl Fn(&str) -> bool) -> Fields {
        let kept = self.iter().filter(|(name, _)| is_kept(name));
        Fields::from_lines(kept)
    }

    /// Replaces the values for which `map` returns another one.
    pub(crate) fn map(self, map: impl Fn(&str, &str) -> Option<String>) -> Fields {
        let mut lines = String::new();
        for (name, value) in self.iter() {
            let other = map(name, value).filter(|other| !other.contains('\n'));
            push_text(&mut lines, name, other.as_deref().unwrap_or(value));
        }
        Fields(lines.into())
    }

    /// Replaces fields by those of a 304 (RFC 9111 §3.2).
    pub(crate) fn update(&mut self, newer: &Fields) {
        let is_new = |(name, _): &(&str, &str)| !OF_BYTES.contains(name);
        let replaced =
            |name: &str| newer.values(name).next().is_some() && !OF_BYTES.contains(&name);
        let kept = self.iter().filter(|(name, _)| !replaced(name));
        *self = Fields::from_lines(kept.chain(newer.iter().filter(is_new)));
    }

    /// Adds the fields whose names `others` lacks.
    pub(crate) fn add_to(&self, others: &mut HeaderMap) {
        let mut added = HeaderMap::new();
        for (name, value) in self.to_headers().unwrap_or_default() {
            if !others.contains_key(&name) {
                added.append(name, value);
            }
        }
        for (name, value) in &added {
            others.append(name, value.clone());
        }
    }

    fn from_lines<'a>(fields: impl Iterator<Item = (&'a str, &'a str)>) -> Fields {
        let mut lines = String::new();
        for (name, value) in fields {
            push_text(&mut lines, name, value);
        }
        Fields(lines.into())
    }
}

impl fmt::Debug for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Whether fields of this name, in lower case, are kept and passed on.
fn is_kept(name: &str) -> bool {
    !HOP_BY_HOP.contains(&name) && !OWN.contains(&name)
}

/// The fields that `Connection` names, in lower case.
fn connection_options(all: &HeaderMap) -> Vec<String> {
    let values = all.get_all(CONNECTION).into_iter();
    let options = values.flat_map(|value| value.as_bytes().split(|&byte| byte == b','));
    let text = |option: &[u8]| String::from_utf8_lossy(option.trim_ascii()).to_ascii_lowercase();
    options.map(text).collect()
}

fn push(lines: &mut String, name: &str, value: &[u8]) {
    lines.push_str(name);
    lines.push(':');
    lines.extend(value.iter().map(|&byte| char::from(byte)));
    lines.push('\n');
}

fn push_text(lines: &mut String, name: &str, value: &str) {
    lines.extend(iter::once(name).chain([":", value, "\n"]));
}

/// The bytes of a value; `None` if a character is not a byte.
fn bytes_of(value: &str) -> Option<Vec<u8>> {
    value.chars().map(|it| u8::try_from(it).ok()).collect()
}

fn date_text(unix_s: u64) -> String {
    // HTTP dates end with the year 9999; later times are clamped.
    let at = UNIX_EPOCH.checked_add(Duration::from_secs(unix_s.min(DATE_MAX_S)));
    httpdate::fmt_http_date(at.unwrap_or(UNIX_EPOCH))
}

/// The end of the year 9999.
const DATE_MAX_S: u64 = 253_402_300_799;

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9110 §5.6.7's example.
    const NOW_S: u64 = 784_111_777;
    const NOW: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

    fn map(lines: &[(&str, &[u8])]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in lines {
            let name: HeaderName = name.parse().unwrap();
            map.append(name, HeaderValue::from_bytes(value).unwrap());
        }
        map
    }

    fn kept(lines: &[(&str, &[u8])]) -> Vec<(String, Vec<u8>)> {
        let headers = Fields::of(&map(lines), NOW_S).to_headers().unwrap();
        let headers = headers.into_iter();
        headers
            .map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
            .collect()
    }

    /// RFC 9111 §3.1, RFC 9110 §7.6.1
    #[test]
    fn all_fields_are_kept_but_those_of_the_connection_and_of_the_server() {
        for name in [
            "Link",
            "X-Any",
            "Repr-Digest",
            "Content-Digest",
            "Content-Security-Policy",
            "Strict-Transport-Security",
            "Cross-Origin-Resource-Policy",
            "Access-Control-Allow-Origin",
            "Set-Cookie",
            "Proxy-Status",
            "Cache-Status",
            "Content-Type",
            "Vary",
            "Via",
        ] {
            let lower = name.to_ascii_lowercase();
            let value = b"a, \"b\"; c=\xe4\xff".to_vec();
            let expected = [(lower, value.clone()), ("date".to_owned(), NOW.into())];
            assert_eq!(kept(&[(name, &value)]), expected);
        }
        for name in HOP_BY_HOP.iter().chain(&OWN) {
            assert_eq!(kept(&[(name, b"1")]).len(), 1, "{name}");
        }
        let named: [(&str, &[u8]); 4] = [
            ("Connection", b"close, X-Hop"),
            ("connection", b"x-Other"),
            ("X-Hop", b"1"),
            ("x-other", b"2"),
        ];
        assert_eq!(kept(&named).len(), 1);
    }

    #[test]
    fn lines_of_one_name_stay_in_their_order_and_a_date_that_is_none_becomes_the_time_of_arrival() {
        let lines: [(&str, &[u8]); 4] = [
            ("Link", b"<a>"),
            ("Date", b"yesterday"),
            ("X", b""),
            ("Link", b"<b>"),
        ];
        let expected = [("link", "<a>"), ("link", "<b>"), ("x", ""), ("date", NOW)];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec()));
        assert_eq!(kept(&lines), expected);
        let date: &[u8] = b"Sun, 06 Nov 1994 08:48:37 GMT";
        assert_eq!(kept(&[("Date", date)])[0].1, date);
    }

    /// RFC 9111 §3.2
    #[test]
    fn a_304_replaces_all_fields_but_those_about_the_stored_bytes() {
        let of = |lines: &[(&str, &[u8])]| Fields::of(&map(lines), NOW_S);
        let mut fields = of(&[
            ("Content-Type", b"text/a"),
            ("Content-Encoding", b"br"),
            ("Repr-Digest", b"sha-256=:a:"),
            ("X-Gone", b"1"),
            ("X-Gone", b"2"),
            ("X-Stays", b"3"),
        ]);
        fields.update(&of(&[
            ("X-Gone", b"4"),
            ("X-New", b"5"),
            ("Content-Type", b"text/b"),
            ("Content-Encoding", b"gzip"),
            ("Content-Length", b"0"),
            ("Content-Digest", b"sha-256=:empty:"),
            ("Repr-Digest", b"sha-256=:b:"),
            ("ETag", b"\"x\""),
        ]));
        let mut expected = vec![
            ("content-encoding", "br"),
            ("content-type", "text/b"),
            ("date", NOW),
            ("repr-digest", "sha-256=:a:"),
            ("x-gone", "4"),
            ("x-new", "5"),
            ("x-stays", "3"),
        ];
        let mut all: Vec<_> = fields.iter().collect();
        all.sort_unstable();
        expected.sort_unstable();
        assert_eq!(all, expected);
    }

    #[test]
    fn what_is_written_down_is_read_again_and_nothing_else_is_believed() {
        let fields = Fields::of(&map(&[("X", b"\xe4\t\"\\:"), ("Y", b"")]), NOW_S);
        let json = serde_json::to_string(&fields).unwrap();
        assert_eq!(serde_json::from_str::<Fields>(&json).unwrap(), fields);
        for wrong in [
            "a b:c\n",
            "a:\u{100}\n",
            "a:\0\n",
            "a\n",
            "te:x\n",
            "a:b\n\nc:d\n",
        ] {
            assert_eq!(Fields(wrong.into()).to_headers(), None, "{wrong:?}");
        }
    }

    #[test]
    fn bytes_and_count_are_bounded() {
        let limits = FieldLimits {
            bytes_max: 45,
            count_max: 2,
        };
        let date = "date:".len() + NOW.len() + 1;
        assert_eq!(date, 35);
        for (lines, is_excess) in [
            (&[("x", &b"1234567"[..])][..], false),
            (&[("x", b"12345678")], true),
            (&[("x", b"\xe4\xe4\xe4\xe4\xe4\xe4\xe4")], false),
            (&[("x", b""), ("y", b"")], true),
        ] {
            let excess = limits.excess(&Fields::of(&map(lines), NOW_S));
            assert_eq!(excess.is_some(), is_excess, "{lines:?} {excess:?}");
        }
    }
}
