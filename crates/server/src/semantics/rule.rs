//! Rules for some paths of a site.

use std::fmt;
use std::time::Duration;

use host::Growth;
use http::{HeaderName, HeaderValue, StatusCode};

use crate::semantics::cors::Cors;
use crate::semantics::early_hints::EarlyHint;
use crate::semantics::pattern::Pattern;
use crate::semantics::pull::RulePull;
use crate::semantics::rate::Pace;
use crate::semantics::redirect::Redirect;
use crate::semantics::scheme::Scheme;
use crate::semantics::signed::SigningKeys;
use crate::semantics::versions::{HttpVersion, Versions};

/// A rule for requests whose path, scheme and version it names. The first rule of a site that
/// matches a request applies, and no other.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Paths as requested: the path of a directory ends with a slash, and its index has no path of
    /// its own.
    pub pattern: Pattern,
    /// Scheme of the connection; `None`: any.
    pub scheme: Option<Scheme>,
    /// Versions of HTTP. Default: all.
    pub versions: Versions,
    /// Value of `Cache-Control`, if the answer is a file, a redirect, or 304.
    pub cache_control: Option<HeaderValue>,
    /// Time from `Date` to `Expires`, if the answer is a file, a redirect, or 304.
    pub expires: Option<Duration>,
    /// Further fields of every answer, including errors, unless the request could not be parsed.
    pub fields: Vec<ExtraField>,
    /// Links that a browser gets before the response, over HTTP/2 and HTTP/3 (RFC 8297), and with a
    /// 200.
    pub early_hints: Vec<EarlyHint>,
    /// Access by pages of other origins.
    pub cors: Option<Cors>,
    /// Redirect that replaces the answer.
    pub redirect: Option<Redirect>,
    /// Only URLs signed with one of the keys are answered; others get 403.
    pub signed: Option<SigningKeys>,
    /// Rate of sending files.
    pub pace: Option<Pace>,
    /// Whether directories without an index are listed; `None`: as the site configures.
    pub listing: Option<bool>,
    /// Whether files that grow can still be sent: only for files whose writers append and never
    /// rewrite.
    pub growth: Growth,
    /// Source of missing files. Default: as the site configures.
    pub pull: Option<RulePull>,
}

impl Rule {
    /// A rule that changes nothing yet.
    pub fn new(pattern: Pattern) -> Self {
        Rule {
            pattern,
            scheme: None,
            versions: Versions::ALL,
            cache_control: None,
            expires: None,
            fields: Vec::new(),
            early_hints: Vec::new(),
            cors: None,
            redirect: None,
            signed: None,
            pace: None,
            listing: None,
            growth: Growth::Forbidden,
            pull: None,
        }
    }

    /// Returns the bytes that the star of the pattern matches; `None` for another request. The path
    /// begins with a slash.
    pub(crate) fn captures<'a>(
        &self,
        path: &'a [u8],
        scheme: Scheme,
        version: HttpVersion,
    ) -> Option<&'a [u8]> {
        let is_of_scheme = self.scheme.is_none_or(|own| own == scheme);
        let applies = is_of_scheme && self.versions.has(version);
        applies.then(|| self.pattern.captures(path)).flatten()
    }
}

/// A field added to answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtraField {
    pub(crate) name: HeaderName,
    /// The name as configured: HTTP/1.1 sends it in this form.
    pub(crate) written: Box<str>,
    pub(crate) value: HeaderValue,
}

/// A field that cannot be added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExtraFieldError {
    /// The name or the value is not valid in HTTP.
    Malformed(String),
    /// The server generates this field itself.
    Reserved(String),
}

/// Fields that the server generates itself, or that would break the framing of responses.
const RESERVED: [&str; 27] = [
    "accept-ranges",
    "access-control-allow-credentials",
    "access-control-allow-headers",
    "access-control-allow-methods",
    "access-control-allow-origin",
    "access-control-expose-headers",
    "access-control-max-age",
    "allow",
    "cache-control",
    "connection",
    "content-encoding",
    "content-length",
    "content-range",
    "content-type",
    "date",
    "etag",
    "expires",
    "keep-alive",
    "last-modified",
    "location",
    "proxy-connection",
    "server",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "vary",
];

impl ExtraField {
    /// Creates a field of this name and value.
    pub fn new(name: &str, value: &str) -> Result<Self, ExtraFieldError> {
        let malformed = || ExtraFieldError::Malformed(format!("{name}: {value}"));
        let field = ExtraField {
            name: name.parse().map_err(|_| malformed())?,
            written: name.into(),
            value: HeaderValue::from_str(value).map_err(|_| malformed())?,
        };
        if RESERVED.contains(&field.name.as_str()) {
            Err(ExtraFieldError::Reserved(name.to_owned()))
        } else {
            Ok(field)
        }
    }
}

impl fmt::Display for ExtraFieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExtraFieldError::Malformed(field) => write!(
                f,
                "{field:?} is no header field: the name consists of letters, digits and -, the \
                 value of what can be seen"
            ),
            ExtraFieldError::Reserved(name) => write!(
                f,
                "the header field {name} cannot be added, since the server itself says what it is; \
                 there are options of their own for Cache-Control, Expires, other origins and \
                 redirects"
            ),
        }
    }
}

impl std::error::Error for ExtraFieldError {}

/// True for the statuses whose caching a rule controls.
pub(crate) fn may_be_kept(status: StatusCode) -> bool {
    status.is_success() || status.is_redirection()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_are_none_or_that_break_things_are_refused() {
        ExtraField::new("Strict-Transport-Security", "max-age=31536000").unwrap();
        for (name, value) in [
            ("", "x"),
            ("a b", "x"),
            ("a:", "x"),
            ("A", "x\r\nB: y"),
            ("A", "\0"),
        ] {
            let error = ExtraField::new(name, value).unwrap_err();
            assert!(matches!(error, ExtraFieldError::Malformed(_)), "{error}");
        }
        for name in [
            "Content-Length",
            "TRANSFER-ENCODING",
            "etag",
            "Vary",
            "Server",
            "Access-Control-Allow-Origin",
        ] {
            let error = ExtraField::new(name, "1").unwrap_err();
            assert_eq!(error, ExtraFieldError::Reserved(name.to_owned()));
        }
    }
}
