//! Kicks, hints and the accept queue, checked by loom over the executions that the memory model
//! allows:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test --release -p splitway-socket-channel --lib
//! ```
//!
//! A lost wakeup shows as a deadlock, a missing barrier as a wrong byte. A bell stands for the
//! rings, which have models of their own.

use std::num::NonZeroU32;

use ::loom::sync::Notify;
use ::loom::thread;
use shm::sync::Arc;

use crate::app_record::{AppRecord, Lock};
use crate::host_record::HostRecord;
use crate::ids::{ChannelId, SocketId};
use crate::record::{Flags, Wanted};
use crate::segment::{Block, Segment};

const ID: SocketId = SocketId {
    index: 0,
    generation: 1,
};
const CHANNEL: ChannelId = ChannelId(7);

/// One word, so that it wraps soon.
const RX: Block = Block { word: 0, log2: 3 };
const TX: Block = Block { word: 1, log2: 3 };

/// Replacement for either block.
const OTHER: Block = Block { word: 2, log2: 3 };

/// Checks every execution with up to three preemptions; bugs of this kind need one or two.
fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = ::loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

fn connection() -> (Segment, HostRecord) {
    let segment = Segment::for_model(3);
    let flags = Flags::STREAM | Flags::CONNECTED;
    let host = HostRecord::new(&segment, ID, flags, Some(RX), Some(TX));
    (segment, host)
}

/// Acts as the host stack until `bytes` are taken: looks only after a kick.
fn take(host: &mut HostRecord, kick: &Notify, hint: &Notify, bytes: usize) -> Vec<u8> {
    let mut taken = Vec::new();
    while taken.len() < bytes {
        kick.wait();
        host.look().unwrap();
        host.tx_read(u64::MAX, |chunk| {
            taken.extend_from_slice(chunk);
            chunk.len()
        });
        if host.take_wanted() != Wanted::None {
            hint.notify();
        }
    }
    taken
}

#[test]
fn the_host_is_kicked_for_bytes_and_the_writer_hears_of_room() {
    check(|| {
        let (segment, mut host) = connection();
        let (kick, hint) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (to_host, to_app) = (kick.clone(), hint.clone());
        let writer = thread::spawn(move || {
            let app = AppRecord::of(&segment, ID).unwrap();
            for part in [&b"abcdefgh"[..], b"ij"] {
                let mut rest = part;
                while !rest.is_empty() {
                    let edge = app.edge();
                    let len = app.write(rest).unwrap();
                    rest = &rest[len..];
                    if len > 0 {
                        if app.must_kick() {
                            to_host.notify();
                        }
                    } else if app.want(CHANNEL, edge) {
                        to_app.wait();
                    }
                }
            }
        });
        assert_eq!(take(&mut host, &kick, &hint, 10), b"abcdefghij");
        writer.join().unwrap();
    });
}

#[test]
fn a_writer_that_has_queued_all_file_bytes_hears_of_more() {
    check(|| {
        let (segment, mut host) = connection();
        host.add_file_credit(1);
        let hint = Arc::new(Notify::new());
        let to_app = hint.clone();
        let writer = thread::spawn(move || {
            let app = AppRecord::of(&segment, ID).unwrap();
            let mut left = 3;
            while left > 0 {
                let edge = app.edge();
                let queued = app.queue_file(left);
                left -= queued;
                if queued == 0 && app.want(CHANNEL, edge) {
                    to_app.wait();
                }
            }
        });
        for _ in 0..2 {
            host.add_file_credit(1);
            if host.take_wanted() != Wanted::None {
                hint.notify();
            }
        }
        writer.join().unwrap();
    });
}

