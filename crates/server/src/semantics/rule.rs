//! Rules: what is special about some paths of a site.

use std::fmt;
use std::time::Duration;

use host::Growth;
use http::{HeaderName, HeaderValue, StatusCode};

use crate::semantics::cors::Cors;
use crate::semantics::pattern::Pattern;
use crate::semantics::pull::RulePull;
use crate::semantics::rate::Pace;
use crate::semantics::redirect::Redirect;
use crate::semantics::signed::SigningKeys;

/// What is special about the paths that a pattern is about. Of a site's rules the first one that is
/// about a path counts, and no other.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Which paths, as they are asked for: that of a directory ends with a slash, and its index has
    /// no path of its own.
    pub pattern: Pattern,
    /// The value of `Cache-Control`, where the answer is a file, a redirect, or 304.
    pub cache_control: Option<HeaderValue>,
    /// How long after `Date` the answer `Expires`, where it is a file, a redirect, or 304.
    pub expires: Option<Duration>,
    /// Further fields of every answer, errors as well, unless the request could not be read.
    pub fields: Vec<ExtraField>,
    /// What pages of other origins may do.
    pub cors: Option<Cors>,
    /// Where to go instead.
    pub redirect: Option<Redirect>,
    /// Only URLs that are signed with one of these keys get an answer; others get 403.
    pub signed: Option<SigningKeys>,
    /// How fast files are sent.
    pub pace: Option<Pace>,
    /// Whether directories without an index are listed; `None`: as the site has it.
    pub listing: Option<bool>,
    /// Whether files that become longer can still be sent: only for those whose writers append and
    /// rewrite nothing.
    pub growth: Growth,
    /// Whether what is not there comes from an origin. Default: as the site has it.
    pub pull: Option<RulePull>,
}

impl Rule {
    /// A rule that changes nothing yet.
    pub fn new(pattern: Pattern) -> Self {
        Rule {
            pattern,
            cache_control: None,
            expires: None,
            fields: Vec::new(),
            cors: None,
            redirect: None,
            signed: None,
            pace: None,
            listing: None,
            growth: Growth::Forbidden,
            pull: None,
        }
    }
}

/// A field that is added to answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtraField {
    pub(crate) name: HeaderName,
    /// The name as it was written: HTTP/1.1 sends it so.
    pub(crate) written: Box<str>,
    pub(crate) value: HeaderValue,
}

/// A field that cannot be added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExtraFieldError {
    /// It has no such name or value in HTTP.
    Malformed(String),
    /// The server itself says that.
    Reserved(String),
}

/// What the server says itself, and what would break the framing of responses.
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
    /// A field of this name and value.
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

/// True for the statuses of which a rule says how long they may be kept.
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
