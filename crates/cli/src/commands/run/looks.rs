//! The thread that looks at the program's processes at intervals, as long as this process lives.
//!
//! The interval doubles while a look finds nothing new, so that a program that waits lets the
//! machine sleep.

use std::time::{Duration, Instant};

use crate::commands::run::direct_waits::DirectWaits;
use crate::commands::run::unloaded::Unloaded;

/// Time between looks.
const INTERVAL_MIN: Duration = Duration::from_millis(500);
const INTERVAL_MAX: Duration = Duration::from_secs(8);

/// The part of the time that looks take, at most.
const SHARE_MAX: u32 = 200;

pub(super) fn begin(mut unloaded: Unloaded, mut direct_waits: DirectWaits) {
    std::thread::spawn(move || {
        let mut interval = INTERVAL_MIN;
        loop {
            let begun = Instant::now();
            let has_news = unloaded.look() | direct_waits.look();
            interval = match has_news {
                true => INTERVAL_MIN,
                false => INTERVAL_MAX.min(interval * 2),
            };
            std::thread::sleep(interval.max(begun.elapsed() * SHARE_MAX));
        }
    });
}
