//! Workers of a NIC stack that come into use and go out of it as the load changes, and connections
//! that follow.

mod rig;

use std::time::Duration;

use contract::{Command, Event, FileMeta};
use fakes::nic::Work;
use host::StackConfig;
use rig::{Rig, answer};

/// Longer than the time for which fewer workers must suffice, in steps of the rig.
const CALM_STEPS: usize = 110_000;

fn adaptive(config: &mut StackConfig) {
    config.workers_min = 1;
}

fn in_use(rig: &Rig) -> usize {
    rig.stack.division().next().unwrap().workers_in_use
}

/// Connections of each worker.
fn connections(rig: &Rig) -> Vec<usize> {
    rig.stack.workers().map(|it| it.connections).collect()
}

/// Lets the client acknowledge what it has got, also late.
fn settle(rig: &mut Rig) {
    for _ in 0..1_000 {
        rig.step();
    }
}

/// Workers say how busy they are, in percent of a core.
fn busy(rig: &mut Rig, percents: &[u32]) {
    for (worker, &percent) in percents.iter().enumerate() {
        rig.nic(worker).report(&Event::Load {
            busy_us: percent * 2_500,
            elapsed_us: 250_000,
        });
    }
}

/// A NIC stack of two workers, both in use; the client is with the second.
fn with_the_second() -> Rig {
    with_the_second_of(adaptive)
}

fn with_the_second_of(configure: impl FnOnce(&mut StackConfig)) -> Rig {
    let mut rig = Rig::with_workers(&[2], configure);
    assert_eq!(in_use(&rig), 1);
    busy(&mut rig, &[90]);
    rig.run_until(|rig| in_use(rig) == 2);
    rig.run_until(|rig| connections(rig)[0] > 0 || connections(rig)[1] > 0);
    for port in 50_000.. {
        rig.ask(&["7"]);
        rig.run_until(|rig| rig.received.len() == 9);
        settle(&mut rig);
        if rig.nic(1).file_bytes > 0 {
            break;
        }
        rig.reconnect_from(port);
    }
    rig.received.clear();
    rig
}

/// The second worker is needed no more.
fn until_one_is_enough(rig: &mut Rig) {
    busy(rig, &[10, 10]);
    rig.run_until(|rig| in_use(rig) == 1);
}

/// A download that takes longer than the second worker is in use.
fn download_slowly(rig: &mut Rig) {
    rig.ask(&["rate 100000", "3000000"]);
    rig.run_until(|rig| rig.received.len() > 100_000);
    assert!(rig.nic(1).file_bytes > 50_000);
}

fn expect_all(rig: &mut Rig) {
    rig.run_until(|rig| rig.received.len() == 3_000_002);
    assert!(rig.received == answer(3_000_000));
    let counters = rig.stack.counters();
    assert_eq!((counters.timeouts, counters.retransmissions), (0, 0));
    assert_eq!(counters.events_invalid, 0);
    settle(rig);
    let usage = rig.stack.usage();
    assert_eq!((usage.sends_outstanding, usage.files), (0, 0));
    assert!(
        rig.nic(0).sizes.is_empty() && rig.nic(1).sizes.is_empty(),
        "all are closed"
    );
}

#[test]
fn new_connections_go_to_workers_in_use_and_a_fixed_number_of_workers_is_all_of_them() {
    let mut rig = Rig::with_workers(&[3], |_| {});
    busy(&mut rig, &[0, 0, 0]);
    for _ in 0..CALM_STEPS {
        rig.step();
    }
    assert_eq!(in_use(&rig), 3);
    for (workers_min, expected) in [(3, [2, 2, 2]), (2, [3, 3, 0]), (1, [6, 0, 0])] {
        let mut rig = Rig::with_workers(&[3], |config| config.workers_min = workers_min);
        for port in 0..6 {
            rig.reconnect_from(50_000 + port);
            rig.run_until(|rig| connections(rig).iter().sum::<usize>() > usize::from(port));
        }
        assert_eq!(connections(&rig), expected);
    }
}

#[test]
fn workers_come_into_use_with_load_and_take_connections_over() {
    let mut rig = Rig::with_workers(&[2], adaptive);
    // Three idle ones.
    for port in 0..3 {
        rig.ask(&["7"]);
        rig.run_until(|rig| rig.received.len() == 9);
        settle(&mut rig);
        rig.reconnect_from(50_000 + port);
    }
    rig.ask(&["rate 100000", "3000000"]);
    rig.run_until(|rig| rig.received.len() > 50_000);
    assert_eq!(connections(&rig), [4, 0]);
    busy(&mut rig, &[95]);
    rig.run_until(|rig| in_use(rig) == 2);
    assert_eq!(rig.stack.counters().nic_workers_added, 1);
    rig.run_until(|rig| connections(rig) == [2, 2]);
    busy(&mut rig, &[60, 20]);
    rig.run_until(|rig| rig.received.len() == 3_000_002);
    assert!(rig.received == answer(3_000_000));
    assert_eq!(in_use(&rig), 2);
    assert_eq!(rig.stack.counters().events_invalid, 0);
}

