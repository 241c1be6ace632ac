//! Variants: responses for one target that the origin selects by request fields (RFC 9111 §4.1).
//!
//! A request to the origin has only those fields by which the origin is known to select. So the
//! fields sent identify a stored response exactly, and a response without `Vary` for a field cannot
//! depend on that field.

use http::header::HeaderValue;
use serde::{Deserialize, Serialize};

/// Fields that may select a variant, in the order of a variant's fields, in lower case. No other
/// field is ever sent, so no response can depend on one, regardless of `Vary`.
pub const SELECTING: [&str; 3] = ["accept", "accept-language", "origin"];

/// Longest value of a selecting field, in bytes. A longer one counts as absent.
pub const VALUE_BYTES_MAX: usize = 512;

/// A set of [`SELECTING`] fields, one bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Names(u8);

impl Names {
    /// The selecting fields that these values of `Vary` name.
    pub(crate) fn of<'a>(vary: impl Iterator<Item = &'a str>) -> Names {
        let names = vary.flat_map(|value| value.split(',')).map(str::trim);
        let places = names.filter_map(|name| {
            SELECTING
                .iter()
                .position(|known| name.eq_ignore_ascii_case(known))
        });
        Names(places.fold(0, |bits, place| bits | 1 << place))
    }

    fn has(self, place: usize) -> bool {
        self.0 & 1 << place != 0
    }

    pub(crate) fn union(self, other: Names) -> Names {
        Names(self.0 | other.0)
    }
}

/// The selecting fields of a request, each with its value; absent ones are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Variant(Vec<(String, String)>);

impl Variant {
    /// The variant that a request's fields select. Lines of one name form one list; white space
    /// around values is ignored.
    pub(crate) fn of(fields: &[(String, String)]) -> Variant {
        let values = SELECTING.iter().filter_map(|name| {
            let lines = fields.iter().filter(|(found, _)| found == name);
            let lines: Vec<&str> = lines.map(|(_, value)| value.trim()).collect();
            let value = lines.join(", ");
            let is_sane = value.len() <= VALUE_BYTES_MAX && HeaderValue::from_str(&value).is_ok();
            (!lines.is_empty() && is_sane).then(|| ((*name).to_owned(), value))
        });
        Variant(values.collect())
    }

    /// The variant restricted to these fields.
    pub(crate) fn by(&self, names: Names) -> Variant {
        let is_named = |name: &str| {
            let place = SELECTING.iter().position(|known| *known == name);
            place.is_some_and(|place| names.has(place))
        };
        let kept = self.0.iter().filter(|(name, _)| is_named(name));
        Variant(kept.cloned().collect())
    }

    /// The names of its fields.
    pub(crate) fn names(&self) -> Names {
        Names::of(self.0.iter().map(|(name, _)| name.as_str()))
    }

    pub(crate) fn is_plain(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn fields(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(lines: &[(&str, &str)]) -> Vec<(String, String)> {
        let lines = lines.iter();
        lines
            .map(|&(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }

    /// RFC 9111 §4.1
    #[test]
    fn values_are_compared_as_lists_without_white_space_around_them() {
        let one = Variant::of(&fields(&[
            ("origin", " a "),
            ("accept", "b"),
            ("accept", "c"),
        ]));
        let same = Variant::of(&fields(&[("accept", "b, c"), ("origin", "a")]));
        assert_eq!(one, same);
        assert_ne!(
            one,
            Variant::of(&fields(&[("accept", "b"), ("origin", "a")]))
        );
        let names = Names::of(["Cookie, ORIGIN"].into_iter());
        assert_eq!(one.by(names), Variant::of(&fields(&[("origin", "a")])));
        assert!(one.by(Names::default()).is_plain());
    }

    #[test]
    fn what_is_too_long_or_no_value_counts_as_absent() {
        let long = "x".repeat(VALUE_BYTES_MAX + 1);
        for value in [&long, "a\nb", "\0"] {
            assert!(Variant::of(&fields(&[("origin", value)])).is_plain());
        }
        let longest = "x".repeat(VALUE_BYTES_MAX);
        assert!(!Variant::of(&fields(&[("origin", &longest)])).is_plain());
        assert!(Variant::of(&fields(&[("cookie", "a")])).is_plain());
    }
}
