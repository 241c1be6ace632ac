//! NIC stacks that start again, and that go: whatever of a record has left stays what it was, or
//! nothing more leaves.

use contract::Event;
use host::app::CloseReason;
use tls::{Settings, Suite};

use crate::client::Secured;
use crate::rig::answer;
use fakes::keys::SUITES;
use fakes::nic::Work;
use fakes::seeds::each_seed;

const SIZE: u64 = 150_000;

fn expected() -> Vec<u8> {
    answer(SIZE)
}

/// The client has asked, and so many steps have gone by since.
fn after_steps(suite: Suite, steps: usize) -> Secured {
    let mut secured = Secured::new(suite);
    secured.ask(&[&SIZE.to_string()]);
    for _ in 0..steps {
        secured.step();
    }
    secured
}

/// A NIC stack that has ended is followed by another one, at whatever moment, and the download goes
/// on.
#[test]
fn a_nic_stack_that_has_ended_may_be_followed_by_another_at_any_step() {
    for steps in 0..80 {
        let suite = SUITES[steps % SUITES.len()];
        let mut secured = after_steps(suite, steps);
        secured.restart_nic(true);
        secured.run_until(|secured| secured.received.len() as u64 >= SIZE + 2);
        assert!(secured.received == expected(), "after {steps} steps");
        let counters = secured.rig.stack.counters();
        assert_eq!(counters.tls_records_unproven, 0);
        assert_eq!(counters.timeouts, 0, "what never left is not lost");
    }
}

#[test]
fn nic_stacks_may_follow_each_other_all_the_time() {
    for gap in 2..40 {
        let mut secured = Secured::new(SUITES[gap % SUITES.len()]);
        secured.ask(&[&SIZE.to_string()]);
        let mut steps = 0;
        while (secured.received.len() as u64) < SIZE + 2 {
            secured.step();
            steps += 1;
            if steps % gap == 0 {
                secured.restart_nic(true);
            }
            assert!(steps < 100_000, "gap {gap}");
        }
        assert!(secured.received == expected(), "gap {gap}");
        assert_eq!(secured.rig.stack.counters().tls_records_unproven, 0);
    }
}

/// The SENDs of the first window, one after the other as they wait in the NIC stack.
pub(crate) fn with_sends_waiting() -> Secured {
    let mut secured = Secured::new(SUITES[1]);
    secured.ask(&[&SIZE.to_string()]);
    secured.rig.nic_works = false;
    loop {
        secured.step();
        match secured.rig.nic.work.front() {
            Some(Work::Open(..)) => {
                let open = secured.rig.nic.work.pop_front().unwrap();
                secured.rig.carry_out(open);
            }
            Some(Work::Send { .. }) => return secured,
            None => {}
        }
    }
}

/// All that waits leaves, and is reported; the frames get lost on the way.
fn depart_into_nowhere(secured: &mut Secured) {
    while let Some(work) = secured.rig.nic.work.pop_front() {
        let Work::Send { id, .. } = work else {
            panic!("a SEND");
        };
        let nic = &mut secured.rig.nic;
        for event in nic.sealer.as_mut().unwrap().leave(id) {
            nic.report(&event);
        }
    }
}

/// It dies between telling the tags and the host's reading them.
#[test]
fn tags_that_a_nic_stack_told_last_are_read_after_its_end() {
    let mut secured = with_sends_waiting();
    depart_into_nowhere(&mut secured);
    assert!(secured.world.records() > 0);
    secured.restart_nic(true);
    secured.rig.nic_works = true;
    secured.run_until(|secured| secured.received.len() as u64 >= SIZE + 2);
    assert!(secured.received == expected());
    assert!(
        secured.world.sealed_again.get() > 0,
        "and found to be the same"
    );
}

/// The same, and the file is another one when it is read again, though nothing says so.
#[test]
fn a_record_that_would_be_another_one_is_not_sent_again() {
    let mut secured = with_sends_waiting();
    depart_into_nowhere(&mut secured);
    secured.world.version.set(1);
    secured.restart_nic(true);
    secured.rig.nic_works = true;
    secured.run_until(|secured| secured.rig.client_closed.is_some());
    assert_eq!(secured.rig.client_closed, Some(tcp::CloseReason::Reset));
    assert_eq!(secured.close_reason(), Some(CloseReason::DataPlaneFailed));
    assert_eq!(secured.rig.stack.counters().tls_seal_mismatches, 1);
    assert!(secured.received.is_empty());
    secured.step();
    assert_eq!(secured.rig.stack.usage().files, 0);
}

