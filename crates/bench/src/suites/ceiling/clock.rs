//! Clock frequency of a core, which virtual machines do not report.

use std::hint::black_box;

use rustix::time::{ClockId, clock_gettime};

/// Latency of a 64-bit multiplication whose operand is the previous product, in cycles, on every
/// x86 CPU since 2008 (Agner Fog, instruction tables).
const MULTIPLICATION_CYCLES: f64 = 3.0;

const MULTIPLICATIONS: u64 = 100_000_000;

/// Returns the frequency of the current core, in GHz.
pub(super) fn core_ghz() -> f64 {
    let begun_ns = own_cpu_ns();
    let mut product = black_box(0x9e37_79b9_7f4a_7c15_u64);
    for _ in 0..MULTIPLICATIONS {
        product = product.wrapping_mul(product);
    }
    black_box(product);
    MULTIPLICATIONS as f64 * MULTIPLICATION_CYCLES / (own_cpu_ns() - begun_ns) as f64
}

fn own_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
