//! The server name of a TLS connection (RFC 6066 §3), read from its ClientHello (RFC 8446 §4.1.2)
//! without terminating TLS.

/// Longest ClientHello that is read, in bytes, with the heads of its records.
pub(crate) const HELLO_BYTES_MAX: usize = 16 << 10;

/// The beginning of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hello {
    /// More bytes must arrive first.
    Partial,
    /// No ClientHello, or a malformed one.
    Other,
    /// A ClientHello, and its server name in lower case.
    Tls(Option<String>),
}

const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;

/// Longest record, in bytes (RFC 8446 §5.1).
const RECORD_BYTES_MAX: usize = 1 << 14;

/// Parses the beginning of a connection.
pub(crate) fn parse(bytes: &[u8]) -> Hello {
    let (message, is_whole) = match handshake(bytes) {
        Ok(found) => found,
        Err(NotTls) => return Hello::Other,
    };
    let Some((head, body)) = message.split_first_chunk::<4>() else {
        return partial(bytes, is_whole);
    };
    if head[0] != CLIENT_HELLO {
        return Hello::Other;
    }
    let length = usize::from(head[1]) << 16 | usize::from(head[2]) << 8 | usize::from(head[3]);
    match body.get(..length) {
        None => partial(bytes, is_whole),
        Some(body) => client_hello(body).map_or(Hello::Other, Hello::Tls),
    }
}

fn partial(bytes: &[u8], is_whole: bool) -> Hello {
    if is_whole && bytes.len() < HELLO_BYTES_MAX {
        Hello::Partial
    } else {
        Hello::Other
    }
}

struct NotTls;

/// Returns the handshake bytes in the records received so far: several records may carry one
/// message. False if other bytes follow the records.
fn handshake(mut bytes: &[u8]) -> Result<(Vec<u8>, bool), NotTls> {
    let mut message = Vec::new();
    let mut is_first = true;
    while let Some(&kind) = bytes.first() {
        let is_known = kind == HANDSHAKE && bytes.get(1).is_none_or(|&major| major == 3);
        if !is_known {
            return if is_first {
                Err(NotTls)
            } else {
                Ok((message, false))
            };
        }
        let Some((head, rest)) = bytes.split_first_chunk::<5>() else {
            break;
        };
        let length = usize::from(u16::from_be_bytes([head[3], head[4]]));
        if length == 0 || length > RECORD_BYTES_MAX {
            return Err(NotTls);
        }
        message.extend_from_slice(&rest[..length.min(rest.len())]);
        bytes = rest.get(length..).unwrap_or_default();
        is_first = false;
    }
    Ok((message, true))
}

/// Bytes that are consumed from the front.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self, bytes: usize) -> Option<usize> {
        let bytes = self.take(bytes)?;
        Some(
            bytes
                .iter()
                .fold(0, |number, byte| number << 8 | usize::from(*byte)),
        )
    }

    /// Takes a vector behind its length.
    fn vector(&mut self, length_bytes: usize) -> Option<Reader<'a>> {
        let length = self.number(length_bytes)?;
        self.take(length).map(Reader)
    }
}

/// Returns the server name of a ClientHello; the outer `None` for a malformed one.
fn client_hello(body: &[u8]) -> Option<Option<String>> {
    let mut body = Reader(body);
    // legacy_version, random, legacy_session_id, cipher_suites, legacy_compression_methods.
    body.take(2 + 32)?;
    body.vector(1)?;
    body.vector(2)?;
    body.vector(1)?;
    if body.0.is_empty() {
        return Some(None);
    }
    let mut extensions = body.vector(2)?;
    while !extensions.0.is_empty() {
        let kind = extensions.number(2)?;
        let mut extension = extensions.vector(2)?;
        if kind != usize::from(SERVER_NAME) {
            continue;
        }
        let mut names = extension.vector(2)?;
        while !names.0.is_empty() {
            let kind = names.number(1)?;
            let name = names.vector(2)?.0;
            if kind == usize::from(HOST_NAME) {
                let name = std::str::from_utf8(name).ok()?;
                let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic());
                return is_name.then(|| Some(name.to_ascii_lowercase()));
            }
        }
    }
    Some(None)
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A ClientHello with this name, in records of at most `record_bytes`.
    pub(crate) fn hello(name: Option<&str>, record_bytes: usize) -> Vec<u8> {
        let vector = |length_bytes: usize, bytes: &[u8]| {
            let length = (bytes.len() as u32).to_be_bytes();
            [&length[4 - length_bytes..], bytes].concat()
        };
        let extension =
            |kind: u16, bytes: &[u8]| [&kind.to_be_bytes()[..], &vector(2, bytes)].concat();
        let mut extensions = extension(0xff01, &[0]);
        if let Some(name) = name {
            let name = [&[HOST_NAME][..], &vector(2, name.as_bytes())].concat();
            extensions.extend(extension(SERVER_NAME, &vector(2, &name)));
        }
        extensions.extend(extension(0x2b, &[2, 3, 4]));
        let body = [
            &[3, 3][..],
            &[7; 32],
            &vector(1, &[9; 32]),
            &vector(2, &[0x13, 1, 0x13, 2]),
            &vector(1, &[0]),
            &vector(2, &extensions),
        ]
        .concat();
        let message = [&[CLIENT_HELLO][..], &vector(3, &body)].concat();
        let records = message.chunks(record_bytes);
        let records = records.map(|piece| [&[HANDSHAKE, 3, 1][..], &vector(2, piece)].concat());
        records.collect::<Vec<_>>().concat()
    }

    #[test]
    fn the_name_is_found_wherever_records_end() {
        let found = Hello::Tls(Some("www.example.org".to_owned()));
        for record_bytes in [1, 7, 50, 16_000] {
            let bytes = hello(Some("WWW.example.org"), record_bytes);
            for end in 0..bytes.len() {
                assert_eq!(
                    parse(&bytes[..end]),
                    Hello::Partial,
                    "{record_bytes}, {end}"
                );
            }
            assert_eq!(parse(&bytes), found);
            assert_eq!(
                parse(&[&bytes[..], b"\x14\x03\x03\0\x01\x01"].concat()),
                found
            );
        }
        assert_eq!(parse(&hello(None, 1000)), Hello::Tls(None));
    }

    #[test]
    fn what_is_no_client_hello_has_no_name() {
        for bytes in [
            &b"GET / HTTP/1.1\r\n"[..],
            b"\x16\x02\x00",
            b"\x16\x03\x01\x00\x00",
            b"\x16\x03\x01\x00\x04\x02\x00\x00\x00",
            b"\x16\x03\x01\x00\x01\x01\x17\x03\x03",
            b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x03",
        ] {
            assert_eq!(parse(bytes), Hello::Other, "{bytes:?}");
        }
        let mut endless = vec![HANDSHAKE, 3, 1, 0x40, 0, CLIENT_HELLO, 0xff, 0xff, 0xff];
        endless.resize(HELLO_BYTES_MAX, 0);
        assert_eq!(parse(&endless), Hello::Other);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            at in any::<proptest::sample::Index>(),
            byte in any::<u8>(),
        ) {
            let _ = parse(&[&[HANDSHAKE, 3, 1, 0, 100], &bytes[..]].concat());
            let mut hello = hello(Some("a.org"), 1000);
            let at = at.index(hello.len());
            hello[at] = byte;
            let _ = parse(&hello);
        }
    }
}
