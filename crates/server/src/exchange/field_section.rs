//! Turns a field section into a request or a refusal (RFC 9113 §8, RFC 9114 §4).
//!
//! The request is rewritten as HTTP/1.1 lines of text and handled as such, so lookups of fields
//! work the same. No name or value contains line ends; such a request is malformed.

use std::ops::Range;

use http::StatusCode;
use http_message::authority;
use http_message::framing::list;
use http_message::number;
use http_message::request::HEADER_COUNT_MAX;
use http2::field::{self, FIELD_BYTES};

use crate::config::Config;
use crate::exchange::request::{Expectation, Request, method_refusal};
use crate::exchange::version::Version;
use crate::semantics::fields::{Field, Present};
use crate::semantics::method::Method;
use crate::semantics::scheme::Scheme;
use http2::priority::Priority;

/// Most pseudo-header fields in a request.
const PSEUDO_MAX: usize = 4;

/// Buffers shared by all connections.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// The head of the last request read, as lines of text.
    pub(crate) head: Vec<u8>,
    pseudo: Vec<u8>,
    /// Decoded strings.
    pub(crate) strings: Vec<u8>,
}

impl Scratch {
    /// A reader of a request of this version, and the buffer of decoded strings.
    pub(crate) fn reader(&mut self, version: &'static str) -> (Reader<'_>, &mut Vec<u8>) {
        let reader = Reader::new(version, &mut self.head, &mut self.pseudo);
        (reader, &mut self.strings)
    }
}

/// A request, and its fields for the stream.
#[derive(Debug)]
pub(crate) struct Read<V> {
    pub(crate) request: Request<V>,
    /// `Content-Length`.
    pub(crate) content_bytes: Option<u64>,
    /// `Priority`, if present.
    pub(crate) priority: Option<Priority>,
}

/// Why there is no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Problem {
    /// The section cannot be decoded, for the whole connection (RFC 9113 §4.3, RFC 9204 §2.2).
    Undecodable,
    /// The message is malformed (RFC 9113 §8.1.1, RFC 9114 §4.1.2).
    Malformed,
    /// The request is answered with this status.
    Refused(StatusCode),
}

impl From<field::Invalid> for Problem {
    fn from(_: field::Invalid) -> Self {
        Problem::Malformed
    }
}

/// Largest field section, as SETTINGS_MAX_HEADER_LIST_SIZE (RFC 9113 §6.5.2) and
/// SETTINGS_MAX_FIELD_SECTION_SIZE (RFC 9114 §4.2.2) count: large enough for every head that
/// HTTP/1.1 would accept.
pub(crate) fn section_bytes_max(config: &Config) -> usize {
    let fields_max = HEADER_COUNT_MAX + PSEUDO_MAX;
    config
        .head_bytes_max
        .saturating_add(fields_max * FIELD_BYTES)
}

/// Bytes of a line besides name and value.
const LINE_BYTES: usize = ": \n".len();

/// A partly read request.
pub(crate) struct Reader<'a> {
    /// The name of the version in the request line.
    version: &'static str,
    head: &'a mut Vec<u8>,
    /// Values of pseudo-header fields; the following are ranges in it.
    pseudo: &'a mut Vec<u8>,
    method: Option<Range<usize>>,
    scheme: Option<Range<usize>>,
    authority: Option<Range<usize>>,
    path: Option<Range<usize>>,
    /// The target's place in the head, once the head is begun.
    target: Option<Range<usize>>,
    fields: usize,
    host: bool,
    present: Present,
    expectation: Expectation,
    content_bytes: Option<u64>,
    priority: Option<Priority>,
    /// The status to answer with, unless the request is malformed.
    refusal: Option<StatusCode>,
}

impl<'a> Reader<'a> {
    fn new(version: &'static str, head: &'a mut Vec<u8>, pseudo: &'a mut Vec<u8>) -> Self {
        head.clear();
        pseudo.clear();
        Reader {
            version,
            head,
            pseudo,
            method: None,
            scheme: None,
            authority: None,
            path: None,
            target: None,
            fields: 0,
            host: false,
            present: Present::default(),
            expectation: Expectation::None,
            content_bytes: None,
            priority: None,
            refusal: None,
        }
    }

    /// Takes the next field.
    ///
    /// # Errors
    /// Why the request is malformed, or which status refuses it.
    pub(crate) fn take(
        &mut self,
        name: &[u8],
        value: &[u8],
        config: &Config,
    ) -> Result<(), Problem> {
        if name.starts_with(b":") {
            return self.take_pseudo(name, value);
        }
        if self.target.is_none() {
            self.begin(config)?;
        }
        field::check(name, value)?;
        let value = value.trim_ascii();
        self.fields += 1;
        let line_bytes = name.len() + value.len() + LINE_BYTES;
        let has_room = self.head.len() + line_bytes <= config.head_bytes_max;
        if self.fields > HEADER_COUNT_MAX || !has_room {
            let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
            return Err(Problem::Refused(status));
        }
        match name {
            _ if field::is_connection_specific(name, value) => return Err(Problem::Malformed),
            b"host" => {
                if let Some(authority) = &self.authority {
                    // RFC 9113 §8.3.1, RFC 9114 §4.3.1: both must be equal, and `Host` is written
                    // already.
                    if self.pseudo[authority.clone()] != *value {
                        return Err(Problem::Malformed);
                    }
                    return Ok(());
                }
                if self.host || value.is_empty() {
                    return Err(Problem::Malformed);
                }
                self.host(value);
                return Ok(());
            }
            b"content-length" => {
                let length = number::saturating(value).ok_or(Problem::Malformed)?;
                if self.content_bytes.replace(length).is_some() {
                    return Err(Problem::Malformed);
                }
            }
            b"expect" => list(value).for_each(|member| self.expectation.note(member)),
            b"priority" => self.priority = Some(Priority::parse(value)),
            _ => {}
        }
        // Field names are ASCII.
        if let Some(field) = str::from_utf8(name).ok().and_then(Field::named) {
            self.present.insert(field);
        }
        self.line(name, value);
        Ok(())
    }

