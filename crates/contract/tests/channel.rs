//! Channels between two threads, asleep and awake. Waiting is always for something; the timeout
//! only turns a lost wake-up into a failure.

use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::thread;

use contract::channel::{HostChannel, NicChannel, ReceiveError, in_memory};
use contract::codec::EVENT_BYTES_MAX;
use contract::control::{host_hello, nic_hello};
use contract::limits::{COMMAND_RING_BYTES, EVENT_RING_BYTES};
use contract::{Command, Event, FileId, FlowId, Growth, Segment, Send, SendId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

fn shared() -> (HostChannel, NicChannel) {
    let (host_end, nic_end) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    let nic = thread::spawn(move || nic_hello(nic_end, 1).unwrap());
    let host = host_hello(host_end, 1).unwrap().channels.pop().unwrap();
    let nic = nic.join().unwrap().channels.pop().unwrap();
    (host, nic)
}

fn rings_within(bell: Option<BorrowedFd<'_>>, seconds: i64) -> bool {
    let timeout = Timespec {
        tv_sec: seconds,
        tv_nsec: 0,
    };
    let mut descriptors = [PollFd::from_borrowed_fd(bell.unwrap(), PollFlags::IN)];
    poll(&mut descriptors, Some(&timeout)).unwrap() == 1
}

fn sleep_until_woken(bell: Option<BorrowedFd<'_>>) {
    assert!(rings_within(bell, 20), "the wake-up was lost");
}

fn is_ringing(bell: Option<BorrowedFd<'_>>) -> bool {
    rings_within(bell, 0)
}

#[test]
fn a_send_whose_segments_were_not_collected_is_the_same() {
    let file = Segment::File {
        file: FileId(5),
        offset: 1 << 33,
        len: 64_000,
    };
    let inline = Segment::Inline(b"HTTP/1.1 200 OK");
    let cases: [&[Segment<'_>]; 6] = [
        &[],
        &[file],
        &[inline],
        &[inline, file],
        &[file, inline],
        &[file, file],
    ];
    let (mut host, mut nic) = in_memory();
    for segments in cases {
        for header in [
            &b"ethernet ip tcp"[..],
            b"8 bytes.",
            b"",
            b"16 bytes, or two",
        ] {
            let send = Send {
                id: SendId(0x0102_0304_0506_0708),
                flow: FlowId(2),
                stream_offset: 3,
                acked_offset: 2,
                issued_us: 4,
                not_before_us: 5,
                tsval_fraction_us: 999,
                follow_bytes: 0x0403_0201,
                mss: 1448,
                header,
                segments: segments.iter().copied(),
            };
            host.send_segments(&send).unwrap();
            host.flush();
            let collected = Send {
                id: send.id,
                flow: send.flow,
                stream_offset: send.stream_offset,
                acked_offset: send.acked_offset,
                issued_us: send.issued_us,
                not_before_us: send.not_before_us,
                tsval_fraction_us: send.tsval_fraction_us,
                follow_bytes: send.follow_bytes,
                mss: send.mss,
                header,
                segments: send.segments.collect(),
            };
            assert_eq!(nic.receive(), Ok(Some(Command::Send(collected))));
        }
    }
}

/// Both ends know what command number `n` is.
struct Script {
    bytes: Vec<u8>,
}

impl Script {
    fn new() -> Self {
        Script {
            bytes: (0..4096u32).map(|i| (i * 31 % 251) as u8).collect(),
        }
    }

    /// Of all sizes from 16 to over 4000 bytes.
    fn command(&self, n: u64) -> Command<'_> {
        let scrambled = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let len = 1 + scrambled as usize % if n.is_multiple_of(16) { 4000 } else { 100 };
        match n % 4 {
            0 => Command::Open {
                file: FileId(n as u32),
                growth: Growth::Forbidden,
                path: &self.bytes[1..][..len.min(200)],
            },
            1 => Command::Close {
                file: FileId(n as u32),
            },
            2 => Command::Acked {
                flow: FlowId(n),
                stream_offset: scrambled,
                last: n.is_multiple_of(3),
            },
            _ => Command::Send(Send {
                id: SendId(n),
                flow: FlowId(n),
                stream_offset: n,
                acked_offset: 0,
                issued_us: scrambled,
                not_before_us: 0,
                tsval_fraction_us: (n % 1000) as u16,
                follow_bytes: n as u32,
                mss: 1448,
                header: &self.bytes[..len.min(128)],
                segments: [
                    Segment::Inline(&self.bytes[len / 2..len]),
                    Segment::File {
                        file: FileId(1),
                        offset: scrambled,
                        len: 65_536,
                    },
                    Segment::Inline(&self.bytes[..len / 2]),
                ]
                .into(),
            }),
        }
    }
}

fn event(n: u64) -> Event {
    Event::Departed {
        send: SendId(n),
        flow: FlowId(n * 3),
        departed_us: n * 7,
    }
}

/// The host keeps sending; the NIC stack answers each command. Neither does anything but sleep when
/// it cannot go on: when its incoming ring is empty, or when its outgoing ring is full.
fn ping_pong_under_pressure(count: u64, batch: u64) {
    let (mut host, mut nic) = shared();
    let nic_thread = thread::spawn(move || {
        let script = Script::new();
        let mut answered = 0;
        while answered < count {
            if !nic.has_room() {
                if nic.prepare_sleep() {
                    sleep_until_woken(nic.wake_fd());
                }
                nic.finish_sleep();
                continue;
            }
            match nic.receive().unwrap() {
                Some(command) => {
                    assert_eq!(command, script.command(answered));
                    nic.send(&event(answered)).unwrap();
                    answered += 1;
                    if answered.is_multiple_of(batch) {
                        nic.flush();
                    }
                }
                None => {
                    if nic.prepare_sleep() {
                        sleep_until_woken(nic.wake_fd());
                        nic.finish_sleep();
                    }
                }
            }
        }
        nic.flush();
    });

    let script = Script::new();
    let (mut sent, mut answered) = (0, 0);
    while answered < count {
        while sent < count && host.send(&script.command(sent)).is_ok() {
            sent += 1;
            if sent.is_multiple_of(batch) {
                host.flush();
            }
        }
        while let Some(received) = host.receive().unwrap() {
            assert_eq!(received, event(answered));
            answered += 1;
        }
        if answered < count && host.prepare_sleep() {
            sleep_until_woken(host.wake_fd());
            host.finish_sleep();
        }
    }
    nic_thread.join().unwrap();
}

#[test]
fn every_message_arrives_when_published_one_by_one() {
    ping_pong_under_pressure(200_000, 1);
}

#[test]
fn every_message_arrives_in_batches() {
    ping_pong_under_pressure(500_000, 64);
}

/// ACKD has no answer: only the wake-up for room brings a host on that has filled the ring.
#[test]
fn a_host_asleep_on_a_full_ring_is_woken_without_any_event() {
    let (mut host, mut nic) = shared();
    const COUNT: u64 = 300_000;
    let acked = |n| Command::Acked {
        flow: FlowId(1),
        stream_offset: n,
        last: false,
    };
    let reader = thread::spawn(move || {
        let mut received = 0;
        while received < COUNT {
            match nic.receive().unwrap() {
                Some(command) => {
                    assert_eq!(command, acked(received));
                    received += 1;
                }
                None => {
                    if nic.prepare_sleep() {
                        sleep_until_woken(nic.wake_fd());
                    }
                    nic.finish_sleep();
                }
            }
        }
    });
    for n in 0..COUNT {
        while host.send(&acked(n)).is_err() {
            if host.prepare_sleep() {
                sleep_until_woken(host.wake_fd());
            }
            host.finish_sleep();
        }
    }
    host.flush();
    reader.join().unwrap();
}

#[test]
fn only_a_sleeping_peer_is_woken() {
    let (mut host, mut nic) = shared();
    let close = Command::Close { file: FileId(1) };
    nic.finish_sleep();

    host.send(&close).unwrap();
    host.flush();
    assert!(!is_ringing(nic.wake_fd()), "it was awake");
    assert_eq!(nic.receive(), Ok(Some(close.clone())));

    assert!(nic.prepare_sleep());
    host.send(&close).unwrap();
    assert!(!is_ringing(nic.wake_fd()), "nothing is published yet");
    host.flush();
    assert!(is_ringing(nic.wake_fd()));
    nic.finish_sleep();
    assert!(!is_ringing(nic.wake_fd()), "drained");

    assert!(!nic.prepare_sleep(), "the message is still there");
}

#[test]
fn what_is_published_is_there_and_wakes_with_the_next_flush() {
    let (mut host, mut nic) = shared();
    host.finish_sleep();
    assert!(host.prepare_sleep());
    nic.send(&event(1)).unwrap();
    nic.publish();
    assert!(!is_ringing(host.wake_fd()));
    assert_eq!(host.receive(), Ok(Some(event(1))));

    // Nothing has been written since.
    nic.flush();
    assert!(is_ringing(host.wake_fd()));
    host.finish_sleep();
    nic.flush();
    assert!(!is_ringing(host.wake_fd()));
}

#[test]
fn a_nic_without_room_for_events_sleeps_until_there_is_room() {
    let (mut host, mut nic) = shared();
    nic.finish_sleep();
    while nic.has_room() {
        nic.send(&event(0)).unwrap();
    }
    nic.flush();
    let close = Command::Close { file: FileId(1) };
    host.send(&close).unwrap();
    host.flush();

    assert!(nic.prepare_sleep(), "the command stays where it is");
    assert!(!is_ringing(nic.wake_fd()));
    while host.receive().unwrap().is_some() {}
    assert!(is_ringing(nic.wake_fd()));
    nic.finish_sleep();
    assert!(nic.has_room());
    assert!(!nic.prepare_sleep(), "now the command counts");
    assert_eq!(nic.receive(), Ok(Some(close)));
}

#[test]
fn preparing_to_sleep_flushes() {
    let (mut host, mut nic) = in_memory();
    host.send(&Command::Close { file: FileId(1) }).unwrap();
    assert_eq!(nic.receive(), Ok(None));
    assert!(host.prepare_sleep());
    assert!(nic.receive().unwrap().is_some());
}

#[test]
fn has_room_means_that_anything_fits() {
    let (mut host, mut nic) = in_memory();
    let path = [b'x'; 4000];
    let open = Command::Open {
        file: FileId(1),
        growth: Growth::Forbidden,
        path: &path,
    };
    let mut sent = 0;
    while host.has_room() {
        host.send(&open).unwrap();
        sent += 1;
    }
    assert!(sent * 4000 > COMMAND_RING_BYTES - 3 * 8192);

    let mut sent = 0;
    while nic.has_room() {
        nic.send(&event(sent)).unwrap();
        sent += 1;
    }
    assert!(sent as usize * 40 > EVENT_RING_BYTES - 2 * EVENT_BYTES_MAX);
}

#[test]
fn a_malformed_command_is_skipped_and_named() {
    let (mut host, mut nic) = in_memory();
    let bad = Command::Open {
        file: FileId(9),
        growth: Growth::Forbidden,
        path: b"/absolute",
    };
    let good = Command::Close { file: FileId(9) };
    host.send(&bad).unwrap();
    host.send(&good).unwrap();
    host.flush();
    assert_eq!(nic.receive(), Err(ReceiveError::Malformed { id: 9 }));
    assert_eq!(nic.receive(), Ok(Some(good)));
}

#[test]
#[should_panic(expected = "a message of 9016 bytes")]
fn a_command_that_never_fits_is_a_bug_of_the_caller() {
    let path = [b'x'; 9000];
    let _ = in_memory().0.send(&Command::Open {
        file: FileId(9),
        growth: Growth::Forbidden,
        path: &path,
    });
}

#[test]
fn channels_move_between_threads() {
    fn movable<T: std::marker::Send + Debug>() {}
    movable::<HostChannel>();
    movable::<NicChannel>();
}
