//! From bytes to a response head (RFC 9112 §4).

use std::mem::MaybeUninit;

use httparse::Header;

use crate::request::HEADER_COUNT_MAX;

/// A parsed head.
#[derive(Debug)]
pub struct Head<'a> {
    /// The status, 100 to 999.
    pub status: u16,
    /// The reason phrase; it may be empty.
    pub reason: &'a str,
    /// The server speaks HTTP/1.0.
    pub is_http_1_0: bool,
    /// The fields.
    pub headers: &'a [Header<'a>],
    /// Length of the head, in bytes.
    pub head_bytes: usize,
}

/// Why bytes are no response head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseError {
    /// The head is too long, or has too many fields.
    TooLarge,
    /// The bytes are no head of HTTP/1.
    Malformed,
}

/// Parses a response from the bytes received so far, and passes its head to `judge`; `None` if more
/// must arrive first.
///
/// # Errors
///
/// Those of `judge` as well.
pub fn parse<T>(
    bytes: &[u8],
    head_bytes_max: usize,
    judge: impl FnOnce(&Head<'_>) -> Result<T, ResponseError>,
) -> Result<Option<T>, ResponseError> {
    let bytes = &bytes[..bytes.len().min(head_bytes_max)];
    let mut fields = [const { MaybeUninit::uninit() }; HEADER_COUNT_MAX];
    let mut head = httparse::Response::new(&mut []);
    let mut parser = httparse::ParserConfig::default();
    // A proxy removes them, where a server refuses a request with them (RFC 9112 §5.1).
    parser.allow_spaces_after_header_name_in_responses(true);
    match parser.parse_response_with_uninit_headers(&mut head, bytes, &mut fields) {
        Ok(httparse::Status::Partial) if bytes.len() == head_bytes_max => {
            Err(ResponseError::TooLarge)
        }
        Ok(httparse::Status::Partial) => Ok(None),
        Err(httparse::Error::TooManyHeaders) => Err(ResponseError::TooLarge),
        Err(_) => Err(ResponseError::Malformed),
        Ok(httparse::Status::Complete(head_bytes)) => {
            let (Some(status), Some(minor_version)) = (head.code, head.version) else {
                return Err(ResponseError::Malformed);
            };
            if status < 100 {
                return Err(ResponseError::Malformed);
            }
            judge(&Head {
                status,
                reason: head.reason.unwrap_or_default(),
                is_http_1_0: minor_version == 0,
                headers: head.headers,
                head_bytes,
            })
            .map(Some)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(text: &str) -> Result<Option<u16>, ResponseError> {
        parse(text.as_bytes(), 100, |head| Ok(head.status))
    }

    #[test]
    fn a_space_before_the_colon_is_no_part_of_the_name() {
        let text = b"HTTP/1.1 200 OK\r\nA \t: b\r\nContent-Length : 3\r\n\r\n";
        let fields = parse(text, 100, |head| {
            let field = |it: &Header<'_>| (it.name.to_owned(), it.value.to_vec());
            Ok(head.headers.iter().map(field).collect::<Vec<_>>())
        });
        let field = |name: &str, value: &[u8]| (name.to_owned(), value.to_vec());
        let expected = vec![field("A", b"b"), field("Content-Length", b"3")];
        assert_eq!(fields, Ok(Some(expected)));
    }

    #[test]
    fn heads_are_taken_whole_or_refused() {
        let text = "HTTP/1.1 204 No Content\r\nA: b\r\n\r\n";
        for end in 0..text.len() {
            assert_eq!(status(&text[..end]), Ok(None), "{end}");
        }
        assert_eq!(status(text), Ok(Some(204)));
        assert_eq!(status("HTTP/1.0 200\r\n\r\n"), Ok(Some(200)));
        let long = format!("HTTP/1.1 200 OK\r\nA: {}", "x".repeat(100));
        assert_eq!(status(&long), Err(ResponseError::TooLarge));
        for text in [
            "HTTP/2.0 200 OK\r\n\r\n",
            "HTTP/1.1 099 Low\r\n\r\n",
            "HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n",
            "HTTP/1.1 200 OK\r\nA b: c\r\n\r\n",
            "HTTP/1.1 200 OK\r\n : b\r\n\r\n",
            "SSH-2.0-x\r\n",
        ] {
            assert_eq!(status(text), Err(ResponseError::Malformed), "{text}");
        }
    }
}