/// Of what was defined and has not left, no tag is known, and none is needed: the new content is
/// the first.
#[test]
fn a_record_that_never_left_may_become_another_one() {
    let mut secured = with_sends_waiting();
    secured.world.version.set(0x55);
    secured.restart_nic(true);
    secured.rig.nic_works = true;
    secured.run_until(|secured| secured.received.len() as u64 >= SIZE + 2);
    let (header, body) = secured.received.split_at(2);
    assert_eq!(header, b"ok");
    let changed: Vec<u8> = expected()[2..].iter().map(|byte| byte ^ 0x55).collect();
    assert!(body == changed);
    assert_eq!(secured.rig.stack.counters().tls_seal_mismatches, 0);
}

/// It may still be sending, or its events may have been lost: what has left is unknown.
#[test]
fn a_nic_stack_whose_end_is_not_known_takes_connections_with_it_that_have_records_without_tags() {
    let mut secured = with_sends_waiting();
    secured.restart_nic(false);
    secured.rig.nic_works = true;
    secured.run_until(|secured| secured.rig.client_closed.is_some());
    assert_eq!(secured.rig.client_closed, Some(tcp::CloseReason::Reset));
    assert_eq!(secured.close_reason(), Some(CloseReason::DataPlaneFailed));
    assert_eq!(secured.rig.stack.counters().tls_records_unproven, 1);
    assert_eq!(secured.world.records(), 0, "nothing was sealed again");

    // Those whose tags are all known go on, and so do new ones.
    let mut secured = with_sends_waiting();
    depart_into_nowhere(&mut secured);
    secured.restart_nic(false);
    secured.rig.nic_works = true;
    secured.run_until(|secured| secured.received.len() as u64 >= SIZE + 2);
    assert!(secured.received == expected());
    assert_eq!(secured.rig.stack.counters().tls_records_unproven, 0);
}

/// The NIC stack on the other machine has ended, and its relay has passed on all that it has said.
#[test]
fn a_nic_stack_elsewhere_proves_its_end_by_saying_so_last() {
    for is_read_before in [false, true] {
        let mut secured = with_sends_waiting();
        secured.rig.stack.set_nic_elsewhere(0);
        secured.rig.nic.report(&Event::Ended);
        if is_read_before {
            secured.step();
        }
        secured.restart_nic(false);
        secured.rig.nic_works = true;
        secured.run_until(|secured| secured.received.len() as u64 >= SIZE + 2);
        assert!(secured.received == expected());
        let counters = secured.rig.stack.counters();
        assert_eq!(
            (counters.tls_records_unproven, counters.events_invalid),
            (0, 0)
        );
    }
}

/// It is the socket's hang-up that proves it, which has not come.
#[test]
fn a_nic_stack_on_this_machine_proves_nothing_by_saying_that_it_has_ended() {
    let mut secured = with_sends_waiting();
    secured.rig.nic.report(&Event::Ended);
    secured.restart_nic(false);
    secured.rig.nic_works = true;
    secured.run_until(|secured| secured.rig.client_closed.is_some());
    assert_eq!(secured.rig.stack.counters().tls_records_unproven, 1);
}

/// An event is wrong, or one was lost.
#[test]
fn an_end_that_something_follows_or_that_follows_nonsense_proves_nothing() {
    let again = || Event::Rejected {
        reason: contract::RejectReason::UnknownKey,
        id: u64::MAX,
    };
    let nonsense: fn(&mut Secured) = |secured| {
        secured.rig.nic.channel.send_record(&[0xee; 16]).unwrap();
    };
    for is_read_before in [false, true] {
        for ends_first in [false, true] {
            let mut secured = with_sends_waiting();
            secured.rig.stack.set_nic_elsewhere(0);
            if !ends_first {
                nonsense(&mut secured);
            }
            secured.rig.nic.report(&Event::Ended);
            if ends_first {
                secured.rig.nic.report(&again());
            }
            if is_read_before {
                secured.step();
                assert!(secured.rig.stack.counters().events_invalid > 0);
            }
            secured.restart_nic(true);
            secured.rig.nic_works = true;
            secured.run_until(|secured| secured.rig.client_closed.is_some());
            assert_eq!(secured.rig.stack.counters().tls_records_unproven, 1);
        }
    }
}

