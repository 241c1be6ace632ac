//! What the switches for measurements take away: the host stack without the echo, and round-trip
//! times from timestamps alone (IO-TCP §3.5, figure 10).

mod rig;

use std::time::Duration;

use fakes::nic::Work;
use host::StackConfig;
use rig::{Rig, answer};

/// The NIC stack takes 50 ms to read, which is longer than the RTO.
fn retransmissions_behind_a_slow_disk(change: impl FnOnce(&mut StackConfig)) -> (u64, u64) {
    let mut rig = Rig::with(change);
    rig.ask(&["20000"]);
    rig.nic_works = false;
    let mut waiting = Vec::new();
    for _ in 0..5_000 {
        rig.step();
        while let Some(work) = rig.nic.work.pop_front() {
            let ready_us = match work {
                Work::Open(..) => rig.now_us,
                Work::Send { .. } => rig.now_us + 50_000,
            };
            waiting.push((ready_us, work));
        }
        // In order: nothing overtakes what the NIC stack has.
        while waiting
            .first()
            .is_some_and(|(ready_us, _)| *ready_us <= rig.now_us)
        {
            let (_, work) = waiting.remove(0);
            rig.carry_out(work);
        }
    }
    assert!(rig.received == answer(20_000), "every byte, in any case");
    let counters = rig.stack.counters();
    (counters.timeouts, counters.retransmissions)
}

#[test]
fn with_the_echo_a_slow_disk_causes_no_timeout() {
    let with_echo = |config: &mut StackConfig| config.tcp.rto_min = Duration::from_millis(5);
    assert_eq!(retransmissions_behind_a_slow_disk(with_echo), (0, 0));
}

#[test]
fn without_the_echo_the_timer_runs_while_the_disk_is_read() {
    let (timeouts, retransmissions) = retransmissions_behind_a_slow_disk(|config| {
        config.tcp.rto_min = Duration::from_millis(5);
        config.departs_at_issue = true;
    });
    assert!(
        timeouts > 0 && retransmissions > 0,
        "{timeouts} {retransmissions}"
    );
}

#[test]
fn without_the_echo_real_bytes_still_stay_behind_virtual_ones() {
    let mut rig = Rig::with(|config| config.departs_at_issue = true);
    rig.ask(&["3000", "nonsense"]);
    let inline_behind = rig.inline_bytes_of_sends_kept();
    // Probes of the tail may repeat what stands at the end.
    assert!(inline_behind >= 4, "`ok` before the file, `no` behind it");
    assert!(rig.received.is_empty());
}

/// More of them than one SEND takes.
#[test]
fn without_the_echo_many_real_bytes_stay_behind_virtual_ones_as_well() {
    let mut rig = Rig::with(|config| config.departs_at_issue = true);
    rig.ask(&["3000"]);
    let before = rig.inline_bytes_of_sends_kept();
    rig.ask(&["real 10000"]);
    let inline_behind = rig.inline_bytes_of_sends_kept();
    assert!(inline_behind >= 10_000, "{before}, then {inline_behind}");
    assert!(rig.received.is_empty());
}

#[test]
fn both_kinds_of_round_trip_time_are_counted() {
    for rtt_from_timestamps in [false, true] {
        let mut rig = Rig::with(|config| config.tcp.rtt_from_timestamps = rtt_from_timestamps);
        rig.ask(&["500000"]);
        rig.run_until(|rig| rig.received.len() == 500_002);
        let counters = rig.stack.counters();
        let used_us = counters.round_trips_us / counters.round_trips;
        let told_us = counters.timestamp_round_trips_us / counters.timestamp_round_trips;
        assert!((1_000..=2_000).contains(&told_us), "{told_us}");
        // The link takes 100 us in each direction, and timestamps tell milliseconds.
        assert_eq!(used_us < 1_000, !rtt_from_timestamps, "{used_us}");
    }
}
