//! Fields with which proxies name the client of a request: `X-Forwarded-For`, and `Forwarded` (RFC
//! 7239).
//!
//! Each proxy adds an element with the address of its peer behind those that it has received. The
//! elements are therefore read from the last one on, as far as trusted proxies have written them:
//! the client is the first address that is not trusted, or else the first of all. The text before
//! it is the client's own.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use crate::prefix::{Prefix, any_contains};

/// The field that trusted proxies write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForwardedField {
    /// `X-Forwarded-For`: addresses, separated by commas.
    #[default]
    XForwardedFor,
    /// `Forwarded` (RFC 7239): elements, of which `for` names the peer.
    Forwarded,
}

impl ForwardedField {
    /// All fields.
    pub const ALL: [ForwardedField; 2] = [Self::XForwardedFor, Self::Forwarded];

    /// The name in lower case.
    pub const fn name(self) -> &'static str {
        match self {
            ForwardedField::XForwardedFor => "x-forwarded-for",
            ForwardedField::Forwarded => "forwarded",
        }
    }
}

impl fmt::Display for ForwardedField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A text that is no [`ForwardedField`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardedFieldError(String);

impl fmt::Display for ForwardedFieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is none of x-forwarded-for, forwarded", self.0)
    }
}

impl std::error::Error for ForwardedFieldError {}

impl FromStr for ForwardedField {
    type Err = ForwardedFieldError;

    fn from_str(text: &str) -> Result<Self, ForwardedFieldError> {
        let mut all = Self::ALL.into_iter();
        all.find(|field| field.name() == text)
            .ok_or_else(|| ForwardedFieldError(text.to_owned()))
    }
}

/// The client of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    /// Its address, and its port, or 0 if no proxy names that.
    pub address: SocketAddr,
    /// A trusted proxy has written an element without an address: `address` is that proxy's.
    pub is_malformed: bool,
}

/// The peer of a proxy, by the element that the proxy has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Node {
    Address(SocketAddr),
    /// `unknown`, or a name that the proxy has made up (RFC 7239 §6.2, §6.3).
    Hidden,
    Malformed,
}

/// Returns the client of a request that the trusted proxy `hop` has passed on. `values`: the values
/// of all lines of the field, in their order.
pub fn client<'a>(
    field: ForwardedField,
    values: impl DoubleEndedIterator<Item = &'a [u8]>,
    hop: SocketAddr,
    trusted: &[Prefix],
) -> Named {
    let mut named = Named {
        address: hop,
        is_malformed: false,
    };
    for value in values.rev() {
        for element in from_last(value, b',') {
            let element = element.trim_ascii();
            // Empty elements do not count (RFC 9110 §5.6.1.2).
            if element.is_empty() {
                continue;
            }
            let node = match field {
                ForwardedField::XForwardedFor => node(element),
                ForwardedField::Forwarded => node_of_element(element),
            };
            match node {
                Node::Address(address) => named.address = address,
                Node::Hidden => return named,
                Node::Malformed => {
                    named.is_malformed = true;
                    return named;
                }
            }
            if !any_contains(trusted, named.address.ip()) {
                return named;
            }
        }
    }
    named
}

/// The parts of a text between separators, from the last one to the first. Separators within
/// quotation marks separate nothing. Marks that the client has left open stand before all text of
/// proxies, so they hide no element of a proxy.
fn from_last(text: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let mut is_quoted = false;
        let at = (0..text.len()).rev().find(|&at| {
            let byte = text[at];
            is_quoted ^= byte == b'"' && !is_escaped(text, at);
            byte == separator && !is_quoted
        });
        rest = at.map(|at| &text[..at]);
        Some(at.map_or(text, |at| &text[at + 1..]))
    })
}

/// True if an odd number of backslashes stands before the byte.
fn is_escaped(text: &[u8], at: usize) -> bool {
    let backslashes = text[..at].iter().rev().take_while(|&&byte| byte == b'\\');
    backslashes.count() % 2 == 1
}

