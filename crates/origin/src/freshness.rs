//! How long a response may be used by a shared cache (RFC 9111).

use http::header::{
    AGE, CACHE_CONTROL, DATE, EXPIRES, HeaderName, LAST_MODIFIED, SET_COOKIE, VARY,
};
use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};

/// Longest lifetime, in seconds; longer ones are cut to it (RFC 9111 §1.2.2: 2^31).
const SECONDS_MAX: u64 = 1 << 31;

/// Divisor for the heuristic lifetime: a response without an explicit one is fresh for this share
/// of the time since its modification (RFC 9111 §4.2.2).
const HEURISTIC_SHARE: u64 = 10;

/// Longest heuristic lifetime, in seconds.
const HEURISTIC_MAX_S: u64 = 24 * 3600;

/// Lifetime and limits of a response's use. Times are in seconds since the epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Freshness {
    /// Whether clients other than the requester may get it.
    pub(crate) may_be_shared: bool,
    /// When its age was zero, as far as is known (RFC 9111 §4.2.3).
    born_s: u64,
    /// Freshness lifetime, from `born_s` on.
    lifetime_s: u64,
    /// Time after the lifetime in which it may be used while it is revalidated (RFC 5861 §3).
    while_revalidate_s: u64,
    /// Time after the lifetime in which it may be used if the origin fails (RFC 5861 §4).
    if_error_s: u64,
}

/// How a stored response may be used now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// It may be used.
    Fresh,
    /// It may be used, while the origin is asked to revalidate it.
    WhileRevalidating,
    /// The origin must be asked first.
    Stale,
}

impl Freshness {
    /// Freshness of a response, from the times of request and response.
    pub(crate) fn of(
        status: StatusCode,
        fields: &HeaderMap,
        asked_s: u64,
        answered_s: u64,
    ) -> Freshness {
        let control = Control::of(fields);
        let date_s = date(fields, &DATE).unwrap_or(answered_s);
        // RFC 9111 §4.2.3.
        let age_value_s = number(fields, &AGE).unwrap_or(0);
        let apparent_s = answered_s.saturating_sub(date_s);
        let corrected_s = age_value_s.saturating_add(answered_s.saturating_sub(asked_s));
        let initial_age_s = apparent_s.max(corrected_s).min(SECONDS_MAX);

        let expires_s = fields
            .contains_key(EXPIRES)
            // An invalid date is in the past (§5.3).
            .then(|| date(fields, &EXPIRES).map_or(0, |at_s| at_s.saturating_sub(date_s)));
        let heuristic_s = || {
            let modified_s = date(fields, &LAST_MODIFIED).filter(|_| is_heuristic(status))?;
            let since_s = date_s.saturating_sub(modified_s);
            Some((since_s / HEURISTIC_SHARE).min(HEURISTIC_MAX_S))
        };
        let lifetime_s = if control.no_cache {
            0
        } else {
            control
                .s_maxage_s
                .or(control.max_age_s)
                .or(expires_s)
                .or_else(heuristic_s)
                .unwrap_or(0)
        };
        let may_be_stale = !control.no_cache && !control.must_revalidate;
        let stale = |seconds: Option<u64>| seconds.filter(|_| may_be_stale).unwrap_or(0);
        Freshness {
            may_be_shared: !control.no_store
                && !control.private
                && !fields.contains_key(SET_COOKIE)
                && !varies_by_all(fields),
            born_s: answered_s.saturating_sub(initial_age_s),
            lifetime_s: lifetime_s.min(SECONDS_MAX),
            while_revalidate_s: stale(control.while_revalidate_s),
            if_error_s: stale(control.if_error_s),
        }
    }

    /// RFC 9111 §4.2.3, in seconds.
    pub(crate) fn age_s(&self, now_s: u64) -> u64 {
        now_s.saturating_sub(self.born_s)
    }

    /// Makes the response stale: the origin denied a request for it, and must revalidate it first.
    pub(crate) fn doubt(&mut self) {
        (self.lifetime_s, self.while_revalidate_s, self.if_error_s) = (0, 0, 0);
    }

    fn staleness_s(&self, now_s: u64) -> Option<u64> {
        let age_s = self.age_s(now_s);
        (age_s >= self.lifetime_s).then(|| age_s - self.lifetime_s)
    }

    pub(crate) fn usage(&self, now_s: u64) -> Use {
        match self.staleness_s(now_s) {
            None => Use::Fresh,
            Some(by_s) if by_s < self.while_revalidate_s => Use::WhileRevalidating,
            Some(_) => Use::Stale,
        }
    }

