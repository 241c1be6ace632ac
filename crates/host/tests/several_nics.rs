//! Several NIC stacks: which of them serves what, and what becomes of connections whose NIC stack
//! goes away.

mod rig;

use contract::FileMeta;
use fakes::nic::Work;
use host::app::{AppEvent, CloseReason};
use rig::{Rig, answer};

/// Two NIC stacks with the same files.
fn two_replicas() -> Rig {
    let mut rig = Rig::with_nics(2, |config| config.roots_are_replicas = true);
    // What differs from machine to machine.
    rig.others[0].meta = FileMeta {
        inode: 77,
        device: 8,
        ctime_ns: 99,
        ..FileMeta::default()
    };
    rig
}

/// Two NIC stacks, of which only one has each of these files.
fn two_roots(first_lacks: &[&str], second_lacks: &[&str]) -> Rig {
    let mut rig = Rig::with_nics(2, |_| {});
    for (number, lacks) in [first_lacks, second_lacks].into_iter().enumerate() {
        rig.nic(number).lacks = lacks.iter().map(|&path| path.to_owned()).collect();
    }
    rig
}

fn close_reason(rig: &Rig) -> Option<CloseReason> {
    rig.app.events.iter().find_map(|event| match event {
        AppEvent::Closed { reason, .. } => Some(*reason),
        _ => None,
    })
}

/// The NIC stack that some of a file has left.
fn serving(rig: &mut Rig) -> usize {
    (0..2)
        .find(|&number| rig.nic(number).file_bytes > 0)
        .expect("one of them serves")
}

/// The client has got so much of a file, and goes on.
fn amid_a_download(rig: &mut Rig, size: usize) -> usize {
    rig.ask(&[&size.to_string()]);
    rig.run_until(|rig| rig.received.len() > size / 4);
    assert!(rig.received.len() < size / 2, "it has only begun");
    serving(rig)
}

#[test]
fn a_download_goes_on_from_another_replica() {
    let mut rig = two_replicas();
    let first = amid_a_download(&mut rig, 3_000_000);
    rig.lose_nic(first);
    rig.run_until(|rig| rig.received.len() == 3_000_002);
    assert!(rig.received == answer(3_000_000));
    assert!(rig.nic(1 - first).file_bytes > 1_000_000);
    let counters = rig.stack.counters();
    assert_eq!((counters.nic_losses, counters.connections_moved), (1, 1));
    assert_eq!(counters.timeouts, 0, "what never left is not lost");
    assert_eq!(counters.events_invalid, 0);
    for _ in 0..10 {
        rig.step();
    }
    assert_eq!(rig.stack.usage().files, 0);
}

#[test]
fn a_later_download_of_a_connection_goes_on_as_well() {
    let mut rig = two_replicas();
    for _ in 0..3 {
        rig.ask(&["2000"]);
        rig.run_until(|rig| rig.received.len() == 2_002);
        rig.received.clear();
    }
    rig.ask(&["3000000"]);
    rig.run_until(|rig| rig.received.len() > 700_000);
    let first = (0..2).max_by_key(|&number| rig.nic(number).file_bytes);
    rig.lose_nic(first.expect("one of them serves"));
    rig.run_until(|rig| rig.received.len() == 3_000_002);
    assert!(rig.received == answer(3_000_000));
    assert_eq!(rig.stack.counters().events_invalid, 0);
}

#[test]
fn a_client_that_connects_while_a_nic_stack_is_away_goes_to_another() {
    let mut rig = two_replicas();
    rig.lose_nic(0);
    for port in 0..4 {
        rig.reconnect_from(50_000 + port);
        rig.ask(&["2000"]);
        rig.run_until(|rig| rig.received.len() == 2_002);
        assert!(rig.received == answer(2_000));
    }
    assert_eq!(rig.nic.file_bytes, 0);
    rig.bring_nic(0);
    rig.reconnect_from(50_010);
    rig.ask(&["2000"]);
    rig.run_until(|rig| rig.received.len() == 2_002);
    assert_eq!(rig.nic.file_bytes, 2_000, "the one with fewest connections");
}

