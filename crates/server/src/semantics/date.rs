//! `Date` and `Last-Modified`: IMF-fixdate (RFC 9110 §5.6.7).

use std::fmt;
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

/// A second since the epoch, as a page has it: year, month, day, hour and minute in UTC.
pub(crate) struct Minute(pub(crate) u64);

impl fmt::Display for Minute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DAY_S: u64 = 86_400;
        // Years that begin in March, so that a leap day is the last, in cycles of 400: E. G.
        // Richards's way (Explanatory Supplement to the Astronomical Almanac, 2013, §15.11.3), from
        // the first of March of the year 0.
        let days = self.0 / DAY_S + 719_468;
        let (cycle, day) = (days / 146_097, days % 146_097);
        let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let day = day - (153 * month + 2) / 5 + 1;
        let (month, after) = if month < 10 {
            (month + 3, 0)
        } else {
            (month - 9, 1)
        };
        let year = 400 * cycle + year + after;
        let (hour, minute) = (self.0 % DAY_S / 3600, self.0 % 3600 / 60);
        let two = |number: u64| [b'0' + (number / 10) as u8, b'0' + (number % 10) as u8];
        let mut text = *b"-00-00 00:00";
        for (at, number) in [(1, month), (4, day), (7, hour), (10, minute)] {
            text[at..at + 2].copy_from_slice(&two(number));
        }
        write!(f, "{year:04}")?;
        f.write_str(std::str::from_utf8(&text).unwrap_or_default())
    }
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
    fn every_day_has_its_name() {
        let mut second = 0;
        for year in 1970..2500 {
            let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let february = if is_leap { 29 } else { 28 };
            let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
            for (month, length) in (1..).zip(lengths) {
                for day in 1..=length {
                    let expected = format!("{year}-{month:02}-{day:02} 13:07");
                    assert_eq!(
                        Minute(second + 13 * 3600 + 7 * 60 + 59).to_string(),
                        expected
                    );
                    second += 86_400;
                }
            }
        }
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
