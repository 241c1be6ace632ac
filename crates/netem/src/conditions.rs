//! Conditions of a direction of the link, and their text form.

use std::fmt;
use std::str::FromStr;

/// Effects of a direction on packets. The default has none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Conditions {
    /// Time from the last bit sent to the arrival at the other end, in nanoseconds.
    pub delay_ns: u64,
    /// Largest deviation of a packet's delay from `delay_ns`, in nanoseconds. It does not reorder
    /// packets.
    pub jitter_ns: u64,
    /// Rate of the link, in bits per second; `None` is unlimited.
    pub rate_bits_per_s: Option<u64>,
    /// Length of the queue, including the packet being sent, in bytes of frames. A packet that does
    /// not fit is dropped.
    pub queue_bytes: Option<u64>,
    /// Packets lost, per million.
    pub loss_ppm: u32,
    /// Packets lost in a row, on average. Below 1, losses are independent.
    pub loss_burst: f64,
    /// Packets held back, per million, so that later ones overtake them.
    pub reorder_ppm: u32,
    /// Time for which such packets are held back, in nanoseconds.
    pub reorder_by_ns: u64,
    /// Packets duplicated, per million.
    pub duplicate_ppm: u32,
}

/// Default time for which a packet is held back: longer than it takes to send three of 1,500 bytes
/// at 40 Mbit/s, so that TCP infers a loss (RFC 5681 §3.2).
pub const REORDER_BY_DEFAULT: Time = Time(1_000_000);

/// Options given for a direction; `None` if not given.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Changes {
    /// [`Conditions::delay_ns`].
    pub delay: Option<Time>,
    /// [`Conditions::jitter_ns`].
    pub jitter: Option<Time>,
    /// [`Conditions::rate_bits_per_s`].
    pub rate: Option<Rate>,
    /// [`Conditions::queue_bytes`].
    pub queue: Option<Queue>,
    /// [`Conditions::loss_ppm`].
    pub loss: Option<Share>,
    /// [`Conditions::loss_burst`].
    pub loss_burst: Option<Burst>,
    /// [`Conditions::reorder_ppm`].
    pub reorder: Option<Share>,
    /// [`Conditions::reorder_by_ns`].
    pub reorder_by: Option<Time>,
    /// [`Conditions::duplicate_ppm`].
    pub duplicate: Option<Share>,
}

impl Changes {
    /// Returns the options with those given in `other` replaced.
    pub fn but(self, other: Changes) -> Changes {
        Changes {
            delay: other.delay.or(self.delay),
            jitter: other.jitter.or(self.jitter),
            rate: other.rate.or(self.rate),
            queue: other.queue.or(self.queue),
            loss: other.loss.or(self.loss),
            loss_burst: other.loss_burst.or(self.loss_burst),
            reorder: other.reorder.or(self.reorder),
            reorder_by: other.reorder_by.or(self.reorder_by),
            duplicate: other.duplicate.or(self.duplicate),
        }
    }

    /// Returns the conditions for these options, or the error if they are inconsistent.
    pub fn conditions(&self) -> Result<Conditions, ConditionsError> {
        let delay_ns = self.delay.unwrap_or_default().0;
        let jitter_ns = self.jitter.unwrap_or_default().0;
        let rate_bits_per_s = self.rate.map(|rate| rate.0);
        let queue_bytes = match (self.queue, rate_bits_per_s) {
            (None, _) => None,
            (Some(_), None) => return Err(ConditionsError::QueueWithoutRate),
            (Some(Queue::Bytes(bytes)), _) => Some(bytes),
            (Some(Queue::Time(time)), Some(rate)) => {
                Some((u128::from(time.0) * u128::from(rate) / 8_000_000_000) as u64)
            }
        };
        if let Some(bytes) = queue_bytes.filter(|&bytes| bytes < QUEUE_BYTES_MIN) {
            return Err(ConditionsError::QueueTooShort { bytes });
        }
        if jitter_ns > delay_ns {
            return Err(ConditionsError::JitterBeyondDelay);
        }
        let loss_ppm = self.loss.unwrap_or_default().ppm;
        let loss_burst = self.loss_burst.map_or(0.0, |burst| burst.0);
        if self.loss_burst.is_some() && !(1..1_000_000).contains(&loss_ppm) {
            return Err(ConditionsError::BurstWithoutLoss);
        }
        // The probability of entering a burst would exceed 1: loss / (burst * (1 - loss)) > 1.
        let loss = f64::from(loss_ppm) / 1e6;
        if self.loss_burst.is_some() && loss > loss_burst * (1.0 - loss) {
            return Err(ConditionsError::BurstsTooShort);
        }
        Ok(Conditions {
            delay_ns,
            jitter_ns,
            rate_bits_per_s,
            queue_bytes,
            loss_ppm,
            loss_burst,
            reorder_ppm: self.reorder.unwrap_or_default().ppm,
            reorder_by_ns: self.reorder_by.unwrap_or(REORDER_BY_DEFAULT).0,
            duplicate_ppm: self.duplicate.unwrap_or_default().ppm,
        })
    }
}