/// The same path and size, but written at another time: it waits, and goes on when the first is
/// back.
#[test]
fn no_response_goes_on_with_another_version() {
    let mut rig = two_replicas();
    let first = amid_a_download(&mut rig, 300_000);
    rig.nic(1 - first).meta.mtime_ns = 1;
    let before = rig.nic(1 - first).file_bytes;
    rig.lose_nic(first);
    for _ in 0..10_000 {
        rig.step();
    }
    assert!(rig.received.len() < 300_002);
    assert_eq!(rig.nic(1 - first).file_bytes, before);
    assert_eq!(rig.nic(1 - first).sizes.len(), 0, "closed there");
    assert_eq!(close_reason(&rig), None);
    rig.bring_nic(first);
    rig.run_until(|rig| rig.received.len() == 300_002);
    assert!(rig.received == answer(300_000));
    // Who asks now gets it from anywhere.
    rig.lose_nic(first);
    rig.received.clear();
    rig.ask(&["300000"]);
    rig.run_until(|rig| rig.received.len() == 300_002);
}

#[test]
fn if_the_version_is_nowhere_any_more_the_response_is_aborted() {
    let mut rig = two_replicas();
    let first = amid_a_download(&mut rig, 300_000);
    rig.nic(1 - first).meta.mtime_ns = 1;
    rig.lose_nic(first);
    rig.nic(first).meta.mtime_ns = 2;
    rig.step();
    rig.bring_nic(first);
    rig.run_until(|rig| close_reason(rig).is_some());
    assert_eq!(close_reason(&rig), Some(CloseReason::DataPlaneFailed));
    assert!(answer(300_000).starts_with(&rig.received));
}

/// Files of the same name and time are not declared to be the same.
#[test]
fn with_roots_of_their_own_a_response_waits_for_its_nic_stack() {
    let mut rig = two_roots(&[], &[]);
    let first = amid_a_download(&mut rig, 300_000);
    rig.lose_nic(first);
    for _ in 0..10_000 {
        rig.step();
    }
    assert!(rig.received.len() < 300_002);
    assert_eq!(rig.nic(1 - first).sizes.len(), 0, "it is not even asked");
    rig.bring_nic(first);
    rig.run_until(|rig| rig.received.len() == 300_002);
    assert!(rig.received == answer(300_000));
    assert_eq!(rig.stack.counters().connections_moved, 0);
}

#[test]
fn a_file_comes_from_a_nic_stack_that_has_it() {
    let mut rig = two_roots(&["2000", "4000"], &["3000", "5000"]);
    for size in [2_000, 3_000, 3_000, 4_000, 5_000, 2_000] {
        rig.received.clear();
        rig.ask(&[&size.to_string()]);
        rig.run_until(|rig| rig.received.len() == size + 2);
        assert!(rig.received == answer(size as u64));
    }
    assert_eq!([0, 1].map(|nic| rig.nic(nic).file_bytes), [11_000, 8_000]);
    assert_eq!(rig.stack.counters().events_invalid, 0);
}

/// Several requests at once, in any order of the two roots: answers come in the order of the
/// requests, each whole.
#[test]
fn responses_from_several_roots_keep_their_order() {
    let mut rig = two_roots(&["20000", "40000"], &["30000", "50000"]);
    let sizes = [20_000, 30_000, 40_000, 50_000, 30_000, 20_000, 20_000u64];
    let lines = sizes.map(|size| size.to_string());
    rig.ask(&lines.each_ref().map(String::as_str));
    let expected: Vec<u8> = sizes.iter().flat_map(|&size| answer(size)).collect();
    rig.run_until(|rig| rig.received.len() == expected.len());
    assert!(rig.received == expected);
    for _ in 0..10 {
        rig.step();
    }
    assert_eq!(rig.stack.usage().files, 0);
}

#[test]
fn what_no_nic_stack_has_is_not_found() {
    let mut rig = two_roots(&["2000"], &["2000"]);
    rig.ask(&["2000", "1000"]);
    rig.run_until(|rig| rig.received.len() == 1_004);
    assert!(rig.received == [b"no".to_vec(), answer(1_000)].concat());
    assert_eq!(open_errors(&rig), [2]);
}

fn open_errors(rig: &Rig) -> Vec<u16> {
    let failed = rig.app.events.iter().filter_map(|event| match event {
        AppEvent::OpenFailed { errno, .. } => Some(*errno),
        _ => None,
    });
    failed.collect()
}

/// A NIC stack that is away for a moment may have the file; one that stays away is not waited for.
#[test]
fn a_file_that_only_an_absent_nic_stack_can_have_is_waited_for_a_while() {
    let mut rig = two_roots(&["2000"], &[]);
    rig.lose_nic(1);
    rig.ask(&["2000"]);
    for _ in 0..10_000 {
        rig.step();
    }
    assert!(rig.received.is_empty());
    rig.bring_nic(1);
    rig.run_until(|rig| rig.received.len() == 2_002);

    rig.lose_nic(1);
    let begun_us = rig.now_us;
    rig.received.clear();
    rig.ask(&["2000"]);
    rig.run_until(|rig| rig.received == b"no");
    assert!((5_000_000..6_000_000).contains(&(rig.now_us - begun_us)));
    rig.ask(&["2000"]);
    rig.run_until(|rig| rig.received == b"nono");
    const EAGAIN: u16 = 11;
    assert_eq!(open_errors(&rig), [EAGAIN, EAGAIN]);
}

