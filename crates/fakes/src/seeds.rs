//! Randomised tests that report the seed of a failure.

/// Runs with the seeds from 1 to `last`, or with that in the environment variable `SEED`, and
/// reports the one that fails. Each run gets a generator of random numbers below its argument.
pub fn each_seed(last: u64, run: fn(&mut dyn FnMut(u64) -> u64)) {
    let only = std::env::var("SEED").map(|seed| seed.parse().unwrap());
    for seed in only.map_or(1..=last, |seed: u64| seed..=seed) {
        let outcome = std::panic::catch_unwind(|| {
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            run(&mut |below| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state % below
            });
        });
        assert!(outcome.is_ok(), "SEED={seed} replays it");
    }
}
