//! TLS records: whatever is sent, in whatever pieces and however often, is one and the same
//! ciphertext, or nothing.

mod support;

use std::collections::VecDeque;

use contract::limits::{FLOW_RECORDS_MAX, KEYS_MAX};
use contract::tls::{ContentType, Tag};
use contract::{Command, Event, FileId, FlowId, RejectReason, Segment, Segments, SendId};
use fakes::keys::SUITES;
use fakes::recording_port::Answer;
use nic::Config;
use proptest::prelude::*;
use support::tls::{AES_256_13, Plain, Run, file, inline, install, key_bytes, put, sealed};
use support::{MSS, Stage, content, departed, header, small_config};
use wire::tcp::Flags;

const FLOW: u64 = 1;

/// More flows than there are places for tails.
const TAILS_MAX: u64 = 5000;

/// Sends a range of a flow's sealed stream.
fn send(stage: &mut Stage, flow: u64, start: u64, end: u64) -> Vec<SendId> {
    let mut ids = Vec::new();
    let mut start = start;
    while start < end {
        let len = (end - start).min(contract::limits::SEND_BYTES_MAX as u64);
        ids.push(stage.send(flow, start, [sealed(len as usize)]));
        start += len;
    }
    ids
}

/// The tags that have been reported, with their numbers.
fn reported(events: &[Event]) -> Vec<(u64, Tag)> {
    events
        .iter()
        .flat_map(|event| match event {
            Event::Sealed { number, tags, .. } => (*number..).zip(tags.to_vec()).collect(),
            _ => Vec::new(),
        })
        .collect()
}

/// A stage with one flow whose records are of this suite.
fn stage(suite: contract::tls::Suite, files: &[Vec<u8>]) -> Stage {
    let mut stage = Stage::new();
    put(&mut stage, files);
    install(&mut stage, FLOW, 1, suite);
    stage
}

#[test]
fn every_suite_and_version_seals_what_another_implementation_seals() {
    let files = [content(300_000), content(40_000)];
    for suite in SUITES {
        let mut stage = stage(suite, &files);
        let first = Run::new(
            suite,
            16_384,
            [inline(b"HTTP/1.1 200 OK\r\n\r\n"), file(0, 0, 300_000)],
        );
        let second = Run {
            content_type: ContentType::Handshake,
            ..first.then(16_384, [inline(b"\x18\0\0\x01\0")])
        };
        let mut third = second.then(1000, [file(1, 1, 30_000), inline(b"0\r\n\r\n")]);
        third.content_type = ContentType::ApplicationData;
        install(&mut stage, FLOW, 2, suite);
        (third.epoch, third.number) = (2, 0);
        let runs = [first, second, third];
        let expected: Vec<u8> = runs.iter().flat_map(|run| run.sealed(&files)).collect();
        for run in &runs {
            run.define(&mut stage, FLOW);
        }
        let sends = send(&mut stage, FLOW, 0, expected.len() as u64);
        let events = stage.take_events();
        assert_eq!(departed(&events), sends);
        assert!(stage.wire.streams()[&FLOW] == expected, "{suite:?}");

        let tags: Vec<Tag> = reported(&events).into_iter().map(|(_, tag)| tag).collect();
        let mut expected = expected.as_slice();
        let mut of_runs = Vec::new();
        for run in &runs {
            let (sealed, rest) = expected.split_at(run.len());
            of_runs.extend(run.tags_of(sealed));
            expected = rest;
        }
        assert_eq!(tags, of_runs);
        let counters = stage.counters();
        assert_eq!(counters.records_sealed, tags.len() as u64);
        assert_eq!(counters.records_sealed_again, 0);
        assert_eq!(
            counters.sealed_sent_bytes,
            stage.wire.streams()[&FLOW].len() as u64
        );
    }
}

#[test]
fn sealed_and_other_bytes_share_packets() {
    let files = [content(100_000)];
    let mut stage = stage(AES_256_13, &files);
    let mut run = Run::new(AES_256_13, 5000, [file(0, 0, 50_000)]);
    run.stream_offset = 9;
    let mut next = run.then(16_384, [file(0, 50_000, 50_000)]);
    next.stream_offset += 3;
    run.define(&mut stage, FLOW);
    next.define(&mut stage, FLOW);
    stage.send(
        FLOW,
        0,
        [
            Segment::Inline(b"handshake"),
            sealed(run.len()),
            Segment::Inline(b"raw"),
            sealed(next.len()),
        ],
    );
    stage.settle();
    let expected = [
        &b"handshake"[..],
        &run.sealed(&files),
        b"raw",
        &next.sealed(&files),
    ]
    .concat();
    assert!(stage.wire.streams()[&FLOW] == expected);
}