#[test]
fn a_file_that_no_replica_has_is_not_waited_for() {
    let mut rig = two_replicas();
    rig.others[0].lacks.insert("2000".to_owned());
    rig.lose_nic(0);
    rig.ask(&["2000"]);
    rig.run_until(|rig| rig.received == b"no");
    assert_eq!(open_errors(&rig), [2]);
}

/// Whatever dies when: one is always there, and every byte is right.
#[test]
fn replicas_that_come_and_go_break_nothing() {
    for gap in 1..60 {
        let mut rig = two_replicas();
        let sizes = [40_000, 1, 500_000, 0, 70_000u64];
        let lines = sizes.map(|size| size.to_string());
        rig.ask(&lines.each_ref().map(String::as_str));
        let expected: Vec<u8> = sizes.iter().flat_map(|&size| answer(size)).collect();
        let mut lost = 0;
        let mut steps = 0;
        rig.run_until(|rig| rig.received.len() > 100);
        while rig.received.len() < expected.len() {
            steps += 1;
            if steps % gap == 0 {
                rig.lose_nic(lost % 2);
                rig.step();
                rig.bring_nic(lost % 2);
                lost += 1;
            }
            rig.step();
            assert!(steps < 100_000, "gap {gap}");
        }
        assert!(rig.received == expected, "gap {gap}");
        for _ in 0..1_000 {
            rig.step();
        }
        assert_eq!(rig.stack.usage().files, 0, "gap {gap}");
        assert_eq!(close_reason(&rig), None);
    }
}

/// A connection that had to wait, since the only other NIC stack refused a file that is not needed
/// any more.
fn acknowledged_after_a_refusal() -> (Rig, usize) {
    let mut rig = two_replicas();
    rig.ask(&["300000"]);
    rig.run_until(|rig| rig.received.len() > 100_000);
    let first = serving(&mut rig);
    rig.nic(1 - first).meta.mtime_ns = 1;
    rig.run_until(|rig| rig.received.len() == 300_002);
    // Before the last acknowledgment.
    rig.client_is_mute = true;
    rig.lose_nic(first);
    for _ in 0..10 {
        rig.step();
    }
    let refused = rig.nic(1 - first).closed.len();
    assert_eq!(refused, 1, "opened, and found to be another version");
    rig.client_is_mute = false;
    rig.received.clear();
    (rig, 1 - first)
}

#[test]
fn what_is_asked_for_after_a_refused_file_is_answered_without_its_nic_stack() {
    let (mut rig, _) = acknowledged_after_a_refusal();
    rig.ask(&["nothing"]);
    rig.run_until(|rig| rig.received == b"no");
}

/// The NIC stack that had refused a file is replaced while it serves another one.
#[test]
fn a_refusal_goes_with_the_file() {
    let (mut rig, second) = acknowledged_after_a_refusal();
    rig.ask(&["3000000"]);
    rig.run_until(|rig| rig.received.len() > 10_000);
    assert!(rig.received.len() < 2_000_000, "it has only begun");
    rig.bring_nic(second);
    rig.run_until(|rig| rig.received.len() == 3_000_002);
    assert!(rig.received == answer(3_000_000));
    assert_eq!(close_reason(&rig), None);
}

/// What was refused is acknowledged while the answer to another OPEN is on its way.
#[test]
fn a_refusal_of_what_has_been_acknowledged_since_ends_nothing() {
    let mut rig = two_replicas();
    rig.ask(&["20000", "3000000"]);
    rig.run_until(|rig| rig.received.len() > 25_000);
    let first = serving(&mut rig);
    let second = 1 - first;
    rig.client_is_mute = true;
    assert_eq!(rig.stack.usage().files, 2, "neither is acknowledged");
    rig.nic_works = false;
    rig.lose_nic(first);
    rig.step();
    let mut opens = std::mem::take(&mut rig.nic(second).work);
    assert_eq!(opens.len(), 2);
    rig.nic(second).meta.mtime_ns = 1;
    rig.carry_out_at(second, opens.pop_front().expect("the short one"));
    rig.step();
    rig.client_is_mute = false;
    rig.run_until(|rig| rig.stack.usage().files == 1);
    rig.nic(second).meta.mtime_ns = 0;
    rig.carry_out_at(second, opens.pop_front().expect("the long one"));
    rig.nic_works = true;
    let expected = [answer(20_000), answer(3_000_000)].concat();
    rig.run_until(|rig| rig.received.len() == expected.len());
    assert!(rig.received == expected);
    assert_eq!(close_reason(&rig), None);
}

