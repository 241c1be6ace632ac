//! IDs shared by an application and the host stack.

use std::ops::RangeInclusive;

/// An application. The broker chooses the number, and never reuses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AppId(pub u32);

impl AppId {
    /// Returns the number, unique among all applications, of a file that this application has
    /// passed, from the broker's number.
    pub const fn passed(self, file: u32) -> u64 {
        (self.0 as u64) << u32::BITS | file as u64
    }

    /// Returns the numbers of all files that it may pass.
    pub const fn all_passed(self) -> RangeInclusive<u64> {
        self.passed(0)..=self.passed(u32::MAX)
    }

    /// Returns the application that has passed the file with this number.
    pub const fn of_passed(number: u64) -> AppId {
        AppId((number >> u32::BITS) as u32)
    }
}

/// Channel of one process of an application. The broker chooses the number, and never reuses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChannelId(pub u32);

/// A descriptor of an application, whose lifetime the kernel tracks. The broker numbers them per
/// application from 0, and reuses no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HandleId(pub u32);

/// A socket: the place of its record in the segment, and a generation that distinguishes it from
/// earlier sockets of the place. The host stack chooses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SocketId {
    /// Place of the record, from 0.
    pub index: u32,
    /// Number of the socket among those of its place, from 1. It may wrap, and skips 0.
    pub generation: u32,
}

impl SocketId {
    /// Encodes the ID as one word, never 0.
    pub const fn to_raw(self) -> u64 {
        (self.generation as u64) << 32 | self.index as u64
    }

    /// Decodes an ID; `None` if its generation is 0.
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

    /// Returns the ID of the next socket at this place.
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
