//! Valid settings that are probably mistakes. No file is read.

use std::collections::{BTreeMap, BTreeSet};

use server::{HttpVersion, Pattern, Scheme};

use super::place::{Place, Problem};
use super::site::Rule;
use super::text::Text;
use super::{Config, Site};
use crate::proxy::ProxyRule;

/// Redirects that a client follows before it gives up: fewer than any browser.
const REDIRECTS_MAX: usize = 10;

impl Config {
    /// All warnings.
    pub fn warnings(&self) -> Vec<Problem> {
        let mut warnings = Vec::new();
        for (number, site) in self.site.iter().enumerate() {
            let place = Place::of("site").index(number).key("rule");
            self.find_redirect_loops(site, &place, &mut warnings);
            self.find_odd_hsts(site, number, &mut warnings);
            for (at, rule) in site.rule.iter().enumerate() {
                let place = place.index(at);
                let mut before = site.rule[..at].iter();
                let is_shadow = |other: &Rule| precedes(site, other, rule) && covers(other, rule);
                if let Some(other) = before.position(is_shadow) {
                    warnings.push(shadowed(place.key("path"), other));
                }
                self.find_unserved(rule, &place, &mut warnings);
            }
        }
        self.find_odd_proxy_rules(&mut warnings);
        let pools = self.proxy.pool.iter().enumerate();
        for (at, pool) in pools.filter(|(_, pool)| pool.backend.is_empty()) {
            let place = Place::of("proxy").key("pool").index(at);
            let why = format!(
                "the pool {:?} has no backend: its requests get 503",
                pool.name
            );
            let remedy = "Add one with [[proxy.pool.backend]].";
            warnings.push(Problem::new(place, why).remedy(remedy));
        }
        warnings
    }

    fn find_redirect_loops(&self, site: &Site, place: &Place, warnings: &mut Vec<Problem>) {
        for (at, rule) in site.rule.iter().enumerate() {
            let Some(redirect) = &rule.redirect else {
                continue;
            };
            let path = Glob::of(&rule.path.0).sample();
            if self.is_loop(site, rule, &path) {
                let why = format!("a client that requests {path} is redirected for ever");
                let place = place.index(at).key("redirect").key("to");
                let remedy = format!(
                    "{} is a path to which a rule with a redirect of this site applies as well.",
                    redirect.to
                );
                warnings.push(Problem::new(place, why).remedy(remedy));
            }
        }
    }

    /// Whether a client whose request the rule matches is redirected again and again.
    fn is_loop(&self, site: &Site, rule: &Rule, path: &str) -> bool {
        let schemes = Scheme::ALL.into_iter();
        let mut schemes = schemes.filter(|&scheme| matches_scheme(rule, scheme));
        let mut versions = HttpVersion::ALL.into_iter();
        let version = versions.find(|&version| rule.versions().has(version));
        schemes.any(|scheme| {
            let mut next = (path.to_owned(), scheme);
            (0..REDIRECTS_MAX).all(|_| {
                let to = self.redirected(site, &next, version);
                to.map(|to| next = to).is_some()
            })
        })
    }

    /// The path on the same site to which a request is redirected, if any, and the scheme there. A
    /// client keeps to its version.
    fn redirected(
        &self,
        site: &Site,
        (path, scheme): &(String, Scheme),
        version: Option<HttpVersion>,
    ) -> Option<(String, Scheme)> {
        let to_https = site.https_redirect.is_some() && *scheme == Scheme::Http;
        let mut rules = site.rule.iter().filter(|rule| {
            let has_version = version.is_none_or(|version| rule.versions().has(version));
            let is_excepted = !to_https || rule.scheme.is_some();
            // Others may not match the redirected request, or another rule decides.
            let decides = !(has_criteria(rule) || rule.continues && rule.redirect.is_none());
            matches_scheme(rule, *scheme) && has_version && is_excepted && decides
        });
        let found = rules.find_map(|rule| {
            let captured = Glob::of(&rule.path.0).captures(path)?.to_owned();
            Some((rule.redirect.as_ref(), captured))
        });
        let (redirect, captured) = match found {
            None if to_https => return Some((path.clone(), Scheme::Https)),
            found => found?,
        };
        let to = redirect?.to.replacen('*', &captured, 1);
        let (to, scheme) = self.path_of(site, &to, *scheme)?;
        Some((to.split('?').next().unwrap_or_default().to_owned(), scheme))
    }

