//! Choices about TCP that an operator makes for all connections.

use std::ffi::OsString;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use tcp::{EcnPolicy, Keepalive};

use crate::config;

/// The options, of `splitway serve` and of the host process alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Args)]
pub(crate) struct TcpOptions {
    /// Explicit congestion notification: accept it from clients that ask for it, or keep it off [default: accept]
    #[arg(long, value_name = "accept|off")]
    pub(crate) ecn: Option<EcnOption>,

    /// After how long a silence to ask clients whether they are still there, such as 90s, 30m or 2h, or off [default: 2h]
    #[arg(long, value_name = "TIME|off")]
    pub(crate) keepalive: Option<KeepaliveOption>,

    /// Pace what CUBIC and NewReno send to clients more than 2 ms away, so that a window leaves spread over a round trip
    /// instead of in bursts; BBR always paces [default: on]
    #[arg(long, value_name = "on|off")]
    pub(crate) pacing: Option<PacingOption>,
}

/// Whether windows leave spread over a round trip.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum PacingOption {
    Off,
    #[default]
    On,
}

impl FromStr for PacingOption {
    type Err = String;

    fn from_str(text: &str) -> Result<PacingOption, String> {
        match text {
            "on" => Ok(PacingOption::On),
            "off" => Ok(PacingOption::Off),
            _ => Err("it is on or off".to_owned()),
        }
    }
}

impl fmt::Display for PacingOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PacingOption::Off => "off",
            PacingOption::On => "on",
        })
    }
}

/// There is no `offer`: connections that clients open are theirs to offer it for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum EcnOption {
    #[default]
    Accept,
    Off,
}

impl FromStr for EcnOption {
    type Err = String;

    fn from_str(text: &str) -> Result<EcnOption, String> {
        match text {
            "accept" => Ok(EcnOption::Accept),
            "off" => Ok(EcnOption::Off),
            _ => Err("it is accept or off".to_owned()),
        }
    }
}

impl fmt::Display for EcnOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            EcnOption::Accept => "accept",
            EcnOption::Off => "off",
        })
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
pub(crate) struct KeepaliveOption(Option<u32>);

impl Default for KeepaliveOption {
    fn default() -> Self {
        KeepaliveOption(Some(2 * 3600))
    }
}

/// A week: who is asked less often may as well not be asked.
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

impl TcpOptions {
    /// What this configuration says.
    pub(crate) fn of(config: &config::Tcp) -> Self {
        Self {
            ecn: Some(config.ecn.0),
            keepalive: Some(config.keepalive.0),
            pacing: Some(config.pacing.0),
        }
    }

    /// The same for the host process.
    pub(crate) fn arguments(&self) -> impl Iterator<Item = OsString> {
        let ecn = self.ecn.map(|ecn| ("--ecn", ecn.to_string()));
        let keepalive = self.keepalive.map(|it| ("--keepalive", it.to_string()));
        let pacing = self.pacing.map(|it| ("--pacing", it.to_string()));
        let options = ecn.into_iter().chain(keepalive).chain(pacing);
        options.flat_map(|(name, value)| [name.into(), value.into()])
    }

    /// Sets them.
    pub(crate) fn apply(&self, config: &mut tcp::Config) {
        config.ecn = match self.ecn.unwrap_or_default() {
            EcnOption::Accept => EcnPolicy::Accept,
            EcnOption::Off => EcnPolicy::Off,
        };
        config.pace = self.pacing == Some(PacingOption::On);
        config.keepalive = self.keepalive.unwrap_or_default().0.map(|idle_s| {
            let idle = Duration::from_secs(idle_s.into());
            let defaults = Keepalive::default();
            Keepalive {
                idle,
                // Whoever wants to know soon does not wait for the answers longer than for the question.
                interval: defaults.interval.min(idle),
                ..defaults
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        options: TcpOptions,
    }

    fn parse(line: &str) -> Result<TcpOptions, String> {
        let words = std::iter::once("splitway").chain(line.split_whitespace());
        let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
        Ok(line.options)
    }

    fn config(line: &str) -> tcp::Config {
        let mut config = tcp::Config::default();
        parse(line).unwrap().apply(&mut config);
        config
    }

    #[test]
    fn ecn_is_accepted_and_the_silent_are_asked_after_two_hours_unless_told_otherwise() {
        let by_default = config("");
        assert_eq!(by_default.ecn, EcnPolicy::Accept);
        assert_eq!(by_default.keepalive, Some(Keepalive::default()));
        let told = config("--ecn off --keepalive 30s");
        assert_eq!(told.ecn, EcnPolicy::Off);
        let keepalive = told.keepalive.unwrap();
        assert_eq!(keepalive.idle, Duration::from_secs(30));
        assert_eq!(keepalive.interval, Duration::from_secs(30));
        assert_eq!(config("--keepalive off").keepalive, None);
        assert!(!by_default.pace && config("--pacing on").pace);
    }

    #[test]
    fn the_host_process_is_told_the_same() {
        for line in [
            "",
            "--ecn off --keepalive off",
            "--keepalive 90s",
            "--keepalive 168h",
            "--ecn accept --keepalive 30m",
            "--pacing on",
        ] {
            let options = parse(line).unwrap();
            let words = options.arguments().map(|word| word.into_string().unwrap());
            let words: Vec<String> = words.collect();
            assert_eq!(parse(&words.join(" ")), Ok(options), "{line}");
        }
    }
}
