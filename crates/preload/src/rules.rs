//! Rules that select the addresses of split sockets.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// A set of addresses and ports: `any`, `PORTS`, `ADDRESS` or `ADDRESS/BITS`; after an address,
/// `:PORTS` restricts the ports. PORTS is `80` or `8000-8999`. An IPv6 address with ports is in
/// brackets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Prefix of the addresses; `None`: all, of both families.
    prefix: Option<(IpAddr, u8)>,
    first_port: u16,
    last_port: u16,
}

/// An invalid rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRule(String);

impl fmt::Display for BadRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: expected any, PORT, FIRST-LAST, ADDRESS or ADDRESS/BITS, and :PORT or :FIRST-LAST \
             behind an address ([ADDRESS]:PORT for IPv6)",
            self.0
        )
    }
}

impl std::error::Error for BadRule {}

impl Rule {
    /// All addresses and all ports.
    pub const ANY: Rule = Rule {
        prefix: None,
        first_port: 0,
        last_port: u16::MAX,
    };

    /// Reports whether the rule covers an address.
    pub fn holds(&self, address: SocketAddr) -> bool {
        let ports = self.first_port..=self.last_port;
        let is_within = match self.prefix {
            None => true,
            Some((prefix, bits)) => shares_prefix(prefix, unmapped(address.ip()), bits),
        };
        is_within && ports.contains(&address.port())
    }

    /// Reports whether the rule covers loopback addresses only, and so intends them.
    fn names_loopback(&self) -> bool {
        match self.prefix {
            Some((ip @ IpAddr::V4(_), bits)) => ip.is_loopback() && bits >= 8,
            Some((ip @ IpAddr::V6(_), bits)) => ip.is_loopback() && bits == 128,
            None => false,
        }
    }
}

/// Rules of one direction. Loopback addresses are the kernel's unless a rule covers loopback
/// addresses only, such as `127.0.0.0/8` or `::1`; `any` does not include them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules(Vec<Rule>);

impl Rules {
    /// Parses a comma-separated list of rules, which may be empty.
    pub fn parse(list: &str) -> Result<Rules, BadRule> {
        let named = list.split(',').filter(|rule| !rule.is_empty());
        named.map(str::parse).collect::<Result<_, _>>().map(Rules)
    }

    /// Reports whether there are no rules.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reports whether an address is that of a split socket.
    pub fn hold(&self, address: SocketAddr) -> bool {
        let is_loopback = unmapped(address.ip()).is_loopback();
        let mut about_it = self
            .0
            .iter()
            .filter(|rule| !is_loopback || rule.names_loopback());
        about_it.any(|rule| rule.holds(address))
    }
}

impl FromIterator<Rule> for Rules {
    fn from_iter<I: IntoIterator<Item = Rule>>(rules: I) -> Rules {
        Rules(rules.into_iter().collect())
    }
}

impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, rule) in self.0.iter().enumerate() {
            let comma = if place == 0 { "" } else { "," };
            write!(f, "{comma}{rule}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all_ports = (self.first_port, self.last_port) == (0, u16::MAX);
        match self.prefix {
            None if all_ports => return f.write_str("any"),
            None => {}
            Some((IpAddr::V6(ip), bits)) if !all_ports => write!(f, "[{ip}/{bits}]:")?,
            Some((ip, bits)) => write!(f, "{ip}/{bits}{}", if all_ports { "" } else { ":" })?,
        }
        if !all_ports {
            write!(f, "{}-{}", self.first_port, self.last_port)?;
        }
        Ok(())
    }
}

impl FromStr for Rule {
    type Err = BadRule;

