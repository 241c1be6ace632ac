//! Paced SENDs: no superpacket leaves before its time, and nothing overtakes one that waits.

mod support;

use contract::limits::HOLD_US_MAX;
use contract::{Command, FlowId, Segment, SendId};
use nic::{Config, Counters, Sleep};
use support::{MSS, Stage, content, departed, header, range, small_config};
use wire::tcp::Flags;

trait Paced {
    fn paced(&mut self, id: u64, flow: u64, offset: u64, segment: Segment<'_>, delay_us: u64);
    fn departed_after(&mut self, us: u64) -> Vec<u64>;
}

impl Paced for Stage {
    /// Issues a SEND that is to leave `delay_us` from now at the earliest.
    fn paced(&mut self, id: u64, flow: u64, offset: u64, segment: Segment<'_>, delay_us: u64) {
        let now_us = self.now_us.get();
        self.tell(&Command::Send(contract::Send {
            id: SendId(id),
            flow: FlowId(flow),
            stream_offset: offset,
            acked_offset: 0,
            issued_us: now_us,
            not_before_us: if delay_us == 0 { 0 } else { now_us + delay_us },
            tsval_fraction_us: 0,
            follow_bytes: 0,
            mss: MSS,
            header: &header(flow, offset, Flags::ACK, 5000),
            segments: [segment].into(),
        }));
    }