    /// The path and the scheme, if the site serves it; `None` if the URL leads elsewhere.
    fn path_of<'a>(&self, site: &Site, to: &'a str, from: Scheme) -> Option<(&'a str, Scheme)> {
        let (rest, scheme, port) = match (to.strip_prefix("https://"), to.strip_prefix("http://")) {
            (Some(rest), _) => (rest, Scheme::Https, 443),
            (_, Some(rest)) => (rest, Scheme::Http, 80),
            (None, None) => return Some((to, from)),
        };
        let start = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(start);
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, digits)) if !digits.ends_with(']') => (host, digits.parse().ok()?),
            _ => (authority, port),
        };
        let mut names = site.names.iter().map(|name| name.0.to_string());
        let is_named = names.any(|name| covers_name(&name, &host.to_ascii_lowercase()));
        let is_served = self.ports(scheme == Scheme::Https).any(|own| own == port);
        let path = if path.is_empty() { "/" } else { path };
        (is_named && is_served).then_some((path, scheme))
    }

    /// Strict-Transport-Security that no client gets, or no list of browsers accepts.
    fn find_odd_hsts(&self, site: &Site, number: usize, warnings: &mut Vec<Problem>) {
        let Some(hsts) = &site.hsts else { return };
        let place = Place::of("site").index(number).key("hsts");
        let lowered = server::Hsts {
            max_age: hsts.max_age.0.0,
            include_subdomains: hsts.include_subdomains,
            preload: hsts.preload,
        };
        if hsts.preload && !lowered.can_be_preloaded() {
            let why = "lists of browsers accept no site without include_subdomains and a max_age \
                       of 365d";
            let remedy = "Say both, or leave preload out.";
            warnings.push(Problem::new(place.key("preload"), why).remedy(remedy));
        }
        if !self.listen.is_empty() && self.ports(true).next().is_none() {
            let why = "no client gets it: it is sent over TLS alone, and no port has TLS";
            warnings.push(Problem::new(place, why));
        }
    }

    /// A rule for requests that no port takes.
    fn find_unserved(&self, rule: &Rule, place: &Place, warnings: &mut Vec<Problem>) {
        if self.listen.is_empty() {
            return;
        }
        if let Some(Text(scheme)) = rule.scheme
            && self.ports(scheme == Scheme::Https).next().is_none()
        {
            let why = format!("it never matches: no port serves {scheme}");
            let remedy = "Add a port with [[listen]], or leave scheme out.";
            warnings.push(Problem::new(place.key("scheme"), why).remedy(remedy));
            return;
        }
        let scheme = rule.scheme.map(|Text(scheme)| scheme);
        let mut versions = HttpVersion::ALL.into_iter();
        let is_any_served =
            versions.any(|version| rule.versions().has(version) && self.serves(version, scheme));
        if !is_any_served {
            let names: Vec<String> = rule.versions.iter().map(|it| it.0.to_string()).collect();
            let why = format!(
                "it never matches: no such port serves HTTP/{}",
                names.join(" or ")
            );
            let remedy = "HTTP/2 needs a port with TLS, or http2_prior_knowledge; HTTP/3 needs \
                          http3 = true.";
            warnings.push(Problem::new(place.key("versions"), why).remedy(remedy));
        }
    }

    /// Whether a port serves this version, with this scheme if there is one.
    fn serves(&self, version: HttpVersion, scheme: Option<Scheme>) -> bool {
        let is_of = |wanted| scheme.is_none_or(|scheme| scheme == wanted);
        let has_tls = is_of(Scheme::Https) && self.ports(true).next().is_some();
        let has_plain = is_of(Scheme::Http) && self.ports(false).next().is_some();
        match version {
            HttpVersion::Http1 => true,
            HttpVersion::Http2 => {
                let has_http2 = has_tls && self.tls.http2 != Some(false);
                has_http2 || has_plain && self.http.http2_prior_knowledge
            }
            HttpVersion::Http3 => is_of(Scheme::Https) && self.http3_ports().next().is_some(),
        }
    }

    fn find_odd_proxy_rules(&self, warnings: &mut Vec<Problem>) {
        let rules = &self.proxy.rule;
        let place = Place::of("proxy").key("rule");
        for (at, rule) in rules.iter().enumerate() {
            if let Some(other) = rules[..at].iter().position(|other| is_within(rule, other)) {
                warnings.push(shadowed(place.index(at), other));
            }
            let listens = self.proxy.listen.iter();
            let mut own =
                listens.filter(|it| rule.ports.is_empty() || rule.ports.contains(&it.port));
            let is_tcp = own.all(|listen| listen.mode.0 == ::proxy::Mode::Tcp);
            if is_tcp && !rule.path_prefixes.is_empty() {
                let why = "it never matches: connections of ports in TCP mode have no path";
                warnings.push(Problem::new(place.index(at).key("path_prefixes"), why));
            }
        }
    }
}

