//! Formats of the access log.

use std::fmt;
use std::str::FromStr;

/// Format of a line of the access log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessFormat {
    /// Apache's and nginx's combined format.
    #[default]
    Combined,
    /// [`AccessFormat::Combined`] with the cache status.
    CombinedCache,
    /// A JSON object on each line.
    Json,
}

const FORMATS: [(AccessFormat, &str); 3] = [
    (AccessFormat::Combined, "combined"),
    (AccessFormat::CombinedCache, "combined-cache"),
    (AccessFormat::Json, "json"),
];

impl AccessFormat {
    /// The names of all formats.
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
