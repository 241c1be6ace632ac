//! Free heap memory goes back to the kernel once a load is over.
//!
//! The C library gives back what is free at the end of its heap, and keeps what is free in the
//! midst of it: after thousands of connections, in any order, most of it. Looking for it takes
//! milliseconds, so that is done while the process is idle.

use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// How often the process is looked at.
const PERIOD: Duration = Duration::from_secs(10);

/// A process that uses less of a core than one part in so many is idle.
const IDLE_PART: u32 = 20;

/// Work that may have left memory behind, in time of a core.
const WORK: Duration = Duration::from_millis(50);

/// Starts a thread that gives free memory back while the process is idle.
pub(crate) fn give_back_when_idle() {
    let started = thread::Builder::new()
        .name("heap".into())
        .stack_size(64 << 10)
        .spawn(|| {
            let mut before = cpu_time();
            let mut trimmed = before;
            loop {
                thread::sleep(PERIOD);
                let now = cpu_time();
                if now - before < PERIOD / IDLE_PART && now - trimmed > WORK {
                    nic::heap::trim();
                    trimmed = cpu_time();
                }
                before = now;
            }
        });
    if let Err(error) = started {
        tracing::warn!(%error, "no thread to give memory back: it stays with the process");
    }
}

/// What the process has used of all cores.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}
