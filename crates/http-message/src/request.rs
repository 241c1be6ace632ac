//! From bytes to a request head, or to a refusal (RFC 9112 §2, §3).
//!
//! The result depends on the bytes alone, not on how they were split in transit.

use std::mem::MaybeUninit;

use http::StatusCode;
use httparse::Header;

/// Most header fields in a head. Beyond: 431.
pub const HEADER_COUNT_MAX: usize = 100;

/// Limits on the length of heads.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest head, in bytes. Beyond: 431.
    pub head_bytes_max: usize,
    /// Longest request line, in bytes. Beyond: 414.
    pub line_bytes_max: usize,
}

/// The result of parsing the bytes received so far.
#[derive(Debug, PartialEq, Eq)]
pub enum Parsed<T> {
    /// Part of a head; more may come.
    Partial,
    /// A head whose framing is beyond doubt.
    Complete(T),
    /// No request, or one whose end is in doubt: answer with the status, then close.
    Broken(StatusCode),
}

/// A parsed head.
#[derive(Debug)]
pub struct Head<'a> {
    /// The method.
    pub method: &'a str,
    /// The target.
    pub target: &'a str,
    /// Offset of the target.
    pub target_start: usize,
    /// The client speaks HTTP/1.0.
    pub is_http_1_0: bool,
    /// The fields.
    pub headers: &'a [Header<'a>],
    /// Length of the head, in bytes.
    pub head_bytes: usize,
}

/// Parses a request from the bytes received so far, at most `limits.head_bytes_max`, and passes its
/// head to `judge`, whose error is a status after which the connection must end.
pub fn parse<T>(
    bytes: &[u8],
    limits: Limits,
    judge: impl FnOnce(&Head<'_>) -> Result<T, StatusCode>,
) -> Parsed<T> {
    let bytes = &bytes[..bytes.len().min(limits.head_bytes_max)];
    let line_start = bytes.len() - without_empty_lines(bytes).len();
    let line = &bytes[line_start..];
    let line = &line[..line.len().min(limits.line_bytes_max)];
    let line_end = line.iter().position(|&byte| byte == b'\n');
    let line_too_long = line_end.is_none() && line.len() == limits.line_bytes_max;
    // Bytes beyond an overlong line are ignored, or the result would depend on how many have
    // arrived.
    let considered = if line_too_long {
        &bytes[..line_start + line.len()]
    } else {
        bytes
    };

    let mut fields = [const { MaybeUninit::uninit() }; HEADER_COUNT_MAX];
    let mut head = httparse::Request::new(&mut []);
    match (
        head.parse_with_uninit_headers(considered, &mut fields),
        line_end,
    ) {
        (Ok(httparse::Status::Complete(head_bytes)), _) => {
            match complete(&head, line_start, head_bytes).and_then(|head| judge(&head)) {
                Ok(request) => Parsed::Complete(request),
                Err(status) => Parsed::Broken(status),
            }
        }
        (Err(httparse::Error::Version), Some(end)) => match minor_version_at(&line[..end]) {
            // A later minor version is answered as the highest one known (RFC 9110 §2.5).
            Some(at) => {
                let mut as_1_1 = considered.to_vec();
                as_1_1[line_start + at] = b'1';
                parse(&as_1_1, limits, judge)
            }
            None => Parsed::Broken(version_refusal(&line[..end])),
        },
        // Without the line's end an unknown version, which `httparse` refuses at once, cannot be
        // read yet.
        (Ok(httparse::Status::Partial) | Err(httparse::Error::Version), _) => {
            if line_too_long {
                Parsed::Broken(StatusCode::URI_TOO_LONG)
            } else if bytes.len() == limits.head_bytes_max {
                Parsed::Broken(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE)
            } else {
                Parsed::Partial
            }
        }
        (Err(httparse::Error::TooManyHeaders), _) => {
            Parsed::Broken(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE)
        }
        (Err(_), _) => Parsed::Broken(StatusCode::BAD_REQUEST),
    }
}

fn complete<'a>(
    head: &'a httparse::Request<'_, 'a>,
    line_start: usize,
    head_bytes: usize,
) -> Result<Head<'a>, StatusCode> {
    let (Some(method), Some(target), Some(minor_version)) = (head.method, head.path, head.version)
    else {
        return Err(StatusCode::BAD_REQUEST);
    };
    Ok(Head {
        method,
        target,
        // `httparse` takes exactly one space after the method.
        target_start: line_start + method.len() + 1,
        is_http_1_0: minor_version == 0,
        headers: head.headers,
        head_bytes,
    })
}

/// The bytes after the empty lines that may precede a request (RFC 9112 §2.2).
pub fn without_empty_lines(mut bytes: &[u8]) -> &[u8] {
    while let Some(rest) = bytes
        .strip_prefix(b"\r\n")
        .or_else(|| bytes.strip_prefix(b"\n"))
    {
        bytes = rest;
    }
    bytes
}

/// Returns the place of the minor version in a request line that asks for HTTP/1.2 or later.
fn minor_version_at(line: &[u8]) -> Option<usize> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let (minor, before) = line.split_last()?;
    let is_later = before.ends_with(b" HTTP/1.") && (b'2'..=b'9').contains(minor);
    is_later.then_some(before.len())
}

/// Returns 505 for an unsupported version (RFC 9112 §2.3), 400 for an invalid one.
fn version_refusal(line: &[u8]) -> StatusCode {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    match line.rsplit(|&byte| byte == b' ').next() {
        Some([b'H', b'T', b'T', b'P', b'/', major, b'.', minor])
            if major.is_ascii_digit() && minor.is_ascii_digit() =>
        {
            StatusCode::HTTP_VERSION_NOT_SUPPORTED
        }
        _ => StatusCode::BAD_REQUEST,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        head_bytes_max: 200,
        line_bytes_max: 100,
    };

    #[test]
    fn a_verdict_does_not_hang_on_how_much_has_arrived() {
        let text = b"\r\nGET /a HTTP/1.7\r\nHost: h\r\n\r\nrest";
        let parse = |bytes: &[u8]| {
            parse(bytes, LIMITS, |head| {
                let target = text[head.target_start..][..head.target.len()].to_vec();
                Ok((head.head_bytes, target, head.headers.len()))
            })
        };
        let whole = Parsed::Complete((30, b"/a".to_vec(), 1));
        for end in 0..30 {
            assert_eq!(parse(&text[..end]), Parsed::Partial, "{end}");
        }
        assert_eq!(parse(&text[..30]), whole);
        assert_eq!(parse(text), whole);
        let refusal = |line: &str| match parse(line.as_bytes()) {
            Parsed::Broken(status) => status.as_u16(),
            other => panic!("{line}: {other:?}"),
        };
        assert_eq!(refusal("GET / HTTP/2.0\r\n"), 505);
        assert_eq!(refusal("GET /\r\n"), 400);
        assert_eq!(refusal(&"x".repeat(100)), 414);
        assert_eq!(refusal(&"\r\n".repeat(100)), 431);
    }
}
