//! The end of a message's body, and the persistence of its connection (RFC 9112 §6.3, §9.3).

use http::StatusCode;
use httparse::Header;

use crate::number;

/// Header fields of a message about its body and its connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Framing {
    /// `Content-Length`.
    pub content_length: Option<u64>,
    /// `Connection` has the option `close`.
    pub close: bool,
    /// `Connection` has the option `keep-alive`.
    pub keep_alive: bool,
    /// `Connection` has the option `upgrade`.
    pub upgrade: bool,
    transfer_codings: usize,
    chunked_count: usize,
    chunked_last: bool,
}

/// The body of a message, according to its framing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// This number of bytes.
    Bytes(u64),
    /// The chunked transfer coding.
    Chunked,
}

impl Framing {
    /// Notes a field; false if it does not concern framing.
    ///
    /// # Errors
    ///
    /// 400 for an ambiguous value.
    pub fn note(&mut self, header: &Header<'_>) -> Result<bool, StatusCode> {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        if is("content-length") {
            // RFC 9112 §6.3 allows repeated equal values to be taken as one; no honest peer sends
            // them.
            if self.content_length.is_some() {
                return Err(StatusCode::BAD_REQUEST);
            }
            // `+1`, `1,1` or `0x1` are ambiguous.
            let length = number::saturating(header.value);
            self.content_length = Some(length.ok_or(StatusCode::BAD_REQUEST)?);
        } else if is("transfer-encoding") {
            for coding in list(header.value) {
                self.transfer_codings += 1;
                self.chunked_last = coding.eq_ignore_ascii_case(b"chunked");
                self.chunked_count += usize::from(self.chunked_last);
            }
            // A field without a coding announces a body without an end.
            if self.transfer_codings == 0 {
                return Err(StatusCode::BAD_REQUEST);
            }
        } else if is("connection") {
            for option in list(header.value) {
                self.close |= option.eq_ignore_ascii_case(b"close");
                self.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
                self.upgrade |= option.eq_ignore_ascii_case(b"upgrade");
            }
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// Returns the body; `None` if no field announces one.
    ///
    /// # Errors
    ///
    /// 400 if its end is in doubt, 501 for an unknown coding.
    pub fn body(&self, is_http_1_0: bool) -> Result<Option<Body>, StatusCode> {
        if self.transfer_codings == 0 {
            return Ok(self.content_length.map(Body::Bytes));
        }
        // Both lengths, or a coding that HTTP/1.0 does not have, or one without an end of its own:
        // an intermediary may see another message than this one (RFC 9112 §6.1, §6.3).
        if self.content_length.is_some()
            || is_http_1_0
            || !self.chunked_last
            || self.chunked_count > 1
        {
            return Err(StatusCode::BAD_REQUEST);
        }
        // RFC 9112 §6.1: an unknown coding.
        if self.transfer_codings > 1 {
            return Err(StatusCode::NOT_IMPLEMENTED);
        }
        Ok(Some(Body::Chunked))
    }

    /// True if the connection may carry another message after this one, provided that its body has
    /// an end.
    pub fn persists(&self, is_http_1_0: bool) -> bool {
        !self.close && (!is_http_1_0 || self.keep_alive)
    }
}

/// The elements of a comma-separated list (RFC 9110 §5.6.1), without the empty ones.
pub fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value
        .split(|&byte| byte == b',')
        .map(<[u8]>::trim_ascii)
        .filter(|element| !element.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framing(fields: &[(&str, &str)]) -> Result<Framing, StatusCode> {
        let mut framing = Framing::default();
        for (name, value) in fields {
            let value = value.as_bytes();
            framing.note(&Header { name, value })?;
        }
        Ok(framing)
    }

    #[test]
    fn a_body_has_one_length() {
        let body = |fields: &[_]| framing(fields).and_then(|it| it.body(false));
        assert_eq!(body(&[]), Ok(None));
        assert_eq!(body(&[("Content-Length", "7")]), Ok(Some(Body::Bytes(7))));
        let chunked = ("transfer-encoding", "Chunked");
        assert_eq!(body(&[chunked]), Ok(Some(Body::Chunked)));
        for (fields, status) in [
            (&[chunked, ("content-length", "7")][..], 400),
            (&[("content-length", "7"), ("content-length", "7")], 400),
            (&[chunked, chunked], 400),
            (&[("transfer-encoding", "chunked, gzip")], 400),
            (&[("transfer-encoding", "gzip, chunked")], 501),
            (&[("transfer-encoding", "")], 400),
        ] {
            assert_eq!(body(fields).unwrap_err().as_u16(), status, "{fields:?}");
        }
        let framing = framing(&[chunked]).unwrap();
        assert_eq!(framing.body(true), Err(StatusCode::BAD_REQUEST));
    }

    #[test]
    fn connections_persist_unless_a_message_says_otherwise() {
        let persists = |value: &str, is_http_1_0| {
            framing(&[("connection", value)])
                .unwrap()
                .persists(is_http_1_0)
        };
        assert!(persists("x", false) && !persists("x", true));
        assert!(persists("Keep-Alive", true));
        assert!(!persists("keep-alive, Close", true) && !persists("a, close", false));
    }
}