/// The relay has ended, and has not heard all that the NIC stack on the other machine has said.
#[test]
fn the_end_of_a_relay_proves_nothing() {
    let mut secured = with_sends_waiting();
    secured.rig.stack.set_nic_elsewhere(0);
    secured.restart_nic(true);
    secured.rig.nic_works = true;
    secured.run_until(|secured| secured.rig.client_closed.is_some());
    assert_eq!(secured.rig.stack.counters().tls_records_unproven, 1);
}

/// Whether it is read before the end is known, or because of it.
#[test]
fn a_ring_that_makes_no_sense_proves_nothing() {
    for is_read_before in [false, true] {
        let mut secured = with_sends_waiting();
        secured.rig.nic.channel.send_record(&[0xee; 16]).unwrap();
        secured.rig.nic.channel.flush();
        if is_read_before {
            secured.step();
            assert_eq!(secured.rig.stack.counters().events_invalid, 1);
        }
        secured.restart_nic(true);
        secured.rig.nic_works = true;
        secured.run_until(|secured| secured.rig.client_closed.is_some());
        assert_eq!(secured.rig.stack.counters().tls_records_unproven, 1);
    }
}

/// Its commands would never leave, and without a notice.
#[test]
fn a_nic_stack_that_is_to_end_is_handed_nothing_more() {
    let mut secured = with_sends_waiting();
    while let Some(Work::Send { id, flow, .. }) = secured.rig.nic.work.pop_front() {
        let (nic, departed_us) = (&mut secured.rig.nic, secured.rig.now_us);
        for event in nic.sealer.as_mut().unwrap().leave(id) {
            nic.report(&event);
        }
        nic.report(&Event::Departed {
            send: id,
            flow,
            departed_us,
        });
    }
    secured.rig.stack.on_nic_ending(0);
    let sends = secured.rig.stack.counters().sends;
    // All is lost, and would be sent again.
    secured.run_until(|secured| secured.rig.stack.counters().timeouts > 0);
    for _ in 0..10 {
        secured.step();
    }
    assert_eq!(secured.rig.stack.counters().sends, sends);
    // Its end does not become known.
    secured.restart_nic(false);
    secured.rig.nic_works = true;
    secured.run_until(|secured| secured.received.len() as u64 >= SIZE + 2);
    assert!(secured.received == expected());
    assert_eq!(secured.rig.stack.counters().tls_records_unproven, 0);
}

#[test]
fn a_download_goes_on_from_a_replica_if_what_it_has_is_the_same() {
    for is_same in [true, false] {
        let settings = Settings::default();
        let mut secured = Secured::with(SUITES[1], &settings, 2, |config| {
            config.roots_are_replicas = true;
        });
        secured.ask(&["1000000"]);
        secured.run_until(|secured| secured.received.len() > 100_000);
        let serving = (0..2)
            .find(|&nic| secured.rig.nic(nic).file_bytes > 0)
            .unwrap();
        if !is_same {
            secured.world.version.set(7);
        }
        secured.lose_nic(serving, true);
        match is_same {
            true => {
                secured.run_until(|secured| secured.received.len() == 1_000_002);
                assert!(secured.received == answer(1_000_000));
                assert!(secured.rig.nic(1 - serving).file_bytes > 500_000);
            }
            // Of records that have left in part, the rest is not to be had.
            false => {
                secured.run_until(|secured| secured.rig.client_closed.is_some());
                assert_eq!(secured.rig.stack.counters().tls_seal_mismatches, 1);
            }
        }
        assert_eq!(secured.rig.stack.counters().events_invalid, 0);
    }
}

#[test]
fn a_download_waits_for_its_nic_stack_and_goes_on_when_that_is_back() {
    let mut secured = Secured::new(SUITES[4]);
    secured.ask(&["1000000"]);
    secured.run_until(|secured| secured.received.len() > 100_000);
    secured.lose_nic(0, true);
    for _ in 0..1_000 {
        secured.step();
    }
    assert!(secured.received.len() < 1_000_000);
    secured.bring_nic(0);
    secured.run_until(|secured| secured.received.len() == 1_000_002);
    assert!(secured.received == answer(1_000_000));
}

