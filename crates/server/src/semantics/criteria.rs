//! Criteria of a rule besides path, scheme and version.

use std::borrow::Cow;

use http::HeaderName;
use percent_encoding::percent_decode;

use crate::semantics::fields::Head;
use crate::semantics::glob::Glob;
use crate::semantics::method::Method;

/// Criteria of a rule, all of which must be met. Default: none.
#[derive(Clone, Debug, Default)]
pub struct Criteria {
    /// Methods; none: all.
    pub methods: Vec<Method>,
    /// Values of request fields: one line of the field is like the text.
    pub fields: Vec<(HeaderName, Glob)>,
    /// Values of parameters of the query, decoded: one of the name is like the text.
    pub query: Vec<(Box<str>, Glob)>,
}

impl Criteria {
    /// True if a request meets all criteria.
    #[inline]
    pub(crate) fn accept(&self, method: Method, head: Head<'_>, query: Option<&[u8]>) -> bool {
        let is_empty = self.methods.is_empty() && self.fields.is_empty() && self.query.is_empty();
        is_empty || self.accept_all(method, head, query)
    }

    #[inline(never)]
    fn accept_all(&self, method: Method, head: Head<'_>, query: Option<&[u8]>) -> bool {
        let has_method = self.methods.is_empty() || self.methods.contains(&method);
        has_method
            && (self.fields.iter())
                .all(|(name, value)| value.accepts(head.values_named(name.as_str())))
            && (self.query.iter()).all(|(name, value)| {
                let values: Vec<_> = parameters(query, name).collect();
                value.accepts(values.iter().map(|value| &**value))
            })
    }
}

/// The decoded values of a query's parameters of this name (URL Standard,
/// `application/x-www-form-urlencoded`).
fn parameters<'a>(
    query: Option<&'a [u8]>,
    name: &'a str,
) -> impl Iterator<Item = Cow<'a, [u8]>> + 'a {
    let parts = query
        .into_iter()
        .flat_map(|query| query.split(|&byte| byte == b'&'));
    parts.filter_map(move |part| {
        let equals = part.iter().position(|&byte| byte == b'=');
        let (found, value) = part.split_at(equals.unwrap_or(part.len()));
        let value = value.get(1..).unwrap_or_default();
        (*decoded(found) == *name.as_bytes()).then(|| decoded(value))
    })
}

fn decoded(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.contains(&b'+') {
        return percent_decode(text).into();
    }
    let spaced: Vec<u8> = text
        .iter()
        .map(|&byte| if byte == b'+' { b' ' } else { byte })
        .collect();
    Cow::Owned(percent_decode(&spaced).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::semantics::fields::Present;

    const HEAD: &[u8] = b"GET /x?v=2&v=a%20b&empty&c=1+2 HTTP/1.1\r\nHost: a.org\r\n\
        Accept: text/html\r\nAccept: image/avif\r\nUser-Agent: Robot/1\r\n\r\n";

    fn accept(criteria: &Criteria, method: Method) -> bool {
        let head = Head::new(HEAD, Present::default());
        criteria.accept(method, head, Some(b"v=2&v=a%20b&empty&c=1+2&d=%"))
    }

    fn glob(text: &str) -> Glob {
        let Ok(glob) = text.parse();
        glob
    }

    #[test]
    fn every_criterion_must_be_met() {
        let with = |fields: &[(&str, &str)], query: &[(&str, &str)]| {
            let fields = fields
                .iter()
                .map(|(name, value)| (name.parse().unwrap(), glob(value)));
            let query = query
                .iter()
                .map(|(name, value)| ((*name).into(), glob(value)));
            let criteria = Criteria {
                methods: Vec::new(),
                fields: fields.collect(),
                query: query.collect(),
            };
            accept(&criteria, Method::Get)
        };
        for (fields, query, is_met) in [
            (&[][..], &[][..], true),
            (&[("Accept", "*image/avif*")], &[], true),
            (
                &[("Accept", "*image/avif*"), ("User-Agent", "robot*")],
                &[("v", "2")],
                true,
            ),
            (
                &[("Accept", "*image/avif*"), ("User-Agent", "!robot*")],
                &[],
                false,
            ),
            (&[("Cookie", "*")], &[], false),
            (&[("Cookie", "!*")], &[], true),
            (&[], &[("v", "A b")], true),
            (&[], &[("v", "3")], false),
            (&[], &[("empty", "")], true),
            (&[], &[("empty", "*"), ("absent", "!*")], true),
            (&[], &[("absent", "*")], false),
            (&[], &[("c", "1 2"), ("d", "%")], true),
        ] {
            assert_eq!(with(fields, query), is_met, "{fields:?} {query:?}");
        }
    }

    #[test]
    fn methods_are_those_that_files_allow() {
        let criteria = Criteria {
            methods: vec![Method::Head, Method::Options],
            ..Criteria::default()
        };
        assert!(accept(&criteria, Method::Head) && accept(&criteria, Method::Options));
        assert!(!accept(&criteria, Method::Get));
    }

    #[test]
    fn without_a_query_no_parameter_has_a_value() {
        let criteria = Criteria {
            query: vec![("".into(), glob("*"))],
            ..Criteria::default()
        };
        let head = Head::new(HEAD, Present::default());
        assert!(!criteria.accept(Method::Get, head, None));
    }
}