#[test]
fn a_record_that_leaves_in_many_pieces_is_sealed_once() {
    let files = [content(200_000)];
    let mut stage = stage(AES_256_13, &files);
    let run = Run::new(AES_256_13, 16_384, [file(0, 0, 200_000)]);
    run.define(&mut stage, FLOW);
    for start in (0..run.end()).step_by(MSS.into()) {
        send(
            &mut stage,
            FLOW,
            start,
            run.end().min(start + u64::from(MSS)),
        );
        stage.settle();
    }
    assert!(stage.wire.streams()[&FLOW] == run.sealed(&files));
    let counters = stage.counters();
    assert_eq!(counters.records_sealed, run.count() as u64);
    assert_eq!(counters.records_sealed_again, 0);
}

#[test]
fn a_thousand_flows_that_send_little_at_a_time_seal_each_record_once() {
    const FLOWS: u64 = 1000;
    let files = [content(40_000)];
    let mut stage = stage(AES_256_13, &files);
    let run = Run::new(AES_256_13, 16_384, [file(0, 0, 40_000)]);
    for flow in 1..=FLOWS {
        if flow != FLOW {
            install(&mut stage, flow, 1, AES_256_13);
        }
        run.define(&mut stage, flow);
    }
    let step = 2 * u64::from(MSS);
    for start in (0..run.end()).step_by(step as usize) {
        for flow in 1..=FLOWS {
            send(&mut stage, flow, start, run.end().min(start + step));
        }
        stage.settle();
        stage.events.clear();
        // What has left is right, and not to be kept for long.
        let expected = run.sealed(&files);
        for packet in stage.wire.take() {
            let at = packet.stream_offset();
            assert!(packet.payload == expected[at..at + packet.payload.len()]);
        }
    }
    let counters = stage.counters();
    assert_eq!(counters.records_sealed, FLOWS * run.count() as u64);
    assert_eq!(counters.records_sealed_again, 0);
    assert_eq!(counters.sealed_bytes, FLOWS * run.end());
}

#[test]
fn one_turn_sends_so_much_and_no_more() {
    const FLOWS: u64 = 32;
    // What a turn may send, and the superpacket that makes for it, with two records that it has a
    // part of.
    const TURN_BYTES_MAX: u64 = (1 << 20) + 65_536 + 2 * 16_406;
    let files = [content(60_000)];
    let run = Run::new(AES_256_13, 16_384, [file(0, 0, 60_000)]);
    for is_sealed in [false, true] {
        let mut stage = stage(AES_256_13, &files);
        // All are ready and the port opens.
        stage.wire.close(true);
        for flow in 1..=FLOWS {
            if flow != FLOW {
                install(&mut stage, flow, 1, AES_256_13);
            }
            run.define(&mut stage, flow);
            if is_sealed {
                stage.send(flow, 0, [sealed(run.len())])
            } else {
                stage.send(flow, 0, [support::range(0, 0, 60_000)])
            };
        }
        stage.settle();
        let handled = |counters: nic::Counters| counters.sealed_bytes + counters.file_sent_bytes;
        let before = handled(stage.counters());
        stage.wire.close(false);
        stage.turn();
        let bytes = handled(stage.counters()) - before;
        assert!(bytes >= 1 << 20, "{bytes}");
        assert!(bytes <= TURN_BYTES_MAX, "{bytes}");
        assert!((stage.wire.packets().len() as u64) < FLOWS);
        stage.settle();
        assert_eq!(stage.wire.packets().len() as u64, FLOWS);
    }
}

#[test]
fn a_busy_port_does_not_make_anything_be_sealed_twice() {
    let files = [content(200_000)];
    let mut stage = stage(AES_256_13, &files);
    let run = Run::new(AES_256_13, 16_384, [file(0, 0, 200_000)]);
    run.define(&mut stage, FLOW);
    send(&mut stage, FLOW, 0, run.end());
    stage.wire.answer((0..20).map(|_| Answer::Busy));
    for _ in 0..30 {
        stage.settle();
    }
    assert!(stage.wire.streams()[&FLOW] == run.sealed(&files));
    assert_eq!(stage.counters().port_waits, 20);
    assert_eq!(stage.counters().records_sealed_again, 0);
}

#[test]
fn a_retransmission_seals_again_from_pinned_blocks_until_the_end_of_the_record_is_acknowledged() {
    let files = [content(16_000)];
    let mut stage = stage(AES_256_13, &files);
    stage.settle();
    let key_bytes = stage.worker.usage().records_bytes;
    let run = Run::new(AES_256_13, 16_000, [file(0, 0, 16_000)]);
    run.define(&mut stage, FLOW);
    send(&mut stage, FLOW, 0, run.end());
    stage.settle();
    stage.acked(FLOW, run.end() - 1, false);
    send(&mut stage, FLOW, run.end() - 1, run.end());
    let events = stage.take_events();
    assert_eq!(departed(&events).len(), 2);
    assert_eq!(stage.worker.usage().blocks_pinned, 1);
    assert_eq!(stage.worker.usage().records, 1);
    assert_eq!(stage.disk.reads().len(), 1);
    assert_eq!(stage.counters().records_sealed_again, 1);
    assert!(stage.wire.streams()[&FLOW] == run.sealed(&files));

    stage.acked(FLOW, run.end(), false);
    stage.settle();
    assert_eq!(stage.worker.usage().blocks_pinned, 0);
    assert_eq!(stage.worker.usage().records, 0);
    assert_eq!(stage.worker.usage().records_bytes, key_bytes);
}

