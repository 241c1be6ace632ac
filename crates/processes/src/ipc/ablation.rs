//! Switches for measurements only: they disable useful parts of the stack, or worsen its
//! environment. `docs/measuring.md` describes each.

use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Serialize};

/// Switches of the host stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(default)]
#[command(next_help_heading = "For measurements only")]
pub struct HostAblation {
    /// Start the RTO at the SEND, not when the packets depart
    #[arg(long)]
    pub no_echo_rto: bool,

    /// With offload, have the host forward frames, as if no packet filter could steer them
    #[arg(long)]
    pub no_steering: bool,

    /// Measure round-trip times from TCP timestamps alone
    #[arg(long)]
    pub rtt_from_timestamps: bool,

    /// Minimum difference between RTO and round-trip time [default: 200ms]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub rto_min: Option<Duration>,

    /// Extra work per frame that the host process receives, most of them ACKs
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub ack_delay: Option<Duration>,
}

/// Switches of the NIC stack.
#[derive(Clone, Debug, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(default)]
#[command(next_help_heading = "For measurements only")]
pub struct NicAblation {
    /// Leave the queueing time in the NIC stack in TCP timestamps
    #[arg(long, requires = "content")]
    pub no_timestamp_fix: bool,

    /// Reordering of QUIC packets with `quic.receive`: ring, linear (a list) or off
    #[arg(long, value_name = "HOW", value_parser = parse_reorder, requires = "content")]
    pub quic_reorder: Option<ReorderOption>,

    /// Extra random delay of every read, such as 1ms..5ms
    #[arg(long, value_name = "TIME..TIME", requires = "content")]
    pub read_delay: Option<TimeRange>,
}

/// How QUIC packets are put in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReorderOption {
    /// The default: a ring by packet number.
    Ring,
    /// A list.
    Linear,
    /// No reordering.
    Off,
}

fn parse_reorder(text: &str) -> Result<ReorderOption, String> {
    match text {
        "ring" => Ok(ReorderOption::Ring),
        "linear" => Ok(ReorderOption::Linear),
        "off" => Ok(ReorderOption::Off),
        _ => Err("it is ring, linear or off".to_owned()),
    }
}

/// A range of times, both ends included.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeRange(RangeInclusive<Duration>);

/// Longest time that is accepted; longer ones are useless in a measurement.
const TIME_MAX: Duration = Duration::from_secs(60);

fn parse_time(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match &text[digits.len()..] {
        "us" => Duration::from_micros(1),
        "ms" => Duration::from_millis(1),
        "s" => Duration::from_secs(1),
        _ => return Err("a time is a number with us, ms or s, such as 5ms".to_owned()),
    };
    digits
        .parse()
        .ok()
        .and_then(|number: u32| unit.checked_mul(number))
        .filter(|time| *time <= TIME_MAX)
        .ok_or_else(|| format!("a time is a whole number, and at most {TIME_MAX:?}"))
}

impl FromStr for TimeRange {
    type Err = String;

    fn from_str(text: &str) -> Result<TimeRange, String> {
        let (least, most) = text.split_once("..").unwrap_or((text, text));
        let (least, most) = (parse_time(least)?, parse_time(most)?);
        if least > most {
            return Err("the first time is the shorter one".to_owned());
        }
        Ok(TimeRange(least..=most))
    }
}

impl HostAblation {
    /// Applies the switches to the configuration of the stack.
    pub fn apply(&self, config: &mut host::StackConfig) {
        config.departs_at_issue = self.no_echo_rto;
        config.tcp.rtt_from_timestamps = self.rtt_from_timestamps;
        config.tcp.rto_min = self.rto_min.unwrap_or(config.tcp.rto_min);
    }

    /// Returns the extra work per frame, in microseconds.
    pub fn frame_delay_us(&self) -> u64 {
        self.ack_delay.map_or(0, |delay| delay.as_micros() as u64)
    }
}

impl NicAblation {
    /// Applies the switches to the configuration of the stack.
    pub fn apply(&self, config: &mut nic::Config) {
        config.correct_timestamps = !self.no_timestamp_fix;
        config.reorder = match self.quic_reorder {
            None | Some(ReorderOption::Ring) => nic::Reorder::Ring,
            Some(ReorderOption::Linear) => nic::Reorder::Linear,
            Some(ReorderOption::Off) => nic::Reorder::Off,
        };
        config.read_delay = self.read_delay.as_ref().map(|TimeRange(range)| {
            let us = |time: &Duration| time.as_micros() as u64;
            nic::reader::delay::ReadDelay {
                us: us(range.start())..=us(range.end()),
                seed: 1,
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units_and_bounds() {
        assert_eq!(parse_time("5ms"), Ok(Duration::from_millis(5)));
        assert_eq!(parse_time("250us"), Ok(Duration::from_micros(250)));
        assert_eq!(parse_time("60s"), Ok(Duration::from_secs(60)));
        for bad in [
            "",
            "5",
            "ms",
            "-1ms",
            "61s",
            "5min",
            "99999999999s",
            "1.5ms",
            "5µ",
        ] {
            assert!(parse_time(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn switches_cross_to_the_process_and_change_its_stack() {
        let nic = NicAblation {
            no_timestamp_fix: true,
            quic_reorder: Some(ReorderOption::Off),
            read_delay: Some("1ms..5ms".parse().unwrap()),
        };
        let crossed = serde_json::to_string(&nic).unwrap();
        assert_eq!(serde_json::from_str::<NicAblation>(&crossed).unwrap(), nic);
        let mut config = nic::Config::default();
        nic.apply(&mut config);
        assert!(!config.correct_timestamps);
        assert_eq!(config.reorder, nic::Reorder::Off);
        assert_eq!(config.read_delay.unwrap().us, 1_000..=5_000);
        let host = HostAblation {
            ack_delay: Some(Duration::from_millis(1)),
            ..HostAblation::default()
        };
        assert_eq!(host.frame_delay_us(), 1000);
    }

    #[test]
    fn a_range_goes_from_the_shorter_time_to_the_longer() {
        assert!("5ms..1ms".parse::<TimeRange>().is_err());
        assert!("1ms..".parse::<TimeRange>().is_err());
    }

    #[test]
    fn nothing_changes_unless_asked() {
        let mut config = nic::Config::default();
        NicAblation::default().apply(&mut config);
        assert_eq!(config, nic::Config::default());
        assert_eq!(HostAblation::default().frame_delay_us(), 0);
    }
}
