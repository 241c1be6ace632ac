//! Methods of requests.

use std::fmt;
use std::str::FromStr;

/// The method of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// GET, and all other methods, which are refused.
    Get,
    /// HEAD: the response has no body.
    Head,
    /// OPTIONS.
    Options,
}

impl Method {
    /// Methods that files allow, and their names.
    pub const NAMES: [(Self, &'static str); 3] = [
        (Self::Get, "GET"),
        (Self::Head, "HEAD"),
        (Self::Options, "OPTIONS"),
    ];

    /// Returns the method of this name in a request.
    pub(crate) fn of(name: &[u8]) -> Method {
        match name {
            b"HEAD" => Method::Head,
            b"OPTIONS" => Method::Options,
            _ => Method::Get,
        }
    }
}

/// A text that is no method of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MethodError(String);

impl FromStr for Method {
    type Err = MethodError;

    fn from_str(text: &str) -> Result<Self, MethodError> {
        let found = Self::NAMES.iter().find(|(_, name)| *name == text);
        let found = found.map(|(method, _)| *method);
        found.ok_or_else(|| MethodError(text.to_owned()))
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = Self::NAMES.iter().find(|(method, _)| method == self);
        f.write_str(found.map_or("", |(_, name)| name))
    }
}

impl fmt::Display for MethodError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is no method of a rule: it is GET, HEAD or OPTIONS; others are refused",
            self.0
        )
    }
}

impl std::error::Error for MethodError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_of_rules_are_those_that_files_allow() {
        for (method, name) in Method::NAMES {
            assert_eq!(name.parse(), Ok(method));
            assert_eq!(method.to_string(), name);
            assert_eq!(Method::of(name.as_bytes()), method);
        }
        let error = "POST".parse::<Method>().unwrap_err().to_string();
        assert!(
            error.contains("\"POST\"") && error.contains("HEAD"),
            "{error}"
        );
    }
}
