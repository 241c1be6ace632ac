//! `Date` and `Last-Modified`: IMF-fixdate (RFC 9110 §5.6.7).

use std::time::{Duration, SystemTime};

use httpdate::HttpDate;

/// The first second of the year 10000, where IMF-fixdate's four digits end.
const YEAR_10000_S: u64 = 253_402_300_800;

/// Now, formatted at most once a second.
#[derive(Debug, Default)]
pub(crate) struct DateCache {
    second: Option<u64>,
    text: String,
}

impl DateCache {
    /// `Date`'s value for this time since the epoch; `None` if the clock makes no sense.
    pub(crate) fn at(&mut self, unix_time: Duration) -> Option<&str> {
        let second = unix_time.as_secs();
        if self.second != Some(second) {
            self.text.clear();
            if let Some(date) = http_date(second) {
                self.text = date.to_string();
            }
            self.second = Some(second);
        }
        (!self.text.is_empty()).then_some(self.text.as_str())
    }
}

/// The second in which a file was modified last, since the epoch; `None` if that was before it.
pub(crate) fn modified_s(mtime_ns: i64) -> Option<u64> {
    Some(u64::try_from(mtime_ns).ok()? / 1_000_000_000)
}

/// `Last-Modified`'s value for a file that was modified in this second; `None` after year 9999.
///
/// RFC 9110 §8.8.2.1: it must not be later than the response's own `Date`.
pub(crate) fn last_modified(modified_s: u64, unix_time: Duration) -> Option<HttpDate> {
    http_date(modified_s.min(unix_time.as_secs()))
}

/// A second since the epoch as a field's value has it; `None` after year 9999.
pub(crate) fn http_date(second: u64) -> Option<HttpDate> {
    // `HttpDate` panics beyond.
    (second < YEAR_10000_S)
        .then(|| HttpDate::from(SystemTime::UNIX_EPOCH + Duration::from_secs(second)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn date_follows_the_clock() {
        let mut cache = DateCache::default();
        // RFC 9110 §5.6.7's own example.
        let then = Duration::from_secs(784_111_777);
        assert_eq!(cache.at(then), Some("Sun, 06 Nov 1994 08:49:37 GMT"));
        assert_eq!(
            cache.at(then + Duration::from_millis(999)),
            Some("Sun, 06 Nov 1994 08:49:37 GMT")
        );
        assert_eq!(
            cache.at(then + Duration::from_secs(1)),
            Some("Sun, 06 Nov 1994 08:49:38 GMT")
        );
    }

    #[test]
    fn a_clock_beyond_the_format_has_no_date() {
        let mut cache = DateCache::default();
        assert_eq!(cache.at(Duration::from_secs(YEAR_10000_S)), None);
        assert_eq!(cache.at(Duration::MAX), None);
        assert_eq!(
            cache.at(Duration::from_secs(YEAR_10000_S - 1)),
            Some("Fri, 31 Dec 9999 23:59:59 GMT")
        );
    }

    #[test]
    fn last_modified_is_never_in_the_future() {
        let now = Duration::from_secs(784_111_777);
        let text = |mtime_ns| Some(last_modified(modified_s(mtime_ns)?, now)?.to_string());
        assert_eq!(text(0).as_deref(), Some("Thu, 01 Jan 1970 00:00:00 GMT"));
        assert_eq!(
            text(i64::MAX).as_deref(),
            Some("Sun, 06 Nov 1994 08:49:37 GMT")
        );
        assert_eq!(text(-1), None);
        assert_eq!(text(i64::MIN), None);
    }
}
