//! SPLICE, UNSPLICE and their answers survive their way through bytes; nothing else decodes.

mod support;

use contract::limits::{HEADER_BYTES_MAX, SPLICE_PROGRESS_MAX};
use contract::splicing::{
    Splice, SpliceEndReason, SpliceLeg, SpliceNumbers, SpliceOutcome, SpliceProgress,
    SpliceRefusal, SpliceTimestamps, UnspliceKind,
};
use contract::{Command, Event, FlowId};
use proptest::prelude::*;

use support::{encoded, encoded_event};

fn leg(first: u32, header: &[u8]) -> SpliceLeg<'_> {
    SpliceLeg {
        rcv_nxt: first,
        snd_nxt: first + 1,
        snd_window_bytes: first + 2,
        rcv_window_bytes: first + 3,
        snd_shift: 13,
        rcv_shift: 14,
        mss: 1460,
        sack: true,
        ecn: false,
        fin_end: Some(first + 4),
        timestamps: Some(SpliceTimestamps {
            value: first + 5,
            recent: first + 6,
        }),
        header,
    }
}

fn a_splice() -> Splice<'static> {
    Splice {
        flow: FlowId(0x0102_0304_0506_0708),
        legs: [leg(10, b"to the client"), leg(20, b"to the backend")],
        is_again: true,
        passed_bytes: [7, 8],
        idle_ms: 5,
        life_ms: 6,
    }
}

