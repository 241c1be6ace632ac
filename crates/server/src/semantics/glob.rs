//! Texts in which stars stand for anything.

use std::fmt;
use std::str::FromStr;

/// A text with stars, each of which stands for any bytes, also none: `*image/avif*`. With `!`
/// before the text, all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob {
    /// The text between stars, in lower case.
    pieces: Box<[Box<[u8]>]>,
    is_negated: bool,
    written: Box<str>,
}

impl Glob {
    /// True if one of the texts is like this one, in any case; with `!`, if none is.
    pub(crate) fn accepts<'a>(&self, mut texts: impl Iterator<Item = &'a [u8]>) -> bool {
        texts.any(|text| self.is_like(text)) != self.is_negated
    }

    fn is_like(&self, text: &[u8]) -> bool {
        let [first, between @ ..] = &*self.pieces else {
            return false;
        };
        let Some((last, between)) = between.split_last() else {
            return text.eq_ignore_ascii_case(first);
        };
        let Some(mut rest) = without_start(text, first) else {
            return false;
        };
        // The first place of each piece is the best one: it leaves most for those that follow.
        for piece in between {
            let mut places = rest.windows(piece.len().max(1));
            let at = match piece.is_empty() {
                true => Some(0),
                false => places.position(|place| place.eq_ignore_ascii_case(piece)),
            };
            let Some(at) = at else {
                return false;
            };
            rest = &rest[at + piece.len()..];
        }
        let end = rest.len().checked_sub(last.len()).map(|at| &rest[at..]);
        end.is_some_and(|end| end.eq_ignore_ascii_case(last))
    }
}

fn without_start<'a>(text: &'a [u8], start: &[u8]) -> Option<&'a [u8]> {
    let (found, rest) = text.split_at_checked(start.len())?;
    found.eq_ignore_ascii_case(start).then_some(rest)
}

impl FromStr for Glob {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (is_negated, pattern) = match text.strip_prefix('!') {
            Some(pattern) => (true, pattern),
            None => (false, text),
        };
        let pieces = pattern.split('*').map(|piece| piece.as_bytes().into());
        Ok(Glob {
            pieces: pieces.collect(),
            is_negated,
            written: text.into(),
        })
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.written)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn accepts(glob: &str, texts: &[&str]) -> bool {
        let Ok(glob) = glob.parse::<Glob>();
        glob.accepts(texts.iter().map(|text| text.as_bytes()))
    }

    #[test]
    fn stars_are_anything_and_case_does_not_matter() {
        for (glob, text, is_like) in [
            ("", "", true),
            ("", "a", false),
            ("a", "A", true),
            ("a", "ab", false),
            ("*", "", true),
            ("*", "anything", true),
            ("*image/avif*", "text/html, IMAGE/AVIF;q=1", true),
            ("*image/avif*", "image/webp", false),
            ("a*b", "ab", true),
            ("a*b", "a-b-b", true),
            ("a*a", "a", false),
            ("*ab*ab*", "abab", true),
            ("*ab*ab*", "abb ab", true),
            ("*ab*ab*", "aba", false),
            ("**", "x", true),
            ("a**b", "axb", true),
        ] {
            assert_eq!(accepts(glob, &[text]), is_like, "{glob} {text}");
            assert_eq!(
                accepts(&format!("!{glob}"), &[text]),
                !is_like,
                "!{glob} {text}"
            );
        }
        assert!(accepts("b", &["a", "b"]) && !accepts("!b", &["a", "b"]));
        assert!(
            !accepts("*", &[]) && accepts("!*", &[]),
            "what is absent is like nothing"
        );
    }

    /// Compares by trying every place of each piece.
    fn is_like_slowly(pieces: &[&str], text: &str) -> bool {
        match pieces {
            [] => false,
            [last] => text.ends_with(last),
            [piece, rest @ ..] => (0..=text.len()).any(|at| {
                let found = text[at..].strip_prefix(piece);
                found.is_some_and(|left| is_like_slowly(rest, left))
            }),
        }
    }

    proptest! {
        #[test]
        fn no_likeness_is_missed(glob in "[ab*]{0,8}", text in "[ab]{0,10}") {
            let pieces: Vec<&str> = glob.split('*').collect();
            let expected = match pieces[..] {
                [whole] => whole == text,
                [first, ref rest @ ..] => {
                    text.strip_prefix(first).is_some_and(|left| is_like_slowly(rest, left))
                }
                [] => false,
            };
            prop_assert_eq!(accepts(&glob, &[&text]), expected);
        }
    }
}
