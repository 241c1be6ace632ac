//! Virtual hosts: the content and rules of host names.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use http::{HeaderName, StatusCode};

use crate::semantics::encoding::Coding;
use crate::semantics::hsts::Hsts;
use crate::semantics::mime::MediaTypes;
use crate::semantics::pull::Pull;
use crate::semantics::relative_path::RelativePath;
use crate::semantics::rule::Rule;
use crate::semantics::target::without_port;

/// Longest name of a host in bytes, with a dot at its end (RFC 1035 §2.3.4, without the length of
/// the first label).
const HOST_BYTES_MAX: usize = 254;

/// Content and rules of some host names.
#[derive(Clone, Debug)]
pub struct Site {
    /// Names of the site. The first site of a server needs none: it serves all names of no other
    /// site.
    pub names: Vec<HostName>,
    /// Directory of the site's files below the NIC stack's root; empty for the root itself.
    /// Default: empty.
    ///
    /// Files below the root of another site within this one belong to this site as well, without
    /// the other site's rules.
    pub root: RelativePath,
    /// Index files of a directory: the first that exists answers a request for the directory.
    /// Default: `index.html`.
    pub index: Vec<RelativePath>,
    /// Codings of precompressed variants beside files (`a.css.br`), in order of preference. Files
    /// of compressed types, such as videos, have no variants. Default: none.
    pub precompressed: Vec<Coding>,
    /// Whether directories without an index are listed, unless a rule decides. Default: false.
    pub listing: bool,
    /// Media types of some files. Default: none.
    pub media_types: Arc<MediaTypes>,
    /// Paths that come from an origin; the first match applies. Default: none.
    pub pulls: Vec<Pull>,
    /// Rules for some requests; the first match applies, or several that
    /// [continue](Rule::continues). Default: none.
    pub rules: Vec<Rule>,
    /// Files below the root that are sent with these error statuses, instead of the built-in page.
    /// Not for 416, nor for requests that could not be parsed. Default: none.
    pub error_pages: Vec<(StatusCode, RelativePath)>,
    /// `Strict-Transport-Security` in every response over TLS, unless the request could not be
    /// parsed. Default: none.
    pub hsts: Option<Hsts>,
}

impl Site {
    /// The request fields that rules look at, with repetitions.
    pub(crate) fn fields_looked_at(&self) -> impl Iterator<Item = &HeaderName> {
        let fields = self.rules.iter().flat_map(|rule| &rule.criteria.fields);
        fields.map(|(name, _)| name)
    }

    /// Writes the request fields that rules look at, as a value of `Vary`.
    pub(crate) fn write_varies(&self, out: &mut Vec<u8>) {
        let mut names: Vec<&str> = self.fields_looked_at().map(HeaderName::as_str).collect();
        names.sort_unstable();
        names.dedup();
        out.extend_from_slice(names.join(", ").as_bytes());
    }

    /// Returns the origin of a path, if it has one. The path begins with a slash.
    pub(crate) fn pull(&self, path: &[u8]) -> Option<&Pull> {
        self.pulls
            .iter()
            .find(|pull| pull.pattern.captures(path).is_some())
    }

    /// Writes the path of one of the site's files, below the NIC stack's root.
    pub(crate) fn path(&self, file: &RelativePath, out: &mut Vec<u8>) {
        self.below(file.as_bytes(), out);
    }

    /// Writes a path below the site's root as one below the NIC stack's root; an empty path is the
    /// site's root.
    pub(crate) fn below(&self, path: &[u8], out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(self.root.as_bytes());
        if !out.is_empty() && !path.is_empty() {
            out.push(b'/');
        }
        out.extend_from_slice(path);
    }

    /// Removes repeated codings, each of which would displace another coding.
    pub(crate) fn offer_each_coding_once(&mut self) {
        let mut once = Vec::new();
        for coding in self.precompressed.drain(..) {
            if !once.contains(&coding) {
                once.push(coding);
            }
        }
        self.precompressed = once;
    }

    /// Returns the first name that is a host's.
    pub(crate) fn host(&self) -> Option<&[u8]> {
        let mut names = self.names.iter();
        let found = names.find(|name| !name.is_wildcard)?;
        Some(found.name.as_bytes())
    }

    /// Returns the file to send with this status.
    pub(crate) fn error_page(&self, status: StatusCode) -> Option<&RelativePath> {
        let mut pages = self.error_pages.iter();
        pages
            .find(|(known, _)| *known == status)
            .map(|(_, page)| page)
    }
}

impl Default for Site {
    fn default() -> Self {
        Site {
            names: Vec::new(),
            root: RelativePath::default(),
            index: vec![RelativePath::known("index.html")],
            precompressed: Vec::new(),
            listing: false,
            media_types: Arc::default(),
            pulls: Vec::new(),
            rules: Vec::new(),
            error_pages: Vec::new(),
            hsts: None,
        }
    }
}

/// A name of a site: `example.org`, or `*.example.org` for all names below `example.org`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostName {
    /// In lower case, without the star and its dot.
    name: Box<str>,
    is_wildcard: bool,
}

/// A text that is no name of a site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostNameError(String);

impl FromStr for HostName {
    type Err = HostNameError;

    fn from_str(text: &str) -> Result<Self, HostNameError> {
        let (name, is_wildcard) = match text.strip_prefix("*.") {
            Some(name) => (name, true),
            None => (text, false),
        };
        // IPv6 addresses are in brackets, as in `Host`.
        let may_stand = |byte: u8| byte.is_ascii_alphanumeric() || b"-._[]:".contains(&byte);
        let has_port = !name.ends_with(']') && name.contains(':');
        if name.is_empty() || !name.bytes().all(may_stand) || has_port {
            return Err(HostNameError(text.to_owned()));
        }
        Ok(HostName {
            name: name.to_ascii_lowercase().trim_end_matches('.').into(),
            is_wildcard,
        })
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_wildcard { "*." } else { "" })?;
        f.write_str(&self.name)
    }
}

