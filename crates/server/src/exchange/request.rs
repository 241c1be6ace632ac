//! A parsed request, in any version of HTTP.

use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;

use host::Growth;
use http::StatusCode;
use http_message::request::without_empty_lines;

use crate::semantics::fields::Present;
use crate::semantics::hsts::Hsts;
use crate::semantics::method::Method;
use crate::semantics::rule::Rule;
use crate::semantics::scheme::Scheme;
use crate::semantics::site::{HostName, Site};

/// A request whose head lies in the input of its exchange, as a line and fields of text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Request<V> {
    /// Length of the head, in bytes.
    pub(crate) head_bytes: usize,
    /// Range of the target in the head.
    pub(crate) target: Range<usize>,
    pub(crate) method: Method,
    /// HTTP version, with the request's connection options.
    pub(crate) version: V,
    /// Status of the refusal, regardless of the target.
    pub(crate) refusal: Option<StatusCode>,
    /// Which of the fields that matter once the file is known are present.
    pub(crate) present: Present,
    /// Site and rule of the target, once resolved.
    pub(crate) place: Option<Place>,
    /// The choice of files depended on `Accept-Encoding`: so does any response.
    pub(crate) is_negotiated: bool,
    /// The scheme of the connection, once the target is resolved.
    pub(crate) scheme: Scheme,
    /// The rule may depend on fields of the request.
    pub(crate) varies: bool,
    /// Number of the rule's fallbacks tried.
    pub(crate) fallbacks: u8,
    /// Time after which the client may repeat a request that was one too many, in seconds.
    pub(crate) retry_after_s: Option<NonZeroU32>,
    /// The target that the rule has put in the place of the requested one.
    pub(crate) rewritten: Option<Box<Rewritten>>,
}

/// A target that a rule has put in the place of the requested one, behind one pointer: waiting
/// requests have little room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rewritten(pub(crate) Box<[u8]>);

/// Returns the status that refuses a method, if no resource here allows it.
pub(crate) fn method_refusal(name: &[u8]) -> Option<StatusCode> {
    match name {
        b"GET" | b"HEAD" | b"OPTIONS" => None,
        // Methods that RFC 9110 §9 and RFC 5789 define.
        b"CONNECT" | b"DELETE" | b"PATCH" | b"POST" | b"PUT" | b"TRACE" => {
            Some(StatusCode::METHOD_NOT_ALLOWED)
        }
        _ => Some(StatusCode::NOT_IMPLEMENTED),
    }
}

/// The field `Expect` of a request: `100-continue` is the only expectation (RFC 9110 §10.1.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Expectation {
    /// No expectation.
    #[default]
    None,
    /// `100-continue`.
    Continue,
    /// An unknown expectation, or several.
    Unknown,
}

impl Expectation {
    /// Adds a member of the field's list.
    pub(crate) fn note(&mut self, member: &[u8]) {
        *self = match self {
            Expectation::None if member.eq_ignore_ascii_case(b"100-continue") => {
                Expectation::Continue
            }
            _ => Expectation::Unknown,
        };
    }
}

/// A site, and its rule for the request.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) site: Arc<Site>,
    pub(crate) rule: Option<Arc<Rule>>,
}

impl PartialEq for Place {
    fn eq(&self, other: &Self) -> bool {
        let rules = [self, other].map(|place| place.rule.as_ref().map(Arc::as_ptr));
        Arc::ptr_eq(&self.site, &other.site) && rules[0] == rules[1]
    }
}

impl Eq for Place {}

impl<V> Request<V> {
    /// The site of the request.
    pub(crate) fn site(&self) -> Option<&Site> {
        self.place.as_ref().map(|place| &*place.site)
    }

    /// True if the connection has TLS, as far as the request has a site.
    pub(crate) fn is_https(&self) -> bool {
        self.place.is_some() && self.scheme == Scheme::Https
    }

    /// What responses over TLS state (RFC 6797 §7.2).
    pub(crate) fn hsts(&self) -> Option<&Hsts> {
        let hsts = self.site()?.hsts.as_ref();
        hsts.filter(|_| self.is_https())
    }

    /// The first name of the site.
    pub(crate) fn site_name(&self) -> Option<&HostName> {
        self.site()?.names.first()
    }

    /// The rule for the request.
    pub(crate) fn rule(&self) -> Option<&Rule> {
        self.place.as_ref()?.rule.as_deref()
    }

    /// Whether the requested files may grow while they are sent.
    pub(crate) fn growth(&self) -> Growth {
        self.rule().map_or(Growth::Forbidden, |rule| rule.growth)
    }

    /// True if a requested directory without an index is listed.
    pub(crate) fn lists(&self) -> bool {
        let own = self.rule().and_then(|rule| rule.listing);
        own.unwrap_or_else(|| self.site().is_some_and(|site| site.listing))
    }

    /// True if the response has no body.
    pub(crate) fn head_only(&self) -> bool {
        self.method == Method::Head
    }

    /// Returns a substitute for the request in `bytes`, which could not be parsed or timed out.
    pub(crate) fn broken(bytes: &[u8], version: V, status: StatusCode) -> Self {
        Request {
            head_bytes: bytes.len(),
            target: 0..0,
            method: if without_empty_lines(bytes).starts_with(b"HEAD ") {
                Method::Head
            } else {
                Method::Get
            },
            version,
            refusal: Some(status),
            present: Present::default(),
            place: None,
            is_negotiated: false,
            scheme: Scheme::Http,
            varies: false,
            fallbacks: 0,
            retry_after_s: None,
            rewritten: None,
        }
    }
}
