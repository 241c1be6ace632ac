//! A client's view of HTTP: responses come in order, and every byte of a body is the file's.

use std::collections::VecDeque;

use crate::content;
use crate::violation::{Check, Violation, ensure, violation};

/// What is expected of the response to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// 200 and all of the file.
    File { number: usize, size: u64 },
    /// 404.
    Missing,
    /// The server cannot open the file, or not read it to the end: an error, or a part of the file.
    Broken { number: usize },
}

/// Reads responses.
#[derive(Debug, Default)]
pub(crate) struct Responses {
    expected: VecDeque<Expected>,
    head: Vec<u8>,
    body: Option<Body>,
    pub(crate) completed: usize,
}

#[derive(Debug)]
struct Body {
    /// The file that it must be, if it is one.
    file: Option<usize>,
    offset: u64,
    len: u64,
}

/// No response head of this server is longer, in bytes.
const HEAD_BYTES_MAX: usize = 2_000;

impl Responses {
    /// Another request was sent.
    pub(crate) fn expect(&mut self, expected: Expected) {
        self.expected.push_back(expected);
    }

    /// Nothing more is expected.
    pub(crate) fn are_complete(&self) -> bool {
        self.expected.is_empty()
    }

    /// Bytes of the stream have arrived.
    pub(crate) fn take(&mut self, mut bytes: &[u8]) -> Check {
        while !bytes.is_empty() {
            bytes = match &mut self.body {
                None => self.take_head(bytes)?,
                Some(body) => {
                    let len = (body.len - body.offset).min(bytes.len() as u64) as usize;
                    let (now, later) = bytes.split_at(len);
                    body.check(now)?;
                    body.offset += len as u64;
                    later
                }
            };
            if self
                .body
                .as_ref()
                .is_some_and(|body| body.offset == body.len)
            {
                self.body = None;
                self.expected.pop_front();
                self.completed += 1;
            }
        }
        Ok(())
    }

    fn take_head<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], Violation> {
        for (&byte, at) in bytes.iter().zip(1..) {
            self.head.push(byte);
            if self.head.ends_with(b"\r\n\r\n") {
                let head = std::mem::take(&mut self.head);
                self.begin_body(&String::from_utf8_lossy(&head))?;
                return Ok(&bytes[at..]);
            }
        }
        ensure(self.head.len() <= HEAD_BYTES_MAX, || {
            format!(
                "a response head does not end: {:?}",
                String::from_utf8_lossy(&self.head)
            )
        })?;
        Ok(&[])
    }

    fn begin_body(&mut self, head: &str) -> Check {
        let status = head
            .strip_prefix("HTTP/1.1 ")
            .and_then(|rest| rest.get(..3)?.parse::<u16>().ok());
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("Content-Length: ")?.parse::<u64>().ok());
        let (Some(status), Some(len)) = (status, length) else {
            return violation(format!("no response head: {head:?}"));
        };
        let file = match (self.expected.front(), status) {
            (None, _) => return violation(format!("a response that nobody asked for: {head:?}")),
            (Some(Expected::File { number, size }), 200) if *size == len => Some(*number),
            (Some(Expected::Broken { number }), 200) => Some(*number),
            (Some(Expected::Missing), 404) | (Some(Expected::Broken { .. }), 500..) => None,
            (Some(expected), _) => {
                return violation(format!("{expected:?} was answered by {head:?}"));
            }
        };
        self.body = Some(Body {
            file,
            offset: 0,
            len,
        });
        Ok(())
    }
}

impl Body {
    fn check(&self, bytes: &[u8]) -> Check {
        let Some(file) = self.file else {
            return Ok(());
        };
        match content::first_difference(file, self.offset, bytes) {
            None => Ok(()),
            Some(at) => violation(format!(
                "wrong byte at {} of file f{file}",
                self.offset + at as u64
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(status: &str, body: &[u8]) -> Vec<u8> {
        let mut bytes = format!(
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        bytes.push_str("");
        [bytes.as_bytes(), body].concat()
    }

    fn file(number: usize, size: usize) -> Vec<u8> {
        let mut body = vec![0; size];
        content::fill(number, 0, &mut body);
        response("200 OK", &body)
    }

    #[test]
    fn responses_are_read_however_they_are_cut() {
        let stream = [
            file(3, 1000),
            response("404 Not Found", b"no"),
            file(4, 0),
            file(3, 1000),
        ]
        .concat();
        for cut in [1, 7, 100, stream.len()] {
            let mut responses = Responses::default();
            let whole = Expected::File {
                number: 3,
                size: 1000,
            };
            let empty = Expected::File { number: 4, size: 0 };
            for expected in [whole, Expected::Missing, empty, whole] {
                responses.expect(expected);
            }
            for piece in stream.chunks(cut) {
                responses.take(piece).unwrap();
            }
            assert!(responses.are_complete());
            assert_eq!(responses.completed, 4);
        }
    }

    #[test]
    fn a_wrong_byte_is_noticed() {
        let mut stream = file(3, 1000);
        *stream.last_mut().unwrap() ^= 1;
        let mut responses = Responses::default();
        responses.expect(Expected::File {
            number: 3,
            size: 1000,
        });
        let Violation(what) = responses.take(&stream).unwrap_err();
        assert_eq!(what, "wrong byte at 999 of file f3");
    }
}
