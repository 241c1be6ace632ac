//! Values written as text: with units, or in a form of their own.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error, Visitor};
use serde::ser::{Serialize, Serializer};

/// A value that is parsed from and printed as text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Text<T>(pub T);

impl<T: fmt::Display> Serialize for Text<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de, T: FromStr<Err: fmt::Display>> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Parsed in the visitor, so that an error in a list names the element.
        deserializer.deserialize_str(Parse(PhantomData))
    }
}

struct Parse<T>(PhantomData<T>);

impl<T: FromStr<Err: fmt::Display>> Visitor<'_> for Parse<T> {
    type Value = Text<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text in quotation marks")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Text<T>, E> {
        text.parse().map(Text).map_err(E::custom)
    }
}

/// A value whose text has a form, for the JSON schema.
#[cfg(test)]
pub(crate) trait Form {
    /// The schema of the text.
    fn form() -> serde_json::Value;
}

#[cfg(test)]
impl<T: Form> schemars::JsonSchema for Text<T> {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Text".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let form = T::form();
        schemars::Schema::try_from(form).unwrap_or_default()
    }
}

/// A time: `500ms`, `15s`, `5m`, `2h`, `1d`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub Duration);

pub(crate) const TIME_UNITS: [(&str, u64); 5] = [
    ("d", 24 * 3600 * 1000),
    ("h", 3600 * 1000),
    ("m", 60 * 1000),
    ("s", 1000),
    ("ms", 1),
];

/// Ten years, in milliseconds.
const TIME_MS_MAX: u64 = 10 * 365 * 24 * 3600 * 1000;

impl Time {
    /// The shortest time.
    pub const LEAST: Self = Self(Duration::from_millis(1));

    /// A number of seconds.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }
}

impl FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let unit = TIME_UNITS
            .iter()
            .find(|(unit, _)| *unit == &text[digits.len()..]);
        let time = unit
            .filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()))
            .and_then(|(_, ms)| digits.parse::<u64>().ok()?.checked_mul(*ms))
            .filter(|ms| *ms <= TIME_MS_MAX);
        time.map(|ms| Self(Duration::from_millis(ms))).ok_or_else(|| {
            format!(
                "{text:?} is no time: it is a whole number with ms, s, m, h or d, such as 15s, and \
                 at most ten years"
            )
        })
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.as_millis() as u64;
        if ms == 0 {
            return f.write_str("0s");
        }
        let mut fitting = TIME_UNITS
            .iter()
            .filter(|(_, unit)| ms.is_multiple_of(*unit));
        match fitting.next() {
            Some((name, unit)) => write!(f, "{}{name}", ms / unit),
            None => write!(f, "{ms}ms"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        for (text, ms, again) in [
            ("500ms", 500, "500ms"),
            ("1000ms", 1000, "1s"),
            ("90s", 90_000, "90s"),
            ("120s", 120_000, "2m"),
            ("36h", 129_600_000, "36h"),
            ("48h", 172_800_000, "2d"),
            ("0s", 0, "0s"),
            ("0ms", 0, "0s"),
        ] {
            let time: Time = text.parse().unwrap();
            assert_eq!(time.0, Duration::from_millis(ms), "{text}");
            assert_eq!(time.to_string(), again);
        }
        for text in [
            "",
            "5",
            "ms",
            "-1s",
            "1.5s",
            "1 s",
            "5min",
            "4000d",
            "99999999999999999999s",
        ] {
            let error = text.parse::<Time>().unwrap_err();
            assert!(
                error.contains(&format!("{text:?}")) && error.contains("15s"),
                "{error}"
            );
        }
    }
}