/// The flow that makes others' blocks go.
const PASSER_BY: u64 = 60_000;

/// Makes the worker lose all blocks that were not used for a second.
fn lose_blocks(stage: &mut Stage) {
    stage.now_us.set(stage.now_us.get() + 2_000_000);
    stage.disk.put(b"large", content(Config::CACHE_BYTES_MIN));
    stage.open(1000, b"large");
    for start in (0..Config::CACHE_BYTES_MIN).step_by(1 << 20) {
        let len = (Config::CACHE_BYTES_MIN - start).min(1 << 20);
        stage.send(
            PASSER_BY,
            start as u64,
            [support::range(1000, start as u64, len as u32)],
        );
    }
    stage.settle();
    stage.acked(PASSER_BY, 0, true);
    stage.tell(&Command::Close { file: FileId(1000) });
    stage.settle();
    stage.events.clear();
}

fn smallest() -> Config {
    Config {
        cache_bytes: 0,
        ..small_config()
    }
}

#[test]
fn a_file_that_changes_under_a_retransmission_ends_the_flow_and_no_second_ciphertext_leaves() {
    for suite in SUITES {
        for changed in [false, true] {
            let files = [content(70_000)];
            let mut stage = Stage::with(&smallest());
            put(&mut stage, &files);
            install(&mut stage, FLOW, 1, suite);
            let run = Run::new(suite, 16_384, [file(0, 0, 70_000)]);
            run.define(&mut stage, FLOW);
            send(&mut stage, FLOW, 0, run.end());
            stage.settle();
            lose_blocks(&mut stage);
            if changed {
                // One byte, of the third record.
                let mut content = files[0].clone();
                content[2 * 16_384 + 77] ^= 1;
                stage.disk.overwrite(b"file 0", content);
            }
            let sent = stage.wire.packets().len();
            // All of the first two records, then a few bytes of the third.
            let two = 2 * (16_384 + suite.overhead_bytes()) as u64;
            let [good] = send(&mut stage, FLOW, 0, two)[..] else {
                unreachable!()
            };
            let [bad] = send(&mut stage, FLOW, two, two + 1)[..] else {
                unreachable!()
            };
            let after = send(&mut stage, FLOW, 0, two)[0];
            let events = stage.take_events();
            if changed {
                assert_eq!(departed(&events), [good]);
                let mismatch = Event::SealMismatch {
                    send: bad,
                    flow: FlowId(FLOW),
                    epoch: 1,
                    number: 2,
                };
                assert_eq!(events.last(), Some(&mismatch));
                assert_eq!(stage.wire.packets().len(), sent + 1);
                // Nor does anything later, and nothing is kept.
                send(&mut stage, FLOW, 0, 100);
                run.define(&mut stage, FLOW);
                install(&mut stage, FLOW, 2, suite);
                assert_eq!(stage.take_events(), []);
                let usage = stage.worker.usage();
                assert_eq!((usage.keys, usage.records, usage.records_bytes), (0, 0, 0));
                assert_eq!(stage.counters().seal_mismatches, 1);
            } else {
                assert_eq!(departed(&events), [good, bad, after])
            }
            assert_eq!(
                stage.wire.streams()[&PASSER_BY].len(),
                Config::CACHE_BYTES_MIN
            );
            // Whatever has left, once or twice, is the first ciphertext.
            assert!(
                stage.wire.streams()[&FLOW] == run.sealed(&files),
                "{suite:?}"
            );
        }
    }
}