    /// Lets time pass, and says what has departed then.
    fn departed_after(&mut self, us: u64) -> Vec<u64> {
        self.now_us.set(self.now_us.get() + us);
        departed(&self.take_events())
            .iter()
            .map(|id| id.0)
            .collect()
    }
}

const BYTES: Segment<'static> = Segment::Inline(b"0123456789");

#[test]
fn a_paced_send_leaves_at_its_time_and_not_a_microsecond_earlier() {
    let mut stage = Stage::new();
    stage.paced(1, 1, 0, BYTES, 5_000);
    assert_eq!(stage.departed_after(0), []);
    assert_eq!(stage.worker.prepare_sleep(), Sleep::UntilWoken);
    stage.worker.finish_sleep();
    let due_us = stage.now_us.get() + 5_000;
    assert_eq!(stage.worker.next_timeout_us(), Some(due_us));

    assert_eq!(stage.departed_after(4_999), []);
    assert_eq!(stage.wire.packets(), []);
    assert_eq!(stage.departed_after(1), [1]);
    assert_eq!(stage.worker.next_timeout_us(), None);
    // The time on the wheel counts as time spent here: the timestamp names the departure.
    assert_eq!(stage.wire.packets()[0].timestamp(), 5005);
    assert_eq!(stage.counters().paced, 1);
    assert_eq!(stage.counters().paced_late_max_us, 0);
}

#[test]
fn reading_does_not_wait_for_the_departure() {
    let mut stage = Stage::new();
    let file = content(100_000);
    stage.disk.put(b"a", file.clone());
    stage.open(1, b"a");
    stage.paced(1, 1, 0, range(1, 0, 100_000), 5_000);
    assert_eq!(stage.departed_after(0), []);
    assert_eq!(stage.counters().read_bytes, 100_000);

    stage.disk.hold(b"a");
    assert_eq!(stage.departed_after(5_000), [1]);
    assert_eq!(stage.wire.streams()[&1], file);
}

#[test]
fn a_read_that_takes_longer_delays_the_departure_and_that_is_counted() {
    let mut stage = Stage::new();
    stage.disk.put(b"a", content(1000));
    stage.open(1, b"a");
    stage.disk.hold(b"a");
    stage.paced(1, 1, 0, range(1, 0, 1000), 500);
    assert_eq!(stage.departed_after(500), []);
    assert_eq!(stage.departed_after(1_200), []);
    stage.disk.release(b"a");
    assert_eq!(stage.departed_after(0), [1]);
    let Counters {
        paced_late_us,
        paced_late_max_us,
        paced_late,
        ..
    } = stage.counters();
    assert_eq!(
        (paced_late_us, paced_late_max_us, paced_late),
        (1_200, 1_200, 1)
    );
}

#[test]
fn later_sends_of_the_flow_wait_behind_and_other_flows_do_not() {
    let mut stage = Stage::new();
    stage.paced(1, 1, 0, BYTES, 3_000);
    stage.paced(2, 1, 10, BYTES, 0);
    stage.paced(3, 1, 20, BYTES, 1_000);
    stage.paced(4, 1, 30, BYTES, 7_000);
    stage.paced(5, 2, 0, BYTES, 0);
    assert_eq!(stage.departed_after(0), [5]);
    assert_eq!(stage.departed_after(2_999), []);
    assert_eq!(stage.departed_after(1), [1, 2, 3]);
    assert_eq!(stage.departed_after(3_999), []);
    assert_eq!(stage.departed_after(1), [4]);
    let offsets: Vec<usize> = stage.wire.packets()[1..]
        .iter()
        .map(|packet| packet.stream_offset())
        .collect();
    assert_eq!(offsets, [0, 10, 20, 30]);
}

#[test]
fn a_send_that_asks_for_too_much_is_held_for_as_long_as_the_contract_allows() {
    let mut stage = Stage::new();
    stage.paced(1, 1, 0, BYTES, HOLD_US_MAX);
    stage.paced(2, 2, 0, BYTES, HOLD_US_MAX + 1);
    stage.paced(3, 3, 0, BYTES, u64::MAX - stage.now_us.get());
    assert_eq!(stage.departed_after(0), []);
    assert_eq!(stage.departed_after(HOLD_US_MAX - 1), []);
    let mut all = stage.departed_after(1);
    all.sort_unstable();
    assert_eq!(all, [1, 2, 3]);
    assert_eq!(stage.counters().holds_shortened, 2);
}

#[test]
fn a_host_whose_clock_is_ahead_is_not_held_for_the_difference() {
    let mut stage = Stage::new();
    let here_us = stage.now_us.get();
    stage.now_us.set(here_us + 3_600_000_000);
    stage.paced(1, 1, 0, BYTES, 1_000);
    // The worker takes it an hour earlier, by its own clock.
    stage.now_us.set(here_us);
    assert_eq!(stage.departed_after(0), []);
    assert_eq!(stage.departed_after(999), []);
    assert_eq!(stage.departed_after(1), [1]);
}

#[test]
fn the_end_of_a_flow_takes_it_off_the_wheel() {
    let mut stage = Stage::with(&Config {
        jobs_max: 2,
        ..small_config()
    });
    for id in 0..1000 {
        stage.paced(id, 1, 0, BYTES, 1_000_000);
        assert_eq!(stage.departed_after(0), []);
        assert!(stage.worker.next_timeout_us().is_some());
        stage.acked(1, 0, true);
        assert_eq!(stage.departed_after(0), []);
        assert_eq!(stage.worker.next_timeout_us(), None);
    }
    stage.paced(2000, 1, 0, BYTES, 0);
    assert_eq!(stage.departed_after(0), [2000]);
    assert_eq!(stage.departed_after(2_000_000), []);
}

#[test]
fn a_send_without_a_time_is_not_paced() {
    let mut stage = Stage::new();
    stage.paced(1, 1, 0, BYTES, 0);
    assert_eq!(stage.departed_after(0), [1]);
    assert_eq!(stage.counters().paced, 0);
}

/// Random flows, times and reads: every superpacket leaves at or after its time, every flow in
/// order.
#[test]
fn any_mix_of_paced_sends_leaves_in_order_and_in_time() {
    for seed in 1..30u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut random = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let mut stage = Stage::new();
        stage.disk.put(b"a", content(4000));
        stage.open(1, b"a");
        let mut offsets = [0u64; 5];
        // Of each SEND: its flow, and when it may leave.
        let mut due_us = Vec::new();
        let mut seen = [0u64; 5];
        while due_us.len() < 200 || seen != offsets {
            if due_us.len() < 200 {
                let flow = random(5);
                let delay_us = [0, random(300), random(20_000)][random(3) as usize];
                let segment = match random(2) {
                    0 => Segment::Inline(b"0123456789012345678901234567890123456789"),
                    _ => range(1, random(3900), 40),
                };
                let id = due_us.len() as u64;
                stage.paced(id, flow, offsets[flow as usize], segment, delay_us);
                offsets[flow as usize] += 40;
                due_us.push((flow, stage.now_us.get() + delay_us));
            }
            for id in stage.departed_after(random(400)) {
                let (flow, due_us) = due_us[id as usize];
                assert!(stage.now_us.get() >= due_us, "early; seed {seed}");
                seen[flow as usize] += 40;
            }
            for packet in stage.wire.take() {
                let flow = packet.flow().0 as usize;
                assert!(packet.stream_offset() as u64 + 40 <= offsets[flow]);
            }
        }
        assert_eq!(stage.worker.next_timeout_us(), None, "seed {seed}");
    }
}
