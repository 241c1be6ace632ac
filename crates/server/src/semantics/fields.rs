//! Header fields that matter only once the file is known: looked up in the head when they are
//! needed.
//!
//! Parsing notes which fields are present; the head itself stays in the input until its response
//! begins, so nothing is copied and a connection does not grow.

/// A header field whose value is looked at late, or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    AcceptEncoding,
    AccessControlRequestMethod,
    Host,
    IfMatch,
    IfModifiedSince,
    IfNoneMatch,
    IfRange,
    IfUnmodifiedSince,
    Origin,
    Range,
}

const FIELDS: [(Field, &str); 10] = [
    (Field::AcceptEncoding, "accept-encoding"),
    (
        Field::AccessControlRequestMethod,
        "access-control-request-method",
    ),
    (Field::Host, "host"),
    (Field::IfMatch, "if-match"),
    (Field::IfModifiedSince, "if-modified-since"),
    (Field::IfNoneMatch, "if-none-match"),
    (Field::IfRange, "if-range"),
    (Field::IfUnmodifiedSince, "if-unmodified-since"),
    (Field::Origin, "origin"),
    (Field::Range, "range"),
];

/// Lengths of the names, one bit for each: most other fields of a request are excluded by their
/// length.
const LENGTHS: u32 = {
    let (mut lengths, mut at) = (0, 0);
    while at < FIELDS.len() {
        lengths |= 1 << FIELDS[at].1.len();
        at += 1;
    }
    lengths
};

impl Field {
    /// The field of this name, in any case.
    pub(crate) fn named(name: &str) -> Option<Field> {
        let bit = 1u32.checked_shl(name.len() as u32)?;
        if LENGTHS & bit == 0 {
            return None;
        }
        let is = |known: &&(Field, &str)| known.1.eq_ignore_ascii_case(name);
        FIELDS.iter().find(is).map(|&(field, _)| field)
    }

    fn name(self) -> &'static str {
        FIELDS[self as usize].1
    }
}

/// Which fields a head has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Present(u16);

impl Present {
    pub(crate) fn insert(&mut self, field: Field) {
        self.0 |= 1 << field as u16;
    }

    pub(crate) fn has(self, field: Field) -> bool {
        self.0 & (1 << field as u16) != 0
    }

    /// True if the answer may differ from the whole file.
    pub(crate) fn has_conditions(self) -> bool {
        const CONDITIONS: u16 = 1 << Field::IfMatch as u16
            | 1 << Field::IfModifiedSince as u16
            | 1 << Field::IfNoneMatch as u16
            | 1 << Field::IfUnmodifiedSince as u16
            | 1 << Field::Range as u16;
        self.0 & CONDITIONS != 0
    }
}

/// A parsed request head, and the fields present.
#[derive(Clone, Copy)]
pub(crate) struct Head<'a> {
    bytes: &'a [u8],
    present: Present,
}

impl<'a> Head<'a> {
    pub(crate) fn new(bytes: &'a [u8], present: Present) -> Self {
        Head { bytes, present }
    }

    pub(crate) fn present(&self) -> Present {
        self.present
    }

    /// Returns the values of a field, one for each of its lines: together they are one list (RFC
    /// 9110 §5.3).
    pub(crate) fn values(self, field: Field) -> impl Iterator<Item = &'a [u8]> + Clone {
        let bytes = if self.present.has(field) {
            self.bytes
        } else {
            &[]
        };
        values(bytes, field.name())
    }

    /// Returns the values of another field, by its name in lower case. Parsing does not note such
    /// fields, which rarely matter.
    pub(crate) fn values_named<'n>(
        self,
        name: &'n str,
    ) -> impl DoubleEndedIterator<Item = &'a [u8]> + Clone + use<'a, 'n> {
        values(self.bytes, name)
    }

    /// Returns the value of a field that is not a list; `None` also if it is repeated, which is
    /// invalid.
    pub(crate) fn value(self, field: Field) -> Option<&'a [u8]> {
        let mut values = self.values(field);
        let value = values.next()?;
        values.next().is_none().then_some(value)
    }
}

/// The values of a field in a head.
fn values<'a, 'n>(
    bytes: &'a [u8],
    name: &'n str,
) -> impl DoubleEndedIterator<Item = &'a [u8]> + Clone + use<'a, 'n> {
    let name = name.as_bytes();
    // Lines end with LF, and nothing else does: folded lines and stray CRs were refused.
    bytes.split(|&byte| byte == b'\n').filter_map(move |line| {
        let (found, rest) = line.split_at_checked(name.len())?;
        let value = rest.strip_prefix(b":")?;
        found.eq_ignore_ascii_case(name).then(|| value.trim_ascii())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_stands_at_its_place() {
        for (place, (field, name)) in FIELDS.into_iter().enumerate() {
            assert_eq!(field as usize, place, "{name}");
            assert_eq!(Field::named(&name.to_ascii_uppercase()), Some(field));
        }
        assert_eq!(Field::named("if-matches"), None);
        assert_eq!(Field::named(&"x".repeat(100)), None);
        assert_eq!(Field::named(""), None);
    }

    #[test]
    fn values_are_found_by_the_whole_name() {
        let bytes = b"\r\nGET /range:x HTTP/1.1\r\nRANGE: a\r\nRange-Unit: no\r\nx-range: no\n\
            range:\tb \nIf-Range:\r\n\r\n";
        let mut present = Present::default();
        present.insert(Field::Host);
        present.insert(Field::IfRange);
        assert!(!present.has_conditions());
        present.insert(Field::Range);
        assert!(present.has_conditions());
        let head = Head::new(bytes, present);
        let all: Vec<_> = head.values(Field::Range).collect();
        assert_eq!(all, [b"a", b"b"]);
        assert_eq!(head.value(Field::Range), None);
        assert_eq!(head.value(Field::IfRange), Some(&b""[..]));
        assert_eq!(head.value(Field::IfMatch), None);
    }
}