/// The node of an element of `Forwarded`: its parameter `for` (RFC 7239 §4).
fn node_of_element(element: &[u8]) -> Node {
    let mut found = None;
    for pair in from_last(element, b';') {
        let pair = pair.trim_ascii();
        let Some(equals) = pair.iter().position(|&byte| byte == b'=') else {
            continue;
        };
        let (name, value) = (&pair[..equals], &pair[equals + 1..]);
        // Each parameter occurs once.
        if name.eq_ignore_ascii_case(b"for") && found.replace(value).is_some() {
            return Node::Malformed;
        }
    }
    let Some(value) = found else {
        return Node::Hidden;
    };
    match value.strip_prefix(b"\"") {
        None => node(value),
        Some(value) => value.strip_suffix(b"\"").map_or(Node::Malformed, node),
    }
}

/// A node: an address, perhaps with a port. IPv6 addresses with a port stand in brackets; without
/// one, many proxies omit these.
fn node(text: &[u8]) -> Node {
    if text.eq_ignore_ascii_case(b"unknown") || text.starts_with(b"_") {
        return Node::Hidden;
    }
    let text = str::from_utf8(text).ok();
    let address = text.and_then(|text| match text.strip_prefix('[') {
        Some(rest) => {
            let (ip, port) = rest.split_once(']')?;
            let ip: Ipv6Addr = ip.parse().ok()?;
            Some((
                IpAddr::from(ip),
                port.strip_prefix(':').or_else(|| none(port))?,
            ))
        }
        None if text.matches(':').count() > 1 => Some((text.parse().ok()?, "")),
        None => {
            let (ip, port) = text.split_once(':').unwrap_or((text, ""));
            Some((ip.parse().ok()?, port))
        }
    });
    match address {
        Some((ip, port)) => match self::port(port) {
            Some(port) => Node::Address(SocketAddr::new(ip.to_canonical(), port)),
            None => Node::Malformed,
        },
        None => Node::Malformed,
    }
}

/// The text behind a bracket without a port: none.
fn none(text: &str) -> Option<&str> {
    text.is_empty().then_some(text)
}