impl fmt::Display for HostNameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is no name of a host: write example.org, or *.example.org for all names below \
             it, without a port",
            self.0
        )
    }
}

impl std::error::Error for HostNameError {}

/// Sites by name.
#[derive(Debug, Default)]
pub(crate) struct Names {
    exact: HashMap<Box<[u8]>, usize>,
    /// Names with a star, without the star and its dot.
    below: HashMap<Box<[u8]>, usize>,
    /// Buffer for a request's host in lower case.
    lower: Vec<u8>,
}

impl Names {
    /// Indexes the sites by name. A name of two sites belongs to the first.
    pub(crate) fn new<'a>(sites: impl Iterator<Item = &'a Site>) -> Self {
        let mut names = Names::default();
        for (number, site) in sites.enumerate() {
            for HostName { name, is_wildcard } in &site.names {
                let map = if *is_wildcard {
                    &mut names.below
                } else {
                    &mut names.exact
                };
                map.entry(name.as_bytes().into()).or_insert(number);
            }
        }
        names
    }

    /// True if the first site serves all requests.
    pub(crate) fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.below.is_empty()
    }

    /// Returns the number of the site for a `Host` field or a target's authority: the site of the
    /// exact name, else of the nearest name with a star above it, else the first.
    pub(crate) fn site(&mut self, authority: &[u8]) -> usize {
        let host = without_port(authority);
        // Each dot costs a look-up of the bytes that follow.
        if host.len() > HOST_BYTES_MAX {
            return 0;
        }
        self.lower.clear();
        self.lower.extend(host.iter().map(u8::to_ascii_lowercase));
        let mut name = self.lower.strip_suffix(b".").unwrap_or(&self.lower);
        if let Some(&site) = self.exact.get(name) {
            return site;
        }
        while let Some(dot) = name.iter().position(|&byte| byte == b'.') {
            name = &name[dot + 1..];
            if let Some(&site) = self.below.get(name) {
                return site;
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(names: &[&str]) -> Site {
        Site {
            names: names.iter().map(|name| name.parse().unwrap()).collect(),
            ..Site::default()
        }
    }

    #[test]
    fn fields_that_rules_look_at_are_those_of_vary() {
        let mut site = Site::default();
        for names in [&["User-Agent", "Accept"][..], &["accept"]] {
            let mut looking = Rule::new("*".parse().unwrap());
            for name in names {
                let Ok(glob) = "*".parse();
                looking.criteria.fields.push((name.parse().unwrap(), glob));
            }
            site.rules.push(looking);
        }
        let mut out = Vec::new();
        site.write_varies(&mut out);
        assert_eq!(out, b"accept, user-agent");
    }

    #[test]
    fn the_nearest_name_wins_and_the_first_site_is_for_the_rest() {
        let sites = [
            site(&["a.org"]),
            site(&["B.org", "*.b.org", "10.0.0.1"]),
            site(&["*.c.b.org", "c.b.org", "[fd00::1]", "b.org"]),
        ];
        let mut names = Names::new(sites.iter());
        for (authority, number) in [
            ("a.org", 0),
            ("b.org", 1),
            ("b.ORG", 1),
            ("b.org.", 1),
            ("b.org:8080", 1),
            ("b.org:", 1),
            ("x.b.org", 1),
            ("x.y.b.org:1", 1),
            ("c.b.org", 2),
            ("x.c.b.org", 2),
            ("xb.org", 0),
            (".b.org", 1),
            ("10.0.0.1:80", 1),
            ("[fd00::1]", 2),
            ("[FD00::1]:80", 2),
            ("[fd00::2]", 0),
            ("org", 0),
            ("", 0),
            (":", 0),
            ("elsewhere.example", 0),
        ] {
            assert_eq!(names.site(authority.as_bytes()), number, "{authority}");
        }
        assert!(Names::new([Site::default()].iter()).is_empty());
    }

    #[test]
    fn names_that_no_host_can_have_are_not_looked_up() {
        let mut names = Names::new([site(&[]), site(&["*.b.org"])].iter());
        let below = |bytes: usize| "x".repeat(bytes - ".b.org".len()) + ".b.org";
        assert_eq!(names.site(below(253).as_bytes()), 1);
        assert_eq!(names.site((below(253) + ".:8080").as_bytes()), 1);
        assert_eq!(names.site(below(255).as_bytes()), 0);
    }

    #[test]
    fn names_and_paths_that_are_none_are_refused() {
        for name in [
            "",
            "*.",
            "*",
            "a b",
            "a.*.org",
            "a.org:80",
            "http://a.org",
            "a/b",
        ] {
            let error = name.parse::<HostName>().unwrap_err().to_string();
            assert!(error.contains(&format!("{name:?}")), "{error}");
        }
        assert_eq!(
            "*.A.org.".parse::<HostName>().unwrap().to_string(),
            "*.a.org"
        );
        for path in ["/", "/a", "..", "a/../b", "a//b", "./a", "a\0", "a//"] {
            let error = path.parse::<RelativePath>().unwrap_err().to_string();
            assert!(error.contains(&format!("{path:?}")), "{error}");
        }
        for (path, found) in [("", ""), ("a", "a"), ("a/b/", "a/b"), (".a", ".a")] {
            assert_eq!(path.parse::<RelativePath>().unwrap().to_string(), found);
        }
    }
}