#[test]
fn the_rest_of_a_record_is_what_its_beginning_was_even_if_its_tail_is_lost() {
    for changed in [false, true] {
        let files = [content(16_384)];
        let mut stage = Stage::with(&smallest());
        put(&mut stage, &files);
        install(&mut stage, FLOW, 1, AES_256_13);
        let run = Run::new(AES_256_13, 16_384, [file(0, 0, 16_384)]);
        run.define(&mut stage, FLOW);
        send(&mut stage, FLOW, 0, 1000);
        stage.settle();
        for flow in 2..2 + TAILS_MAX {
            install(&mut stage, flow, 1, AES_256_13);
            run.define(&mut stage, flow);
            send(&mut stage, flow, 0, 1000);
        }
        stage.settle();
        for flow in 2..2 + TAILS_MAX {
            stage.acked(flow, 0, true);
        }
        lose_blocks(&mut stage);
        if changed {
            stage
                .disk
                .overwrite(b"file 0", content(16_385)[..16_384].to_vec());
        }
        let [rest] = send(&mut stage, FLOW, 1000, run.end())[..] else {
            unreachable!()
        };
        let events = stage.take_events();
        let stream = stage.wire.streams()[&FLOW].clone();
        let expected = run.sealed(&files);
        if changed {
            assert!(matches!(
                events[..],
                [Event::SealMismatch { number: 0, .. }]
            ));
            assert!(stream == expected[..1000]);
        } else {
            assert_eq!(departed(&events), [rest]);
            assert!(stream == expected);
        }
        assert_eq!(stage.counters().records_sealed_again, u64::from(!changed));
    }
}

#[test]
fn after_a_restart_the_host_says_the_tags_and_the_rule_holds() {
    let files = [content(100_000)];
    let before = {
        let mut stage = stage(AES_256_13, &files);
        let run = Run::new(AES_256_13, 16_384, [file(0, 0, 100_000)]);
        run.define(&mut stage, FLOW);
        // Three records and a half: of four, something has left.
        send(&mut stage, FLOW, 0, 3 * 16_406 + 8000);
        let tags = reported(&stage.take_events());
        assert_eq!(
            tags.iter().map(|(number, _)| *number).collect::<Vec<_>>(),
            [0, 1, 2, 3]
        );
        Run {
            tags: tags.into_iter().map(|(_, tag)| tag).collect(),
            ..run
        }
    };
    let expected = before.sealed(&files);

    let mut unchanged = stage(AES_256_13, &files);
    before.define(&mut unchanged, FLOW);
    unchanged.send(FLOW, 16_406, [sealed(expected.len() - 16_406)]);
    let events = unchanged.take_events();
    assert_eq!(departed(&events).len(), 1);
    let numbers: Vec<u64> = reported(&events)
        .iter()
        .map(|(number, _)| *number)
        .collect();
    assert_eq!(numbers, [4, 5, 6], "the others are known");
    let packets = unchanged.wire.packets();
    let stream: Vec<u8> = packets
        .iter()
        .flat_map(|packet| packet.payload.clone())
        .collect();
    assert!(stream == expected[16_406..]);

    // A file that has changed meanwhile, or tags of something else.
    let mut other = files.clone();
    other[0][3 * 16_384] ^= 0x80;
    let mut wrong = before.clone();
    wrong.tags[3][15] ^= 1;
    for (run, files) in [(&before, &other), (&wrong, &files)] {
        let mut stage = stage(AES_256_13, files);
        run.define(&mut stage, FLOW);
        let rest = stage.send(FLOW, 3 * 16_406 + 8000, [sealed(9000)]);
        let mismatch = Event::SealMismatch {
            send: rest,
            flow: FlowId(FLOW),
            epoch: 1,
            number: 3,
        };
        assert_eq!(stage.take_events(), [mismatch]);
        assert!(stage.wire.packets().is_empty());
    }
}

#[test]
fn the_tag_of_a_record_is_in_the_ring_before_any_of_it_leaves() {
    let files = [content(500_000)];
    let mut stage = stage(AES_256_13, &files);
    let run = Run::new(AES_256_13, 300, [file(0, 0, 19_000)]);
    let next = run.then(16_384, [file(0, 0, 500_000)]);
    run.define(&mut stage, FLOW);
    next.define(&mut stage, FLOW);
    let expected = [run.sealed(&files), next.sealed(&files)].concat();
    // While the port takes nothing, all that was reported is in the ring, published.
    stage.wire.close(true);
    send(&mut stage, FLOW, 0, next.end());
    let mut known = 0;
    let mut left = 0;
    while left < expected.len() {
        stage.settle();
        known += reported(&std::mem::take(&mut stage.events)).len();
        // One superpacket goes, and the next one finds the port busy.
        stage.wire.close(false);
        let before = stage.wire.packets().len();
        stage.worker.port().close_after(1);
        stage.turn();
        let packets = stage.wire.packets();
        assert_eq!(packets.len(), before + 1);
        left += packets[before].payload.len();
        // Records of which something has left by now.
        let begun = match left.checked_sub(run.len()) {
            None | Some(0) => left.div_ceil(322),
            Some(bytes) => run.count() + bytes.div_ceil(16_406),
        };
        assert!(
            known >= begun,
            "{known} tags were known, {begun} records have left"
        );
        stage.wire.close(true);
    }
    assert!(stage.wire.streams()[&FLOW] == expected);
}

