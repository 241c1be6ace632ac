//! Names of what an application and the host stack share.

use std::ops::RangeInclusive;

/// An application: what one attachment was granted. The broker chooses it, and never reuses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AppId(pub u32);

impl AppId {
    /// The number among those of all applications of a file that this one has passed, by the number
    /// that the broker has given it.
    pub const fn passed(self, file: u32) -> u64 {
        (self.0 as u64) << u32::BITS | file as u64
    }

    /// These numbers of all files that it may pass.
    pub const fn all_passed(self) -> RangeInclusive<u64> {
        self.passed(0)..=self.passed(u32::MAX)
    }

    /// The application that has passed the file of such a number.
    pub const fn of_passed(number: u64) -> AppId {
        AppId((number >> u32::BITS) as u32)
    }
}

/// The channel of one process of an application. The broker chooses it, and never reuses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChannelId(pub u32);

/// A descriptor of an application, whose lifetime the kernel counts. The broker numbers them for
/// each application from 0, and reuses no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HandleId(pub u32);

/// A socket: the place of its record in the segment, and a number that tells it from earlier ones
/// of that place. The host stack chooses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SocketId {
    /// Place of the record, from 0.
    pub index: u32,
    /// Counts the sockets of a place, from 1. It may wrap, and passes over 0 then.
    pub generation: u32,
}

impl SocketId {
    /// The name as one word: never 0.
    pub const fn to_raw(self) -> u64 {
        (self.generation as u64) << 32 | self.index as u64
    }

    /// The name that a word holds; `None` if its generation is 0.
    pub const fn from_raw(raw: u64) -> Option<SocketId> {
        let generation = (raw >> 32) as u32;
        if generation == 0 {
            return None;
        }
        Some(SocketId {
            index: raw as u32,
            generation,
        })
    }

    /// The name of the next socket at this place.
    pub const fn next_generation(self) -> SocketId {
        let generation = match self.generation.wrapping_add(1) {
            0 => 1,
            generation => generation,
        };
        SocketId {
            index: self.index,
            generation,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_never_the_zero_word_even_after_all_generations() {
        let last = SocketId {
            index: 7,
            generation: u32::MAX,
        };
        let next = last.next_generation();
        assert_eq!((next.index, next.generation), (7, 1));
        assert_eq!(SocketId::from_raw(last.to_raw()), Some(last));
        assert_eq!(SocketId::from_raw(7), None);
    }
}
