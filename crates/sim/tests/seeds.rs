//! The scenarios of many seeds. `SIM_SEED` runs one seed only, `SIM_SEEDS` so many instead of the
//! default.

use std::env;

use sim::{Options, Report, replay_command, run};

/// Seeds in all, unless told otherwise.
const SEEDS: u64 = 2_400;

/// Tests that they are divided among, which run at the same time.
const SHARES: u64 = 4;

/// A test gives up after so many seeds that have failed.
const COMPLAINTS_MAX: usize = 10;

fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

/// The broken promises of a run, and how to see them.
fn complaint(report: &Report) -> Option<String> {
    let violation = report.violation.as_ref()?;
    let (seed, replay) = (report.seed, replay_command(report.seed));
    Some(format!(
        "seed {seed}: {violation}\n    replay it with: {replay}"
    ))
}

fn share(share: u64) {
    let seeds = match number("SIM_SEED") {
        Some(seed) if share == 0 => seed..seed + 1,
        Some(_) => return,
        None => share..number("SIM_SEEDS").unwrap_or(SEEDS),
    };
    let reports = seeds
        .step_by(SHARES as usize)
        .map(|seed| run(seed, &Options::default()));
    let complaints: Vec<String> = reports
        .filter_map(|report| complaint(&report))
        .take(COMPLAINTS_MAX)
        .collect();
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn every_promise_holds_for_the_first_share_of_seeds() {
    share(0);
}

#[test]
fn every_promise_holds_for_the_second_share_of_seeds() {
    share(1);
}

#[test]
fn every_promise_holds_for_the_third_share_of_seeds() {
    share(2);
}

#[test]
fn every_promise_holds_for_the_fourth_share_of_seeds() {
    share(3);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..40 {
        let [first, second] = [0, 1].map(|_| run(seed, &Options::default()));
        assert_eq!(first, second);
    }
}

#[test]
fn another_seed_gives_another_run() {
    let [first, second] = [1, 2].map(|seed| run(seed, &Options::default()));
    assert_ne!(first.hash, second.hash);
}