#[test]
fn a_full_event_ring_keeps_packets_back_and_their_tags_come_first() {
    let files = [content(500_000)];
    let mut stage = stage(AES_256_13, &files);
    let run = Run::new(AES_256_13, 16_384, [file(0, 0, 500_000)]);
    run.define(&mut stage, FLOW);
    let mut fillers = 0;
    // Departures of another flow fill the ring, which is not read.
    while stage.worker.usage().events_waiting < 10 {
        stage.send(2, fillers, [Segment::Inline(b"x")]);
        fillers += 1;
        stage.turn();
    }
    let before = stage.wire.packets().len();
    send(&mut stage, FLOW, 0, run.end());
    for _ in 0..10 {
        stage.turn();
    }
    assert_eq!(stage.wire.packets().len(), before);
    assert!(stage.counters().ring_waits > 0);
    stage.settle();
    assert!(stage.wire.streams()[&FLOW] == run.sealed(&files));
    assert_eq!(stage.counters().records_sealed_again, 0);
}

#[test]
fn a_read_that_fails_fails_the_send_before_any_byte_of_the_record_leaves() {
    let files = [content(100_000)];
    let mut stage = stage(AES_256_13, &files);
    stage.disk.spoil(b"file 0", 70_000, 5);
    let run = Run::new(AES_256_13, 16_384, [file(0, 0, 100_000)]);
    run.define(&mut stage, FLOW);
    let bad = send(&mut stage, FLOW, 0, run.end())[0];
    let events = stage.take_events();
    let failed = Event::ReadFailed {
        send: bad,
        flow: FlowId(FLOW),
        file: FileId(0),
        offset: 70_000,
        errno: 5,
    };
    assert_eq!(events.last(), Some(&failed));
    for packet in stage.wire.packets() {
        let end = packet.stream_offset() + packet.payload.len();
        assert!(end <= 4 * 16_406, "the fifth record lacks a byte");
    }
}

#[test]
fn a_key_goes_when_the_last_record_under_it_is_acknowledged() {
    let mut stage = stage(AES_256_13, &[]);
    let first = Run::new(AES_256_13, 100, [inline(&[1; 250])]);
    first.define(&mut stage, FLOW);
    let gone = |stage: &mut Stage, epoch| {
        let flow = FlowId(FLOW);
        stage.tell(&Command::KeyGone { flow, epoch });
    };
    gone(&mut stage, 1);
    install(&mut stage, FLOW, 2, AES_256_13);
    let mut second = first.then(100, [inline(&[2; 50])]);
    (second.epoch, second.number) = (2, 0);
    second.define(&mut stage, FLOW);
    // No more under the old one, but what was defined may be defined again.
    first.define(&mut stage, FLOW);
    assert_eq!(stage.take_events(), []);
    let late = second.then(100, [inline(&[3; 50])]);
    Run {
        epoch: 1,
        number: 3,
        ..late
    }
    .define(&mut stage, FLOW);
    assert_eq!(
        stage.take_events(),
        rejected(RejectReason::UnknownKey, FLOW)
    );

    send(&mut stage, FLOW, 0, second.end());
    stage.settle();
    assert_eq!(stage.worker.usage().keys, 2);
    let printed = format!("{:?} {:?}", stage.worker, stage.host);
    let secret = format!("{:?}", &key_bytes(1)[..4]);
    assert!(!printed.contains(secret.trim_matches(['[', ']'])));
    stage.acked(FLOW, first.end(), false);
    stage.settle();
    assert_eq!(stage.worker.usage().keys, 1);
    stage.acked(FLOW, second.end(), false);
    stage.settle();
    assert_eq!(stage.worker.usage().keys, 1, "no command has closed it");
    gone(&mut stage, 2);
    stage.settle();
    assert_eq!(stage.worker.usage().keys, 0);
    assert_eq!(
        stage.worker.usage().flows,
        1,
        "epochs ascend for as long as the flow lives"
    );
    stage.acked(FLOW, 0, true);
    stage.settle();
    assert_eq!(stage.worker.usage().flows, 0);
}

fn rejected(reason: RejectReason, id: u64) -> [Event; 1] {
    [Event::Rejected { reason, id }]
}

