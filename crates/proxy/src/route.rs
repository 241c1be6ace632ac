//! The choice of a pool for a request or a connection.

use std::fmt;
use std::str::FromStr;

/// Longest name of a host in bytes, with a dot at its end (RFC 1035 §2.3.4).
const HOST_BYTES_MAX: usize = 254;

/// Assigns requests to a pool. An empty criterion matches any request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Patterns, one of which must match the request's host, or the server name of a TLS
    /// connection.
    pub hosts: Vec<HostPattern>,
    /// Prefixes, one of which the path must begin with, as both are written.
    pub path_prefixes: Vec<String>,
    /// Number of the pool.
    pub pool: usize,
}

/// `example.org`, or `*.example.org` for all names below `example.org`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPattern {
    /// In lower case, without the star and its dot.
    name: String,
    is_wildcard: bool,
}

/// A text that is no name of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPatternError(String);

impl fmt::Display for HostPatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is no name of a host, such as example.org or *.example.org",
            self.0
        )
    }
}

impl std::error::Error for HostPatternError {}

impl FromStr for HostPattern {
    type Err = HostPatternError;

    fn from_str(text: &str) -> Result<Self, HostPatternError> {
        let (name, is_wildcard) = match text.strip_prefix("*.") {
            Some(name) => (name, true),
            None => (text, false),
        };
        let may_stand = |byte: u8| byte.is_ascii_alphanumeric() || b"-._[]:".contains(&byte);
        // IPv6 addresses are in brackets, as in `Host`.
        let has_port = !name.ends_with(']') && name.contains(':');
        let is_good = !name.is_empty() && name.len() < HOST_BYTES_MAX;
        if !is_good || has_port || !name.bytes().all(may_stand) {
            return Err(HostPatternError(text.to_owned()));
        }
        Ok(HostPattern {
            name: name.trim_end_matches('.').to_ascii_lowercase(),
            is_wildcard,
        })
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let star = if self.is_wildcard { "*." } else { "" };
        write!(f, "{star}{}", self.name)
    }
}

impl HostPattern {
    /// True if the pattern matches `host`, which is in lower case, without a port or a dot at its
    /// end.
    fn matches(&self, host: &str) -> bool {
        if !self.is_wildcard {
            return host == self.name;
        }
        let below = host.strip_suffix(self.name.as_str());
        below.is_some_and(|below| below.len() > 1 && below.ends_with('.'))
    }
}

/// Returns a host as it is compared: in lower case, without a port or a dot at its end.
pub(crate) fn canonical(host: &str) -> String {
    let host = match host.rfind(':') {
        // The colons of an IPv6 address precede its closing bracket.
        Some(colon) if !host[colon..].contains(']') => &host[..colon],
        _ => host,
    };
    let host = host.strip_suffix('.').unwrap_or(host);
    host.to_ascii_lowercase()
}

/// Returns the pool of the first rule that matches.
pub(crate) fn find(rules: &[Rule], host: Option<&str>, path: Option<&str>) -> Option<usize> {
    let is_about = |rule: &&Rule| {
        let hosts = &rule.hosts;
        let is_host = hosts.is_empty()
            || host.is_some_and(|host| hosts.iter().any(|pattern| pattern.matches(host)));
        let prefixes = &rule.path_prefixes;
        is_host
            && (prefixes.is_empty()
                || path.is_some_and(|path| prefixes.iter().any(|it| path.starts_with(&**it))))
    };
    rules.iter().find(is_about).map(|rule| rule.pool)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(hosts: &[&str], prefixes: &[&str], pool: usize) -> Rule {
        Rule {
            hosts: hosts.iter().map(|host| host.parse().unwrap()).collect(),
            path_prefixes: prefixes.iter().map(|&prefix| prefix.to_owned()).collect(),
            pool,
        }
    }

    #[test]
    fn the_first_rule_about_a_request_counts() {
        let rules = [
            rule(&["a.org"], &["/api/", "/v1"], 1),
            rule(&["a.org", "*.b.org"], &[], 2),
            rule(&[], &["/x"], 3),
        ];
        let find = |host: &str, path| find(&rules, Some(&canonical(host)), Some(path));
        assert_eq!(find("A.org:8080", "/api/x"), Some(1));
        assert_eq!(find("a.org.", "/v10"), Some(1));
        assert_eq!(find("a.org", "/"), Some(2));
        assert_eq!(find("c.b.org", "/"), Some(2));
        assert_eq!(find("b.org", "/"), None);
        assert_eq!(find("xb.org", "/x"), Some(3));
        assert_eq!(super::find(&rules, None, None), None);
    }

    #[test]
    fn hosts_are_compared_without_port_and_case() {
        assert_eq!(canonical("[FD00::1]:80"), "[fd00::1]");
        assert_eq!(canonical("[fd00::1]"), "[fd00::1]");
        assert_eq!(canonical("X.Example.:"), "x.example");
        for text in ["", "*.", "a:80", "a/b", "*.*.a", "a b"] {
            assert!(text.parse::<HostPattern>().is_err(), "{text}");
        }
        assert_eq!(
            "*.A.org".parse::<HostPattern>().unwrap().to_string(),
            "*.a.org"
        );
    }
}
