//! A client's view of HTTP: responses come in order, and every byte of a body is compared with the
//! file.

use std::collections::VecDeque;

use crate::content;
use crate::disk::path_of;
use crate::file_versions::FileVersions;
use crate::scenario::{DIRECTORY, Trouble};
use crate::violation::{Check, Violation, ensure, violation};

/// Expected response to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// 200 and the whole file: the version at the time of the request, or a later one.
    File { number: usize, version: u32 },
    /// 404.
    Missing,
    /// 200 and a listing of the directory of all files: each file once, with a size that it has
    /// had.
    Listing,
    /// The server cannot open the file, or not read it to the end: an error, or part of the file.
    Broken { number: usize },
    /// 200 and the number of bytes of the file, or a part: the content is not predictable.
    Scribbled { number: usize },
}

impl Expected {
    /// Returns the response expected to a request that is sent now. Numbers beyond the files stand
    /// for the directory and a missing file.
    pub(crate) fn of(versions: &FileVersions, number: usize) -> Expected {
        let version = versions.version(number);
        match versions.file(number).map(|file| file.trouble) {
            None if number == versions.len() + DIRECTORY => Expected::Listing,
            None => Expected::Missing,
            Some(Trouble::Nothing) => Expected::File { number, version },
            Some(Trouble::Scribbled) => Expected::Scribbled { number },
            Some(_) => Expected::Broken { number },
        }
    }

    /// Reports whether a complete response must come, if the file stays readable.
    pub(crate) fn is_sound(self) -> bool {
        matches!(
            self,
            Expected::File { .. } | Expected::Missing | Expected::Listing
        )
    }

    /// Returns the path of the request, and its Accept header, if any.
    pub(crate) fn request(self, number: usize) -> (String, Option<&'static str>) {
        match self {
            Expected::Listing => ("/".to_owned(), Some("application/json")),
            _ => (format!("/{}", path_of(number)), None),
        }
    }
}

/// Parses a connection's responses.
#[derive(Debug)]
pub(crate) struct Responses {
    versions: FileVersions,
    expected: VecDeque<Expected>,
    head: Vec<u8>,
    body: Option<Body>,
    pub(crate) completed: usize,
}

/// The body of a response, of which every byte is compared.
#[derive(Debug)]
pub(crate) struct Body {
    /// Versions that the bytes so far match, if the body must be a file's.
    versions: Option<Vec<usize>>,
    /// Received bytes of a listing.
    listing: Option<Vec<u8>>,
    offset: u64,
    len: u64,
}

/// Longest response head of this server, in bytes.
const HEAD_BYTES_MAX: usize = 2_000;

impl Responses {
    /// Expects contents of these files.
    pub(crate) fn new(versions: FileVersions) -> Responses {
        Responses {
            versions,
            expected: VecDeque::new(),
            head: Vec::new(),
            body: None,
            completed: 0,
        }
    }

    /// Expects the response to another request.
    pub(crate) fn expect(&mut self, expected: Expected) {
        self.expected.push_back(expected);
    }

    /// Reports whether all expected responses have come.
    pub(crate) fn are_complete(&self) -> bool {
        self.expected.is_empty()
    }

    /// Reports whether a response has begun and is incomplete.
    pub(crate) fn are_amid_one(&self) -> bool {
        self.body.is_some() || !self.head.is_empty()
    }

    /// The response ends before its end.
    pub(crate) fn cut_short(&mut self) {
        self.head.clear();
        self.body = None;
        self.expected.pop_front();
        self.completed += 1;
    }

