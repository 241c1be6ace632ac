//! The thread that looks at the program's processes at intervals, as long as this process lives.
//!
//! Where a look finds nothing new, the next is late, so that a program that waits lets the machine
//! sleep.

use std::time::{Duration, Instant};

use crate::commands::run::direct_waits::DirectWaits;
use crate::commands::run::unloaded::Unloaded;

/// Time to the next look, behind one with news and behind others.
const INTERVAL_OF_NEWS: Duration = Duration::from_millis(500);
const INTERVAL: Duration = Duration::from_secs(30);

/// The part of the time that looks take, at most.
const SHARE_MAX: u32 = 200;

pub(super) fn begin(mut unloaded: Unloaded, mut direct_waits: DirectWaits) {
    std::thread::spawn(move || {
        loop {
            let begun = Instant::now();
            let has_news = unloaded.look() | direct_waits.look();
            let interval = match has_news {
                true => INTERVAL_OF_NEWS,
                false => INTERVAL,
            };
            std::thread::sleep(interval.max(begun.elapsed() * SHARE_MAX));
        }
    });
}
