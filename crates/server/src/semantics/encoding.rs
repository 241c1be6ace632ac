//! `Accept-Encoding`: the variants of a file that a client accepts, and their order (RFC 9110
//! §12.5.3).

use std::fmt;
use std::str::FromStr;

use http_message::framing::list;

/// A content coding of the precompressed variants of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// Brotli (RFC 7932): `NAME.br`.
    Brotli,
    /// Zstandard (RFC 8878): `NAME.zst`.
    Zstd,
    /// gzip (RFC 1952): `NAME.gz`.
    Gzip,
}

impl Coding {
    /// All codings, the usually shortest variant first.
    pub const ALL: [Coding; 3] = [Coding::Brotli, Coding::Zstd, Coding::Gzip];

    /// Name in the registry of content codings.
    pub fn name(self) -> &'static str {
        match self {
            Coding::Brotli => "br",
            Coding::Zstd => "zstd",
            Coding::Gzip => "gzip",
        }
    }

    /// Suffix of a variant's file name.
    pub fn suffix(self) -> &'static str {
        match self {
            Coding::Brotli => ".br",
            Coding::Zstd => ".zst",
            Coding::Gzip => ".gz",
        }
    }

    /// RFC 9110 §8.4.1.3: `x-gzip` is another name for gzip.
    fn is_named(self, name: &[u8]) -> bool {
        name.eq_ignore_ascii_case(self.name().as_bytes())
            || self == Coding::Gzip && name.eq_ignore_ascii_case(b"x-gzip")
    }
}

/// A name of a content coding that variants cannot have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodingError(String);

impl FromStr for Coding {
    type Err = CodingError;

    fn from_str(name: &str) -> Result<Self, CodingError> {
        let mut all = Coding::ALL.into_iter();
        all.find(|coding| coding.name() == name)
            .ok_or_else(|| CodingError(name.to_owned()))
    }
}

impl fmt::Display for Coding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for CodingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Coding::ALL.map(Coding::name).join(", ");
        write!(f, "{:?} is no coding of files; such are {names}", self.0)
    }
}

impl std::error::Error for CodingError {}

/// The form in which a file is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// The plain file.
    Plain,
    /// The variant in this coding.
    Coded(Coding),
}

/// The forms of a file that a client accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Acceptable {
    /// Codings to try, the best one first.
    order: [Option<Coding>; Coding::ALL.len()],
    /// The plain file is accepted, if there is no variant.
    pub(crate) identity: bool,
    /// The plain file comes before the variants.
    is_plain_first: bool,
}

impl Acceptable {
    /// The plain file only, as without `Accept-Encoding`.
    pub(crate) const IDENTITY: Acceptable = Acceptable {
        order: [None; Coding::ALL.len()],
        identity: true,
        is_plain_first: false,
    };

    /// Parses the lines of the field for the codings that are `offered`, in the server's order of
    /// preference: it decides between codings of equal weight.
    pub(crate) fn new<'a>(
        values: impl Iterator<Item = &'a [u8]> + Clone,
        offered: &[Coding],
    ) -> Acceptable {
        let weight_of = |is_it: &dyn Fn(&[u8]) -> bool| {
            let mut elements = values.clone().flat_map(list);
            elements.find_map(|element| {
                let (name, weight) = weighted(element)?;
                is_it(name).then_some(weight)
            })
        };
        let any = weight_of(&|name| name == b"*");
        let mut weights = [0; Coding::ALL.len()];
        for (weight, coding) in weights.iter_mut().zip(offered) {
            let own = weight_of(&|name| coding.is_named(name));
            *weight = own.or(any).unwrap_or(0);
        }
        let identity = weight_of(&|name| name.eq_ignore_ascii_case(b"identity")).or(any);
        for weight in &mut weights {
            // A client that prefers the plain file gets it.
            if identity.is_some_and(|identity| identity > *weight) {
                *weight = 0;
            }
        }
        let mut acceptable = Acceptable {
            order: [None; Coding::ALL.len()],
            identity: identity != Some(0),
            is_plain_first: false,
        };
        for slot in &mut acceptable.order {
            let mut best = None;
            for (at, &weight) in weights.iter().enumerate() {
                if weight > 0 && best.is_none_or(|best| weight > weights[best]) {
                    best = Some(at);
                }
            }
            let Some(best) = best else { break };
            weights[best] = 0;
            *slot = offered.get(best).copied();
        }
        acceptable
    }

    /// Returns the order for a request of a range: first the variant of which the client has a
    /// part, if it `names` one, else the plain file. Libraries add `Accept-Encoding` to any
    /// request, and cannot decode a part of a variant.
    pub(crate) fn for_range(mut self, names: Option<Coding>) -> Acceptable {
        let place = names.and_then(|coding| self.order.iter().position(|it| *it == Some(coding)));
        match place {
            Some(place) => self.order[..=place].rotate_right(1),
            None => self.is_plain_first = true,
        }
        self
    }

    /// Returns the form to try after `tried` others; `None` if none is left.
    pub(crate) fn form(&self, tried: usize) -> Option<Form> {
        let coded = |place: usize| self.order.get(place).copied().flatten().map(Form::Coded);
        if self.is_plain_first && self.identity {
            return match tried.checked_sub(1) {
                None => Some(Form::Plain),
                Some(place) => coded(place),
            };
        }
        let codings = self.order.iter().flatten().count();
        coded(tried).or_else(|| (self.identity && tried == codings).then_some(Form::Plain))
    }
}