    /// Whether it may be used if the origin fails.
    pub(crate) fn stands_in(&self, now_s: u64) -> bool {
        self.staleness_s(now_s)
            .is_none_or(|by_s| by_s < self.if_error_s.max(self.while_revalidate_s))
    }
}

/// The directives of `Cache-Control` that matter here (RFC 9111 §5.2.2, RFC 5861).
#[derive(Debug, Default)]
struct Control {
    no_store: bool,
    no_cache: bool,
    private: bool,
    must_revalidate: bool,
    max_age_s: Option<u64>,
    s_maxage_s: Option<u64>,
    while_revalidate_s: Option<u64>,
    if_error_s: Option<u64>,
}

impl Control {
    fn of(fields: &HeaderMap) -> Control {
        let mut control = Control::default();
        for value in fields.get_all(CACHE_CONTROL) {
            for directive in directives(value.as_bytes()) {
                control.add(directive);
            }
        }
        control
    }

    fn add(&mut self, directive: &[u8]) {
        let mut parts = directive.splitn(2, |&byte| byte == b'=');
        let name = parts.next().unwrap_or_default().trim_ascii();
        let value = parts.next().map(<[u8]>::trim_ascii);
        // §4.2.1: of duplicates the stricter counts; an invalid number counts as zero.
        let least = |known: Option<u64>| {
            let seconds = value.and_then(seconds).unwrap_or(0);
            Some(known.map_or(seconds, |known| known.min(seconds)))
        };
        match name.to_ascii_lowercase().as_slice() {
            b"no-store" => self.no_store = true,
            // With fields named, the directive covers these fields only, and a cache that keeps the
            // rest must omit them (§5.2.2.4). Ignoring the names is simpler and stricter.
            b"no-cache" => self.no_cache = true,
            b"private" => self.private = true,
            b"must-revalidate" | b"proxy-revalidate" => self.must_revalidate = true,
            b"max-age" => self.max_age_s = least(self.max_age_s),
            b"s-maxage" => self.s_maxage_s = least(self.s_maxage_s),
            b"stale-while-revalidate" => self.while_revalidate_s = least(self.while_revalidate_s),
            b"stale-if-error" => self.if_error_s = least(self.if_error_s),
            _ => {}
        }
    }
}

/// Splits a list at its commas, except within quotes.
fn directives(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut is_quoted = false;
    value
        .split(move |&byte| {
            is_quoted ^= byte == b'"';
            byte == b',' && !is_quoted
        })
        .map(<[u8]>::trim_ascii)
        .filter(|directive| !directive.is_empty())
}

fn seconds(value: &[u8]) -> Option<u64> {
    let value = value.strip_prefix(b"\"").unwrap_or(value);
    let value = value.strip_suffix(b"\"").unwrap_or(value);
    let digits = std::str::from_utf8(value).ok()?;
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // Digits that overflow exceed the maximum.
    Some(digits.parse().unwrap_or(SECONDS_MAX).min(SECONDS_MAX))
}

fn number(fields: &HeaderMap, name: &HeaderName) -> Option<u64> {
    seconds(fields.get(name)?.as_bytes().trim_ascii())
}

/// The value of a field as a date, in seconds since the epoch.
pub(crate) fn date(fields: &HeaderMap, name: &HeaderName) -> Option<u64> {
    parse_date(fields.get(name)?.to_str().ok()?)
}

/// An HTTP-date, in seconds since the epoch.
pub(crate) fn parse_date(text: &str) -> Option<u64> {
    let time = httpdate::parse_http_date(text).ok()?;
    let since = time
        .duration_since(std::time::SystemTime::UNIX_EPOCH)
        .ok()?;
    Some(since.as_secs())
}

/// Whether the response varies by more than request fields (`Vary: *`). Named fields are left to
/// [`crate::vary`]: a response cannot depend on fields that the fetcher does not send.
fn varies_by_all(fields: &HeaderMap) -> bool {
    let mut names = fields
        .get_all(VARY)
        .into_iter()
        .flat_map(|value| directives(value.as_bytes()));
    names.any(|name| name == b"*")
}

