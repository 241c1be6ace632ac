//! Rates of responses: an operator's limits for a response, a connection, and a source of
//! connections.
//!
//! The limits bound the pacing of the host stack, which sends evenly and no faster. A stream has
//! one limit at a time, the lowest that applies. The streams of a QUIC connection share the limit
//! of the connection, as connections share the limit of their source.

use std::collections::{BTreeMap, HashMap};
use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

use host::Source;
use host::app::{Io, QuicConnection, StreamId};

/// Sends the first bytes of a response without a limit, and the rest at a rate. Ranges no longer
/// than the first bytes are sent without a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// The rate, in bytes per second; less than 1000 counts as 1000.
    pub bytes_per_second: NonZeroU64,
    /// Number of bytes before the rate applies.
    pub at_once_bytes: u64,
}

impl Pace {
    /// Returns the pace for media of this bit rate: `ahead` of playing time at once, the rest at
    /// `percent` of the bit rate. A player starts without waiting, and a viewer who leaves early
    /// has not been sent the whole film.
    pub fn of_media(bits_per_second: NonZeroU64, percent: NonZeroU32, ahead: Duration) -> Self {
        let bytes_per_second = u128::from(bits_per_second.get()) / 8;
        let paced = bytes_per_second * u128::from(percent.get()) / 100;
        let at_once = bytes_per_second * ahead.as_millis() / 1000;
        let bounded = |bytes: u128| u64::try_from(bytes).unwrap_or(u64::MAX);
        Pace {
            bytes_per_second: NonZeroU64::new(bounded(paced)).unwrap_or(NonZeroU64::MIN),
            at_once_bytes: bounded(at_once),
        }
    }
}

/// A connection that carries several exchanges at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Multiplexed {
    /// Of HTTP/2.
    Tcp(StreamId),
    /// Of HTTP/3.
    Quic(QuicConnection),
}

/// Source and connection of a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) source: Source,
    /// The connection, if it has other streams besides.
    pub(crate) connection: Option<Multiplexed>,
}

/// Bytes per second; `None`: no limit.
pub(crate) type Bound = Option<NonZeroU64>;

/// Rate limits of streams.
#[derive(Debug)]
pub(crate) struct Rates {
    connection: Bound,
    source: Bound,
    sending: HashMap<Source, Sharing>,
    /// Sending streams of each connection that has several.
    within: HashMap<Multiplexed, Sharing>,
}

impl Rates {
    /// Creates limits for connections and for sources.
    pub(crate) fn new(connection: Bound, source: Bound) -> Self {
        Rates {
            connection,
            source,
            sending: HashMap::new(),
            within: HashMap::new(),
        }
    }

    /// Changes the limits. Streams that share a limit get their new shares at once; other responses
    /// continue as they began.
    pub(crate) fn change(&mut self, io: &mut dyn Io, connection: Bound, source: Bound) {
        self.connection = connection;
        if self.source == source {
            return;
        }
        self.source = source;
        match source {
            Some(total) => {
                for sharing in self.sending.values_mut() {
                    sharing.told = 0;
                    sharing.share_out(io, total);
                }
            }
            None => {
                for (_, sharing) in self.sending.drain() {
                    for (stream, Member { own, .. }) in sharing.streams {
                        set(io, stream, own);
                    }
                }
            }
        }
    }

    /// Returns the limit of a stream whose response has this limit.
    pub(crate) fn bound(&self, response: Bound) -> Bound {
        least(self.connection, response)
    }

    /// True if the peer's streams share a limit, so that the end of sending on a stream matters.
    pub(crate) fn are_shared(&self, peer: Peer) -> bool {
        self.source.is_some() || peer.connection.is_some() && self.connection.is_some()
    }

    /// The share of each stream of a source that sends, if the source is bounded.
    pub(crate) fn share_of_source(&self, source: Source) -> Bound {
        let total = self.source?;
        let sharing = self.sending.get(&source)?;
        Some(share(total, sharing.told))
    }

    /// Begins to send on a stream, with this limit of its own.
    pub(crate) fn begin(&mut self, io: &mut dyn Io, stream: StreamId, peer: Peer, own: Bound) {
        let (Some(connection), Some(total)) = (peer.connection, self.connection) else {
            return self.begin_of_source(io, stream, peer.source, own);
        };
        let sharing = self.within.entry(connection).or_default();
        let source = peer.source;
        sharing.streams.insert(stream, Member { own, source });
        if sharing.takes_count() {
            self.share_out_within(io, connection, total);
        } else {
            let share = share(total, sharing.told);
            self.begin_of_source(io, stream, source, least(own, Some(share)));
        }
    }

