//! Bounds of numbers and times by key, both for the program's checks and for the JSON schema.

use std::ops::RangeInclusive;

use origin::FieldLimits;

use super::place::{Place, Problem};
use super::text::{Text, Time};
use crate::tls_names::KEY_RECORDS;

/// Least and most of a number.
const NUMBERS: &[(&str, u64, u64)] = &[
    ("network.mtu", 1280, 65_535),
    ("nic.workers", 1, 64),
    ("nic.workers_min", 1, 64),
    ("tls.key_records", KEY_RECORDS.0, KEY_RECORDS.1),
    ("http.ranges_max", 1, 1_000_000),
    ("http.responses_in_flight_max", 1, 1_000_000),
    ("http.http2_streams_max", 1, 1000),
    // Each lookup searches all variants.
    ("origin.variants_max", 1, 1024),
    ("origin.fields_max", 1, FieldLimits::COUNT_MAX as u64),
    // Each socket has its record in the segment.
    ("sockets.sockets_max", 1, 1 << 20),
    ("sockets.listeners_max", 0, 1 << 20),
    ("sockets.bindings_max", 0, 1 << 20),
    ("sockets.files_max", 0, 1 << 20),
    ("sockets.source_share_percent", 1, 100),
    ("sockets.messages_per_turn", 1, u32::MAX as u64),
    ("sockets.turn_us_max", 1, 1_000_000),
    ("sockets.applications_max", 1, 4096),
    ("sockets.applications_per_user_max", 1, 4096),
    ("sockets.processes_max", 1, 4096),
    ("proxy.http2_streams_max", 1, 1000),
    ("proxy.pool.connections_max", 1, u32::MAX as u64),
    ("proxy.pool.check_rise", 1, u32::MAX as u64),
    ("proxy.pool.check_fall", 1, u32::MAX as u64),
];

const SECOND: Time = Time::from_secs(1);
const TEN_MINUTES: Time = Time::from_secs(600);
const DAY: Time = Time::from_secs(24 * 3600);
const WEEK: Time = Time::from_secs(7 * 24 * 3600);

/// Least and most of a time.
const TIMES: &[(&str, Time, Time)] = &[
    ("quic.idle_timeout", SECOND, TEN_MINUTES),
    ("http.head_timeout", SECOND, DAY),
    ("http.idle_timeout", SECOND, DAY),
    ("http.stall_timeout", SECOND, DAY),
    ("http.rate_period", SECOND, DAY),
    ("http.linger_timeout", SECOND, DAY),
    ("proxy.connect_timeout", Time::LEAST, WEEK),
    ("proxy.head_timeout", Time::LEAST, WEEK),
    ("proxy.keepalive_timeout", Time::LEAST, WEEK),
    ("proxy.response_timeout", Time::LEAST, WEEK),
    ("proxy.idle_timeout", Time::LEAST, WEEK),
    ("proxy.rate_period", Time::LEAST, WEEK),
    ("proxy.tunnel_timeout", Time::LEAST, WEEK),
    ("proxy.backend_idle_timeout", Time::LEAST, WEEK),
    ("proxy.resolve_interval", Time::LEAST, WEEK),
    ("proxy.pool.queue_timeout", Time::LEAST, WEEK),
    ("proxy.pool.evict_after", Time::from_secs(0), WEEK),
    ("proxy.pool.eject_time", Time::LEAST, WEEK),
    ("proxy.pool.check_interval", Time::LEAST, WEEK),
    ("proxy.pool.check_timeout", Time::LEAST, WEEK),
];

/// Statuses of redirects, which `server::Redirect` checks.
#[cfg(test)]
pub(crate) const REDIRECT_STATUSES: [u16; 5] = [301, 302, 303, 307, 308];

/// Bounds of a number, by the key without indices.
pub(crate) fn number(key: &str) -> RangeInclusive<u64> {
    let found = NUMBERS.iter().find(|(known, ..)| *known == key);
    found.map_or(0..=u64::MAX, |(_, least, most)| *least..=*most)
}

/// Reports a number out of bounds.
pub(crate) fn check_number(place: Place, key: &str, value: u64, problems: &mut Vec<Problem>) {
    let range = number(key);
    if !range.contains(&value) {
        let why = format!("{value} is not from {} to {}", range.start(), range.end());
        problems.push(Problem::new(place, why));
    }
}

/// Reports a time out of bounds.
pub(crate) fn check_time(
    place: Place,
    key: &str,
    Text(time): Text<Time>,
    problems: &mut Vec<Problem>,
) {
    let found = TIMES.iter().find(|(known, ..)| *known == key);
    let Some((_, least, most)) = found else {
        return;
    };
    if !(*least..=*most).contains(&time) {
        let why = format!("{time} is not from {least} to {most}");
        problems.push(Problem::new(place, why));
    }
}

/// Keys with the least and the most of a number, or of a time.
#[cfg(test)]
type Numbers = &'static [(&'static str, u64, u64)];
#[cfg(test)]
type Times = &'static [(&'static str, Time, Time)];

/// All numbers and times, for the schema.
#[cfg(test)]
pub(crate) fn all() -> (Numbers, Times) {
    (NUMBERS, TIMES)
}