#[test]
fn the_layout_of_splice_and_unsplice() {
    let bytes = encoded(&Command::Splice(a_splice()));
    let (record, headers) = bytes.split_at(128);
    let mut expected = vec![155, 0, 0, 0, 16, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1];
    for passed in [7, 8] {
        expected.extend([passed, 0, 0, 0, 0, 0, 0, 0]);
    }
    expected.extend([5, 0, 0, 0, 6, 0, 0, 0]);
    for (first, header_bytes) in [(10, 13), (20, 14)] {
        for word in first..first + 7 {
            expected.extend([word, 0, 0, 0]);
        }
        // MSS, header bytes; shifts, SACK, ECN, FIN, timestamps.
        expected.extend([0xb4, 5, header_bytes, 0, 13, 14, 1, 0, 1, 1, 0, 0]);
    }
    expected.extend([1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(record, expected);
    assert_eq!(headers, b"to the clientto the backend");

    let mss = Command::SpliceMss {
        flow: FlowId(7),
        leg: 1,
        mss: 1460,
        seq: 0x0403_0201,
    };
    let mut bytes = [0; 24];
    bytes[..5].copy_from_slice(&[24, 0, 0, 0, 19]);
    bytes[8] = 7;
    bytes[16..23].copy_from_slice(&[1, 2, 3, 4, 0xb4, 5, 1]);
    assert_eq!(encoded(&mss), bytes);
    assert_eq!(Command::decode(&bytes), Ok(mss));
    for (at, value) in [(20..22, [0, 0]), (22..24, [2, 0]), (22..24, [0, 1])] {
        let mut bytes = bytes;
        bytes[at.clone()].copy_from_slice(&value);
        assert!(Command::decode(&bytes).is_err(), "bytes {at:?} = {value:?}");
    }

    let unsplice = Command::Unsplice {
        flow: FlowId(7),
        kind: UnspliceKind::Abort,
    };
    let mut bytes = [0; 24];
    bytes[..5].copy_from_slice(&[24, 0, 0, 0, 17]);
    (bytes[8], bytes[16]) = (7, 2);
    assert_eq!(encoded(&unsplice), bytes);
    for (at, value) in [(16, 0), (16, 3), (17, 1)] {
        let mut bytes = bytes;
        bytes[at] = value;
        assert!(Command::decode(&bytes).is_err(), "byte {at} = {value}");
    }
}

#[test]
fn the_layout_of_what_answers_them() {
    let refused = Event::SpliceRefused {
        flow: FlowId(7),
        reason: SpliceRefusal::AddressesInUse,
    };
    let mut bytes = [0; 24];
    bytes[..5].copy_from_slice(&[24, 0, 0, 0, 142]);
    (bytes[8], bytes[16]) = (7, 62);
    assert_eq!(encoded_event(&refused), bytes);

    let progress = Event::SpliceProgress {
        progress: [SpliceProgress {
            flow: FlowId(7),
            passed_bytes: [8, 9],
            has_finished: [false, true],
        }]
        .into(),
    };
    let mut bytes = [0; 48];
    bytes[..5].copy_from_slice(&[48, 0, 0, 0, 143]);
    (bytes[8], bytes[16], bytes[24], bytes[32], bytes[41]) = (1, 7, 8, 9, 1);
    assert_eq!(encoded_event(&progress), bytes);
    for (at, value) in [(40, 2), (42, 1), (47, 1)] {
        let mut bytes = bytes;
        bytes[at] = value;
        assert!(Event::decode(&bytes).is_err(), "byte {at} = {value}");
    }

    let reduced = Event::SpliceMssReduced {
        flow: FlowId(7),
        leg: 1,
        mss: 1460,
    };
    let mut bytes = [0; 24];
    bytes[..5].copy_from_slice(&[24, 0, 0, 0, 148]);
    bytes[8] = 7;
    bytes[20..23].copy_from_slice(&[0xb4, 5, 1]);
    assert_eq!(encoded_event(&reduced), bytes);
    for (at, value) in [(16, 1), (22, 2), (23, 1)] {
        let mut bytes = bytes;
        bytes[at] = value;
        assert!(Event::decode(&bytes).is_err(), "byte {at} = {value}");
    }

    let ended = Event::SpliceEnded {
        outcome: Box::new(an_outcome()),
        reason: SpliceEndReason::Aborted,
    };
    let mut bytes = vec![88, 0, 0, 0, 144, 0, 0, 0];
    for word in [1, 2, 3] {
        bytes.extend([word, 0, 0, 0, 0, 0, 0, 0]);
    }
    for word in (10..16).chain(20..26) {
        bytes.extend([word, 0, 0, 0]);
    }
    bytes.extend([7, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(encoded_event(&ended), bytes);
    for (at, value) in [(80, 0), (80, 8), (81, 1)] {
        let mut bytes = bytes.clone();
        bytes[at] = value;
        assert!(Event::decode(&bytes).is_err(), "byte {at} = {value}");
    }
    let unspliced = Event::Unspliced {
        outcome: Box::new(an_outcome()),
    };
    (bytes[4], bytes[80]) = (145, 0);
    assert_eq!(encoded_event(&unspliced), bytes);
    bytes[80] = 1;
    assert!(Event::decode(&bytes).is_err(), "a return has no reason");
}

fn an_outcome() -> SpliceOutcome {
    let numbers = |first| SpliceNumbers {
        snd_nxt: first,
        rcv_nxt: first + 1,
        snd_window_bytes: first + 2,
        rcv_window_bytes: first + 3,
        ts_value: first + 4,
        ts_recent: first + 5,
    };
    SpliceOutcome {
        flow: FlowId(1),
        passed_bytes: [2, 3],
        legs: [numbers(10), numbers(20)],
    }
}

fn splice_with(change: impl FnOnce(&mut Splice<'static>)) -> Command<'static> {
    let mut splice = a_splice();
    change(&mut splice);
    Command::Splice(splice)
}

#[test]
fn splice_stays_within_the_limits() {
    let scaled = "windows are scaled by at most WINDOW_SHIFT_MAX bits";
    for (command, rule) in [
        (
            splice_with(|it| it.legs[1].header = &[0; HEADER_BYTES_MAX + 1]),
            "a header has at most HEADER_BYTES_MAX bytes",
        ),
        (splice_with(|it| it.legs[0].mss = 0), "mss is not zero"),
        (splice_with(|it| it.legs[0].rcv_shift = 15), scaled),
        (splice_with(|it| it.legs[1].snd_shift = 15), scaled),
        (
            splice_with(|it| it.legs[1].snd_window_bytes = 1 << 30),
            "a window has at most PART_WINDOW_BYTES_MAX bytes",
        ),
        (
            splice_with(|it| it.legs[0].rcv_window_bytes = 1 << 30),
            "a window has at most PART_WINDOW_BYTES_MAX bytes",
        ),
        (
            splice_with(|it| it.legs[1].timestamps = None),
            "both legs have timestamps, or none",
        ),
        (
            splice_with(|it| it.passed_bytes[1] = 1 << 62),
            "fewer than 2^62 bytes have passed",
        ),
    ] {
        assert_eq!(command.check(), Err(rule));
        assert_eq!(Command::decode(&encoded(&command)).unwrap_err().rule, rule);
    }
    let good = encoded(&Command::Splice(a_splice()));
    for (at, value, rule) in [
        (70, 12, "the headers fill the message"),
        (70, 14, "the headers fill the message"),
        (70, 255, "the headers fill the message"),
        (77, 0, "without timestamps there are none"),
        (77, 2, "a flag is 0 or 1"),
        (76, 0, "without a FIN it has no end"),
        (74, 2, "a flag is 0 or 1"),
        (78, 1, "what is reserved is zero"),
        (120, 2, "a flag is 0 or 1"),
        (121, 1, "what is reserved is zero"),
    ] {
        let mut bytes = good.clone();
        bytes[at] = value;
        let error = Command::decode(&bytes).unwrap_err();
        assert_eq!(error.rule, rule, "byte {at} = {value}");
    }
    for (count, is_good) in [
        (0, false),
        (1, true),
        (SPLICE_PROGRESS_MAX, true),
        (SPLICE_PROGRESS_MAX + 1, false),
    ] {
        let one = SpliceProgress {
            flow: FlowId(1),
            passed_bytes: [0; 2],
            has_finished: [false; 2],
        };
        let progress = vec![one; count].into();
        let bytes = encoded_event(&Event::SpliceProgress { progress });
        assert_eq!(Event::decode(&bytes).is_ok(), is_good, "{count}");
    }
}

prop_compose! {
    fn any_leg()(
        numbers: [u32; 4],
        windows in (0..0xffffu32 << 14, 0..0xffffu32 << 14),
        fin_end: Option<u32>,
        shifts in (0..=14u8, 0..=14u8),
        mss in 1..=u16::MAX,
        flags: (bool, bool),
    ) -> SpliceLeg<'static> {
        SpliceLeg {
            rcv_nxt: numbers[0],
            snd_nxt: numbers[1],
            snd_window_bytes: windows.0,
            rcv_window_bytes: windows.1,
            fin_end,
            snd_shift: shifts.0,
            rcv_shift: shifts.1,
            mss,
            sack: flags.0,
            ecn: flags.1,
            timestamps: Some(SpliceTimestamps { value: numbers[2], recent: numbers[3] }),
            header: &[],
        }
    }
}

fn any_event() -> impl Strategy<Value = Event> {
    let numbers = any::<[u32; 6]>().prop_map(|words| SpliceNumbers {
        snd_nxt: words[0],
        rcv_nxt: words[1],
        snd_window_bytes: words[2],
        rcv_window_bytes: words[3],
        ts_value: words[4],
        ts_recent: words[5],
    });
    let outcome = (any::<(u64, [u64; 2])>(), numbers.clone(), numbers).prop_map(|(first, a, b)| {
        Box::new(SpliceOutcome {
            flow: FlowId(first.0),
            passed_bytes: first.1,
            legs: [a, b],
        })
    });
    let reasons = prop_oneof![
        Just(SpliceEndReason::Finished),
        Just(SpliceEndReason::ResetByFirst),
        Just(SpliceEndReason::ResetBySecond),
        Just(SpliceEndReason::Idle),
        Just(SpliceEndReason::Overdue),
        Just(SpliceEndReason::NotReturned),
        Just(SpliceEndReason::Aborted),
    ];
    let progress =
        any::<(u64, [u64; 2], [bool; 2])>().prop_map(|(flow, passed, finished)| SpliceProgress {
            flow: FlowId(flow),
            passed_bytes: passed,
            has_finished: finished,
        });
    prop_oneof![
        (outcome.clone(), reasons)
            .prop_map(|(outcome, reason)| Event::SpliceEnded { outcome, reason }),
        outcome.prop_map(|outcome| Event::Unspliced { outcome }),
        prop::collection::vec(progress, 1..=SPLICE_PROGRESS_MAX).prop_map(|progress| {
            Event::SpliceProgress {
                progress: progress.into(),
            }
        }),
        (any::<u64>(), 0..2u8, 1..=u16::MAX).prop_map(|(flow, leg, mss)| {
            Event::SpliceMssReduced {
                flow: FlowId(flow),
                leg,
                mss,
            }
        }),
        (any::<u64>(), 0..3usize).prop_map(|(flow, reason)| Event::SpliceRefused {
            flow: FlowId(flow),
            reason: [
                SpliceRefusal::Full,
                SpliceRefusal::BadHeader,
                SpliceRefusal::AddressesInUse,
            ][reason],
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1000,
        failure_persistence: None, // a failure prints the message
        ..ProptestConfig::default()
    })]

    #[test]
    fn splices_survive(
        flow: u64,
        legs in (any_leg(), any_leg()),
        headers in prop::array::uniform2(prop::collection::vec(any::<u8>(), 0..=HEADER_BYTES_MAX)),
        has_timestamps: bool,
        is_again: bool,
        passed_bytes in prop::array::uniform2(0..1u64 << 62),
        limits: (u32, u32),
    ) {
        let mut legs = [legs.0, legs.1];
        for (leg, header) in legs.iter_mut().zip(&headers) {
            leg.header = header;
            leg.timestamps = leg.timestamps.filter(|_| has_timestamps);
        }
        let command = Command::Splice(Splice {
            flow: FlowId(flow),
            legs,
            is_again,
            passed_bytes,
            idle_ms: limits.0,
            life_ms: limits.1,
        });
        let bytes = encoded(&command);
        prop_assert_eq!(Command::decode(&bytes), Ok(command));
    }

    #[test]
    fn answers_survive(event in any_event()) {
        prop_assert_eq!(Event::decode(&encoded_event(&event)), Ok(event));
    }

    #[test]
    fn what_decodes_encodes_to_the_same_bytes(
        event in any_event(),
        patches in prop::collection::vec((any::<u16>(), any::<u8>()), 0..4),
    ) {
        let mut bytes = encoded_event(&event);
        for (at, value) in patches {
            let len = bytes.len();
            bytes[usize::from(at) % len] = value;
        }
        if let Ok(event) = Event::decode(&bytes) {
            prop_assert_eq!(encoded_event(&event), bytes);
        }
    }
}
