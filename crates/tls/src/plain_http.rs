//! Requests of HTTP/1.1 that come where a ClientHello should.

use contract::tls::RECORD_HEADER_BYTES;

/// Methods of RFC 9110 §9 and RFC 5789, each with the space behind it.
const METHODS: [&[u8]; 9] = [
    b"CONNECT ",
    b"DELETE ",
    b"GET ",
    b"HEAD ",
    b"OPTIONS ",
    b"PATCH ",
    b"POST ",
    b"PUT ",
    b"TRACE ",
];

/// True if a stream that begins so is a request.
pub(crate) fn is_request(first: &[u8; RECORD_HEADER_BYTES]) -> bool {
    METHODS.iter().any(|method| {
        method
            .iter()
            .zip(first)
            .all(|(method, first)| method == first)
    })
}

/// True if it is a HEAD request.
pub(crate) fn is_head(first: &[u8; RECORD_HEADER_BYTES]) -> bool {
    first.starts_with(b"HEAD ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_begin_with_a_method() {
        for first in [b"GET /", b"GET h", b"POST ", b"PUT /", b"DELET", b"OPTIO"] {
            assert!(is_request(first) && !is_head(first), "{first:?}");
        }
        assert!(is_request(b"HEAD ") && is_head(b"HEAD "));
        for first in [
            b"GETX ",
            b"get /",
            b"PRI *",
            b"SSH-2",
            b"HEADS",
            &[22, 3, 1, 2, 0],
        ] {
            assert!(!is_request(first), "{first:?}");
        }
    }
}
