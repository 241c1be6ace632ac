//! Values of `[tcp]`: ECN, keep-alive and pacing.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use tcp::{EcnPolicy, Keepalive};

/// Pacing of windows over a round trip.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PacingOption {
    /// The whole window leaves at once.
    Off,
    /// The window leaves in pieces.
    #[default]
    On,
}

impl PacingOption {
    /// Names in the configuration.
    pub(crate) const NAMES: [(Self, &str); 2] = [(Self::On, "on"), (Self::Off, "off")];
}

impl FromStr for PacingOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::NAMES.iter().find(|(_, name)| *name == text);
        found
            .map(|(value, _)| *value)
            .ok_or_else(|| "it is on or off".to_owned())
    }
}

impl fmt::Display for PacingOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = Self::NAMES.iter().find(|(value, _)| value == self);
        f.write_str(found.map_or("", |(_, name)| name))
    }
}

/// Use of ECN. There is no `offer`: clients open the connections, so they offer it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EcnOption {
    /// Connections of clients that offer it use it.
    #[default]
    Accept,
    /// No connection uses it.
    Off,
}

impl EcnOption {
    /// Names in the configuration.
    pub(crate) const NAMES: [(Self, &str); 2] = [(Self::Accept, "accept"), (Self::Off, "off")];
}

impl FromStr for EcnOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::NAMES.iter().find(|(_, name)| *name == text);
        found
            .map(|(value, _)| *value)
            .ok_or_else(|| "it is accept or off".to_owned())
    }
}

impl fmt::Display for EcnOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = Self::NAMES.iter().find(|(value, _)| value == self);
        f.write_str(found.map_or("", |(_, name)| name))
    }
}

impl fmt::Display for KeepaliveOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("off"),
            Some(idle_s) if idle_s.is_multiple_of(3600) => write!(f, "{}h", idle_s / 3600),
            Some(idle_s) if idle_s.is_multiple_of(60) => write!(f, "{}m", idle_s / 60),
            Some(idle_s) => write!(f, "{idle_s}s"),
        }
    }
}

/// Silence before the first probe, in seconds; `None` is off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepaliveOption(Option<u32>);

impl Default for KeepaliveOption {
    fn default() -> Self {
        KeepaliveOption(Some(2 * 3600))
    }
}

/// A week: probing less often has no use.
const IDLE_S_MAX: u32 = 7 * 24 * 3600;

impl FromStr for KeepaliveOption {
    type Err = String;

    fn from_str(text: &str) -> Result<KeepaliveOption, String> {
        if text == "off" {
            return Ok(KeepaliveOption(None));
        }
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let unit_s: u32 = match &text[digits.len()..] {
            "s" => 1,
            "m" => 60,
            "h" => 3600,
            _ => return Err("it is off, or a whole number with s, m or h, such as 90s".to_owned()),
        };
        digits
            .parse()
            .ok()
            .and_then(|number: u32| number.checked_mul(unit_s))
            .filter(|idle_s| (1..=IDLE_S_MAX).contains(idle_s))
            .map(|idle_s| KeepaliveOption(Some(idle_s)))
            .ok_or_else(|| "it is from 1s to 168h".to_owned())
    }
}

impl EcnOption {
    /// The policy of the TCP stack.
    pub fn policy(self) -> EcnPolicy {
        match self {
            EcnOption::Accept => EcnPolicy::Accept,
            EcnOption::Off => EcnPolicy::Off,
        }
    }
}

impl KeepaliveOption {
    /// The settings of the TCP stack; `None`: no probes.
    pub fn keepalive(self) -> Option<Keepalive> {
        let idle = Duration::from_secs(self.0?.into());
        let defaults = Keepalive::default();
        Some(Keepalive {
            idle,
            // An operator who sets early probes also expects an early verdict.
            interval: defaults.interval.min(idle),
            ..defaults
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_keepalives_probe_as_often_as_they_wait() {
        let keepalive = |text: &str| text.parse::<KeepaliveOption>().unwrap().keepalive();
        assert_eq!(
            KeepaliveOption::default().keepalive(),
            Some(Keepalive::default())
        );
        let short = keepalive("30s").unwrap();
        assert_eq!(short.idle, Duration::from_secs(30));
        assert_eq!(short.interval, Duration::from_secs(30));
        assert_eq!(keepalive("off"), None);
    }

    #[test]
    fn values_are_written_as_they_are_read() {
        for text in ["off", "90s", "30m", "168h"] {
            assert_eq!(text.parse::<KeepaliveOption>().unwrap().to_string(), text);
        }
        for text in ["0s", "169h", "5", "1.5h", "m"] {
            assert!(text.parse::<KeepaliveOption>().is_err(), "{text}");
        }
        for text in ["accept", "off"] {
            assert_eq!(text.parse::<EcnOption>().unwrap().to_string(), text);
        }
        for text in ["on", "off"] {
            assert_eq!(text.parse::<PacingOption>().unwrap().to_string(), text);
        }
        assert_eq!(EcnOption::Off.policy(), EcnPolicy::Off);
    }
}