/// Shortest queue: a full-sized Ethernet frame must fit.
const QUEUE_BYTES_MIN: u64 = 1514;

/// Inconsistency of conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionsError {
    /// Without a rate no packet ever waits.
    QueueWithoutRate,
    /// Not even one packet fits.
    QueueTooShort {
        /// Resulting length of the queue.
        bytes: u64,
    },
    /// Packets would arrive before they were sent.
    JitterBeyondDelay,
    /// Bursts without any loss.
    BurstWithoutLoss,
    /// At this loss, bursts are longer by chance alone.
    BurstsTooShort,
}

impl fmt::Display for ConditionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConditionsError::QueueWithoutRate => {
                f.write_str("a queue needs a rate: without one, nothing ever waits")
            }
            ConditionsError::QueueTooShort { bytes } => write!(
                f,
                "a queue of {bytes} bytes takes no packet; the shortest is {QUEUE_BYTES_MIN} bytes"
            ),
            ConditionsError::JitterBeyondDelay => {
                f.write_str("the jitter is greater than the delay")
            }
            ConditionsError::BurstWithoutLoss => {
                f.write_str("bursts of loss need a loss above 0 and below 100%")
            }
            ConditionsError::BurstsTooShort => {
                f.write_str("with so much loss, bursts are longer than that by themselves")
            }
        }
    }
}

impl std::error::Error for ConditionsError {}

impl FromStr for Changes {
    type Err = String;

    /// `delay=20ms,loss=1%`: the names are those of the options of `splitway link`.
    fn from_str(text: &str) -> Result<Changes, String> {
        let mut changes = Changes::default();
        for part in text.split(',') {
            let (name, value) = part
                .split_once('=')
                .ok_or_else(|| format!("{part:?} is not NAME=VALUE, such as delay=20ms"))?;
            match name {
                "delay" => changes.delay = Some(value.parse()?),
                "jitter" => changes.jitter = Some(value.parse()?),
                "rate" => changes.rate = Some(value.parse()?),
                "queue" => changes.queue = Some(value.parse()?),
                "loss" => changes.loss = Some(value.parse()?),
                "loss-burst" => changes.loss_burst = Some(value.parse()?),
                "reorder" => changes.reorder = Some(value.parse()?),
                "reorder-by" => changes.reorder_by = Some(value.parse()?),
                "duplicate" => changes.duplicate = Some(value.parse()?),
                _ => {
                    return Err(format!(
                        "there is no {name:?}; there are delay, jitter, rate, queue, loss, \
                         loss-burst, reorder, reorder-by and duplicate"
                    ));
                }
            }
        }
        Ok(changes)
    }
}

/// A time, in nanoseconds: `20ms`, `200us`, `1.5s`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time(pub u64);

const TIME_UNITS: &[(&str, f64)] = &[
    ("ns", 1.0),
    ("us", 1e3),
    ("µs", 1e3),
    ("ms", 1e6),
    ("s", 1e9),
];

/// Longest time, one hour: no link has a longer delay.
const TIME_MAX_NS: f64 = 3600e9;

