//! What a network does to datagrams.

/// How often, in parts of a thousand.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    /// They do not arrive.
    pub lost: u64,
    /// They take up to 5 ms longer, and so others overtake them.
    pub late: u64,
    /// They arrive with a bit turned round.
    pub damaged: u64,
}

impl Weather {
    /// How long a datagram takes, in microseconds, if it arrives. `random` returns a number below
    /// its argument.
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