fn shadowed(place: Place, other: usize) -> Problem {
    let why = format!(
        "it never matches: rule {} before it matches all of it",
        other + 1
    );
    Problem::new(place, why).remedy("The first rule that matches counts: put this one before it.")
}

/// Whether a rule of a site matches every request that `rule` matches.
fn covers(other: &Rule, rule: &Rule) -> bool {
    let all_schemes = other.scheme.is_none() || other.scheme == rule.scheme;
    let all_versions = other.versions().covers(rule.versions());
    let mut methods = rule.methods.iter();
    let all_methods = other.methods.is_empty()
        || !rule.methods.is_empty() && methods.all(|method| other.methods.contains(method));
    let is_own = |own: &BTreeMap<String, String>, (name, value): (&String, &String)| {
        own.get(name) == Some(value)
    };
    let mut fields = other.request_fields.iter();
    let mut query = other.query.iter();
    let all_values = fields.all(|field| is_own(&rule.request_fields, field))
        && query.all(|parameter| is_own(&rule.query, parameter));
    !other.continues
        && all_schemes
        && all_versions
        && all_methods
        && all_values
        && Glob::of(&other.path.0).covers(&Glob::of(&rule.path.0))
}

/// Whether a rule that stands before another also comes before it: with a redirect to `https`,
/// those for `http` come first.
fn precedes(site: &Site, other: &Rule, rule: &Rule) -> bool {
    let is_of_http = |rule: &Rule| matches!(rule.scheme, Some(Text(Scheme::Http)));
    site.https_redirect.is_none() || is_of_http(other) || !is_of_http(rule)
}

/// Whether a rule looks at more than path, scheme and version.
fn has_criteria(rule: &Rule) -> bool {
    !(rule.methods.is_empty() && rule.request_fields.is_empty() && rule.query.is_empty())
}

fn matches_scheme(rule: &Rule, scheme: Scheme) -> bool {
    rule.scheme.is_none_or(|Text(own)| own == scheme)
}

/// Whether `other` matches every request that `rule` matches.
fn is_within(rule: &ProxyRule, other: &ProxyRule) -> bool {
    let ports: BTreeSet<_> = rule.ports.iter().collect();
    let same_ports = other.ports.is_empty()
        || !ports.is_empty() && ports.is_subset(&other.ports.iter().collect());
    let names = |rule: &ProxyRule| -> Vec<String> {
        rule.hosts.iter().map(|host| host.0.to_string()).collect()
    };
    let is_any_named = |name: &String| names(other).iter().any(|it| covers_name(it, name));
    let same_hosts =
        other.hosts.is_empty() || !rule.hosts.is_empty() && names(rule).iter().all(is_any_named);
    let prefixes = &other.path_prefixes;
    let is_any_prefix = |path: &String| prefixes.iter().any(|it| path.starts_with(it));
    let same_paths = prefixes.is_empty()
        || !rule.path_prefixes.is_empty() && rule.path_prefixes.iter().all(is_any_prefix);
    same_ports && same_hosts && same_paths
}

/// Whether `pattern` is `name`, or `*.` and a parent domain of `name`.
pub(crate) fn covers_name(pattern: &str, name: &str) -> bool {
    match pattern.strip_prefix("*.") {
        Some(parent) => name
            .strip_suffix(parent)
            .is_some_and(|rest| rest.ends_with('.') && rest.len() > 1),
        None => pattern == name,
    }
}

