//! NIC workers that die, come back, and lack files.

use std::collections::HashSet;

use contract::RejectReason;
use contract::tls::Cipher;
use fakes::seeds::each_seed;
use fakes::weather::Weather;
use host::app::{AppEvent, CloseReason, QuicCloseReason, QuicEvent};

use crate::world::{Setup, World};

fn steady(below: u64) -> u64 {
    below / 2
}

#[test]
fn no_number_is_sealed_twice_whenever_workers_die() {
    each_seed(20, |random| {
        let setup = Setup {
            workers: 2,
            ..Setup::default()
        };
        let mut world = World::with(setup, random);
        world.weather = Weather {
            lost: 10,
            late: 20,
            damaged: 0,
        };
        let clients: Vec<usize> = (0..3).map(|_| world.connected()).collect();
        for client in clients {
            for number in 0..4 {
                world.request(client, 700_000 + number, (0, 700_000), 3000);
            }
        }
        let mut deaths = 0;
        while !world.are_finished() {
            let time_us = (world.random)(30_000);
            world.run_for(time_us);
            if deaths < 40 {
                let worker = (world.random)(2) as usize;
                world.restart_worker(worker);
                deaths += 1;
            }
        }
        assert!(deaths >= 10);
        world.close();
    });
}

#[test]
fn a_nic_stack_that_comes_back_goes_on() {
    each_seed(10, |random| {
        let mut world = World::new(random);
        let client = world.connected();
        for number in 0..3 {
            world.request(client, 2_000_000 + number, (0, 2_000_000), 0);
        }
        for _ in 0..4 {
            let time_us = 10_000 + (world.random)(30_000);
            world.run_for(time_us);
            world.lose_nic(0);
            let time_us = (world.random)(800_000);
            world.run_for(time_us);
            world.bring_nic(0);
        }
        world.run_until_finished();
        world.close();
    });
}

/// Lost data is sent again a round trip after a NIC stack is back, however long none was there: no
/// probe timeout passes first.
#[test]
fn a_download_goes_on_as_soon_as_a_nic_stack_is_back() {
    /// A round trip of the probe, half of one of the retransmission, and time to open the file,
    /// in microseconds.
    const GAP_US_MAX: u64 = 60_000;
    each_seed(6, |random| {
        let mut world = World::new(random);
        let client = world.connected();
        let stream = world.request(client, 20_000_000, (0, 20_000_000), 0);
        for death in 1..=5 {
            let wanted = death * 1_000_000;
            world.run_until(|world| world.peers[client].transfers[&stream].got > wanted);
            world.lose_nic(0);
            world.run_for(5_000_000);
            world.bring_nic(0);
            let got = world.peers[client].transfers[&stream].got;
            let back_us = world.now_us;
            world.run_until(|world| world.peers[client].transfers[&stream].got > got);
            let gap_us = world.now_us - back_us;
            assert!(gap_us <= GAP_US_MAX, "death {death}: {gap_us} us");
        }
        world.run_until_finished();
        world.close();
    });
}

#[test]
fn replicas_stand_in_for_each_other() {
    each_seed(10, |random| {
        let setup = Setup {
            stacks: 2,
            replicas: true,
            ..Setup::default()
        };
        let mut world = World::with(setup, random);
        let clients: Vec<usize> = (0..2).map(|_| world.connected()).collect();
        for client in clients {
            world.request(client, 3_000_000, (0, 3_000_000), 0);
        }
        let time_us = 20_000 + (world.random)(50_000);
        world.run_for(time_us);
        let gone = (world.random)(2) as usize;
        world.lose_nic(gone);
        world.run_until_finished();
        assert!(world.stack.counters().connections_moved > 0);
        world.bring_nic(gone);
        world.close();
    });
}

#[test]
fn a_connection_goes_to_the_nic_stack_that_has_the_file() {
    let mut random = steady;
    let setup = Setup {
        stacks: 2,
        ..Setup::default()
    };
    let mut world = World::with(setup, &mut random);
    assert_eq!(world.stacks(), 2);
    world.nics[0].lacks = HashSet::from([200_000]);
    world.nics[1].lacks = HashSet::from([300_000]);
    let client = world.connected();
    for _ in 0..2 {
        for size in [200_000, 300_000] {
            world.request(client, size, (0, size), 0);
            world.run_until_finished();
            world.run_for(1_000_000);
        }
    }
    assert!(world.stack.counters().connections_moved >= 3);
    // Both at once: one waits for the other.
    world.request(client, 200_000, (0, 200_000), 0);
    world.request(client, 300_000, (0, 300_000), 0);
    world.run_until_finished();
    world.close();
}

