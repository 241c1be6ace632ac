//! Rules for some requests of a site.

use std::fmt;
use std::time::Duration;

use host::Growth;
use http::{HeaderName, HeaderValue, StatusCode};

use crate::semantics::cors::Cors;
use crate::semantics::criteria::Criteria;
use crate::semantics::early_hints::EarlyHint;
use crate::semantics::fields::Head;
use crate::semantics::method::Method;
use crate::semantics::pattern::Pattern;
use crate::semantics::pull::RulePull;
use crate::semantics::rate::Pace;
use crate::semantics::redirect::Redirect;
use crate::semantics::relative_path::RelativePath;
use crate::semantics::request_limit::RequestLimit;
use crate::semantics::scheme::Scheme;
use crate::semantics::signed::SigningKeys;
use crate::semantics::template::Template;
use crate::semantics::versions::{HttpVersion, Versions};

/// A rule for some requests. The first rule of a site that matches a request applies; if it
/// [continues](Rule::continues), so does the next one that matches.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Paths as requested: the path of a directory ends with a slash, and its index has no path of
    /// its own.
    pub pattern: Pattern,
    /// Scheme of the connection; `None`: any.
    pub scheme: Option<Scheme>,
    /// Versions of HTTP. Default: all.
    pub versions: Versions,
    /// Further criteria. Default: none.
    pub criteria: Criteria,
    /// The settings of the next rule that matches apply as well, where this one has none.
    pub continues: bool,
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
    /// Path of the site that is served instead.
    pub rewrite: Option<Template>,
    /// Error that replaces the answer.
    pub error: Option<RuleError>,
    /// Paths of the site that are served instead of missing files.
    pub fallback: Option<Fallback>,
    /// Fields of an origin's answer that clients do not get.
    pub removed_fields: Vec<HeaderName>,
    /// Only URLs signed with one of the keys are answered; others get 403.
    pub signed: Option<SigningKeys>,
    /// Requests of a client that are answered in a time; others get 429.
    pub request_limit: Option<RequestLimit>,
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
            criteria: Criteria::default(),
            continues: false,
            cache_control: None,
            expires: None,
            fields: Vec::new(),
            early_hints: Vec::new(),
            cors: None,
            redirect: None,
            rewrite: None,
            error: None,
            fallback: None,
            removed_fields: Vec::new(),
            signed: None,
            request_limit: None,
            pace: None,
            listing: None,
            growth: Growth::Forbidden,
            pull: None,
        }
    }

    /// True if the rule is about this request.
    pub(crate) fn matches(&self, asked: &Asked<'_>) -> bool {
        self.scheme.is_none_or(|own| own == asked.scheme)
            && self.versions.has(asked.version)
            && self.pattern.captures(asked.path).is_some()
            && (self.criteria).accept(asked.method, asked.head, asked.query)
    }

    /// True if the rule determines the content that is served, or serves none.
    fn acts(&self) -> bool {
        self.redirect.is_some() || self.rewrite.is_some() || self.error.is_some()
    }

    /// Returns a rule with the settings of all `rules`: of two values the first counts.
    pub(crate) fn join<'a>(rules: impl IntoIterator<Item = &'a Rule>) -> Option<Rule> {
        let mut rules = rules.into_iter();
        let mut joined = rules.next()?.clone();
        rules.for_each(|rule| joined.add(rule));
        Some(joined)
    }

    fn add(&mut self, rule: &Rule) {
        // The pattern is that of the action, whose star stands for the text of this pattern's.
        if !self.acts() && rule.acts() {
            self.pattern = rule.pattern.clone();
            self.redirect.clone_from(&rule.redirect);
            self.rewrite.clone_from(&rule.rewrite);
            self.error.clone_from(&rule.error);
        }
        // One decides about caching: values of two may contradict each other.
        if self.cache_control.is_none() && self.expires.is_none() {
            self.cache_control.clone_from(&rule.cache_control);
            self.expires = rule.expires;
        }
        // A rule may have a field several times.
        let own: Vec<HeaderName> = self.fields.iter().map(|field| field.name.clone()).collect();
        let others = rule
            .fields
            .iter()
            .filter(|field| !own.contains(&field.name));
        self.fields.extend(others.cloned());
        self.early_hints.extend_from_slice(&rule.early_hints);
        self.removed_fields.extend_from_slice(&rule.removed_fields);
        self.fallback = self.fallback.take().or_else(|| rule.fallback.clone());
        self.cors = self.cors.take().or_else(|| rule.cors.clone());
        self.signed = self.signed.take().or_else(|| rule.signed.clone());
        self.request_limit = self
            .request_limit
            .take()
            .or_else(|| rule.request_limit.clone());
        self.pace = self.pace.or(rule.pace);
        self.listing = self.listing.or(rule.listing);
        self.pull = self.pull.take().or_else(|| rule.pull.clone());
        if rule.growth == Growth::Allowed {
            self.growth = Growth::Allowed;
        }
    }

    /// Returns the page for this error, if the rule has answered with it and names one.
    pub(crate) fn error_page(&self, status: StatusCode) -> Option<&RelativePath> {
        let error = self.error.as_ref().filter(|error| error.status == status);
        error.and_then(|error| error.page.as_ref())
    }

    /// True if clients do not get this field of an origin.
    pub(crate) fn removes(&self, name: &HeaderName) -> bool {
        self.removed_fields.contains(name)
    }
}

/// A request, as rules see it.
#[derive(Clone, Copy)]
pub(crate) struct Asked<'a> {
    /// Path, with a slash at its start, and at its end if it is a directory's.
    pub(crate) path: &'a [u8],
    pub(crate) scheme: Scheme,
    pub(crate) version: HttpVersion,
    pub(crate) method: Method,
    pub(crate) head: Head<'a>,
    pub(crate) query: Option<&'a [u8]>,
}

/// An error with which a rule answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleError {
    /// Status, 400 or above.
    pub status: StatusCode,
    /// File below the site's root. Default: the site's page for the status.
    pub page: Option<RelativePath>,
}

/// Paths that are served instead of missing files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fallback {
    /// Pattern of the rule.
    pub pattern: Pattern,
    /// Paths of the site, the first that exists; their star is the pattern's.
    pub paths: Vec<Template>,
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
