//! Turns a field section of QPACK into a request or a refusal (RFC 9114 §4).

use crate::config::Config;
use crate::exchange::field_section::{Problem, Read, Scratch, section_bytes_max};
use crate::exchange::version::Version;
use crate::http3::head::Http3;
use crate::http3::qpack::decode::{Failure, decode};
use http2::field;

/// Reads the field section of a request, or its beginning if `is_cut`; `scratch` then has the
/// partial head.
///
/// # Errors
/// Why there is no request to answer.
pub(crate) fn read(
    section: &[u8],
    is_cut: bool,
    config: &Config,
    scratch: &mut Scratch,
) -> Result<Read<Http3>, Problem> {
    let (mut reader, strings) = scratch.reader(Http3::NAME);
    let size_bytes_max = section_bytes_max(config);
    let result = decode(section, size_bytes_max, strings, |name, value| {
        reader.take(name, value, config)
    });
    match result {
        Ok(()) if !is_cut => reader.end(config, Http3),
        Ok(()) | Err(Failure::TooLarge) => Err(reader.too_large(config)),
        Err(Failure::Truncated) if is_cut => Err(reader.too_large(config)),
        Err(Failure::Truncated | Failure::Undecodable) => Err(Problem::Undecodable),
        Err(Failure::Refused(problem)) => Err(problem),
    }
}

/// Checks the field section of trailers, which are ignored (RFC 9114 §4.1).
///
/// # Errors
/// The problem with the trailers.
pub(crate) fn check_trailers(
    section: &[u8],
    config: &Config,
    scratch: &mut Scratch,
) -> Result<(), Problem> {
    let strings = &mut scratch.strings;
    let result = decode(
        section,
        section_bytes_max(config),
        strings,
        |name, value| Ok(field::check(name, value)?),
    );
    match result {
        // Trailers are skipped either way.
        Ok(()) | Err(Failure::TooLarge) => Ok(()),
        Err(Failure::Truncated | Failure::Undecodable) => Err(Problem::Undecodable),
        Err(Failure::Refused(problem)) => Err(problem),
    }
}
