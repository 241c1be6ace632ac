//! SENDs and echoes that are lost, NIC workers that start again, and any mix of real and virtual
//! bytes with both.

mod rig;

use std::time::Duration;

use contract::{Event, FileMeta, RejectReason};
use fakes::nic::Work;
use fakes::seeds::each_seed;
use host::app::{AppEvent, CloseReason};
use rig::{Rig, answer};

/// The client has asked for a file, and the NIC stack has opened it; the SENDs of the first window
/// wait there.
fn rig_with_sends_waiting(size: u64) -> Rig {
    let mut rig = Rig::with(|config| {
        config.tcp.departure_timeout = Some(Duration::from_secs(1));
    });
    rig.ask(&[&size.to_string()]);
    rig.answer_open_only();
    rig.run_until(|rig| !rig.nic.work.is_empty());
    rig
}

fn close_reason(rig: &Rig) -> Option<CloseReason> {
    rig.app.events.iter().find_map(|event| match event {
        AppEvent::Closed { reason, .. } => Some(*reason),
        _ => None,
    })
}

#[test]
fn what_a_nic_worker_had_not_sent_goes_through_the_one_that_follows() {
    let mut rig = rig_with_sends_waiting(300_000);
    rig.restart_nic();
    rig.nic_works = true;
    rig.run_until(|rig| rig.received.len() == 300_002);
    assert!(rig.received == answer(300_000));
    let counters = rig.stack.counters();
    assert_eq!((counters.retransmissions, counters.timeouts), (0, 0));
    assert!(counters.sends_repeated > 0);
    assert_eq!(counters.opens, 2);
}

#[test]
fn a_fin_that_a_nic_worker_had_not_sent_goes_again() {
    let mut rig = rig_with_sends_waiting(3_000);
    rig.ask(&["quit"]);
    for _ in 0..10 {
        rig.step();
    }
    rig.restart_nic();
    rig.nic_works = true;
    rig.client.shutdown();
    rig.run_until(|rig| close_reason(rig) == Some(CloseReason::Finished));
    assert!(rig.received == answer(3_000));
    assert_eq!(rig.stack.counters().retransmissions, 0);
}

#[test]
fn nothing_is_sent_of_a_file_before_it_is_known_to_be_the_same() {
    let mut rig = rig_with_sends_waiting(3_000);
    rig.restart_nic();
    for _ in 0..50 {
        rig.step();
    }
    assert_eq!(rig.nic.work.len(), 1, "OPEN, and nothing else");
    let Some(Work::Open(file, _)) = rig.nic.work.pop_front() else {
        panic!("an OPEN");
    };
    let meta = FileMeta {
        size: 3_000,
        mtime_ns: 1,
        ..FileMeta::default()
    };
    rig.nic.report(&Event::Opened { file, meta });
    rig.run_until(|rig| close_reason(rig).is_some());
    assert_eq!(close_reason(&rig), Some(CloseReason::DataPlaneFailed));
    assert!(rig.received.is_empty());
    rig.step();
    assert_eq!(rig.nic.closed, [file], "the new version is closed again");
}

#[test]
fn a_file_that_is_gone_ends_its_connection_only() {
    let mut rig = rig_with_sends_waiting(3_000);
    rig.restart_nic();
    rig.run_until(|rig| !rig.nic.work.is_empty());
    let Some(Work::Open(file, _)) = rig.nic.work.pop_front() else {
        panic!("an OPEN");
    };
    rig.nic.sizes.remove(&file);
    rig.nic.report(&Event::OpenFailed { file, errno: 2 });
    rig.run_until(|rig| close_reason(rig).is_some());
    assert_eq!(close_reason(&rig), Some(CloseReason::DataPlaneFailed));
    rig.nic_works = true;
    rig.reconnect();
    rig.ask(&["500"]);
    rig.run_until(|rig| rig.received.len() == 502);
    assert!(rig.nic.closed.iter().all(|&closed| closed != file));
}

#[test]
fn a_worker_that_opens_fewer_files_than_the_one_before_ends_connections_and_holds_up_none() {
    let mut rig = rig_with_sends_waiting(3_000);
    rig.restart_nic();
    rig.run_until(|rig| !rig.nic.work.is_empty());
    let Some(Work::Open(file, _)) = rig.nic.work.pop_front() else {
        panic!("an OPEN");
    };
    rig.nic.sizes.remove(&file);
    let (reason, id) = (RejectReason::TooManyFiles, u64::from(file.0));
    rig.nic.report(&Event::Rejected { reason, id });
    rig.run_until(|rig| close_reason(rig).is_some());
    assert_eq!(close_reason(&rig), Some(CloseReason::DataPlaneFailed));
    assert_eq!(rig.stack.counters().events_invalid, 0);
    rig.step();
    assert_eq!(rig.stack.usage().files, 0);
}

#[test]
fn an_open_that_was_not_answered_is_asked_again() {
    let mut rig = Rig::new();
    rig.ask(&["3000"]);
    rig.nic_works = false;
    rig.run_until(|rig| !rig.nic.work.is_empty());
    rig.restart_nic();
    rig.nic_works = true;
    rig.run_until(|rig| rig.received.len() == 3_002);
    assert!(rig.received == answer(3_000));
    let opened = |event: &AppEvent| matches!(event, AppEvent::Opened { .. });
    assert_eq!(rig.app.count(opened), 1, "the application gets it once");
}

