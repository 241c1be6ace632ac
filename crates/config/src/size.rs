//! Sizes in bytes, and the share of a size for each NIC worker.

use std::fmt;
use std::str::FromStr;

use nic::Config;
use nic::buffer::BLOCK_BYTES;

/// A number of bytes: `512M`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

const KIB: u64 = 1 << 10;

pub(crate) const SIZE_UNITS: [(&str, u64); 3] = [("K", KIB), ("M", KIB << 10), ("G", KIB << 20)];

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let unit = match &text[digits.len()..] {
            "" => 1,
            name => SIZE_UNITS
                .iter()
                .find(|(unit, _)| *unit == name)
                .map(|(_, bytes)| *bytes)
                .ok_or("a size is a number with K, M or G, such as 512M")?,
        };
        let number: Option<u64> = digits.parse().ok();
        let bytes = number.and_then(|number| number.checked_mul(unit));
        // A size of memory must be addressable.
        bytes
            .filter(|bytes| *bytes <= 1 << 47)
            .map(Size)
            .ok_or_else(|| "a size is a whole number, and there is not so much memory".to_owned())
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Size(bytes) = *self;
        for (name, unit) in SIZE_UNITS.into_iter().rev() {
            if bytes > 0 && bytes.is_multiple_of(unit) {
                return write!(f, "{}{name}", bytes / unit);
            }
        }
        write!(f, "{bytes}")
    }
}

impl Size {
    /// Checks that the size suffices as the cache of this many workers. The error is its subject,
    /// cause and remedy.
    pub fn check_for(self, workers: u16) -> Result<(), (String, String, String)> {
        let each_min = Config::CACHE_BYTES_MIN as u64;
        let least = Size(each_min * u64::from(workers));
        if self >= least {
            return Ok(());
        }
        Err((
            format!("--cache {self} for --workers {workers}"),
            format!(
                "too little: one SEND may need {} blocks of {} at once, and each worker has blocks \
                 of its own",
                each_min / BLOCK_BYTES as u64,
                Size(BLOCK_BYTES as u64),
            ),
            format!("Give at least {least}, or fewer workers."),
        ))
    }
}

/// Content memory of each NIC worker, in bytes: its share of `cache`, or of the default for a
/// control group with a limit of `limit_bytes`.
pub fn cache_bytes(cache: Option<Size>, workers: u16, limit_bytes: Option<u64>) -> usize {
    let workers = u64::from(workers.max(1));
    match cache {
        Some(Size(bytes)) => usize::try_from(bytes / workers).unwrap_or(usize::MAX),
        None => {
            let quarter = limit_bytes.map_or(u64::MAX, |limit| limit / 4);
            let quarter = usize::try_from(quarter).unwrap_or(usize::MAX);
            Config::cache_bytes_default().min(quarter) / workers as usize
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(text: &str) -> Size {
        text.parse()
            .unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn sizes_have_units() {
        for (text, bytes, again) in [
            ("1G", 1 << 30, "1G"),
            ("512M", 512 << 20, "512M"),
            ("2048M", 2 << 30, "2G"),
            ("10000K", 10_000 << 10, "10000K"),
            ("8388609", 8_388_609, "8388609"),
        ] {
            assert_eq!(size(text), Size(bytes));
            assert_eq!(Size(bytes).to_string(), again);
        }
        for text in [
            "",
            "M",
            "-1M",
            "1.5G",
            "1T",
            "1m",
            "1 G",
            "999999999G",
            "99999999999999999999",
        ] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn workers_share_what_is_given() {
        let given = Some(size("256M"));
        assert_eq!(cache_bytes(given, 4, None), 64 << 20);
        assert_eq!(cache_bytes(given, 1, Some(1 << 20)), 256 << 20);
        let by_default = cache_bytes(None, 4, None);
        assert_eq!(by_default, Config::cache_bytes_default() / 4);
        assert!(cache_bytes(None, 1, None) <= 1 << 30);
    }

    #[test]
    fn the_default_is_a_quarter_of_what_a_control_group_may_use() {
        assert_eq!(cache_bytes(None, 1, Some(256 << 20)), 64 << 20);
        assert_eq!(cache_bytes(None, 2, Some(256 << 20)), 32 << 20);
        let unlimited = cache_bytes(None, 1, None);
        assert_eq!(cache_bytes(None, 1, Some(1 << 60)), unlimited);
    }

    #[test]
    fn too_little_is_refused_with_the_least_that_is_not() {
        let least = Config::CACHE_BYTES_MIN;
        for workers in [1, 3] {
            let enough = (least * usize::from(workers)) as u64;
            assert_eq!(Size(enough).check_for(workers), Ok(()));
            let (.., remedy) = Size(enough - 1).check_for(workers).unwrap_err();
            assert!(remedy.contains(&Size(enough).to_string()), "{remedy}");
        }
    }
}
