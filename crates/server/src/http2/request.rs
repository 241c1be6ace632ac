//! Turns a field block into a request or a refusal (RFC 9113 §8).

use crate::config::Config;
use crate::exchange::field_section::{Problem, Read, Scratch, section_bytes_max};
use crate::exchange::version::Version;
use crate::http2::head::Http2;
use http2::field::{self, FIELD_BYTES};
use http2::hpack::decode::{Decoder, Undecodable};

/// Reads the field block of a request.
///
/// # Errors
/// Why there is no request to answer. `scratch` then has the partial head.
pub(crate) fn read(
    decoder: &mut Decoder,
    block: &[u8],
    config: &Config,
    scratch: &mut Scratch,
) -> Result<Read<Http2>, Problem> {
    let bytes_max = section_bytes_max(config);
    let (mut reader, strings) = scratch.reader(Http2::NAME);
    let mut section_bytes = 0;
    let mut problem = None;
    // The dynamic table takes all of the block, also of a request that is refused.
    let decoded = decoder.decode(block, strings, |name, value| {
        section_bytes += name.len() + value.len() + FIELD_BYTES;
        if problem.is_some() {
            return;
        }
        problem = match section_bytes > bytes_max {
            true => Some(reader.too_large(config)),
            false => field::check_ends(value)
                .map_err(Problem::from)
                .and_then(|()| reader.take(name, value, config))
                .err(),
        };
    });
    match (decoded, problem) {
        (Err(Undecodable), _) => Err(Problem::Undecodable),
        (Ok(()), Some(problem)) => Err(problem),
        (Ok(()), None) => reader.end(config, Http2),
    }
}

/// Checks the field block of trailers, which are ignored (RFC 9113 §8.1).
///
/// # Errors
/// Why the trailers are malformed.
pub(crate) fn check_trailers(
    decoder: &mut Decoder,
    block: &[u8],
    scratch: &mut Scratch,
) -> Result<(), Problem> {
    let mut problem = None;
    let decoded = decoder.decode(block, &mut scratch.strings, |name, value| {
        let checked = field::check(name, value).and_then(|()| field::check_ends(value));
        problem = problem.or(checked.err());
    });
    match (decoded, problem) {
        (Err(Undecodable), _) => Err(Problem::Undecodable),
        (Ok(()), Some(field::Invalid)) => Err(Problem::Malformed),
        (Ok(()), None) => Ok(()),
    }
}