/// A port; 0 if it is absent, or a name that the proxy has made up.
fn port(text: &str) -> Option<u16> {
    if text.is_empty() || text.starts_with('_') {
        return Some(0);
    }
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HOP: &str = "10.0.0.9:4321";

    fn trusted() -> [Prefix; 3] {
        [("10.0.0.0", 8), ("fd00::", 8), ("198.51.100.7", 32)].map(|(address, bits)| Prefix {
            address: address.parse().unwrap(),
            bits,
        })
    }

    fn named(field: ForwardedField, lines: &[&str]) -> (String, bool) {
        let values = lines.iter().map(|line| line.as_bytes());
        let named = client(field, values, HOP.parse().unwrap(), &trusted());
        (named.address.to_string(), named.is_malformed)
    }

    #[test]
    fn the_client_of_x_forwarded_for_is_the_last_that_is_not_trusted() {
        for (lines, client, is_malformed) in [
            (&[][..], HOP, false),
            (&[""], HOP, false),
            (&[" , ,"], HOP, false),
            (&["192.0.2.1"], "192.0.2.1:0", false),
            (&["192.0.2.1:77"], "192.0.2.1:77", false),
            (&["2001:db8::1"], "[2001:db8::1]:0", false),
            (&["[2001:db8::1]"], "[2001:db8::1]:0", false),
            (&["[2001:db8::1]:77"], "[2001:db8::1]:77", false),
            (&["::ffff:192.0.2.1"], "192.0.2.1:0", false),
            // Text of the client itself.
            (&["127.0.0.1, 192.0.2.1"], "192.0.2.1:0", false),
            (&["10.1.1.1, 192.0.2.1, 10.0.0.3"], "192.0.2.1:0", false),
            (&["garbage", "192.0.2.1,10.0.0.3"], "192.0.2.1:0", false),
            (
                &["203.0.113.5", "192.0.2.1", "fd00::3"],
                "192.0.2.1:0",
                false,
            ),
            (&["192.0.2.1, ::ffff:10.0.0.3,"], "192.0.2.1:0", false),
            // All are trusted: the first.
            (&["10.0.0.1, 10.0.0.2"], "10.0.0.1:0", false),
            (&["198.51.100.7:5", "10.0.0.2"], "198.51.100.7:5", false),
            // No client is named.
            (&["192.0.2.1, unknown"], HOP, false),
            (&["192.0.2.1, _hidden, 10.0.0.2:9"], "10.0.0.2:9", false),
            (&["192.0.2.1, garbage"], HOP, true),
            (&["192.0.2.1, 256.1.1.1, 10.0.0.2"], "10.0.0.2:0", true),
            (&["192.0.2.1:70000"], HOP, true),
            (&["192.0.2.1:+7"], HOP, true),
            (&["192.0.2.1 10.0.0.1"], HOP, true),
            (&["[192.0.2.1]"], HOP, true),
            (&["[2001:db8::1]7"], HOP, true),
            (&["[2001:db8::1"], HOP, true),
            (&["fe80::1%eth0"], HOP, true),
            (&["\"192.0.2.1\""], HOP, true),
        ] {
            let found = named(ForwardedField::XForwardedFor, lines);
            assert_eq!(found, (client.to_owned(), is_malformed), "{lines:?}");
        }
    }

    #[test]
    fn the_client_of_forwarded_is_found_in_the_same_way() {
        for (lines, client, is_malformed) in [
            (&["for=192.0.2.1"][..], "192.0.2.1:0", false),
            (&["For=\"192.0.2.1:77\";proto=https"], "192.0.2.1:77", false),
            (
                &["proto=http; FOR=\"[2001:db8::1]:77\""],
                "[2001:db8::1]:77",
                false,
            ),
            (
                &["for=\"[2001:db8::1]\", for=10.0.0.3"],
                "[2001:db8::1]:0",
                false,
            ),
            (
                &["for=192.0.2.1", "for=10.0.0.3;by=10.0.0.9"],
                "192.0.2.1:0",
                false,
            ),
            (&["for=192.0.2.1:_port"], "192.0.2.1:0", false),
            (
                &["for=127.0.0.1, for=192.0.2.1;host=\"a,b;for=1\""],
                "192.0.2.1:0",
                false,
            ),
            // An open quotation mark of the client, and an escaped one.
            (&["for=\", for=192.0.2.1"], "192.0.2.1:0", false),
            (&["for=\", for=192.0.2.1;by=\"_x\""], "192.0.2.1:0", false),
            (
                &["for=10.9.9.9, for=192.0.2.1;host=\"\\\",\""],
                "192.0.2.1:0",
                false,
            ),
            (&["for=unknown"], HOP, false),
            (&["for=192.0.2.1, for=\"_gazonk\""], HOP, false),
            (&["for=192.0.2.1, proto=https"], HOP, false),
            (&["192.0.2.1"], HOP, false),
            (&["for=192.0.2.1;for=192.0.2.2"], HOP, true),
            (&["for=\"192.0.2.1"], HOP, true),
            (&["for=garbage, for=10.0.0.2"], "10.0.0.2:0", true),
        ] {
            let found = named(ForwardedField::Forwarded, lines);
            assert_eq!(found, (client.to_owned(), is_malformed), "{lines:?}");
        }
    }

    #[test]
    fn names_of_fields_are_read() {
        for field in ForwardedField::ALL {
            assert_eq!(field.to_string().parse(), Ok(field));
        }
        assert!("X-Forwarded-For".parse::<ForwardedField>().is_err());
    }

    proptest! {
        /// Text before the first address that is not trusted changes nothing.
        #[test]
        fn no_text_of_the_client_makes_it_another(
            text in proptest::collection::vec(any::<u8>(), 0..60),
            has_own_line in any::<bool>(),
            is_of_rfc_7239 in any::<bool>(),
        ) {
            let text: Vec<u8> = text.into_iter().filter(|byte| *byte != b'\n').collect();
            let (field, last): (_, &[u8]) = match is_of_rfc_7239 {
                true => (ForwardedField::Forwarded, b"for=192.0.2.1, for=\"[fd00::2]:8\""),
                false => (ForwardedField::XForwardedFor, b"192.0.2.1, fd00::2"),
            };
            let lines = match has_own_line {
                true => vec![text, last.to_vec()],
                false => vec![[&text, &b", "[..], last].concat()],
            };
            let values = lines.iter().map(Vec::as_slice);
            let named = client(field, values, HOP.parse().unwrap(), &trusted());
            prop_assert_eq!(named.address.to_string(), "192.0.2.1:0");
            prop_assert!(!named.is_malformed);
        }
    }
}
