//! IDs of a connection's streams (RFC 9113 §5.1.1): the last one, those that were skipped, and
//! those that this side has reset.

use std::collections::VecDeque;

use crate::code::{Code, Fault};

/// Most runs of skipped IDs kept: no client has a reason to skip any.
const SKIPPED_RUNS_MAX: usize = 32;

/// Most IDs kept of streams that this side has reset: frames of theirs may be in flight.
const RESET_IDS_MAX: usize = 128;

/// A frame on a closed stream, which the connection does not survive.
pub const CLOSED: Fault =
    Fault::Connection(Code::STREAM_CLOSED, "a frame on a stream that is closed");

/// The IDs of a client's streams, which are odd, at either end of a connection.
#[derive(Clone, Debug, Default)]
pub struct StreamIds {
    last: u32,
    /// First and last ID of each run that the client has skipped, and may use no more.
    skipped: VecDeque<[u32; 2]>,
    reset: VecDeque<u32>,
}

impl StreamIds {
    /// The greatest ID so far; 0 if there is none.
    pub fn last(&self) -> u32 {
        self.last
    }

    /// True if no frame but HEADERS and PRIORITY may have this ID yet (§5.1, "idle").
    pub fn is_idle(&self, id: u32) -> bool {
        id > self.last || id.is_multiple_of(2)
    }

    /// True if HEADERS with this ID open a stream; false if they are trailers.
    ///
    /// # Errors
    /// A client cannot use the ID, or has skipped it.
    pub fn is_new(&self, id: u32) -> Result<bool, Fault> {
        if id.is_multiple_of(2) {
            return Err(Fault::protocol("a stream of a client with an even ID"));
        }
        if id > self.last {
            return Ok(true);
        }
        let mut skipped = self.skipped.iter();
        match skipped.any(|&[first, last]| (first..=last).contains(&id)) {
            true => Err(Fault::protocol("a stream with an ID below the last one")),
            false => Ok(false),
        }
    }

    /// Notes the ID of a new stream, and those that it skips.
    pub fn open(&mut self, id: u32) {
        debug_assert!(self.is_new(id) == Ok(true), "an ID of a new stream");
        let between = [self.last + 1, id - 1];
        if between[0] | 1 <= between[1] {
            if self.skipped.len() == SKIPPED_RUNS_MAX {
                self.skipped.pop_front();
            }
            self.skipped.push_back(between);
        }
        self.last = id;
    }

    /// This side resets a stream.
    pub fn note_reset(&mut self, id: u32) {
        if self.reset.len() == RESET_IDS_MAX {
            self.reset.pop_front();
        }
        self.reset.push_back(id);
    }

    /// True if this side has reset the stream, as far as that is kept.
    pub fn is_reset(&self, id: u32) -> bool {
        self.reset.contains(&id)
    }

    /// Checks a frame of a stream that is gone.
    ///
    /// # Errors
    /// The frame was not in flight when this side reset the stream.
    pub fn check_gone(&self, id: u32) -> Result<(), Fault> {
        match self.is_reset(id) {
            true => Ok(()),
            false => Err(CLOSED),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: RFC 9113 §5.1.1
    #[test]
    fn ids_grow_and_those_that_are_skipped_open_nothing() {
        let mut ids = StreamIds::default();
        assert!(ids.is_idle(1) && ids.is_idle(2));
        for id in [1, 7, 9] {
            assert_eq!(ids.is_new(id), Ok(true), "{id}");
            ids.open(id);
            assert_eq!((ids.last(), ids.is_new(id)), (id, Ok(false)));
        }
        for id in [0, 2, 3, 5, 8, 12] {
            assert!(
                matches!(
                    ids.is_new(id),
                    Err(Fault::Connection(Code::PROTOCOL_ERROR, _))
                ),
                "{id}"
            );
        }
        assert!(!ids.is_idle(3) && ids.is_idle(8) && ids.is_idle(11));
    }

    #[test]
    fn frames_of_streams_that_were_reset_may_be_in_flight_and_the_oldest_are_forgotten() {
        let mut ids = StreamIds::default();
        assert_eq!(ids.check_gone(1), Err(CLOSED));
        for id in 0..=RESET_IDS_MAX as u32 {
            ids.note_reset(2 * id + 1);
        }
        assert!(!ids.is_reset(1) && ids.is_reset(3));
        assert_eq!(ids.check_gone(3), Ok(()));
        for run in 0..=SKIPPED_RUNS_MAX as u32 {
            ids.open(4 * run + 3);
        }
        assert_eq!(ids.is_new(1), Ok(false), "the oldest run is forgotten");
        assert!(ids.is_new(5).is_err());
    }
}