    fn begin_of_source(&mut self, io: &mut dyn Io, stream: StreamId, source: Source, own: Bound) {
        let Some(total) = self.source else {
            return set(io, stream, own);
        };
        let sharing = self.sending.entry(source).or_default();
        let member = Member { own, source };
        let is_new = sharing.streams.insert(stream, member).is_none();
        if !(is_new && sharing.share_out(io, total)) {
            set(io, stream, least(own, Some(share(total, sharing.told))));
        }
    }

    /// Ends sending on a stream: others of its peer may use its share.
    pub(crate) fn end(&mut self, io: &mut dyn Io, stream: StreamId, peer: Peer) {
        if let Some(connection) = peer.connection {
            self.end_within(io, stream, connection);
        }
        let (Some(total), Some(sharing)) = (self.source, self.sending.get_mut(&peer.source)) else {
            return;
        };
        let was_sending = sharing.streams.remove(&stream).is_some();
        if sharing.streams.is_empty() {
            self.sending.remove(&peer.source);
        } else if was_sending {
            sharing.share_out(io, total);
        }
    }

    fn end_within(&mut self, io: &mut dyn Io, stream: StreamId, connection: Multiplexed) {
        let Some(sharing) = self.within.get_mut(&connection) else {
            return;
        };
        sharing.streams.remove(&stream);
        if sharing.streams.is_empty() {
            self.within.remove(&connection);
        } else if sharing.takes_count()
            && let Some(total) = self.connection
        {
            self.share_out_within(io, connection, total);
        }
    }

    /// Limits each stream of a connection to its share.
    fn share_out_within(&mut self, io: &mut dyn Io, connection: Multiplexed, total: NonZeroU64) {
        let Some(sharing) = self.within.get(&connection) else {
            return;
        };
        let share = share(total, sharing.told);
        for (stream, Member { own, source }) in sharing.streams.clone() {
            self.begin_of_source(io, stream, source, least(own, Some(share)));
        }
    }
}

/// A sending stream.
#[derive(Clone, Copy, Debug)]
struct Member {
    /// Its own limit.
    own: Bound,
    /// A proxy has streams of several sources on one connection.
    source: Source,
}

/// Sending streams of a source, or of a connection.
#[derive(Debug, Default)]
struct Sharing {
    streams: BTreeMap<StreamId, Member>,
    /// Number of streams on which the current shares are based.
    told: usize,
}

impl Sharing {
    /// Bases the shares on the current number of streams, if it differs by at least a sixteenth
    /// from the number on which they are based. False if it does not.
    fn takes_count(&mut self) -> bool {
        let count = self.streams.len();
        let matters = count.abs_diff(self.told) * SHARE_PARTS >= count;
        if matters {
            self.told = count;
        }
        matters
    }

    /// Limits each stream to its share, if the shares change by more than a sixteenth: an update
    /// whenever a stream comes or goes would cost each response as much as there are streams. False
    /// if the limits did not change.
    fn share_out(&mut self, io: &mut dyn Io, total: NonZeroU64) -> bool {
        if !self.takes_count() {
            return false;
        }
        let share = share(total, self.told);
        for (&stream, &Member { own, .. }) in &self.streams {
            // Shares are equal, except for streams with a lower limit of their own.
            set(io, stream, least(own, Some(share)));
        }
        true
    }
}

/// Reciprocal of the largest error of a share; shares of at most this number of streams are exact.
const SHARE_PARTS: usize = 16;

fn share(total: NonZeroU64, count: usize) -> NonZeroU64 {
    NonZeroU64::new(total.get() / count.max(1) as u64).unwrap_or(NonZeroU64::MIN)
}

/// TCP sends at least two packets at a time. Below this rate, packets of 9000 bytes would be so far
/// apart that a client that takes them looks like one that is gone.
const BYTES_PER_SECOND_MIN: u64 = 1_000;

fn set(io: &mut dyn Io, stream: StreamId, bound: Bound) {
    let bound = bound.map(|bound| bound.get().max(BYTES_PER_SECOND_MIN));
    io.set_max_pacing_rate(stream, bound);
}

/// The lower of two bounds.
pub(crate) fn least(one: Bound, other: Bound) -> Bound {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_is_paced_by_its_bit_rate() {
        let of = |bits, percent, ahead| {
            let bits = NonZeroU64::new(bits).unwrap();
            let percent = NonZeroU32::new(percent).unwrap();
            let pace = Pace::of_media(bits, percent, Duration::from_millis(ahead));
            (pace.bytes_per_second.get(), pace.at_once_bytes)
        };
        assert_eq!(of(4_000_000, 150, 5_000), (750_000, 2_500_000));
        assert_eq!(of(8, 100, 0), (1, 0));
        assert_eq!(of(1, 1, 1), (1, 0));
        assert_eq!(of(u64::MAX, u32::MAX, u64::MAX), (u64::MAX, u64::MAX));
    }
}