#[test]
fn who_waits_until_bytes_can_be_written_hears_of_room() {
    check(|| {
        let (segment, mut host) = connection();
        let hint = Arc::new(Notify::new());
        let to_app = hint.clone();
        AppRecord::of(&segment, ID)
            .unwrap()
            .write(b"abcdefgh")
            .unwrap();
        host.look().unwrap();
        let waiter = thread::spawn(move || {
            let app = AppRecord::of(&segment, ID).unwrap();
            loop {
                let edge = app.edge();
                if app.look().unwrap().readiness().writable {
                    break;
                }
                if app.want(CHANNEL, edge) {
                    to_app.wait();
                }
            }
        });
        for _ in 0..2 {
            host.tx_read(u64::MAX, |_| 1);
            if host.take_wanted() != Wanted::None {
                hint.notify();
            }
        }
        waiter.join().unwrap();
    });
}

#[test]
fn the_reader_hears_of_bytes_and_the_host_of_room() {
    check(|| {
        let (segment, mut host) = connection();
        let (kick, hint) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (to_host, to_app) = (kick.clone(), hint.clone());
        let reader = thread::spawn(move || {
            let app = AppRecord::of(&segment, ID).unwrap();
            let mut read = Vec::new();
            while read.len() < 10 {
                let edge = app.edge();
                let mut bytes = [0; 8];
                let len = app.read(&mut bytes).unwrap();
                read.extend_from_slice(&bytes[..len]);
                if len > 0 {
                    if app.rx_must_kick(len) {
                        to_host.notify();
                    }
                } else if app.want(CHANNEL, edge) {
                    to_app.wait();
                }
            }
            assert_eq!(read, b"0123456789");
        });
        let mut rest = &b"0123456789"[..];
        while !rest.is_empty() {
            let len = host.rx_write(rest);
            rest = &rest[len..];
            if host.take_wanted() != Wanted::None {
                hint.notify();
            }
            if !rest.is_empty() {
                if host.rx_wait_for_room() {
                    kick.wait();
                }
                host.look().unwrap();
            }
        }
        reader.join().unwrap();
    });
}

#[test]
fn the_end_of_a_stream_is_heard_of_after_its_bytes() {
    check(|| {
        let (segment, mut host) = connection();
        let hint = Arc::new(Notify::new());
        let to_app = hint.clone();
        let reader = thread::spawn(move || {
            let app = AppRecord::of(&segment, ID).unwrap();
            loop {
                let edge = app.edge();
                if app.flags().unwrap().has(Flags::PEER_FINISHED) {
                    break;
                }
                if app.want(CHANNEL, edge) {
                    to_app.wait();
                }
            }
            let mut bytes = [0; 8];
            assert_eq!(app.read(&mut bytes), Ok(3));
            assert_eq!(&bytes[..3], b"end");
        });
        host.rx_write(b"end");
        host.set(Flags::PEER_FINISHED);
        if host.take_wanted() != Wanted::None {
            hint.notify();
        }
        reader.join().unwrap();
    });
}

#[test]
fn two_processes_that_wait_are_both_told() {
    check(|| {
        let (segment, mut host) = connection();
        let bells = [Arc::new(Notify::new()), Arc::new(Notify::new())];
        let readers = bells.clone().map(|bell| {
            let segment = segment.clone();
            let channel = ChannelId(u32::from(Arc::ptr_eq(&bell, &bells[1])));
            thread::spawn(move || {
                let app = AppRecord::of(&segment, ID).unwrap();
                loop {
                    let edge = app.edge();
                    if app.rx_waiting_bytes() > 0 {
                        break;
                    }
                    if app.want(channel, edge) {
                        bell.wait();
                    }
                }
            })
        });
        host.rx_write(b"x");
        match host.take_wanted() {
            Wanted::None => {}
            Wanted::By(channel) => bells[channel.0 as usize].notify(),
            Wanted::BySeveral => bells.iter().for_each(|bell| bell.notify()),
        }
        for reader in readers {
            reader.join().unwrap();
        }
    });
}