/// What waits in it counts for its own connections alone.
#[test]
fn a_nic_stack_that_stands_still_does_not_slow_another() {
    const ENOUGH_BYTES: u64 = 400_000;
    let mut random = steady;
    let mut setup = Setup {
        stacks: 2,
        ..Setup::default()
    };
    setup.settings.limits.all_undeparted_bytes_max = ENOUGH_BYTES;
    let mut world = World::with(setup, &mut random);
    // Each file is at one of them.
    world.nics[0].lacks = HashSet::from([20_000_000]);
    world.nics[1].lacks = HashSet::from([10_000_000]);
    for size in [10_000_000, 10_000_000, 10_000_000, 20_000_000] {
        let client = world.connected();
        world.request(client, size, (0, size), 0);
    }
    world.run_for(200_000);
    // Then the other: what its connection has there tells what it may have.
    let mut outstanding = Vec::new();
    for nic in 0..2 {
        world.nics[nic].is_stuck = true;
        world.run_for(100_000);
        let infos = world.stack.quic_connections();
        let of_nic = infos.filter(|info| info.nic == nic);
        outstanding.push(of_nic.map(|info| info.sends_outstanding).sum::<u64>());
    }
    assert!(
        outstanding[0] > 6 && outstanding[1] > 3,
        "{outstanding:?} QSENDs"
    );
    for nic in &mut world.nics {
        nic.is_stuck = false;
    }
    world.run_until_finished();
    world.close();
}

/// One of two workers leaves use while files are sent by it.
pub(crate) fn leave_a_worker(world: &mut World<'_>, meanwhile: impl FnOnce(&mut World<'_>)) {
    // One is in use, and then both.
    world.connected();
    world.run_busy(2, 1000);
    let client = world.connected();
    let workers: Vec<usize> = world.stack.quic_connections().map(|it| it.worker).collect();
    assert_eq!(workers, [0, 1]);
    for number in 0..2 {
        world.request(client, 40_000_000 + number, (0, 40_000_000), 0);
    }
    world.run_until(|world| world.app.count(|it| matches!(it, AppEvent::Opened { .. })) == 2);
    let streams: Vec<_> = world.app.events.iter().map(|(stream, _)| *stream).collect();
    world.app.does = Some(Box::new(move |io| {
        for stream in streams {
            io.set_max_pacing_rate(stream, Some(1_500_000));
        }
    }));
    world.request(client, 100, (0, 100), 0);
    meanwhile(world);
    world.run_busy(14, 0);
}

#[test]
fn a_connection_leaves_a_worker_with_what_it_sends() {
    let mut random = steady;
    let setup = Setup {
        workers: 2,
        workers_min: 1,
        ..Setup::default()
    };
    let mut world = World::with(setup, &mut random);
    leave_a_worker(&mut world, |_| {});
    assert!(!world.are_finished());
    let infos = world.stack.quic_connections();
    let places: Vec<(usize, u64)> = infos.map(|it| (it.worker, it.packets_lost)).collect();
    assert_eq!(places, [(0, 0), (0, 0)]);
    assert_eq!(world.stack.counters().connections_rebalanced, 1);
    assert_eq!((world.nics[1].files(), world.nics[1].flows()), (0, 0));
    world.run_until_finished();
    world.close();
}

#[test]
fn a_connection_stays_where_its_version_is() {
    let mut random = steady;
    let setup = Setup {
        workers: 2,
        workers_min: 1,
        ..Setup::default()
    };
    let mut world = World::with(setup, &mut random);
    leave_a_worker(&mut world, |world| {
        world.oracle.borrow_mut().versions.insert(40_000_000, 5);
    });
    let workers: Vec<usize> = world.stack.quic_connections().map(|it| it.worker).collect();
    assert_eq!(workers, [0, 1]);
    assert!(world.stack.counters().migrations_failed > 0);
    assert_eq!(world.nics[0].files(), 0);
    world.run_until_finished();
    let mut transfers = world.peers[1].transfers.values();
    assert!(transfers.all(|transfer| transfer.reset.is_none()));
    // It goes when it is done.
    world.run_busy(4, 0);
    let mut infos = world.stack.quic_connections();
    assert!(infos.all(|info| info.worker == 0));
    drop(infos);
    world.close();
}

#[test]
fn workers_die_while_connections_leave_them() {
    each_seed(6, |random| {
        let setup = Setup {
            workers: 2,
            workers_min: 1,
            ..Setup::default()
        };
        let mut world = World::with(setup, random);
        leave_a_worker(&mut world, |world| {
            world.run_busy(9, 0);
            for _ in 0..30 {
                let time_us = (world.random)(300_000);
                world.run_for(time_us);
                let worker = (world.random)(2) as usize;
                world.restart_worker(worker);
            }
        });
        world.run_until_finished();
        world.close();
    });
}

