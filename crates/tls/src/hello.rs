//! Checks of a ClientHello that rustls does not make.

use crate::error::Error;

const CLIENT_HELLO: u8 = 1;
const TLS12: u16 = 0x0303;
const TLS13: u16 = 0x0304;
const FALLBACK_SCSV: [u8; 2] = [0x56, 0x00];
const EARLY_DATA: [u8; 2] = [0, 42];
const SUPPORTED_VERSIONS: [u8; 2] = [0, 43];

/// True if these first bytes of the handshake are a whole ClientHello, or can become none.
pub(crate) fn is_whole(content: &[u8]) -> bool {
    match content {
        &[CLIENT_HELLO, high, middle, low, ref rest @ ..] => {
            let length = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
            rest.len() >= length
        }
        [] | [CLIENT_HELLO, ..] => false,
        _ => true,
    }
}

/// Checks the versions of a ClientHello, if the content is a complete one. Malformed content is
/// left to rustls.
///
/// # Errors
/// [`Error::OldVersion`] if the client's best version is older than TLS 1.2: rustls first reports
/// missing extensions, which clients of that age do not send. [`Error::InappropriateFallback`] if
/// the server `has_tls13` and the client has fallen back from a version above TLS 1.2
/// (TLS_FALLBACK_SCSV, RFC 7507 §3): rustls leaves this to the downgrade protection of TLS 1.3,
/// which works only for clients that try TLS 1.3.
pub(crate) fn check(content: &[u8], has_tls13: bool) -> Result<(), Error> {
    let Some((version, has_fallen_back)) = parse(content) else {
        return Ok(());
    };
    match version {
        TLS12 if has_tls13 && has_fallen_back => Err(Error::InappropriateFallback),
        TLS12.. => Ok(()),
        _ => Err(Error::OldVersion(version)),
    }
}

/// True if the ClientHello announces early data (RFC 8446 §4.2.10).
pub(crate) fn has_early_data(content: &[u8]) -> bool {
    has_extension(content, EARLY_DATA).unwrap_or(false)
}

fn has_extension(content: &[u8], wanted: [u8; 2]) -> Option<bool> {
    let mut rest = content;
    if take(&mut rest, 1)? != [CLIENT_HELLO] {
        return None;
    }
    let mut hello = vector(&mut rest, 3)?;
    let _version_and_random = take(&mut hello, 2 + 32)?;
    let _session_id = vector(&mut hello, 1)?;
    let _suites = vector(&mut hello, 2)?;
    let _compressions = vector(&mut hello, 1)?;
    let mut extensions = vector(&mut hello, 2)?;
    while !extensions.is_empty() {
        if take(&mut extensions, 2)? == wanted {
            return Some(true);
        }
        vector(&mut extensions, 2)?;
    }
    Some(false)
}

/// Returns the best offered version, and whether the client has fallen back from a better one.
fn parse(content: &[u8]) -> Option<(u16, bool)> {
    let mut rest = content;
    if take(&mut rest, 1)? != [CLIENT_HELLO] {
        return None;
    }
    let mut hello = vector(&mut rest, 3)?;
    let version = number(take(&mut hello, 2)?);
    let _random = take(&mut hello, 32)?;
    let _session_id = vector(&mut hello, 1)?;
    let mut suites = vector(&mut hello, 2)?.chunks(2);
    let has_fallen_back = suites.any(|suite| suite == FALLBACK_SCSV);
    let _compressions = vector(&mut hello, 1)?;
    let mut extensions = vector(&mut hello, 2).unwrap_or_default();
    while !extensions.is_empty() {
        let extension_type = take(&mut extensions, 2)?;
        let mut extension = vector(&mut extensions, 2)?;
        if extension_type == SUPPORTED_VERSIONS {
            let versions = vector(&mut extension, 1)?.chunks(2).map(number);
            // Others, such as those of GREASE (RFC 8701), have no meaning.
            let best = versions.filter(|version| (0x0300..=TLS13).contains(version));
            return Some((best.max()?, has_fallen_back));
        }
    }
    Some((version.min(TLS12), has_fallen_back))
}

fn take<'a>(rest: &mut &'a [u8], bytes: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(bytes)?;
    *rest = left;
    Some(taken)
}

fn vector<'a>(rest: &mut &'a [u8], length_bytes: usize) -> Option<&'a [u8]> {
    let length = take(rest, length_bytes)?;
    let length = length
        .iter()
        .fold(0, |sum, &byte| sum << 8 | usize::from(byte));
    take(rest, length)
}

fn number(bytes: &[u8]) -> u16 {
    bytes
        .iter()
        .fold(0, |sum, &byte| sum << 8 | u16::from(byte))
}
