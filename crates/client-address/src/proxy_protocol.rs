//! The PROXY protocol, versions 1 and 2 (HAProxy's `doc/proxy-protocol.txt`): a header that
//! identifies the client at the beginning of a connection.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// Version of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// A line of text.
    V1,
    /// Binary.
    V2,
}

/// A text that is no [`Version`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionError(String);

impl fmt::Display for VersionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is neither v1 nor v2", self.0)
    }
}

impl std::error::Error for VersionError {}

impl FromStr for Version {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, VersionError> {
        match text {
            "v1" => Ok(Version::V1),
            "v2" => Ok(Version::V2),
            _ => Err(VersionError(text.to_owned())),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Version::V1 => "v1",
            Version::V2 => "v2",
        })
    }
}

/// Longest header of version 1, with its line end (§2.1).
const V1_BYTES_MAX: usize = 107;

/// First bytes of a header of version 2 (§2.2).
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

/// Length of a header of version 2 before its addresses.
const V2_FIXED_BYTES: usize = 16;

/// Longest addresses and extensions of version 2 that are accepted, in bytes.
const V2_REST_BYTES_MAX: usize = 4096;

/// Longest header that [`parse`] accepts, in bytes.
pub const HEADER_BYTES_MAX: usize = V2_FIXED_BYTES + V2_REST_BYTES_MAX;

/// The header of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Length of the header, in bytes.
    pub bytes: usize,
    /// Source and destination of the connection; `None` if it is the sender's own, or of an unknown
    /// kind.
    pub addresses: Option<(SocketAddr, SocketAddr)>,
}

/// The required header is missing or malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderError;

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("there is no header of the PROXY protocol")
    }
}

impl std::error::Error for HeaderError {}

/// Parses the header of a connection; `None` if more bytes must arrive first.
///
/// # Errors
/// If the bytes begin with no header.
pub fn parse(bytes: &[u8]) -> Result<Option<Header>, HeaderError> {
    let known = bytes.len().min(SIGNATURE.len());
    if bytes[..known] == SIGNATURE[..known] {
        return parse_v2(bytes);
    }
    parse_v1(bytes)
}

fn parse_v1(bytes: &[u8]) -> Result<Option<Header>, HeaderError> {
    const START: &[u8] = b"PROXY ";
    let known = bytes.len().min(START.len());
    if bytes[..known] != START[..known] {
        return Err(HeaderError);
    }
    let considered = &bytes[..bytes.len().min(V1_BYTES_MAX)];
    let Some(end) = considered.iter().position(|&byte| byte == b'\n') else {
        return match considered.len() == V1_BYTES_MAX {
            true => Err(HeaderError),
            false => Ok(None),
        };
    };
    let line = considered[..end].strip_suffix(b"\r").ok_or(HeaderError)?;
    let line = std::str::from_utf8(line).map_err(|_| HeaderError)?;
    let mut words = line.split(' ').skip(1);
    let addresses = match words.next() {
        // The rest of the line is ignored.
        Some("UNKNOWN") => None,
        Some(family @ ("TCP4" | "TCP6")) => {
            let mut word = || words.next().ok_or(HeaderError);
            let [source, destination] = [address(word()?)?, address(word()?)?];
            let [from, to] = [port(word()?)?, port(word()?)?];
            let is_v4 = family == "TCP4";
            if words.next().is_some() || source.is_ipv4() != is_v4 || destination.is_ipv4() != is_v4
            {
                return Err(HeaderError);
            }
            Some((
                SocketAddr::new(source, from),
                SocketAddr::new(destination, to),
            ))
        }
        _ => return Err(HeaderError),
    };
    Ok(Some(Header {
        bytes: end + 1,
        addresses,
    }))
}

fn address(word: &str) -> Result<IpAddr, HeaderError> {
    word.parse().map_err(|_| HeaderError)
}

fn port(word: &str) -> Result<u16, HeaderError> {
    let is_plain =
        word.bytes().all(|byte| byte.is_ascii_digit()) && (word == "0" || !word.starts_with('0'));
    let port = word.parse().ok().filter(|_| is_plain);
    port.ok_or(HeaderError)
}

