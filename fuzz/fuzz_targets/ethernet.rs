//! The contract over Ethernet: any frame may come, at any time, to a machine that waits for a host
//! stack, to one that waits for an answer, and to a session, between genuine frames and damaged
//! ones.

#![no_main]

use contract::ethernet::{Initiator, PreSharedKey, Responder, Session, Terms};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;

const KEY: PreSharedKey = PreSharedKey::new([7; 32]);

#[derive(Arbitrary, Debug)]
enum Step<'a> {
    /// An attacker on the link sends this.
    Frame(&'a [u8]),
    /// The link damages a genuine frame: which one, where, and how.
    Damaged {
        which: u8,
        patches: Vec<(u8, u8)>,
        len: u16,
    },
    Send {
        worker: u16,
        len: u16,
    },
    Time(u16),
}

fuzz_target!(|steps: Vec<Step<'_>>| {
    let terms = Terms {
        workers: 1,
        frame_bytes: 1500,
        mtu: 1500,
        source_mac: None,
    };
    let attempt = || Initiator::new(&KEY, 1500, 1, [1; 32]);
    let (mut initiator, mut waiting) = (attempt(), attempt());
    let mut responder = Responder::new(&KEY, terms);
    let mut genuine = vec![Vec::new(), Vec::new(), Vec::new()];
    let mut scratch = Vec::new();
    initiator.hello(&mut genuine[0]);
    let mut hello = genuine[0].clone();
    responder
        .on_frame(1, &mut hello, [2; 32], &mut genuine[1])
        .unwrap();
    let (mut host, _) = initiator.on_frame(1, &mut genuine[1].clone()).unwrap();
    host.transmit(1, &mut genuine[2]);
    let mut first = genuine[2].clone();
    let (mut nic, _) = responder
        .on_frame(1, &mut first, [3; 32], &mut scratch)
        .unwrap()
        .unwrap();

    let mut now_us = 2;
    for step in steps {
        match step {
            Step::Frame(bytes) => hear(
                now_us,
                bytes,
                &mut waiting,
                &mut responder,
                [&mut host, &mut nic],
            ),
            Step::Damaged {
                which,
                patches,
                len,
            } => {
                let genuine = &genuine[usize::from(which) % genuine.len()];
                let mut frame = genuine[..genuine.len().min(len.into())].to_vec();
                for (at, value) in patches {
                    if let Some(byte) = frame.get_mut(usize::from(at)) {
                        *byte = value;
                    }
                }
                hear(
                    now_us,
                    &frame,
                    &mut waiting,
                    &mut responder,
                    [&mut host, &mut nic],
                );
            }
            Step::Send { worker, len } => {
                let _ = host.send(worker, &vec![1; 1 + usize::from(len) % 8192]);
            }
            Step::Time(us) => now_us += u64::from(us),
        }
        // What the two have to say to each other arrives.
        host.on_time(now_us);
        nic.on_time(now_us);
        while host.transmit(now_us, &mut scratch) {
            genuine.push(scratch.clone());
            let _ = nic.on_frame(now_us, &mut scratch);
        }
        while nic.transmit(now_us, &mut scratch) {
            let _ = host.on_frame(now_us, &mut scratch);
        }
        while let Some((_, record)) = nic.record() {
            assert!(record.iter().all(|byte| *byte == 1), "bytes of another record");
            nic.consume();
        }
        genuine.truncate(64);
    }
});

fn hear(
    now_us: u64,
    bytes: &[u8],
    initiator: &mut Initiator,
    responder: &mut Responder,
    sessions: [&mut Session; 2],
) {
    let mut answer = Vec::new();
    let _ = initiator.on_frame(now_us, &mut bytes.to_vec());
    let _ = responder.on_frame(now_us, &mut bytes.to_vec(), [4; 32], &mut answer);
    for session in sessions {
        let _ = session.on_frame(now_us, &mut bytes.to_vec());
    }
}