#[test]
fn what_makes_no_sense_is_refused() {
    let files = [content(1000)];
    let mut stage = stage(AES_256_13, &files);
    let run = Run::new(AES_256_13, 100, [file(0, 0, 1000)]);
    let mut refused = |what: &str, reason, id, say: &mut dyn FnMut(&mut Stage)| {
        say(&mut stage);
        assert_eq!(stage.take_events(), rejected(reason, id), "{what}");
    };
    let define = |run: Run| move |stage: &mut Stage| run.define(stage, FLOW);

    refused(
        "no key",
        RejectReason::UnknownKey,
        FLOW,
        &mut define(Run {
            epoch: 2,
            ..run.clone()
        }),
    );
    refused("no flow", RejectReason::UnknownKey, 2, &mut |stage| {
        run.define(stage, 2)
    });
    refused("no such key", RejectReason::UnknownKey, 1, &mut |stage| {
        let flow = FlowId(1);
        stage.tell(&Command::KeyGone { flow, epoch: 7 });
    });
    refused(
        "the epoch again",
        RejectReason::KeyConflict,
        FLOW,
        &mut |stage| {
            install(stage, FLOW, 1, AES_256_13);
        },
    );
    refused(
        "no such file",
        RejectReason::RecordsOutOfFile,
        FLOW,
        &mut define(Run {
            pieces: vec![file(9, 0, 1)],
            ..run.clone()
        }),
    );
    refused(
        "past the end",
        RejectReason::RecordsOutOfFile,
        FLOW,
        &mut define(Run {
            pieces: vec![file(0, 999, 2)],
            ..run.clone()
        }),
    );
    run.define(&mut stage, FLOW);
    assert_eq!(stage.take_events(), []);
    let mut refused = |what: &str, run: Run| {
        run.define(&mut stage, FLOW);
        let expected = rejected(RejectReason::RecordsConflict, FLOW);
        assert_eq!(stage.take_events(), expected, "{what}");
    };
    let next = run.then(100, [inline(b"next")]);
    refused(
        "a number again",
        Run {
            number: 9,
            ..next.clone()
        },
    );
    refused(
        "a place again",
        Run {
            stream_offset: next.stream_offset - 1,
            ..next.clone()
        },
    );
    refused(
        "other plaintext",
        Run {
            pieces: vec![inline(&[0; 1000])],
            ..run.clone()
        },
    );
    refused(
        "another type",
        Run {
            content_type: ContentType::Alert,
            ..run.clone()
        },
    );
    refused(
        "another cut",
        Run {
            each: 200,
            ..run.clone()
        },
    );
    refused(
        "another part of the file",
        Run {
            pieces: vec![file(0, 1, 999), inline(b"x")],
            ..run.clone()
        },
    );
    run.define(&mut stage, FLOW);
    next.define(&mut stage, FLOW);
    assert_eq!(stage.take_events(), []);

    for (start, len) in [(0, next.end() + 1), (next.end(), 1)] {
        let id = stage.send(FLOW, start, [sealed(len as usize)]);
        assert_eq!(
            stage.take_events(),
            rejected(RejectReason::UnknownRecords, id.0)
        );
    }
    let id = stage.send(3, 0, [sealed(1)]);
    assert_eq!(
        stage.take_events(),
        rejected(RejectReason::UnknownRecords, id.0)
    );
    // Once acknowledged it is over.
    stage.acked(FLOW, run.end(), false);
    let id = stage.send(FLOW, 0, [sealed(1)]);
    assert_eq!(
        stage.take_events(),
        rejected(RejectReason::UnknownRecords, id.0)
    );
    run.define(&mut stage, FLOW);
    assert_eq!(
        stage.take_events(),
        rejected(RejectReason::RecordsConflict, FLOW)
    );
}

#[test]
fn keys_and_records_are_bounded() {
    let mut stage = stage(AES_256_13, &[]);
    for epoch in 2..=KEYS_MAX as u16 {
        install(&mut stage, FLOW, epoch, AES_256_13);
    }
    assert_eq!(stage.take_events(), []);
    install(&mut stage, FLOW, 77, AES_256_13);
    assert_eq!(
        stage.take_events(),
        rejected(RejectReason::TooManyKeys, FLOW)
    );

    let mut run = Run::new(AES_256_13, 1, [inline(&[7; 64])]);
    for _ in 0..FLOW_RECORDS_MAX / 64 {
        run.define(&mut stage, FLOW);
        run = run.then(1, [inline(&[7; 64])]);
    }
    assert_eq!(stage.take_events(), []);
    assert_eq!(stage.worker.usage().records, FLOW_RECORDS_MAX);
    run.define(&mut stage, FLOW);
    assert_eq!(
        stage.take_events(),
        rejected(RejectReason::TooManyRecords, FLOW)
    );
    let bytes = stage.worker.usage().records_bytes;
    assert!(bytes < 64 * FLOW_RECORDS_MAX, "{bytes}");

    let config = Config {
        records_bytes: bytes,
        flows_max: 2,
        ..small_config()
    };
    let mut stage = Stage::with(&config);
    install(&mut stage, 1, 1, AES_256_13);
    install(&mut stage, 2, 1, AES_256_13);
    install(&mut stage, 3, 1, AES_256_13);
    assert_eq!(stage.take_events(), rejected(RejectReason::TooManyFlows, 3));
    let mut run = Run::new(AES_256_13, 16_384, [inline(&[7; 4096])]);
    let mut defined = 0;
    let refusal = loop {
        run.define(&mut stage, 1);
        run = run.then(16_384, [inline(&[7; 4096])]);
        match stage.take_events()[..] {
            [] => defined += 1,
            [ref event] => break event.clone(),
            ref more => panic!("{more:?}"),
        }
    };
    assert_eq!([refusal], rejected(RejectReason::TooManyRecords, 1));
    let used = stage.worker.usage().records_bytes;
    assert!(used <= bytes && used + 5000 > bytes && defined > 50);
    stage.acked(1, 0, true);
    stage.acked(2, 0, true);
    stage.settle();
    assert_eq!(stage.worker.usage().records_bytes, 0);

    // A key is memory, too, also one that nothing is sealed with.
    let config = Config {
        records_bytes: 10 << 10,
        ..small_config()
    };
    let mut stage = Stage::with(&config);
    for flow in 1..=10 {
        install(&mut stage, flow, 1, AES_256_13);
    }
    assert_eq!(stage.take_events(), []);
    install(&mut stage, 11, 1, AES_256_13);
    assert_eq!(stage.take_events(), rejected(RejectReason::TooManyKeys, 11));
    stage.acked(7, 0, true);
    install(&mut stage, 11, 1, AES_256_13);
    stage.tell(&Command::KeyGone {
        flow: FlowId(11),
        epoch: 1,
    });
    install(&mut stage, 12, 1, AES_256_13);
    assert_eq!(stage.take_events(), []);
    assert_eq!(stage.worker.usage().records_bytes, 10 << 10);
}

