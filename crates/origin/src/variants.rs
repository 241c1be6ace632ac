//! The stored variants of each target, and the fields by which it varies ([`crate::vary`]).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::store::Key;
use crate::vary::{Names, Variant};

/// Stored variants and selecting fields, by target.
#[derive(Debug)]
pub(crate) struct Variants {
    /// Most variants of a target; one more evicts the least recently requested.
    pub(crate) variants_max: usize,
    targets: HashMap<Arc<str>, HashMap<String, Target>>,
    /// All fields by which each origin is known to select; assumed for its other targets.
    origins: HashMap<Arc<str>, Names>,
}

#[derive(Debug, Default)]
struct Target {
    names: Names,
    /// `names` are those of the origin's other targets, since this one has only failed.
    is_assumed: bool,
    /// Stored variants, the most recently requested last.
    variants: VecDeque<Variant>,
}

impl Variants {
    pub(crate) fn new(variants_max: usize) -> Variants {
        Variants {
            variants_max,
            targets: HashMap::new(),
            origins: HashMap::new(),
        }
    }

    /// The fields by which a target varies, as far as is known.
    pub(crate) fn names(&self, origin: &Arc<str>, target: &str) -> Names {
        match self.target(origin, target) {
            Some(known) => known.names,
            None => self.origins.get(origin).copied().unwrap_or_default(),
        }
    }

    fn target(&self, origin: &Arc<str>, target: &str) -> Option<&Target> {
        self.targets.get(origin)?.get(target)
    }

    /// Records the fields of a response's `Vary`. Returns the union of known and new names, since
    /// some origins name only fields that the request has.
    pub(crate) fn learn(&mut self, key: &Key, names: Names) -> Names {
        let of_origin = self.origins.entry(Arc::clone(&key.origin)).or_default();
        *of_origin = of_origin.union(names);
        match self.target_mut(key) {
            Some(known) if known.is_assumed => {
                (known.names, known.is_assumed) = (names, false);
                names
            }
            Some(known) => {
                known.names = known.names.union(names);
                known.names
            }
            None => names,
        }
    }

    fn target_mut(&mut self, key: &Key) -> Option<&mut Target> {
        self.targets.get_mut(&key.origin)?.get_mut(&key.target)
    }

    /// [`Variants::keep`] for a failure, which has no `Vary`: the names are assumed.
    pub(crate) fn keep_failed(&mut self, key: &Key) -> Vec<Key> {
        let (names, is_known) = (
            self.names(&key.origin, &key.target),
            self.target(&key.origin, &key.target).is_some(),
        );
        let evicted = self.keep(key, names);
        if let Some(target) = self.target_mut(key) {
            target.is_assumed |= !is_known;
        }
        evicted
    }

    /// Adds a variant, as the most recently requested. Returns the evicted variants.
    pub(crate) fn keep(&mut self, key: &Key, names: Names) -> Vec<Key> {
        let targets = self.targets.entry(Arc::clone(&key.origin)).or_default();
        let target = targets.entry(key.target.clone()).or_default();
        target.names = target.names.union(names);
        if let Some(place) = target.variants.iter().position(|it| *it == key.variant) {
            target.variants.remove(place);
        }
        target.variants.push_back(key.variant.clone());
        let too_many = target
            .variants
            .len()
            .saturating_sub(self.variants_max.max(1));
        let oldest = target.variants.drain(..too_many);
        let oldest = oldest.map(|variant| Key {
            variant,
            ..key.clone()
        });
        oldest.collect()
    }

    /// Marks a variant as the most recently requested.
    pub(crate) fn touch(&mut self, key: &Key) {
        let Some(target) = self.target_mut(key) else {
            return;
        };
        if target.variants.back() != Some(&key.variant)
            && let Some(place) = target.variants.iter().position(|it| *it == key.variant)
            && let Some(variant) = target.variants.remove(place)
        {
            target.variants.push_back(variant);
        }
    }

    /// Removes a variant.
    pub(crate) fn forget(&mut self, key: &Key) {
        let Some(targets) = self.targets.get_mut(&key.origin) else {
            return;
        };
        let Some(target) = targets.get_mut(&key.target) else {
            return;
        };
        target.variants.retain(|variant| *variant != key.variant);
        if target.variants.is_empty() {
            targets.remove(&key.target);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VARIANTS_MAX: usize = 16;

    fn fields(lines: &[(&str, &str)]) -> Vec<(String, String)> {
        let lines = lines.iter();
        lines
            .map(|&(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }

    fn key(variant: &[(&str, &str)]) -> Key {
        Key {
            origin: "http://a".into(),
            target: "/x".to_owned(),
            variant: Variant::of(&fields(variant)),
        }
    }

    #[test]
    fn names_are_learnt_for_a_target_and_assumed_of_others_of_its_origin() {
        let mut variants = Variants::new(VARIANTS_MAX);
        let (origin, language) = (
            Names::of(["origin"].into_iter()),
            Names::of(["accept-language"].into_iter()),
        );
        let plain = key(&[]);
        assert_eq!(variants.learn(&plain, origin), origin);
        assert_eq!(variants.keep(&plain, origin), []);
        assert_eq!(variants.learn(&plain, language), origin.union(language));
        assert_eq!(variants.names(&plain.origin, "/x"), origin.union(language));
        assert_eq!(variants.names(&plain.origin, "/y"), origin.union(language));
        assert_eq!(variants.names(&"http://b".into(), "/x"), Names::default());
        variants.forget(&plain);
        assert!(variants.targets[&plain.origin].is_empty());
    }

    #[test]
    fn of_too_many_variants_the_one_goes_that_was_asked_for_least_recently() {
        let mut variants = Variants::new(VARIANTS_MAX);
        let names = Names::of(["origin"].into_iter());
        let of = |number: usize| key(&[("origin", &number.to_string())]);
        for number in 0..VARIANTS_MAX {
            assert_eq!(variants.keep(&of(number), names), []);
        }
        variants.touch(&of(0));
        assert_eq!(variants.keep(&of(1), names), [], "it is there already");
        assert_eq!(variants.keep(&of(100), names), [of(2)]);
        assert_eq!(variants.keep(&of(101), names), [of(3)]);
        variants.variants_max = VARIANTS_MAX - 2;
        assert_eq!(variants.keep(&of(102), names), [of(4), of(5), of(6)]);
    }
}
