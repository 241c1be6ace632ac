//! The thread that inspects the program's processes at intervals as long as this process lives.
//!
//! After a look without news the next is late, so that a machine with an idle program can sleep.

use std::time::{Duration, Instant};

use crate::commands::run::direct_waits::DirectWaits;
use crate::commands::run::unloaded::Unloaded;

/// Time from a look to the next: after one with news, and after others.
const INTERVAL_OF_NEWS: Duration = Duration::from_millis(500);
const INTERVAL: Duration = Duration::from_secs(30);

/// Inverse of the largest share of time that looks take.
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
