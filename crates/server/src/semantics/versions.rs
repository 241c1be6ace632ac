//! Versions of HTTP, and sets of versions.

use std::fmt;
use std::str::FromStr;

/// A version of HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpVersion {
    /// HTTP/1.1, and HTTP/1.0.
    Http1,
    /// HTTP/2.
    Http2,
    /// HTTP/3.
    Http3,
}

/// A text that names no version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpVersionError(String);

impl HttpVersion {
    /// All versions.
    pub const ALL: [HttpVersion; 3] = [HttpVersion::Http1, HttpVersion::Http2, HttpVersion::Http3];

    /// The number, as an operator writes it.
    pub fn name(self) -> &'static str {
        match self {
            HttpVersion::Http1 => "1.1",
            HttpVersion::Http2 => "2",
            HttpVersion::Http3 => "3",
        }
    }
}

/// A set of versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions(u8);

impl Versions {
    /// All versions.
    pub const ALL: Versions = Versions(0b111);

    /// True if the set has this version.
    pub fn has(self, version: HttpVersion) -> bool {
        self.0 & bit(version) != 0
    }

    /// True if the set has all versions of another.
    pub fn covers(self, other: Versions) -> bool {
        self.0 & other.0 == other.0
    }
}

impl FromIterator<HttpVersion> for Versions {
    fn from_iter<I: IntoIterator<Item = HttpVersion>>(versions: I) -> Self {
        let bits = versions.into_iter().map(bit);
        Versions(bits.fold(0, |all, bit| all | bit))
    }
}

fn bit(version: HttpVersion) -> u8 {
    1 << version as u8
}

impl FromStr for HttpVersion {
    type Err = HttpVersionError;

    fn from_str(text: &str) -> Result<Self, HttpVersionError> {
        let mut all = HttpVersion::ALL.into_iter();
        let found = all.find(|version| version.name() == text);
        found.ok_or_else(|| HttpVersionError(text.to_owned()))
    }
}

impl fmt::Display for HttpVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for HttpVersionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is no version of HTTP: write 1.1, 2 or 3", self.0)
    }
}

impl std::error::Error for HttpVersionError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_its_versions_and_no_others() {
        for version in HttpVersion::ALL {
            let own: Versions = [version].into_iter().collect();
            let held = HttpVersion::ALL.map(|other| own.has(other));
            assert_eq!(held, HttpVersion::ALL.map(|other| other == version));
            assert!(Versions::ALL.covers(own) && !own.covers(Versions::ALL));
            assert_eq!(version.name().parse(), Ok(version));
        }
        let all: Versions = HttpVersion::ALL.into_iter().collect();
        assert_eq!(all, Versions::ALL);
        let error = "1.0".parse::<HttpVersion>().unwrap_err().to_string();
        assert!(error.contains("\"1.0\"") && error.contains("1.1, 2 or 3"));
    }
}
