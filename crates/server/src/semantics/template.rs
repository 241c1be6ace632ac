//! Paths that a rule makes of a request's.

use std::fmt;
use std::str::FromStr;

use percent_encoding::percent_encode;

use crate::semantics::target::{self, NOT_PCHAR, extend};

/// A path of a site, in which a star stands for the text that the star of the rule's pattern
/// matched: `/index.html`, `/new/*`, `/*.html`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    before: Box<str>,
    /// What follows the star, if there is one.
    after: Option<Box<str>>,
}

/// A text that is no such path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateError(String);

impl Template {
    /// Returns the target for the bytes that the star has matched, and for this query.
    pub(crate) fn target(&self, captured: &[u8], query: Option<&[u8]>) -> Box<[u8]> {
        let mut out = Vec::new();
        extend(&mut out, percent_encode(self.before.as_bytes(), NOT_PCHAR));
        if let Some(after) = &self.after {
            extend(&mut out, percent_encode(captured, NOT_PCHAR));
            extend(&mut out, percent_encode(after.as_bytes(), NOT_PCHAR));
        }
        if let Some(query) = query {
            out.push(b'?');
            out.extend_from_slice(query);
        }
        out.into()
    }
}

impl FromStr for Template {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Self, TemplateError> {
        let fail = || TemplateError(text.to_owned());
        let mut pieces = text.split('*');
        let (Some(before), after, None) = (pieces.next(), pieces.next(), pieces.next()) else {
            return Err(fail());
        };
        let template = Template {
            before: before.into(),
            after: after.map(Into::into),
        };
        // A path that leaves the site does so with any text in the place of the star.
        let is_path = target::resolve(&template.target(b"x", None), &mut Vec::new()).is_ok();
        let is_whole = text.starts_with('/') && is_path;
        is_whole.then_some(template).ok_or_else(fail)
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.before)?;
        match &self.after {
            Some(after) => write!(f, "*{after}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is no path of a site: it begins with / and has at most one *, such as \
             /index.html or /new/*",
            self.0
        )
    }
}

impl std::error::Error for TemplateError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_star_is_what_was_matched_and_the_query_stays() {
        for (template, captured, query, expected) in [
            ("/index.html", "ignored", None, "/index.html"),
            ("/new/*", "a b/c%", Some("q=%20"), "/new/a%20b/c%25?q=%20"),
            ("/*.html", "about", None, "/about.html"),
            ("/é/*", "?#", None, "/%C3%A9/%3F%23"),
            ("/a?b", "", None, "/a%3Fb"),
        ] {
            let template: Template = template.parse().unwrap();
            let target = template.target(captured.as_bytes(), query.map(str::as_bytes));
            assert_eq!(String::from_utf8_lossy(&target), expected);
        }
    }

    #[test]
    fn what_is_no_path_of_the_site_is_refused() {
        for text in [
            "",
            "index.html",
            "*",
            "/*/*",
            "/../x",
            "/a/../../*",
            "http://a.org/",
        ] {
            let error = text.parse::<Template>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
        for text in ["/", "/new/*", "/a/../b", "//x"] {
            assert_eq!(text.parse::<Template>().unwrap().to_string(), text);
        }
    }
}
