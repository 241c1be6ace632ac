//! What a relay has counted of its session, by name.

use contract::ethernet::session::Counters;

/// What the session has counted, by names that no counter of a NIC stack has.
pub(crate) fn counters(counters: &Counters) -> Vec<(String, u64)> {
    let Counters {
        frames_sent,
        frames_received,
        frames_dropped,
        records_sent,
        records_received,
        parcels_repeated,
        parcels_duplicate,
    } = *counters;
    [
        (FRAMES_SENT, frames_sent),
        (FRAMES_RECEIVED, frames_received),
        (FRAMES_REFUSED, frames_dropped),
        ("control records sent", records_sent),
        ("control records received", records_received),
        (PARCELS_REPEATED, parcels_repeated),
        ("control parcels received again", parcels_duplicate),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

pub(crate) const FRAMES_SENT: &str = "control frames sent";
pub(crate) const FRAMES_RECEIVED: &str = "control frames received";
pub(crate) const FRAMES_REFUSED: &str = "control frames refused";
pub(crate) const PARCELS_REPEATED: &str = "control parcels sent again";
