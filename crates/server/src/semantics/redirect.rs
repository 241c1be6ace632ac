//! Redirects that an operator asks for.

use std::fmt;
use std::num::NonZeroU16;

use http::StatusCode;
use percent_encoding::{AsciiSet, CONTROLS, percent_encode};

use crate::semantics::target::{self, NOT_PCHAR, extend, without_port};

/// The status and the target of a redirect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    status: StatusCode,
    to: To,
}

/// Where clients are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
enum To {
    /// To a path of the same site, or to a URL.
    Text {
        before: Box<str>,
        /// Text after the captured bytes, if the target has a star.
        after: Option<Box<str>>,
    },
    /// To the same host and target, at this port with TLS.
    Https { port: NonZeroU16 },
}

/// A request to be redirected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Redirected<'a> {
    /// Bytes that the star of the rule's pattern has matched.
    pub(crate) captured: &'a [u8],
    /// The host, perhaps with a port.
    pub(crate) authority: Option<&'a [u8]>,
    pub(crate) target: &'a [u8],
}

/// Port of `https` in URLs without one (RFC 9110 §4.2.2).
const HTTPS_PORT: u16 = 443;

/// Bytes to escape in a target that is repeated: others mean something to browsers in `Location`.
const NOT_REPEATED: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'<')
    .add(b'>')
    .add(b'\\');

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
        let status = checked(status)?;
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
            to: To::Text {
                before: before.into(),
                after: after.map(Into::into),
            },
        })
    }

    /// Creates a redirect to the same host, path and query at a port with TLS.
    ///
    /// # Errors
    /// If the status is none of a redirect.
    pub fn to_https(status: u16, port: NonZeroU16) -> Result<Self, RedirectError> {
        Ok(Redirect {
            status: checked(status)?,
            to: To::Https { port },
        })
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    /// Writes `Location`; false if the request has no host, and one is needed.
    #[must_use]
    pub(crate) fn location(&self, request: Redirected<'_>, out: &mut Vec<u8>) -> bool {
        out.clear();
        match &self.to {
            To::Text { before, after } => {
                write_text(before, after.as_deref(), request, out);
                true
            }
            To::Https { port } => write_https(*port, request, out),
        }
    }
}

fn checked(status: u16) -> Result<StatusCode, RedirectError> {
    let checked = match status {
        301 | 302 | 303 | 307 | 308 => StatusCode::from_u16(status).ok(),
        _ => None,
    };
    checked.ok_or(RedirectError::Status(status))
}

fn write_text(before: &str, after: Option<&str>, request: Redirected<'_>, out: &mut Vec<u8>) {
    let captured = request.captured;
    out.extend_from_slice(before.as_bytes());
    if let Some(after) = after {
        // `//elsewhere` is another host: the captured bytes may begin with a slash, or be empty
        // before one.
        let start = captured.iter().position(|&byte| byte != b'/');
        let start = start.unwrap_or(captured.len());
        let captured = if before.ends_with('/') {
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
    let query = target::split_query(request.target).1;
    if let (Some(query), false) = (query, out.contains(&b'?')) {
        out.push(b'?');
        extend(out, percent_encode(query, CONTROLS));
    }
}

fn write_https(port: NonZeroU16, request: Redirected<'_>, out: &mut Vec<u8>) -> bool {
    let host = request.authority.map(without_port);
    let Some(host) = host.filter(|host| !host.is_empty()) else {
        return false;
    };
    out.extend_from_slice(b"https://");
    extend(out, percent_encode(host, CONTROLS));
    if port.get() != HTTPS_PORT {
        out.extend_from_slice(format!(":{port}").as_bytes());
    }
    let (path, _) = target::split_query(target::without_authority(request.target));
    match path.is_empty() {
        true => out.push(b'/'),
        false => extend(out, percent_encode(path, NOT_REPEATED)),
    }
    if let Some(query) = target::split_query(request.target).1 {
        out.push(b'?');
        extend(out, percent_encode(query, NOT_REPEATED));
    }
    true
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
        let query = query.map(|query| format!("?{query}"));
        let request = Redirected {
            captured: captured.as_bytes(),
            authority: None,
            target: query.as_deref().unwrap_or_default().as_bytes(),
        };
        assert!(redirect.location(request, &mut out));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn https_is_at_the_same_host_path_and_query() {
        let located = |authority: Option<&str>, target: &str, port| {
            let redirect = Redirect::to_https(308, NonZeroU16::new(port).unwrap()).unwrap();
            let mut out = b"left over".to_vec();
            let request = Redirected {
                captured: b"",
                authority: authority.map(str::as_bytes),
                target: target.as_bytes(),
            };
            let is_written = redirect.location(request, &mut out);
            is_written.then(|| String::from_utf8(out).unwrap())
        };
        for (authority, target, port, expected) in [
            (Some("a.org"), "/", 443, Some("https://a.org/")),
            (
                Some("A.org:80"),
                "/x%20y/../z?q=1&r",
                443,
                Some("https://A.org/x%20y/../z?q=1&r"),
            ),
            (
                Some("a.org:8080"),
                "//b.org/",
                8443,
                Some("https://a.org:8443//b.org/"),
            ),
            (
                Some("[fd00::1]:80"),
                "/a?b?c",
                443,
                Some("https://[fd00::1]/a?b?c"),
            ),
            (
                Some("a.org"),
                "http://a.org?q",
                443,
                Some("https://a.org/?q"),
            ),
            (
                Some("a.org"),
                "http://a.org/x",
                443,
                Some("https://a.org/x"),
            ),
            (
                Some("a.org"),
                "/\\b#c?\"",
                443,
                Some("https://a.org/%5Cb%23c?%22"),
            ),
            (Some("a.org"), "/\u{e9}", 443, Some("https://a.org/%C3%A9")),
            (None, "/", 443, None),
            (Some(""), "/", 443, None),
            (Some(":80"), "/", 443, None),
        ] {
            let found = located(authority, target, port);
            assert_eq!(found.as_deref(), expected, "{authority:?} {target}");
        }
        let wrong = Redirect::to_https(304, NonZeroU16::MIN);
        assert_eq!(wrong, Err(RedirectError::Status(304)));
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