fn parse_v2(bytes: &[u8]) -> Result<Option<Header>, HeaderError> {
    let Some((fixed, rest)) = bytes.split_first_chunk::<V2_FIXED_BYTES>() else {
        return Ok(None);
    };
    let length = usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
    let (command, family) = (fixed[12], fixed[13]);
    if command >> 4 != 2 || length > V2_REST_BYTES_MAX {
        return Err(HeaderError);
    }
    let is_local = match command & 0xf {
        0 => true,
        1 => false,
        _ => return Err(HeaderError),
    };
    let Some(rest) = rest.get(..length) else {
        return Ok(None);
    };
    let port = |at: usize| Some(u16::from_be_bytes([*rest.get(at)?, *rest.get(at + 1)?]));
    let addresses = match family {
        _ if is_local => None,
        // TCP over IPv4, over IPv6; other kinds have no usable addresses.
        0x11 => {
            let ip = |at: usize| rest.get(at..at + 4)?.first_chunk::<4>().copied();
            let ip = |at| ip(at).map(|it| IpAddr::V4(Ipv4Addr::from(it)));
            Some((ip(0), port(8), ip(4), port(10)))
        }
        0x21 => {
            let ip = |at: usize| rest.get(at..at + 16)?.first_chunk::<16>().copied();
            let ip = |at| ip(at).map(|it| IpAddr::V6(Ipv6Addr::from(it)));
            Some((ip(0), port(32), ip(16), port(34)))
        }
        _ => None,
    };
    let addresses = match addresses {
        None => None,
        Some((Some(source), Some(from), Some(destination), Some(to))) => Some((
            SocketAddr::new(source, from),
            SocketAddr::new(destination, to),
        )),
        Some(_) => return Err(HeaderError),
    };
    Ok(Some(Header {
        bytes: V2_FIXED_BYTES + length,
        addresses,
    }))
}

/// Appends a header with source and destination of a connection; without addresses, the header of
/// the proxy's own connections.
pub fn build(version: Version, addresses: Option<(SocketAddr, SocketAddr)>, out: &mut Vec<u8>) {
    let addresses = addresses.map(|(source, destination)| same_family(source, destination));
    match version {
        Version::V1 => build_v1(addresses, out),
        Version::V2 => build_v2(addresses, out),
    }
}

/// Converts the addresses to one family, IPv4 or IPv6.
fn same_family(source: SocketAddr, destination: SocketAddr) -> (SocketAddr, SocketAddr) {
    let canonical = |it: SocketAddr| SocketAddr::new(it.ip().to_canonical(), it.port());
    let (source, destination) = (canonical(source), canonical(destination));
    if source.is_ipv4() == destination.is_ipv4() {
        return (source, destination);
    }
    let mapped = |it: SocketAddr| match it.ip() {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), it.port()),
        IpAddr::V6(_) => it,
    };
    (mapped(source), mapped(destination))
}

fn build_v1(addresses: Option<(SocketAddr, SocketAddr)>, out: &mut Vec<u8>) {
    use std::io::Write as _;
    // Writing to memory does not fail.
    let _ = match addresses {
        None => write!(out, "PROXY UNKNOWN\r\n"),
        Some((source, destination)) => write!(
            out,
            "PROXY TCP{} {} {} {} {}\r\n",
            if source.is_ipv4() { 4 } else { 6 },
            source.ip(),
            destination.ip(),
            source.port(),
            destination.port()
        ),
    };
}