#[test]
fn a_file_that_has_changed_ends_its_stream_alone() {
    let mut random = steady;
    let mut world = World::new(&mut random);
    let client = world.connected();
    let changed = world.request(client, 3_000_000, (0, 3_000_000), 0);
    let same = world.request(client, 3_000_001, (0, 3_000_001), 0);
    world.run_until(|world| world.peers[client].transfers[&changed].got > 200_000);
    world.oracle.borrow_mut().versions.insert(3_000_000, 77);
    world.restart_worker(0);
    world.run_until_finished();
    let transfers = &world.peers[client].transfers;
    assert_eq!(transfers[&changed].reset, Some(0x102));
    assert_eq!(transfers[&same].reset, None);
    let reasons = closed(&world);
    assert!(reasons.contains(&CloseReason::DataPlaneFailed));
    world.close();
}

fn closed(world: &World<'_>) -> Vec<CloseReason> {
    let events = world.app.events.iter();
    let reasons = events.filter_map(|(_, event)| match event {
        AppEvent::Closed { reason, .. } => Some(*reason),
        _ => None,
    });
    reasons.collect()
}

#[test]
fn a_file_that_cannot_be_read_ends_its_stream_alone() {
    for broken in [0, 100_000, 2_000_000] {
        let mut random = steady;
        let mut world = World::new(&mut random);
        let client = world.connected();
        let bad = world.request(client, 3_000_000, (0, 3_000_000), 0);
        let good = world.request(client, 3_000_001, (0, 3_000_001), 0);
        world.oracle.borrow_mut().broken.insert(3_000_000, broken);
        world.run_until_finished();
        let transfers = &world.peers[client].transfers;
        assert_eq!(transfers[&bad].reset, Some(0x102));
        assert_eq!(transfers[&good].reset, None);
        assert!(closed(&world).contains(&CloseReason::DataPlaneFailed));
        world.close();
    }
}

#[test]
fn a_file_that_breaks_behind_its_prepare_ends_its_stream_alone() {
    let mut random = steady;
    let mut world = World::new(&mut random);
    let client = world.connected();
    let bad = world.request(client, 5_000_000, (0, 5_000_000), 0);
    let good = world.request(client, 3_000_001, (0, 3_000_001), 0);
    world.run_until(|world| world.peers[client].transfers[&bad].got > 300_000);
    // What is ready and not sent cannot be read either.
    world.oracle.borrow_mut().broken.insert(5_000_000, 0);
    world.run_until_finished();
    let transfers = &world.peers[client].transfers;
    assert_eq!(transfers[&bad].reset, Some(0x102));
    assert_eq!(transfers[&good].reset, None);
    world.close();
}

#[test]
fn a_read_that_fails_late_is_not_taken_for_one_of_the_file_that_has_the_id_now() {
    let mut random = steady;
    let mut world = World::new(&mut random);
    let client = world.connected();
    world.nics[0].is_mute = true;
    let bad = world.request(client, 3_000_000, (0, 3_000_000), 0);
    world.oracle.borrow_mut().broken.insert(3_000_000, 0);
    world.run_until(|world| world.nics[0].unanswered.len() > 2);
    world.nics[0].answer();
    world.run_until(|world| world.peers[client].transfers[&bad].is_finished);
    let late = world.nics[0].unanswered.len();
    assert!(late > 1);
    let good = world.request(client, 3_000_001, (0, 3_000_001), 0);
    world.run_until(|world| world.nics[0].unanswered.len() > late);
    while !world.nics[0].unanswered.is_empty() {
        world.nics[0].answer();
    }
    world.nics[0].is_mute = false;
    world.run_until_finished();
    let transfers = &world.peers[client].transfers;
    assert_eq!(transfers[&bad].reset, Some(0x102));
    assert_eq!(transfers[&good].reset, None);
    world.close();
}

#[test]
fn a_range_that_is_prepared_for_a_stream_that_ends_is_released_when_it_is_ready() {
    for is_answered in [true, false] {
        let mut random = steady;
        let mut world = World::new(&mut random);
        let client = world.connected();
        world.nics[0].is_mute = true;
        let stream = world.request(client, 3_000_000, (0, 3_000_000), 0);
        world.run_until(|world| world.nics[0].unanswered.len() > 2);
        if is_answered {
            world.nics[0].answer();
        }
        world.peers[client].client.stop(stream, 0x10c);
        world.peers[client].transfers.clear();
        let is_stopped = |event: &AppEvent| matches!(event, AppEvent::PeerStopped { .. });
        world.run_until(|world| world.app.count(is_stopped) == 1);
        world.run_for(100_000);
        while !world.nics[0].unanswered.is_empty() {
            world.nics[0].answer();
        }
        world.run_for(100_000);
        assert_eq!(world.nics[0].retained_bytes(), 0);
        assert_eq!(world.nics[0].files(), 0, "nor is the file open");
        world.close();
    }
}

