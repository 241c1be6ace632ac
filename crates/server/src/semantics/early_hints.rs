//! Early hints (RFC 8297): links that a browser follows before the response arrives.

use std::fmt;

use http::HeaderValue;

use crate::semantics::fields::Head;

/// Most hints of a rule, or of a response of an origin, that are sent.
pub const EARLY_HINTS_MAX: usize = 16;

/// Longest hints of a rule, or of a response of an origin, together, in bytes.
pub const EARLY_HINTS_BYTES_MAX: usize = 4 << 10;

/// A value of `Link` (RFC 8288 §3): one link, with its relation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EarlyHint(HeaderValue);

/// A text that is no hint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EarlyHintError {
    text: String,
    why: &'static str,
}

impl EarlyHint {
    /// Creates a hint, such as `</style.css>; rel=preload; as=style`.
    ///
    /// # Errors
    /// If it is not a link with a relation.
    pub fn new(text: &str) -> Result<Self, EarlyHintError> {
        let fail = |why| {
            let text = text.to_owned();
            EarlyHintError { text, why }
        };
        let rest = text.strip_prefix('<');
        let rest = rest.ok_or(fail("it does not begin with <"))?;
        let (target, parameters) = rest.split_once('>').ok_or(fail("there is no >"))?;
        let is_target = |byte: u8| byte.is_ascii_graphic() && !b"<\"\\^`{|}".contains(&byte);
        if target.is_empty() || !target.bytes().all(is_target) {
            return Err(fail("there is no URL between < and >"));
        }
        let mut names = Vec::new();
        for parameter in split_parameters(parameters).ok_or(fail("a quotation mark is open"))? {
            let name = parameter.split('=').next().unwrap_or_default();
            names.push(name.trim().to_ascii_lowercase());
        }
        if !parameters.trim_start().starts_with(';') || !names.iter().any(|name| name == "rel") {
            return Err(fail("it has no relation"));
        }
        let value = HeaderValue::from_str(text);
        Ok(EarlyHint(value.map_err(|_| {
            fail("it has bytes that no field may have")
        })?))
    }

    /// The value of `Link`.
    pub(crate) fn value(&self) -> &HeaderValue {
        &self.0
    }
}

/// Parameters behind semicolons, of which quoted ones may have any byte; `None` if a quotation mark
/// is open, or a comma begins another link.
fn split_parameters(text: &str) -> Option<Vec<&str>> {
    let (mut is_quoted, mut is_escaped, mut start) = (false, false, 0);
    let mut found = Vec::new();
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            b',' if !is_quoted => return None,
            b';' if !is_quoted => {
                found.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    found.push(&text[start..]);
    (!is_quoted).then_some(found)
}

/// True if a browser that loads a page sends the request: it follows the hints of no other response
/// (Fetch Standard, `Sec-Fetch-Mode`).
pub(crate) fn is_navigation(head: Head<'_>) -> bool {
    let mut modes = head.values_named("sec-fetch-mode");
    modes.any(|mode| mode == b"navigate")
}

impl fmt::Display for EarlyHintError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let EarlyHintError { text, why } = self;
        write!(
            f,
            "{text:?} is no early hint: {why}; such are </style.css>; rel=preload; as=style and \
             <https://cdn.example>; rel=preconnect, one link each"
        )
    }
}

impl std::error::Error for EarlyHintError {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: RFC 8288 §3
    #[test]
    fn a_hint_is_a_link_with_a_relation() {
        for text in [
            "</style.css>; rel=preload; as=style",
            "<https://cdn.example>;rel=\"preconnect\"; crossorigin",
            "</a?b=c,d>; REL=preload; title=\"a; b, \\\" c\"",
        ] {
            assert_eq!(EarlyHint::new(text).unwrap().value(), text);
        }
        for text in [
            "",
            "/style.css",
            "</style.css",
            "<>; rel=preload",
            "<a b>; rel=preload",
            "</style.css>",
            "</style.css> rel=preload",
            "</style.css>; as=style",
            "</a>; rel=preload; title=\"open",
            "</a>; rel=preload, </b>; rel=preload",
            "</a>; rel=preload\r\nA: b",
            "</\u{e9}>; rel=preload",
        ] {
            let error = EarlyHint::new(text).unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }
}