    fn from_str(text: &str) -> Result<Rule, BadRule> {
        parse(text).ok_or_else(|| BadRule(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<Rule> {
    if text == "any" {
        return Some(Rule::ANY);
    }
    if let Some((first_port, last_port)) = ports(text) {
        return Some(Rule {
            first_port,
            last_port,
            ..Rule::ANY
        });
    }
    let (prefix, behind) = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None if text.matches(':').count() == 1 => text.split_at(text.find(':')?),
        None => (text, ""),
    };
    let (first_port, last_port) = match behind.strip_prefix(':') {
        Some(named) => ports(named)?,
        None if behind.is_empty() => (0, u16::MAX),
        None => return None,
    };
    let (ip, bits) = prefix.split_once('/').unwrap_or((prefix, ""));
    let ip: IpAddr = ip.parse().ok()?;
    let bits_max = if ip.is_ipv4() { 32 } else { 128 };
    let bits = match bits {
        "" if !prefix.contains('/') => bits_max,
        bits => bits.parse().ok().filter(|bits| *bits <= bits_max)?,
    };
    Some(Rule {
        prefix: Some((ip, bits)),
        first_port,
        last_port,
    })
}

fn ports(text: &str) -> Option<(u16, u16)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(first) || !is_number(last) {
        return None;
    }
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last).then_some((first, last))
}

/// Returns the IPv4 address of an IPv4-mapped one (RFC 4291 §2.5.5.2).
fn unmapped(ip: IpAddr) -> IpAddr {
    ip.to_canonical()
}

fn shares_prefix(prefix: IpAddr, ip: IpAddr, bits: u8) -> bool {
    let differing = match (prefix, ip) {
        (IpAddr::V4(prefix), IpAddr::V4(ip)) => (prefix.to_bits() ^ ip.to_bits()).leading_zeros(),
        (IpAddr::V6(prefix), IpAddr::V6(ip)) => (prefix.to_bits() ^ ip.to_bits()).leading_zeros(),
        _ => return false,
    };
    differing >= u32::from(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(rule: &str, address: &str) -> bool {
        let rules = Rules::parse(rule).unwrap();
        assert_eq!(Rules::parse(&rules.to_string()), Ok(rules.clone()));
        rules.hold(address.parse().unwrap())
    }

    #[test]
    fn a_rule_holds_what_it_says() {
        for (rule, within, without) in [
            ("any", "10.0.0.1:80", "127.0.0.1:80"),
            ("any", "[2001:db8::1]:0", "[::1]:80"),
            ("80", "0.0.0.0:80", "0.0.0.0:81"),
            ("8000-8999", "[::]:8999", "[::]:9000"),
            ("10.1.0.0/16", "10.1.255.1:9", "10.2.0.1:9"),
            ("10.1.0.0/16:80-81", "10.1.255.1:81", "10.1.0.1:82"),
            ("10.1.0.1", "10.1.0.1:9", "10.1.0.2:9"),
            ("10.1.0.1:9", "10.1.0.1:9", "10.1.0.1:8"),
            ("2001:db8::/32", "[2001:db8:1::]:5", "[2001:db9::]:5"),
            ("[2001:db8::/32]:5", "[2001:db8:1::]:5", "[2001:db8:1::]:6"),
            ("10.0.0.0/8", "[::ffff:10.0.0.1]:5", "[::ffff:127.0.0.1]:5"),
            ("1,3-4", "1.2.3.4:4", "1.2.3.4:2"),
            ("0.0.0.0/0", "0.0.0.0:4", "[::]:4"),
            ("0.0.0.0/0", "128.0.0.1:4", "127.0.0.1:4"),
            ("126.0.0.0/7", "126.0.0.1:4", "127.0.0.1:4"),
            ("any,127.0.0.0/8", "127.1.2.3:4", "[::1]:4"),
            ("127.0.0.0/8", "[::ffff:127.0.0.1]:4", "0.0.0.0:4"),
            ("127.0.0.1:80", "127.0.0.1:80", "127.0.0.1:81"),
            ("any,::1", "[::1]:4", "127.0.0.1:4"),
            ("[::1]:80-81", "[::1]:81", "[::1]:82"),
            ("::/127", "[::]:81", "[::1]:81"),
        ] {
            assert!(holds(rule, within), "{rule}: {within}");
            assert!(!holds(rule, without), "{rule}: {without}");
        }
        assert!(!holds("", "10.0.0.1:80"));
    }

    #[test]
    fn what_is_no_rule_is_refused() {
        for rule in [
            "all",
            "65536",
            "9-8",
            "-",
            "10.0.0.1:",
            "10.0.0.1/33",
            "10.0.0.1/",
            "[::1",
            "[::1]80",
            "10.0.0.0/8:x",
            "::/129",
            "+80",
            " 80",
        ] {
            assert!(rule.parse::<Rule>().is_err(), "{rule}");
        }
    }
}