/// Parses a coding and its weight in thousandths (RFC 9110 §12.4.2); `None` if the element is
/// invalid.
fn weighted(element: &[u8]) -> Option<(&[u8], u16)> {
    let mut parts = element.split(|&byte| byte == b';').map(<[u8]>::trim_ascii);
    let name = parts.next()?;
    let weight = match parts.next() {
        None => 1000,
        Some(parameter) => {
            let (key, value) = parameter.split_at_checked(2)?;
            key.eq_ignore_ascii_case(b"q=")
                .then(|| thousandths(value))??
        }
    };
    parts.next().is_none().then_some((name, weight))
}

/// `qvalue`: 0 to 1 with up to three digits after the point.
pub(crate) fn thousandths(value: &[u8]) -> Option<u16> {
    let (&whole, rest) = value.split_first()?;
    let digits = match rest.split_first() {
        None => rest,
        Some((b'.', digits)) if digits.len() <= 3 => digits,
        Some(_) => return None,
    };
    let mut thousandths = 0;
    for place in 0..3 {
        let digit = match digits.get(place) {
            Some(digit) if digit.is_ascii_digit() => u16::from(digit - b'0'),
            Some(_) => return None,
            None => 0,
        };
        thousandths = thousandths * 10 + digit;
    }
    match (whole, thousandths) {
        (b'0', _) => Some(thousandths),
        (b'1', 0) => Some(1000),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    fn accepted(values: &[&str], offered: &[Coding]) -> Acceptable {
        let values = values.iter().map(|value| value.as_bytes());
        Acceptable::new(values, offered)
    }

    fn names(acceptable: &Acceptable) -> Vec<&'static str> {
        let forms = (0..9).map_while(|tried| acceptable.form(tried));
        forms
            .map(|form| match form {
                Form::Plain => "identity",
                Form::Coded(coding) => coding.name(),
            })
            .collect()
    }

    #[test]
    fn clients_say_what_they_take_and_how_much_they_like_it() {
        for (value, expected) in [
            ("", &["identity"][..]),
            (
                "gzip, deflate, br, zstd",
                &["br", "zstd", "gzip", "identity"],
            ),
            ("gzip", &["gzip", "identity"]),
            ("GZIP", &["gzip", "identity"]),
            ("x-gzip", &["gzip", "identity"]),
            ("gzip;q=0", &["identity"]),
            ("gzip;q=0.000", &["identity"]),
            ("br;q=0.5, gzip;q=0.9", &["gzip", "br", "identity"]),
            ("br; q=0.5 ,gzip ;Q=0.501", &["gzip", "br", "identity"]),
            ("*", &["br", "zstd", "gzip", "identity"]),
            ("*;q=0", &[]),
            ("*;q=0, gzip", &["gzip"]),
            ("*;q=0.1, gzip;q=0", &["br", "zstd", "identity"]),
            ("identity;q=0", &[]),
            ("identity;q=0, br", &["br"]),
            ("*;q=0, identity;q=0.1", &["identity"]),
            ("identity;q=1, *;q=0", &["identity"]),
            // A coding of less weight than the plain file is not accepted either.
            ("gzip;q=0.1, identity;q=1", &["identity"]),
            ("gzip;q=0.1, br, identity;q=0.5", &["br", "identity"]),
            ("gzip;q=0.1, *;q=0.5", &["br", "zstd", "identity"]),
            ("br;q=1.0, zstd;q=1.000", &["br", "zstd", "identity"]),
            // What cannot be understood is not accepted.
            ("br;q=1.001, gzip", &["gzip", "identity"]),
            ("br;q=2", &["identity"]),
            ("br;q=", &["identity"]),
            ("br;q=0.1234", &["identity"]),
            ("br;q=.5", &["identity"]),
            ("br;q=0,5", &["identity"]),
            ("br;level=1", &["identity"]),
            ("br;q=1;q=0", &["identity"]),
            ("brotli, gz, zst", &["identity"]),
            // The first that names it counts.
            ("gzip;q=0, gzip", &["identity"]),
        ] {
            assert_eq!(
                names(&accepted(&[value], &Coding::ALL)),
                expected,
                "{value:?}"
            );
        }
        let lines = accepted(&["gzip", "br;q=0.1"], &Coding::ALL);
        assert_eq!(names(&lines), ["gzip", "br", "identity"]);
        assert_eq!(accepted(&[], &Coding::ALL), Acceptable::IDENTITY);
    }

    #[test]
    fn codings_have_names() {
        assert_eq!("zstd".parse(), Ok(Coding::Zstd));
        let error = "zst".parse::<Coding>().unwrap_err().to_string();
        assert!(
            error.contains("\"zst\"") && error.contains("zstd"),
            "{error}"
        );
    }

    #[test]
    fn the_server_offers_what_it_has_in_its_order() {
        let offered = [Coding::Gzip, Coding::Brotli];
        assert_eq!(
            names(&accepted(&["*"], &offered)),
            ["gzip", "br", "identity"]
        );
        assert_eq!(names(&accepted(&["zstd"], &offered)), ["identity"]);
        assert_eq!(names(&accepted(&["br"], &[])), ["identity"]);
    }

    #[test]
    fn a_range_is_of_the_plain_file_unless_the_client_names_a_variant() {
        for (value, names_coding, expected) in [
            ("br, gzip", None, &["identity", "br", "gzip"][..]),
            ("br, gzip", Some(Coding::Gzip), &["gzip", "br", "identity"]),
            (
                "br, gzip",
                Some(Coding::Brotli),
                &["br", "gzip", "identity"],
            ),
            ("br, gzip", Some(Coding::Zstd), &["identity", "br", "gzip"]),
            ("gzip, identity;q=1, *;q=0", None, &["identity", "gzip"]),
            ("gzip, *;q=0", None, &["gzip"]),
            ("", None, &["identity"]),
            ("", Some(Coding::Gzip), &["identity"]),
            ("*;q=0", None, &[]),
        ] {
            let acceptable = accepted(&[value], &Coding::ALL).for_range(names_coding);
            assert_eq!(names(&acceptable), expected, "{value} {names_coding:?}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_said_no_coding_is_tried_twice(
            pieces in vec(select(vec![
                "gzip", "br", "zstd", "*", "identity", ";q=", "0", "1", ".", "5", ",", " ", ";",
                "\u{e9}",
            ]), 0..30),
            bytes in vec(any::<u8>(), 0..64),
        ) {
            let text = pieces.concat();
            for value in [text.as_bytes(), &bytes] {
                let acceptable = Acceptable::new(std::iter::once(value), &Coding::ALL);
                let orders = [
                    acceptable,
                    acceptable.for_range(None),
                    acceptable.for_range(Some(Coding::Gzip)),
                ];
                for acceptable in orders {
                    let forms: Vec<_> =
                        (0..9).map_while(|tried| acceptable.form(tried)).collect();
                    for (at, form) in forms.iter().enumerate() {
                        prop_assert!(!forms[..at].contains(form));
                    }
                    prop_assert_eq!(forms.contains(&Form::Plain), acceptable.identity);
                }
            }
        }
    }
}