fn build_v2(addresses: Option<(SocketAddr, SocketAddr)>, out: &mut Vec<u8>) {
    out.extend_from_slice(SIGNATURE);
    let Some((source, destination)) = addresses else {
        // LOCAL, with an unspecified family.
        out.extend_from_slice(&[0x20, 0, 0, 0]);
        return;
    };
    match (source.ip(), destination.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            out.extend_from_slice(&[0x21, 0x11, 0, 12]);
            out.extend_from_slice(&from.octets());
            out.extend_from_slice(&to.octets());
        }
        (from, to) => {
            let octets = |ip| match ip {
                IpAddr::V4(ip) => Ipv4Addr::to_ipv6_mapped(&ip).octets(),
                IpAddr::V6(ip) => ip.octets(),
            };
            out.extend_from_slice(&[0x21, 0x21, 0, 36]);
            out.extend_from_slice(&octets(from));
            out.extend_from_slice(&octets(to));
        }
    }
    out.extend_from_slice(&source.port().to_be_bytes());
    out.extend_from_slice(&destination.port().to_be_bytes());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pair(source: &str, destination: &str) -> Option<(SocketAddr, SocketAddr)> {
        Some((source.parse().unwrap(), destination.parse().unwrap()))
    }

    #[test]
    fn lines_of_version_1_are_read() {
        let addresses = |line: &str| parse(line.as_bytes()).map(|it| it.unwrap().addresses);
        assert_eq!(
            addresses("PROXY TCP4 192.0.2.1 10.0.0.1 40000 80\r\nGET"),
            Ok(pair("192.0.2.1:40000", "10.0.0.1:80"))
        );
        assert_eq!(
            addresses("PROXY TCP6 fd00::1 fd00::2 1 65535\r\n"),
            Ok(pair("[fd00::1]:1", "[fd00::2]:65535"))
        );
        assert_eq!(addresses("PROXY UNKNOWN a b c d\r\n"), Ok(None));
        for line in [
            "GET / HTTP/1.1\r\n",
            "PROXY TCP4 192.0.2.1 10.0.0.1 40000\r\n",
            "PROXY TCP4 192.0.2.1 10.0.0.1 40000 80 1\r\n",
            "PROXY TCP4 fd00::1 fd00::2 1 2\r\n",
            "PROXY TCP4 192.0.2.1 10.0.0.1 01 80\r\n",
            "PROXY TCP4 192.0.2.1 10.0.0.1 +1 80\r\n",
            "PROXY TCP4 192.0.2.1 10.0.0.1 1 65536\r\n",
            "PROXY TCP4  192.0.2.1 10.0.0.1 1 2\r\n",
            "PROXY TCP4 192.0.2.1 10.0.0.1 1 2\n",
            "PROXY UDP4 192.0.2.1 10.0.0.1 1 2\r\n",
        ] {
            assert_eq!(parse(line.as_bytes()), Err(HeaderError), "{line:?}");
        }
        let long = format!("PROXY UNKNOWN {}", "x".repeat(200));
        assert_eq!(parse(long.as_bytes()), Err(HeaderError));
    }

    #[test]
    fn version_2_may_be_local_or_of_another_kind_and_have_extensions() {
        let header = |command: u8, family: u8, rest: &[u8]| {
            let mut bytes = SIGNATURE.to_vec();
            bytes.extend([command, family]);
            bytes.extend((rest.len() as u16).to_be_bytes());
            bytes.extend(rest);
            bytes
        };
        let v4 = [192, 0, 2, 1, 10, 0, 0, 1, 0x9c, 0x40, 0, 80, 0x4, 0, 1, 0];
        let parsed = parse(&header(0x21, 0x11, &v4)).unwrap().unwrap();
        assert_eq!(parsed.bytes, 32);
        assert_eq!(parsed.addresses, pair("192.0.2.1:40000", "10.0.0.1:80"));
        for (command, family) in [(0x20, 0x11), (0x21, 0x00), (0x21, 0x31), (0x21, 0x12)] {
            let parsed = parse(&header(command, family, &v4)).unwrap().unwrap();
            assert_eq!(parsed.addresses, None);
        }
        for bytes in [
            header(0x31, 0x11, &v4),
            header(0x22, 0x11, &v4),
            header(0x21, 0x11, &v4[..11]),
            header(0x21, 0x21, &v4),
            header(0x20, 0, &[0; V2_REST_BYTES_MAX + 1]),
        ] {
            assert_eq!(parse(&bytes), Err(HeaderError));
        }
    }

    #[test]
    fn families_that_differ_become_ipv6() {
        let mut line = Vec::new();
        build(Version::V1, pair("192.0.2.1:1", "[fd00::2]:2"), &mut line);
        assert_eq!(line, b"PROXY TCP6 ::ffff:192.0.2.1 fd00::2 1 2\r\n");
        line.clear();
        build(Version::V1, None, &mut line);
        assert_eq!(parse(&line).unwrap().unwrap().addresses, None);
    }

    fn any_address() -> impl Strategy<Value = (bool, [u8; 16], u16)> {
        (any::<bool>(), any::<[u8; 16]>(), any::<u16>())
    }

    proptest! {
        #[test]
        fn what_is_built_is_read_and_nothing_sooner(
            (is_v4, from, from_port) in any_address(),
            (_, to, to_port) in any_address(),
            is_v1 in any::<bool>(),
        ) {
            let address = |octets: [u8; 16], port| {
                let v4 = Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3]);
                let v6 = Ipv6Addr::from(octets);
                let is_mapped = v6.to_ipv4_mapped().is_some();
                SocketAddr::new(if is_v4 || is_mapped { v4.into() } else { v6.into() }, port)
            };
            let pair = same_family(address(from, from_port), address(to, to_port));
            let version = if is_v1 { Version::V1 } else { Version::V2 };
            let mut bytes = Vec::new();
            build(version, Some(pair), &mut bytes);
            for end in 0..bytes.len() {
                prop_assert_eq!(parse(&bytes[..end]), Ok(None));
            }
            let header = Header { bytes: bytes.len(), addresses: Some(pair) };
            bytes.extend(b"rest");
            prop_assert_eq!(parse(&bytes), Ok(Some(header)));
        }

        #[test]
        fn no_bytes_make_it_panic(
            is_v2 in any::<bool>(),
            bytes in proptest::collection::vec(any::<u8>(), 0..100),
        ) {
            let start: &[u8] = if is_v2 { SIGNATURE } else { b"PROXY " };
            let _ = parse(&[start, &bytes].concat());
        }
    }
}