impl FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> Result<Time, String> {
        let ns = quantity(text, TIME_UNITS, "a time, such as 20ms, 200us or 1.5s")?;
        if ns <= TIME_MAX_NS {
            Ok(Time(ns as u64))
        } else {
            Err(format!("{text} is more than an hour"))
        }
    }
}

/// A rate, in bits per second: `200mbit`, `1.5gbit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate(pub u64);

const RATE_UNITS: &[(&str, f64)] = &[("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9), ("bit", 1.0)];

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Rate, String> {
        let rate = quantity(text, RATE_UNITS, "a rate, such as 200mbit or 1.5gbit")?;
        match (1e3..=1e12).contains(&rate) {
            true => Ok(Rate(rate as u64)),
            false => Err(format!("{text} is not between 1kbit and 1000gbit")),
        }
    }
}

impl fmt::Display for Rate {
    /// Formats the rate in the largest unit of which it is an integer multiple.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rate(bits) = *self;
        for (unit, name) in [
            (1_000_000_000, "gbit"),
            (1_000_000, "mbit"),
            (1_000, "kbit"),
        ] {
            if bits.is_multiple_of(unit) {
                return write!(f, "{}{name}", bits / unit);
            }
        }
        write!(f, "{bits}bit")
    }
}

impl Rate {
    /// Returns the rate for a number of bytes per second.
    pub fn of_bytes_per_second(bytes: u64) -> Rate {
        Rate(bytes.saturating_mul(8))
    }

    /// Formats the rate for output: `166.9 Mbit/s`.
    pub fn shown(self) -> impl fmt::Display {
        fmt::from_fn(move |f| {
            let Rate(bits) = self;
            for (unit, name) in [
                (1_000_000_000, "Gbit/s"),
                (1_000_000, "Mbit/s"),
                (1_000, "kbit/s"),
            ] {
                if bits >= unit {
                    return write!(f, "{}.{} {name}", bits / unit, bits % unit * 10 / unit);
                }
            }
            write!(f, "{bits} bit/s")
        })
    }
}

/// The length of a queue: `256kb`, or as the waiting time of a packet at its end: `50ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// In bytes.
    Bytes(u64),
    /// As a time at the rate of the link.
    Time(Time),
}

const BYTES_UNITS: &[(&str, f64)] = &[
    ("kib", 1024.0),
    ("mib", 1048576.0),
    ("kb", 1e3),
    ("mb", 1e6),
    ("b", 1.0),
];

impl FromStr for Queue {
    type Err = String;

    fn from_str(text: &str) -> Result<Queue, String> {
        if let Ok(time) = text.parse() {
            return Ok(Queue::Time(time));
        }
        let bytes = quantity(text, BYTES_UNITS, "a size or a time, such as 256kb or 50ms")?;
        if bytes <= 1e12 {
            Ok(Queue::Bytes(bytes as u64))
        } else {
            Err(format!("{text} is more than a terabyte"))
        }
    }
}

/// A share of all packets: `1%`, `0.05%`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Packets per million.
    pub ppm: u32,
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Share, String> {
        let percent = quantity(text, &[("%", 1.0)], "a share, such as 1% or 0.05%")?;
        if percent <= 100.0 {
            Ok(Share {
                ppm: (percent * 1e4).round() as u32,
            })
        } else {
            Err(format!("{text} is more than all"))
        }
    }
}

/// Number of packets lost in a row, on average, at least 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Burst(pub f64);

impl FromStr for Burst {
    type Err = String;

    fn from_str(text: &str) -> Result<Burst, String> {
        match text.parse() {
            Ok(packets) if (1.0..=1e6).contains(&packets) => Ok(Burst(packets)),
            _ => Err(format!("{text:?} is not a number of packets from 1 on")),
        }
    }
}