    /// RFC 9113 §8.3, RFC 9114 §4.3: each appears once, before all other fields.
    fn take_pseudo(&mut self, name: &[u8], value: &[u8]) -> Result<(), Problem> {
        if self.target.is_some() {
            return Err(Problem::Malformed);
        }
        let place = match name {
            b":method" => &mut self.method,
            b":scheme" => &mut self.scheme,
            b":authority" => &mut self.authority,
            b":path" => &mut self.path,
            _ => return Err(Problem::Malformed),
        };
        let start = self.pseudo.len();
        self.pseudo.extend_from_slice(value);
        match place.replace(start..self.pseudo.len()) {
            Some(_) => Err(Problem::Malformed),
            None => Ok(()),
        }
    }

    /// After the pseudo-header fields: writes the request line and `Host`.
    fn begin(&mut self, config: &Config) -> Result<(), Problem> {
        let method = self.method.clone().ok_or(Problem::Malformed)?;
        let method = &self.pseudo[method];
        if method.is_empty() || !method.iter().all(|&byte| field::is_token(byte)) {
            return Err(Problem::Malformed);
        }
        let target = if method == b"CONNECT" {
            // RFC 9113 §8.5, RFC 9114 §4.4
            if self.scheme.is_some() || self.path.is_some() {
                return Err(Problem::Malformed);
            }
            self.authority.clone()
        } else {
            let scheme = self.scheme.clone().ok_or(Problem::Malformed)?;
            let is_known = |known: &[u8]| self.pseudo[scheme.clone()].eq_ignore_ascii_case(known);
            if !is_known(b"https") && !is_known(b"http") {
                self.refusal = Some(StatusCode::BAD_REQUEST);
            }
            self.path.clone()
        };
        let target = &self.pseudo[target.ok_or(Problem::Malformed)?];
        let is_asterisk = method == b"OPTIONS" && target == b"*";
        let is_target = method == b"CONNECT" || target.starts_with(b"/") || is_asterisk;
        let has_only_visible = target.iter().all(|&byte| byte > b' ' && byte != 0x7f);
        if !is_target || !has_only_visible || str::from_utf8(target).is_err() {
            return Err(Problem::Malformed);
        }
        // The length that it would have in HTTP/1.1.
        let line_bytes = method.len() + target.len() + "  HTTP/1.1\r\n".len();
        if line_bytes > config.request_line_bytes_max {
            self.refusal = Some(StatusCode::URI_TOO_LONG);
        }
        self.head.extend_from_slice(method);
        self.head.push(b' ');
        let start = self.head.len();
        self.head.extend_from_slice(target);
        self.target = Some(start..self.head.len());
        self.head.push(b' ');
        self.head.extend_from_slice(self.version.as_bytes());
        self.head.push(b'\n');
        if let Some(authority) = self.authority.clone() {
            if authority.is_empty() {
                return Err(Problem::Malformed);
            }
            let authority = std::mem::take(self.pseudo);
            let value = &authority[self.authority.clone().unwrap_or_default()];
            field::check_value(value)?;
            self.host(value);
            *self.pseudo = authority;
        }
        Ok(())
    }

    /// Takes the host name of the request.
    fn host(&mut self, value: &[u8]) {
        if !authority::is_valid(value) {
            self.refusal = Some(StatusCode::BAD_REQUEST);
        }
        self.host = true;
        self.present.insert(Field::Host);
        self.line(b"host", value);
    }

    fn line(&mut self, name: &[u8], value: &[u8]) {
        for piece in [name, b": ", value, b"\n"] {
            self.head.extend_from_slice(piece);
        }
    }

    /// Ends the section.
    ///
    /// # Errors
    /// As [`Reader::take`].
    pub(crate) fn end<V: Version>(
        mut self,
        config: &Config,
        version: V,
    ) -> Result<Read<V>, Problem> {
        if self.target.is_none() {
            self.begin(config)?;
        }
        let method = &self.pseudo[self.method.clone().unwrap_or_default()];
        if !self.host {
            return Err(Problem::Malformed);
        }
        if let Some(status) = self.refusal {
            return Err(Problem::Refused(status));
        }
        // The request line and `Host` count as well.
        if self.head.len() > config.head_bytes_max {
            let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
            return Err(Problem::Refused(status));
        }
        if self.expectation == Expectation::Unknown {
            return Err(Problem::Refused(StatusCode::EXPECTATION_FAILED));
        }
        let is_too_long = self.content_bytes > Some(config.body_bytes_max);
        let too_long = is_too_long.then_some(StatusCode::PAYLOAD_TOO_LARGE);
        Ok(Read {
            request: Request {
                head_bytes: self.head.len(),
                target: self.target.clone().unwrap_or_default(),
                method: Method::of(method),
                version,
                refusal: method_refusal(method).or(too_long),
                present: self.present,
                place: None,
                is_negotiated: false,
                scheme: Scheme::Http,
                varies: false,
                fallbacks: 0,
                retry_after_s: None,
                rewritten: None,
            },
            content_bytes: self.content_bytes,
            priority: self.priority,
        })
    }

    /// The status of a section that exceeds the limit.
    pub(crate) fn too_large(&mut self, config: &Config) -> Problem {
        if self.target.is_none() {
            // Even the pseudo-header fields may be incomplete.
            let _ = self.begin(config);
        }
        let status = self.refusal;
        Problem::Refused(status.unwrap_or(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE))
    }
}
