//! Paths below a directory, as an operator writes them.

use std::fmt;
use std::str::FromStr;

/// A path that stays below a directory: `index.html`, `errors/404.html`. May be empty: the
/// directory itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RelativePath(Box<str>);

/// A text that is no path below a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelativePathError(String);

impl RelativePath {
    /// A path that is known to be one.
    pub(crate) fn known(path: &'static str) -> Self {
        debug_assert!(path.parse::<Self>().is_ok(), "{path}");
        Self(path.into())
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// True if a path leads to this directory, or below it.
    pub(crate) fn holds(&self, path: &[u8]) -> bool {
        let rest = path.strip_prefix(self.as_bytes());
        rest.is_some_and(|rest| matches!(rest, [] | [b'/', ..]))
    }
}

impl FromStr for RelativePath {
    type Err = RelativePathError;

    fn from_str(text: &str) -> Result<Self, RelativePathError> {
        let is_name =
            |segment: &str| !matches!(segment, "" | "." | "..") && !segment.contains('\0');
        let trimmed = text.strip_suffix('/').unwrap_or(text);
        if trimmed.is_empty() && !text.starts_with('/') || trimmed.split('/').all(is_name) {
            Ok(RelativePath(trimmed.into()))
        } else {
            Err(RelativePathError(text.to_owned()))
        }
    }
}

impl fmt::Display for RelativePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for RelativePathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is no path below the root: write one such as errors/404.html, without a slash at \
             its start, and without . and ..",
            self.0
        )
    }
}

impl std::error::Error for RelativePathError {}
