//! Valid settings that are probably mistakes. No file is read.

use std::collections::BTreeSet;

use server::Pattern;

use super::place::{Place, Problem};
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
            let paths: Vec<Glob> = site
                .rule
                .iter()
                .map(|rule| Glob::of(&rule.path.0))
                .collect();
            for (at, path) in paths.iter().enumerate() {
                if let Some(other) = paths[..at].iter().position(|other| other.covers(path)) {
                    warnings.push(shadowed(place.index(at).key("path"), other));
                }
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
            let mut next = path.clone();
            let is_loop = (0..REDIRECTS_MAX).all(|_| {
                let to = self.redirected(site, &next);
                to.map(|to| next = to).is_some()
            });
            if is_loop {
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

    /// The path on the same site to which a request is redirected, if any.
    fn redirected(&self, site: &Site, path: &str) -> Option<String> {
        let mut rules = site.rule.iter();
        let (redirect, captured) = rules.find_map(|rule| {
            let captured = Glob::of(&rule.path.0).captures(path)?.to_owned();
            Some((rule.redirect.as_ref(), captured))
        })?;
        let to = redirect?.to.replacen('*', &captured, 1);
        let to = self.path_of(site, &to)?.to_owned();
        Some(to.split('?').next().unwrap_or_default().to_owned())
    }

    /// The path, if the site serves it; `None` if the URL leads elsewhere.
    fn path_of<'a>(&self, site: &Site, to: &'a str) -> Option<&'a str> {
        let (rest, tls, port) = match (to.strip_prefix("https://"), to.strip_prefix("http://")) {
            (Some(rest), _) => (rest, true, 443),
            (_, Some(rest)) => (rest, false, 80),
            (None, None) => return Some(to),
        };
        let start = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(start);
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, digits)) if !digits.ends_with(']') => (host, digits.parse().ok()?),
            _ => (authority, port),
        };
        let mut names = site.names.iter().map(|name| name.0.to_string());
        let is_named = names.any(|name| covers_name(&name, &host.to_ascii_lowercase()));
        let is_served = self.ports(tls).any(|own| own == port);
        let path = if path.is_empty() { "/" } else { path };
        (is_named && is_served).then_some(path)
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