#[test]
fn a_send_that_is_lost_goes_again_after_a_silence() {
    let mut rig = rig_with_sends_waiting(1_000);
    rig.nic.work.clear();
    rig.nic_works = true;
    let begun_us = rig.now_us;
    rig.run_until(|rig| rig.received.len() == 1_002);
    assert!(rig.received == answer(1_000));
    assert!((1_000_000..1_100_000).contains(&(rig.now_us - begun_us)));
    let counters = rig.stack.counters();
    assert_eq!(counters.sends_repeated, 1);
    assert_eq!((counters.retransmissions, counters.timeouts), (0, 0));
}

#[test]
fn an_echo_that_is_lost_is_made_up_for_by_the_acknowledgment() {
    let mut rig = rig_with_sends_waiting(1_000);
    let Some(Work::Send { frames, .. }) = rig.nic.work.pop_front() else {
        panic!("a SEND");
    };
    for frame in frames {
        rig.client_hears(&frame);
    }
    for _ in 0..30_000 {
        rig.step();
    }
    assert!(rig.received == answer(1_000));
    assert_eq!(rig.stack.counters().sends, 1, "nothing is sent twice");
    assert_eq!(rig.stack.usage().sends_outstanding, 0, "it has left");
}

#[test]
fn the_echo_of_a_later_send_stands_for_one_that_is_lost() {
    let mut rig = rig_with_sends_waiting(1_000);
    rig.ask(&["nonsense"]);
    rig.run_until(|rig| rig.nic.work.len() >= 2);
    // The second request's answer, `no`, follows once its OPEN has failed.
    while let Some(at) = rig
        .nic
        .work
        .iter()
        .position(|w| matches!(w, Work::Open(..)))
    {
        let open = rig.nic.work.remove(at).unwrap();
        rig.carry_out(open);
    }
    rig.run_until(|rig| rig.nic.work.len() == 2);
    // The first SEND is lost. The second one departs, and opens a hole that the client reports.
    rig.nic.work.pop_front();
    rig.nic_works = true;
    rig.run_until(|rig| rig.received.len() == 1_004);
    assert!(rig.received.starts_with(&answer(1_000)) && rig.received.ends_with(b"no"));
    assert_eq!(
        rig.stack.counters().sends_repeated,
        0,
        "TCP has repaired it"
    );
}

/// Responses of files and of real bytes, FIN and RST, slow reads, lost packets, lost SENDs, lost
/// echoes and NIC workers that start again: whatever the client gets is right, and it gets
/// everything unless it is reset.
#[test]
fn any_mix_survives_losses_between_host_and_nic_and_behind_it() {
    each_seed(150, mix);
}

fn mix(random: &mut dyn FnMut(u64) -> u64) {
    let mut rig = Rig::with(|config| {
        config.tcp.departure_timeout = Some(Duration::from_millis(300));
        config.tcp.rto_min = Duration::from_millis(20);
    });
    rig.nic_works = false;
    // A connection that is reset takes no answer.
    rig.app.lenient = true;
    let mut expected = Vec::new();
    let mut lines = Vec::new();
    for _ in 0..=random(6) {
        match random(3) {
            0 => {
                lines.push("nonsense".to_owned());
                expected.extend(b"no");
            }
            _ => {
                let size = [random(20), random(5_000), random(200_000)][random(3) as usize];
                lines.push(size.to_string());
                expected.extend(answer(size));
            }
        }
    }
    let quits = random(2) == 0;
    // The server of the rig answers one request at a time: pipelined ones may be answered as their
    // OPENs are.
    let resets_at = if random(5) == 0 {
        random(3_000)
    } else {
        u64::MAX
    };
    // What goes wrong, in percent.
    let (packets, sends, echoes) = (random(6), random(4), random(6));
    let restart_every = [u64::MAX, 400, 1_500][random(3) as usize];
    let mut waiting: std::collections::VecDeque<(u64, Work)> = Default::default();
    let mut asked = 0;
    let mut done = 0;
    for step in 0..400_000 {
        // One request after the other, so that the order of answers is known.
        if asked < lines.len() && rig.received.len() == done {
            rig.ask(&[&lines[asked]]);
            done += match lines[asked].parse::<usize>() {
                Ok(size) => size + 2,
                Err(_) => 2,
            };
            asked += 1;
        } else if asked == lines.len() && quits && rig.received.len() == done {
            rig.ask(&["quit"]);
            asked += 1;
        }
        if step == resets_at {
            rig.client.abort();
        }
        rig.step();
        if step % restart_every == restart_every - 1 {
            rig.restart_nic();
            waiting.clear();
        }
        while let Some(work) = rig.nic.work.pop_front() {
            let lost = matches!(work, Work::Send { .. }) && random(100) < sends;
            if !lost {
                let at_us = waiting.back().map_or(0, |(at_us, _)| *at_us);
                waiting.push_back((at_us.max(rig.now_us + random(8_000)), work));
            }
        }
        while waiting
            .front()
            .is_some_and(|(at_us, _)| *at_us <= rig.now_us)
        {
            let Some((_, work)) = waiting.pop_front() else {
                break;
            };
            match work {
                Work::Open(..) => rig.carry_out(work),
                Work::Send {
                    id, flow, frames, ..
                } => {
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
        assert!(expected.starts_with(&rig.received), "every byte is right");
        let complete = rig.received.len() == expected.len();
        let finished =
            !quits || rig.client_closed.is_some() || rig.client.state() == tcp::State::CloseWait;
        if resets_at != u64::MAX && step > resets_at + 100 {
            break;
        }
        if complete && finished && asked >= lines.len() {
            return;
        }
    }
    assert!(
        resets_at != u64::MAX,
        "stuck at {} of {} bytes: {:?}",
        rig.received.len(),
        expected.len(),
        rig.stack.counters()
    );
    rig.run_until(|rig| close_reason(rig).is_some());
}