#[test]
fn files_that_different_nic_stacks_have_come_on_one_connection() {
    let settings = Settings::default();
    let mut secured = Secured::with(SUITES[0], &settings, 2, |_| {});
    secured
        .rig
        .nic(0)
        .lacks
        .extend(["2000".to_owned(), "40000".to_owned()]);
    secured
        .rig
        .nic(1)
        .lacks
        .extend(["3000".to_owned(), "5000".to_owned()]);
    for size in [2_000, 3_000, 40_000, 5_000, 2_000] {
        secured.received.clear();
        secured.ask(&[&size.to_string()]);
        secured.run_until(|secured| secured.received.len() == size + 2);
        assert!(secured.received == answer(size as u64));
    }
    assert_eq!(secured.rig.stack.counters().events_invalid, 0);
}

/// Lost packets, lost echoes, keys replaced from both sides, and NIC stacks that start again:
/// whatever the client gets is right, and it gets everything.
#[test]
fn any_mix_survives_losses_and_restarts() {
    each_seed(60, mix);
}

fn mix(random: &mut dyn FnMut(u64) -> u64) {
    let suite = SUITES[random(6) as usize];
    let settings = Settings {
        limits: tls::Limits {
            // TLS 1.2 has one key only.
            records_per_key_max: match suite.version {
                tls::Version::Tls13 => [8, 1 << 20][random(2) as usize],
                tls::Version::Tls12 => 1 << 20,
            },
            ..tls::Limits::default()
        },
        ..Settings::default()
    };
    let mut secured = Secured::with(suite, &settings, 1, |config| {
        config.tcp.rto_min = std::time::Duration::from_millis(20);
    });
    secured.rig.nic_works = false;
    let sizes: Vec<u64> = (0..=random(4))
        .map(|_| [random(20), random(5_000), random(120_000)][random(3) as usize])
        .collect();
    let expected: Vec<u8> = sizes.iter().flat_map(|&size| answer(size)).collect();
    let (packets, echoes) = (random(6), random(6));
    let restart_every = [u64::MAX, 100, 400][random(3) as usize];
    let asks_for_keys = suite.version == tls::Version::Tls13 && random(2) == 0;
    let mut waiting = std::collections::VecDeque::new();
    let (mut asked, mut done) = (0, 0);
    for step in 0..400_000 {
        if asked < sizes.len() && secured.received.len() == done {
            secured.ask(&[&sizes[asked].to_string()]);
            done += sizes[asked] as usize + 2;
            asked += 1;
        }
        if asks_for_keys && step % 97 == 96 && !secured.client.is_handshaking() && step < 2_500 {
            secured.client.refresh_traffic_keys().unwrap();
        }
        secured.step();
        if step % restart_every == restart_every - 1 {
            secured.restart_nic(true);
            waiting.clear();
        }
        while let Some(work) = secured.rig.nic.work.pop_front() {
            let at_us: u64 = waiting.back().map_or(0, |(at_us, _)| *at_us);
            waiting.push_back((at_us.max(secured.rig.now_us + random(4_000)), work));
        }
        while let Some((at_us, work)) = waiting.pop_front() {
            if at_us > secured.rig.now_us {
                waiting.push_front((at_us, work));
                break;
            }
            let rig = &mut secured.rig;
            match work {
                Work::Open(..) => rig.carry_out(work),
                Work::Send {
                    id, flow, frames, ..
                } => {
                    for event in rig.nic.sealer.as_mut().unwrap().leave(id) {
                        rig.nic.report(&event);
                    }
                    for frame in frames {
                        if random(100) >= packets {
                            rig.client_hears(&frame);
                        }
                    }
                    let departed_us = rig.now_us;
                    if random(100) >= echoes {
                        rig.nic.report(&Event::Departed {
                            send: id,
                            flow,
                            departed_us,
                        });
                    }
                }
            }
        }
        assert_eq!(secured.broken, None);
        assert!(
            expected.starts_with(&secured.received),
            "every byte is right"
        );
        if secured.received.len() == expected.len() {
            let counters = secured.rig.stack.counters();
            assert_eq!((counters.events_invalid, counters.tls_failed), (0, 0));
            return;
        }
    }
    panic!(
        "stuck at {} of {} bytes: {:?}",
        secured.received.len(),
        expected.len(),
        secured.rig.stack.counters()
    );
}
