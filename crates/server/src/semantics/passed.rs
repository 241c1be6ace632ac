//! Which fields of an origin's answer a client gets: all, but those that do not fit the response
//! and those that the site's rule decides.

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
    CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LOCATION,
    CONTENT_TYPE, DATE, EXPIRES, HeaderName,
};
use http::{HeaderValue, StatusCode};

use crate::semantics::pull::Passed;
use crate::semantics::rule::{self, Rule};

/// Fields about the object as a whole: useless to a client that gets no part of the object (RFC
/// 9110 §15.4.5).
const OF_OBJECT: [HeaderName; 5] = [
    CONTENT_DISPOSITION,
    CONTENT_ENCODING,
    CONTENT_LANGUAGE,
    HeaderName::from_static("digest"),
    HeaderName::from_static("repr-digest"),
];

/// Digests of a body as it was sent (RFC 9530 §2, RFC 1864): wrong for a part, and for none.
const OF_BODY: [HeaderName; 2] = [
    HeaderName::from_static("content-digest"),
    HeaderName::from_static("content-md5"),
];

const CORS: [HeaderName; 6] = [
    ACCESS_CONTROL_ALLOW_CREDENTIALS,
    ACCESS_CONTROL_ALLOW_HEADERS,
    ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS,
    ACCESS_CONTROL_MAX_AGE,
];

/// The fields for a response with this status. `Date` and `Content-Type` have their own places.
pub(crate) fn sent<'a>(
    passed: &'a Passed,
    status: StatusCode,
    head_only: bool,
    rule: Option<&'a Rule>,
) -> impl Iterator<Item = &'a (HeaderName, HeaderValue)> {
    let fields = passed.fields.iter();
    fields.filter(move |(name, _)| {
        fits(name, status, head_only) && !rule.is_some_and(|rule| decides(rule, status, name))
    })
}

/// True if a field of this name is correct in a response with this status.
fn fits(name: &HeaderName, status: StatusCode, head_only: bool) -> bool {
    let has_object = [StatusCode::OK, StatusCode::PARTIAL_CONTENT].contains(&status);
    if [DATE, CONTENT_TYPE].contains(name) {
        false
    } else if OF_BODY.contains(name) {
        status == StatusCode::OK && !head_only
    } else if *name == CONTENT_LOCATION {
        has_object || status == StatusCode::NOT_MODIFIED
    } else {
        has_object || !OF_OBJECT.contains(name)
    }
}

/// True if the rule determines the fields of this name.
fn decides(rule: &Rule, status: StatusCode, name: &HeaderName) -> bool {
    let decides_caching = rule::may_be_kept(status)
        && (rule.cache_control.is_some() || rule.expires.is_some())
        && [CACHE_CONTROL, EXPIRES].contains(name);
    decides_caching
        || rule.removes(name)
        || (rule.cors.is_some() && CORS.contains(name))
        || rule.fields.iter().any(|field| field.name == *name)
}