/// RFC 9110 §15.1: statuses whose responses may be fresh without an explicit lifetime.
fn is_heuristic(status: StatusCode) -> bool {
    matches!(status.as_u16(), 200 | 203 | 300 | 301 | 308 | 404 | 410)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9110 §5.6.7's example.
    const NOW_S: u64 = 784_111_777;
    const DATE_LINE: (&str, &str) = ("Date", "Sun, 06 Nov 1994 08:49:37 GMT");

    fn freshness(fields: &[(&str, &str)]) -> Freshness {
        let mut map = HeaderMap::new();
        for (name, value) in fields.iter().chain([&DATE_LINE]) {
            map.append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        }
        Freshness::of(StatusCode::OK, &map, NOW_S, NOW_S)
    }

    #[test]
    fn lifetimes_come_from_the_directive_that_counts_most() {
        let expires = ("Expires", "Sun, 06 Nov 1994 08:50:37 GMT");
        for (fields, lifetime_s) in [
            (&[("Cache-Control", "max-age=10")][..], 10),
            (&[("Cache-Control", "max-age=10, S-Maxage=\"20\"")], 20),
            (&[expires], 60),
            (&[expires, ("Cache-Control", "max-age=5")], 5),
            (&[("Expires", "0")], 0),
            (&[("Expires", "0"), ("Cache-Control", "max-age=7")], 7),
            (
                &[
                    ("Cache-Control", "max-age=1"),
                    ("Cache-Control", "max-age=9"),
                ],
                1,
            ),
            (&[("Cache-Control", "max-age=x")], 0),
            (&[("Cache-Control", "max-age")], 0),
            (&[("Cache-Control", "max-age=-1")], 0),
            (
                &[("Cache-Control", "max-age=99999999999999999999999")],
                SECONDS_MAX,
            ),
            (&[("Cache-Control", "no-cache, max-age=10")], 0),
            (&[("Cache-Control", "x=\"a, max-age=3\", max-age=4")], 4),
            // A thousand seconds old, so a hundred more.
            (&[("Last-Modified", "Sun, 06 Nov 1994 08:32:57 GMT")], 100),
            (
                &[("Last-Modified", "Sat, 06 Nov 1993 08:32:57 GMT")],
                HEURISTIC_MAX_S,
            ),
            (&[], 0),
        ] {
            assert_eq!(freshness(fields).lifetime_s, lifetime_s, "{fields:?}");
        }
    }

    #[test]
    fn what_is_for_one_client_is_not_shared() {
        for (name, value, is_shared) in [
            ("Cache-Control", "max-age=10", true),
            ("Cache-Control", "NO-STORE", false),
            ("Cache-Control", "private", false),
            ("Cache-Control", "private=\"x, y\"", false),
            ("Set-Cookie", "a=b", false),
            ("Vary", "Accept-Encoding", true),
            ("Vary", "accept-encoding, Cookie", true),
            ("Vary", "Origin, *", false),
            ("Vary", "*", false),
        ] {
            let freshness = freshness(&[(name, value)]);
            assert_eq!(freshness.may_be_shared, is_shared, "{name}: {value}");
        }
    }

    #[test]
    fn an_answer_grows_old_and_may_be_used_a_little_longer() {
        let stale = "max-age=10, stale-while-revalidate=5, stale-if-error=20";
        let freshness = freshness(&[("Cache-Control", stale), ("Age", "3")]);
        for (after_s, usage, stands_in) in [
            (0, Use::Fresh, true),
            (6, Use::Fresh, true),
            (7, Use::WhileRevalidating, true),
            (11, Use::WhileRevalidating, true),
            (12, Use::Stale, true),
            (26, Use::Stale, true),
            (27, Use::Stale, false),
        ] {
            assert_eq!(freshness.age_s(NOW_S + after_s), after_s + 3);
            assert_eq!(freshness.usage(NOW_S + after_s), usage, "{after_s} s");
            assert_eq!(
                freshness.stands_in(NOW_S + after_s),
                stands_in,
                "{after_s} s"
            );
        }
    }

    #[test]
    fn who_forbids_stale_answers_gets_none() {
        for control in ["must-revalidate", "proxy-revalidate", "no-cache"] {
            let value = format!("{control}, max-age=1, stale-while-revalidate=9, stale-if-error=9");
            let freshness = freshness(&[("Cache-Control", &value)]);
            assert_eq!(freshness.usage(NOW_S + 2), Use::Stale);
            assert!(!freshness.stands_in(NOW_S + 2));
        }
    }

    #[test]
    fn time_on_the_way_counts_as_age() {
        let mut map = HeaderMap::new();
        map.insert(DATE, DATE_LINE.1.parse().unwrap());
        map.insert(CACHE_CONTROL, "max-age=10".parse().unwrap());
        let freshness = Freshness::of(StatusCode::OK, &map, NOW_S + 2, NOW_S + 4);
        assert_eq!(freshness.age_s(NOW_S + 4), 4);
    }
}
