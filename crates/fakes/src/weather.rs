//! Effects of a network on datagrams.

/// Frequency of each effect, per thousand datagrams.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    /// Datagrams lost.
    pub lost: u64,
    /// Datagrams delayed by up to 5 ms, so that others overtake them.
    pub late: u64,
    /// Datagrams with one bit flipped.
    pub damaged: u64,
}

impl Weather {
    /// Returns the delay of a datagram, in microseconds, if it arrives. `random` returns a number
    /// below its argument.
    pub fn fate(self, random: &mut dyn FnMut(u64) -> u64, datagram: &mut [u8]) -> Option<u64> {
        if random(1000) < self.lost {
            return None;
        }
        if random(1000) < self.damaged {
            let at = random(datagram.len() as u64) as usize;
            datagram[at] ^= 1 << random(8);
        }
        let is_late = random(1000) < self.late;
        let late_us = if is_late { random(5000) } else { 0 };
        Some(10_000 + late_us)
    }
}