#[test]
fn a_download_goes_on_at_another_worker_when_its_own_is_needed_no_more() {
    let mut rig = with_the_second();
    download_slowly(&mut rig);
    let sent = rig.nic(0).file_bytes;
    until_one_is_enough(&mut rig);
    rig.run_until(|rig| connections(rig)[1] == 0);
    assert!(
        rig.nic(1).ackds.iter().any(|&(.., last)| last),
        "its flow is over there"
    );
    expect_all(&mut rig);
    assert!(rig.nic(0).file_bytes > sent + 1_000_000);
    let counters = rig.stack.counters();
    assert_eq!(
        (counters.connections_moved, counters.migrations_failed),
        (0, 0)
    );
    assert!(counters.connections_rebalanced > 0);
    assert_eq!(counters.nic_workers_removed, 1);
}

#[test]
fn no_send_goes_to_the_new_worker_before_all_have_departed_from_the_old_one() {
    let mut rig = with_the_second();
    download_slowly(&mut rig);
    // SENDs pile up.
    rig.nic_works = false;
    rig.run_until(|rig| rig.stack.usage().sends_outstanding > 0);
    let first = rig.nic(0).file_bytes;
    until_one_is_enough(&mut rig);
    // The new worker opens the file.
    rig.run_until(|rig| !rig.nic.work.is_empty());
    let open = rig.nic(0).work.pop_front().unwrap();
    assert!(matches!(open, Work::Open(..)));
    rig.carry_out_at(0, open);
    for _ in 0..100 {
        rig.step();
    }
    assert_eq!(rig.nic(0).file_bytes, first);
    assert!(connections(&rig)[1] > 0);
    while rig.nic(1).work.len() > 1 {
        let send = rig.nic(1).work.pop_front().unwrap();
        rig.carry_out_at(1, send);
        rig.step();
    }
    assert_eq!(rig.nic(0).file_bytes, first, "one has not departed");
    rig.nic_works = true;
    rig.run_until(|rig| connections(rig)[1] == 0);
    expect_all(&mut rig);
}

/// What the network has lost is sent again by the new worker only, so nothing acknowledges all that
/// came after; and of that, an echo is missing.
#[test]
fn an_echo_that_is_lost_holds_no_connection_whose_peer_has_got_what_it_is_of() {
    let mut rig = with_the_second_of(|config| {
        adaptive(config);
        config.tcp.departure_timeout = Some(Duration::from_secs(10));
    });
    download_slowly(&mut rig);
    rig.nic(0).is_stuck = true;
    until_one_is_enough(&mut rig);
    rig.nic_works = false;
    let sends = rig.stack.counters().sends;
    for number in 0..4 {
        rig.run_until(|rig| !rig.others[0].work.is_empty());
        let work = rig.nic(1).work.pop_front().unwrap();
        let Work::Send {
            id, flow, frames, ..
        } = work
        else {
            panic!("no file is opened there");
        };
        if number > 0 {
            for frame in frames {
                rig.client_hears(&frame);
            }
        }
        if number < 3 {
            let departed_us = rig.now_us;
            rig.nic(1).report(&Event::Departed {
                send: id,
                flow,
                departed_us,
            });
        }
    }
    assert_eq!(rig.stack.counters().sends, sends + 4);
    rig.nic(0).is_stuck = false;
    rig.run_until(|rig| !rig.nic.work.is_empty());
    rig.nic_works = true;
    rig.run_until(|rig| connections(rig)[1] == 0);
    rig.run_until(|rig| rig.received.len() == 3_000_002);
    assert!(rig.received == answer(3_000_000));
    assert_eq!(rig.stack.counters().events_invalid, 0);
}

#[test]
fn a_download_of_a_file_that_was_replaced_stays_where_that_is_open() {
    let mut rig = with_the_second();
    download_slowly(&mut rig);
    rig.nic(0).meta = FileMeta {
        inode: 77,
        ..FileMeta::default()
    };
    until_one_is_enough(&mut rig);
    rig.run_until(|rig| rig.stack.counters().migrations_failed > 1);
    assert!(connections(&rig)[1] > 0);
    let before = rig.nic(0).file_bytes;
    expect_all(&mut rig);
    assert_eq!(rig.nic(0).file_bytes, before);
    // What it asks for next is the new version, from the worker that is in use.
    rig.run_until(|rig| connections(rig)[1] == 0);
    rig.received.clear();
    rig.ask(&["rate -", "2000"]);
    rig.run_until(|rig| rig.received.len() == 2_002);
    assert_eq!(rig.nic(0).file_bytes, before + 2_000);
}