#[test]
fn a_nic_stack_that_takes_no_commands_is_waited_for_by_its_own_connections_alone() {
    let mut rig = Rig::with_nics(2, |_| {});
    rig.ask(&["2000"]);
    rig.run_until(|rig| rig.received.len() == 2_002);
    let first = serving(&mut rig);
    rig.nic(first).is_stuck = true;
    let path = format!("{:04000}", 2_000);
    let mut asked = 1;
    while rig.stack.usage().commands_waiting == 0 {
        rig.ask(&[&path]);
        rig.step();
        asked += 1;
        assert!(asked < 10_000, "a ring is full some time");
    }
    for _ in 0..100 {
        rig.step();
    }
    // The other one has room, and is not waited for.
    rig.stack.retry_waiting_room();
    let served = rig.stack.serve(rig.now_us, &mut rig.port, &mut rig.app);
    assert!(!served, "nothing has happened");
    // More is asked for than is kept for one connection.
    rig.app.lenient = true;
    rig.nic(first).is_stuck = false;
    rig.run_until(|rig| rig.received.len() >= 4 * 2_002);
    assert!(rig.received.starts_with(&answer(2_000).repeat(4)));
}

#[test]
fn a_file_that_was_let_go_unopened_hides_none_behind_it() {
    let mut rig = Rig::with_nics(2, |_| {});
    rig.nic_works = false;
    rig.ask(&["hold 3000", "2000"]);
    let opens = |rig: &Rig| rig.nic.work.len() + rig.others[0].work.len();
    rig.run_until(|rig| opens(rig) == 2);
    let home = usize::from(rig.nic.work.is_empty());
    let second = rig.nic(home).work.pop_back().expect("two OPENs");
    assert!(matches!(&second, Work::Open(_, path) if path == b"2000"));
    rig.carry_out_at(home, second);
    for _ in 0..10 {
        rig.step();
    }
    assert_eq!(opens(&rig), 1, "told in the order of the requests");
    // The first one is never answered.
    let first = rig.nic(home).work.pop_front();
    rig.nic_works = true;
    rig.ask(&["drop"]);
    rig.run_until(|rig| rig.received.len() == 2_002);
    rig.carry_out_at(home, first.expect("OPEN of the first one"));
    for _ in 0..10 {
        rig.step();
    }
    assert_eq!(rig.stack.usage().files, 0);
    assert_eq!(rig.stack.counters().events_invalid, 0);
}

/// With one NIC stack a connection stays with its worker, whatever was unanswered when the NIC
/// process died.
#[test]
fn who_waits_for_a_nic_stack_of_several_workers_keeps_its_worker() {
    let mut rig = Rig::with_workers(&[3], |_| {});
    let mut homes = Vec::new();
    for port in 0..6 {
        rig.reconnect_from(50_000 + port);
        rig.ask(&["2000"]);
        rig.run_until(|rig| rig.received.len() == 2_002);
    }
    homes.extend((0..3).map(|worker| rig.nic(worker).file_bytes));
    assert_eq!(homes, [4_000; 3], "they are spread evenly");
    // The last one, again and again: an OPEN that is unanswered, one that comes while none is
    // there.
    let home = |rig: &mut Rig| (0..3).find(|&worker| rig.nic(worker).file_bytes > 0);
    let clear = |rig: &mut Rig| (0..3).for_each(|worker| rig.nic(worker).file_bytes = 0);
    clear(&mut rig);
    rig.ask(&["1000"]);
    rig.run_until(|rig| rig.received.len() == 3_004);
    let own = home(&mut rig);
    for asks_before in [true, false] {
        rig.received.clear();
        rig.nic_works = false;
        if asks_before {
            rig.ask(&["70000"]);
            rig.step();
            rig.step();
        }
        rig.lose_all_workers();
        if !asks_before {
            rig.ask(&["70000"]);
            rig.step();
        }
        rig.nic_works = true;
        rig.bring_all_workers();
        rig.run_until(|rig| rig.received.len() == 70_002);
        assert!(rig.received == answer(70_000));
        assert_eq!(home(&mut rig), own);
        clear(&mut rig);
    }
    let counters = rig.stack.counters();
    assert_eq!((counters.nic_losses, counters.connections_moved), (2, 0));
}
