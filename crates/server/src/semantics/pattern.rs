//! Which paths a rule is about.

use std::fmt;
use std::str::FromStr;

/// A path, or paths, of which one place may be anything: `/about`, `/video/*`, `*.m3u8`,
/// `/live/*.ts`.
///
/// It is compared with the whole decoded path of a request, from its first slash on. `*` stands for
/// any bytes, also slashes, also none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    before: Box<str>,
    /// What follows the star, if there is one.
    after: Option<Box<str>>,
}

/// A text that is no pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatternError {
    text: String,
    why: &'static str,
}

impl Pattern {
    /// All paths.
    pub fn all() -> Self {
        Pattern {
            before: "/".into(),
            after: Some("".into()),
        }
    }

    /// What stands in the place of the star, empty if there is none; `None` if the path is another
    /// one.
    pub(crate) fn captures<'a>(&self, path: &'a [u8]) -> Option<&'a [u8]> {
        let rest = path.strip_prefix(self.before.as_bytes())?;
        match &self.after {
            Some(after) => rest.strip_suffix(after.as_bytes()),
            None => rest.is_empty().then_some(rest),
        }
    }
}

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        let fail = |why| {
            Err(PatternError {
                text: text.to_owned(),
                why,
            })
        };
        if !text.starts_with(['/', '*']) {
            return fail("it does not begin with / or *, so no path is like it");
        }
        let mut pieces = text.split('*');
        let (Some(before), after, None) = (pieces.next(), pieces.next(), pieces.next()) else {
            return fail("it has more than one *");
        };
        Ok(Pattern {
            before: before.into(),
            after: after.map(Into::into),
        })
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.before)?;
        match &self.after {
            Some(after) => write!(f, "*{after}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for PatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PatternError { text, why } = self;
        write!(
            f,
            "{text:?} is no pattern of paths: {why}; such are /about, /video/* and *.m3u8"
        )
    }
}

impl std::error::Error for PatternError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_is_anything() {
        for (pattern, path, captured) in [
            ("/about", "/about", Some("")),
            ("/about", "/about/", None),
            ("/about", "/", None),
            ("*", "/", Some("/")),
            ("*", "/a/b", Some("/a/b")),
            ("/video/*", "/video/", Some("")),
            ("/video/*", "/video/a/b.mp4", Some("a/b.mp4")),
            ("/video/*", "/video", None),
            ("*.mp4", "/video/a.mp4", Some("/video/a")),
            ("*.mp4", "/a.mp4/b", None),
            ("/a*b", "/ab", Some("")),
            ("/ab*ba", "/aba", None),
            ("/a*", "/\u{e9}", None),
        ] {
            let pattern: Pattern = pattern.parse().unwrap();
            let found = pattern.captures(path.as_bytes());
            assert_eq!(found, captured.map(str::as_bytes), "{pattern} {path}");
        }
    }

    #[test]
    fn what_is_no_pattern_is_refused_with_an_example() {
        for text in ["", "video/*", "/a/*/*", "**"] {
            let error = text.parse::<Pattern>().unwrap_err().to_string();
            assert!(
                error.contains(&format!("{text:?}")) && error.contains("*.m3u8"),
                "{error}"
            );
        }
    }
}