/// Parses a decimal number with one of these units; 0 needs none.
fn quantity(text: &str, units: &[(&str, f64)], expected: &str) -> Result<f64, String> {
    let wrong = || format!("{text:?} is not {expected}");
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit() && c != '.');
    let unit = &text[digits.len()..];
    let plain = digits
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number: f64 = digits.parse().ok().filter(|_| plain).ok_or_else(wrong)?;
    if unit.is_empty() && number == 0.0 {
        return Ok(0.0);
    }
    let (_, factor) = units
        .iter()
        .find(|(name, _)| unit.eq_ignore_ascii_case(name))
        .ok_or_else(wrong)?;
    Ok(number * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conditions(text: &str) -> Result<Conditions, String> {
        let changes: Changes = text.parse()?;
        changes.conditions().map_err(|error| error.to_string())
    }

    #[test]
    fn people_write_units() {
        let found = conditions(
            "delay=20ms,jitter=1.5us,rate=200mbit,queue=50ms,loss=0.1%,loss-burst=3,reorder=1%,\
             reorder-by=2ms,duplicate=100%",
        );
        assert_eq!(
            found.unwrap(),
            Conditions {
                delay_ns: 20_000_000,
                jitter_ns: 1500,
                rate_bits_per_s: Some(200_000_000),
                queue_bytes: Some(1_250_000),
                loss_ppm: 1000,
                loss_burst: 3.0,
                reorder_ppm: 10_000,
                reorder_by_ns: 2_000_000,
                duplicate_ppm: 1_000_000,
            }
        );
        let in_bytes = conditions("rate=1gbit,queue=256KiB").unwrap();
        assert_eq!(in_bytes.queue_bytes, Some(262_144));
        assert_eq!(conditions("loss=0,delay=0").unwrap().loss_ppm, 0);
    }

    #[test]
    fn a_rate_is_shown_in_the_unit_that_it_reaches() {
        for (rate, shown) in [
            (Rate(0), "0 bit/s"),
            (Rate(999), "999 bit/s"),
            (Rate(4_000), "4.0 kbit/s"),
            (Rate(166_990_000), "166.9 Mbit/s"),
            (Rate::of_bytes_per_second(12_500_000_000), "100.0 Gbit/s"),
            (Rate::of_bytes_per_second(u64::MAX), "18446744073.7 Gbit/s"),
        ] {
            assert_eq!(rate.shown().to_string(), shown);
        }
    }

    #[test]
    fn what_is_said_later_about_a_direction_counts() {
        let both: Changes = "delay=20ms,loss=1%".parse().unwrap();
        let one: Changes = "loss=0,rate=1mbit".parse().unwrap();
        let found = both.but(one).conditions().unwrap();
        assert_eq!(
            (found.delay_ns, found.loss_ppm, found.rate_bits_per_s),
            (20_000_000, 0, Some(1_000_000))
        );
    }

    #[test]
    fn rates_are_read_as_they_are_written() {
        for (text, again) in [
            ("1.5gbit", "1500mbit"),
            ("1000mbit", "1gbit"),
            ("1500bit", "1500bit"),
            ("20kbit", "20kbit"),
        ] {
            let rate: Rate = text.parse().unwrap();
            assert_eq!(rate.to_string(), again);
            assert_eq!(again.parse(), Ok(rate));
        }
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        for (text, complaint) in [
            ("delay", "NAME=VALUE"),
            ("dealy=1ms", "dealy"),
            ("delay=1", "\"1\" is not a time"),
            ("delay=-1ms", "not a time"),
            ("delay=1e3ms", "not a time"),
            ("delay=ms", "not a time"),
            ("delay=", "not a time"),
            ("delay=2000000s", "hour"),
            ("rate=0", "1kbit"),
            ("rate=10mb", "not a rate"),
            ("loss=101%", "more than all"),
            ("loss=0.5", "not a share"),
            ("loss=NaN%", "not a share"),
            ("loss=1%,loss-burst=0.5", "from 1"),
            ("loss-burst=3", "need a loss"),
            ("loss=80%,loss-burst=1", "longer"),
            ("queue=10kb", "needs a rate"),
            ("rate=1mbit,queue=100b", "takes no packet"),
            ("rate=1mbit,queue=10", "not a size or a time"),
            ("delay=1ms,jitter=2ms", "jitter"),
        ] {
            let refusal = conditions(text).unwrap_err();
            assert!(refusal.contains(complaint), "{text}: {refusal}");
        }
    }
}