#[test]
fn an_acknowledgment_that_is_waited_for_is_heard_of() {
    check(|| {
        let (segment, mut host) = connection();
        let bells = [Arc::new(Notify::new()), Arc::new(Notify::new())];
        let waiters = [2, 1].map(|position| {
            let segment = segment.clone();
            let bell = bells[position - 1].clone();
            let channel = ChannelId(position as u32 - 1);
            thread::spawn(move || {
                let app = AppRecord::of(&segment, ID).unwrap();
                loop {
                    let edge = app.edge();
                    if app.await_acked(position as u64) {
                        break;
                    }
                    if app.want(channel, edge) {
                        bell.wait();
                    }
                }
            })
        });
        for acked in 1..=2 {
            host.set_acked(acked);
            match host.take_wanted() {
                Wanted::None => {}
                Wanted::By(channel) => bells[channel.0 as usize].notify(),
                Wanted::BySeveral => bells.iter().for_each(|bell| bell.notify()),
            }
        }
        for waiter in waiters {
            waiter.join().unwrap();
        }
    });
}

#[test]
fn each_connection_is_accepted_once() {
    check(|| {
        let segment = Segment::for_model(1);
        // A queue of one word, which is overwritten at once.
        let mut host = HostRecord::new(&segment, ID, Flags::LISTENER, Some(RX), None);
        let connection = |index| SocketId {
            index,
            generation: 1,
        };
        let takers = [(); 2].map(|()| {
            let segment = segment.clone();
            thread::spawn(move || {
                let app = AppRecord::of(&segment, ID).unwrap();
                app.accept().unwrap()
            })
        });
        host.accept_push(connection(1)).unwrap();
        let mut pushed = vec![connection(1)];
        host.look().unwrap();
        if host.accept_push(connection(2)).is_ok() {
            pushed.push(connection(2));
        }
        let mut taken: Vec<SocketId> = takers
            .into_iter()
            .filter_map(|taker| taker.join().unwrap())
            .collect();
        taken.extend(AppRecord::of(&segment, ID).unwrap().accept().unwrap());
        taken.sort_unstable();
        assert_eq!(taken, pushed);
    });
}

#[test]
fn what_is_written_while_the_fifo_is_replaced_is_not_lost() {
    check(|| {
        let (segment, mut host) = connection();
        let writer = thread::spawn(move || {
            let app = AppRecord::of(&segment, ID).unwrap();
            let own = NonZeroU32::MIN;
            for part in [&b"ab"[..], b"cd"] {
                while app.try_lock(Lock::Tx, own).is_err() {
                    thread::yield_now();
                }
                assert_eq!(app.write(part), Ok(2));
                app.unlock(Lock::Tx, own);
            }
        });
        let _ = host.replace_tx(Some(OTHER));
        writer.join().unwrap();
        host.look().unwrap();
        let mut taken = Vec::new();
        host.tx_read(u64::MAX, |chunk| {
            taken.extend_from_slice(chunk);
            chunk.len()
        });
        assert_eq!(taken, b"abcd");
    });
}

#[test]
fn what_is_read_while_an_empty_fifo_is_replaced_is_not_lost() {
    check(|| {
        let (segment, mut host) = connection();
        assert_eq!(host.rx_write(b"ab"), 2);
        let of_reader = segment.clone();
        let reader = thread::spawn(move || {
            let app = AppRecord::of(&of_reader, ID).unwrap();
            let mut bytes = [0; 4];
            let first = app.read(&mut bytes).unwrap();
            let second = app.read(&mut bytes[first..]).unwrap();
            (bytes, first + second)
        });
        host.look().unwrap();
        if host.rx_unread_bytes() == 0 {
            host.replace_rx(Some(OTHER));
        }
        assert_eq!(host.rx_write(b"cd"), 2);
        let (mut bytes, read) = reader.join().unwrap();
        let app = AppRecord::of(&segment, ID).unwrap();
        let rest = app.read(&mut bytes[read..]).unwrap();
        assert_eq!((bytes, read + rest), (*b"abcd", 4));
    });
}
