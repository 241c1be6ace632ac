//! Returns free heap memory to the kernel after a load.
//!
//! The C library returns free memory at the end of its heap, and keeps free memory in the middle:
//! after thousands of connections, freed in any order, most of the heap. The search for such memory
//! takes milliseconds, so it runs while the process is idle.

use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Interval between checks of the process.
const PERIOD: Duration = Duration::from_secs(10);

/// Inverse of the largest share of a core that counts as idle.
const IDLE_PART: u32 = 20;

/// CPU time after which memory may have been left behind.
const WORK: Duration = Duration::from_millis(50);

/// Starts a thread that returns free memory while the process is idle.
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

/// Returns the CPU time of the process on all cores.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}
