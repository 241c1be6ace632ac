//! `Accept`: whether a listing is for people or for programs (RFC 9110 §12.5.1).

use crate::semantics::encoding::thousandths;
use http_message::framing::list;

use crate::semantics::fields::Head;

/// Format of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Html,
    Json,
}

impl Format {
    /// Returns the format that a request prefers; HTML without a preference.
    pub(crate) fn of(head: Head<'_>) -> Format {
        let weight = |kind, subtype| {
            let elements = head.values_named("accept").flat_map(list);
            let ranges = elements.filter_map(|element| range(element, kind, subtype));
            ranges.max().map_or(0, |(_, weight)| weight)
        };
        if weight(b"application", b"json") > weight(b"text", b"html") {
            Format::Json
        } else {
            Format::Html
        }
    }

    pub(crate) fn media_type(self) -> &'static str {
        match self {
            Format::Html => "text/html",
            Format::Json => "application/json",
        }
    }
}

/// Returns the precision with which a media range names a type, and the weight in thousandths;
/// `None` if the range does not match.
fn range(element: &[u8], kind: &[u8], subtype: &[u8]) -> Option<(u8, u16)> {
    let mut parts = element.split(|&byte| byte == b';').map(<[u8]>::trim_ascii);
    let name = parts.next()?;
    let slash = name.iter().position(|&byte| byte == b'/')?;
    let (left, right) = (&name[..slash], &name[slash + 1..]);
    let precision = match (left, right) {
        (b"*", b"*") => 0,
        (left, b"*") if left.eq_ignore_ascii_case(kind) => 1,
        _ if left.eq_ignore_ascii_case(kind) && right.eq_ignore_ascii_case(subtype) => 2,
        _ => return None,
    };
    let mut weights = parts.filter_map(|parameter| {
        let (key, value) = parameter.split_at_checked(2)?;
        key.eq_ignore_ascii_case(b"q=")
            .then(|| thousandths(value))?
    });
    Some((precision, weights.next_back().unwrap_or(1000)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::semantics::fields::Present;

    fn chosen(accept: &str) -> Format {
        let head = format!("GET / HTTP/1.1\r\nAccept: {accept}\r\n\r\n");
        Format::of(Head::new(head.as_bytes(), Present::default()))
    }

    #[test]
    fn who_likes_json_better_gets_it() {
        for accept in [
            "application/json",
            "APPLICATION/JSON",
            "application/json, */*;q=0.5",
            "text/html;q=0.5, application/json;q=0.8",
            "text/plain, application/*",
            "text/html;q=0, */*",
            "application/json;charset=utf-8;q=0.4, text/*;q=0.3",
        ] {
            assert_eq!(chosen(accept), Format::Json, "{accept}");
        }
        for accept in [
            "",
            "*/*",
            "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
            "text/html, application/json",
            "application/json;q=0.5, */*",
            "application/json;q=0, */*;q=0.1",
            "image/png",
            "json",
            "application/jsonx",
            "text/*, application/json;q=0.9",
        ] {
            assert_eq!(chosen(accept), Format::Html, "{accept}");
        }
        let silent = Head::new(b"GET / HTTP/1.1\r\n\r\n", Present::default());
        assert_eq!(Format::of(silent), Format::Html);
    }
}