#[test]
fn a_rejected_command_closes_the_connection() {
    let mut random = steady;
    let mut world = World::new(&mut random);
    let client = world.connected();
    world.request(client, 3_000_000, (0, 3_000_000), 0);
    world.run_for(30_000);
    world.nics[0].rejects = Some(RejectReason::NumberReused);
    world.run_until(|world| world.peers[client].client.lost.is_some());
    assert_eq!(world.stack.counters().quic_rejected, 1);
    assert_eq!(closed(&world), [CloseReason::DataPlaneFailed]);
    let last = world.app.quic.last().map(|(_, event)| event.clone());
    assert_eq!(last, Some(QuicEvent::Closed(QuicCloseReason::Unreadable)));
    world.close();
}

#[test]
fn a_client_whose_key_is_rejected_hears_that_its_connection_is_over() {
    for is_new in [true, false] {
        let mut random = steady;
        let mut world = World::new(&mut random);
        let client = match is_new {
            true => world.connect(Cipher::Aes128Gcm, false),
            false => world.connected(),
        };
        if !is_new {
            world.request(client, 3_000_000, (0, 3_000_000), 0);
            world.run_for(30_000);
            world.restart_worker(0);
        }
        world.nics[0].rejects_keys = true;
        let begin_us = world.now_us;
        world.run_until(|world| world.peers[client].client.lost.is_some());
        let waited_us = world.now_us - begin_us;
        assert!(waited_us < 5_000_000, "it hears nothing for {waited_us} us");
        assert!(world.stack.counters().quic_rejected > 0);
        world.peers[client].transfers.clear();
        world.close();
    }
}

#[test]
fn a_stream_that_ends_while_its_file_is_opened_again_holds_no_other() {
    let mut random = steady;
    let mut world = World::new(&mut random);
    let client = world.connected();
    let ending = world.request(client, 3_000_000, (0, 3_000_000), 0);
    let staying = world.request(client, 3_000_001, (0, 3_000_001), 0);
    world.run_until(|world| {
        let transfers = world.peers[client].transfers.values();
        transfers.into_iter().all(|transfer| transfer.got > 100_000)
    });
    world.restart_worker(0);
    // Both OPENs wait in the ring.
    world.nics[0].is_stuck = true;
    let opens = world.stack.counters().opens;
    world.run_for(1_000);
    assert_eq!(world.stack.counters().opens, opens);
    world.peers[client].client.stop(ending, 0x10c);
    world.peers[client].transfers.remove(&ending);
    let is_over = |event: &AppEvent| matches!(event, AppEvent::Closed { .. });
    world.run_until(|world| world.app.count(is_over) == 1);
    assert!(!world.peers[client].transfers[&staying].is_finished);
    world.nics[0].is_stuck = false;
    world.run_until_finished();
    assert_eq!(world.peers[client].transfers[&staying].reset, None);
    world.close();
}

#[test]
fn a_file_that_has_changed_is_not_sent_for_a_stream_that_has_ended_either() {
    let mut random = steady;
    let mut world = World::new(&mut random);
    let client = world.connected();
    let ending = world.request(client, 3_000_000, (0, 3_000_000), 0);
    let staying = world.request(client, 3_000_001, (0, 3_000_001), 0);
    world.run_until(|world| {
        let mut transfers = world.peers[client].transfers.values();
        transfers.all(|transfer| transfer.got > 100_000)
    });
    world.lose_nic(0);
    // What was lost with it is to be sent again.
    world.run_for(2_000_000);
    world.peers[client].client.stop(ending, 0x10c);
    world.peers[client].transfers.remove(&ending);
    let is_over = |event: &AppEvent| matches!(event, AppEvent::Closed { .. });
    world.run_until(|world| world.app.count(is_over) == 1);
    world.oracle.borrow_mut().versions.insert(3_000_000, 1);
    world.bring_nic(0);
    world.run_until_finished();
    assert_eq!(world.peers[client].transfers[&staying].reset, None);
    assert_eq!(world.peers[client].client.lost, None);
    world.close();
}

#[test]
fn a_file_that_is_nowhere_is_not_opened() {
    let mut random = steady;
    let mut world = World::new(&mut random);
    world.nics[0].lacks = HashSet::from([1234]);
    let client = world.connected();
    let peer = &mut world.peers[client].client;
    let stream = peer.request(b"1234 0 10 0\n").expect("a stream");
    world.run_until(|world| {
        world
            .app
            .count(|event| matches!(event, AppEvent::OpenFailed { .. }))
            == 1
    });
    world.run_for(100_000);
    let received = world.peers[client].client.receive(stream);
    assert_eq!(
        received,
        fakes::quic_client::Received::Bytes(b"no".to_vec())
    );
    world.close();
}