#[test]
fn small_records_by_the_thousand_are_cut_to_what_a_superpacket_can_hold() {
    let files = [content(1 << 20)];
    let mut stage = stage(AES_256_13, &files);
    // Each record needs another block than the one before.
    let scattered = |first: usize| -> Vec<Plain> {
        (0..32)
            .map(|at| file(0, (first + at * 7) % 16 * 65_536 + at, 2))
            .collect()
    };
    let mut run = Run::new(AES_256_13, 1, scattered(0));
    let mut runs = vec![run.clone()];
    for first in 1..40 {
        run = run.then(1 + first as u16 % 3, scattered(first));
        runs.push(run.clone());
    }
    let expected: Vec<u8> = runs.iter().flat_map(|run| run.sealed(&files)).collect();
    for run in &runs {
        run.define(&mut stage, FLOW);
    }
    send(&mut stage, FLOW, 0, run.end());
    stage.settle();
    assert!(stage.wire.streams()[&FLOW] == expected);
}

#[test]
fn what_follows_in_the_file_is_read_ahead_but_not_for_a_retransmission() {
    let files = [content(1 << 20)];
    let mut stage = stage(AES_256_13, &files);
    let run = Run::new(AES_256_13, 16_384, [file(0, 0, 256 << 10)]);
    run.define(&mut stage, FLOW);
    send(&mut stage, FLOW, 0, 4 * 16_406);
    stage.settle();
    assert_eq!(stage.disk.reads().len(), 2, "one block, and one ahead");
    send(&mut stage, FLOW, 0, 4 * 16_406);
    stage.settle();
    assert_eq!(stage.disk.reads().len(), 2);
    send(&mut stage, FLOW, 4 * 16_406, run.end());
    stage.settle();
    assert_eq!(stage.disk.reads().len(), 4, "nothing beyond the run");
}

// ---- Any cut. ----

#[derive(Clone, Debug)]
enum Step {
    /// The next so many bytes of the stream.
    Next(usize),
    /// A range of what has been sent and not acknowledged.
    Again(f64, f64),
    /// So much of it is acknowledged.
    Acked(f64),
    Hold(bool),
    PortBusy(usize),
    /// All tails and blocks that may go are gone.
    Later,
    Turn,
    Settle,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => prop_oneof![1..3000usize, 1..100_000usize, 16_390..16_420usize].prop_map(Step::Next),
        4 => (0.0..1.0, 0.0..1.0).prop_map(|(from, to)| Step::Again(from, to)),
        2 => (0.0..1.0).prop_map(Step::Acked),
        1 => any::<bool>().prop_map(Step::Hold),
        1 => (1..4usize).prop_map(Step::PortBusy),
        1 => Just(Step::Later),
        4 => Just(Step::Turn),
        2 => Just(Step::Settle),
    ]
}

/// Runs of a flow: what each record holds, and pieces of files or bytes.
fn runs() -> impl Strategy<Value = Vec<(u16, Vec<Plain>)>> {
    let piece = prop_oneof![
        2 => prop::collection::vec(any::<u8>(), 1..900).prop_map(Plain::Inline),
        3 => (0..2u32, 0.0..1.0, 1..70_000usize).prop_map(|(id, at, len)| {
            let size = [300_000, 70_000][id as usize];
            let len = len.min(size);
            file(id, ((size - len) as f64 * at) as usize, len)
        }),
    ];
    let each = prop_oneof![Just(16_384u16), 4096..16_384u16];
    prop::collection::vec((each, prop::collection::vec(piece, 1..4)), 1..8)
}

