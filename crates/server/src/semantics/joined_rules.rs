//! The rule for a request: one of its site's, or several that apply together.

use std::collections::HashMap;
use std::sync::Arc;

use crate::semantics::rule::{Asked, Rule};
use crate::semantics::site::Site;

/// Most joined rules kept for a site: as many as there are combinations that match requests.
const JOINED_MAX: usize = 1024;

/// The rules of a site, and those that apply together, joined when a request needs them.
#[derive(Debug, Default)]
pub(crate) struct JoinedRules {
    own: Vec<Arc<Rule>>,
    /// By their numbers.
    joined: HashMap<Box<[u16]>, Arc<Rule>>,
    /// Numbers of the rules that match the request in hand.
    matching: Vec<u16>,
    /// A rule looks at a field of the request.
    varies: bool,
}

impl JoinedRules {
    pub(crate) fn new(site: &Site) -> Self {
        JoinedRules {
            own: site.rules.iter().cloned().map(Arc::new).collect(),
            varies: site.fields_looked_at().next().is_some(),
            ..JoinedRules::default()
        }
    }

    /// True if the rule for a request may depend on its fields.
    pub(crate) fn varies(&self) -> bool {
        self.varies
    }

    /// The rule for a request.
    pub(crate) fn choose(&mut self, asked: &Asked<'_>) -> Option<Arc<Rule>> {
        self.matching.clear();
        for (rule, number) in self.own.iter().zip(0..) {
            if !rule.matches(asked) {
                continue;
            }
            if self.matching.is_empty() && !rule.continues {
                return Some(Arc::clone(rule));
            }
            self.matching.push(number);
            if !rule.continues {
                break;
            }
        }
        match self.matching[..] {
            [] => None,
            [number] => self.own.get(usize::from(number)).cloned(),
            _ => self.join(),
        }
    }

    fn join(&mut self) -> Option<Arc<Rule>> {
        if let Some(joined) = self.joined.get(&self.matching[..]) {
            return Some(Arc::clone(joined));
        }
        let numbers = self.matching.iter();
        let rules = numbers.filter_map(|&number| self.own.get(usize::from(number)));
        let rules = rules.map(|rule| &**rule);
        let joined = Arc::new(Rule::join(rules)?);
        if self.joined.len() >= JOINED_MAX {
            self.joined.clear();
        }
        (self.joined).insert(self.matching[..].into(), Arc::clone(&joined));
        Some(joined)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::semantics::fields::{Head, Present};
    use crate::semantics::method::Method;
    use crate::semantics::redirect::Redirect;
    use crate::semantics::rule::ExtraField;
    use crate::semantics::scheme::Scheme;
    use crate::semantics::versions::HttpVersion;

    fn rule(pattern: &str, continues: bool) -> Rule {
        Rule {
            continues,
            ..Rule::new(pattern.parse().unwrap())
        }
    }

    fn field(name: &str, value: &str) -> ExtraField {
        ExtraField::new(name, value).unwrap()
    }

    fn choose(rules: &mut JoinedRules, path: &str) -> Option<Arc<Rule>> {
        let asked = Asked {
            path: path.as_bytes(),
            scheme: Scheme::Http,
            version: HttpVersion::Http1,
            method: Method::Get,
            head: Head::new(b"", Present::default()),
            query: None,
        };
        rules.choose(&asked)
    }

    #[test]
    fn rules_that_continue_apply_with_the_next_one_that_matches() {
        let site = Site {
            rules: vec![
                Rule {
                    fields: vec![field("A", "1"), field("A", "2"), field("B", "1")],
                    ..rule("*", true)
                },
                Rule {
                    expires: Some(Duration::from_secs(60)),
                    ..rule("*.m3u8", true)
                },
                Rule {
                    fields: vec![field("B", "2"), field("C", "3"), field("C", "4")],
                    cache_control: Some("no-store".parse().unwrap()),
                    ..rule("/live/*", false)
                },
                Rule {
                    fields: vec![field("D", "5")],
                    ..rule("*", false)
                },
            ],
            ..Site::default()
        };
        let mut rules = JoinedRules::new(&site);
        let mut chosen = |path: &str| {
            let rule = choose(&mut rules, path).unwrap();
            let fields = rule.fields.iter();
            let fields = fields.map(|it| format!("{}{}", it.written, it.value.to_str().unwrap()));
            let fields: Vec<String> = fields.collect();
            (
                fields.join(" "),
                rule.cache_control.is_some(),
                rule.expires.is_some(),
            )
        };
        assert_eq!(chosen("/x"), ("A1 A2 B1 D5".to_owned(), false, false));
        assert_eq!(
            chosen("/live/x"),
            ("A1 A2 B1 C3 C4".to_owned(), true, false)
        );
        // One rule decides about caching.
        assert_eq!(
            chosen("/live/x.m3u8"),
            ("A1 A2 B1 C3 C4".to_owned(), false, true)
        );
        let [one, two] = ["/a", "/b"].map(|path| choose(&mut rules, path).unwrap());
        assert!(Arc::ptr_eq(&one, &two), "they are joined once");
        assert_eq!(rules.joined.len(), 3);
    }

    #[test]
    fn the_first_action_counts_with_the_star_of_its_own_pattern() {
        let site = Site {
            rules: vec![
                rule("*", true),
                Rule {
                    redirect: Some(Redirect::new(301, "/new/*").unwrap()),
                    ..rule("/old/*", true)
                },
                Rule {
                    redirect: Some(Redirect::new(302, "/other").unwrap()),
                    ..rule("/old/x*", false)
                },
            ],
            ..Site::default()
        };
        let mut rules = JoinedRules::new(&site);
        let rule = choose(&mut rules, "/old/xy").unwrap();
        assert_eq!(rule.redirect, site.rules[1].redirect);
        assert_eq!(rule.pattern.captures(b"/old/xy"), Some(&b"xy"[..]));
        // Without another one, the last that continues stands alone.
        assert!(choose(&mut rules, "/x").unwrap().redirect.is_none() && rules.joined.len() == 1);
    }
}
