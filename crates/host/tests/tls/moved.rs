//! Connections that go to another worker of their NIC stack amid a download: keys and records go
//! with them, and no record is ever sealed otherwise than before.

use contract::Event;
use fakes::nic::Work;
use host::Stack;
use tls::{Settings, Suite};

use crate::client::Secured;
use crate::rig::answer;
use fakes::keys::SUITES;

const SIZE: u64 = 3_000_000;

fn in_use(stack: &Stack) -> usize {
    stack.division().next().unwrap().workers_in_use
}

fn connections(secured: &Secured) -> Vec<usize> {
    let workers = secured.rig.stack.workers();
    workers.map(|worker| worker.connections).collect()
}

fn busy(secured: &mut Secured, percents: &[u32]) {
    for (worker, &percent) in percents.iter().enumerate() {
        secured.rig.nic(worker).report(&Event::Load {
            busy_us: percent * 2_500,
            elapsed_us: 250_000,
        });
    }
}

/// A slow download from the second of two workers, which is needed no more before it is over.
fn amid_a_download(suite: Suite) -> Secured {
    let mut secured = Secured::with_workers(suite, &Settings::default(), &[2], |config| {
        config.workers_min = 1;
    });
    busy(&mut secured, &[90]);
    while in_use(&secured.rig.stack) < 2 {
        secured.step();
    }
    loop {
        secured.ask(&["7"]);
        secured.run_until(|secured| secured.received.len() == 9);
        for _ in 0..1_000 {
            secured.step();
        }
        if secured.rig.nic(1).file_bytes > 0 {
            break;
        }
        secured.reconnect();
    }
    secured.received.clear();
    secured.ask(&["rate 100000", &SIZE.to_string()]);
    secured.run_until(|secured| secured.received.len() > 100_000);
    secured
}

#[test]
fn a_download_goes_on_at_another_worker_with_each_suite() {
    for suite in SUITES {
        let mut secured = amid_a_download(suite);
        busy(&mut secured, &[10, 10]);
        secured.run_until(|secured| connections(secured)[1] == 0);
        let before = secured.received.len() as u64;
        assert!(before < SIZE / 2);
        secured.run_until(|secured| secured.received.len() as u64 == SIZE + 2);
        assert!(secured.received == answer(SIZE));
        let counters = secured.rig.stack.counters();
        assert!(counters.connections_rebalanced > 0);
        assert_eq!(
            (counters.tls_records_unproven, counters.tls_seal_mismatches),
            (0, 0)
        );
        assert_eq!((counters.timeouts, counters.retransmissions), (0, 0));
        assert_eq!(counters.events_invalid, 0);
        assert!(secured.rig.nic(0).file_bytes as u64 > SIZE / 2);
    }
}

/// Carries out what the second worker has, up to a SEND that is the first to seal a record: that
/// leaves, and what is said of it is returned.
fn until_a_record_leaves_unsaid(secured: &mut Secured) -> Vec<Event> {
    loop {
        secured.step();
        while let Some(work) = secured.rig.nic(1).work.pop_front() {
            let Work::Send { id, flow, .. } = work else {
                panic!("no file is opened there");
            };
            let mut said = secured.rig.nic(1).sealer.as_mut().unwrap().leave(id);
            if said.is_empty() {
                secured.rig.carry_out_at(1, work);
                continue;
            }
            said.push(Event::Departed {
                send: id,
                flow,
                departed_us: secured.rig.now_us,
            });
            if let Work::Send { frames, .. } = work {
                for frame in frames {
                    secured.rig.client_hears(&frame);
                }
            }
            return said;
        }
    }
}

/// The client acknowledges what the worker has sent before that is heard of the worker: nothing is
/// outstanding, and the tag of a record that has left in part is not known.
#[test]
fn a_connection_waits_for_the_tags_of_what_has_left() {
    let mut secured = amid_a_download(SUITES[1]);
    secured.rig.nic(0).is_stuck = true;
    busy(&mut secured, &[10, 10]);
    secured.run_until(|secured| in_use(&secured.rig.stack) == 1);
    secured.rig.nic_works = false;
    let unsaid = until_a_record_leaves_unsaid(&mut secured);
    secured.rig.nic(0).is_stuck = false;
    secured.run_until(|secured| !secured.rig.nic.work.is_empty());
    let open = secured.rig.nic(0).work.pop_front().unwrap();
    secured.rig.carry_out_at(0, open);
    for _ in 0..5_000 {
        secured.step();
    }
    assert!(secured.rig.nic(1).work.is_empty() && secured.rig.nic(0).work.is_empty());
    assert_eq!(secured.rig.stack.usage().sends_outstanding, 0);
    assert!(connections(&secured)[1] > 0, "a tag is missing");
    for event in unsaid {
        secured.rig.nic(1).report(&event);
    }
    secured.rig.nic_works = true;
    secured.run_until(|secured| connections(secured)[1] == 0);
    secured.run_until(|secured| secured.received.len() as u64 == SIZE + 2);
    assert!(secured.received == answer(SIZE));
    let counters = secured.rig.stack.counters();
    assert_eq!(
        (counters.tls_records_unproven, counters.tls_seal_mismatches),
        (0, 0)
    );
    assert_eq!(counters.events_invalid, 0);
}