proptest! {
    #![proptest_config(
        ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::with_cases(120)
        }
    )]

    #[test]
    fn any_cut_of_the_stream_is_of_one_ciphertext(
        suite in prop::sample::select(SUITES.to_vec()),
        runs in runs(),
        steps in prop::collection::vec(step(), 1..60),
        more_blocks in 0..8usize,
    ) {
        let files = [content(300_000), content(70_000)];
        let config = Config {
            cache_bytes: Config::CACHE_BYTES_MIN + more_blocks * nic::buffer::BLOCK_BYTES,
            ..Config::default()
        };
        let mut stage = Stage::with(&config);
        put(&mut stage, &files);
        install(&mut stage, FLOW, 1, suite);
        stage.settle();
        let key_bytes = stage.worker.usage().records_bytes;
        let mut defined: Vec<Run> = Vec::new();
        for (each, pieces) in runs {
            let run = match defined.last() {
                Some(last) => last.then(each, pieces),
                None => Run::new(suite, each, pieces),
            };
            run.define(&mut stage, FLOW);
            defined.push(run);
        }
        let expected: Vec<u8> = defined.iter().flat_map(|run| run.sealed(&files)).collect();
        let (mut sent, mut acked) = (0, 0);
        let mut ids = VecDeque::new();
        for step in steps {
            match step {
                Step::Next(len) => {
                    let end = (sent + len).min(expected.len());
                    ids.extend(send(&mut stage, FLOW, sent as u64, end as u64));
                    sent = end;
                }
                Step::Again(from, to) => {
                    let at = |fraction: f64| acked + ((sent - acked) as f64 * fraction) as usize;
                    let (from, to) = (at(from.min(to)), at(from.max(to)));
                    ids.extend(send(&mut stage, FLOW, from as u64, to as u64));
                }
                Step::Acked(fraction) => {
                    acked += ((sent - acked) as f64 * fraction) as usize;
                    stage.acked(FLOW, acked as u64, false);
                }
                Step::Hold(true) => stage.disk.hold(b"file 0"),
                Step::Hold(false) => stage.disk.release(b"file 0"),
                Step::PortBusy(times) => stage.wire.answer((0..times).map(|_| Answer::Busy)),
                Step::Later => stage.now_us.set(stage.now_us.get() + 2_000_000),
                Step::Turn => {
                    stage.turn();
                }
                Step::Settle => {
                    stage.settle();
                }
            }
        }
        stage.disk.release(b"file 0");
        ids.extend(send(&mut stage, FLOW, sent as u64, expected.len() as u64));
        for _ in 0..300 {
            stage.settle();
            if departed(&stage.events).len() == ids.len() {
                break;
            }
        }
        prop_assert_eq!(departed(&stage.events), Vec::from(ids));
        prop_assert!(stage.wire.streams()[&FLOW] == expected);

        // Each tag once, and the right one.
        let tags: Vec<Tag> = {
            let mut rest = expected.as_slice();
            let of_run = |run: &Run| run.tags_of(rest.split_off(..run.len()).expect("its records"));
            defined.iter().flat_map(of_run).collect()
        };
        let mut known = reported(&stage.events);
        known.sort_unstable();
        prop_assert_eq!(known, (0..).zip(tags).collect::<Vec<_>>());
        let printed_seals = stage.counters();
        prop_assert_eq!(printed_seals.records_sealed, stage.events.iter().map(|event| match event {
            Event::Sealed { tags, .. } => tags.len() as u64,
            _ => 0,
        }).sum::<u64>());

        stage.acked(FLOW, expected.len() as u64, false);
        stage.settle();
        let usage = stage.worker.usage();
        prop_assert_eq!(
            (usage.records, usage.records_bytes, usage.blocks_pinned),
            (0, key_bytes, 0)
        );
    }
}

/// Inline segments between sealed ones make the same records be needed again and again.
#[test]
fn a_superpacket_that_touches_one_record_many_times_is_bounded() {
    let files = [content(16_384)];
    let mut stage = stage(AES_256_13, &files);
    stage.wire.be_lenient();
    let run = Run::new(AES_256_13, 16_384, [file(0, 0, 16_384)]);
    run.define(&mut stage, FLOW);
    let mut segments = Segments::new();
    for _ in 0..16 {
        segments.push(sealed(10)).unwrap();
        segments.push(Segment::Inline(b"raw")).unwrap();
    }
    let header = header(FLOW, 0, Flags::ACK, 1);
    let id = stage.send_with(FLOW, 0, &header, segments);
    assert_eq!(departed(&stage.take_events()), [id]);
    let mut expected = run.sealed(&files);
    for at in 0..16 {
        expected[at * 13 + 10..at * 13 + 13].copy_from_slice(b"raw");
    }
    assert!(stage.wire.streams()[&FLOW] == expected[..16 * 13]);
}
