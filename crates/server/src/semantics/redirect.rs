//! Redirects that an operator asks for.

use std::fmt;

use http::StatusCode;
use percent_encoding::percent_encode;

use crate::semantics::target::{NOT_PCHAR, extend};

/// The status and the target of a redirect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    status: StatusCode,
    before: Box<str>,
    /// Text after the captured bytes, if the target has a star.
    after: Option<Box<str>>,
}

/// A redirect that leads nowhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedirectError {
    /// A status other than 301, 302, 303, 307 and 308.
    Status(u16),
    /// The target is neither a path nor a URL, or has its star where it would determine the host.
    To(String),
}

impl Redirect {
    /// Creates a redirect to a path of the same site or to a URL. A `*` in `to` stands for the
    /// bytes that the star of the rule's pattern has matched. The query of the request is kept
    /// unless `to` has one.
    pub fn new(status: u16, to: &str) -> Result<Self, RedirectError> {
        let status = match status {
            301 | 302 | 303 | 307 | 308 => StatusCode::from_u16(status).ok(),
            _ => None,
        }
        .ok_or(RedirectError::Status(status))?;
        let fail = || RedirectError::To(to.to_owned());
        let path_start = match to.strip_prefix("https://").or(to.strip_prefix("http://")) {
            // Browsers skip an empty host, and take the next segment for the host.
            Some(rest) if rest.is_empty() || rest.starts_with(['/', '?']) => return Err(fail()),
            Some(rest) => to.len() - rest.len() + rest.find('/').unwrap_or(rest.len()),
            None if to.starts_with('/') && !to.starts_with("//") => 0,
            None => return Err(fail()),
        };
        let mut pieces = to.split('*');
        let (Some(before), after, None) = (pieces.next(), pieces.next(), pieces.next()) else {
            return Err(fail());
        };
        // Browsers take \ for /; and behind # there is no place for a query.
        let may_stand = |byte: u8| byte.is_ascii_graphic() && !b"\\#".contains(&byte);
        if !to.bytes().all(may_stand) || after.is_some() && before.len() <= path_start {
            return Err(fail());
        }
        Ok(Redirect {
            status,
            before: before.into(),
            after: after.map(Into::into),
        })
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    /// Writes `Location`.
    pub(crate) fn location(&self, captured: &[u8], query: Option<&[u8]>, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(self.before.as_bytes());
        if let Some(after) = &self.after {
            // `//elsewhere` is another host: the captured bytes may begin with a slash, or be empty
            // before one.
            let start = captured.iter().position(|&byte| byte != b'/');
            let start = start.unwrap_or(captured.len());
            let captured = if self.before.ends_with('/') {
                &captured[start..]
            } else {
                captured
            };
            extend(out, percent_encode(captured, NOT_PCHAR));
            let after = if out.ends_with(b"/") {
                after.trim_start_matches('/')
            } else {
                after
            };
            out.extend_from_slice(after.as_bytes());
        }
        if let (Some(query), false) = (query, out.contains(&b'?')) {
            out.push(b'?');
            extend(out, percent_encode(query, percent_encoding::CONTROLS));
        }
    }
}

impl fmt::Display for RedirectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RedirectError::Status(status) => write!(
                f,
                "{status} is no status of a redirect: 301 and 308 are for good, 302, 303 and 307 \
                 for now"
            ),
            RedirectError::To(to) => write!(
                f,
                "{to:?} is nowhere to be redirected to: write a path, such as /new/*, or a URL, \
                 such as https://example.org/*, with at most one * behind its host, and without \\ \
                 and #"
            ),
        }
    }
}

impl std::error::Error for RedirectError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(to: &str, captured: &str, query: Option<&str>) -> String {
        let redirect = Redirect::new(301, to).unwrap();
        let mut out = b"left over".to_vec();
        redirect.location(captured.as_bytes(), query.map(str::as_bytes), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn what_was_captured_and_the_query_go_along() {
        for (to, captured, query, expected) in [
            ("/new", "", None, "/new"),
            ("/new", "ignored", Some("q=1"), "/new?q=1"),
            ("/new?x", "", Some("q=1"), "/new?x"),
            ("/new/*", "a b/c%", None, "/new/a%20b/c%25"),
            ("/new/*.html", "a", Some(""), "/new/a.html?"),
            ("https://a.org/*", "x", Some("q\n"), "https://a.org/x?q%0A"),
            ("https://a.org", "x", None, "https://a.org"),
        ] {
            assert_eq!(location(to, captured, query), expected, "{to} {captured}");
        }
    }

    #[test]
    fn no_request_chooses_where_it_leads() {
        for captured in ["/evil.org", "//evil.org", "/"] {
            let found = location("/*", captured, None);
            assert!(
                found.starts_with('/') && !found.starts_with("//"),
                "{found}"
            );
        }
        assert_eq!(location("/*/video.zip", "", None), "/video.zip");
        assert_eq!(location("/*/video.zip", "a/", None), "/a/video.zip");
        assert_eq!(location("/*", "\\evil.org", None), "/%5Cevil.org");
        assert_eq!(location("/*", "\r\nA: b", None), "/%0D%0AA:%20b");
    }

    #[test]
    fn what_leads_nowhere_is_refused() {
        for to in [
            "",
            "new",
            "//a.org",
            "ftp://a.org/",
            "https://*.org/",
            "https://a*",
            "/*/*",
            "/a b",
            "/\u{e9}",
            "/\\*",
            "/app#top",
            "https:///*",
            "https://?/*",
            "https://",
        ] {
            let error = Redirect::new(301, to).unwrap_err();
            assert_eq!(error, RedirectError::To(to.to_owned()));
            assert!(error.to_string().contains("/new/*"));
        }
        assert_eq!(Redirect::new(200, "/"), Err(RedirectError::Status(200)));
        assert_eq!(Redirect::new(304, "/"), Err(RedirectError::Status(304)));
    }
}