    /// Takes received bytes of the stream.
    pub(crate) fn take(&mut self, mut bytes: &[u8]) -> Check {
        while !bytes.is_empty() {
            bytes = match &mut self.body {
                None => self.take_head(bytes)?,
                Some(body) => {
                    let len = body.left().min(bytes.len() as u64) as usize;
                    let (now, later) = bytes.split_at(len);
                    body.take(now)?;
                    later
                }
            };
            if let Some(body) = self.body.take_if(|body| body.left() == 0) {
                body.finish(&self.versions)?;
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
        let Some(expected) = self.expected.front() else {
            return violation(format!("a response without a request: {head:?}"));
        };
        self.body = Some(Body::begin(&self.versions, *expected, (status, len), head)?);
        Ok(())
    }
}

impl Body {
    /// Begins the body after a head with this status and content length; `head` is for people.
    pub(crate) fn begin(
        versions: &FileVersions,
        expected: Expected,
        (status, len): (u16, u64),
        head: &str,
    ) -> Result<Body, Violation> {
        let as_long = |number, first| -> Vec<usize> {
            (first..=versions.version(number))
                .filter(|&version| versions.size(number, version) == len)
                .map(|version| FileVersions::content(number, version))
                .collect()
        };
        let those = match (expected, status) {
            (Expected::File { number, version }, 200) => Some(as_long(number, version)),
            (Expected::Broken { number }, 200) => Some(as_long(number, 0)),
            (Expected::Scribbled { number }, 200) if versions.size(number, 0) == len => None,
            (Expected::Missing, 404) | (Expected::Broken { .. }, 500..) => None,
            (Expected::Listing, 200) => None,
            _ => Some(Vec::new()),
        };
        if those.as_ref().is_some_and(Vec::is_empty) {
            return violation(format!("{expected:?} was answered by {head:?}"));
        }
        Ok(Body {
            versions: those,
            listing: (expected == Expected::Listing).then(Vec::new),
            offset: 0,
            len,
        })
    }

    /// Returns the number of bytes that are still to come.
    pub(crate) fn left(&self) -> u64 {
        self.len - self.offset
    }

    /// Takes received bytes of the body, at most [`Body::left`].
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Check {
        if let Some(listing) = &mut self.listing {
            listing.extend_from_slice(bytes);
        }
        self.check(bytes)?;
        self.offset += bytes.len() as u64;
        Ok(())
    }

    /// Checks the complete body.
    pub(crate) fn finish(self, versions: &FileVersions) -> Check {
        match self.listing {
            Some(listing) => check_listing(versions, &String::from_utf8_lossy(&listing)),
            None => Ok(()),
        }
    }

    /// Checks that all bytes are of one version.
    fn check(&mut self, bytes: &[u8]) -> Check {
        let Some(versions) = &mut self.versions else {
            return Ok(());
        };
        let mut furthest = None;
        versions.retain(|&version| {
            let differs_at = content::first_difference(version, self.offset, bytes);
            furthest = furthest.max(differs_at.map(|at| (at, version)));
            differs_at.is_none()
        });
        match furthest {
            Some((at, version)) if versions.is_empty() => violation(format!(
                "wrong byte at {} of {}",
                self.offset + at as u64,
                FileVersions::describe(version)
            )),
            _ => Ok(()),
        }
    }
}

/// Checks a listing with one entry per line.
fn check_listing(versions: &FileVersions, listing: &str) -> Check {
    let wrong = || violation(format!("no listing of the files that there are: {listing}"));
    let mut sizes = vec![None; versions.len()];
    for line in listing.lines().filter(|line| !matches!(*line, "[" | "]")) {
        let name = line.strip_prefix("{ \"name\":\"f");
        let number = name.and_then(|rest| rest.split('"').next()?.parse::<usize>().ok());
        let size = line.split("\"size\":").nth(1);
        let size = size.and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok());
        let slot = number.and_then(|number| sizes.get_mut(number));
        let (Some(slot @ None), Some(_)) = (slot, size) else {
            return wrong();
        };
        *slot = size;
    }
    let had = |(number, size): (usize, &Option<u64>)| {
        let mut all = 0..=versions.version(number);
        all.any(|version| Some(versions.size(number, version)) == *size)
    };
    if sizes.iter().enumerate().all(had) {
        Ok(())
    } else {
        wrong()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{File, Replacing};

    fn response(status: &str, body: &[u8]) -> Vec<u8> {
        let mut bytes = format!(
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        bytes.push_str("");
        [bytes.as_bytes(), body].concat()
    }

    fn file(number: usize, size: usize) -> Vec<u8> {
        version(number, 0, size)
    }

    fn version(number: usize, version: u32, size: usize) -> Vec<u8> {
        let mut body = vec![0; size];
        content::fill(FileVersions::content(number, version), 0, &mut body);
        response("200 OK", &body)
    }

    /// File 3 has 1000 bytes, file 4 has none.
    fn versions() -> FileVersions {
        let file = |size| File {
            size,
            trouble: Trouble::Nothing,
            settled: true,
        };
        FileVersions::new(&[7, 7, 7, 1000, 0].map(file))
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
            let mut responses = Responses::new(versions());
            let whole = Expected::File {
                number: 3,
                version: 0,
            };
            let empty = Expected::File {
                number: 4,
                version: 0,
            };
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
    fn a_listing_has_each_file_once() {
        let entry = |number, size| {
            format!("{{ \"name\":\"f{number}\", \"type\":\"file\", \"size\":{size} }}")
        };
        let all = [(0, 7), (1, 7), (2, 7), (3, 1000), (4, 0)];
        let answered = |entries: &[(usize, u64)]| {
            let entries: Vec<_> = entries
                .iter()
                .map(|&(number, size)| entry(number, size))
                .collect();
            let body = format!("[\n{}\n]\n", entries.join(",\n"));
            let mut responses = Responses::new(versions());
            responses.expect(Expected::Listing);
            let mut pieces = response("200 OK", body.as_bytes());
            let rest = pieces.split_off(50);
            responses.take(&pieces)?;
            responses.take(&rest)
        };
        assert_eq!(answered(&all), Ok(()));
        assert!(answered(&all[1..]).is_err(), "one is missing");
        assert!(
            answered(&[&all[..], &all[..1]].concat()).is_err(),
            "one is there twice"
        );
        assert!(
            answered(&[&all[1..], &[(0, 8)]].concat()).is_err(),
            "another size"
        );
        assert!(
            answered(&[&all[1..], &[(9, 7)]].concat()).is_err(),
            "another file"
        );
    }

    #[test]
    fn a_wrong_byte_is_noticed() {
        let mut stream = file(3, 1000);
        *stream.last_mut().unwrap() ^= 1;
        let mut responses = Responses::new(versions());
        responses.expect(Expected::File {
            number: 3,
            version: 0,
        });
        let Violation(what) = responses.take(&stream).unwrap_err();
        assert_eq!(what, "wrong byte at 999 of file f3, version 0");
    }

    #[test]
    fn a_response_is_of_one_version_that_was_there_since_it_was_asked_for() {
        let versions = versions();
        let ask = |asked| {
            let mut responses = Responses::new(versions.clone());
            responses.expect(Expected::File {
                number: 3,
                version: asked,
            });
            responses
        };
        let [old, new] = [0, 1].map(|number| version(3, number, 1000));
        assert!(ask(0).take(&new).is_err(), "not there yet");
        versions.replace(3, Replacing::Renamed);
        assert_eq!(ask(0).take(&old), Ok(()));
        assert_eq!(ask(0).take(&new), Ok(()));
        assert!(ask(1).take(&old).is_err(), "replaced before");
        let mixed = [&old[..500], &new[500..]].concat();
        assert!(ask(0).take(&mixed).is_err());
    }
}