#[test]
fn a_worker_without_descriptors_takes_no_download_over() {
    let mut rig = with_the_second();
    download_slowly(&mut rig);
    rig.nic(0).files_max = 0;
    until_one_is_enough(&mut rig);
    rig.run_until(|rig| rig.stack.counters().migrations_failed > 0);
    rig.nic(0).files_max = usize::MAX;
    rig.run_until(|rig| connections(rig)[1] == 0);
    expect_all(&mut rig);
}

#[test]
fn a_client_that_goes_away_amid_a_move_leaves_nothing_behind() {
    for is_answered_first in [false, true] {
        let mut rig = with_the_second();
        download_slowly(&mut rig);
        rig.nic_works = false;
        until_one_is_enough(&mut rig);
        rig.run_until(|rig| !rig.nic.work.is_empty());
        let open = rig.nic(0).work.pop_front().unwrap();
        if is_answered_first {
            rig.carry_out_at(0, open);
            rig.step();
            rig.client.abort();
            rig.step();
        } else {
            rig.client.abort();
            rig.run_until(|rig| rig.stack.counters().connections_broken > 0);
            assert_eq!(
                rig.stack.usage().files,
                1,
                "its id is taken until OPEN is answered"
            );
            rig.carry_out_at(0, open);
        }
        rig.nic_works = true;
        for _ in 0..100 {
            rig.step();
        }
        assert_eq!(rig.stack.usage().files, 0);
        assert!(rig.nic(0).sizes.is_empty() && rig.nic(1).sizes.is_empty());
        assert_eq!(rig.stack.counters().events_invalid, 0);
        // The next one gets what it asks for.
        rig.reconnect_from(60_000);
        rig.ask(&["2000"]);
        rig.run_until(|rig| rig.received.len() == 2_002);
        assert!(rig.received == answer(2_000));
    }
}

/// The NIC process dies when the new worker has been asked for the file, has opened it, or is
/// waited for no more; or it is replaced.
#[test]
fn a_nic_process_that_dies_amid_a_move_costs_nothing() {
    for (phase, is_replaced) in [(0, false), (1, false), (2, false), (0, true), (1, true)] {
        let mut rig = with_the_second();
        download_slowly(&mut rig);
        rig.nic_works = false;
        rig.run_until(|rig| rig.stack.usage().sends_outstanding > 0);
        until_one_is_enough(&mut rig);
        rig.run_until(|rig| !rig.nic.work.is_empty());
        if phase > 0 {
            let open = rig.nic(0).work.pop_front().unwrap();
            rig.carry_out_at(0, open);
            rig.step();
        }
        rig.nic_works = true;
        if phase > 1 {
            rig.run_until(|rig| connections(rig)[1] == 0);
            rig.nic_works = false;
            rig.run_until(|rig| !rig.nic.work.is_empty());
        }
        if !is_replaced {
            rig.lose_all_workers();
            for _ in 0..1_000 {
                rig.step();
            }
        }
        rig.nic_works = true;
        rig.bring_all_workers();
        assert_eq!(in_use(&rig), 1);
        rig.run_until(|rig| connections(rig)[1] == 0);
        rig.run_until(|rig| rig.received.len() == 3_000_002);
        assert!(rig.received == answer(3_000_000), "phase {phase}");
        assert_eq!(rig.stack.counters().events_invalid, 0);
        assert_eq!(rig.stack.counters().connections_broken, 0);
        settle(&mut rig);
        assert_eq!(rig.stack.usage().files, 0);
    }
}

#[test]
fn each_nic_stack_has_a_number_of_its_own_and_balance_is_among_those_in_use() {
    let mut rig = Rig::with_workers(&[2, 2], adaptive);
    let workers_in_use =
        |rig: &Rig| -> Vec<usize> { rig.stack.division().map(|it| it.workers_in_use).collect() };
    assert_eq!(workers_in_use(&rig), [1, 1]);
    busy(&mut rig, &[10, 0, 90]);
    rig.run_until(|rig| workers_in_use(rig) == [1, 2]);
    for port in 0..6 {
        rig.reconnect_from(50_000 + port);
        rig.run_until(|rig| connections(rig).iter().sum::<usize>() > usize::from(port));
    }
    assert_eq!(connections(&rig), [2, 0, 2, 2]);
    assert_eq!(rig.stack.counters().connections_rebalanced, 0);
}

#[test]
fn a_stack_without_load_does_not_wake_up_for_it() {
    let mut rig = Rig::with_workers(&[4], adaptive);
    for _ in 0..100 {
        rig.step();
    }
    let quiet_us = rig.stack.next_timeout_us();
    busy(&mut rig, &[50]);
    rig.step();
    assert!(rig.stack.next_timeout_us() < quiet_us.or(Some(u64::MAX)));
    busy(&mut rig, &[0]);
    for _ in 0..6_000 {
        rig.step();
    }
    assert_eq!(rig.stack.next_timeout_us(), quiet_us);
    // Nor does the NIC stack hear of it.
    assert!(matches!(rig.nic.channel.receive(), Ok(None::<Command<'_>>)));
}
