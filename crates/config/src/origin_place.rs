//! Origins and the place of their cache, as settings name them.

use std::fmt;
use std::str::FromStr;

use origin::OriginUrl;
use serde::{Deserialize, Serialize};
use server::{Pattern, RelativePath, RelativePathError};

use crate::size::Size;

/// Length of a segment, in bytes.
pub const SEGMENT_BYTES: u64 = 1 << 20;

/// Least size of a cache: segments with readers must not evict each other.
pub const CACHE_BYTES_MIN: Size = Size(16 * SEGMENT_BYTES);

/// Most origins of a configuration: for each, the fetcher keeps connections, and a thread for name
/// lookups.
pub const ORIGINS_MAX: usize = 256;

/// The origin of some paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginPlace {
    /// Pattern of the paths; `None`: all paths.
    pub pattern: Option<Pattern>,
    /// The origin.
    pub url: OriginUrl,
}

/// The `origin` setting of a site or a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OriginChoice {
    /// No origin.
    Off,
    /// This origin for all paths.
    Url(OriginUrl),
}

impl OriginChoice {
    /// The origin, if there is one.
    pub fn url(&self) -> Option<&OriginUrl> {
        match self {
            Self::Off => None,
            Self::Url(url) => Some(url),
        }
    }
}

impl FromStr for OriginChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            _ => parse_url(text).map(Self::Url),
        }
    }
}

impl fmt::Display for OriginChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Url(url) => write!(f, "{url}"),
        }
    }
}

fn parse_url(text: &str) -> Result<OriginUrl, String> {
    text.parse()
        .map_err(|error: origin::OriginUrlError| error.to_string())
}

impl FromStr for OriginPlace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (pattern, url) = match text.split_once('=') {
            Some((pattern, url)) if pattern.starts_with(['/', '*']) => (Some(pattern), url),
            _ => (None, text),
        };
        let pattern = pattern.map(str::parse).transpose();
        Ok(Self {
            pattern: pattern.map_err(|error: server::PatternError| error.to_string())?,
            url: parse_url(url)?,
        })
    }
}

impl fmt::Display for OriginPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.pattern {
            Some(pattern) => write!(f, "{pattern}={}", self.url),
            None => write!(f, "{}", self.url),
        }
    }
}

/// Place of the cache, as sent to the host process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachePlace {
    /// Path below the root; empty for the root itself.
    pub path: String,
    /// The root has other files beside the cache.
    pub is_among_files: bool,
}

impl CachePlace {
    /// A directory in the cache directory, below the root.
    pub fn directory(&self, name: &str) -> Result<RelativePath, RelativePathError> {
        match &*self.path {
            "" => name.parse(),
            path => format!("{path}/{name}").parse(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_may_be_about_some_paths() {
        for (text, pattern) in [
            ("http://a.example", None),
            ("/vod/*=http://a.example/base", Some("/vod/*")),
            ("/x=https://a.example", Some("/x")),
            ("*.mp4=https://a.example", Some("*.mp4")),
        ] {
            let place: OriginPlace = text.parse().unwrap();
            assert_eq!(
                place.pattern.as_ref().map(ToString::to_string).as_deref(),
                pattern
            );
            assert_eq!(place.to_string(), text);
        }
        for text in [
            "a.example",
            "vod=http://a.example",
            "/*/*=http://a.example",
            "/x=",
        ] {
            assert!(text.parse::<OriginPlace>().is_err(), "{text}");
        }
    }
}