/// A pattern of paths, which has at most one star.
#[derive(Debug)]
struct Glob {
    before: String,
    after: Option<String>,
}

impl Glob {
    fn of(pattern: &Pattern) -> Self {
        let text = pattern.to_string();
        match text.split_once('*') {
            Some((before, after)) => Self {
                before: before.to_owned(),
                after: Some(after.to_owned()),
            },
            None => Self {
                before: text,
                after: None,
            },
        }
    }

    /// The part of a path that the star matches.
    fn captures<'a>(&self, path: &'a str) -> Option<&'a str> {
        let rest = path.strip_prefix(&self.before)?;
        match &self.after {
            Some(after) => rest.strip_suffix(after.as_str()),
            None => rest.is_empty().then_some(rest),
        }
    }

    /// Whether it matches every path that `other` matches.
    fn covers(&self, other: &Self) -> bool {
        match (&self.after, &other.after) {
            (_, None) => self.captures(&other.before).is_some(),
            (Some(after), Some(others)) => {
                other.before.starts_with(&self.before) && others.ends_with(after.as_str())
            }
            (None, Some(_)) => false,
        }
    }

    /// A path that it matches.
    fn sample(&self) -> String {
        let slash = if self.before.is_empty() { "/" } else { "" };
        match &self.after {
            Some(after) => format!("{slash}{}x{after}", self.before),
            None => self.before.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warnings(text: &str) -> Vec<String> {
        let config: Config = toml::from_str(text).unwrap();
        let warnings = config.warnings().into_iter();
        let lines = warnings.map(|problem| format!("{}: {}", problem.place, problem.why));
        lines.collect()
    }

    #[test]
    fn a_rule_with_criteria_or_continue_hides_only_what_it_matches_as_well() {
        let avif = "request_fields = { Accept = '*avif*' }";
        for (first, second, is_hidden) in [
            ("", "", true),
            ("continue = true", "", false),
            ("", "continue = true", true),
            (avif, "", false),
            (avif, avif, true),
            (
                avif,
                "request_fields = { Accept = '*avif*', Cookie = '*' }",
                true,
            ),
            (avif, "request_fields = { Accept = '*webp*' }", false),
            ("", avif, true),
            ("query = { v = '1' }", "query = { v = '2' }", false),
            ("methods = ['GET', 'HEAD']", "methods = ['HEAD']", true),
            ("methods = ['HEAD']", "methods = ['GET', 'HEAD']", false),
            ("methods = ['HEAD']", "", false),
        ] {
            let rules = [first, second].map(|more| format!("[[site.rule]]\npath = '*'\n{more}\n"));
            let found = warnings(&format!("[[site]]\n{}", rules.concat()));
            let is_found = found.iter().any(|line| line.contains("it never matches"));
            assert_eq!(is_found, is_hidden, "{first} / {second}: {found:?}");
        }
    }

    fn rules(rules: &[(&str, &str)]) -> String {
        let rules = rules.iter().map(|(path, to)| {
            let redirect = match *to {
                "" => String::new(),
                to => format!("redirect = {{ to = '{to}' }}\n"),
            };
            format!("[[site.rule]]\npath = '{path}'\n{redirect}")
        });
        rules.collect()
    }

    #[test]
    fn redirects_without_end_are_found() {
        let site = "listen = [{ port = 80 }, { port = 443, tls = true }]\n\
                    [[site]]\nnames = ['a.org', '*.b.org']\n";
        for (written, is_loop) in [
            (&[("/a/*", "/a/b/*")][..], true),
            (&[("/a/*", "/b/*")], false),
            (&[("/a/*", "/b/*"), ("/b/*", "/a/*")], true),
            (&[("/a/b/*", ""), ("/a/*", "/a/b/*")], false),
            (&[("*", "https://a.org/*")], true),
            (&[("/x", "https://c.b.org:443/x?q")], true),
            (&[("*", "https://a.org:8443/*")], false),
            (&[("*", "https://elsewhere.org/*")], false),
            (&[("/", "http://a.org")], true),
        ] {
            let found = warnings(&format!("{site}{}", rules(written)));
            let found = found.iter().filter(|line| line.contains("for ever"));
            assert_eq!(found.count() > 0, is_loop, "{written:?}");
        }
    }

    #[test]
    fn rules_behind_one_that_matches_all_of_theirs_are_found() {
        for (first, second, is_shadowed) in [
            ("*", "/a", true),
            ("/a*", "/a/b*", true),
            ("/a*", "/a*.ts", true),
            ("*.ts", "/a*.ts", true),
            ("/a", "/a", true),
            ("/a*.ts", "/a*", false),
            ("/a", "/a*", false),
            ("/ab*bc", "/abc", false),
            ("/a/*", "/b/*", false),
        ] {
            let text = format!("[[site]]\n{}", rules(&[(first, ""), (second, "")]));
            let found = warnings(&text);
            assert_eq!(found.len(), usize::from(is_shadowed), "{first} {second}");
            if is_shadowed {
                assert!(found[0].starts_with("site[0].rule[1].path: it never matches: rule 1"));
            }
        }
    }

    #[test]
    fn a_rule_covers_requests_of_its_own_schemes_and_versions() {
        let https = "scheme = 'https'\n";
        for (first, second, is_shadowed) in [
            (https, "", false),
            ("", https, true),
            (https, https, true),
            ("scheme = 'http'\n", https, false),
            ("versions = ['2', '3']\n", "versions = ['2']\n", true),
            ("versions = ['2']\n", "versions = ['2', '3']\n", false),
            ("versions = ['1.1', '2', '3']\n", "", true),
            (
                "versions = ['2']\nscheme = 'https'\n",
                "versions = ['2']\n",
                false,
            ),
        ] {
            let text = format!(
                "[[site]]\n[[site.rule]]\npath = '*'\n{first}[[site.rule]]\npath = '/a'\n{second}"
            );
            let found = warnings(&text);
            assert_eq!(
                found.len(),
                usize::from(is_shadowed),
                "{first} {second}: {found:?}"
            );
        }
    }

    #[test]
    fn rules_for_requests_that_no_port_takes_are_found() {
        let plain = "listen = [{ port = 80 }]\n";
        let both = "listen = [{ port = 80 }, { port = 443, tls = true }]\n";
        let http3 = "listen = [{ port = 443, tls = true, http3 = true }]\n";
        for (ports, rule, key) in [
            (plain, "scheme = 'https'", "scheme"),
            (http3, "scheme = 'http'", "scheme"),
            (both, "versions = ['3']", "versions"),
            (plain, "versions = ['2', '3']", "versions"),
            (both, "scheme = 'http'\nversions = ['2']", "versions"),
            (both, "scheme = 'https'\nversions = ['2']", ""),
            (both, "versions = ['1.1', '3']", ""),
            (http3, "versions = ['3']", ""),
            (
                "http.http2_prior_knowledge = true\nlisten = [{ port = 80 }]\n",
                "versions = ['2']",
                "",
            ),
            ("", "versions = ['3']", ""),
        ] {
            let found = warnings(&format!(
                "{ports}[[site]]\n[[site.rule]]\npath = '*'\n{rule}"
            ));
            let expected = format!("site[0].rule[0].{key}: it never matches: no ");
            match key {
                "" => assert_eq!(found, [""; 0], "{ports}{rule}"),
                _ => assert!(
                    found.join("\n").starts_with(&expected),
                    "{ports}{rule}: {found:?}"
                ),
            }
        }
    }

    #[test]
    fn redirects_from_one_scheme_to_the_other_end() {
        let site = "listen = [{ port = 80 }, { port = 443, tls = true }]\n\
                    [[site]]\nnames = ['a.org']\n";
        let rule = |scheme: &str, to: &str| {
            format!("[[site.rule]]\npath = '/*'\n{scheme}redirect.to = '{to}'\n")
        };
        let up = rule("scheme = 'http'\n", "https://a.org/*");
        for (rules, is_loop) in [
            (up.clone(), false),
            (
                format!("{up}{}", rule("scheme = 'https'\n", "http://a.org/*")),
                true,
            ),
            (rule("versions = ['2']\n", "/x/*"), true),
            (rule("", "https://a.org/*"), true),
            (format!("https_redirect = 308\n{}", rule("", "/x*")), true),
            (
                format!(
                    "https_redirect = 308\n{}",
                    rule("scheme = 'https'\n", "http://a.org/*")
                ),
                true,
            ),
            (
                format!("https_redirect = 308\n{}", rule("scheme = 'https'\n", "/b")),
                true,
            ),
            (format!("https_redirect = 308\n{up}"), false),
        ] {
            let found = warnings(&format!("{site}{rules}"));
            let is_found = found.iter().any(|line| line.contains("for ever"));
            assert_eq!(is_found, is_loop, "{rules}: {found:?}");
        }
    }

    #[test]
    fn rules_for_http_come_before_a_redirect_to_https() {
        for (first, second, is_shadowed) in [
            ("", "scheme = 'http'\n", false),
            ("scheme = 'https'\n", "scheme = 'http'\n", false),
            ("scheme = 'http'\n", "scheme = 'http'\n", true),
            ("", "scheme = 'https'\n", true),
            ("", "", true),
        ] {
            let text = format!(
                "[[site]]\nhttps_redirect = 308\n[[site.rule]]\npath = '*'\n{first}\
                 [[site.rule]]\npath = '/a'\n{second}"
            );
            let found = warnings(&text);
            assert_eq!(
                found.len(),
                usize::from(is_shadowed),
                "{first} {second}: {found:?}"
            );
        }
    }

    #[test]
    fn strict_transport_security_without_effect_is_found() {
        let plain = "listen = [{ port = 80 }]\n";
        let both = "listen = [{ port = 80 }, { port = 443, tls = true }]\n";
        for (ports, hsts, complaint) in [
            (
                both,
                "max_age = '365d', include_subdomains = true, preload = true",
                "",
            ),
            (both, "max_age = '364d'", ""),
            (
                both,
                "max_age = '365d', preload = true",
                "site[0].hsts.preload: lists",
            ),
            (
                both,
                "max_age = '364d', include_subdomains = true, preload = true",
                "site[0].hsts.preload: lists",
            ),
            (plain, "max_age = '365d'", "site[0].hsts: no client gets it"),
        ] {
            let found = warnings(&format!("{ports}[[site]]\nhsts = {{ {hsts} }}"));
            match complaint {
                "" => assert_eq!(found, [""; 0], "{hsts}"),
                _ => assert!(found.join("\n").starts_with(complaint), "{hsts}: {found:?}"),
            }
        }
    }

    #[test]
    fn odd_rules_and_pools_of_a_proxy_are_found() {
        let proxy = "[[proxy.listen]]\nport = 80\n[[proxy.listen]]\nport = 443\nmode = 'tcp'\n\
                     [[proxy.pool]]\nname = 'web'\n[[proxy.pool.backend]]\naddress = '[::1]:1'\n";
        for (rules, place) in [
            (
                "[[proxy.pool]]\nname = 'x'\n",
                "proxy.pool[1]: the pool \"x\"",
            ),
            (
                "rule = [{ pool = 'web' }, { pool = 'web', hosts = ['a.org'] }]",
                "proxy.rule[1]: it never",
            ),
            (
                "rule = [{ pool = 'web', hosts = ['*.a.org'], path_prefixes = ['/a'] }, \
                 { pool = 'web', hosts = ['b.a.org', '*.c.a.org'], path_prefixes = ['/a/'] }]",
                "proxy.rule[1]: it never",
            ),
            (
                "rule = [{ pool = 'web', ports = [443], path_prefixes = ['/'] }]",
                "proxy.rule[0].path_prefixes: it never",
            ),
            (
                "rule = [{ pool = 'web', hosts = ['*.a.org'] }, \
                 { pool = 'web', hosts = ['a.org'] }, \
                 { pool = 'web', ports = [80] }, { pool = 'web', path_prefixes = ['/b'] }]",
                "",
            ),
        ] {
            let text = match rules.strip_prefix("rule") {
                Some(rules) => format!("proxy.rule{rules}\n{proxy}"),
                None => format!("{proxy}{rules}"),
            };
            let found = warnings(&text).join("\n");
            assert!(found.starts_with(place), "{rules}: {found}");
            assert_eq!(
                found.lines().count(),
                usize::from(!place.is_empty()),
                "{found}"
            );
        }
    }
}
