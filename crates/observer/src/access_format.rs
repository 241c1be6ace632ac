//! The forms of the access log.

use std::fmt;
use std::str::FromStr;

/// What lines of the access log are like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessFormat {
    /// Apache's and nginx's.
    #[default]
    Combined,
    /// The same, and what the cache had to do with it.
    CombinedCache,
    /// An object each.
    Json,
}

const FORMATS: [(AccessFormat, &str); 3] = [
    (AccessFormat::Combined, "combined"),
    (AccessFormat::CombinedCache, "combined-cache"),
    (AccessFormat::Json, "json"),
];

impl AccessFormat {
    /// The names of all.
    pub fn names() -> impl Iterator<Item = &'static str> {
        FORMATS.iter().map(|(_, name)| *name)
    }
}

impl FromStr for AccessFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = FORMATS.iter().find(|(_, name)| *name == text);
        found
            .map(|(format, _)| *format)
            .ok_or_else(|| "it is combined, combined-cache or json".to_owned())
    }
}

impl fmt::Display for AccessFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = FORMATS.iter().find(|(format, _)| format == self);
        f.write_str(found.map_or("", |(_, name)| name))
    }
}
