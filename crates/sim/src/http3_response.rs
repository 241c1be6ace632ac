//! An HTTP/3 response as its client reads it: HEADERS, then DATA; every byte of a body is compared
//! with the file.

use fakes::http3::{self, DATA, HEADERS};

use crate::file_versions::FileVersions;
use crate::responses::{Body, Expected};
use crate::violation::{Check, ensure, violation};

/// Longest header section of this server, in bytes.
const SECTION_BYTES_MAX: u64 = 2_000;

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct Http3Response {
    pub(crate) expected: Expected,
    /// The beginning of an incomplete frame, or of its type and length.
    begun: Vec<u8>,
    /// Bytes left of a DATA frame.
    data_left: u64,
    body: Option<Body>,
}

impl Http3Response {
    pub(crate) fn new(expected: Expected) -> Http3Response {
        Http3Response {
            expected,
            begun: Vec::new(),
            data_left: 0,
            body: None,
        }
    }

    /// Takes received bytes of the stream.
    pub(crate) fn take(&mut self, versions: &FileVersions, mut bytes: &[u8]) -> Check {
        while !bytes.is_empty() {
            if let (Some(body), 1..) = (&mut self.body, self.data_left) {
                let len = self.data_left.min(bytes.len() as u64);
                let (now, later) = bytes.split_at(len as usize);
                body.take(now)?;
                self.data_left -= len;
                bytes = later;
                continue;
            }
            self.begun.push(bytes[0]);
            bytes = &bytes[1..];
            let Some((kind, len, payload)) = frame(&self.begun) else {
                continue;
            };
            match (kind, &self.body) {
                (DATA, Some(body)) => {
                    ensure(len <= body.left(), || {
                        format!("{len} bytes of DATA, and {} are left", body.left())
                    })?;
                    self.data_left = len;
                    self.begun.clear();
                }
                (HEADERS, None) if len <= SECTION_BYTES_MAX => {
                    if payload.len() as u64 == len {
                        self.body = Some(begin(versions, self.expected, payload)?);
                        self.begun.clear();
                    }
                }
                _ => return violation(format!("a frame of type {kind} with {len} bytes")),
            }
        }
        Ok(())
    }

    /// Checks that the response is complete at the end of its stream.
    pub(crate) fn finish(self, versions: &FileVersions) -> Check {
        let left = self.body.as_ref().map(Body::left);
        ensure(left == Some(0) && self.begun.is_empty(), || {
            format!("{:?} ends, and {left:?} bytes are left", self.expected)
        })?;
        self.body.map_or(Ok(()), |body| body.finish(versions))
    }
}

/// Parses type and length of a frame, and returns them with the bytes that follow.
fn frame(bytes: &[u8]) -> Option<(u64, u64, &[u8])> {
    let mut rest = bytes;
    let mut number = || {
        let length = 1 << (rest.first()? >> 6);
        (rest.len() >= length).then(|| http3::take_varint(&mut rest))
    };
    let (kind, len) = (number()?, number()?);
    Some((kind, len, rest))
}

fn begin(
    versions: &FileVersions,
    expected: Expected,
    section: &[u8],
) -> Result<Body, crate::Violation> {
    let fields = http3::fields(section);
    let field = |wanted: &str| {
        let mut fields = fields.iter();
        let (_, value) = fields.find(|(name, _)| name == wanted)?;
        value.parse::<u64>().ok()
    };
    let head = format!("{fields:?}");
    match (field(":status"), field("content-length")) {
        (Some(status @ 100..1000), Some(len)) => {
            Body::begin(versions, expected, (status as u16, len), &head)
        }
        _ => violation(format!("no head of a response: {head}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content;
    use crate::scenario::{File, Trouble};

    /// File 0 has 1000 bytes.
    fn versions() -> FileVersions {
        FileVersions::new(&[File {
            size: 1000,
            trouble: Trouble::Nothing,
            settled: true,
        }])
    }

    fn response(len: &str, body: &[u8]) -> Vec<u8> {
        let head = http3::headers(&[(":status", "200"), ("content-length", len)]);
        [head, http3::frame(DATA, body)].concat()
    }

    fn content() -> Vec<u8> {
        let mut body = vec![0; 1000];
        content::fill(FileVersions::content(0, 0), 0, &mut body);
        body
    }

    fn read(stream: &[u8], cut: usize) -> Check {
        let versions = versions();
        let mut response = Http3Response::new(Expected::of(&versions, 0));
        for piece in stream.chunks(cut) {
            response.take(&versions, piece)?;
        }
        response.finish(&versions)
    }

    #[test]
    fn a_response_is_read_however_it_is_cut() {
        let stream = response("1000", &content());
        for cut in [1, 7, 100, stream.len()] {
            assert_eq!(read(&stream, cut), Ok(()));
        }
    }

    #[test]
    fn what_is_wrong_with_a_response_is_noticed() {
        let mut wrong = content();
        wrong[999] ^= 1;
        assert!(read(&response("1000", &wrong), 100).is_err(), "a byte");
        assert!(read(&response("999", &content()), 100).is_err(), "a length");
        let whole = response("1000", &content());
        assert!(read(&whole[..500], 100).is_err(), "the end");
        let more = [&whole[..], &[0, 1, 0]].concat();
        assert!(read(&more, 100).is_err(), "a byte too many");
        assert!(read(&whole[30..], 100).is_err(), "no head");
    }
}
